//! What tables and plots need of the JSON under `docs/results`.

use serde::Deserialize;

/// Of `cargo xtask eval --json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Evaluation {
    pub(crate) model: String,
    pub(crate) protocol: String,
    pub(crate) windows: u64,
    pub(crate) tokens_scored: u64,
    /// Whether the rows are ablations of one method.
    #[serde(default)]
    pub(crate) ablations: bool,
    pub(crate) rows: Vec<EvaluationRow>,
}

/// Of one zero-shot task.
#[derive(Debug, Deserialize)]
pub(crate) struct TaskRow {
    pub(crate) task: String,
    pub(crate) n: u64,
    pub(crate) acc: Accuracy,
    pub(crate) acc_norm: Accuracy,
}

/// Pass keys of one context.
#[derive(Debug, Deserialize)]
pub(crate) struct PasskeyRow {
    pub(crate) context: u64,
    pub(crate) trials: u64,
    pub(crate) right: u64,
}

/// A share of right answers.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Accuracy {
    pub(crate) value: f64,
    pub(crate) stderr: f64,
}

/// What a row was calibrated on.
#[derive(Debug, Deserialize)]
pub(crate) struct CalibrationNote {
    pub(crate) text: String,
    pub(crate) tokens: u64,
    pub(crate) sequential: bool,
    #[serde(default)]
    pub(crate) token_weights: Option<String>,
    pub(crate) overlap: TextOverlap,
    pub(crate) peak_heap_bytes: u64,
}

/// How that text relates to the one of the evaluation.
#[derive(Debug, Deserialize)]
pub(crate) struct TextOverlap {
    pub(crate) same: bool,
    pub(crate) shared: f64,
    pub(crate) in_domain: bool,
}

/// One model or container.
#[derive(Debug, Deserialize)]
pub(crate) struct EvaluationRow {
    pub(crate) codec: String,
    /// How keys and values were stored; `None` for a cache in f32.
    #[serde(default)]
    pub(crate) kv: Option<String>,
    #[serde(default)]
    pub(crate) kv_page_bps: Option<f64>,
    #[serde(default)]
    pub(crate) kv_all_in_bps: Option<f64>,
    pub(crate) payload_bps: f64,
    pub(crate) all_in_bps: f64,
    pub(crate) file_bps: f64,
    pub(crate) file_bytes: u64,
    pub(crate) ppl: f64,
    pub(crate) ppl_sigma: f64,
    pub(crate) delta_ln: Option<f64>,
    pub(crate) target_bps: Option<f64>,
    /// All-in rate that was asked for instead.
    #[serde(default)]
    target_bpw: Option<f64>,
    #[serde(default)]
    source_grid: bool,
    #[serde(default)]
    fallback_share: Option<f64>,
    #[serde(default)]
    pub(crate) quantize_seconds: Option<f64>,
    #[serde(default)]
    pub(crate) tasks: Vec<TaskRow>,
    #[serde(default)]
    pub(crate) passkey: Vec<PasskeyRow>,
    #[serde(default)]
    pub(crate) calibration: Option<CalibrationNote>,
}

impl EvaluationRow {
    /// Whether the method's levels are those that the source is stored in, so that it has nothing to lose.
    pub(crate) fn is_source_grid(&self) -> bool {
        self.source_grid
    }

    /// Whether this is the model as it came, with its cache in f32.
    pub(crate) fn is_unquantized(&self) -> bool {
        self.codec == "none" && self.kv.is_none()
    }

    /// Name for people, with what must be known about the row.
    pub(crate) fn label(&self) -> String {
        match (self.codec.as_str(), &self.kv) {
            ("none", None) => "unquantized".to_owned(),
            ("none", Some(kv)) => format!("`{kv}`"),
            (_, None) => self.weights(),
            (_, Some(kv)) => format!("{}, cache `{kv}`", self.weights()),
        }
    }

    /// Name of what the weights are in.
    fn weights(&self) -> String {
        let mut label = match (self.target_bps, self.target_bpw) {
            (_, Some(bpw)) => format!("`{}`, {bpw} all-in", self.codec),
            (Some(rate), None) => format!("`{}@{rate}`", self.codec),
            (None, None) => format!("`{}`", self.codec),
        };
        if let Some(share) = self.fallback_share {
            label += &format!(" ({:.0} % fallback)", 100.0 * share);
        }
        if self.source_grid {
            label += " (source-grid)";
        }
        label
    }
}

/// Of `cargo xtask rd --json`.
#[derive(Debug, Deserialize)]
pub(crate) struct RateDistortion {
    pub(crate) command: String,
    pub(crate) cpu: String,
    pub(crate) rows: Vec<RateDistortionRow>,
    #[serde(default)]
    pub(crate) decomposition: Vec<GapParts>,
}

/// One codec at one rate on one matrix.
#[derive(Debug, Deserialize)]
pub(crate) struct RateDistortionRow {
    pub(crate) source: String,
    pub(crate) codec: String,
    pub(crate) target_bps: f64,
    pub(crate) stream_bps: f64,
    pub(crate) gap_bits: Option<f64>,
    pub(crate) encode_mws: f64,
    pub(crate) decode_mws: f64,
}

/// Where the distance from a baseline to E8 comes from, at one rate.
#[derive(Debug, Deserialize)]
pub(crate) struct GapParts {
    pub(crate) source: String,
    pub(crate) codec: String,
    pub(crate) target_bps: f64,
    pub(crate) gap_bits: f64,
    pub(crate) e8_gap_bits: f64,
    pub(crate) index_entropy_slack_bits: f64,
    pub(crate) finite_codebook_loss_bits: f64,
}
