//! `gosset dequantize`: a container becomes a folder that other programs load.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use gosset_container::Container;
use gosset_quantize::{DequantizeSummary, Event, FloatDtype, Observer, RawDequantizer};
use serde_json::json;

use crate::cli::ThreadArgs;
use crate::exit::{Exit, error, printable};
use crate::progress::Progress;
use crate::{interrupt, output};

/// Expand a container into a Hugging Face folder.
///
/// The folder holds model.safetensors, config, tokenizer and the other side files. Quantized tensors and kept GGUF
/// blocks are written in the asked dtype, other kept tensors bit by bit as they are.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  gosset dequantize smollm2.gosset -o smollm2-expanded --dtype bf16")]
pub(crate) struct DequantizeArgs {
    /// The container.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The folder to make; the folder above it must exist.
    #[arg(long, short = 'o', value_name = "DIR")]
    output: PathBuf,
    /// Dtype of expanded tensors; f32 is exactly what the container decodes to.
    #[arg(long, value_name = "DTYPE", default_value = "f32", value_parser = dtypes())]
    dtype: FloatDtype,
    /// Write into a folder that is not empty; files of the same name are replaced, others stay.
    #[arg(long, short = 'f')]
    force: bool,
    /// Print JSON: the folder, its files, their sizes.
    #[arg(long)]
    json: bool,
    /// No progress, no report.
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    threads: ThreadArgs,
}

fn dtypes() -> impl TypedValueParser<Value = FloatDtype> {
    PossibleValuesParser::new(["f32", "f16", "bf16"])
        .try_map(|name| FloatDtype::from_name(&name).ok_or_else(|| format!("unknown dtype {name}")))
}

/// Expands the block types of GGUF.
struct GgufBlocks;

impl RawDequantizer for GgufBlocks {
    fn dequantize_rows(
        &self,
        dtype: &str,
        bytes: &[u8],
        cols: usize,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(gosset_runtime::source::dequantize_rows(dtype, bytes, cols, rows, out)?)
    }
}

/// Runs the command.
pub(crate) fn run(args: &DequantizeArgs) -> Result<()> {
    args.threads.apply()?;
    let container = Container::open(&args.file)?;
    let n_weights = container.entries().iter().fold(0u64, |n, t| n.saturating_add(t.n_weights()));
    let reporter = Reporter { progress: Progress::new(args.quiet, "dequantizing", n_weights) };
    let expand = |folder: &Path| {
        gosset_quantize::dequantize(&container, folder, args.dtype, Some(&GgufBlocks), &reporter)
            .map_err(anyhow::Error::from)
    };
    let watch = interrupt::watch_slowly();
    let occupied = fs::read_dir(&args.output).is_ok_and(|mut entries| entries.next().is_some());
    if occupied && args.force {
        gosset_quantize::check_dequantize_targets(&container, &args.output)?;
    }
    let summary = if occupied && args.force { into_occupied(&args.output, expand)? } else { expand(&args.output)? };
    drop(watch);
    reporter.progress.finish();
    let DequantizeSummary { files, weight_bytes, n_tensors, .. } = &summary;
    let folder = args.output.display().to_string();
    if args.json {
        return output::json(&json!({
            "folder": folder, "files": files, "weight_bytes": weight_bytes, "n_tensors": n_tensors,
            "dtype": args.dtype.name(),
        }));
    }
    if !args.quiet {
        let mut out = output::stdout();
        writeln!(
            out,
            "{}: {n_tensors} tensors ({}, expanded to {}); {}",
            printable(&folder),
            output::bytes(*weight_bytes),
            args.dtype.name(),
            files.join(", ")
        )?;
        out.flush()?;
    }
    Ok(())
}

/// Expands beside `folder`, then moves the files into it, the weights last: an interrupted run changes nothing.
fn into_occupied(folder: &Path, expand: impl FnOnce(&Path) -> Result<DequantizeSummary>) -> Result<DequantizeSummary> {
    // With its links resolved, so that the staging folder lies on the same file system.
    let real = fs::canonicalize(folder).with_context(|| folder.display().to_string())?;
    let Some(parent) = real.parent() else {
        return Err(error(
            Exit::Usage,
            format!("{}: cannot write beside the root folder; choose another folder", real.display()),
        ));
    };
    let staging = tempfile::Builder::new()
        .prefix(".gosset-")
        .suffix(".tmp")
        .tempdir_in(parent)
        .with_context(|| format!("{}: creating a temporary folder", parent.display()))?;
    let summary = expand(&staging.path().join("out"))?;
    for name in summary.files.iter().rev() {
        fs::rename(staging.path().join("out").join(name), real.join(name))
            .with_context(|| real.join(name).display().to_string())?;
    }
    Ok(summary)
}

/// Shows events as progress; asks the run to stop after Ctrl-C.
struct Reporter {
    progress: Progress,
}

impl Observer for Reporter {
    fn event(&self, event: &Event<'_>) {
        if let Event::Finished { tensor, index, total, weights_done, .. } = event {
            self.progress.at("dequantizing", tensor, *index, *total, *weights_done);
        }
    }

    fn cancelled(&self) -> bool {
        interrupt::requested()
    }
}
