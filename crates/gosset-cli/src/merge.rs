//! `gosset merge`: the parts of a run become the file that one run writes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use gosset_container::Container;
use gosset_quantize::{Event, Observer};
use serde_json::json;

use crate::exit;
use crate::interrupt;
use crate::output;

/// Join what `gosset quantize --part` wrote, or the shards of an index.
///
/// The result has the very bytes that one run over all tensors writes. Every checksum is looked at on the way; parts of other
/// options, other weights or another program are refused. The parts stay where they are.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gosset merge part-0.gosset part-1.gosset part-2.gosset -o model.gosset
  seq 0 2 | xargs -P 3 -I{} gosset quantize ./model --rate 3 --part {}/3 -o part-{}.gosset --threads 4 --quiet")]
pub(crate) struct MergeArgs {
    /// All parts, in any order.
    #[arg(value_name = "PART", required = true)]
    parts: Vec<PathBuf>,
    /// The container to write; its folder must exist.
    #[arg(long, short = 'o', value_name = "FILE")]
    output: PathBuf,
    /// Replace an existing output.
    #[arg(long, short = 'f')]
    force: bool,
    /// Print what was written as JSON.
    #[arg(long)]
    json: bool,
    /// Print nothing.
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Asks the merge to stop after Ctrl-C. Copying is too fast for progress.
struct Stop;

impl Observer for Stop {
    fn event(&self, _: &Event<'_>) {}

    fn cancelled(&self) -> bool {
        interrupt::requested()
    }
}

/// Runs the command.
pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    if let [index] = args.parts.as_slice()
        && Container::open(index)?.files().len() > 1
    {
        let written = gosset_container::join(index, &args.output, args.force)?;
        if !args.quiet {
            output::note(&format!("{}: {}", args.output.display(), output::bytes(written.file_bytes)));
        }
        return Ok(());
    }
    let watch = interrupt::watch();
    let summary = gosset_quantize::merge(&args.parts, &args.output, args.force, &Stop)?;
    drop(watch);
    let path = args.output.display().to_string();
    if args.json {
        let (n_parts, n_tensors) = (summary.n_parts, summary.n_tensors);
        let file_bytes = summary.file_bytes;
        return output::json(&json!({
            "file": path, "parts": n_parts, "tensors": n_tensors, "file_bytes": file_bytes, "warnings": summary.warnings,
        }));
    }
    summary.warnings.iter().for_each(|warning| output::note(&format!("warning: {warning}")));
    if !args.quiet {
        let mut out = output::stdout();
        let (parts, tensors) = (summary.n_parts, summary.n_tensors);
        let bytes = output::bytes(summary.file_bytes);
        writeln!(out, "{}: {tensors} tensors of {parts} parts, {bytes}", exit::printable(&path))?;
        out.flush()?;
    }
    Ok(())
}
