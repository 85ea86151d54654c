//! Tables about compressed caches that no single list of rows is: by rate, by window, by context, pass keys, scores.
//!
//! A marker asks for them behind its files: `<!-- table A.json+B.json#by-rate: COMMAND -->`.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use serde::Deserialize;

use crate::results::{Evaluation, EvaluationRow};

/// What is left out of a table, or never measured.
const NOTHING: &str = "–";

/// The table `view` of evaluations of one model; `files` name them.
pub(crate) fn table(view: &str, evaluations: &[Evaluation], files: &[&str], command: &str) -> Result<String> {
    let Some(first) = evaluations.first() else { bail!("expected at least one file") };
    if let Some(other) = evaluations.iter().find(|other| other.model != first.model) {
        bail!("expected files of one model, found {} and {}", first.model, other.model);
    }
    let links: Vec<String> = files.iter().map(|file| format!("[{file}](/{file})")).collect();
    let source = format!("(`{command}`, {})", links.join(", "));
    let one_protocol = || -> Result<String> {
        let what = |e: &Evaluation| {
            format!("protocol {}, {} windows, {} tokens scored", e.protocol, e.windows, e.tokens_scored)
        };
        match evaluations.iter().find(|other| what(other) != what(first)) {
            Some(other) => bail!("expected files of one protocol, found {} and {}", what(first), what(other)),
            None => Ok(what(first)),
        }
    };
    let rows = || evaluations.iter().flat_map(|evaluation| &evaluation.rows);
    let mut out = format!("{}, ", first.model);
    match view {
        "by-rate" => {
            let _ = writeln!(out, "{}; Δln, in brackets bits of a page {source}:\n", one_protocol()?);
            out += &by_rate(rows());
        }
        "by-window" => {
            let _ = writeln!(out, "{}; Δln, in brackets all bits at the end of a window {source}:\n", one_protocol()?);
            out += &by_window(rows());
        }
        "by-context" => {
            let _ = writeln!(out, "windows of several lengths; Δln, in brackets all bits at their end {source}:\n");
            out += &by_context(evaluations);
        }
        "passkey" => {
            let _ = writeln!(out, "pass keys found {source}:\n");
            out += &passkeys(rows());
        }
        "caches" => {
            let plain = rows().find(|row| row.is_unquantized());
            let plain = plain.map_or_else(String::new, |row| format!("; PPL {:.2} with the cache in f32", row.ppl));
            let _ = writeln!(out, "{}{plain} {source}:\n", one_protocol()?);
            let mut rows: Vec<&EvaluationRow> = rows().filter(|row| row.kv.is_some()).collect();
            rows.sort_by(|a, b| a.kv_all_in_bps.unwrap_or(0.0).total_cmp(&b.kv_all_in_bps.unwrap_or(0.0)));
            out += &crate::evaluation_tables::caches_of(&rows);
        }
        _ => bail!("unknown view `{view}`, expected by-rate, by-window, by-context, passkey or caches"),
    }
    Ok(out)
}

/// One line for each key, one column for each number; cells that nothing fills are dashes.
struct Grid<C> {
    keys: Vec<String>,
    columns: Vec<C>,
    cells: Vec<(String, C, String)>,
}

impl<C: Copy + PartialOrd> Grid<C> {
    fn new() -> Self {
        Self { keys: Vec::new(), columns: Vec::new(), cells: Vec::new() }
    }

    /// The first cell of a place stays.
    fn set(&mut self, key: String, column: C, cell: String) {
        if !self.keys.contains(&key) {
            self.keys.push(key.clone());
        }
        if !self.columns.contains(&column) {
            self.columns.push(column);
            self.columns.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        }
        if !self.cells.iter().any(|(k, c, _)| *k == key && *c == column) {
            self.cells.push((key, column, cell));
        }
    }

    fn render(&self, heads: &str, name: &dyn Fn(C) -> String) -> String {
        let mut out = format!("| {heads} |");
        self.columns.iter().for_each(|column| {
            let _ = write!(out, " {} |", name(*column));
        });
        let n = heads.split(" | ").count() + self.columns.len();
        let _ = writeln!(out, "\n|{}", "---|".repeat(n));
        for key in &self.keys {
            let _ = write!(out, "| {key} |");
            for column in &self.columns {
                let cell = self.cells.iter().find(|(k, c, _)| k == key && c == column);
                let _ = write!(out, " {} |", cell.map_or(NOTHING, |(.., cell)| cell));
            }
            out.push('\n');
        }
        out
    }
}

/// `0.012 (2.25)`.
fn cell(row: &EvaluationRow, rate: Option<f64>) -> String {
    let delta = row.delta_ln.map_or_else(|| NOTHING.to_owned(), |delta| format!("{delta:.3}"));
    rate.map_or_else(|| delta.clone(), |rate| format!("{delta} ({rate:.2})"))
}

/// A specification without its first rate, and that rate.
fn without_rate(spec: &str) -> Option<(String, f64)> {
    let (code, rest) = spec.split_once('@')?;
    let (rate, options) = rest.split_once(',').unwrap_or((rest, ""));
    let comma = if options.is_empty() { "" } else { "," };
    Some((format!("`{code}@R{comma}{options}`"), rate.parse().ok()?))
}

fn by_rate<'a>(rows: impl Iterator<Item = &'a EvaluationRow>) -> String {
    let mut grid = Grid::new();
    for row in rows {
        if let Some((spec, rate)) = row.kv.as_deref().and_then(without_rate) {
            grid.set(spec, rate, cell(row, row.kv_page_bps));
        }
    }
    grid.render("cache", &|rate| format!("R = {rate}"))
}

/// A specification without window and sinks, and these.
fn without_window(spec: &str) -> (String, usize, usize) {
    let (mut window, mut sinks) = (0, 0);
    let rest = spec.split(',').filter(|option| {
        let number = |name: &str| option.strip_prefix(name).and_then(|n| n.parse().ok());
        match (number("window="), number("sinks=")) {
            (Some(n), _) => window = n,
            (_, Some(n)) => sinks = n,
            _ => return true,
        }
        false
    });
    (rest.collect::<Vec<_>>().join(","), window, sinks)
}

fn by_window<'a>(rows: impl Iterator<Item = &'a EvaluationRow>) -> String {
    let mut grid = Grid::new();
    for row in rows {
        if let Some(spec) = &row.kv {
            let (spec, window, sinks) = without_window(spec);
            grid.set(format!("`{spec}` | {sinks}"), window, cell(row, row.kv_all_in_bps));
        }
    }
    grid.render("cache | sinks", &|window| format!("window {window}"))
}

/// Caches that are known at one context alone are left out where there are several.
fn by_context(evaluations: &[Evaluation]) -> String {
    let mut grid = Grid::new();
    for evaluation in evaluations {
        let tokens: usize = evaluation.protocol.rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        for row in evaluation.rows.iter().filter(|row| row.kv.is_some()) {
            grid.set(row.label(), tokens, cell(row, row.kv_all_in_bps));
        }
    }
    let n_cells = |key: &String| grid.cells.iter().filter(|(k, ..)| k == key).count();
    let least = grid.columns.len().min(2);
    let compared = grid.keys.iter().filter(|key| n_cells(key) >= least).cloned().collect();
    grid.keys = compared;
    grid.render("cache", &|tokens| format!("{tokens} tokens"))
}

/// One line per row, one column per context.
pub(crate) fn passkeys<'a>(rows: impl Iterator<Item = &'a EvaluationRow>) -> String {
    let mut grid = Grid::new();
    for row in rows {
        for result in &row.passkey {
            grid.set(row.label(), result.context, format!("{} of {}", result.right, result.trials));
        }
    }
    grid.render("cache", &|context| format!("{context} tokens"))
}

/// Of `cargo xtask kv-scores --json`.
#[derive(Debug, Deserialize)]
pub(crate) struct KvScores {
    command: String,
    model: String,
    tokens: u64,
    queries: u64,
    layers: Vec<u64>,
    seeds: u64,
    rows: Vec<ScoreRow>,
}

#[derive(Debug, Deserialize)]
struct ScoreRow {
    variant: String,
    drawn: String,
    bits: f64,
    page_bps: f64,
    score_slope: f64,
    mean_error_z: f64,
    bias_share: f64,
    noise: f64,
}

/// One line per way to code keys; rates stand in one cell.
pub(crate) fn scores(table: &KvScores, file: &str) -> String {
    let KvScores { command, model, tokens, queries, layers, seeds, rows } = table;
    let layers = layers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let mut rates: Vec<f64> = rows.iter().map(|row| row.bits).collect();
    rates.sort_unstable_by(f64::total_cmp);
    rates.dedup();
    let listed = rates.iter().map(f64::to_string).collect::<Vec<_>>().join(" / ");
    let mut out = format!(
        "{model}, {tokens} tokens, queries of {queries} positions, layers {layers}, {seeds} draws of what is random; R = {listed} \
         (`{command}`, [{file}](/{file})):\n\n\
         | keys | drawn for each | page bps | slope − 1 | mean error, standard errors | bias, share of the squared error | \
         variance of errors over that of scores |\n|---|---|---|---|---|---|---|\n"
    );
    let mut variants: Vec<&str> = Vec::new();
    for row in rows {
        if !variants.contains(&row.variant.as_str()) {
            variants.push(&row.variant);
        }
    }
    for variant in variants {
        let of_variant = || rows.iter().filter(|row| row.variant == variant);
        let cell = |of: &dyn Fn(&ScoreRow) -> String| {
            let of_rate = |rate: &f64| of_variant().find(|row| row.bits == *rate).map_or(NOTHING.to_owned(), of);
            rates.iter().map(of_rate).collect::<Vec<_>>().join(" / ")
        };
        let drawn =
            of_variant().next().map_or(NOTHING, |row| if row.drawn == "nothing" { NOTHING } else { &row.drawn });
        let _ = writeln!(
            out,
            "| {variant} | {drawn} | {} | {} | {} | {} | {} |",
            cell(&|row| format!("{:.2}", row.page_bps)),
            // No sign for what is nothing.
            cell(&|row| format!("{:.3}", row.score_slope).replace("-0.000", "0.000")),
            cell(&|row| format!("{:.1}", row.mean_error_z).replace("-0.0", "0.0")),
            cell(&|row| format!("{:.3}", row.bias_share).replace("-0.000", "0.000")),
            cell(&|row| format!("{:.4}", row.noise)),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(protocol: &str, caches: &[(&str, f64)]) -> Evaluation {
        let row = |kv: &str, delta: f64, rest: &str| {
            format!(
                r#"{{"codec": "none", "target_bps": null, "payload_bps": 16, "all_in_bps": 16, "file_bps": 16, "file_bytes": 9,
                "ppl": 40.0, "ppl_sigma": 1.0, "delta_ln": {delta}, "kv": {kv}{rest}}}"#
            )
        };
        let passkey = r#", "passkey": [{"context": 512, "trials": 4, "right": 3}]"#;
        let rates = r#", "kv_page_bps": 2.251, "kv_all_in_bps": 2.4"#;
        let mut rows = vec![row("null", 0.0, passkey)];
        rows.extend(caches.iter().map(|(kv, delta)| row(&format!("\"{kv}\""), *delta, &format!("{rates}{passkey}"))));
        let rows = rows.join(",");
        let text = format!(
            r#"{{"model": "m", "protocol": "{protocol}", "windows": 2, "tokens_scored": 9, "rows": [{rows}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn of(view: &str, evaluations: &[Evaluation]) -> Result<String> {
        table(view, evaluations, &["a.json", "b.json"], "c")
    }

    #[test]
    fn rates_are_columns_of_what_differs_in_nothing_else() {
        let a = evaluation("full-2048", &[("e8@2,frame=none", 0.2), ("e8@2", 0.1)]);
        let b = evaluation("full-2048", &[("e8@3.5,frame=none", 0.02), ("q8_0", 0.0)]);
        let text = of("by-rate", &[a, b]).unwrap();
        assert!(text.starts_with("m, protocol full-2048, 2 windows, 9 tokens scored; Δln"), "{text}");
        assert!(text.contains("(`c`, [a.json](/a.json), [b.json](/b.json))"), "{text}");
        assert!(text.contains("| cache | R = 2 | R = 3.5 |\n|---|---|---|\n"), "{text}");
        assert!(
            text.contains("| `e8@R,frame=none` | 0.200 (2.25) | 0.020 (2.25) |\n| `e8@R` | 0.100 (2.25) | – |"),
            "{text}"
        );
        assert!(!text.contains("q8_0"));
    }

    #[test]
    fn windows_are_columns_and_sinks_lines() {
        let specs = [("e8@2", 0.3), ("e8@2,window=256,sinks=4", 0.1), ("e8@2,sinks=4,seed=1", 0.2)];
        let text = of("by-window", &[evaluation("full-2048", &specs)]).unwrap();
        assert!(text.contains("| cache | sinks | window 0 | window 256 |\n|---|---|---|---|\n"), "{text}");
        for line in [
            "| `e8@2` | 0 | 0.300 (2.40) | – |",
            "| `e8@2` | 4 | – | 0.100 (2.40) |",
            "| `e8@2,seed=1` | 4 | 0.200 (2.40) | – |",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn contexts_are_those_of_protocols() {
        let both = [evaluation("full-8192", &[("e8@2", 0.3)]), evaluation("full-512", &[("e8@2", 0.1), ("q8_0", 0.0)])];
        let text = of("by-context", &both).unwrap();
        assert!(text.contains("| cache | 512 tokens | 8192 tokens |"), "{text}");
        assert!(text.contains("| `e8@2` | 0.100 (2.40) | 0.300 (2.40) |") && !text.contains("q8_0"), "{text}");
        assert!(of("by-rate", &both).unwrap_err().to_string().contains("full-8192"));
    }

    #[test]
    fn pass_keys_and_plain_lists() {
        let one = [evaluation("full-512", &[("e8@2", 0.3)])];
        let text = of("passkey", &one).unwrap();
        assert!(
            text.contains("| cache | 512 tokens |\n|---|---|\n| unquantized | 3 of 4 |\n| `e8@2` | 3 of 4 |"),
            "{text}"
        );
        let text = of("caches", &one).unwrap();
        assert!(
            text.contains("PPL 40.00 with the cache in f32") && text.contains("| `e8@2` | 2.251 | 2.400 |"),
            "{text}"
        );
        assert!(of("by-mood", &one).is_err() && of("passkey", &[]).is_err());
    }

    #[test]
    fn rates_of_scores_share_a_cell() {
        let row = |variant: &str, bits: f64, slope: f64| {
            format!(
                r#"{{"variant": "{variant}", "spec": "s", "drawn": "model", "bits": {bits}, "page_bps": {bits}, "score_slope": {slope},
                "mean_error": 0.1, "mean_error_z": -3.04, "bias_share": 0.5, "noise": 0.01234}}"#
            )
        };
        let rows = [row("rht", 2.0, -0.0001), row("rht", 3.0, 0.25), row("qjl", 3.0, 0.0)].join(",");
        let json = format!(
            r#"{{"command": "c", "model": "m", "tokens": 9, "queries": 2, "layers": [0, 3], "seeds": 4, "rows": [{rows}]}}"#
        );
        let text = scores(&serde_json::from_str(&json).unwrap(), "s.json");
        assert!(text.contains("layers 0, 3, 4 draws") && text.contains("R = 2 / 3 (`c`, [s.json](/s.json))"), "{text}");
        let line = "| rht | model | 2.00 / 3.00 | 0.000 / 0.250 | -3.0 / -3.0 | 0.500 / 0.500 | 0.0123 / 0.0123 |";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("| qjl | model | – / 3.00 |"), "{text}");
    }
}
