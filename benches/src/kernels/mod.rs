//! The `kernels` binary: times of the CUDA kernels beside cuBLAS, each beside its own distortion.
//!
//! A row is checked before it is timed: outputs are poisoned, and every one of them is held to the f64 product over the
//! dequantized weights. Rows that fail are marked and make the run invalid. Without a device the CPU part remains.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Context, Result};

mod args;
mod bench;
mod block;
mod candidates;
mod container;
mod cpu;
mod decode;
mod dense;
mod fixed;
mod kv;
mod product;
mod quantize;
mod reference;
mod report;
mod rht;
mod rice;
mod shift;
mod table;
mod timing;
mod unisvq;

pub use args::{Args, Op, Shape};
pub use report::{ContainerRow, CpuRow, Report, Row, Torch, TorchRow};

use gosset_cuda::Gpu;

/// Measures, prints the table on stdout and progress on stderr, and says whether the run counts.
///
/// # Errors
/// Anything that keeps a row from being measured, and files that cannot be read or written.
pub fn run(args: &Args) -> Result<bool> {
    if let Some(json) = &args.json {
        // Before the work rather than after it.
        fs::write(json, "").with_context(|| format!("--json {}", json.display()))?;
    }
    let torch = args.torch.as_deref().map(read_torch).transpose()?;
    let mut report = Report {
        device: "none".to_owned(),
        driver: "none".to_owned(),
        cublas: None,
        cpu: cpu::name(),
        command: args.command.clone().unwrap_or_else(|| std::env::args().collect::<Vec<_>>().join(" ")),
        seed: args.seed,
        unique_rows: args.unique_rows as usize,
        method: timing::METHOD.to_owned(),
        copy_gbps: None,
        torch,
        // Until it is whole.
        valid: false,
        problems: Vec::new(),
        rows: Vec::new(),
        container: Vec::new(),
        cpu_rows: Vec::new(),
    };
    let found =
        if args.cpu { Err("the CPU was asked for".to_owned()) } else { Gpu::detect().map_err(|e| e.to_string()) };
    match found {
        Ok(gpu) => {
            note(&format!("{}", gpu.info()));
            bench::run(&gpu, args, &mut report)?;
        }
        Err(reason) => {
            note(&format!("no device is measured: {reason}; the CPU part follows"));
            cpu::run(args, &mut report)?;
        }
    }
    report.valid = report.problems.is_empty();
    keep(args, &report)?;
    print(&table::render(&report))?;
    Ok(report.valid)
}

/// Writes the report as far as it is.
fn keep(args: &Args, report: &Report) -> Result<()> {
    let Some(json) = &args.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)? + "\n";
    fs::write(json, text).with_context(|| format!("--json {}", json.display()))
}

fn read_torch(path: &Path) -> Result<Torch> {
    let text = fs::read_to_string(path).with_context(|| format!("--torch {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("--torch {}", path.display()))
}

/// A line of progress, with the seconds since the first.
#[allow(clippy::print_stderr, reason = "progress goes to stderr")]
fn note(line: &str) {
    static START: OnceLock<Instant> = OnceLock::new();
    let seconds = START.get_or_init(Instant::now).elapsed().as_secs_f64();
    eprintln!("{seconds:6.1} s  {line}");
}

/// A reader that has seen enough and closed the pipe is no error.
fn print(text: &str) -> Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("writing to stdout"),
        _ => Ok(()),
    }
}
