//! Progress on stderr: a bar on a terminal, plain lines when piped, nothing when quiet.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::exit::printable;
use crate::output;

/// Time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Progress over a known number of weights.
#[derive(Debug)]
pub(crate) struct Progress {
    shape: Shape,
    verb: &'static str,
    total_weights: u64,
    start: Instant,
    last_line: Mutex<Option<Instant>>,
}

#[derive(Debug)]
enum Shape {
    Silent,
    Bar(ProgressBar),
    Lines,
}

impl Progress {
    /// Progress over `total_weights` weights; `verb`, for instance `quantizing`, opens the last line.
    pub(crate) fn new(quiet: bool, verb: &'static str, total_weights: u64) -> Self {
        let shape = if quiet {
            Shape::Silent
        } else if io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(total_weights), ProgressDrawTarget::stderr_with_hz(8));
            if let Ok(style) = ProgressStyle::with_template("[{bar:24}] {percent:>3} %  {wide_msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            Shape::Bar(bar)
        } else {
            Shape::Lines
        };
        Progress { shape, verb, total_weights, start: Instant::now(), last_line: Mutex::new(None) }
    }

    /// Says that `verb` is being done to `tensor`, number `index` of `total` (from 0); `done_weights` weights are behind.
    pub(crate) fn at(&self, verb: &str, tensor: &str, index: usize, total: usize, done_weights: u64) {
        let text = || {
            let seconds = self.start.elapsed().as_secs_f64();
            let pace = pace(done_weights, self.total_weights, seconds);
            format!("{verb} {}/{total}{pace}: {}", index + 1, printable(tensor))
        };
        match &self.shape {
            Shape::Silent => {}
            Shape::Bar(bar) => {
                bar.set_position(done_weights);
                bar.set_message(text());
            }
            Shape::Lines => {
                let mut last = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
                let now = Instant::now();
                if last.is_none_or(|last| now - last >= LINE_INTERVAL) {
                    *last = Some(now);
                    let _ = writeln!(io::stderr().lock(), "{}", text());
                }
            }
        }
    }

    /// Says that all is done.
    pub(crate) fn finish(&self) {
        let seconds = self.start.elapsed().as_secs_f64();
        let rate = output::count((self.total_weights as f64 / seconds.max(1e-3)) as u64);
        let text = format!(
            "{} done: {} weights in {seconds:.1} s ({rate} weights/s)",
            self.verb,
            output::count(self.total_weights)
        );
        match &self.shape {
            Shape::Silent => return,
            Shape::Bar(bar) => bar.finish_and_clear(),
            Shape::Lines => {}
        }
        output::note(&text);
    }
}

impl Drop for Progress {
    /// Leaves no half-drawn bar behind when a run fails.
    fn drop(&mut self) {
        if let Shape::Bar(bar) = &self.shape {
            bar.finish_and_clear();
        }
    }
}

/// `, 25.1 M weights/s, 4 s left`; empty before anything is done.
fn pace(done: u64, total: u64, seconds: f64) -> String {
    if done == 0 || seconds <= 0.0 {
        return String::new();
    }
    let rate = done as f64 / seconds;
    let left = (total.saturating_sub(done) as f64 / rate).ceil() as u64;
    let left = if left < 120 { format!("{left} s") } else { format!("{} min", left.div_ceil(60)) };
    format!(", {} weights/s, {left} left", output::count(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_counts_what_is_done() {
        assert_eq!(pace(0, 10, 1.0), "");
        assert_eq!(pace(50_000_000, 150_000_000, 2.0), ", 25.0 M weights/s, 4 s left");
        assert_eq!(pace(1_000, 1_000_000, 1.0), ", 1.0 k weights/s, 17 min left");
        assert_eq!(pace(10, 5, 1.0), ", 10 weights/s, 0 s left");
    }
}
