//! `gosset recommend`: codec and rate for a model in a given amount of memory, from the measured table.

mod measured;
mod needs;
mod shapes;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use gosset_codec::{CodecInfo, codecs};
use gosset_container::Container;
use gosset_quantize::{Action, ModelSource, Plan, QuantizeError, QuantizeOptions, QuantizeTarget, plan};
use gosset_runtime::ModelConfig;
use serde::Serialize;
use serde_json::json;

use self::measured::{Measured, Quality};
use self::needs::{Needs, context_of, kv_formula};
use self::shapes::Shapes;
use crate::exit::{Exit, error, printable};
use crate::model::Input;
use crate::output::{self, Table};
use crate::size::parse_bytes;

/// More than this is never recommended: at 6 bits the error of the weights no longer shows in perplexity.
const MAX_PAYLOAD_BPS: f64 = 6.0;

/// A codec that decodes at least [`MUCH_FASTER`] times as fast is worth this much quality: a twentieth of a bit.
const WORTH_DB: f64 = 0.3;
/// See [`WORTH_DB`].
const MUCH_FASTER: f64 = 1.5;

/// Choose codec and rate for the memory at hand.
///
/// Reads configuration and shapes, no weights. Every codec is planned for the memory that keys, values and activations leave, and
/// judged by rates, distortions and speeds that were measured. The first command printed makes the file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gosset recommend model.gguf --memory 8GB
  gosset recommend ./Llama-3.2-1B --memory 900MB --context 4096
  gosset recommend smollm2 --memory 200MB --context 2048 --json")]
pub(crate) struct RecommendArgs {
    /// A checkpoint, a known name, or a container.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Memory that the running model may take, such as 8GB or 512MiB.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory: u64,
    /// Positions of prompt and answer together [default: the model's longest].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A codec with the highest rate that fits.
#[derive(Debug, Clone, Serialize)]
struct Candidate {
    codec: &'static str,
    /// What to pass to `gosset quantize`.
    options: Vec<String>,
    payload_bps: f64,
    all_in_bps: f64,
    file_bytes: u64,
    snr_db: f64,
    gap_bits: f64,
    decode_mws: f64,
    /// By which factor the perplexity of the measured model grows at that rate.
    ppl_factor: Option<f64>,
    #[serde(skip)]
    plan: Plan,
}

/// A codec that was not chosen.
#[derive(Debug, Clone, Serialize)]
struct Rejected {
    codec: &'static str,
    why: String,
    /// What it would do, if it fits.
    candidate: Option<Candidate>,
}

/// What a codec can do.
enum Outcome {
    Fits(Box<Candidate>),
    /// Not even at its lowest rate, which takes that many bytes.
    TooLarge {
        floor: u64,
    },
    /// No row of the table is about it.
    NotMeasured,
}

/// Runs the command.
pub(crate) fn run(args: &RecommendArgs) -> Result<()> {
    let input = Input::open(&args.model)?;
    let shapes;
    let (source, container): (&dyn ModelSource, Option<&Container>) = match &input {
        Input::Source(source) => (source.as_ref(), None),
        Input::Container(container) => {
            shapes = Shapes::of(container)?;
            (&shapes, Some(container))
        }
    };
    let Some(config) = source.blob("config.json") else {
        let message = "no config.json: keys and values of a model without configuration cannot be counted";
        return Err(error(Exit::MissingPart, format!("{}: {message}", args.model.display())));
    };
    let config = ModelConfig::from_json(config)?;
    let context = args.context.map_or(config.max_positions, |n| n as usize);
    if context > config.max_positions {
        let longest = config.max_positions;
        return Err(error(Exit::Usage, format!("--context {context}: the model takes {longest} positions at most")));
    }
    let measured = Measured::read()?;
    let needs = Needs::new(&config, context, rayon::current_num_threads());
    let room = args.memory.saturating_sub(needs.total());

    let mut candidates: Vec<Candidate> = Vec::new();
    let mut rejected = Vec::new();
    let mut smallest: Option<(&'static str, u64)> = None;
    for codec in codecs() {
        let mut reject = |why: String| rejected.push(Rejected { codec: codec.name, why, candidate: None });
        match outcome(codec, source, room, &measured)? {
            Outcome::Fits(candidate) => candidates.push(*candidate),
            Outcome::NotMeasured => reject("not in the measured table".to_owned()),
            Outcome::TooLarge { floor } => {
                if smallest.is_none_or(|(_, bytes)| floor < bytes) {
                    smallest = Some((codec.name, floor));
                }
                reject(format!("does not fit: at least {}", output::bytes(floor)));
            }
        }
    }
    let Some(best) = choose(&candidates) else {
        return Err(nothing_fits(args, &config, context, &needs, smallest));
    };
    let best = candidates.swap_remove(best);
    for other in candidates {
        rejected.push(Rejected { codec: other.codec, why: why_not(&other, &best), candidate: Some(other) });
    }
    // The best of the others first.
    rejected.sort_by(|a, b| snr(b).total_cmp(&snr(a)));
    let picture = Picture { args, config: &config, context, needs, source, container, measured: &measured };
    if args.json { picture.json(&best, &rejected) } else { picture.print(&best, &rejected) }
}

fn snr(r: &Rejected) -> f64 {
    r.candidate.as_ref().map_or(f64::NEG_INFINITY, |c| c.snr_db)
}

/// The index of the best: the least distortion, unless one that hardly loses decodes much faster.
fn choose(candidates: &[Candidate]) -> Option<usize> {
    let best = (0..candidates.len()).max_by(|&a, &b| {
        // The first of equals wins.
        candidates[a].snr_db.total_cmp(&candidates[b].snr_db).then(b.cmp(&a))
    })?;
    let top = &candidates[best];
    let good_enough = |c: &Candidate| c.snr_db >= top.snr_db - WORTH_DB && c.decode_mws >= MUCH_FASTER * top.decode_mws;
    let faster = (0..candidates.len()).filter(|&i| good_enough(&candidates[i]));
    Some(faster.max_by(|&a, &b| candidates[a].decode_mws.total_cmp(&candidates[b].decode_mws)).unwrap_or(best))
}

fn why_not(other: &Candidate, best: &Candidate) -> String {
    let worse = best.snr_db - other.snr_db;
    if worse >= 0.005 {
        format!("{worse:.2} dB worse in no fewer bytes")
    } else if other.decode_mws < best.decode_mws {
        let (slow, fast) = (other.decode_mws, best.decode_mws);
        format!("{:.2} dB better, but decodes {slow:.0} instead of {fast:.0} M weights/s per core", -worse)
    } else {
        "equal; the first in the list is taken".to_owned()
    }
}

/// The highest rate of a codec that fits into `room` bytes.
fn outcome(codec: &'static CodecInfo, source: &dyn ModelSource, room: u64, table: &Measured) -> Result<Outcome> {
    let highest = match codec.rates {
        Some(rates) => rates.iter().copied().rfind(|&r| r <= MAX_PAYLOAD_BPS),
        None => Some(codec.max_bps.min(MAX_PAYLOAD_BPS)).filter(|&r| r >= codec.min_bps),
    };
    let Some(highest) = highest.filter(|&rate| table.quality(codec.name, rate).is_some()) else {
        return Ok(Outcome::NotMeasured);
    };
    let full = plan(source, &QuantizeOptions::new(codec.name, highest))?;
    let (plan, options) = if full.estimate().file_bytes <= room {
        (full, vec!["--rate".to_owned(), highest.to_string()])
    } else {
        let options = QuantizeOptions::with_target(codec.name, QuantizeTarget::FileBytes(room));
        match plan(source, &options) {
            Ok(plan) => (plan, vec!["--target-size".to_owned(), room.to_string()]),
            Err(QuantizeError::TargetRange { floor, .. }) => return Ok(Outcome::TooLarge { floor: floor as u64 }),
            Err(e) => return Err(e.into()),
        }
    };
    let Some(quality) = quality(&plan, codec.name, table) else { return Ok(Outcome::NotMeasured) };
    let estimate = plan.estimate();
    Ok(Outcome::Fits(Box::new(Candidate {
        codec: codec.name,
        options,
        payload_bps: estimate.payload_bps,
        all_in_bps: estimate.all_in_bps,
        file_bytes: estimate.file_bytes,
        snr_db: quality.snr_db,
        gap_bits: quality.gap_bits,
        decode_mws: quality.decode_mws,
        ppl_factor: table.ppl_factor(codec.name, estimate.all_in_bps),
        plan,
    })))
}

/// Relative errors of all quantized tensors, averaged over weights; distance to the bound and speed likewise.
fn quality(plan: &Plan, codec: &str, table: &Measured) -> Option<Quality> {
    let (mut n, mut error, mut gap, mut time) = (0.0, 0.0, 0.0, 0.0);
    for item in &plan.items {
        let Action::Quantize { target_bps, .. } = &item.action else { continue };
        let q = table.quality(codec, *target_bps)?;
        let weights = item.tensor.n_weights() as f64;
        n += weights;
        error += weights * 10f64.powf(-q.snr_db / 10.0);
        gap += weights * q.gap_bits;
        time += weights / q.decode_mws;
    }
    (n > 0.0).then(|| Quality { snr_db: -10.0 * (error / n).log10(), gap_bits: gap / n, decode_mws: n / time })
}

fn nothing_fits(
    args: &RecommendArgs,
    config: &ModelConfig,
    context: usize,
    needs: &Needs,
    smallest: Option<(&'static str, u64)>,
) -> anyhow::Error {
    let Some((codec, weights)) = smallest else {
        return error(Exit::Failure, "no codec is in the measured table");
    };
    let total = needs.total() + weights;
    let fixed = total - needs.kv_bytes - needs.kv_growth_bytes;
    let shorter = match context_of(config, args.memory.saturating_sub(fixed)) {
        0 => "no context is short enough".to_owned(),
        n => format!("a context of {} fits", n.min(context)),
    };
    error(
        Exit::Usage,
        format!(
            "{}: nothing fits into {}: the least is {} ({} of weights with {codec}, {} of keys and values at context {context}, {} \
             besides), {} more than that; {shorter}",
            args.model.display(),
            output::bytes(args.memory),
            output::bytes(total),
            output::bytes(weights),
            output::bytes(needs.kv_bytes + needs.kv_growth_bytes),
            output::bytes(needs.scratch_bytes + needs.program_bytes),
            output::bytes(total - args.memory),
        ),
    )
}

/// Everything that is shown around a recommendation.
struct Picture<'a> {
    args: &'a RecommendArgs,
    config: &'a ModelConfig,
    context: usize,
    needs: Needs,
    source: &'a dyn ModelSource,
    container: Option<&'a Container>,
    measured: &'a Measured,
}

/// Bytes of a plan by what they are.
#[derive(Debug, Clone, Copy, Serialize)]
struct Weights {
    quantized_bytes: u64,
    kept_bytes: u64,
    /// Side files and the header.
    other_bytes: u64,
}

impl Picture<'_> {
    fn weights(&self, best: &Candidate) -> Weights {
        let sum = |quantized: bool| {
            let is_counted = |action: &Action| matches!(action, Action::Quantize { .. }) == quantized;
            best.plan.items.iter().filter(|i| is_counted(&i.action)).map(|i| i.estimated_bytes).sum::<u64>()
        };
        let (quantized_bytes, kept_bytes) = (sum(true), sum(false));
        Weights {
            quantized_bytes,
            kept_bytes,
            other_bytes: best.file_bytes.saturating_sub(quantized_bytes + kept_bytes),
        }
    }

    /// Bytes left of the memory.
    fn left(&self, best: &Candidate) -> u64 {
        self.args.memory.saturating_sub(self.needs.total() + best.file_bytes)
    }

    /// The command that makes the file.
    fn command(&self, best: &Candidate) -> String {
        let path = self.args.model.display().to_string();
        let model = if self.container.is_some() { "ORIGINAL".to_owned() } else { quoted(&path) };
        let stem = self.args.model.file_stem().map_or_else(|| "model".to_owned(), |s| s.to_string_lossy().into_owned());
        let out = quoted(&format!("{stem}-{}.gosset", best.codec));
        format!("gosset quantize {model} -o {out} --codec {} {}", best.codec, best.options.join(" "))
    }

    fn json(&self, best: &Candidate, rejected: &[Rejected]) -> Result<()> {
        output::json(&json!({
            "model": self.source.info().name,
            "architecture": self.source.info().architecture,
            "memory_bytes": self.args.memory,
            "context": self.context,
            "n_params": best.plan.estimate().n_params,
            "n_quantized": best.plan.estimate().n_quantized,
            "recommended": best,
            "command": self.command(best),
            "weights": self.weights(best),
            "needs": self.needs,
            "kv_formula": kv_formula(self.config, self.context),
            "left_bytes": self.left(best),
            "container_bytes": self.container.map(Container::file_bytes),
            "ppl_model": self.measured.ppl_model,
            "measured_by": self.measured.rd_command,
            "measured_on": self.measured.cpu,
            "rejected": rejected,
        }))
    }

    fn print(&self, best: &Candidate, rejected: &[Rejected]) -> Result<()> {
        let mut out = output::stdout();
        let info = self.source.info();
        let estimate = best.plan.estimate();
        let Weights { quantized_bytes, kept_bytes, other_bytes } = self.weights(best);
        let bytes = output::bytes;
        writeln!(
            out,
            "{}: {} parameters, {} of them in linears that are quantized",
            printable(&info.name),
            output::count(estimate.n_params),
            output::count(estimate.n_quantized)
        )?;
        writeln!(out)?;
        let mut table = Table::new(1, &["memory", "bytes", "what"]);
        let mut line = |name: &str, n: u64, what: &str| table.row([name, &bytes(n), what]);
        line("quantized", quantized_bytes, &format!("{} at {:.3} bits per weight", best.codec, best.all_in_bps));
        line("kept tensors", kept_bytes, "embeddings, output head, norms, biases as they are");
        line("side files", other_bytes, "tokenizer, configuration, header and checksums");
        line("KV cache", self.needs.kv_bytes, &kv_formula(self.config, self.context));
        line("its growth", self.needs.kv_growth_bytes, "the cache grows by doubling");
        line("activations", self.needs.scratch_bytes, "hidden states, attention, logits, decoded rows");
        line("program", self.needs.program_bytes, "with tokenizer and their caches, at most");
        line("left", self.left(best), &format!("of {}", bytes(self.args.memory)));
        table.write(&mut out)?;
        writeln!(out)?;

        writeln!(
            out,
            "recommended: {} at {:.3} bits per weight (payload), {} in all",
            best.codec,
            best.payload_bps,
            bytes(best.file_bytes)
        )?;
        writeln!(
            out,
            "quality: SNR {:.2} dB, {:.3} bits above the rate-distortion bound; decodes {:.0} M weights/s per core ({})",
            best.snr_db, best.gap_bits, best.decode_mws, self.measured.cpu
        )?;
        if let Some(factor) = best.ppl_factor {
            let percent = (factor - 1.0) * 100.0;
            writeln!(
                out,
                "perplexity: {} grew by {percent:.1} % at this rate; larger models lose less",
                self.measured.ppl_model
            )?;
        }
        if let Some(container) = self.container {
            let now = container.file_bytes();
            let fits = if now <= self.args.memory.saturating_sub(self.needs.total()) { "fits" } else { "does not fit" };
            writeln!(
                out,
                "the container as it is takes {} and {fits}; another rate needs the original checkpoint",
                bytes(now)
            )?;
        }
        writeln!(out, "run: {}", self.command(best))?;
        writeln!(out)?;
        let mut table = Table::new(1, &["rejected", "payload", "all-in", "file", "SNR dB", "M weights/s", "why"]);
        for r in rejected {
            let of = |f: fn(&Candidate) -> String| r.candidate.as_ref().map_or_else(|| "-".to_owned(), f);
            table.row([
                r.codec.to_owned(),
                of(|c| format!("{:.3}", c.payload_bps)),
                of(|c| format!("{:.3}", c.all_in_bps)),
                of(|c| output::bytes(c.file_bytes)),
                of(|c| format!("{:.2}", c.snr_db)),
                of(|c| format!("{:.0}", c.decode_mws)),
                r.why.clone(),
            ]);
        }
        table.write(&mut out)?;
        out.flush()?;
        Ok(())
    }
}

/// A word for a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/+=:@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("a/b-1.gguf"), "a/b-1.gguf");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
