//! One row of the table: rates, distortion and speeds of one method on one matrix.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gosset_codec::Rate;
use serde::{Deserialize, Serialize};

use super::matrix::Matrix;
use super::method::Quantizer;
use super::scratch::Scratch;

/// Bits of the one scale per row that a stream rate does not count.
const SCALE_BITS: u64 = 16;

/// Time that is enough to know the speed of encoding, and of decoding.
const ENOUGH: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(150)];

/// Runs that are enough.
const MAX_RUNS: usize = 20;

/// One measurement. The names of its fields are the columns of `docs/results/rd.csv`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `gaussian`, `laplace`, or `CHECKPOINT:TENSOR`.
    pub source: String,
    /// Name of the codec or baseline.
    pub codec: String,
    /// Payload that was asked for, in bits per weight.
    pub target_bps: f64,
    /// Code bits per weight.
    pub payload_bps: f64,
    /// Bits per weight of everything but one scale of 16 bits per row.
    pub stream_bps: f64,
    /// Bits per weight of everything; for codecs, of a container that holds this matrix alone.
    pub all_in_bps: f64,
    /// Mean squared error.
    pub mse: f64,
    /// Variance of the matrix over the mean squared error, in decibels; `None` without error or variance.
    pub snr_db: Option<f64>,
    /// Stream rate above the Shannon bound of a Gaussian source of this variance at this error; `None` where `snr_db` is.
    pub gap_bits: Option<f64>,
    /// Speed of encoding, the search for the rate included, in millions of weights per second on one thread.
    pub encode_mws: f64,
    /// Speed of decoding to f32, in the frame that products are computed in, in millions of weights per second on one thread.
    pub decode_mws: f64,
}

/// Measures a method at a rate, and names the type that stood in for it if one did. Correctness comes first: what is timed has been checked before.
pub(super) fn measure(
    m: &Matrix,
    codec: &str,
    target_bps: f64,
    quantizer: &dyn Quantizer,
    scratch: &Scratch,
) -> Result<(Row, Option<&'static str>)> {
    let n = m.values.len();
    let (encoded, first) = timed(|| quantizer.encode(m))?;
    let rate = encoded.rate();
    if rate.n != n as u64 {
        bail!("the rate is over {} weights, expected {n}", rate.n);
    }
    let mut decoded = vec![f32::NAN; n];
    encoded.decode(&mut decoded).context("decoding")?;
    if let Some(at) = decoded.iter().position(|v| !v.is_finite()) {
        bail!("row {}, column {}: decoded to {}, expected a finite value", at / m.cols, at % m.cols, decoded[at]);
    }
    let stored = encoded.stored_rate(scratch.path()).context("through a file")?.unwrap_or(rate);
    let mse = mean_squared_error(&m.values, &decoded);
    let stream_bps = stream_bps(&rate, m.rows);
    let ratio = Some(m.variance() / mse).filter(|ratio| ratio.is_finite() && *ratio > 0.0);

    let encode =
        if first < ENOUGH[0] { best_of(ENOUGH[0], || quantizer.encode(m).map(drop))?.min(first) } else { first };
    let decode = best_of(ENOUGH[1], || encoded.decode_for_product(&mut decoded))?;
    let mws = |time: Duration| n as f64 / time.as_secs_f64() / 1e6;
    let row = Row {
        source: m.source.clone(),
        codec: codec.to_owned(),
        target_bps,
        payload_bps: rate.payload_bps(),
        stream_bps,
        all_in_bps: stored.all_in_bps(),
        mse,
        snr_db: ratio.map(|ratio| 10.0 * ratio.log10()),
        gap_bits: ratio.map(|ratio| stream_bps - 0.5 * ratio.log2()),
        encode_mws: mws(encode),
        decode_mws: mws(decode),
    };
    Ok((row, encoded.fallback()))
}

/// Bits per weight of everything but one scale of 16 bits per row; further scales, those of groups, count.
pub(super) fn stream_bps(rate: &Rate, rows: usize) -> f64 {
    let scale_bits = (rate.scale_bits + rate.norm_bits).min(SCALE_BITS * rows as u64);
    (rate.total_bits() - scale_bits) as f64 / rate.n as f64
}

pub(super) fn mean_squared_error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>() / x.len() as f64
}

fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let start = Instant::now();
    let out = f()?;
    Ok((out, start.elapsed()))
}

/// The best time of as many runs as fit in `enough`, of at least three.
fn best_of(enough: Duration, mut f: impl FnMut() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    let mut best = Duration::MAX;
    for run in 0..MAX_RUNS {
        if run >= 3 && start.elapsed() > enough {
            break;
        }
        best = best.min(timed(&mut f)?.1);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rd::method::methods;

    #[test]
    fn a_row_obeys_the_formulas_of_the_page() {
        let m = Matrix::gaussian(32, 1024, 1);
        for method in methods().iter().filter(|method| method.name.ends_with("-rice")) {
            let row = measure(&m, &method.name, 3.0, &*method.at(3.0).unwrap(), &Scratch::new().unwrap()).unwrap().0;
            assert!((row.payload_bps - 3.0).abs() < 0.02, "{row:?}");
            assert!(row.payload_bps <= row.stream_bps && row.stream_bps < row.all_in_bps, "{row:?}");
            let bound = 0.5 * (m.variance() / row.mse).log2();
            assert_eq!(row.gap_bits, Some(row.stream_bps - bound));
            assert!((row.snr_db.unwrap() - bound * 20.0 * 2f64.log10()).abs() < 1e-9);
            assert!(row.encode_mws > 0.0 && row.decode_mws > 0.0);
        }
    }

    #[test]
    fn one_scale_per_row_is_free_and_no_more() {
        let rate = Rate { payload_bits: 1000, scale_bits: 160, n: 100, ..Rate::default() };
        assert_eq!(stream_bps(&rate, 10), 10.0);
        assert_eq!(stream_bps(&rate, 20), 10.0);
        assert_eq!(stream_bps(&rate, 5), 10.8);
    }

    #[test]
    fn a_matrix_without_variance_has_no_gap() {
        let m = Matrix { source: "zero".to_owned(), rows: 8, cols: 512, values: vec![0.0; 4096] };
        let method = &methods()[0];
        let row = measure(&m, &method.name, 3.0, &*method.at(3.0).unwrap(), &Scratch::new().unwrap()).unwrap().0;
        assert_eq!((row.mse, row.snr_db, row.gap_bits), (0.0, None, None));
    }
}
