//! What a run did, with the figures that were measured.

use std::collections::BTreeMap;

use gosset_container::Causes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::calibration::{CalibrationRecord, TuneReport};
use crate::target::{Allocation, QuantizeTarget};
use crate::tie::TieDecision;

/// What a run did. All rates are bits per weight, counted on the bytes of the finished file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Codec.
    pub codec: String,
    /// What was asked for: a payload as a bare number, or `all_in_bpw` or `file_bytes`.
    pub target: QuantizeTarget,
    /// How bits were shared out where the target is no payload.
    pub allocation: Allocation,
    /// Payload of all quantized tensors: code bits only.
    pub payload_bps: f64,
    /// Everything of the quantized tensors but row scales.
    pub stream_bps: f64,
    /// Everything of the quantized tensors, their share of the header included.
    pub all_in_bps: f64,
    /// The true rate of the whole: all bytes of the file over all parameters.
    pub file_bps: f64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of the source's tensors.
    pub source_bytes: u64,
    /// Parameters stored.
    pub n_params: u64,
    /// Parameters quantized.
    pub n_quantized: u64,
    /// Bits of the file by cause.
    pub causes: Causes,
    /// Signal-to-noise ratio over all quantized weights together, in dB; `None` if nothing was lost or nothing was there.
    pub snr_db: Option<f64>,
    /// Rows stored exactly because no scale fits them.
    pub exact_rows: u64,
    /// Name of the policy.
    pub policy: String,
    /// How output head and embeddings relate; `None` for plain tensors.
    pub tie: Option<TieDecision>,
    /// One line per tensor of the source.
    pub tensors: Vec<TensorReport>,
    /// Tensors that stayed wider than asked, by reason.
    pub fallbacks: Vec<Fallback>,
    /// Everything the user should know.
    pub warnings: Vec<String>,
    /// What the calibration saw and did; `None` for methods without.
    pub calibration: Option<CalibrationSummary>,
    /// The options, as stored in the container.
    pub recipe: Value,
}

/// What a calibration saw and what it led to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CalibrationSummary {
    /// Text, tokens, window, seed.
    pub record: CalibrationRecord,
    /// Tensors whose inputs were seen.
    pub n_tensors: u64,
    /// Quantized tensors whose inputs were not seen, such as embeddings: the method without calibration was used.
    pub unseen: Vec<String>,
    /// Inputs that were zero in every token, over all tensors, each as often as tensors read it.
    pub dead_inputs: u64,
    /// Tensors with such inputs.
    pub n_tensors_with_dead_inputs: u64,
    /// Tensors whose second moments needed more damping than usual.
    pub n_raised: u64,
    /// Tensors that a simpler method was better for.
    pub n_simpler: u64,
    /// What tuning gained, block by block, in the order of the model.
    pub tuned: Vec<TunedFigures>,
    /// Seconds in which activations and second moments were computed, by this run alone if it took up another.
    pub calibrating_s: f64,
    /// Seconds of everything else between the first tensor and the last.
    pub quantizing_s: f64,
}

/// What tuning gained in one block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunedFigures {
    /// The block, such as `model.layers.0`.
    pub block: String,
    /// Losses and epochs; `None` if nothing was gained.
    pub report: Option<TuneReport>,
}

/// Figures of error feedback in one tensor. Proxies are tr((W − Ŵ) H (W − Ŵ)ᵀ) / tr(W H Wᵀ) for the damped second moments H.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FeedbackFigures {
    /// Relative proxy of plain rounding.
    pub proxy_before: f64,
    /// Relative proxy of what is stored.
    pub proxy: f64,
    /// Damping that was used, as a share of the mean diagonal of the second moments.
    pub sigma: f64,
    /// How often damping was raised.
    pub raises: u32,
    /// The simpler method that took the place of feedback, and why.
    pub simpler: Option<String>,
    /// Inputs that were zero in every token of the calibration.
    pub dead_inputs: u64,
    /// Tokens that the second moments are means of.
    pub tokens: u64,
    /// The factor c of the affine grid that was chosen; `None` for other methods.
    pub scale: Option<f64>,
}

/// What happened to one tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorReport {
    /// Name.
    pub name: String,
    /// `quantized`, `kept` or `skipped`.
    pub action: &'static str,
    /// Why it was kept or skipped.
    pub reason: Option<String>,
    /// Shape.
    pub shape: Vec<usize>,
    /// Dtype in the source.
    pub dtype: String,
    /// Weights.
    pub n_weights: u64,
    /// Bytes in the file, the share of the header included.
    pub bytes: u64,
    /// Payload asked of the codec.
    pub target_bps: Option<f64>,
    /// Code bits only.
    pub payload_bps: Option<f64>,
    /// Everything but row scales.
    pub stream_bps: Option<f64>,
    /// Everything; for a kept tensor too.
    pub all_in_bps: Option<f64>,
    /// Noise over signal of a quantized tensor, measured on the decoded planes; `None` if nothing was there.
    pub relative_error: Option<f64>,
    /// Signal-to-noise ratio in dB, measured on the decoded planes; `None` if nothing was lost or nothing was there.
    pub snr_db: Option<f64>,
    /// What the user said its relative error counts, 1 by default; `None` for tensors that are not quantized.
    pub weight: Option<f64>,
    /// Rows stored exactly because no scale fits them.
    pub exact_rows: u64,
    /// The method that was used: the one asked for, or the one without calibration where inputs were not seen; `None` for tensors
    /// that are not quantized.
    pub method: Option<String>,
    /// Figures of error feedback; `None` without.
    pub feedback: Option<FeedbackFigures>,
}

/// Tensors that stayed wider than asked for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fallback {
    /// The reason.
    pub reason: String,
    /// How many tensors.
    pub n_tensors: u64,
    /// Their weights.
    pub n_weights: u64,
    /// Their names.
    pub names: Vec<String>,
}

/// Groups `(reason, name, weights)` by reason, sorted by reason.
pub(crate) fn group_fallbacks<'a>(items: impl Iterator<Item = (&'a str, &'a str, u64)>) -> Vec<Fallback> {
    let mut groups: BTreeMap<&str, Fallback> = BTreeMap::new();
    for (reason, name, n_weights) in items {
        let group = groups.entry(reason).or_insert_with(|| Fallback {
            reason: reason.to_owned(),
            n_tensors: 0,
            n_weights: 0,
            names: Vec::new(),
        });
        group.n_tensors += 1;
        group.n_weights += n_weights;
        group.names.push(name.to_owned());
    }
    groups.into_values().collect()
}
