//! The report, for people and for machines.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use gosset_eval::{Accuracy, BosPolicy, EvalReport, ReportRow};

/// Prints the report as JSON.
pub(super) fn print_json(report: &EvalReport) -> Result<()> {
    to_stdout(&serde_json::to_string_pretty(report)?)
}

/// Writes the report as JSON to a file, which at any moment is whole: as it was, or as it is.
pub(super) fn write_json(report: &EvalReport, path: &Path) -> Result<()> {
    let in_folder = |e: io::Error| anyhow::Error::new(e).context(path.display().to_string());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(in_folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(in_folder)?;
    file.write_all(serde_json::to_string_pretty(report)?.as_bytes()).map_err(in_folder)?;
    file.write_all(b"\n").map_err(in_folder)?;
    file.persist(path).map_err(|e| in_folder(e.error))?;
    Ok(())
}

/// Prints the report as a table with the whole protocol above it.
pub(super) fn print(report: &EvalReport) -> Result<()> {
    to_stdout(&render(report))
}

/// A reader that has seen enough and closed the pipe is no error.
fn to_stdout(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("writing to stdout"),
        _ => Ok(()),
    }
}

fn render(report: &EvalReport) -> String {
    let mut out = String::new();
    let Some(first) = report.rows.first() else { return out };
    let result = &first.record.result;
    let bos = match (result.bos, result.bos_id) {
        (BosPolicy::None, _) | (_, None) => "no BOS used".to_owned(),
        (_, Some(id)) => format!("BOS id {id}"),
    };
    let short = |hash: &str| hash.get(..12).unwrap_or(hash).to_owned();
    let mut line = |name: &str, value: String| out.push_str(&format!("{name:10} {value}\n"));
    line("model", report.model.clone());
    line(
        "text",
        format!(
            "{} tokens (sha256: text {}, tokenizer {}, ids {})",
            report.tokens,
            short(&report.text_sha256),
            short(&report.tokenizer_sha256),
            short(&report.token_ids_sha256)
        ),
    );
    line("protocol", format!("{}; {bos}", report.settings));
    line(
        "scored",
        format!("{} tokens in {} of {} windows", report.tokens_scored, report.windows, result.windows_available),
    );
    line(
        "computed",
        format!(
            "in {} on {}, {} threads",
            first.record.provenance.dtype, first.record.provenance.device, report.threads
        ),
    );
    let mut shown: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !shown.contains(&row.embeddings.as_str()) {
            line("embeddings", format!("{} ({})", row.embeddings, label(row)));
            shown.push(&row.embeddings);
        }
    }
    out.push('\n');
    let header =
        ["codec", "payload", "stream", "all-in", "file bps", "file MB", "ppl", "+-", "delta-ln", "resident MB", "s"];
    let body = report.rows.iter().filter(|row| row.kv.is_none()).map(cells);
    let table: Vec<[String; 11]> = std::iter::once(header.map(str::to_owned)).chain(body).collect();
    for row in &table {
        for (c, cell) in row.iter().enumerate() {
            let width = table.iter().map(|row| row[c].len()).max().unwrap_or(0);
            // Names to the left, numbers to the right.
            out.push_str(&if c == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") });
        }
        out.push('\n');
    }
    out.push_str(&caches(report));
    out.push_str(&tasks(report));
    out.push_str(&passkeys(report));
    for row in &report.rows {
        if let Some(bound) = row.resident_bound_bytes {
            let verdict = if row.resident_bytes <= bound { "within" } else { "ABOVE" };
            out.push_str(&format!(
                "\n{}: resident {} MB {verdict} {} MB = file + 2 row blocks + activations",
                label(row),
                megabytes(row.resident_bytes),
                megabytes(bound)
            ));
        }
    }
    let notes =
        report.rows.iter().flat_map(|row| notes(row).into_iter().map(|note| format!("\n{}: {note}", label(row))));
    out.extend(notes);
    out.trim_end().to_owned()
}

/// One line per compressed cache: bits of sealed pages alone, and every bit of it at the ends of the windows.
fn caches(report: &EvalReport) -> String {
    let rows: Vec<&ReportRow> = report.rows.iter().filter(|row| row.kv.is_some()).collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = ["cache", "page bps", "all-in bps", "ppl", "+-", "delta-ln", "s"].map(str::to_owned);
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.3}"));
    let body = rows.iter().map(|row| {
        [
            label(row),
            rate(row.kv_page_bps),
            rate(row.kv_all_in_bps),
            format!("{:.5}", row.ppl),
            format!("{:.3}", row.ppl_sigma),
            row.delta_ln.map_or_else(|| "-".to_owned(), |d| format!("{d:+.5}")),
            format!("{:.1}", row.seconds),
        ]
    });
    let table: Vec<[String; 7]> = std::iter::once(header).chain(body).collect();
    let mut out = "\n".to_owned();
    for row in &table {
        for (c, cell) in row.iter().enumerate() {
            let width = table.iter().map(|row| row[c].len()).max().unwrap_or(0);
            out.push_str(&if c == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") });
        }
        out.push('\n');
    }
    out
}

/// One line per row, one column per task; accuracies in percent with their standard errors.
fn tasks(report: &EvalReport) -> String {
    let Some(first) = report.rows.first().filter(|row| !row.tasks.is_empty()) else { return String::new() };
    let mut table: Vec<Vec<String>> = vec![vec!["zero-shot".to_owned()]];
    table[0].extend(first.tasks.iter().flat_map(|t| [format!("{} acc", t.task), format!("acc_norm (n = {})", t.n)]));
    for row in &report.rows {
        let cell = |a: Accuracy| format!("{:.1} +- {:.1}", 100.0 * a.value, 100.0 * a.stderr);
        let cells = row.tasks.iter().flat_map(|task| [cell(task.acc), cell(task.acc_norm)]);
        table.push(std::iter::once(label(row)).chain(cells).collect());
    }
    let mut out = "\n".to_owned();
    for row in &table {
        for (c, cell) in row.iter().enumerate() {
            let width = table.iter().filter_map(|row| row.get(c)).map(String::len).max().unwrap_or(0);
            out.push_str(&if c == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") });
        }
        out.push('\n');
    }
    out
}

/// One line per row, one column per context: pass keys found of those asked for.
fn passkeys(report: &EvalReport) -> String {
    let Some(first) = report.rows.first().filter(|row| !row.passkey.is_empty()) else { return String::new() };
    let mut table: Vec<Vec<String>> = vec![vec![format!("pass keys ({})", first.passkey[0].form)]];
    table[0].extend(first.passkey.iter().map(|result| format!("at {} tokens", result.context)));
    for row in &report.rows {
        let cells = row.passkey.iter().map(|result| format!("{} of {}", result.right, result.trials));
        table.push(std::iter::once(label(row)).chain(cells).collect());
    }
    let mut out = "\n".to_owned();
    for row in &table {
        for (c, cell) in row.iter().enumerate() {
            let width = table.iter().filter_map(|row| row.get(c)).map(String::len).max().unwrap_or(0);
            out.push_str(&if c == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") });
        }
        out.push('\n');
    }
    out
}

fn label(row: &ReportRow) -> String {
    let codec = match (row.target_bps, row.target_bpw) {
        (Some(rate), _) => format!("{}@{rate}", row.codec),
        (None, Some(bpw)) => format!("{}@{bpw}bpw", row.codec),
        (None, None) => row.codec.clone(),
    };
    match (&row.kv, codec.as_str()) {
        (None, _) => codec,
        (Some(kv), "none") => kv.clone(),
        (Some(kv), _) => format!("{codec} with kv {kv}"),
    }
}

/// What has to be known of a baseline beside its numbers.
fn notes(row: &ReportRow) -> Vec<String> {
    let mut notes = Vec::new();
    if let (true, Some(share)) = (row.source_grid, row.source_grid_share) {
        let share = 100.0 * share;
        notes.push(format!(
            "{share:.1} % of the weights on the grid that the source was rounded to before, left out of orders"
        ));
    }
    if let Some(share) = row.fallback_share {
        notes.push(format!("a fallback type stands in for {:.1} % of the tensors", 100.0 * share));
    }
    notes
}

fn cells(row: &ReportRow) -> [String; 11] {
    let r = &row.rates;
    [
        label(row),
        format!("{:.3}", r.payload_bps),
        format!("{:.3}", r.stream_bps),
        format!("{:.3}", r.all_in_bps),
        format!("{:.3}", r.file_bps),
        megabytes(row.file_bytes),
        format!("{:.5}", row.ppl),
        format!("{:.3}", row.ppl_sigma),
        row.delta_ln.map_or_else(|| "-".to_owned(), |d| format!("{d:+.5}")),
        megabytes(row.resident_bytes),
        format!("{:.1}", row.seconds),
    ]
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}
