//! The command line of `ppl`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use gosset_eval::{BosPolicy, PRESETS, PplProtocol, Tail};
use gosset_runtime::DeviceChoice;

use super::calibration::CalibrationArgs;
use super::kv::{self, KvTarget, kv_targets};
use super::passkey::PasskeyArgs;
use super::target::{ABLATIONS, AskedRates, BEST_CODEC, Target, WHY_BEST, describe, targets};
use super::tasks::TaskArgs;

/// Windows that are scored unless the command line says otherwise.
const DEFAULT_WINDOWS: usize = 12;

/// Perplexity of a model and of its compressed forms, each read back from the file it was written to.
#[derive(Debug, Parser)]
#[command(name = "ppl", version, after_help = after_help())]
pub struct Args {
    /// A GGUF file, a Hugging Face folder, or a hub name `org/name` (in builds with the feature `hub`).
    #[arg(long, value_name = "PATH", required_unless_present = "container")]
    pub model: Option<String>,
    /// Evaluate this container alone; its source model is not needed.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub container: Option<PathBuf>,
    /// The text, UTF-8.
    #[arg(long, value_name = "PATH")]
    pub text: PathBuf,
    /// How the text becomes a perplexity [default: full-2048, or the model's context if that is shorter].
    #[arg(long, value_name = "NAME")]
    pub protocol: Option<String>,
    /// Tokens from one window to the next [default: the window].
    #[arg(long, value_name = "TOKENS")]
    pub stride: Option<usize>,
    /// What happens to the tokens after the last full window.
    #[arg(long, value_enum, default_value_t = TailArg::Drop)]
    pub tail: TailArg,
    /// Where a BOS stands; `auto` follows the protocol if the tokenizer adds a BOS by itself, else none.
    #[arg(long, value_enum, default_value_t = BosArg::Auto)]
    pub bos: BosArg,
    /// Score the first N windows.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_WINDOWS, conflicts_with = "full")]
    pub windows: usize,
    /// Score every window.
    #[arg(long)]
    pub full: bool,
    /// Payload rates in bits per weight [default: 4,3,2, or none if --target-bpw is given].
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "container")]
    pub rates: Option<Vec<f64>>,
    /// All-in rates in bits per weight: every byte of the quantized tensors counts, and bits are shared out among tensors.
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "container")]
    pub target_bpw: Option<Vec<f64>>,
    /// Codecs and baselines; `e8-rice@3.5` fixes the payload of one, `e8-rice@3.5bpw` all of its bits, `none` asks for the unquantized
    /// model alone.
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "container")]
    pub codecs: Option<Vec<String>>,
    /// Score every model with its cache compressed too, for instance `e8@2.25,window=256,sinks=64`; may be given several times. Without
    /// --codecs, --rates and --target-bpw the weights stay as they are.
    #[arg(long, value_name = "SPEC")]
    pub kv: Vec<String>,
    /// Tokens that go through a compressed cache at once. On the CPU the numbers do not depend on it but for rounding; on a GPU tokens see
    /// those of their chunk exact, and a page is read in code by the chunks after it [default: 256, on a GPU 64].
    #[arg(long, value_name = "TOKENS", requires = "kv", value_parser = positive)]
    pub kv_chunk: Option<usize>,
    /// Quantize embeddings and output head too, at this payload rate.
    #[arg(long, value_name = "RATE", conflicts_with = "container")]
    pub embeddings: Option<f64>,
    /// Tile of the randomized Hadamard transform.
    #[arg(long, value_name = "COLUMNS", default_value_t = 128, conflicts_with = "container")]
    pub tile: u32,
    /// Seed of its signs.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "container")]
    pub seed: u64,
    /// Where to compute: cpu, cuda, cuda:N, or auto, which takes the first GPU if it is usable (in builds with the feature `gpu`).
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    pub device: DeviceChoice,
    /// Threads to compute with [default: all].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Write the JSON to this file too, anew after every row: what is measured survives a run that does not end.
    #[arg(long, value_name = "FILE")]
    pub json_out: Option<PathBuf>,
    /// What is scored beside perplexity.
    #[command(flatten)]
    pub tasks: TaskArgs,
    /// Pass keys.
    #[command(flatten)]
    pub passkey: PasskeyArgs,
    /// What methods with error feedback are calibrated on.
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// Score UniSVQ at 2 bits, whole and with each of its parts left out or replaced, instead of codecs.
    #[arg(long, conflicts_with_all = ["container", "codecs", "rates", "target_bpw"])]
    pub ablations: bool,
    /// Keep the containers in this folder; files of the same name are replaced.
    #[arg(long, value_name = "DIR", conflicts_with = "container")]
    pub keep: Option<PathBuf>,
    /// Do not score the unquantized model.
    #[arg(long, conflicts_with = "container")]
    pub no_baseline: bool,
}

/// `--tail`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TailArg {
    /// They are left out.
    Drop,
    /// They form a last, shorter window.
    Keep,
}

/// `--bos`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BosArg {
    /// The protocol's policy if the tokenizer adds a BOS by itself, else none.
    Auto,
    /// Nowhere.
    None,
    /// In front of the text.
    Once,
    /// In front of the text and in place of each window's first token.
    EachWindow,
}

impl Args {
    /// The rows that `--codecs`, `--rates` and `--target-bpw` ask for, in order, and notes on what is left out; unknown codecs and
    /// unreachable rates are refused here.
    pub(super) fn targets(&self) -> Result<(Vec<Target>, Vec<String>)> {
        if self.ablations {
            let names: Vec<String> = ABLATIONS.iter().map(|name| format!("{name}@2")).collect();
            return targets(&names, AskedRates { payload: None, all_in: None });
        }
        let asked = AskedRates { payload: self.rates.as_deref(), all_in: self.target_bpw.as_deref() };
        match &self.codecs {
            Some(names) => targets(names, asked),
            None if self.weights_stay() => Ok(Default::default()),
            None => targets(&[BEST_CODEC.to_owned()], asked),
        }
    }

    /// Whether caches alone are asked for.
    fn weights_stay(&self) -> bool {
        let of_weights = self.codecs.is_some() || self.rates.is_some() || self.target_bpw.is_some() || self.ablations;
        !self.kv.is_empty() && !of_weights
    }

    /// The compressed caches that every model is scored with, in order.
    pub(super) fn kv_targets(&self) -> Result<Vec<KvTarget>> {
        let targets = kv_targets(&self.kv)?;
        if self.device != DeviceChoice::Cpu
            && let Some((target, gap)) = targets.iter().find_map(|target| Some((target.label(), target.device_gap()?)))
        {
            bail!("--kv {target} with --device {}: {gap}; expected --device cpu, or another cache", self.device);
        }
        Ok(targets)
    }

    /// Tokens that go through a compressed cache at once, of a model on a device or on the processor.
    pub(super) fn kv_chunk(&self, on_device: bool) -> usize {
        // A page of a device.
        self.kv_chunk.unwrap_or(if on_device { 64 } else { 256 })
    }

    /// Whether the rows are those of a run that names no codec.
    pub(super) fn default_codec(&self) -> bool {
        self.container.is_none() && !self.ablations && self.codecs.is_none() && !self.weights_stay()
    }

    /// Refuses what can be refused without a model: no windows, a protocol that contradicts itself.
    pub(super) fn check(&self) -> Result<()> {
        if !self.full && self.windows == 0 {
            bail!("--windows: expected at least 1, found 0");
        }
        self.protocol(usize::MAX, false).map(drop)
    }

    /// The protocol for a model with this context whose tokenizer adds a BOS by itself or not.
    pub(super) fn protocol(&self, max_positions: usize, bos_auto_added: bool) -> Result<PplProtocol> {
        let mut protocol = match &self.protocol {
            Some(name) => PplProtocol::parse(name)?,
            None => {
                let window = PplProtocol::default().window.min(max_positions);
                PplProtocol::parse(&format!("full-{window}"))?
            }
        };
        if protocol.window > max_positions {
            bail!(
                "protocol {}: windows of {} tokens, but the model's context is {max_positions}",
                protocol.name,
                protocol.window
            );
        }
        protocol.stride = self.stride.unwrap_or(protocol.window);
        protocol.tail = match self.tail {
            TailArg::Drop => Tail::Drop,
            TailArg::Keep => Tail::Keep,
        };
        protocol = match self.bos {
            BosArg::Auto => protocol.for_family(bos_auto_added),
            BosArg::None => PplProtocol { bos: BosPolicy::None, ..protocol },
            BosArg::Once => PplProtocol { bos: BosPolicy::Once, ..protocol },
            BosArg::EachWindow => PplProtocol { bos: BosPolicy::EachWindow, ..protocol },
        };
        protocol.check()?;
        Ok(protocol)
    }

    /// Number of windows to score; `None` for all.
    pub(super) fn window_limit(&self) -> Option<usize> {
        (!self.full).then_some(self.windows)
    }
}

/// The protocols and codecs, each with its line.
fn after_help() -> String {
    let mut text = "Protocols (any other window follows the same pattern):\n".to_owned();
    for preset in PRESETS {
        text += &format!("  {:14} {}\n", preset.name, preset.about);
    }
    text += &format!("\n{}\nWithout --codecs: {BEST_CODEC}, {WHY_BEST}.\n", describe());
    text += &format!("\n{}", kv::describe());
    text
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "expected a whole number above 0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn args(rest: &[&str]) -> Args {
        Args::try_parse_from(["ppl", "--model", "m", "--text", "t"].iter().chain(rest)).unwrap()
    }

    fn labels(rest: &[&str]) -> Vec<String> {
        args(rest).targets().unwrap().0.iter().map(Target::label).collect()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        assert!(Args::try_parse_from(["ppl", "--text", "t"]).is_err());
        assert!(Args::try_parse_from(["ppl", "--text", "t", "--container", "c", "--rates", "3"]).is_err());
        assert!(Args::try_parse_from(["ppl", "--text", "t", "--container", "c"]).is_ok());
    }

    #[test]
    fn the_cpu_computes_unless_told_otherwise() {
        assert_eq!(args(&[]).device, DeviceChoice::Cpu);
        assert_eq!(args(&["--device", "cuda:1"]).device, DeviceChoice::Cuda(1));
        assert!(Args::try_parse_from(["ppl", "--model", "m", "--text", "t", "--device", "gpu"]).is_err());
    }

    #[test]
    fn rows_are_codecs_times_rates_in_order() {
        assert_eq!(labels(&[]), [4, 3, 2].map(|rate| format!("{BEST_CODEC}@{rate}")));
        assert_eq!(
            labels(&["--codecs", "e8-rice,d4-rice@3.5", "--rates", "4,3"]),
            ["e8-rice@4", "e8-rice@3", "d4-rice@3.5"]
        );
        assert_eq!(labels(&["--codecs", "e8-rice@3,e8-rice", "--rates", "3"]), ["e8-rice@3"]);
        assert_eq!(labels(&["--codecs", "none"]), [""; 0]);
        for bad in [["--codecs", "f9-rice"], ["--rates", "0"], ["--rates", "nan"], ["--codecs", "e8-rice@x"]] {
            assert!(args(&bad).targets().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_cache_alone_leaves_the_weights_as_they_are() {
        assert_eq!(labels(&["--kv", "e8@2.25"]), [""; 0]);
        assert_eq!(labels(&["--kv", "e8@2.25", "--codecs", "e8@3"]), ["e8@3"]);
        assert_eq!(labels(&["--kv", "e8@2.25", "--rates", "3"]), [format!("{BEST_CODEC}@3")]);
        let kv = args(&["--kv", "e8@2,window=8", "--kv", "turboquant@3", "--kv-chunk", "7"]).kv_targets().unwrap();
        assert_eq!(kv.iter().map(KvTarget::label).collect::<Vec<_>>(), ["e8@2,window=8", "turboquant@3"]);
        assert!(args(&["--kv", "f9@2"]).kv_targets().is_err());
        for (spec, word) in [("e8@2", "shift-10"), ("q8_0", "q8_0"), ("shift-10@3,page=32", "page=64")] {
            let error = args(&["--kv", spec, "--device", "cuda"]).kv_targets().unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("cpu"), "{error}");
        }
        let on_device = args(&["--kv", "shift-10@3", "--device", "cuda"]);
        assert_eq!(on_device.kv_targets().unwrap().len(), 1);
        assert_eq!((on_device.kv_chunk(true), on_device.kv_chunk(false)), (64, 256));
        assert_eq!(args(&["--kv", "e8@2", "--kv-chunk", "7"]).kv_chunk(true), 7);
        for bad in [&["--kv-chunk", "7"][..], &["--kv", "e8@2", "--kv-chunk", "0"]] {
            assert!(Args::try_parse_from(["ppl", "--model", "m", "--text", "t"].iter().chain(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn windows_and_protocols_are_checked_without_a_model() {
        assert!(args(&[]).check().is_ok() && args(&["--full"]).check().is_ok());
        for bad in [["--windows", "0"], ["--protocol", "half"], ["--protocol", "full-0"], ["--stride", "0"]] {
            assert!(args(&bad).check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_default_protocol_fits_the_context() {
        let protocol = args(&[]).protocol(8192, false).unwrap();
        assert_eq!((protocol.name.as_str(), protocol.bos), ("full-2048", BosPolicy::None));
        let protocol = args(&[]).protocol(512, true).unwrap();
        assert_eq!((protocol.name.as_str(), protocol.bos), ("full-512", BosPolicy::EachWindow));
        assert!(args(&["--protocol", "full-2048"]).protocol(512, true).is_err());
        let protocol = args(&["--bos", "once", "--stride", "7", "--tail", "keep"]).protocol(512, false).unwrap();
        assert_eq!((protocol.bos, protocol.stride, protocol.tail), (BosPolicy::Once, 7, Tail::Keep));
    }
}
