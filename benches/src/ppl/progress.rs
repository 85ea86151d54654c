//! Progress on stderr: a bar with an ETA on a terminal, plain lines elsewhere.
#![allow(clippy::print_stderr, reason = "progress goes to stderr")]

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use gosset_eval::{Passkey, WindowResult};
use gosset_quantize::{Event, Observer};
use indicatif::{ProgressBar, ProgressStyle};

use super::interrupt::Interrupt;

/// How far the whole run is.
pub(super) struct Progress {
    bar: ProgressBar,
    plain: bool,
    start: Instant,
    windows_done: u64,
    windows_total: u64,
}

impl Progress {
    pub(super) fn new() -> Self {
        let plain = !std::io::stderr().is_terminal();
        let bar = if plain { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar, plain, start: Instant::now(), windows_done: 0, windows_total: 0 }
    }

    /// What is being done, without a measure.
    pub(super) fn say(&self, what: &str) {
        if self.plain {
            eprintln!("{what}");
        } else {
            self.bar.set_message(what.to_owned());
        }
    }

    /// A line that stays.
    pub(super) fn note(&self, what: &str) {
        if self.plain {
            eprintln!("{what}");
        } else {
            self.bar.println(what);
        }
    }

    /// Scoring begins: `total` windows in all rows together.
    pub(super) fn set_windows(&mut self, total: usize) {
        if self.windows_total != 0 {
            return;
        }
        self.windows_total = total as u64;
        self.start = Instant::now();
        self.bar.set_length(self.windows_total);
        let template = "{msg}  [{bar:24}] {pos}/{len} windows, {elapsed} elapsed, eta {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.reset_elapsed();
    }

    /// One more window of the row `label`.
    pub(super) fn window(&mut self, label: &str, w: &WindowResult) {
        self.windows_done += 1;
        self.bar.set_message(format!("{label} {}/{} ppl {:.5}", w.window, w.of, w.cumulative_ppl));
        self.bar.set_position(self.windows_done);
        if self.plain {
            let left = self.windows_total.saturating_sub(self.windows_done) as f64;
            let eta = self.start.elapsed().as_secs_f64() / self.windows_done as f64 * left;
            eprintln!("{label}: window {} of {}, ppl {:.5}, eta {}", w.window, w.of, w.cumulative_ppl, clock(eta));
        }
    }

    /// So many questions of a task are done.
    pub(super) fn questions(&self, label: &str, task: &str, done: usize, of: usize) {
        let message = format!("{label}: {task}, {done} of {of} questions");
        if self.plain && done < of {
            return;
        }
        self.say(&message);
    }

    /// A pass key is asked for.
    pub(super) fn passkey(&self, label: &str, passkey: &Passkey) {
        if !self.plain || passkey.trial == 0 {
            self.say(&format!("{label}: pass key {} at {} tokens", passkey.trial + 1, passkey.context));
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Watches the quantizer.
    pub(super) fn observer<'a>(&'a self, label: &'a str, interrupt: &'a Interrupt) -> QuantizeProgress<'a> {
        QuantizeProgress { progress: self, label, interrupt }
    }
}

/// Shows the quantizer's events and passes Ctrl-C on to it.
pub(super) struct QuantizeProgress<'a> {
    progress: &'a Progress,
    label: &'a str,
    interrupt: &'a Interrupt,
}

impl Observer for QuantizeProgress<'_> {
    fn event(&self, event: &Event<'_>) {
        let label = self.label;
        match event {
            Event::Finished { index, total, .. } if !self.progress.plain => {
                let speed = event.weights_per_second().unwrap_or(0.0) / 1e6;
                let message = format!("{label} quantizing {}/{total}, {speed:.0} M weights/s", index + 1);
                self.progress.bar.set_message(message);
            }
            Event::Warning { message } => self.progress.note(&format!("{label}: {message}")),
            _ => {}
        }
    }

    fn cancelled(&self) -> bool {
        self.interrupt.raised()
    }
}

/// Seconds as `1h02m`, `3m20s` or `12s`.
fn clock(seconds: f64) -> String {
    let s = seconds.round().max(0.0) as u64;
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) => format!("{h}h{m:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!([clock(0.2), clock(61.0), clock(3720.0)], ["0s", "1m01s", "1h02m"]);
    }
}
