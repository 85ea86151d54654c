//! Codecs with error feedback: every column is rounded in the light of the errors of the columns behind it.
//!
//! | codec | unit of rounding | stored by | frame | step |
//! |---|---|---|---|---|
//! | lattices under ANS, `trellis-…` | one input column | columns | outputs rotated | per column, water-filled; one distortion level for all |
//! | `shift-…`, `shiftlut-…` | one input column | columns | inputs rotated as suits the matrix; outputs rotated | per column, its spread |
//! | `shift-…-tiles` | 16 input columns | rows | inputs rotated | per row |
//!
//! With H = L D Lᵀ the error of column k costs D_k, whatever the others do, so under an entropy code steps in proportion to
//! 1/√D_k spend every bit where it saves most. What remains to be found is one number, the distortion level that gives the asked rate.

mod entropy_coded;
mod fixed_rate;
mod frame;
mod outputs;
mod steps;
#[cfg(test)]
mod tests;

use gosset_codec::{CodeKind, CodecError, CodecSpec, DecodeScratch, EncodedMatrix, MatRef, SchemeSpec, ShiftOrderKind};
use gosset_unisvq::{Damped, DampingMethod, DampingReport, DampingSpec, UniSvqError, drift_target, relative_proxy};
use serde::{Deserialize, Serialize};

use crate::InputMoments;
use crate::error::QuantizeError;

/// How feedback is done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedbackOptions {
    /// Damping of the second moments.
    pub damping: DampingSpec,
    /// Damping on top of that under an entropy code, as a share of the mean diagonal: other texts use directions in which the text of
    /// the calibration has little energy.
    pub other_texts: f64,
    /// Damping on top of both for moments of few tokens, as a share of the mean diagonal for one token per input: they show directions
    /// without energy that other texts do use.
    pub sampling: f64,
    /// Share of the correction for inputs that come from a quantized prefix: 0 for none, 1 for all of it.
    pub drift: f64,
}

impl Default for FeedbackOptions {
    fn default() -> Self {
        Self { damping: DampingSpec::default(), other_texts: 0.3, sampling: 1.0, drift: 1.0 }
    }
}

impl FeedbackOptions {
    /// The damping of second moments of `inputs` inputs over `tokens` tokens under an entropy code: at most the mean diagonal is added
    /// for few tokens.
    fn damping_of(&self, inputs: usize, tokens: u64) -> DampingSpec {
        let of_sampling = self.sampling * inputs as f64 / tokens.max(1) as f64;
        DampingSpec { sigma: self.damping.sigma + self.other_texts + of_sampling.clamp(0.0, 1.0), ..self.damping }
    }
}

/// What was done to a matrix. Proxies are tr((W - Ŵ) H (W - Ŵ)ᵀ) / tr(W H Wᵀ) for the damped second moments H, rows divided by
/// their factors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FeedbackReport {
    /// What became of the second moments.
    pub damping: DampingReport,
    /// The proxy that the codec without feedback is expected to have at the same payload.
    pub plain: f64,
    /// The proxy of what was encoded.
    pub proxy: f64,
    /// Payload in bits per weight.
    pub payload_bps: f64,
    /// Sweeps over the matrix.
    pub sweeps: u32,
    /// Why the codec without feedback took the place of the one with it; `None` where it did not.
    pub simpler: Option<&'static str>,
}

/// Why a matrix could not be encoded with feedback.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FeedbackError {
    /// The codec refused the matrix or the specification.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Second moments and weights do not belong together.
    #[error(transparent)]
    UniSvq(#[from] UniSvqError),
}

impl FeedbackError {
    /// The error with the name of the tensor.
    #[must_use]
    pub fn of_tensor(self, tensor: &str) -> QuantizeError {
        let tensor = tensor.to_owned();
        match self {
            Self::Codec(source) => QuantizeError::Codec { tensor, source },
            Self::UniSvq(source) => QuantizeError::UniSvq { tensor, source },
        }
    }
}

/// Whether a codec has a form with feedback: all but those under Rice codes.
#[must_use]
pub fn is_supported(scheme: &SchemeSpec) -> bool {
    !matches!(scheme, SchemeSpec::Lattice { code: CodeKind::Rice, .. })
}

/// What an encoder makes of a matrix, with the number of sweeps that it took.
type Outcome = Result<(EncodedMatrix, u32), FeedbackError>;

/// Encodes `w`, `[rows, cols]` row-major, with feedback from the moments of its inputs; without usable moments, or where feedback does
/// no good, by the codec alone, which the report says.
///
/// The bytes depend on the values, the moments and the options, and not on the number of threads.
///
/// # Errors
/// [`FeedbackError::Codec`] for matrices and rates that the codec refuses and for codecs without a form with feedback (see
/// [`is_supported`]), [`FeedbackError::UniSvq`] for moments of another width.
pub fn encode(
    spec: &CodecSpec,
    w: &[f32],
    rows: usize,
    cols: usize,
    moments: &InputMoments,
    options: &FeedbackOptions,
) -> Result<(EncodedMatrix, FeedbackReport), FeedbackError> {
    let codec = spec.check()?;
    MatRef::new(w, rows, cols)?;
    if moments.hessian.n() != cols {
        let (expected, found) = (format!("{cols} inputs"), moments.hessian.n().to_string());
        return Err(UniSvqError::Shape { what: "second moments", expected, found }.into());
    }
    if let Some(energy) = &moments.output_energy
        && energy.len() != rows
    {
        let (expected, found) = (format!("{rows} outputs"), energy.len().to_string());
        return Err(UniSvqError::Shape { what: "energy of outputs", expected, found }.into());
    }
    // At a fixed rate the frame of the inputs already spreads what is not known, and more damping measured worse.
    let damping = match spec.scheme {
        SchemeSpec::Shift { .. } => options.damping,
        _ => options.damping_of(cols, moments.hessian.n_tokens()),
    };
    let options = &FeedbackOptions { damping, ..*options };
    let (natural, ldl) = options.damping.factor(&moments.hessian, 1)?;
    let damping = natural.report();
    let payload = |encoded: &EncodedMatrix| encoded.rate().payload_bps();
    let noise = 10f64.powf(-0.1 * codec.estimate(rows, cols).snr_db);
    let proxy_of = |encoded: &EncodedMatrix, target: &[f32], exponents: &[u8]| -> Result<f64, CodecError> {
        let mut decoded = vec![0.0; target.len()];
        encoded.decoder()?.decode_rows(0..rows, &mut decoded, &mut DecodeScratch::new())?;
        outputs::divide(&mut decoded, exponents);
        Ok(relative_proxy(target, &decoded, rows, natural.as_slice()))
    };
    let alone = |target: &[f32], simpler, sweeps| {
        let encoded = codec.encode(MatRef::new(target, rows, cols)?)?;
        let (proxy, payload_bps) = (proxy_of(&encoded, target, &[])?, payload(&encoded));
        Ok((encoded, FeedbackReport { damping, plain: proxy, proxy, payload_bps, sweeps, simpler: Some(simpler) }))
    };
    if damping.method != DampingMethod::Damped {
        return alone(w, "the second moments hold nothing or cannot be factored", 0);
    }
    let mut target = match &moments.drift {
        Some(cross) if options.drift > 0.0 => {
            let corrected = drift_target(w, rows, cross, &natural, &ldl)?;
            let blend = |(w, corrected): (&f32, f32)| w + (options.drift as f32) * (corrected - w);
            w.iter().zip(corrected).map(blend).collect()
        }
        _ => w.to_vec(),
    };
    let exponents = match (&moments.output_energy, &spec.scheme) {
        // Rows of tiles have scales of their own; at a fixed rate factors of rows measured no better.
        (Some(_), SchemeSpec::Shift { .. }) | (None, _) => Vec::new(),
        (Some(energy), _) => outputs::exponents(&target, rows, &natural, energy),
    };
    outputs::divide(&mut target, &exponents);
    let plain = noise * isotropic_share(&target, rows, &natural);
    let unscaled = |mut target: Vec<f32>| {
        outputs::multiply(&mut target, &exponents);
        target
    };
    let outcome = match &spec.scheme {
        SchemeSpec::Shift { order: ShiftOrderKind::Tiles, .. } => {
            fixed_rate::tiles(spec, &target, rows, &moments.hessian, options)
        }
        SchemeSpec::Shift { .. } => fixed_rate::columns(spec, &target, rows, &moments.hessian, options, damping.sigma),
        _ => entropy_coded::encode(spec, (&target, &exponents), rows, &moments.hessian, &ldl),
    };
    match outcome {
        Ok((encoded, sweeps)) => {
            let proxy = proxy_of(&encoded, &target, &exponents)?;
            if proxy.is_nan() || proxy > plain {
                return alone(&unscaled(target), "feedback was no better", sweeps);
            }
            let payload_bps = payload(&encoded);
            Ok((encoded, FeedbackReport { damping, plain, proxy, payload_bps, sweeps, simpler: None }))
        }
        Err(FeedbackError::Codec(CodecError::Magnitude { .. })) => {
            alone(&unscaled(target), "a value is too far out for the step of its column", 0)
        }
        Err(FeedbackError::Codec(CodecError::TooFewBits { .. })) => {
            alone(&unscaled(target), "nearly all weights are zero", 0)
        }
        Err(error) => Err(error),
    }
}

/// What an error of the same power as the weights, spread evenly over each row, costs in units of tr(W H Wᵀ).
fn isotropic_share(w: &[f32], rows: usize, h: &Damped) -> f64 {
    let n = h.n();
    let trace: f64 = h.as_slice().iter().step_by(n + 1).sum();
    let weights: Vec<f64> = w.iter().map(|v| f64::from(*v)).collect();
    let power: f64 = weights.iter().map(|v| v * v).sum();
    power / n as f64 * trace / gosset_unisvq::proxy(&weights, rows, h.as_slice())
}
