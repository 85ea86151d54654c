//! `cargo xtask tables`: the tables of README and docs, generated from the JSON that a command left under `docs/results`.
//!
//! A block between `<!-- table FILE: COMMAND -->` and `<!-- end table -->` holds the rows of FILE, which is the output of COMMAND.

use std::{fmt::Write as _, fs, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

use crate::workspace::Workspace;

const PAGES: &[&str] = &["README.md", "docs/EVALUATION.md"];
const BEGIN: &str = "<!-- table ";
const END: &str = "<!-- end table -->";

#[derive(Debug, Args)]
pub(crate) struct TablesArgs {
    /// Write nothing; fail if a page differs from what its JSON says.
    #[arg(long)]
    check: bool,
}

/// What a table needs of the JSON contract of `cargo xtask eval --json`.
#[derive(Debug, Deserialize)]
struct Evaluation {
    model: String,
    protocol: String,
    windows: u64,
    tokens_scored: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    codec: String,
    payload_bps: f64,
    all_in_bps: f64,
    file_bps: f64,
    file_bytes: u64,
    ppl: f64,
    ppl_sigma: f64,
    delta_ln: Option<f64>,
    target_bps: Option<f64>,
}

pub(crate) fn run(workspace: &Workspace, args: &TablesArgs) -> Result<ExitCode> {
    refresh_pages(workspace, args.check)?;
    Ok(ExitCode::SUCCESS)
}

/// Passes if every table is what its JSON says.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    refresh_pages(workspace, true)
}

fn refresh_pages(workspace: &Workspace, check: bool) -> Result<()> {
    for page in PAGES {
        let path = workspace.root().join(page);
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let read = |file: &str| {
            fs::read_to_string(workspace.root().join(file)).with_context(|| format!("{page} names {file}"))
        };
        let fresh = refresh(&text, &read).with_context(|| format!("tables of {page}"))?;
        if fresh == text {
            continue;
        }
        if check {
            bail!("{page}: a table differs from its JSON; run `cargo xtask tables`");
        }
        fs::write(&path, fresh).with_context(|| format!("{}", path.display()))?;
        println!("{page}");
    }
    Ok(())
}

/// The page with every table made anew.
fn refresh(page: &str, read: &dyn Fn(&str) -> Result<String>) -> Result<String> {
    let mut out = String::with_capacity(page.len());
    let mut rest = page;
    while let Some(at) = rest.find(BEGIN) {
        let (before, block) = rest.split_at(at);
        let (marker, body) = block.split_once("-->").context("a table marker without an end")?;
        let (file, command) =
            marker[BEGIN.len()..].trim().split_once(": ").context("expected `table FILE: COMMAND`")?;
        let (_, after) = body.split_once(END).with_context(|| format!("the table of {file} has no end marker"))?;
        let evaluation: Evaluation = serde_json::from_str(&read(file)?).with_context(|| file.to_owned())?;
        write!(out, "{before}{marker}-->\n{}{END}", table(&evaluation, file, command))?;
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn table(evaluation: &Evaluation, file: &str, command: &str) -> String {
    let Evaluation { model, protocol, windows, tokens_scored, rows } = evaluation;
    let mut out = format!(
        "{model}, protocol {protocol}, {windows} windows, {tokens_scored} tokens scored (`{command}`, [{file}](/{file})):\n\n\
         | codec | payload bps | all-in bps | file bps | file MB | PPL | Δln |\n|---|---|---|---|---|---|---|\n"
    );
    for row in rows {
        let name = match row.target_bps {
            Some(rate) => format!("`{}@{rate}`", row.codec),
            None => "unquantized".to_owned(),
        };
        let ppl = decimals(row.ppl);
        let delta = row.delta_ln.filter(|_| row.target_bps.is_some()).map_or("–".to_owned(), |d| format!("{d:.3}"));
        let _ = writeln!(
            out,
            "| {name} | {:.3} | {:.3} | {:.3} | {:.1} | {ppl} ± {} | {delta} |",
            row.payload_bps,
            row.all_in_bps,
            row.file_bps,
            row.file_bytes as f64 / 1e6,
            decimals(row.ppl_sigma),
        );
    }
    out
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

    const JSON: &str = r#"{"model": "m", "protocol": "full-2048", "windows": 2, "tokens_scored": 4094, "rows": [
        {"codec": "none", "target_bps": null, "payload_bps": 16.0, "all_in_bps": 16.0, "file_bps": 16.1, "file_bytes": 2000000,
         "ppl": 20.187, "ppl_sigma": 0.4, "delta_ln": 0.0},
        {"codec": "e8-rice", "target_bps": 3.0, "payload_bps": 3.0004, "all_in_bps": 3.07, "file_bps": 4.3, "file_bytes": 500000,
         "ppl": 1375.6, "ppl_sigma": 30.0, "delta_ln": 1.5}]}"#;

    #[test]
    fn a_block_is_replaced_and_the_rest_stays() {
        let page = "a\n<!-- table r.json: cargo xtask eval -->\nold\n<!-- end table -->\nb\n";
        let fresh = refresh(page, &|_| Ok(JSON.to_owned())).unwrap();
        assert!(
            fresh.starts_with(
                "a\n<!-- table r.json: cargo xtask eval -->\nm, protocol full-2048, 2 windows, 4094 tokens"
            )
        );
        assert!(fresh.contains("| `e8-rice@3` | 3.000 | 3.070 | 4.300 | 0.5 | 1376 ± 30.00 | 1.500 |"), "{fresh}");
        assert!(fresh.contains("| unquantized | 16.000 | 16.000 | 16.100 | 2.0 | 20.19 ± 0.40 | – |"), "{fresh}");
        assert!(fresh.ends_with("<!-- end table -->\nb\n") && !fresh.contains("old"));
        assert_eq!(refresh(&fresh, &|_| Ok(JSON.to_owned())).unwrap(), fresh);
    }

    #[test]
    fn broken_markers_and_files_are_named() {
        let read = |_: &str| Ok("{}".to_owned());
        assert!(refresh("<!-- table x: y -->\n", &read).unwrap_err().to_string().contains("no end marker"));
        let error = refresh("<!-- table x.json: y -->\n<!-- end table -->", &read).unwrap_err();
        assert_eq!(error.to_string(), "x.json");
    }
}
