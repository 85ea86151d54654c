//! Tables of what `cargo xtask eval --json` measured: perplexities, zero-shot accuracies, ablations.

use std::fmt::Write as _;

use crate::kv_tables;
use crate::results::{Accuracy, CalibrationNote, Evaluation, EvaluationRow};

/// The variants of UniSVQ that are measured, what each changes, and what the paper found.
///
/// Source: arXiv 2606.10520 (mean accuracy of Qwen3-8B: 67.95 whole, 66.99 without fine-tuning, 61.00 from D4, 67.34 over d = 8 without
/// fine-tuning; without RHT perplexity 8314 instead of 20).
const ABLATIONS: [(&str, &str, &str); 10] = [
    ("unisvq+ft", "whole: identity, d = 4, tiles of 128, fine-tuned", "best"),
    ("unisvq", "no fine-tuning", "a little worse"),
    ("unisvq-random", "random orthogonal start", "the paper's choice; equal by theory"),
    ("unisvq-d4gen", "generator of D4 as start", "much worse"),
    ("unisvq-full", "RHT across the whole width", "the paper's choice"),
    ("unisvq-norht", "no RHT", "ruinous"),
    ("unisvq-d1", "d = 1", "–"),
    ("unisvq-d2", "d = 2", "–"),
    ("unisvq-d8", "d = 8", "a little better"),
    ("rtn", "plain rounding, no RHT, no feedback", "–"),
];

/// All tables of one file.
pub(crate) fn tables(evaluation: &Evaluation, file: &str, command: &str) -> String {
    let Evaluation { model, protocol, windows, tokens_scored, rows, .. } = evaluation;
    let mut out = format!(
        "{model}, protocol {protocol}, {windows} windows, {tokens_scored} tokens scored (`{command}`, [{file}](/{file})):\n\n"
    );
    out += &if evaluation.ablations { ablations(rows) } else { perplexities(rows) };
    out += &calibration(rows);
    out += &caches(rows);
    out += &tasks(rows);
    if rows.iter().any(|row| !row.passkey.is_empty()) {
        out += &format!("\nPass keys found:\n\n{}", kv_tables::passkeys(rows.iter()));
    }
    out
}

/// One line per compressed cache.
fn caches(rows: &[EvaluationRow]) -> String {
    let rows: Vec<&EvaluationRow> = rows.iter().filter(|row| row.kv.is_some()).collect();
    if rows.is_empty() {
        return String::new();
    }
    let lead = "\nCaches, each position stored and read back; all-in counts every byte at the end of a window:\n\n";
    lead.to_owned() + &caches_of(&rows)
}

/// The table of compressed caches, without a word about it.
pub(crate) fn caches_of(rows: &[&EvaluationRow]) -> String {
    let mut out = "| cache | page bps | all-in bps | PPL | Δln |\n|---|---|---|---|---|\n".to_owned();
    let rate = |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{rate:.3}"));
    for row in rows {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} ± {} | {} |",
            row.label(),
            rate(row.kv_page_bps),
            rate(row.kv_all_in_bps),
            decimals(row.ppl),
            decimals(row.ppl_sigma),
            delta(row),
        );
    }
    out
}

fn perplexities(rows: &[EvaluationRow]) -> String {
    let mut out =
        "| codec | payload bps | all-in bps | file bps | file MB | PPL | Δln |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    for row in rows.iter().filter(|row| row.kv.is_none()) {
        let _ = writeln!(
            out,
            "| {} | {:.3} | {:.3} | {:.3} | {:.1} | {} ± {} | {} |",
            row.label(),
            row.payload_bps,
            row.all_in_bps,
            row.file_bps,
            row.file_bytes as f64 / 1e6,
            decimals(row.ppl),
            decimals(row.ppl_sigma),
            delta(row),
        );
    }
    out
}

fn ablations(rows: &[EvaluationRow]) -> String {
    let mut out =
        "| variant | what it is | all-in bps | PPL | Δln | in the paper |\n|---|---|---|---|---|---|\n".to_owned();
    for row in rows {
        let known = ABLATIONS.iter().find(|(name, ..)| *name == row.codec);
        let (what, paper) = known.map_or(("", "–"), |(_, what, paper)| (*what, *paper));
        let (label, ppl, sigma) = (row.label(), decimals(row.ppl), decimals(row.ppl_sigma));
        let _ =
            writeln!(out, "| {label} | {what} | {:.3} | {ppl} ± {sigma} | {} | {paper} |", row.all_in_bps, delta(row));
    }
    out
}

/// What the calibrated rows were calibrated on, and what it took.
fn calibration(rows: &[EvaluationRow]) -> String {
    let calibrated: Vec<(&EvaluationRow, &CalibrationNote)> =
        rows.iter().filter_map(|row| Some((row, row.calibration.as_ref()?))).collect();
    let Some((_, first)) = calibrated.first() else { return String::new() };
    let text = if first.text == "built-in" { "the built-in text".to_owned() } else { format!("`{}`", first.text) };
    let prefix = if first.sequential { "the quantized prefix of each method" } else { "the unquantized model" };
    let mut out = format!("\nCalibration: {} tokens of {text}, activations of {prefix}", first.tokens);
    if first.token_weights.as_deref() == Some("capped") {
        out += ", tokens of great energy capped";
    }
    out += match (first.overlap.same || first.overlap.shared >= 0.01, first.overlap.in_domain) {
        (true, _) => "; **the text of the evaluation is part of it**",
        (false, true) => "; in-domain (WikiText, like the evaluation)",
        (false, false) => "; nothing of the evaluation's text is in it",
    };
    let time = |(row, _): &(&EvaluationRow, _)| format!("{} {:.0} s", row.label(), row.quantize_seconds.unwrap_or(0.0));
    let times: Vec<String> = calibrated.iter().map(time).collect();
    let peak = calibrated.iter().map(|(_, note)| note.peak_heap_bytes).max().unwrap_or(0);
    let _ = writeln!(
        out,
        ". Calibrating and quantizing took {}; at most {:.0} MB of heap. What an earlier row left in the cache of second moments is not \
         computed again.",
        times.join(", "),
        peak as f64 / 1e6
    );
    out
}

/// One line per row, one column per task: accuracies in percent.
fn tasks(rows: &[EvaluationRow]) -> String {
    let Some(first) = rows.iter().find(|row| !row.tasks.is_empty()) else { return String::new() };
    let names: Vec<&str> = first.tasks.iter().map(|task| task.task.as_str()).collect();
    let mut out = "\nZero-shot accuracy in percent, `acc` / `acc_norm` with standard errors:\n\n| codec |".to_owned();
    for task in &first.tasks {
        let _ = write!(out, " {} (n = {}) |", task.task, task.n);
    }
    out += " mean |\n|---|";
    out += &"---|".repeat(names.len() + 1);
    out.push('\n');
    for row in rows.iter().filter(|row| !row.tasks.is_empty()) {
        let _ = write!(out, "| {} |", row.label());
        for name in &names {
            let cell = |a: Accuracy| format!("{:.1} ± {:.1}", 100.0 * a.value, 100.0 * a.stderr);
            let task = row.tasks.iter().find(|task| task.task == *name);
            let cell = task.map_or_else(String::new, |task| format!("{} / {}", cell(task.acc), cell(task.acc_norm)));
            let _ = write!(out, " {cell} |");
        }
        let mean = row.tasks.iter().map(|task| task.acc.value).sum::<f64>() / row.tasks.len() as f64;
        let _ = writeln!(out, " {:.1} |", 100.0 * mean);
    }
    out
}

fn delta(row: &EvaluationRow) -> String {
    row.delta_ln.filter(|_| !row.is_unquantized()).map_or("–".to_owned(), |d| format!("{d:.3}"))
}

/// Four significant digits, more before the point.
fn decimals(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(ablations: bool) -> Evaluation {
        let row = |codec: &str, target: &str, rest: &str| {
            format!(
                r#"{{"codec": "{codec}", "target_bps": {target}, "payload_bps": 2.0, "all_in_bps": 2.01, "file_bps": 4.3,
                "file_bytes": 500000, "ppl": 40.0, "ppl_sigma": 1.0, "delta_ln": 0.5{rest}}}"#
            )
        };
        let accuracy = |value: f64| format!(r#"{{"value": {value}, "stderr": 0.02}}"#);
        let task = format!(
            r#", "tasks": [{{"task": "piqa", "n": 500, "acc": {}, "acc_norm": {}}}]"#,
            accuracy(0.65),
            accuracy(0.66)
        );
        let note = r#", "quantize_seconds": 61.2, "calibration": {"text": "built-in", "tokens": 32768, "sequential": false,
            "overlap": {"same": false, "shared": 0.0, "in_domain": false}, "peak_heap_bytes": 400000000}"#;
        let rows = [row("none", "null", &task), row("unisvq-d8", "2.0", &format!("{note}{task}"))].join(",");
        serde_json::from_str(&format!(
            r#"{{"model": "m", "protocol": "full-2048", "windows": 2, "tokens_scored": 4094, "ablations": {ablations}, "rows": [{rows}]}}"#
        ))
        .unwrap()
    }

    #[test]
    fn calibration_and_tasks_stand_below_the_perplexities() {
        let text = tables(&evaluation(false), "r.json", "c");
        assert!(text.contains("| `unisvq-d8@2` | 2.000 | 2.010 | 4.300 | 0.5 | 40.00 ± 1.00 | 0.500 |"), "{text}");
        assert!(
            text.contains(
                "Calibration: 32768 tokens of the built-in text, activations of the unquantized model; nothing of"
            ),
            "{text}"
        );
        assert!(text.contains("took `unisvq-d8@2` 61 s; at most 400 MB"), "{text}");
        assert!(text.contains("| codec | piqa (n = 500) | mean |\n|---|---|---|\n"), "{text}");
        assert!(text.contains("| unquantized | 65.0 ± 2.0 / 66.0 ± 2.0 | 65.0 |"), "{text}");
    }

    #[test]
    fn caches_have_a_table_of_their_own() {
        let row = r#"{"codec": "none", "target_bps": null, "payload_bps": 16, "all_in_bps": 16, "file_bps": 16, "file_bytes": 500000,
            "ppl": 40.0, "ppl_sigma": 1.0"#;
        let rows = [
            format!(r#"{row}, "delta_ln": 0, "kv": null}}"#),
            format!(
                r#"{row}, "delta_ln": 0.012, "kv": "e8@2.25,window=8", "kv_page_bps": 2.251, "kv_all_in_bps": 2.4}}"#
            ),
        ];
        let text = format!(
            r#"{{"model": "m", "protocol": "full-2048", "windows": 2, "tokens_scored": 4094, "rows": [{}]}}"#,
            rows.join(",")
        );
        let text = tables(&serde_json::from_str(&text).unwrap(), "r.json", "c");
        assert!(text.contains("| unquantized | 16.000 |") && !text.contains("| `e8@2.25,window=8` | 16.000"), "{text}");
        assert!(text.contains("| `e8@2.25,window=8` | 2.251 | 2.400 | 40.00 ± 1.00 | 0.012 |"), "{text}");
    }

    #[test]
    fn ablations_stand_beside_the_paper() {
        let text = tables(&evaluation(true), "r.json", "c");
        assert!(text.contains("| `unisvq-d8@2` | d = 8 | 2.010 | 40.00 ± 1.00 | 0.500 | a little better |"), "{text}");
    }
}
