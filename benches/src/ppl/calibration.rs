//! What methods with error feedback are calibrated on, the same for all rows of a run.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use gosset_eval::{CalibrationNote, TextOverlap};
use gosset_quantize::{Activations, ModelSource, TokenWeights};
use gosset_runtime::calibration::{Calibration, CalibrationOptions, CalibrationText};

use super::Interrupt;
use super::progress::Progress;

/// Name of the text that comes with the program.
const BUILT_IN: &str = "built-in";

/// Calibration of the methods that need one.
#[derive(Debug, Clone, Args)]
pub struct CalibrationArgs {
    /// Text to calibrate on: `built-in`, a file in UTF-8, or a folder of .txt files.
    #[arg(long, value_name = "TEXT", default_value = BUILT_IN, conflicts_with = "container")]
    pub calibration: String,
    /// Tokens to calibrate on.
    #[arg(long, value_name = "N", default_value_t = CalibrationOptions::default().tokens, conflicts_with = "container")]
    pub calibration_tokens: usize,
    /// Seed that chooses the sequences of a longer text.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "container")]
    pub calibration_seed: u64,
    /// Keep second moments in this folder and take them from it [default: a folder of the run, which all rows share].
    #[arg(long, value_name = "DIR", conflicts_with_all = ["container", "sequential"])]
    pub hessian_cache: Option<PathBuf>,
    /// Calibrate every method on the activations that its own quantized prefix makes; nothing can be shared between rows then.
    #[arg(long, conflicts_with = "container")]
    pub sequential: bool,
    /// How much the tokens of the text count in what o and down are fitted to: equal, or capped for models with a few tokens of enormous
    /// energy.
    #[arg(long, value_name = "HOW", value_parser = TokenWeights::NAMES, default_value = "equal", conflicts_with = "container")]
    pub token_weights: String,
}

/// The calibration of a run.
pub(super) struct Calibrations {
    options: CalibrationOptions,
    overlap: TextOverlap,
}

impl Calibrations {
    /// Reads the text, and compares it with that of the evaluation.
    pub(super) fn new(args: &CalibrationArgs, evaluation: &str) -> Result<Self> {
        if args.calibration_tokens == 0 {
            bail!("--calibration-tokens: expected at least 1, found 0");
        }
        let text = match args.calibration.as_str() {
            BUILT_IN => CalibrationText::BuiltIn,
            path => CalibrationText::Path(PathBuf::from(path)),
        };
        let overlap = TextOverlap::of(evaluation, &text.read()?);
        let options = CalibrationOptions {
            text,
            tokens: args.calibration_tokens,
            seed: args.calibration_seed,
            hessian_cache: args.hessian_cache.clone(),
            sequential: args.sequential,
            token_weights: TokenWeights::named(&args.token_weights).unwrap_or_default(),
            ..CalibrationOptions::default()
        };
        Ok(Calibrations { options, overlap })
    }

    /// What has to be said before the first row; `None` if nothing.
    pub(super) fn warning(&self) -> Option<String> {
        let name = match &self.options.text {
            CalibrationText::BuiltIn => BUILT_IN.to_owned(),
            CalibrationText::Path(path) => path.display().to_string(),
        };
        self.overlap.warning(&name)
    }

    /// Has rows without a folder of the user's share one in `scratch`.
    pub(super) fn share_in(&mut self, scratch: &Path) {
        if self.options.hessian_cache.is_none() && !self.options.sequential {
            self.options.hessian_cache = Some(scratch.join("second-moments"));
        }
    }

    /// The activations of one row; Ctrl-C ends them within a pass.
    pub(super) fn of_row<'s>(
        &self,
        source: &'s dyn ModelSource,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<Calibration<'s>> {
        let mut calibration = Calibration::new(source, self.options.clone())?;
        let (n, megabytes) = (calibration.n_tokens(), calibration.expected_peak_bytes() as f64 / 1e6);
        progress.say(&format!("calibration: {n} tokens, up to {megabytes:.0} MB"));
        let interrupt = interrupt.clone();
        calibration.set_observer(Box::new(move |_| {
            if interrupt.raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }));
        Ok(calibration)
    }

    /// What the row says about it.
    pub(super) fn note(&self, activations: &dyn Activations, seconds: f64, peak_heap_bytes: u64) -> CalibrationNote {
        let record = activations.record();
        CalibrationNote {
            text: record.text,
            text_sha256: record.text_sha256,
            tokens: record.tokens,
            window: record.window,
            seed: record.seed,
            sequential: record.sequential,
            token_weights: (!record.token_weights.is_equal()).then(|| record.token_weights.name().to_owned()),
            overlap: self.overlap,
            seconds,
            peak_heap_bytes,
        }
    }
}
