//! The command line of `decode`.

use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use clap::Parser;
use gosset_codec::{CodecSpec, SchemeSpec, ShiftOrderKind};
use gosset_runtime::gpu::RandomWeights;
use serde::Serialize;

/// What matrices are held as: `bf16` or `codec@rate` of a shift codec.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Weights {
    Bf16,
    Codec(String),
}

impl FromStr for Weights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "bf16" {
            return Ok(Weights::Bf16);
        }
        CodecSpec::parse(text).map_err(|e| e.to_string())?;
        Ok(Weights::Codec(text.to_owned()))
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Weights::Bf16 => "bf16",
            Weights::Codec(text) => text,
        })
    }
}

impl Weights {
    pub(super) fn random(&self) -> Result<RandomWeights> {
        Ok(match self {
            Weights::Bf16 => RandomWeights::Bf16,
            Weights::Codec(text) => {
                let mut spec = CodecSpec::parse(text)?;
                // Tiles are the order for devices: the same rate without the histories that rows need there.
                if let SchemeSpec::Shift { order, .. } = &mut spec.scheme {
                    *order = ShiftOrderKind::Tiles;
                }
                RandomWeights::Coded(spec)
            }
        })
    }
}

/// Tokens per second and bytes of a model's shapes at batch 1, with random weights on a CUDA device.
#[derive(Debug, Parser)]
pub struct Args {
    /// Shapes: llama-3.1-8b, qwen2.5-0.5b or smollm2-135m.
    #[arg(long, default_value = "llama-3.1-8b")]
    pub(super) model: String,
    /// What the layers' matrices are held as, one model each; bf16 first gives the others their speed-up.
    #[arg(long, value_delimiter = ',', default_value = "bf16,shift-16@4,shiftlut-17@4,shift-16@3,shiftlut-17@2")]
    pub(super) weights: Vec<Weights>,
    /// What embedding table and head are held as; each is combined with all weights.
    #[arg(long, value_delimiter = ',', default_value = "bf16")]
    pub(super) embeddings: Vec<Weights>,
    /// Positions in the cache before the first step.
    #[arg(long, default_value_t = 128)]
    pub(super) position: usize,
    /// Steps of one repetition.
    #[arg(long, default_value_t = 128, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub(super) steps: usize,
    /// Repetitions, of which the median counts.
    #[arg(long, default_value_t = 5)]
    pub(super) repetitions: usize,
    /// Plain launches instead of a CUDA graph.
    #[arg(long)]
    pub(super) plain: bool,
    /// Number of the device.
    #[arg(long, default_value_t = 0)]
    pub(super) device: usize,
    /// Write all figures here as JSON; `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Where the table goes: stderr if stdout is for JSON.
pub(super) struct Out {
    to_stderr: bool,
}

impl Out {
    pub(super) fn line(&mut self, text: &str) -> Result<()> {
        if self.to_stderr {
            writeln!(std::io::stderr(), "{text}")?;
        } else {
            writeln!(std::io::stdout(), "{text}")?;
        }
        Ok(())
    }
}

impl Args {
    pub(super) fn out(&self) -> Out {
        Out { to_stderr: self.json.as_deref().is_some_and(|path| path.as_os_str() == "-") }
    }

    pub(super) fn write_json(&self, report: &impl Serialize) -> Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(report)? + "\n";
        if path.as_os_str() == "-" {
            return Ok(std::io::stdout().write_all(text.as_bytes())?);
        }
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}
