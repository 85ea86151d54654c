//! The rows for people.

use std::fmt::Write as _;

use super::report::{Report, Row};

const HEADER: [&str; 15] = [
    "op", "codec", "mode", "shape", "batch", "bps", "all-in", "mse", "us", "GB/s", "floor", "Mw/s", "bf16 us",
    "x bf16", "rel err",
];

/// The whole report.
pub(super) fn render(report: &Report) -> String {
    let mut text = format!("{}, driver for CUDA {}\n", report.device, report.driver);
    if let Some(gbps) = report.copy_gbps {
        let _ = writeln!(text, "copy {gbps:.0} GB/s");
    }
    if !report.rows.is_empty() {
        text += &columns(std::iter::once(HEADER.map(str::to_owned)).chain(report.rows.iter().map(cells)).collect());
    }
    if !report.container.is_empty() {
        let _ = writeln!(text, "\nmatrices of the model: largest error over the norms of activation and row");
        let rows = report.container.iter().map(|row| {
            let valid = if row.valid { "" } else { "WRONG" };
            let error = format!("{:.1e}", row.rel_err);
            [&row.op, &row.codec, &row.shape, &row.batch.to_string(), &error, valid, &row.tensor].map(str::to_owned)
        });
        text += &columns(rows.collect());
    }
    if !report.cpu_rows.is_empty() {
        let _ = writeln!(text, "\n{}: decode and multiply with one activation, one thread", report.cpu);
        let header = ["codec", "shape", "bps", "mse", "us", "Mw/s", "rel err"].map(str::to_owned);
        let rows = report.cpu_rows.iter().map(|row| {
            [
                row.codec.clone(),
                row.shape.clone(),
                format!("{:.3}", row.bps),
                format!("{:.5}", row.mse),
                format!("{:.0}", row.us),
                format!("{:.1}", row.mws),
                format!("{:.1e}", row.rel_err),
            ]
        });
        text += &columns(std::iter::once(header).chain(rows).collect());
    }
    for problem in &report.problems {
        let _ = writeln!(text, "INVALID: {problem}");
    }
    text
}

fn cells(row: &Row) -> [String; 15] {
    let or_dash = |value: Option<f64>, digits: usize| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"));
    let codec = match row.variant.as_str() {
        "" => row.codec.clone(),
        variant => format!("{} {variant}", row.codec),
    };
    [
        row.op.clone(),
        codec,
        row.mode.clone(),
        row.shape.clone(),
        row.batch.to_string(),
        or_dash(row.bps, 3),
        or_dash(row.bps_all_in, 3),
        or_dash(row.mse, 5),
        format!("{:.2}", row.us),
        format!("{:.0}", row.gbps),
        format!("{:.2}", row.floor_fraction),
        format!("{:.0}", row.mws),
        or_dash(row.us_bf16, 2),
        or_dash(row.speedup_vs_bf16, 2),
        match row.rel_err {
            Some(error) if row.valid => format!("{error:.1e}"),
            Some(error) => format!("{error:.1e} WRONG"),
            None => "-".to_owned(),
        },
    ]
}

/// Cells in columns: names to the left, numbers to the right.
fn columns<const N: usize>(rows: Vec<[String; N]>) -> String {
    let widths: [usize; N] = std::array::from_fn(|c| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0));
    let is_text =
        |c: usize| rows.iter().skip(1).any(|row| row[c].starts_with(|first: char| first.is_ascii_lowercase()));
    let text_columns: [bool; N] = std::array::from_fn(is_text);
    let mut text = String::new();
    for row in &rows {
        for (c, cell) in row.iter().enumerate() {
            let width = widths[c];
            let gap = if c == 0 { "" } else { "  " };
            text += &if text_columns[c] { format!("{gap}{cell:width$}") } else { format!("{gap}{cell:>width$}") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_rows_are_loud() {
        let row = Row {
            op: "shift_gemv".into(),
            codec: "shift-16@2".into(),
            mode: "single".into(),
            shape: "16x16".into(),
            batch: 1,
            rel_err: Some(0.5),
            ..Row::default()
        };
        let report = Report {
            device: "x".into(),
            driver: "13.0".into(),
            cublas: None,
            cpu: "y".into(),
            command: "kernels".into(),
            seed: 1,
            unique_rows: 16,
            method: String::new(),
            copy_gbps: Some(4250.0),
            torch: None,
            valid: false,
            problems: vec!["shift_gemv is wrong".into()],
            rows: vec![row],
            container: Vec::new(),
            cpu_rows: Vec::new(),
        };
        let text = render(&report);
        assert!(text.contains("5.0e-1 WRONG") && text.contains("INVALID: shift_gemv is wrong"), "{text}");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
