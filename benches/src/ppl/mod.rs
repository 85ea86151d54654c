//! The `ppl` binary: quantize to a file, close it, open it again, score what it holds.
//!
//! No weight of a compressed model is ever scored from memory that its file did not pass through: every row of a codec comes from a
//! container that was written, closed and mapped again. Baselines have no file format here; each of their linears is what their
//! packed bytes decode to, and the rest is read from the source.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use peak_alloc::PeakAlloc;

mod args;
mod baseline;
mod calibration;
mod interrupt;
mod kv;
mod lm;
mod memory;
mod passkey;
mod progress;
mod run;
mod source_row;
mod table;
mod target;
mod tasks;

pub use args::Args;
pub use calibration::CalibrationArgs;
use interrupt::Interrupt;
pub use passkey::{PasskeyArgs, PromptForm};
use run::{Ended, Run};
pub use tasks::TaskArgs;

/// Exit code of a run that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Carries out one evaluation; prints its table or JSON on stdout and its progress on stderr.
///
/// `heap` must be the global allocator.
///
/// # Errors
///
/// Anything that keeps a row from being measured; the rows before it are not printed, because a partial table would look whole.
pub fn run(args: &Args, heap: &'static PeakAlloc) -> Result<ExitCode> {
    if let Some(threads) = args.threads {
        if threads == 0 {
            bail!("--threads: expected at least 1, found 0");
        }
        rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().context("starting threads")?;
    }
    args.check()?;
    let interrupt = Interrupt::install()?;
    match Run::new(args, heap, interrupt)?.report() {
        Ok(report) => {
            if args.json {
                table::print_json(&report)?;
            } else {
                table::print(&report)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(Ended::Interrupted) => Ok(ExitCode::from(INTERRUPTED)),
        Err(Ended::Failed(error)) => Err(error),
    }
}

/// The cache folder: `$GOSSET_CACHE`, else `$XDG_CACHE_HOME/gosset`, else `~/.cache/gosset`.
fn cache_dir() -> PathBuf {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("GOSSET_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("gosset")))
        .or_else(|| Some(set("HOME")?.join(".cache/gosset")))
        .unwrap_or_else(|| Path::new(".gosset-cache").to_owned())
}
