//! The command line of `feedback`.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use gosset_unisvq::DampingSpec;

use super::shape::Shape;

/// What is compared unless the command line says otherwise.
const SHAPES: &str = "e8,e8+feedback,e8-inputs-metric,e8-inputs-euclidean,trellis-256+feedback,shift-16+feedback,shift-16-tiles+feedback";

/// Relative errors of the outputs of linears on held-out tokens, by the shape of the unit that is rounded under error feedback.
#[derive(Debug, Parser)]
#[command(name = "feedback", version)]
pub struct Args {
    /// A GGUF file or Hugging Face folder (`NAME=PATH` gives it a name).
    #[arg(long, value_name = "PATH")]
    pub model: String,
    /// Text of the held-out tokens, UTF-8.
    #[arg(long, value_name = "PATH")]
    pub held_out: PathBuf,
    /// Held-out tokens.
    #[arg(long, value_name = "N", default_value_t = 8192)]
    pub held_out_tokens: usize,
    /// Text to calibrate on: `built-in`, a file in UTF-8, or a folder of .txt files.
    #[arg(long, value_name = "TEXT", default_value = "built-in")]
    pub calibration: String,
    /// Tokens to calibrate on.
    #[arg(long, value_name = "N", default_value_t = 32_768)]
    pub calibration_tokens: usize,
    /// Keep second moments in this folder, those of held-out tokens in `held-out` below it, and take them from there.
    #[arg(long, value_name = "DIR")]
    pub hessian_cache: Option<PathBuf>,
    /// Matrices: those whose name contains one of these [default: q, v, o, up and down of the layers at a quarter and at three quarters
    /// of the depth].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub tensors: Vec<String>,
    /// What is compared: codecs, codecs with feedback, and `e8-inputs-metric` and `e8-inputs-euclidean`, which are no codecs of
    /// containers: E8 over 8 inputs of a row, in the metric D_k and in the Euclidean one.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = SHAPES)]
    pub codecs: Vec<String>,
    /// Payload rates in bits per weight.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2,3,4")]
    pub rates: Vec<f64>,
    /// Damping of second moments, as a share of the mean diagonal.
    #[arg(long, value_name = "SHARE", default_value_t = DampingSpec::default().sigma)]
    pub damping: f64,
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
    /// Every shape with its rate, those of a rate together; refuses unknown names and rates out of reach.
    pub(super) fn shapes(&self) -> Result<Vec<Shape>> {
        let mut shapes = Vec::new();
        for &rate in &self.rates {
            for name in &self.codecs {
                shapes.push(Shape::parse(name.trim(), rate)?);
            }
        }
        ensure!(!shapes.is_empty(), "--codecs, --rates: expected at least one of each");
        Ok(shapes)
    }

    /// The damping.
    pub(super) fn damping(&self) -> Result<DampingSpec> {
        let damping = DampingSpec { sigma: self.damping, ..DampingSpec::default() };
        if let Err(error) = damping.check() {
            bail!("--damping: {error}");
        }
        Ok(damping)
    }

    /// Name and path of the model.
    pub(super) fn model(&self) -> (Option<&str>, &str) {
        match self.model.split_once('=') {
            Some((name, path)) if !std::path::Path::new(&self.model).exists() => (Some(name), path),
            _ => (None, &self.model),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn args(rest: &[&str]) -> Args {
        Args::try_parse_from(["feedback", "--model", "a=b", "--held-out", "t"].iter().chain(rest)).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        assert_eq!(args(&[]).model(), (Some("a"), "b"));
        assert_eq!(args(&[]).shapes().unwrap().len(), 3 * SHAPES.split(',').count());
    }

    #[test]
    fn shapes_and_damping_are_refused_before_the_work() {
        for bad in [
            ["--codecs", "e9"],
            ["--codecs", "e8-inputs"],
            ["--rates", "0"],
            ["--rates", "nan"],
            ["--codecs", "unisvq"],
        ] {
            assert!(args(&bad).shapes().is_err(), "{bad:?}");
        }
        assert!(args(&["--damping", "0"]).damping().is_err());
        assert_eq!(args(&["--damping", "0.1"]).damping().unwrap().sigma, 0.1);
    }
}
