//! `gosset verify`: whether every byte of a container is what was written, and the whole what its recipe says.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use gosset_container::{Container, ContainerError, ValueStatistics, VerifyReport};
use serde::Serialize;
use serde_json::{Value, json};

use crate::exit::{Exit, error, printable};
use crate::output::{self, Table};
use crate::progress::Progress;
use crate::recipe_check::{self, Difference, codec_of};

/// Check every byte of a container.
///
/// The header and the checksums of all planes; then, unless --checksums is given, every compressed tensor is decoded, its values must be
/// finite, and codecs, rates and size must be those of the recipe in the file. Exit code 0 if and only if nothing is wrong; otherwise
/// one line names the damaged part.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gosset verify smollm2.gosset && echo intact
  gosset verify --checksums smollm2.gosset
  gosset verify --tensors smollm2.gosset")]
pub(crate) struct VerifyArgs {
    /// The container.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Check header and checksums only: as fast as the file can be read.
    #[arg(long)]
    checksums: bool,
    /// List what every compressed tensor decodes to: values that are zero, their root mean square, the largest.
    #[arg(long, conflicts_with = "checksums")]
    tensors: bool,
    /// Print JSON: `ok`, and `problems` or what was checked.
    #[arg(long)]
    json: bool,
}

/// Files of fewer bytes are checked before anyone asks how far it is.
const BIG: u64 = 100_000_000;

/// What one tensor decodes to.
#[derive(Debug, Serialize)]
struct Decoded {
    name: String,
    codec: String,
    /// Code bits for each weight.
    payload_bps: f64,
    n_weights: u64,
    n_zero: u64,
    rms: f64,
    max_abs: f32,
}

/// What was found in an undamaged file.
#[derive(Debug)]
struct Checked {
    report: VerifyReport,
    tensors: Vec<Decoded>,
    /// Whether the recipe could be read; `None` if it was not looked at.
    recipe_read: Option<bool>,
    differences: Vec<Difference>,
}

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs) -> Result<()> {
    let file = args.file.display().to_string();
    match check(args) {
        Ok(checked) if checked.differences.is_empty() => intact(args, &file, &checked),
        Ok(checked) => {
            let all = &checked.differences;
            if args.json {
                output::json(&json!({ "file": file, "ok": false, "problems": all }))?;
            }
            let more = if all.len() > 1 { format!(" (and {} more)", all.len() - 1) } else { String::new() };
            let message = format!("{file}: not what its recipe says: {}: {}{more}", all[0].part, all[0].what);
            Err(error(Exit::Container, message))
        }
        Err(error) => {
            if args.json {
                let problems = match &error {
                    ContainerError::Damaged { problems, .. } => {
                        problems.iter().map(|p| json!({ "part": p.part, "what": p.what })).collect()
                    }
                    other => vec![json!({ "part": "file", "what": other.to_string() })],
                };
                output::json(&json!({ "file": file, "ok": false, "problems": problems }))?;
            }
            Err(error.into())
        }
    }
}

fn check(args: &VerifyArgs) -> Result<Checked, ContainerError> {
    let container = Container::open(&args.file)?;
    if args.checksums {
        let report = container.verify_checksums()?;
        return Ok(Checked { report, tensors: Vec::new(), recipe_read: None, differences: Vec::new() });
    }
    let quantized = container.entries().iter().filter(|t| t.is_quantized());
    let total = quantized.fold(0u64, |n, t| n.saturating_add(t.n_weights()));
    let progress = Progress::new(args.json || container.file_bytes() < BIG, "verifying", total);
    let mut values: Vec<(String, String, ValueStatistics)> = Vec::new();
    let report = container.verify_values(
        &mut |at| progress.at("verifying", at.tensor, at.index, at.total, at.weights_done),
        &mut |entry, found| values.push((entry.name.clone(), codec_of(entry), found)),
    )?;
    progress.finish();
    against_recipe(&container, report, values)
}

fn against_recipe(
    container: &Arc<Container>,
    report: VerifyReport,
    values: Vec<(String, String, ValueStatistics)>,
) -> Result<Checked, ContainerError> {
    let ledger = container.ledger()?;
    let tensors = values.into_iter().map(|(name, codec, found)| Decoded {
        payload_bps: ledger.tensor(&name).map_or(0.0, |line| line.rate().payload_bps()),
        n_weights: found.n_values,
        n_zero: found.n_zero,
        rms: found.rms(),
        max_abs: found.max_abs,
        name,
        codec,
    });
    let tensors = tensors.collect();
    let options = recipe_check::asked(container);
    let differences = options.as_ref().map(|o| recipe_check::differences(container, &ledger, o)).unwrap_or_default();
    Ok(Checked { report, tensors, recipe_read: Some(options.is_some()), differences })
}

fn intact(args: &VerifyArgs, file: &str, checked: &Checked) -> Result<()> {
    let VerifyReport { n_planes, n_bytes, n_decoded, n_weights, .. } = checked.report;
    if args.json {
        let mut found = json!({
            "n_planes": n_planes, "plane_bytes": n_bytes, "n_decoded": n_decoded, "n_weights": n_weights,
            "depth": if args.checksums { "checksums" } else { "values" }, "recipe": checked.recipe_read,
        });
        if !args.checksums {
            found["tensors"] = serde_json::to_value(&checked.tensors).unwrap_or(Value::Null);
        }
        return output::json(&json!({ "file": file, "ok": true, "checked": found }));
    }
    let mut out = output::stdout();
    let planes = format!("{n_planes} planes ({}) match their checksums", output::bytes(n_bytes));
    let rest = match checked.recipe_read {
        None => "; nothing was decoded (--checksums)".to_owned(),
        Some(read) => {
            let recipe = if read { "as the recipe says" } else { "no recipe to compare them with" };
            format!(", {n_decoded} tensors ({} weights) decode, {recipe}", output::count(n_weights))
        }
    };
    writeln!(out, "{}: intact; {planes}{rest}", printable(file))?;
    if args.tensors {
        let mut table = Table::new(2, &["name", "stored as", "weights", "payload", "zero", "rms", "largest"]);
        for t in &checked.tensors {
            let zero = 100.0 * t.n_zero as f64 / t.n_weights.max(1) as f64;
            table.row([
                t.name.clone(),
                t.codec.clone(),
                t.n_weights.to_string(),
                format!("{:.4}", t.payload_bps),
                format!("{zero:.2} %"),
                format!("{:.6}", t.rms),
                format!("{:.6}", t.max_abs),
            ]);
        }
        writeln!(out)?;
        table.write(&mut out)?;
    }
    out.flush()?;
    Ok(())
}
