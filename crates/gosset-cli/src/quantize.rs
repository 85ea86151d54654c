//! `gosset quantize`: a checkpoint becomes a container.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use gosset_container::ContainerKind;
use gosset_quantize::{
    Action, Allocation, Event, ModelSource, Observer, Override, OverrideAction, Plan, PlanItem, QuantizeOptions,
    QuantizeTarget, Report, RunOptions,
};
use serde_json::json;

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
  gosset quantize model.gguf -o m.gosset --rate 3 --rate-for '*.down_proj.weight=4'")]
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
    /// How weights become bits.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_CODEC, value_parser = codec_names())]
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

fn codec_names() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(
        gosset_codec::codecs()
            .iter()
            .map(|c| PossibleValue::new(c.name).help(format!("{} ({} bits per weight)", c.about, output::rates_of(c)))),
    )
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
    let mut plan = gosset_quantize::plan(source.as_ref(), &args.options()?)?;
    if plan.kind == ContainerKind::Model && source.blob("tokenizer.json").is_none() {
        plan.warnings
            .push("the model has no tokenizer.json; text needs one, so the container will not generate".to_owned());
    }
    let out = match &args.output {
        Some(out) if !args.dry_run => out,
        _ => return dry_run(args, source.as_ref(), &plan),
    };
    let estimate = plan.estimate();
    let info = source.info();
    let opening = format!(
        "{} ({}, {} tensors, {}): expecting about {}, {:.2} bits per parameter; the largest tensor takes {} of memory",
        info.name,
        info.architecture.as_deref().unwrap_or(&info.kind),
        source.tensors().len(),
        output::bytes(info.total_bytes),
        output::bytes(estimate.file_bytes),
        estimate.file_bps,
        output::bytes(estimate.largest_tensor_bytes),
    );
    let reporter = Reporter {
        opening: Mutex::new((!args.quiet).then_some(opening)),
        progress: Progress::new(args.quiet, "quantizing", estimate.n_params),
    };
    let watch = interrupt::watch_slowly();
    let report = gosset_quantize::run(
        &plan,
        source.as_ref(),
        None,
        out,
        &RunOptions { overwrite: args.force, ..RunOptions::default() },
        &reporter,
    )?;
    drop(watch);
    reporter.progress.finish();
    if args.json {
        return output::json(&report);
    }
    if args.quiet {
        report.warnings.iter().for_each(|warning| output::note(&format!("warning: {warning}")));
    } else {
        let mut stdout = output::stdout();
        print_report(&mut stdout, &out.display().to_string(), &report)?;
        stdout.flush()?;
    }
    Ok(())
}

/// Shows events as progress; asks the run to stop after Ctrl-C.
struct Reporter {
    /// Said before the first event, when nothing that is wrong with the command line can stop the run any more.
    opening: Mutex<Option<String>>,
    progress: Progress,
}

impl Observer for Reporter {
    fn event(&self, event: &Event<'_>) {
        if let Some(opening) = self.opening.lock().unwrap_or_else(PoisonError::into_inner).take() {
            output::note(&opening);
        }
        match event {
            Event::Scanning { tensor, index, total } => self.progress.at("scanning", tensor, *index, *total, 0),
            Event::Finished { tensor, index, total, weights_done, .. } => {
                self.progress.at("quantizing", tensor, *index, *total, *weights_done);
            }
            _ => {}
        }
    }

    fn cancelled(&self) -> bool {
        interrupt::requested()
    }
}

fn print_report(out: &mut impl Write, path: &str, report: &Report) -> Result<()> {
    let worst =
        report.tensors.iter().filter_map(|t| Some((t.snr_db?, t.name.as_str()))).min_by(|a, b| a.0.total_cmp(&b.0));
    let mut table = Table::new(2, &["written", path]);
    let share = 100.0 * report.file_bytes as f64 / (report.source_bytes as f64).max(1.0);
    table.row([
        "size",
        &format!(
            "{} bytes ({}), {share:.1} % of the source's {}",
            report.file_bytes,
            output::bytes(report.file_bytes),
            output::bytes(report.source_bytes)
        ),
    ]);
    table.row(["asked", &asked(report)]);
    table.row([
        "quantized",
        &format!(
            "payload {:.4}, stream {:.4}, all-in {:.4} bits per quantized weight ({} of {} weights)",
            report.payload_bps,
            report.stream_bps,
            report.all_in_bps,
            output::count(report.n_quantized),
            output::count(report.n_params)
        ),
    ]);
    table.row(["true rate", &format!("{:.4} bits per parameter, all bytes over all parameters", report.file_bps)]);
    if let Some(snr) = report.snr_db {
        table.row(["SNR", &format!("{snr:.2} dB over all quantized weights")]);
    }
    if let Some((snr, name)) = worst {
        table.row(["worst SNR", &format!("{snr:.2} dB in {name}")]);
    }
    let (kept, skipped) = (count(report, "kept"), count(report, "skipped"));
    table.row(["kept", &format!("{kept} tensors bit-exact, {skipped} left out")]);
    if let Some(tie) = report.tie {
        table.row(["output head", tie.describe()]);
    }
    table.write(out)?;
    if !matches!(report.target, QuantizeTarget::PayloadBps(_)) {
        writeln!(out)?;
        rates_table(report).write(out)?;
    }
    for group in &report.fallbacks {
        let (n, weights) = (group.n_tensors, output::count(group.n_weights));
        let names = printable(&some_names(&group.names));
        writeln!(out, "fallback: {n} tensors ({weights} weights) stay exact: {}: {names}", printable(&group.reason))?;
    }
    for warning in &report.warnings {
        writeln!(out, "warning: {}", printable(warning))?;
    }
    Ok(())
}

/// What was asked for, beside what came out where the two are of one kind.
fn asked(report: &Report) -> String {
    let codec = &report.codec;
    let how = report.allocation.name();
    match report.target {
        QuantizeTarget::AllInBpw(bpw) => {
            format!("{codec} at {bpw} bits per weight, all in ({how}); reached {:.4}", report.all_in_bps)
        }
        QuantizeTarget::FileBytes(bytes) => {
            format!(
                "{codec} in {bytes} bytes ({how}); reached {}, {} left",
                report.file_bytes,
                bytes - report.file_bytes
            )
        }
        target => format!("{codec} at {target} bits per weight (payload)"),
    }
}

/// What each quantized tensor was asked for and got.
fn rates_table(report: &Report) -> Table {
    let mut table = Table::new(1, &["tensor", "weights", "counts", "asked", "payload", "all-in", "error", "SNR dB"]);
    for t in report.tensors.iter().filter(|t| t.target_bps.is_some()) {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        table.row([
            t.name.clone(),
            t.n_weights.to_string(),
            t.weight.unwrap_or(1.0).to_string(),
            number(t.target_bps, 3),
            number(t.payload_bps, 3),
            number(t.all_in_bps, 3),
            number(t.relative_error, 5),
            number(t.snr_db, 2),
        ]);
    }
    table
}

fn count(report: &Report, action: &str) -> usize {
    report.tensors.iter().filter(|t| t.action == action).count()
}

/// The first names of a list and how many more there are.
fn some_names(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
    format!("{}{more}", names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", "))
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

fn dry_run(args: &QuantizeArgs, source: &dyn ModelSource, plan: &Plan) -> Result<()> {
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
    for warning in &plan.warnings {
        writeln!(out, "warning: {}", printable(warning))?;
    }
    out.flush()?;
    Ok(())
}
