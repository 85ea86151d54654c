//! Progress on stderr: a bar with an ETA on a terminal, plain lines elsewhere.
#![allow(clippy::print_stderr, reason = "progress goes to stderr")]

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

/// How far the whole table is.
pub(crate) struct Progress {
    bar: ProgressBar,
    plain: bool,
    done: u64,
    total: u64,
}

impl Progress {
    /// Progress over `total` rows.
    pub(crate) fn new(total: usize) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let bar = if plain { ProgressBar::hidden() } else { ProgressBar::new(total as u64) };
        if let Ok(style) =
            ProgressStyle::with_template("{msg}  [{bar:24}] {pos}/{len} rows, {elapsed} elapsed, eta {eta}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar, plain, done: 0, total: total as u64 }
    }

    /// A line that stays.
    pub(crate) fn note(&self, what: &str) {
        if self.plain {
            eprintln!("{what}");
        } else {
            self.bar.println(what);
        }
    }

    /// The row `label` begins.
    pub(crate) fn begin(&self, label: &str) {
        self.bar.set_message(label.to_owned());
    }

    /// A row is done.
    pub(crate) fn end(&mut self, label: &str, result: &str) {
        self.done += 1;
        self.bar.set_position(self.done);
        if self.plain {
            eprintln!("{} of {}: {label}: {result}", self.done, self.total);
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
