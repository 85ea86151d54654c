//! The table, for people.

use super::Report;

/// One line per way and rate.
pub(super) fn render(report: &Report) -> String {
    let header = ["keys", "bits", "page bps", "slope - 1", "mean error", "z", "bias share", "noise"].map(str::to_owned);
    let body = report.rows.iter().map(|row| {
        [
            row.variant.clone(),
            row.bits.to_string(),
            format!("{:.3}", row.page_bps),
            format!("{:+.4}", row.score_slope),
            format!("{:+.4}", row.mean_error),
            format!("{:+.1}", row.mean_error_z),
            format!("{:.3}", row.bias_share),
            format!("{:.5}", row.noise),
        ]
    });
    let table: Vec<[String; 8]> = std::iter::once(header).chain(body).collect();
    let layers = report.layers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let mut out = format!(
        "{}: {} tokens, queries of {} positions, layers {layers}, {} draws\n\n",
        report.model, report.tokens, report.queries, report.seeds
    );
    for row in &table {
        for (c, cell) in row.iter().enumerate() {
            let width = table.iter().map(|row| row[c].len()).max().unwrap_or(0);
            out.push_str(&if c == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") });
        }
        out.push('\n');
    }
    out
}
