//! `cargo xtask tables`: the tables and plots of README and docs, generated from the JSON that commands left under `docs/results`.
//!
//! A block between `<!-- table FILE: COMMAND -->` and `<!-- end table -->` holds the rows of FILE, which is the output of COMMAND;
//! where FILE names its command, that is what the marker says. `FILE+FILE#VIEW` asks for a table of caches over several files.

use std::{fmt::Write as _, fs, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{
    evaluation_tables, feedback_table, kernel_results, kv_tables, plots,
    results::{RateDistortion, RateDistortionRow},
    workspace::Workspace,
};

const PAGES: &[&str] = &["README.md", "docs/EVALUATION.md", "docs/KERNELS.md", "docs/KV.md", "docs/MATH.md"];
const BEGIN: &str = "<!-- table ";
const END: &str = "<!-- end table -->";

#[derive(Debug, Args)]
pub(crate) struct TablesArgs {
    /// Write nothing; fail if a page differs from what its JSON says.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &TablesArgs) -> Result<ExitCode> {
    refresh_all(workspace, args.check)?;
    Ok(ExitCode::SUCCESS)
}

/// Passes if every table and every plot is what its JSON says.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    refresh_all(workspace, true)
}

fn refresh_all(workspace: &Workspace, check: bool) -> Result<()> {
    plots::refresh(workspace.root(), check)?;
    refresh_pages(workspace, check)
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
        let (command, table) = match file.split_once('#') {
            Some((files, view)) => (command.to_owned(), viewed(files, view, command, read)),
            None => {
                let value: Value = serde_json::from_str(&read(file)?).with_context(|| file.to_owned())?;
                // A file that knows how it was made corrects the page.
                let command = value["command"].as_str().unwrap_or(command).to_owned();
                let table = table(value, file, &command);
                (command, table)
            }
        };
        let table = table.with_context(|| file.to_owned())?;
        write!(out, "{before}{BEGIN}{file}: {command} -->\n{table}{END}")?;
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// A table over several evaluations.
fn viewed(files: &str, view: &str, command: &str, read: &dyn Fn(&str) -> Result<String>) -> Result<String> {
    let files: Vec<&str> = files.split('+').collect();
    let parse = |file: &&str| serde_json::from_str(&read(file)?).with_context(|| (*file).to_owned());
    kv_tables::table(view, &files.iter().map(parse).collect::<Result<Vec<_>>>()?, &files, command)
}

/// The table of a file, whose rows say of which kind it is.
fn table(value: Value, file: &str, command: &str) -> Result<String> {
    let is_gap = |rows: &Vec<Value>| rows.iter().any(|row| row.get("gap_bits").is_some());
    if value["rows"].as_array().is_some_and(is_gap) {
        return Ok(rate_distortion(&serde_json::from_value(value)?, file));
    }
    if value["rows"][0].get("held_out_error").is_some() {
        return Ok(feedback_table::table(&serde_json::from_value(value)?, file));
    }
    if value["rows"][0].get("score_slope").is_some() {
        return Ok(kv_tables::scores(&serde_json::from_value(value)?, file));
    }
    if value["rows"][0].get("tokens_per_second").is_some() {
        return Ok(kernel_results::decode_table(&serde_json::from_value(value)?, file, command));
    }
    if value["rows"].as_array().is_some_and(|rows| rows.iter().any(|row| row.get("floor_fraction").is_some())) {
        return Ok(kernel_results::tables(&serde_json::from_value(value)?, file));
    }
    Ok(evaluation_tables::tables(&serde_json::from_value(value)?, file, command))
}

/// The rates of the columns, in bits per weight.
const COLUMNS: [f64; 3] = [2.0, 3.0, 4.0];

/// One line per codec: distances to the bound on Gaussian values, and speeds.
fn rate_distortion(table: &RateDistortion, file: &str) -> String {
    let RateDistortion { command, cpu, rows, decomposition } = table;
    let mut out = format!(
        "Gaussian values: bits per weight above R(D) at a payload of 2, 3 and 4 bits (another stream rate stands in brackets), and millions \
         of weights per second on one thread of {cpu}, at 3 bits or the nearest rate there is (`{command}`, [{file}](/{file})):\n\n\
         | codec | gap at 2 | gap at 3 | gap at 4 | encode | decode |\n|---|---|---|---|---|---|\n"
    );
    let gaussian: Vec<&RateDistortionRow> = rows.iter().filter(|row| row.source == "gaussian").collect();
    let mut names: Vec<&str> = Vec::new();
    for row in &gaussian {
        if !names.contains(&row.codec.as_str()) {
            names.push(&row.codec);
        }
    }
    for name in names {
        let of_codec: Vec<&&RateDistortionRow> = gaussian.iter().filter(|row| row.codec == name).collect();
        let cells = COLUMNS.map(|rate| {
            // A codec with rates of its own stands in the nearest column.
            let near = of_codec.iter().filter(|row| (row.target_bps - rate).abs() <= 0.5);
            let nearest = near.min_by(|a, b| (a.target_bps - rate).abs().total_cmp(&(b.target_bps - rate).abs()));
            nearest.and_then(|row| Some((row, row.gap_bits?))).map_or_else(String::new, |(row, gap)| {
                let is_off = (row.stream_bps - rate).abs() > 0.1;
                if is_off { format!("{gap:.3} ({:.2})", row.stream_bps) } else { format!("{gap:.3}") }
            })
        });
        let timed = of_codec.iter().min_by(|a, b| (a.target_bps - 3.0).abs().total_cmp(&(b.target_bps - 3.0).abs()));
        let [encode, decode] = timed.map_or([0.0; 2], |row| [row.encode_mws, row.decode_mws]).map(significant);
        let _ = writeln!(out, "| `{name}` | {} | {encode} | {decode} |", cells.join(" | "));
    }
    let decomposition: Vec<_> = decomposition.iter().filter(|parts| parts.source == "gaussian").collect();
    if let Some(first) = decomposition.first() {
        let _ = writeln!(
            out,
            "\nThe distance from `{}` to `e8` by cause, in bits per weight:\n\n\
             | rate | gap | gap of `e8` | entropy of the indices below their rate | finite codebook |\n|---|---|---|---|---|",
            first.codec
        );
    }
    for parts in decomposition {
        let _ = writeln!(
            out,
            "| {} | {:.3} | {:.3} | {:.3} | {:.3} |",
            parts.target_bps,
            parts.gap_bits,
            parts.e8_gap_bits,
            parts.index_entropy_slack_bits,
            parts.finite_codebook_loss_bits
        );
    }
    out
}

/// Two significant digits below ten, whole numbers above.
fn significant(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
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
    fn rates_and_distortions_become_one_line_per_codec() {
        let row = |codec: &str, target: f64, stream: f64, gap: &str| {
            format!(
                r#"{{"source": "gaussian", "codec": "{codec}", "target_bps": {target}, "stream_bps": {stream}, "gap_bits": {gap},
                "encode_mws": 0.123, "decode_mws": 234.6}}"#
            )
        };
        let rows =
            [row("e8", 2.0, 2.01, "0.15"), row("e8", 3.0, 3.0, "0.151"), row("q3_k", 3.4375, 3.4375, "0.4")].join(",");
        let parts = r#"{"source": "gaussian", "codec": "higgs2", "target_bps": 2, "gap_bits": 0.39, "e8_gap_bits": 0.15,
            "index_entropy_slack_bits": 0.1, "finite_codebook_loss_bits": 0.14}"#;
        let json =
            format!(r#"{{"command": "cargo xtask rd", "cpu": "x", "rows": [{rows}], "decomposition": [{parts}]}}"#);
        let page = "<!-- table rd.json: an older command -->\n<!-- end table -->\n";
        let fresh = refresh(page, &|_| Ok(json.clone())).unwrap();
        assert!(fresh.starts_with("<!-- table rd.json: cargo xtask rd -->\n"), "{fresh}");
        assert!(fresh.contains("| `e8` | 0.150 | 0.151 |  | 0.12 | 235 |"), "{fresh}");
        assert!(fresh.contains("| `q3_k` |  | 0.400 (3.44) |  | 0.12 | 235 |"), "{fresh}");
        assert!(fresh.contains("| 2 | 0.390 | 0.150 | 0.100 | 0.140 |"), "{fresh}");
        assert_eq!(refresh(&fresh, &|_| Ok(json.clone())).unwrap(), fresh);
    }

    #[test]
    fn a_view_may_have_several_files() {
        let page = "<!-- table a.json+b.json#passkey: cargo xtask eval --passkey 512 -->\nold\n<!-- end table -->\n";
        let with_keys = JSON
            .replace("\"delta_ln\": 0.0", r#""delta_ln": 0.0, "passkey": [{"context": 512, "trials": 4, "right": 3}]"#);
        let fresh = refresh(page, &|_| Ok(with_keys.clone())).unwrap();
        assert!(
            fresh.starts_with("<!-- table a.json+b.json#passkey: cargo xtask eval --passkey 512 -->\nm, "),
            "{fresh}"
        );
        assert!(fresh.contains("[b.json](/b.json)") && fresh.contains("| unquantized | 3 of 4 |"), "{fresh}");
        assert_eq!(refresh(&fresh, &|_| Ok(with_keys.clone())).unwrap(), fresh);
        assert!(refresh(&page.replace("#passkey", "#mood"), &|_| Ok(with_keys.clone())).is_err());
    }

    #[test]
    fn broken_markers_and_files_are_named() {
        let read = |_: &str| Ok("{}".to_owned());
        assert!(refresh("<!-- table x: y -->\n", &read).unwrap_err().to_string().contains("no end marker"));
        let error = refresh("<!-- table x.json: y -->\n<!-- end table -->", &read).unwrap_err();
        assert_eq!(error.to_string(), "x.json");
    }
}
