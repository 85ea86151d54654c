//! The options of methods that need a calibration, and what they make.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use clap::Args;
use gosset_quantize::{Method, ModelSource, TokenWeights};
use gosset_runtime::calibration::{Calibration, CalibrationOptions, CalibrationProgress, CalibrationText, Pass};

use crate::exit::{Exit, error};
use crate::interrupt;
use crate::progress::Progress;

/// Options of methods with calibration: `…+feedback` and `unisvq…`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Calibration, for methods with +feedback and unisvq")]
pub(super) struct CalibrationArgs {
    /// Text that goes through the model to show what feeds each layer: a UTF-8 file, or a folder with .txt files [default: a
    /// built-in text].
    #[arg(long, value_name = "FILE|DIR")]
    calibration: Option<PathBuf>,
    /// Tokens of it that are used [default: 32768].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    calibration_tokens: Option<u32>,
    /// Seed that chooses the sequences out of a longer text [default: 0].
    #[arg(long, value_name = "S")]
    calibration_seed: Option<u64>,
    /// Folder that keeps what was seen, so that another run on the same model and text need not look again.
    #[arg(long, value_name = "DIR", conflicts_with = "sequential")]
    hessian_cache: Option<PathBuf>,
    /// Show each layer what the quantized layers before it make, instead of what the original model makes; slower.
    #[arg(long)]
    sequential: bool,
    /// How much the tokens of the text count in what o and down are fitted to: equal, or capped for models with a few tokens of enormous
    /// energy, such as Qwen2.5 [default: equal].
    #[arg(long, value_name = "HOW", value_parser = TokenWeights::NAMES)]
    token_weights: Option<String>,
}

impl CalibrationArgs {
    /// The first of these options that was given.
    fn given(&self) -> Option<&'static str> {
        [
            (self.calibration.is_some(), "--calibration"),
            (self.calibration_tokens.is_some(), "--calibration-tokens"),
            (self.calibration_seed.is_some(), "--calibration-seed"),
            (self.hessian_cache.is_some(), "--hessian-cache"),
            (self.sequential, "--sequential"),
            (self.token_weights.is_some(), "--token-weights"),
        ]
        .into_iter()
        .find_map(|(is_given, name)| is_given.then_some(name))
    }

    /// The calibration that `codec` needs; `None` if it needs none, for which these options are refused.
    pub(super) fn open<'a>(&self, codec: &str, source: &'a dyn ModelSource) -> Result<Option<Calibration<'a>>> {
        if !Method::info(codec)?.needs_calibration {
            return match self.given() {
                None => Ok(None),
                Some(option) => {
                    let message = format!("{option}: {codec} needs no calibration; did you mean {codec}+feedback?");
                    Err(error(Exit::Usage, message))
                }
            };
        }
        let defaults = CalibrationOptions::default();
        let options = CalibrationOptions {
            text: self.calibration.clone().map_or(CalibrationText::BuiltIn, CalibrationText::Path),
            tokens: self.calibration_tokens.map_or(defaults.tokens, |n| n as usize),
            seed: self.calibration_seed.unwrap_or(defaults.seed),
            hessian_cache: self.hessian_cache.clone(),
            sequential: self.sequential,
            token_weights: self.token_weights.as_deref().and_then(TokenWeights::named).unwrap_or_default(),
            ..defaults
        };
        Ok(Some(Calibration::new(source, options)?))
    }
}

/// Shows where a calibration is, beside the weights that are finished, and stops it after Ctrl-C.
pub(super) fn watch(calibration: &mut Calibration<'_>, progress: Arc<Progress>, weights_done: Arc<AtomicU64>) {
    calibration.set_observer(Box::new(move |at: &CalibrationProgress| {
        let verb = match at.pass {
            Pass::Moments => "calibrating layer",
            Pass::Forward => "passing layer",
            _ => "computing the outputs of layer",
        };
        let sequence = format!("sequence {} of {}", at.sequence + 1, at.n_sequences);
        progress.at(verb, &sequence, at.layer, at.n_layers, weights_done.load(Ordering::Relaxed));
        if interrupt::requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }));
}
