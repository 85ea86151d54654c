//! `gosset verify`: whether every byte of a container is what was written.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use gosset_container::{Container, ContainerError, VerifyReport};
use serde_json::json;

use crate::exit;
use crate::output;
use crate::progress::Progress;

/// Check every byte of a container.
///
/// Header, checksums of all planes, every compressed stream. Exit code 0 if and only if nothing is wrong; otherwise
/// one line names the damaged part.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  gosset verify smollm2.gosset && echo intact")]
pub(crate) struct VerifyArgs {
    /// The container.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON: `ok`, and `problems` or what was checked.
    #[arg(long)]
    json: bool,
}

/// Files of fewer bytes are checked before anyone asks how far it is.
const BIG: u64 = 100_000_000;

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs) -> Result<()> {
    let outcome = Container::open(&args.file).and_then(|container| {
        let coded = container.entries().iter().filter(|t| t.is_quantized());
        let total = coded.fold(0u64, |n, t| n.saturating_add(t.n_weights()));
        let progress = Progress::new(args.json || container.file_bytes() < BIG, "verifying", total);
        let report = container.verify_with(&mut |at| {
            progress.at("verifying", at.tensor, at.index, at.total, at.weights_done);
        })?;
        progress.finish();
        Ok(report)
    });
    let file = args.file.display().to_string();
    match outcome {
        Ok(report) if args.json => {
            let VerifyReport { n_planes, n_bytes, n_decoded, n_weights, .. } = report;
            let checked = json!({
                "n_planes": n_planes, "plane_bytes": n_bytes, "n_decoded": n_decoded, "n_weights": n_weights,
            });
            output::json(&json!({ "file": file, "ok": true, "checked": checked }))
        }
        Ok(report) => {
            let VerifyReport { n_planes, n_bytes, n_decoded, n_weights, .. } = report;
            let mut out = output::stdout();
            writeln!(
                out,
                "{}: intact; {n_planes} planes ({}) match their checksums, {n_decoded} tensors ({} weights) decode",
                exit::printable(&file),
                output::bytes(n_bytes),
                output::count(n_weights),
            )?;
            out.flush()?;
            Ok(())
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
