//! Stdout and the shapes of what goes there: tables, sizes, JSON.

use std::io::{self, BufWriter, StdoutLock, Write};

use anyhow::Result;
use serde::Serialize;

/// Buffered stdout. Its errors are returned, never a panic; a closed pipe ends the program quietly.
pub(crate) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

/// Writes `value` as indented JSON and a line feed.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let mut out = stdout();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Writes `value` as JSON on one line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<()> {
    let mut out = stdout();
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// One line on stderr. A closed stderr is no reason to fail.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", crate::exit::printable(text));
}

/// `98_362_432` as `98.4 MB`; decimal units.
pub(crate) fn bytes(n: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.iter().find(|(_, size)| n as f64 >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", n as f64 / size),
        None => format!("{n} B"),
    }
}

/// `134_515_008` as `134.5 M`, for counts of weights.
pub(crate) fn count(n: u64) -> String {
    let units = [(" G", 1e9), (" M", 1e6), (" k", 1e3)];
    match units.iter().find(|(_, size)| n as f64 >= *size) {
        Some((unit, size)) => format!("{:.1}{unit}", n as f64 / size),
        None => n.to_string(),
    }
}

/// Bits per weight, `-` where there are no weights.
pub(crate) fn bps(bits: f64, n_weights: u64) -> String {
    if n_weights == 0 { "-".to_owned() } else { format!("{:.4}", bits / n_weights as f64) }
}

/// A shape as `576x1536`; `scalar` without dimensions.
pub(crate) fn shape(dims: &[usize]) -> String {
    if dims.is_empty() {
        return "scalar".to_owned();
    }
    dims.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

/// A table for people: the first `n_text` columns are aligned left, the others right.
#[derive(Debug)]
pub(crate) struct Table {
    n_text: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with its heading.
    pub(crate) fn new(n_text: usize, heading: &[&str]) -> Self {
        Table { n_text, rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// Adds a row; cells may come from outside, so control characters are escaped.
    pub(crate) fn row<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(|cell| crate::exit::printable(cell.as_ref())).collect());
    }

    /// Writes the rows, two spaces between columns, none at the end of a line.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let n_columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..n_columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[column] - cell.chars().count());
                if column > 0 {
                    line.push_str("  ");
                }
                let (before, after) = if column < self.n_text { ("", pad.as_str()) } else { (pad.as_str(), "") };
                line.push_str(before);
                line.push_str(cell);
                line.push_str(after);
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_text_left_and_numbers_right() {
        let mut table = Table::new(1, &["name", "bytes"]);
        table.row(["a\u{1b}", "5"]);
        table.row(["日本", "12345"]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "name     bytes\na\\u{1b}      5\n日本       12345\n");
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(98_362_432), "98.4 MB");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(count(1_234), "1.2 k");
        assert_eq!(shape(&[3, 4]), "3x4");
        assert_eq!(bps(7.0, 2), "3.5000");
        assert_eq!(bps(7.0, 0), "-");
    }
}
