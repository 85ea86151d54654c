//! The table of what `cargo xtask feedback` measured: errors of outputs by the shape of what is rounded together.

use std::fmt::Write as _;

use serde::Deserialize;

/// Of `cargo xtask feedback --json`.
#[derive(Debug, Deserialize)]
pub(crate) struct FeedbackShapes {
    command: String,
    model: String,
    calibration: Tokens,
    held_out: Tokens,
    rows: Vec<FeedbackRow>,
}

#[derive(Debug, Deserialize)]
struct Tokens {
    text: String,
    tokens: u64,
}

/// One matrix by one shape at one rate.
#[derive(Debug, Deserialize)]
struct FeedbackRow {
    matrix: String,
    outputs: u64,
    inputs: u64,
    codec: String,
    target_bps: f64,
    all_in_bps: f64,
    coded: bool,
    held_out_error: f64,
}

/// What the others are compared with.
const REFERENCE: &str = "e8+feedback";

/// One line per matrix, one column per shape; below, geometric means relative to [`REFERENCE`] and the mean of all bits.
pub(crate) fn table(shapes: &FeedbackShapes, file: &str) -> String {
    let FeedbackShapes { command, model, calibration, held_out, rows } = shapes;
    let codecs = distinct(rows.iter().map(|row| row.codec.as_str()));
    let matrices = distinct(rows.iter().map(|row| row.matrix.as_str()));
    let mut rates: Vec<f64> = rows.iter().map(|row| row.target_bps).collect();
    rates.sort_unstable_by(f64::total_cmp);
    rates.dedup();
    let find = |matrix: &str, codec: &str, rate: f64| {
        rows.iter().find(|row| row.matrix == matrix && row.codec == codec && row.target_bps == rate)
    };
    let of_rates = |cell: &dyn Fn(f64) -> Option<String>| {
        rates.iter().map(|&rate| cell(rate).unwrap_or_else(|| "–".to_owned())).collect::<Vec<_>>().join(" / ")
    };
    let listed = rates.iter().map(f64::to_string).collect::<Vec<_>>().join(" / ");
    let mut out = format!(
        "Relative squared errors of outputs on held-out tokens, times 1000, at payloads of {listed} bits (`{command}`, [{file}](/{file})). \
         {model}; calibration on {} tokens of {}, errors on {} tokens of {}:\n\n| matrix |",
        calibration.tokens,
        named(&calibration.text),
        held_out.tokens,
        named(&held_out.text)
    );
    for codec in &codecs {
        let is_ideal = rows.iter().any(|row| row.codec == *codec && !row.coded);
        let _ = write!(out, " `{codec}`{} |", if is_ideal { " *" } else { "" });
    }
    let _ = write!(out, "\n|---|{}\n", "---|".repeat(codecs.len()));
    for matrix in &matrices {
        let Some(first) = rows.iter().find(|row| row.matrix == *matrix) else { continue };
        let _ = write!(out, "| {}, {} x {} |", short(matrix), first.outputs, first.inputs);
        for codec in &codecs {
            let cell = |rate| find(matrix, codec, rate).map(|row| digits(1000.0 * row.held_out_error));
            let _ = write!(out, " {} |", of_rates(&cell));
        }
        out.push('\n');
    }
    let _ = write!(out, "| geometric mean over `{REFERENCE}` |");
    for codec in &codecs {
        let cell = |rate| {
            let ratio = |matrix: &&str| {
                let of = |codec| find(matrix, codec, rate).map(|row| row.held_out_error);
                Some((of(codec)? / of(REFERENCE)?).ln())
            };
            let logs: Option<Vec<f64>> = matrices.iter().map(ratio).collect();
            logs.map(|logs| format!("{:.3}", (logs.iter().sum::<f64>() / logs.len() as f64).exp()))
        };
        let _ = write!(out, " {} |", of_rates(&cell));
    }
    let _ = write!(out, "\n| all-in bits per weight |");
    for codec in &codecs {
        let cell = |rate| {
            let of_codec: Vec<&FeedbackRow> =
                rows.iter().filter(|row| row.codec == *codec && row.target_bps == rate).collect();
            let weights = |row: &FeedbackRow| (row.outputs * row.inputs) as f64;
            let total: f64 = of_codec.iter().map(|row| weights(row)).sum();
            let bits: f64 = of_codec.iter().map(|row| weights(row) * row.all_in_bps).sum();
            (total > 0.0).then(|| format!("{:.3}", bits / total))
        };
        let _ = write!(out, " {} |", of_rates(&cell));
    }
    out.push('\n');
    if rows.iter().any(|row| !row.coded) {
        out += "\n\\* No codec of containers: payloads are lengths of an ideal code, all others are coded bytes.\n";
    }
    out
}

/// Every value once, in the order of their first places.
fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut out = Vec::new();
    for value in values {
        if !out.contains(&value) {
            out.push(value);
        }
    }
    out
}

fn named(text: &str) -> String {
    if text == "built-in" { "the built-in text".to_owned() } else { format!("`{text}`") }
}

/// `7 self_attn.q_proj` of `model.layers.7.self_attn.q_proj.weight`.
fn short(matrix: &str) -> String {
    matrix.trim_start_matches("model.layers.").trim_end_matches(".weight").replacen('.', " ", 1)
}

/// Three significant digits.
fn digits(value: f64) -> String {
    let decimals = (2.0 - value.abs().max(1e-9).log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_columns_and_their_means_are_relative_to_columns_with_feedback() {
        let row = |matrix: &str, codec: &str, rate: f64, error: f64, coded: bool| {
            format!(
                r#"{{"matrix": "model.layers.{matrix}.weight", "outputs": 8, "inputs": 16, "codec": "{codec}", "target_bps": {rate},
                "payload_bps": {rate}, "all_in_bps": {}, "coded": {coded}, "calibration_error": 0, "held_out_error": {error}}}"#,
                rate + 0.02
            )
        };
        let rows = [
            row("1.mlp.up_proj", "e8+feedback", 2.0, 0.01, true),
            row("1.mlp.up_proj", "x", 2.0, 0.04, false),
            row("7.mlp.up_proj", "e8+feedback", 2.0, 0.002, true),
            row("7.mlp.up_proj", "x", 2.0, 0.002, false),
            row("1.mlp.up_proj", "x", 3.0, 0.0123, false),
        ]
        .join(",");
        let json = format!(
            r#"{{"command": "cargo xtask feedback", "model": "m", "calibration": {{"text": "built-in", "tokens": 9}},
            "held_out": {{"text": "eval.txt", "tokens": 5}}, "rows": [{rows}]}}"#
        );
        let table = table(&serde_json::from_str(&json).unwrap(), "f.json");
        assert!(table.contains("| matrix | `e8+feedback` | `x` * |"), "{table}");
        assert!(table.contains("| 1 mlp.up_proj, 8 x 16 | 10.0 / – | 40.0 / 12.3 |"), "{table}");
        assert!(table.contains("| geometric mean over `e8+feedback` | 1.000 / – | 2.000 / – |"), "{table}");
        assert!(table.contains("| all-in bits per weight | 2.020 / – | 2.020 / 3.020 |"), "{table}");
        assert!(table.contains("9 tokens of the built-in text, errors on 5 tokens of `eval.txt`"), "{table}");
    }

    #[test]
    fn three_digits_count() {
        assert_eq!([10.214, 0.8712, 181.2, 1234.0].map(digits), ["10.2", "0.871", "181", "1234"]);
    }
}
