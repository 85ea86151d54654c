//! The table, for people and for machines.

use std::fmt::Write as _;

use super::decompose::REFERENCE;
use super::{Report, Row};

/// Columns of the CSV: the fields of a row.
const COLUMNS: &str =
    "source,codec,target_bps,payload_bps,stream_bps,all_in_bps,mse,snr_db,gap_bits,encode_mws,decode_mws";

/// The rows as CSV, the rest as comments above them.
pub(super) fn csv(report: &Report) -> String {
    let mut text = format!("# command: {}\n# cpu: {}\n# threads: {}\n", report.command, report.cpu, report.threads);
    let _ = writeln!(text, "# seed: {}", report.seed);
    for m in &report.matrices {
        let _ = writeln!(text, "# matrix: {}, {} x {}, variance {}", m.source, m.rows, m.cols, m.variance);
    }
    let _ = writeln!(text, "{COLUMNS}");
    for row in &report.rows {
        let numbers = numbers(row).map(|number| number.map_or_else(String::new, |number| number.to_string()));
        let _ = writeln!(text, "{},{},{}", row.source, row.codec, numbers.join(","));
    }
    text
}

/// The numbers of a row, in the order of the columns.
fn numbers(row: &Row) -> [Option<f64>; 9] {
    [
        Some(row.target_bps),
        Some(row.payload_bps),
        Some(row.stream_bps),
        Some(row.all_in_bps),
        Some(row.mse),
        row.snr_db,
        row.gap_bits,
        Some(row.encode_mws),
        Some(row.decode_mws),
    ]
}

/// The rows for people, one block per matrix.
pub(super) fn render(report: &Report) -> String {
    let mut text = format!("{}, one thread; speeds in millions of weights per second\n", report.cpu);
    let header = ["codec", "payload", "stream", "all-in", "mse", "SNR dB", "gap", "encode", "decode"];
    for m in &report.matrices {
        let _ = writeln!(text, "\n{}: {} x {}, variance {:.6}", m.source, m.rows, m.cols, m.variance);
        let body = report.rows.iter().filter(|row| row.source == m.source).map(cells);
        let table: Vec<[String; 9]> = std::iter::once(header.map(str::to_owned)).chain(body).collect();
        for row in &table {
            for (c, cell) in row.iter().enumerate() {
                let width = table.iter().map(|row| row[c].len()).max().unwrap_or(0);
                // Names to the left, numbers to the right.
                text.push_str(&if c == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") });
            }
            text.push('\n');
        }
    }
    for (i, parts) in report.decomposition.iter().enumerate() {
        if i == 0 {
            let _ = writeln!(text, "\nfrom {} to {REFERENCE}, in bits per weight", parts.codec);
            let _ =
                writeln!(text, "  rate     gap  {REFERENCE} gap  index entropy slack  finite codebook loss  source");
        }
        let _ = writeln!(
            text,
            "{:6.3}  {:.4}  {:.4}  {:19.4}  {:20.4}  {}",
            parts.target_bps,
            parts.gap_bits,
            parts.e8_gap_bits,
            parts.index_entropy_slack_bits,
            parts.finite_codebook_loss_bits,
            parts.source
        );
    }
    text
}

fn cells(row: &Row) -> [String; 9] {
    let or_dash = |value: Option<f64>, digits: usize| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"));
    [
        format!("{}@{}", row.codec, row.target_bps),
        format!("{:.4}", row.payload_bps),
        format!("{:.4}", row.stream_bps),
        format!("{:.4}", row.all_in_bps),
        format!("{:.4e}", row.mse),
        or_dash(row.snr_db, 3),
        or_dash(row.gap_bits, 4),
        speed(row.encode_mws),
        speed(row.decode_mws),
    ]
}

fn speed(mws: f64) -> String {
    if mws < 10.0 { format!("{mws:.2}") } else { format!("{mws:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rd::MatrixInfo;

    fn report() -> Report {
        let row = Row {
            source: "gaussian".to_owned(),
            codec: "e8".to_owned(),
            target_bps: 2.0,
            payload_bps: 2.0,
            stream_bps: 2.01,
            all_in_bps: 2.05,
            mse: 0.0764,
            snr_db: Some(11.17),
            gap_bits: Some(0.15),
            encode_mws: 55.5,
            decode_mws: 200.0,
        };
        let lossless = Row { mse: 0.0, snr_db: None, gap_bits: None, encode_mws: 0.25, ..row.clone() };
        Report {
            command: "rd".to_owned(),
            seed: 1,
            cpu: "x".to_owned(),
            threads: 1,
            matrices: vec![MatrixInfo { source: "gaussian".to_owned(), rows: 8, cols: 512, variance: 1.0 }],
            rows: vec![row, lossless],
            decomposition: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_csv_has_the_columns_of_the_json() {
        let csv = csv(&report());
        let rows: Vec<&str> = csv.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(rows[1], "gaussian,e8,2,2,2.01,2.05,0.0764,11.17,0.15,55.5,200");
        assert_eq!(rows[2], "gaussian,e8,2,2,2.01,2.05,0,,,0.25,200");
        let json = serde_json::to_value(&report().rows[0]).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names.join(","), rows[0]);
    }

    #[test]
    fn the_report_survives_its_json() {
        let json = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report());
        assert!(render(&report()).contains("e8@2"));
    }
}
