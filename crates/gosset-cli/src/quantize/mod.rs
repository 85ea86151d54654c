//! `gosset quantize`: a checkpoint becomes a container.

mod calibrate;
mod memory;
mod method;
mod report;

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use gosset_container::ContainerKind;
use gosset_quantize::{
    Action, Activations, Allocation, Event, ModelSource, Observer, Override, OverrideAction, Part, Plan, PlanItem,
    QuantizeOptions, QuantizeTarget, RunOptions,
};
use gosset_runtime::calibration::Calibration;
use serde_json::json;

use self::calibrate::CalibrationArgs;
use self::memory::peak_bytes;
use self::method::MethodParser;
use self::report::print_report;
pub(crate) use self::report::record_line;
use crate::cli::ThreadArgs;
use crate::exit::printable;
use crate::interrupt;
use crate::model::Input;
use crate::output::{self, Table};
use crate::progress::Progress;
use crate::size::parse_bytes;
use crate::weights;

/// The codec with the least distortion that needs no data.
const DEFAULT_CODEC: &str = "trellis-256";

/// Compress a model into one file that runs.
///
/// The file holds everything needed to run the model. By default the linears of the layers are quantized; embeddings, output
/// head, norms and biases are kept bit-exact in their source type. The output depends on the input and the options only, not on
/// the machine or the number of threads.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("target").required(true).args(["rate", "target_bpw", "target_size"])))]
#[command(after_help = "MODEL is a GGUF file, a Hugging Face folder, a safetensors file with 2-D tensors, a known
name (`gosset list`), or a hub name org/name.

Examples:
  gosset quantize model.gguf -o model.gosset --rate 4
  gosset quantize ./Llama-3.2-1B -o small.gosset --rate 2.5 --embeddings 6
  gosset quantize model.gguf -o small.gosset --target-bpw 3
  gosset quantize model.gguf -o small.gosset --target-size 60MB
  gosset quantize model.gguf --rate 3 --dry-run
  gosset quantize model.gguf -o small.gosset --codec e8+feedback --rate 2.5
  gosset quantize model.gguf -o small.gosset --codec unisvq --rate 2 --calibration texts/
  gosset quantize model.gguf -o m.gosset --rate 3 --rate-for '*.down_proj.weight=4'
  gosset quantize model.gguf -o p0.gosset --rate 3 --part 0/3")]
pub(crate) struct QuantizeArgs {
    /// What to quantize.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The container to write; its folder must exist.
    #[arg(long, short = 'o', value_name = "FILE", required_unless_present = "dry_run")]
    output: Option<PathBuf>,
    /// Payload in bits per quantized weight; lengths, scales and header come on top and are reported.
    #[arg(long, short = 'r', value_name = "R")]
    rate: Option<f64>,
    /// All bits of the quantized tensors, their share of the header included, per quantized weight; never exceeded.
    #[arg(long, value_name = "R")]
    target_bpw: Option<f64>,
    /// Size of the whole file, such as 60000000, 500MB, 7.5GB or 60MiB; never exceeded.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    target_size: Option<u64>,
    /// How --target-bpw and --target-size share bits out among tensors.
    #[arg(long, value_name = "NAME", default_value = Allocation::default().name(), value_parser = allocations(), conflicts_with = "rate")]
    allocation: Allocation,
    /// JSON map from tensor names (* any characters, ? one) to what their relative error counts there; 1 by default, the last
    /// match counts.
    #[arg(long, value_name = "FILE", conflicts_with = "rate")]
    weights: Option<PathBuf>,
    /// How weights become bits. NAME+feedback is NAME with error feedback for any codec but those under Rice codes: less error at
    /// the same bits, for a calibration and a longer run.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_CODEC, value_parser = MethodParser)]
    codec: String,
    /// Quantize embeddings and output head too, with this payload.
    #[arg(long, value_name = "R")]
    embeddings: Option<f64>,
    /// Tile of the randomized Hadamard transform along the input dimension, a power of two.
    #[arg(long, value_name = "N", default_value_t = 128)]
    tile: u32,
    /// Seed of the transform's signs.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Keep the tensors whose name matches bit-exact (* any characters, ? one); wins over --rate-for. May be repeated.
    #[arg(long, value_name = "PATTERN")]
    keep: Vec<String>,
    /// Another payload for the tensors whose name matches; the last match counts. May be repeated.
    #[arg(long, value_name = "PATTERN=R", value_parser = rate_for)]
    rate_for: Vec<Override>,
    /// Fail, before anything is written, if a tensor cannot be quantized as asked.
    #[arg(long)]
    strict: bool,
    /// The output head shares the embedding table, whatever config.json says.
    #[arg(long, conflicts_with = "no_tie")]
    tie: bool,
    /// The output head is a tensor of its own, whatever config.json says.
    #[arg(long)]
    no_tie: bool,
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// Work on the tensors I, I + N, I + 2 N … of the model only, so that N runs, on as many machines as there are, share the work;
    /// `gosset merge` joins what they write to the very bytes of one run.
    #[arg(long, value_name = "I/N", value_parser = |text: &str| Part::parse(text).map_err(|e| e.to_string()))]
    part: Option<Part>,
    /// Write files of at most this size, such as 4GB, where the output is larger: FILE-00001-of-00003.gosset …, and FILE as their index,
    /// which every command takes in the place of one file.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, conflicts_with = "part")]
    shard_size: Option<u64>,
    /// Keep every finished tensor in FILE.work, so that the same command goes on after an interruption; methods with calibration
    /// always do.
    #[arg(long)]
    resumable: bool,
    /// Memory that the run may take, such as 400MiB or 8GB: fewer tensors at the same time, input pages given back as tensors finish;
    /// refused before the start where the largest tensor does not fit.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_memory: Option<u64>,
    /// Throw away what an interrupted run left in FILE.work.
    #[arg(long)]
    restart: bool,
    /// Replace an existing output.
    #[arg(long, short = 'f')]
    force: bool,
    /// Show sizes and rates to expect for every tensor; write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// No progress, no report.
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    threads: ThreadArgs,
}

fn allocations() -> impl TypedValueParser<Value = Allocation> {
    let values = Allocation::ALL.map(|a| {
        PossibleValue::new(a.name()).help(match a {
            Allocation::EqualSlope => "the relative error of every tensor counts the same, so small ones get more bits",
            _ => "it counts as often as the tensor has weights, so all get the same rate",
        })
    });
    PossibleValuesParser::new(values)
        .try_map(|name| Allocation::from_name(&name).ok_or_else(|| format!("unknown allocation {name}")))
}

fn rate_for(text: &str) -> Result<Override, String> {
    match Override::parse(text) {
        Ok(o) if matches!(o.action, OverrideAction::Rate(_)) => Ok(o),
        _ => Err("expected PATTERN=R, such as *.down_proj.weight=4".to_owned()),
    }
}

impl QuantizeArgs {
    fn options(&self) -> Result<QuantizeOptions> {
        let keep = self.keep.iter().map(|p| Override { pattern: p.clone(), action: OverrideAction::Keep });
        let target = match (self.target_bpw, self.target_size, self.rate) {
            (Some(bpw), _, _) => QuantizeTarget::AllInBpw(bpw),
            (_, Some(bytes), _) => QuantizeTarget::FileBytes(bytes),
            (_, _, rate) => QuantizeTarget::PayloadBps(rate.unwrap_or_default()),
        };
        let mut options = QuantizeOptions::with_target(&self.codec, target);
        options.allocation = self.allocation;
        options.weights = self.weights.as_deref().map(weights::read).transpose()?.unwrap_or_default();
        options.tile = self.tile;
        options.seed = self.seed;
        options.embeddings = self.embeddings;
        // The last override that matches counts.
        options.overrides = self.rate_for.iter().cloned().chain(keep).collect();
        options.strict = self.strict;
        options.tie = match (self.tie, self.no_tie) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        Ok(options)
    }
}

/// Runs the command.
pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
    args.threads.apply()?;
    let source = Input::open_source(&args.model)?;
    gosset_runtime::check_shapes(source.as_ref())?;
    let mut options = args.options()?;
    let mut calibration = args.calibration.open(&options.codec, source.as_ref())?;
    options.calibration = calibration.as_ref().map(Activations::record);
    let mut plan = gosset_quantize::plan(source.as_ref(), &options)?;
    if plan.kind == ContainerKind::Model && source.blob("tokenizer.json").is_none() {
        plan.warnings
            .push("the model has no tokenizer.json; text needs one, so the container will not generate".to_owned());
    }
    if let Some(part) = args.part {
        plan = plan.part(part, source.as_ref())?;
    }
    if let Some(max) = args.max_memory {
        memory::limit(&mut plan, source.as_ref(), calibration.as_ref(), max)?;
    }
    let out = match &args.output {
        Some(out) if !args.dry_run => out,
        _ => return dry_run(args, source.as_ref(), &plan, calibration.as_ref()),
    };
    let estimate = plan.estimate();
    let n_quantized = if calibration.is_some() { estimate.n_quantized } else { estimate.n_params };
    let reporter = Reporter {
        opening: Mutex::new((!args.quiet).then(|| opening(source.as_ref(), &plan, calibration.as_ref()))),
        progress: Arc::new(Progress::new(args.quiet, "quantizing", n_quantized)),
        quiet: args.quiet,
        weights_done: Arc::new(AtomicU64::new(0)),
    };
    if let Some(calibration) = &mut calibration {
        plan.warnings.extend(calibration.warnings());
        calibrate::watch(calibration, Arc::clone(&reporter.progress), Arc::clone(&reporter.weights_done));
    }
    let run_options = RunOptions {
        overwrite: args.force,
        restart: args.restart,
        resumable: args.resumable,
        release_input: args.max_memory.is_some(),
    };
    let activations = calibration.as_mut().map(|c| c as &mut dyn Activations);
    let watch = interrupt::watch_slowly();
    let mut report = gosset_quantize::run(&plan, source.as_ref(), activations, out, &run_options, &reporter)?;
    drop(watch);
    let shards = args.shard_size.map_or(Ok(Vec::new()), |bytes| gosset_container::split(out, bytes))?;
    // What was odd about activations is known by now.
    let odd = calibration.iter().flat_map(|c| c.warnings()).filter(|w| !plan.warnings.contains(w));
    report.warnings.extend(odd);
    reporter.progress.finish();
    if args.json {
        return output::json(&report);
    }
    if args.quiet {
        report.warnings.iter().for_each(|warning| output::note(&format!("warning: {warning}")));
    } else {
        let mut stdout = output::stdout();
        print_report(&mut stdout, &out.display().to_string(), &report)?;
        if !shards.is_empty() {
            let (n, path) = (shards.len(), printable(&out.display().to_string()));
            writeln!(stdout, "in {n} shards beside it; {path} is their index")?;
        }
        stdout.flush()?;
    }
    Ok(())
}

/// What is about to be done, and what it will take.
fn opening(source: &dyn ModelSource, plan: &Plan, calibration: Option<&Calibration<'_>>) -> String {
    let (estimate, info) = (plan.estimate(), source.info());
    let mut text = format!(
        "{} ({}, {} tensors, {}): expecting about {}, {:.2} bits per parameter",
        info.name,
        info.architecture.as_deref().unwrap_or(&info.kind),
        source.tensors().len(),
        output::bytes(info.total_bytes),
        output::bytes(estimate.file_bytes),
        estimate.file_bps,
    );
    text += &format!(" in at most {} of memory", output::bytes(peak_bytes(source, plan, calibration)));
    match calibration {
        None => text += &plan.expected_seconds().ok().flatten().map_or_else(String::new, expected_time),
        Some(calibration) => text += &format!("; calibrating on {}", record_line(&calibration.record())),
    }
    text
}

/// What to say of the seconds that a run is expected to take.
fn expected_time(seconds: f64) -> String {
    match seconds.ceil() as u64 {
        s @ ..120 => format!(" and about {s} s"),
        s @ ..7200 => format!(" and about {} min", s.div_ceil(60)),
        s => format!(" and about {:.1} h", s as f64 / 3600.0),
    }
}

/// Shows events as progress; asks the run to stop after Ctrl-C.
struct Reporter {
    /// Said before the first event, when nothing that is wrong with the command line can stop the run any more.
    opening: Mutex<Option<String>>,
    progress: Arc<Progress>,
    quiet: bool,
    /// Weights that are finished.
    weights_done: Arc<AtomicU64>,
}

impl Observer for Reporter {
    fn event(&self, event: &Event<'_>) {
        if let Some(opening) = self.opening.lock().unwrap_or_else(PoisonError::into_inner).take() {
            output::note(&opening);
        }
        match event {
            Event::Scanning { tensor, index, total } => self.progress.at("scanning", tensor, *index, *total, 0),
            Event::Resumed { done, total } if !self.quiet => {
                output::note(&format!("going on from an interrupted run: {done} of {total} tensors are finished"));
            }
            Event::Tuning { block } if !self.quiet => output::note(&format!("tuning {}", printable(block))),
            Event::Finished { tensor, index, total, weights_done, .. } => {
                self.weights_done.store(*weights_done, Ordering::Relaxed);
                self.progress.at("quantizing", tensor, *index, *total, *weights_done);
            }
            _ => {}
        }
    }

    fn cancelled(&self) -> bool {
        interrupt::requested()
    }
}

/// What happens to a tensor: `quantize`, `keep` or `skip`, with codec or reason.
fn describe(item: &PlanItem) -> (&'static str, String) {
    match &item.action {
        Action::Quantize { method, target_bps } => {
            // A chosen rate has as many digits as there are; three say enough.
            ("quantize", format!("{}@{}", method.name(), (target_bps * 1e3).round() / 1e3))
        }
        Action::Keep { reason, fallback: false } => ("keep", reason.clone()),
        Action::Keep { reason, .. } => ("keep", format!("fallback: {reason}")),
        Action::Skip { reason } => ("skip", reason.clone()),
    }
}

/// Expected bits per weight of a tensor in the file; `None` without weights or bytes.
fn expected_bps(item: &PlanItem) -> Option<f64> {
    let n = item.tensor.n_weights();
    (n > 0 && item.estimated_bytes > 0).then(|| item.estimated_bytes as f64 * 8.0 / n as f64)
}

fn dry_run(
    args: &QuantizeArgs,
    source: &dyn ModelSource,
    plan: &Plan,
    calibration: Option<&Calibration<'_>>,
) -> Result<()> {
    let estimate = plan.estimate();
    if args.json {
        let tensors: Vec<_> = plan
            .items
            .iter()
            .map(|item| {
                let (action, detail) = describe(item);
                json!({
                    "name": item.tensor.name, "shape": item.tensor.shape, "dtype": item.tensor.dtype,
                    "n_weights": item.tensor.n_weights(), "source_bytes": item.tensor.n_bytes,
                    "action": action, "detail": detail, "expected_bytes": item.estimated_bytes,
                    "expected_bps": expected_bps(item), "expected_snr_db": item.estimated_snr_db,
                })
            })
            .collect();
        return output::json(&json!({
            "model": source.info().name, "architecture": source.info().architecture,
            "source_bytes": source.info().total_bytes, "policy": plan.policy, "options": plan.options,
            "tie": plan.tie, "warnings": plan.warnings,
            "expected": {
                "file_bytes": estimate.file_bytes, "n_params": estimate.n_params, "n_quantized": estimate.n_quantized,
                "payload_bps": estimate.payload_bps, "all_in_bps": estimate.all_in_bps, "file_bps": estimate.file_bps,
                "largest_tensor_bytes": estimate.largest_tensor_bytes,
                "peak_memory_bytes": peak_bytes(source, plan, calibration),
            },
            "tensors": tensors,
        }));
    }
    let mut out = output::stdout();
    let heading = ["tensor", "shape", "dtype", "action", "how", "bytes", "expected", "bits/weight", "SNR dB"];
    let mut table = Table::new(5, &heading);
    for item in &plan.items {
        let (action, detail) = describe(item);
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        table.row([
            item.tensor.name.clone(),
            output::shape(&item.tensor.shape),
            item.tensor.dtype.clone(),
            action.to_owned(),
            detail,
            item.tensor.n_bytes.to_string(),
            item.estimated_bytes.to_string(),
            or_dash(expected_bps(item).map(|bps| format!("{bps:.3}"))),
            or_dash(item.estimated_snr_db.map(|snr| format!("{snr:.1}"))),
        ]);
    }
    table.write(&mut out)?;
    writeln!(
        out,
        "\nexpected: {} ({} now), payload {:.4} and all-in {:.4} bits per quantized weight, true rate {:.4} bits per parameter",
        output::bytes(estimate.file_bytes),
        output::bytes(source.info().total_bytes),
        estimate.payload_bps,
        estimate.all_in_bps,
        estimate.file_bps
    )?;
    writeln!(out, "policy: {}", plan.policy)?;
    if let Some(tie) = plan.tie {
        writeln!(out, "output head: {}", tie.describe())?;
    }
    if let Some(calibration) = calibration {
        writeln!(out, "calibration: {}", printable(&record_line(&calibration.record())))?;
    }
    writeln!(out, "memory: at most {}", output::bytes(peak_bytes(source, plan, calibration)))?;
    for warning in &plan.warnings {
        writeln!(out, "warning: {}", printable(warning))?;
    }
    out.flush()?;
    Ok(())
}
