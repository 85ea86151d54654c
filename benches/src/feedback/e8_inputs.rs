//! E8 along the input: blocks of 8 columns with feedback between blocks, the alternative to vectors that run along the outputs.
//!
//! Everything else is as in columns: outputs rotated, inputs in their own basis, steps of columns in proportion to 1/√D_k, gains by
//! classes of spread, the rate found by sweeps. Its payload is not of coded bytes: it is the length of an ideal arithmetic code
//! for the points, Gaussian with the spread of each column and normalized over the lattice;
//! the tests say how near that is to the real coder.

use anyhow::{Context, Result, bail, ensure};
use gosset_codec::{CodecSpec, RateTarget, RotationSpec, gaussian_payload_bps};
use gosset_lattice::{E8, Lattice};
use gosset_transform::{Rht, TilePlan};
use gosset_unisvq::{DampingSpec, Hessian, LdlqOptions, Round, ldlq};
use rayon::prelude::*;

use super::e8_metric::E8Metric;

/// Columns of a block.
const BLOCK: usize = 8;
/// Classes of spread, half an octave each, that share a gain.
const N_CLASSES: usize = 16;
/// Sweeps in search of the rate.
const MAX_SWEEPS: usize = 7;
/// A payload this near to the asked one is near enough, in bits per weight: that of the columns' search.
const TOLERANCE_BPS: f64 = 0.003;
/// Side information of a column, which is that of the columns' format: one byte.
const COLUMN_BITS: f64 = 8.0;

/// A matrix as it was rounded.
pub(super) struct Rounded {
    /// The reconstruction, `[rows, cols]` row-major.
    pub(super) values: Vec<f32>,
    /// Ideal length of the code of the points, in bits per weight.
    pub(super) payload_bps: f64,
    /// The same with one byte per column.
    pub(super) all_in_bps: f64,
}

/// Rounds `w`, `[rows, cols]` row-major, at a payload of `rate` bits per weight; in the metric D_k, or in the Euclidean one.
pub(super) fn round(
    w: &[f32],
    rows: usize,
    hessian: &Hessian,
    damping: &DampingSpec,
    rate: f64,
    in_metric: bool,
) -> Result<Rounded> {
    let cols = hessian.n();
    ensure!(cols.is_multiple_of(BLOCK), "{cols} inputs are no whole blocks of {BLOCK}");
    let spec = CodecSpec { target: RateTarget::PayloadBps(rate), ..CodecSpec::named("e8", rate)? };
    let RotationSpec::Rht { tile, seed } = spec.rotation else { bail!("e8 has no rotation") };
    let rht = Rht::new(TilePlan::new(rows, tile)?, seed);
    let mut columns = transposed(w, cols);
    columns.par_chunks_exact_mut(rows).for_each(|column| rht.forward(column));
    let rotated = transposed(&columns, rows);
    let (_, single) = damping.factor(hessian, 1)?;
    let (_, blocks) = damping.factor(hessian, BLOCK)?;
    let octaves = step_octaves(hessian, |k| single.metric(k)[0]);
    let powers = columns.par_chunks_exact(rows).map(mean_square).collect::<Vec<f64>>();
    let spreads: Vec<f64> =
        powers.iter().zip(&octaves).map(|(power, octave)| power.sqrt() * (-octave).exp2()).collect();
    let predicted = |octave: f64| -> f64 {
        let of = |spread: &f64| gaussian_payload_bps(&spec.scheme, spread * (-octave).exp2()).unwrap_or(0.0);
        spreads.iter().map(of).sum::<f64>() / cols as f64
    };
    let largest = spreads.iter().copied().fold(f64::MIN_POSITIVE, f64::max).log2();
    let mut gains = [1.0f32; N_CLASSES];
    let mut asked = rate;
    let mut best: Option<(f64, f64, Vec<f32>)> = None;
    for sweep in 0..MAX_SWEEPS {
        let octave = octave_for(&predicted, asked, largest);
        let steps: Vec<f32> = octaves.iter().map(|o| (o + octave).exp2() as f32).collect();
        let mut rounder = Blocks { steps: &steps, gains, sums: [[0.0; 2]; N_CLASSES], bits: 0.0, error: None };
        let options = LdlqOptions { metric: in_metric, ..LdlqOptions::default() };
        let mut out = vec![0.0; w.len()];
        ldlq(&rotated, rows, &blocks, options, &mut rounder, &mut out)?;
        if let Some(what) = rounder.error {
            bail!("{what}");
        }
        let found = rounder.bits / w.len() as f64;
        let error = (found - rate).abs();
        asked += rate - found;
        gains = rounder.sums.map(|[product, power]| if power > 0.0 { (product / power) as f32 } else { 1.0 });
        // The first sweep has no gains yet.
        if sweep > 0 && best.as_ref().is_none_or(|(least, ..)| error < *least) {
            best = Some((error, found, out));
        }
        if sweep > 0 && error <= TOLERANCE_BPS {
            break;
        }
    }
    let (_, payload_bps, out) = best.context("no sweep but the first")?;
    let mut columns = transposed(&out, cols);
    columns.par_chunks_exact_mut(rows).for_each(|column| rht.inverse(column));
    let values = transposed(&columns, rows);
    Ok(Rounded { values, payload_bps, all_in_bps: payload_bps + COLUMN_BITS / rows as f64 })
}

/// log2 of the step of each column in units of a common one: -log2(D_k)/2 in quarters of octaves, inputs that were never active
/// counting like the geometric mean of the others.
fn step_octaves(hessian: &Hessian, d: impl Fn(usize) -> f64) -> Vec<f64> {
    let n = hessian.n();
    let alive: Vec<bool> = hessian.as_slice().iter().step_by(n + 1).map(|h| *h > 0.0).collect();
    let logs: Vec<f64> = (0..n).map(|k| d(k).log2()).collect();
    let of_alive = || logs.iter().zip(&alive).filter_map(|(log, alive)| alive.then_some(*log));
    let mean = of_alive().sum::<f64>() / of_alive().count().max(1) as f64;
    let log = |(log, alive): (&f64, &bool)| if *alive { *log } else { log.max(mean) };
    logs.iter().zip(&alive).map(|pair| (-2.0 * log(pair)).round() / 4.0).collect()
}

/// log2 of the common step at which columns are predicted to take `asked` bits per weight.
fn octave_for(predicted: &impl Fn(f64) -> f64, asked: f64, largest: f64) -> f64 {
    let (mut fine, mut coarse) = (largest - 24.0, largest + 4.0);
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

/// The rounding rule.
struct Blocks<'a> {
    /// Of each column.
    steps: &'a [f32],
    gains: [f32; N_CLASSES],
    /// Σ x M p and Σ p M p of each class, M being the metric of the block in steps.
    sums: [[f64; 2]; N_CLASSES],
    bits: f64,
    error: Option<String>,
}

impl Round for Blocks<'_> {
    fn round(&mut self, block: usize, _rows: usize, x: &[f32], metric: Option<&[f64]>, out: &mut [f32]) {
        let steps = &self.steps[BLOCK * block..][..BLOCK];
        let scaled: Vec<[f32; BLOCK]> = rows_of(x).map(|x| std::array::from_fn(|i| x[i] / steps[i])).collect();
        let m: [f64; 64] = match metric {
            Some(d) => std::array::from_fn(|ij| d[ij] * f64::from(steps[ij / 8]) * f64::from(steps[ij % 8])),
            None => std::array::from_fn(|ij| if ij % 9 == 0 { 1.0 } else { 0.0 }),
        };
        let points: Vec<[i32; BLOCK]> = match metric {
            None => scaled.par_iter().map(E8::nearest_point).collect(),
            Some(_) => match E8Metric::new(&m) {
                Some(metric) => scaled.par_iter().map(|x| metric.nearest_point(x)).collect(),
                None => {
                    self.error = Some(format!("the metric of block {block} is not positive definite"));
                    return out.fill(0.0);
                }
            },
        };
        self.bits += code_bits(&points);
        let class = class_of(&scaled);
        let [product, power] = &mut self.sums[class];
        for (x, p) in scaled.iter().zip(&points) {
            for (i, row) in m.chunks_exact(BLOCK).enumerate() {
                let mp: f64 = row.iter().zip(p).map(|(m, p)| m * f64::from(*p)).sum();
                *product += f64::from(x[i]) * mp;
                *power += f64::from(p[i]) * mp;
            }
        }
        for (out, p) in out.chunks_exact_mut(BLOCK).zip(&points) {
            (0..BLOCK).for_each(|i| out[i] = self.gains[class] * steps[i] * p[i] as f32);
        }
    }
}

fn rows_of(x: &[f32]) -> impl Iterator<Item = &[f32; BLOCK]> {
    x.as_chunks::<BLOCK>().0.iter()
}

/// Class of the spread of a block, in half octaves below 2^6 steps.
fn class_of(scaled: &[[f32; BLOCK]]) -> usize {
    let power = mean_square(scaled.as_flattened());
    let class = (12.0 - power.max(f64::MIN_POSITIVE).log2()).round();
    class.clamp(0.0, (N_CLASSES - 1) as f64) as usize
}

fn mean_square(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64
}

/// Ideal length of the points of a block of columns, in bits: -log2 of exp(-Σ p_i²/(2 s_i²)), normalized over 2·E8. The spread s_i of
/// a coordinate is the root mean square of its column times a common factor, the best of a few.
fn code_bits(points: &[[i32; BLOCK]]) -> f64 {
    let n = points.len() as f64;
    let powers: [f64; BLOCK] = std::array::from_fn(|i| points.iter().map(|p| f64::from(p[i]).powi(2)).sum::<f64>() / n);
    let length = |factor: f64| -> f64 {
        // A column of zeros may not have a spread of 0 where others are odd.
        let variances = powers.map(|power| (factor * power).max(1e-3));
        let exponent: f64 = powers.iter().zip(&variances).map(|(power, variance)| power / (2.0 * variance)).sum();
        n * (exponent * std::f64::consts::LOG2_E + theta(&variances).log2())
    };
    (0..=12).map(|i| length(0.7 + 0.05 * f64::from(i))).fold(f64::INFINITY, f64::min)
}

/// Σ over 2·E8 of exp(-Σ p_i²/(2 v_i)): half the sums over all even vectors and over those weighed by (-1)^(Σ p_i/2), and half the sum
/// over all odd ones, whose weighed sum i^(Σ p_i) vanishes since p and -p cancel.
fn theta(variances: &[f64; BLOCK]) -> f64 {
    let mut products = [1.0f64; 3];
    for v in variances {
        let reach = (12.0 * v.sqrt()).ceil() as i32 + 2;
        let mut sums = [0.0f64; 3];
        for p in -reach..=reach {
            let mass = (-f64::from(p * p) / (2.0 * v)).exp();
            match p.rem_euclid(4) {
                0 => [sums[0], sums[1]] = [sums[0] + mass, sums[1] + mass],
                2 => [sums[0], sums[1]] = [sums[0] + mass, sums[1] - mass],
                _ => sums[2] += mass,
            }
        }
        products.iter_mut().zip(sums).for_each(|(product, sum)| *product *= sum);
    }
    0.5 * products.iter().sum::<f64>()
}

/// The transpose of a row-major matrix with `cols` columns.
fn transposed(w: &[f32], cols: usize) -> Vec<f32> {
    let rows = w.len() / cols;
    (0..w.len()).map(|i| w[i % rows * cols + i / rows]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_codec::calibrate::gaussian;

    #[test]
    fn the_sum_over_the_lattice_is_that_of_its_shells() {
        // Theta series of E8: 1 + 240 q + 2160 q² + 6720 q³ + 17520 q⁴ + …; norms of 2·E8 are 8, 16, 24, 32, ….
        let v = 1.0;
        let shells =
            [(0, 1.0), (1, 240.0), (2, 2160.0), (3, 6720.0), (4, 17520.0), (5, 30240.0), (6, 60480.0), (7, 82560.0)];
        let expected: f64 = shells.iter().map(|(m, n)| n * (-f64::from(8 * m) / (2.0 * v)).exp()).sum();
        assert!((theta(&[v; 8]) / expected - 1.0).abs() < 1e-6, "{} {expected}", theta(&[v; 8]));
    }

    #[test]
    fn ideal_lengths_are_near_the_rates_of_the_real_coder() {
        let spec = CodecSpec::named("e8", 3.0).unwrap();
        for alpha in [2.0f32, 4.0, 8.0] {
            let x: Vec<f32> = gaussian(8 * 4096, 7).iter().map(|v| alpha * v).collect();
            let points: Vec<[i32; 8]> = rows_of(&x).map(E8::nearest_point).collect();
            let ideal = code_bits(&points) / x.len() as f64;
            let real = gaussian_payload_bps(&spec.scheme, f64::from(alpha)).unwrap();
            // At 2 bits points are not quite Gaussian, which the tables of the real coder know: it takes 0.012 less.
            assert!(real - ideal > -0.02 && real - ideal < 0.05, "{alpha}: {ideal} {real}");
        }
    }

    #[test]
    fn blocks_reach_the_asked_rate_and_the_metric_helps() {
        let (rows, cols) = (64, 64);
        let w = gaussian(rows * cols, 1);
        // Inputs with correlations that fall off with their distance.
        let h: Vec<f64> = (0..cols * cols).map(|i| 0.9f64.powi((i / cols).abs_diff(i % cols) as i32)).collect();
        let hessian = Hessian::new(cols, h, 1000).unwrap();
        let damping = DampingSpec::default();
        let proxy = |in_metric: bool| {
            let rounded = round(&w, rows, &hessian, &damping, 3.0, in_metric).unwrap();
            assert!((rounded.payload_bps - 3.0).abs() < 0.02, "{}", rounded.payload_bps);
            assert_eq!(rounded.all_in_bps, rounded.payload_bps + 8.0 / 64.0);
            gosset_unisvq::relative_proxy(&w, &rounded.values, rows, hessian.as_slice())
        };
        let (metric, euclidean) = (proxy(true), proxy(false));
        assert!(metric < 0.95 * euclidean, "{metric} {euclidean}");
    }
}
