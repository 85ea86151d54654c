//! `gosset diff`: how far the weights of one model are from those of another.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::cli::ThreadArgs;
use crate::compare::{Distance, Side, Stored, compare};
use crate::exit::{Exit, error, printable};
use crate::output::{self, Table};
use crate::progress::Progress;

/// Compare the weights of two models tensor by tensor.
///
/// Each may be a container or a checkpoint (a Hugging Face folder, a GGUF or safetensors file, a known name). The first is what
/// noise is measured against: SNR is its energy over that of the difference. Values are compared as what they decode to, whatever
/// they are stored as.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gosset diff model.safetensors model.gosset
  gosset diff one.gosset other.gosset --tensors
  gosset diff model.gguf model.gosset --json | jq .worst.name
  gosset diff smollm2 smollm2.gosset --min-snr 18")]
pub(crate) struct DiffArgs {
    /// What is measured against, usually the original.
    #[arg(value_name = "A")]
    reference: PathBuf,
    /// What is measured.
    #[arg(value_name = "B")]
    other: PathBuf,
    /// List every tensor.
    #[arg(long)]
    tensors: bool,
    /// Fail if any tensor has less than this SNR, in dB, is missing or has another shape.
    #[arg(long, value_name = "DB")]
    min_snr: Option<f64>,
    /// Print JSON, every tensor included.
    #[arg(long)]
    json: bool,
    /// No progress.
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// Everything `--json` prints.
#[derive(Debug, Serialize)]
struct Difference {
    reference: String,
    other: String,
    /// Whether every tensor of one is in the other with the same values.
    identical: bool,
    n_compared: usize,
    n_weights: u64,
    /// Over all compared weights together; `null` if nothing differs or nothing is there.
    snr_db: Option<f64>,
    /// Bytes of the compared tensors times 8 over their weights.
    reference_bps: f64,
    other_bps: f64,
    worst: Option<TensorDifference>,
    tensors: Vec<TensorDifference>,
    only_in_reference: Vec<String>,
    only_in_other: Vec<String>,
    other_shape: Vec<OtherShape>,
    /// Tensors without a float meaning on either side.
    not_compared: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct TensorDifference {
    name: String,
    shape: Vec<usize>,
    n_weights: u64,
    reference_stored_as: String,
    other_stored_as: String,
    reference_bps: f64,
    other_bps: f64,
    identical: bool,
    snr_db: Option<f64>,
    max_abs_difference: f32,
}

#[derive(Debug, Serialize)]
struct OtherShape {
    name: String,
    reference: Vec<usize>,
    other: Vec<usize>,
}

/// Runs the command.
pub(crate) fn run(args: &DiffArgs) -> Result<()> {
    args.threads.apply()?;
    if let Some(db) = args.min_snr.filter(|db| !db.is_finite()) {
        return Err(error(Exit::Usage, format!("--min-snr {db}: expected a number of dB")));
    }
    let (a, b) = (Side::open(&args.reference)?, Side::open(&args.other)?);
    let difference = measure(args, &a, &b)?;
    if args.json {
        output::json(&difference)?;
    } else {
        let mut out = output::stdout();
        print(&mut out, &difference, args.tensors)?;
        out.flush()?;
    }
    judge(args, &difference)
}

fn measure(args: &DiffArgs, a: &Side, b: &Side) -> Result<Difference> {
    let (in_a, in_b) = (a.tensors()?, b.tensors()?);
    let names = |tensors: &[Stored]| tensors.iter().map(|t| t.name.clone()).collect::<BTreeSet<_>>();
    let (names_a, names_b) = (names(&in_a), names(&in_b));
    let total = in_a.iter().filter(|t| names_b.contains(&t.name)).fold(0u64, |n, t| n.saturating_add(t.n_weights()));
    let progress = Progress::new(args.quiet || args.json, "comparing", total);
    let (mut tensors, mut other_shape, mut not_compared) = (Vec::new(), Vec::new(), Vec::new());
    let (mut sum, mut bytes, mut n_weights) = (Distance::default(), [0u64; 2], 0u64);
    for (index, one) in in_a.iter().enumerate() {
        let Some(two) = in_b.iter().find(|t| t.name == one.name) else { continue };
        progress.at("comparing", &one.name, index, in_a.len(), n_weights);
        if one.shape != two.shape {
            let (reference, other) = (one.shape.clone(), two.shape.clone());
            other_shape.push(OtherShape { name: one.name.clone(), reference, other });
            continue;
        }
        let Some(distance) = compare(a, one, b, two)? else {
            not_compared.push(one.name.clone());
            continue;
        };
        sum.add(distance);
        bytes[0] += one.n_bytes;
        bytes[1] += two.n_bytes;
        n_weights += one.n_weights();
        tensors.push(TensorDifference {
            name: one.name.clone(),
            shape: one.shape.clone(),
            n_weights: one.n_weights(),
            reference_stored_as: one.stored_as.clone(),
            other_stored_as: two.stored_as.clone(),
            reference_bps: bps(one.n_bytes, one.n_weights()),
            other_bps: bps(two.n_bytes, two.n_weights()),
            identical: distance.n_different == 0,
            snr_db: distance.snr_db(),
            max_abs_difference: distance.max_abs,
        });
    }
    progress.finish();
    let only = |from: &BTreeSet<String>, other: &BTreeSet<String>| from.difference(other).cloned().collect::<Vec<_>>();
    let (only_in_reference, only_in_other) = (only(&names_a, &names_b), only(&names_b, &names_a));
    let differing = tensors.iter().filter(|t| !t.identical);
    let key = |t: &&TensorDifference| t.snr_db.unwrap_or(f64::NEG_INFINITY);
    let worst = differing.min_by(|a, b| key(a).total_cmp(&key(b))).cloned();
    let structural = only_in_reference.len() + only_in_other.len() + other_shape.len() + not_compared.len();
    Ok(Difference {
        reference: a.name().to_owned(),
        other: b.name().to_owned(),
        identical: worst.is_none() && structural == 0,
        n_compared: tensors.len(),
        n_weights,
        snr_db: sum.snr_db(),
        reference_bps: bps(bytes[0], n_weights),
        other_bps: bps(bytes[1], n_weights),
        worst,
        tensors,
        only_in_reference,
        only_in_other,
        other_shape,
        not_compared,
    })
}

fn bps(bytes: u64, n_weights: u64) -> f64 {
    if n_weights == 0 { 0.0 } else { bytes as f64 * 8.0 / n_weights as f64 }
}

/// SNR for people: a difference without an SNR is one from zeros.
fn snr(t: &TensorDifference) -> String {
    match t.snr_db {
        _ if t.identical => "identical".to_owned(),
        Some(db) => format!("{db:.2} dB"),
        None => "no signal".to_owned(),
    }
}

fn print(out: &mut impl Write, d: &Difference, tensors: bool) -> Result<()> {
    writeln!(out, "A  {}", printable(&d.reference))?;
    writeln!(out, "B  {}", printable(&d.other))?;
    let n_identical = d.tensors.iter().filter(|t| t.identical).count();
    let mut line = format!(
        "{} tensors compared ({} weights), {n_identical} identical; A {:.4}, B {:.4} bits per weight",
        d.n_compared,
        output::count(d.n_weights),
        d.reference_bps,
        d.other_bps
    );
    if let Some(db) = d.snr_db {
        write!(line, "; SNR {db:.2} dB")?;
    }
    writeln!(out, "{line}")?;
    if let Some(worst) = &d.worst {
        let name = printable(&worst.name);
        writeln!(out, "worst: {name}, {}, differs by up to {:.3e}", snr(worst), worst.max_abs_difference)?;
    }
    for (what, names) in
        [("only in A", &d.only_in_reference), ("only in B", &d.only_in_other), ("not numbers", &d.not_compared)]
    {
        for name in names {
            writeln!(out, "{what}: {}", printable(name))?;
        }
    }
    for OtherShape { name, reference, other } in &d.other_shape {
        let (reference, other) = (output::shape(reference), output::shape(other));
        writeln!(out, "other shape: {}, A {reference}, B {other}", printable(name))?;
    }
    if d.identical {
        writeln!(out, "every tensor is the same")?;
    }
    if tensors {
        let heading = ["name", "A", "B", "shape", "A bits", "B bits", "SNR", "largest"];
        let mut table = Table::new(4, &heading);
        for t in &d.tensors {
            table.row([
                t.name.clone(),
                t.reference_stored_as.clone(),
                t.other_stored_as.clone(),
                output::shape(&t.shape),
                format!("{:.4}", t.reference_bps),
                format!("{:.4}", t.other_bps),
                snr(t),
                format!("{:.3e}", t.max_abs_difference),
            ]);
        }
        writeln!(out)?;
        table.write(out)?;
    }
    Ok(())
}

/// Fails where `--min-snr` asks for more.
fn judge(args: &DiffArgs, d: &Difference) -> Result<()> {
    let Some(least) = args.min_snr else { return Ok(()) };
    let below = d.worst.as_ref().filter(|t| t.snr_db.is_none_or(|db| db < least));
    let message = if let Some(t) = below {
        format!("{}: {} has {}, expected {least} dB at least", d.other, t.name, snr(t))
    } else if let Some(name) = d.only_in_reference.first().or(d.only_in_other.first()) {
        format!("{}: {name} is not on both sides", d.other)
    } else if let Some(t) = d.other_shape.first() {
        format!("{}: {} has another shape", d.other, t.name)
    } else {
        return Ok(());
    };
    Err(error(Exit::Failure, message))
}
