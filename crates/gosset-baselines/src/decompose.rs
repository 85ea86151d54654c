//! Why one method is behind another: what its indices waste, and the rest.

/// A method at one point of its curve, on one matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MethodPoint {
    /// Bits per weight, without row scales.
    pub stream_bps: f64,
    /// Signal-to-noise ratio in dB.
    pub snr_db: f64,
}

/// The distance in bits per weight from a fixed-rate codebook to a reference at the same distortion, in two parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decomposition {
    /// Bits per weight that the codebook spends beyond the reference: the sum of the two parts.
    pub gap_bits: f64,
    /// Nominal bits less the entropy of the indices: what an entropy coder would save.
    pub slack_bits: f64,
    /// What is left: the loss of a finite codebook whose cells fill space less well.
    pub rest_bits: f64,
}

/// Splits the distance of a codebook at `nominal` with indices of `entropy_bps` from a reference on the same matrix.
///
/// The two points need not have the same distortion: the reference is moved along the slope of every good quantizer, 6.02 dB per
/// bit. Choose it close, so that little is moved.
///
/// ```
/// use gosset_baselines::{MethodPoint, decompose};
/// let higgs = MethodPoint { stream_bps: 3.0, snr_db: 15.27 };
/// let e8 = MethodPoint { stream_bps: 3.0, snr_db: 17.19 };
/// let parts = decompose(higgs, 2.9, e8);
/// assert!((parts.gap_bits - 0.319).abs() < 1e-3 && (parts.slack_bits - 0.1).abs() < 1e-9);
/// assert_eq!(parts.gap_bits, parts.slack_bits + parts.rest_bits);
/// ```
pub fn decompose(codebook: MethodPoint, entropy_bps: f64, reference: MethodPoint) -> Decomposition {
    let db_per_bit = 20.0 * std::f64::consts::LOG10_2;
    let reference_bps = reference.stream_bps + (codebook.snr_db - reference.snr_db) / db_per_bit;
    let slack_bits = codebook.stream_bps - entropy_bps;
    let rest_bits = entropy_bps - reference_bps;
    Decomposition { gap_bits: slack_bits + rest_bits, slack_bits, rest_bits }
}
