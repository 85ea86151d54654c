//! Which parts of which columns a stream holds.

use std::ops::Range;

/// Streams of `n_lines` lines of `line_len` values each, at most `stream_len` values in one.
///
/// A line is a column that has symbols, in the order of storage. A stream holds as many whole lines as fit; lines that are longer
/// than a stream are cut into streams of their own, all full but the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamLayout {
    n_lines: usize,
    line_len: usize,
    stream_len: usize,
}

impl StreamLayout {
    pub(crate) fn new(n_lines: usize, line_len: usize, stream_len: usize) -> Self {
        Self { n_lines, line_len, stream_len }
    }

    /// Whole lines of a stream; 0 if a line takes several streams.
    pub(crate) fn lines_per_stream(&self) -> usize {
        self.stream_len / self.line_len
    }

    /// Streams of a line that takes several, 1 otherwise.
    fn streams_per_line(&self) -> usize {
        if self.lines_per_stream() == 0 { self.line_len.div_ceil(self.stream_len) } else { 1 }
    }

    /// Number of streams.
    pub(crate) fn n_streams(&self) -> usize {
        match self.lines_per_stream() {
            0 => self.n_lines * self.streams_per_line(),
            lines => self.n_lines.div_ceil(lines),
        }
    }

    /// Lines of a stream, and the values of each that it holds.
    pub(crate) fn stream(&self, stream: usize) -> (Range<usize>, Range<usize>) {
        match self.lines_per_stream() {
            0 => {
                let (line, part) = (stream / self.streams_per_line(), stream % self.streams_per_line());
                let from = part * self.stream_len;
                (line..line + 1, from..self.line_len.min(from + self.stream_len))
            }
            lines => (stream * lines..self.n_lines.min((stream + 1) * lines), 0..self.line_len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_partition_the_lines() {
        for (n_lines, line_len) in [(1, 1), (7, 100), (10, 33), (5, 250), (3, 101), (0, 8)] {
            let layout = StreamLayout::new(n_lines, line_len, 100);
            let mut at = 0;
            for stream in 0..layout.n_streams() {
                let (lines, within) = layout.stream(stream);
                assert!(lines.len() * within.len() <= 100);
                assert_eq!(lines.start * line_len + within.start, at);
                at += lines.len() * within.len();
            }
            assert_eq!(at, n_lines * line_len, "{n_lines} x {line_len}");
        }
    }
}
