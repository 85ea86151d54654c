//! The `rd` binary: one table of rates, distortions and speeds for every codec and baseline.
//!
//! Each row quantizes one matrix at one rate. What counts are bytes: a codec's matrix goes through a container that is written,
//! closed and read back before anything is timed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

mod args;
mod codec;
mod decompose;
mod matrix;
mod measure;
mod method;
pub(crate) mod output;
pub(crate) mod progress;
mod scratch;
mod table;

pub use args::Args;
pub use decompose::GapParts;
pub use matrix::Matrix;
pub use measure::Row;

use args::Target;
use decompose::REFERENCE;
use matrix::Choice;
use progress::Progress;
use scratch::Scratch;

/// The whole table with what is needed to repeat it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The command that made it.
    pub command: String,
    /// Seed of drawn matrices.
    pub seed: u64,
    /// Processor that the speeds are of.
    pub cpu: String,
    /// Threads that the speeds are of.
    pub threads: usize,
    /// The matrices.
    pub matrices: Vec<MatrixInfo>,
    /// The measurements.
    pub rows: Vec<Row>,
    /// Where the distance from one baseline to E8 comes from, if that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decomposition: Vec<GapParts>,
    /// What was asked for and not measured, or measured as something else, with the reason.
    pub notes: Vec<String>,
}

/// A matrix that was measured on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MatrixInfo {
    /// Its name in the rows.
    pub source: String,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Variance about the mean.
    pub variance: f64,
}

/// Measures the table, prints it (or its JSON) on stdout and its progress on stderr.
///
/// # Errors
///
/// Anything that keeps a row from being measured; the rows before it are not printed, because a partial table would look whole.
pub fn run(args: &Args) -> Result<()> {
    if let Some(out) = &args.out {
        output::check(out)?;
    }
    let scratch = Scratch::with_interrupt()?;
    // Speeds are those of one thread.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().context("starting a thread")?;
    let report = pool.install(|| measure_all(args, &scratch))?;
    let json = serde_json::to_string_pretty(&report)?;
    if let Some(out) = &args.out {
        output::write(out, &format!("{json}\n"))?;
        output::write(&out.with_extension("csv"), &table::csv(&report))?;
    }
    output::to_stdout(&if args.json { json } else { table::render(&report) })
}

/// A matrix and what is measured on it.
type Job = (Matrix, Vec<Target>);

fn measure_all(args: &Args, scratch: &Scratch) -> Result<Report> {
    if let Some(baseline) = &args.decompose {
        decompose::grid_dimension(baseline)?;
    }
    let mut jobs: Vec<Job> = Vec::new();
    for source in &args.source {
        let choice = Choice { rows: args.rows(), cols: args.cols as usize, seed: args.seed, tensors: &args.tensors };
        // Codecs and rates first: they are wrong more often, and cost nothing to check.
        args.targets(source)?;
        for matrix in matrix::load(source, choice)? {
            jobs.push((matrix, args.targets(source)?));
        }
    }
    let total = jobs.iter().flat_map(|(_, targets)| targets).map(|target| target.rates.len()).sum();
    let mut progress = Progress::new(total);
    let mut report = Report {
        command: args.command.clone().unwrap_or_else(|| std::env::args().collect::<Vec<_>>().join(" ")),
        seed: args.seed,
        cpu: cpu(),
        threads: 1,
        matrices: Vec::new(),
        rows: Vec::with_capacity(total),
        decomposition: Vec::new(),
        notes: Vec::new(),
    };
    for (matrix, targets) in &jobs {
        let Matrix { source, rows, cols, .. } = matrix;
        progress.note(&format!("{source}: {rows} x {cols}"));
        let info = MatrixInfo { source: source.clone(), rows: *rows, cols: *cols, variance: matrix.variance() };
        report.matrices.push(info);
        for target in targets {
            measure_target(matrix, target, scratch, &mut progress, &mut report)?;
        }
        if let Some(baseline) = &args.decompose {
            progress.note(&format!("{source}: from {baseline} to {REFERENCE} by cause"));
            report.decomposition.extend(decompose::decompose(matrix, baseline)?);
        }
    }
    progress.finish();
    if report.rows.is_empty() {
        bail!("nothing was measured: {}", report.notes.join("; "));
    }
    Ok(report)
}

fn measure_target(
    matrix: &Matrix,
    target: &Target,
    scratch: &Scratch,
    progress: &mut Progress,
    report: &mut Report,
) -> Result<()> {
    let Target { method, rates, unreachable } = target;
    let mut skip = |progress: &Progress, rate: &f64, why: &str| {
        let line = format!("{}: {}@{rate} skipped: {why}", matrix.source, method.name);
        progress.note(&line);
        report.notes.push(line);
    };
    for rate in unreachable {
        let why = method.at(*rate).err().map_or_else(String::new, |error| format!("{:#}", error.root_cause()));
        skip(progress, rate, &why);
    }
    for rate in rates {
        let label = format!("{}@{rate}", method.name);
        progress.begin(&label);
        let (row, fallback) = measure::measure(matrix, &method.name, *rate, &*method.at(*rate)?, scratch)
            .with_context(|| format!("{}: {label}", matrix.source))?;
        if let Some(fallback) = fallback {
            let line = format!("{}: {label} is {fallback} here, because of the width", matrix.source);
            progress.note(&line);
            report.notes.push(line);
        }
        let gap = row.gap_bits.map_or_else(String::new, |gap| format!(", gap {gap:.4}"));
        progress.end(&label, &format!("stream {:.4}, mse {:.5}{gap}", row.stream_bps, row.mse));
        report.rows.push(row);
    }
    Ok(())
}

/// Name of the processor where the system tells it.
fn cpu() -> String {
    let info = fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")).map(|rest| rest.trim_matches([' ', '\t', ':']));
    model.unwrap_or(std::env::consts::ARCH).to_owned()
}
