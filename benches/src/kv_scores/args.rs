//! The command line of `kv-scores`.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Parser;

/// Bias and variance of attention scores over coded keys, by how keys are coded, on keys and queries of a model.
#[derive(Debug, Parser)]
#[command(name = "kv-scores", version)]
pub struct Args {
    /// A GGUF file or Hugging Face folder (`NAME=PATH` gives it a name).
    #[arg(long, value_name = "PATH")]
    pub model: String,
    /// The text whose keys and queries are taken, UTF-8; statistics of frames come from the built-in text.
    #[arg(long, value_name = "PATH")]
    pub text: PathBuf,
    /// Tokens of the text, from its beginning.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub tokens: usize,
    /// Positions whose queries are taken, evenly spaced over the second half.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub queries: usize,
    /// Layers [default: the first, the last and two between].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub layers: Vec<usize>,
    /// Rates: bits of sealed pages per scalar for codes of Gosset, the number in the name for others.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2,3,4")]
    pub bits: Vec<f64>,
    /// Draws of what is random: signs, rotations, sketches, dither.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub seeds: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Write the JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The command to name in the output.
    #[arg(long, value_name = "TEXT", hide = true)]
    pub command: Option<String>,
}

impl Args {
    /// Refuses what no measurement can be made of.
    pub(super) fn check(&self) -> Result<()> {
        for (flag, n, least) in
            [("tokens", self.tokens, 16), ("queries", self.queries, 1), ("seeds", self.seeds as usize, 2)]
        {
            ensure!(n >= least, "--{flag}: expected at least {least}, found {n}");
        }
        ensure!(!self.bits.is_empty(), "--bits: expected at least one rate");
        Ok(())
    }

    /// The layers, ascending, of a model with so many.
    pub(super) fn layers_of(&self, n_layers: usize) -> Result<Vec<usize>> {
        let mut layers = match &self.layers[..] {
            [] => (0..4).map(|i| i * (n_layers - 1) / 3).collect(),
            asked => asked.to_vec(),
        };
        layers.sort_unstable();
        layers.dedup();
        match layers.iter().find(|layer| **layer >= n_layers) {
            Some(layer) => bail!("--layers {layer}: the model has {n_layers}"),
            None => Ok(layers),
        }
    }

    /// Name, if one is given, and path of the model.
    pub(super) fn model(&self) -> (Option<&str>, &str) {
        match self.model.split_once('=') {
            Some((name, path)) => (Some(name), path),
            None => (None, &self.model),
        }
    }
}
