//! How a tensor becomes bits, by name: a codec, a codec with error feedback, or the affine grid.
//!
//! | name | what | needs calibration |
//! |---|---|---|
//! | `NAME` of [`gosset_codec::codecs`] | rounding tensor by tensor | no |
//! | `NAME+feedback`, all but Rice codes | the same code, every column rounded in the light of the errors of others | yes |
//! | `unisvq`, `unisvq-d8`, … | the affine grid of [`gosset_unisvq`] with error feedback, 2 to 4 bits | yes |
//! | `unisvq…+ft` | the same, each block tuned to its unquantized outputs afterwards | yes |

use gosset_codec::{CodecError, CodecInfo, CodecSpec, RateTarget, RotationSpec, SchemeSpec, codecs};
use gosset_unisvq::{DampingSpec, Incoherence, UniSvqError, UniSvqHeader, UniSvqSpec, row_bytes};
use serde_json::{Value, json};

use crate::error::QuantizeError;
use crate::feedback::{self, FeedbackOptions};

/// What is appended to the name of a codec for error feedback.
const FEEDBACK: &str = "+feedback";

/// What opens the names of the affine grid, and what is appended for tuning.
const UNISVQ: &str = "unisvq";
/// See [`UNISVQ`].
const TUNE: &str = "+ft";

/// Bits per weight of the affine grid.
const UNISVQ_BITS: [f64; 3] = [2.0, 3.0, 4.0];

/// Least mean squared error of a uniform grid of 4, 8 and 16 levels on a unit Gaussian: what the affine grid makes of rotated weights.
///
/// Source: J. Max, *Quantizing for Minimum Distortion*, IRE Trans. IT-6 (1960), table II.
const UNIFORM_GRID_MSE: [f64; 3] = [0.118_846, 0.037_440, 0.011_543];

/// The variants of the affine grid that help texts name.
const UNISVQ_VARIANTS: [(&str, &str); 4] = [
    ("unisvq", "affine grid over 4 columns with error feedback: codes of fixed width, decoded without a table"),
    ("unisvq-d8", "the same over 8 columns"),
    ("unisvq-random", "the same from a random orthogonal map"),
    ("unisvq-full", "the same with transforms across the whole width"),
];

/// How one tensor is quantized, rate included.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Method {
    /// A codec by itself, which sees the weights only.
    Codec(CodecSpec),
    /// A codec with error feedback from the inputs of the layer.
    Feedback(CodecSpec),
    /// The affine grid with error feedback.
    UniSvq {
        /// Bits, groups, grid and frames.
        spec: UniSvqSpec,
        /// Whether blocks are tuned to their unquantized outputs.
        tune: bool,
    },
}

/// A method that can be asked for by name.
#[derive(Debug, Clone, PartialEq)]
pub struct MethodInfo {
    /// Name, such as `e8+feedback`.
    pub name: String,
    /// One line for people.
    pub about: String,
    /// Lowest payload that may be asked for, in bits per weight.
    pub min_bps: f64,
    /// Highest payload that may be asked for, in bits per weight.
    pub max_bps: f64,
    /// The payloads that may be asked for where there is a fixed set of them, ascending; `None` for a continuum.
    pub rates: Option<Vec<f64>>,
    /// Whether a run needs the activations of the model.
    pub needs_calibration: bool,
}

/// What a tensor is expected to take, and to lose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MethodEstimate {
    /// Bytes of its planes.
    pub(crate) bytes: u64,
    /// Signal-to-noise ratio in decibels of Gaussian values rounded without feedback.
    pub(crate) snr_db: f64,
}

/// All methods, for help texts: every codec, those that have a form with feedback, the common variants of the affine grid without and with tuning.
///
/// [`Method::parse`] knows more variants of the grid: see [`UniSvqSpec::named`].
///
/// ```
/// let methods = gosset_quantize::methods();
/// let find = |name: &str| methods.iter().find(|m| m.name == name);
/// assert!(find("e8").is_some_and(|m| !m.needs_calibration && m.rates.is_none()));
/// assert!(find("e8+feedback").is_some_and(|m| m.needs_calibration));
/// assert_eq!(find("shift-16+feedback").and_then(|m| m.rates.clone()), Some(vec![2.0, 3.0, 4.0, 5.0, 6.0]));
/// ```
pub fn methods() -> Vec<MethodInfo> {
    let plain = codecs().iter().map(of_codec);
    let feedback = codecs().iter().filter(|c| has_feedback(c)).map(with_feedback);
    let unisvq = UNISVQ_VARIANTS.iter().map(|(name, about)| grid_info(name, about));
    let tuned = UNISVQ_VARIANTS[..1]
        .iter()
        .map(|(name, _)| grid_info(&format!("{name}{TUNE}"), "unisvq, tuned block by block"));
    plain.chain(feedback).chain(unisvq).chain(tuned).collect()
}

fn grid_info(name: &str, about: &str) -> MethodInfo {
    let [min_bps, .., max_bps] = UNISVQ_BITS;
    let rates = Some(UNISVQ_BITS.to_vec());
    MethodInfo { name: name.to_owned(), about: about.to_owned(), min_bps, max_bps, rates, needs_calibration: true }
}

fn of_codec(codec: &CodecInfo) -> MethodInfo {
    MethodInfo {
        name: codec.name.to_owned(),
        about: codec.about.to_owned(),
        min_bps: codec.min_bps,
        max_bps: codec.max_bps,
        rates: codec.rates.map(<[f64]>::to_vec),
        needs_calibration: false,
    }
}

fn has_feedback(codec: &CodecInfo) -> bool {
    CodecSpec::named(codec.name, codec.min_bps).is_ok_and(|spec| feedback::is_supported(&spec.scheme))
}

fn with_feedback(codec: &CodecInfo) -> MethodInfo {
    MethodInfo {
        name: format!("{}{FEEDBACK}", codec.name),
        about: format!("{} with error feedback", codec.name),
        needs_calibration: true,
        ..of_codec(codec)
    }
}

impl Method {
    /// The method of that name at a payload of `rate` bits per weight, with tiles of 128 and seed 0.
    ///
    /// # Errors
    /// [`QuantizeError::Options`] for an unknown name and for a rate that the method cannot reach.
    ///
    /// ```
    /// use gosset_quantize::Method;
    /// assert_eq!(Method::parse("e8+feedback", 2.5)?.name(), "e8+feedback");
    /// let error = Method::parse("e8+feedback", 0.1).unwrap_err();
    /// assert_eq!(error.to_string(), "e8+feedback cannot reach 0.1 bits per weight, expected a payload from 0.5 to 10");
    /// # Ok::<(), gosset_quantize::QuantizeError>(())
    /// ```
    pub fn parse(name: &str, rate: f64) -> Result<Self, QuantizeError> {
        if name.starts_with(UNISVQ) {
            Self::info(name)?;
            let (grid, tune) = name.strip_suffix(TUNE).map_or((name, false), |grid| (grid, true));
            let spec = UniSvqSpec::named(grid, rate).map_err(|_| QuantizeError::MethodRate {
                method: name.to_owned(),
                asked: rate,
                expected: format!("one of {}", listed(&UNISVQ_BITS)),
            })?;
            return Ok(Method::UniSvq { spec, tune });
        }
        match name.strip_suffix(FEEDBACK) {
            Some(_) if Self::info(name).is_err() => Err(unknown(name)),
            Some(codec) => CodecSpec::named(codec, rate).map(Method::Feedback).map_err(|e| of_name(name, e)),
            None => CodecSpec::named(name, rate).map(Method::Codec).map_err(|e| of_name(name, e)),
        }
    }

    /// What there is to know of the method of that name, whether [`methods`] lists it or not.
    ///
    /// # Errors
    /// [`QuantizeError::UnknownMethod`].
    pub fn info(name: &str) -> Result<MethodInfo, QuantizeError> {
        if let Some(row) = methods().into_iter().find(|m| m.name == name) {
            return Ok(row);
        }
        let grid = name.strip_suffix(TUNE).unwrap_or(name);
        match UniSvqSpec::named(grid, UNISVQ_BITS[0]) {
            Ok(_) => Ok(grid_info(name, "a variant of the affine grid")),
            Err(_) => Err(unknown(name)),
        }
    }

    /// Name, as [`Method::parse`] takes it.
    pub fn name(&self) -> String {
        match self {
            Method::Codec(spec) => spec.name().to_owned(),
            Method::Feedback(spec) => format!("{}{FEEDBACK}", spec.name()),
            Method::UniSvq { spec, tune } => format!("{}{}", spec.name(), if *tune { TUNE } else { "" }),
        }
    }

    /// What is done to a tensor of which no activations are known: the codec alone, or the grid without feedback.
    pub(crate) fn without_calibration(&self) -> Self {
        match self {
            Method::Codec(spec) | Method::Feedback(spec) => Method::Codec(spec.clone()),
            Method::UniSvq { spec, .. } => Method::UniSvq { spec: spec.clone(), tune: false },
        }
    }

    /// Whether blocks are tuned after their matrices.
    pub(crate) fn is_tuned(&self) -> bool {
        matches!(self, Method::UniSvq { tune: true, .. })
    }

    /// Whether it wants to know what feeds the layer.
    pub fn needs_calibration(&self) -> bool {
        !matches!(self, Method::Codec(_))
    }

    /// The same method in the frame of that rotation.
    pub(crate) fn in_frame(mut self, tile: u32, seed: u64) -> Result<Self, QuantizeError> {
        match &mut self {
            Method::Codec(spec) | Method::Feedback(spec) => {
                spec.rotation = RotationSpec::Rht { tile, seed };
                spec.check().map_err(QuantizeError::Options)?;
            }
            Method::UniSvq { spec, .. } => {
                spec.seed = seed;
                if let Incoherence::Tiles { tile: old } = &mut spec.incoherence {
                    *old = tile;
                }
                let check = spec.clone().check();
                check.map_err(|source| QuantizeError::UniSvq { tensor: "every tensor".to_owned(), source })?;
            }
        }
        Ok(self)
    }

    /// The same method with another payload, which is one that it can reach.
    pub(crate) fn at_payload(&self, payload_bps: f64) -> Self {
        let at = |spec: &CodecSpec| CodecSpec { target: RateTarget::PayloadBps(payload_bps), ..spec.clone() };
        match self {
            Method::Codec(spec) => Method::Codec(at(spec)),
            Method::Feedback(spec) => Method::Feedback(at(spec)),
            Method::UniSvq { spec, tune } => {
                // The candidates of c and the passes are those of the name at that number of bits.
                let named = UniSvqSpec::named(&spec.name(), payload_bps);
                let (seed, incoherence) = (spec.seed, spec.incoherence);
                let spec = named.map_or_else(|_| spec.clone(), |named| UniSvqSpec { seed, incoherence, ..named });
                Method::UniSvq { spec, tune: *tune }
            }
        }
    }

    /// What the header of a matrix of the affine grid looks like, a tuned one having a map of its own.
    ///
    /// # Errors
    /// Those of the encoder for a shape that has no frames.
    pub(crate) fn grid_header(&self, rows: usize, cols: usize) -> Result<UniSvqHeader, UniSvqError> {
        let Method::UniSvq { spec, tune } = self else {
            return Err(UniSvqError::Parameter { name: "method", expected: UNISVQ.into(), found: self.name() });
        };
        // Frames depend on the widths alone: two thin matrices show both.
        let encoder = UniSvqSpec { scales: vec![1.0], passes: 0, ..spec.clone() }.check()?;
        let input = encoder.encode(&vec![0.0; cols], 1, cols, None)?.0.header;
        let output = encoder.encode(&vec![0.0; rows], rows, 1, None)?.0.header.output;
        let affine = tune.then(|| input.affine_map()).or_else(|| input.affine.clone());
        Ok(UniSvqHeader { rows: rows as u64, scale: 0.125, affine, output, ..input })
    }

    /// Everything that decides the result besides name, rate and frame, at the values it has: what a recipe holds of methods that
    /// need a calibration. `None` for a codec by itself.
    pub(crate) fn settings(&self) -> Option<Value> {
        let damping = DampingSpec::default();
        match self {
            Method::Codec(_) => None,
            Method::Feedback(_) => Some(json!({ "damping": damping, "feedback": FeedbackOptions::default() })),
            Method::UniSvq { spec, .. } => {
                let at = |bits: f64| match self.at_payload(bits) {
                    Method::UniSvq { spec, .. } => spec,
                    _ => spec.clone(),
                };
                Some(json!({ "damping": damping, "unisvq": UNISVQ_BITS.map(at) }))
            }
        }
    }

    /// Bytes that quantizing a matrix of that shape takes at most with feedback: weights, targets and reconstructions in f32 and f64, and
    /// second moments in the frame, damped and factored in f64. 0 for a codec by itself, whose memory is that of the matrix.
    pub(crate) fn peak_bytes(&self, (rows, cols): (usize, usize)) -> u64 {
        /// Copies of a matrix in f32 that live at the same time, some of them half of one in f64.
        const MATRICES: u64 = 8;
        let (n, square) = ((rows as u64).saturating_mul(cols as u64), (cols as u64).saturating_mul(cols as u64));
        // Copies of its second moments. All: those of a layer that calibration has left behind, damped, factored; and while that is done,
        // what is factored in the frame of the inputs, or the difference that corrects drift. Where the inputs are rotated for
        // the rounding alone, damped and factored in both frames.
        let moments = match self {
            Method::Codec(_) => return 0,
            Method::Feedback(CodecSpec { scheme: SchemeSpec::Shift { .. }, .. }) => 6,
            Method::Feedback(_) | Method::UniSvq { .. } => 4,
        };
        n.saturating_mul(4 * MATRICES).saturating_add(square.saturating_mul(8 * moments))
    }

    /// What a matrix is expected to take.
    pub(crate) fn estimate(&self, rows: usize, cols: usize) -> Result<MethodEstimate, CodecError> {
        let of_codec = |spec: &CodecSpec| {
            let estimate = spec.check()?.estimate(rows, cols);
            Ok(MethodEstimate { bytes: estimate.rate.total_bits().div_ceil(8), snr_db: estimate.snr_db })
        };
        match self {
            Method::Codec(spec) | Method::Feedback(spec) => of_codec(spec),
            Method::UniSvq { spec, tune } => {
                let codes = (rows as u64).saturating_mul(row_bytes(cols, spec.bits) as u64);
                let scales = if *tune { 2 * (rows as u64 + cols as u64) } else { 0 };
                let mse = UNIFORM_GRID_MSE[usize::from(spec.bits.clamp(2, 4)) - 2];
                Ok(MethodEstimate { bytes: codes.saturating_add(scales), snr_db: -10.0 * mse.log10() })
            }
        }
    }
}

/// The error of the codec under the name that was asked for.
fn of_name(name: &str, error: CodecError) -> QuantizeError {
    match error {
        CodecError::UnknownCodec { .. } => unknown(name),
        CodecError::RateRange { asked, min, max, .. } if name.ends_with(FEEDBACK) => QuantizeError::MethodRate {
            method: name.to_owned(),
            asked,
            expected: format!("a payload from {min} to {max}"),
        },
        CodecError::RateSet { asked, rates, .. } if name.ends_with(FEEDBACK) => {
            QuantizeError::MethodRate { method: name.to_owned(), asked, expected: format!("one of {}", listed(rates)) }
        }
        error => QuantizeError::Options(error),
    }
}

fn listed(rates: &[f64]) -> String {
    rates.iter().map(f64::to_string).collect::<Vec<_>>().join(", ")
}

fn unknown(name: &str) -> QuantizeError {
    let names = |of: fn(&CodecInfo) -> bool| {
        let names: Vec<&str> = codecs().iter().filter(|c| of(c)).map(|c| c.name).collect();
        names.join(", ")
    };
    QuantizeError::UnknownMethod { name: name.to_owned(), codecs: names(|_| true), with_feedback: names(has_feedback) }
}
