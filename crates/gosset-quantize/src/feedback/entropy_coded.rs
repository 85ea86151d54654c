//! Lattices and entropy-coded trellises along the outputs: one distortion level for all columns, found by the rate it gives.

use gosset_codec::{
    CodecError, CodecSpec, ColumnEncoder, ColumnOptions, EncodedMatrix, Gain, N_CLASSES, RateTarget, RotationHeader,
    SchemeSpec, gaussian_payload_bps,
};
use gosset_unisvq::{BlockLdl, Hessian, LdlqOptions, Round, ldlq};

use super::frame::{rotate_outputs, transposed};
use super::{FeedbackError, Outcome, steps};

/// A payload this near to the asked one is near enough, in bits per weight.
const TOLERANCE_BPS: f64 = 0.003;
/// Payload below which columns get the gains of least squares. They shrink what is stored by as much of the weights as the error is, and
/// that adds up over layers, whose rounding errors do not; from here on the error that gains would save is smaller than that.
const GAINS_BELOW_BPS: f64 = 2.5;
/// Sweeps in search of the rate.
const MAX_SWEEPS: u32 = 7;

/// Encodes the target `w`, `[rows, cols]` row-major, whose rows were divided by the factors of those exponents.
pub(super) fn encode(
    spec: &CodecSpec,
    (w, row_exponents): (&[f32], &[u8]),
    rows: usize,
    hessian: &Hessian,
    ldl: &BlockLdl,
) -> Outcome {
    let cols = ldl.n();
    let RateTarget::PayloadBps(asked) = spec.target else {
        return Err(CodecError::NoAlpha { codec: spec.name() }.into());
    };
    let weights = column_weights(hessian, ldl);
    let exponents = steps::exponents(&weights);
    let outputs = spec.rotation.header(rows)?;
    let options = |log_step: f64, gains| ColumnOptions {
        inputs: RotationHeader::None,
        outputs: outputs.clone(),
        step: log_step.exp2() as f32,
        exponents: exponents.clone(),
        reach: 1.0,
        gains,
        row_exponents: row_exponents.to_vec(),
    };
    let mut rotated = w.to_vec();
    if let Some(rht) = ColumnEncoder::new(spec, rows, cols, &options(0.0, [1.0; N_CLASSES]))?.outputs() {
        rotate_outputs(&mut rotated, rows, rht);
    }
    let spreads = spreads(&rotated, rows, cols, &exponents);
    let largest = spreads.iter().copied().fold(0.0, f64::max);
    // All but the widest columns have a class of their own; what feedback adds to them is within the step of a class.
    let reach = {
        let mut sorted = spreads.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        1.2 * sorted[cols - 1 - cols / 50]
    };
    if largest == 0.0 {
        // Nothing but zeros, which the codec alone stores in fewer words.
        return Err(CodecError::TooFewBits { n_weights: w.len() as u64, n_bits: 0 }.into());
    }
    let predicted = |log_step: f64| -> f64 {
        let step = log_step.exp2();
        let of = |spread: &f64| gaussian_payload_bps(&spec.scheme, spread / step).unwrap_or(0.0);
        spreads.iter().map(of).sum::<f64>() / cols as f64
    };
    let has_gains = !matches!(spec.scheme, SchemeSpec::Lattice { gain: Gain::None, .. });
    let mut gains = [1.0; N_CLASSES];
    let mut asked_of_curve = asked;
    let mut best: Option<(f64, EncodedMatrix)> = None;
    let mut sweeps = 0;
    let mut out = vec![0.0; w.len()];
    for sweep in 1..=MAX_SWEEPS {
        let log_step = step_for(&predicted, asked_of_curve, largest);
        let mut options = options(log_step, gains);
        options.reach = (reach / log_step.exp2()) as f32;
        let mut rounder = Columns::new(ColumnEncoder::new(spec, rows, cols, &options)?, Vec::new());
        ldlq(&rotated, rows, ldl, LdlqOptions::default(), &mut rounder, &mut out)?;
        let (encoded, new_gains) = rounder.finish()?;
        let found = encoded.rate().payload_bps();
        let error = (found - asked).abs();
        asked_of_curve += asked - found;
        // Gains of the first sweep are not known yet, so it never counts if another one follows.
        let is_settled = error <= TOLERANCE_BPS && sweep > 1;
        if sweep > 1 && best.as_ref().is_none_or(|(least, _)| error < *least) {
            best = Some((error, encoded));
        }
        if has_gains && asked < GAINS_BELOW_BPS {
            gains = new_gains;
        }
        sweeps = sweep;
        if is_settled {
            break;
        }
    }
    let (_, encoded) = best.expect("every sweep but the first leaves something");
    Ok((encoded, sweeps))
}

/// D_k, with that of an input that was never active raised to the geometric mean of the others: its weights are rounded as finely as
/// those of an ordinary input, since nothing is known of it.
fn column_weights(hessian: &Hessian, ldl: &BlockLdl) -> Vec<f64> {
    let n = ldl.n();
    let h = hessian.as_slice();
    let d = |k: usize| ldl.metric(k)[0];
    let alive = |k: &usize| h[k * n + k] > 0.0;
    let (sum, count) = (0..n).filter(alive).fold((0.0, 0u32), |(sum, count), k| (sum + d(k).log2(), count + 1));
    let mean = (sum / f64::from(count.max(1))).exp2();
    (0..n).map(|k| if alive(&k) { d(k) } else { d(k).max(mean) }).collect()
}

/// Spread of each column in units of its step, for a base step of 1.
fn spreads(w: &[f32], rows: usize, cols: usize, exponents: &[u8]) -> Vec<f64> {
    let columns = transposed(w, cols);
    let spread = |(column, exponent): (&[f32], &u8)| {
        let power: f64 = column.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        (power / rows as f64).sqrt() * (-f64::from(*exponent) / 4.0).exp2()
    };
    columns.chunks_exact(rows).zip(exponents).map(spread).collect()
}

/// log2 of the base step at which columns are predicted to take `asked` bits per weight.
fn step_for(predicted: &impl Fn(f64) -> f64, asked: f64, largest: f64) -> f64 {
    /// Octaves on either side of the largest spread.
    const REACH: f64 = 24.0;
    let (mut fine, mut coarse) = (largest.log2() - REACH, largest.log2() + 4.0);
    for _ in 0..60 {
        let middle = 0.5 * (fine + coarse);
        if predicted(middle) > asked {
            fine = middle;
        } else {
            coarse = middle;
        }
    }
    0.5 * (fine + coarse)
}

/// The rounding rule of a column encoder.
pub(super) struct Columns {
    encoder: ColumnEncoder,
    /// Which column each block is; block `k` is column `k` where this is empty.
    order: Vec<usize>,
    /// What went wrong first; columns after it are zero.
    error: Option<CodecError>,
}

impl Columns {
    pub(super) fn new(encoder: ColumnEncoder, order: Vec<usize>) -> Self {
        Self { encoder, order, error: None }
    }

    /// The matrix, and the least-squares gains that it would have had.
    pub(super) fn finish(self) -> Result<(EncodedMatrix, [f32; N_CLASSES]), FeedbackError> {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        let gains = self.encoder.sums().map(|sums| sums.gain());
        Ok((self.encoder.finish()?, gains))
    }
}

impl Round for Columns {
    fn round(&mut self, block: usize, _rows: usize, x: &[f32], _metric: Option<&[f64]>, out: &mut [f32]) {
        if self.error.is_none() {
            let col = self.order.get(block).copied().unwrap_or(block);
            self.error = self.encoder.round_column(col, x, out).err();
        }
        if self.error.is_some() {
            out.fill(0.0);
        }
    }
}
