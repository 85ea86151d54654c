//! Simulation of the codecs on Gaussian data: where the stored rate curves come from.
//!
//! After rotation, weights are close to Gaussian, so one curve per lattice and code tells which alpha a rate takes
//! before any matrix is seen. [`curve`] makes it, [`table_source`] writes it down; the results are committed, and
//! encoding only reads those. (The logarithms here may differ in the last bit between machines, which is why nothing
//! here runs while a matrix is encoded.)

mod family;

use std::fmt::Write;

use gosset_entropy::{Histogram, STREAM_LEN};
use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};
use gosset_transform::philox4x32_10;

use crate::scheme::lattice::{SymbolStats, count_symbols};
use crate::{CodeKind, parallel};

pub use crate::scheme::trellis::{TrellisCurvePoint, TrellisFamily, trellis_code_cost, trellis_curve_source};
pub use family::family_source;

/// Distance of the points of the curve in doublings of alpha, before refinement.
const OCTAVE_STEP: f64 = 1.0 / 8.0;
/// The same after refinement, at least.
const MIN_OCTAVE_STEP: f64 = 1.0 / 256.0;
/// Error of straight lines between points of the curve that is refined away.
const CURVE_ERROR_BPS: f64 = 1e-3;
/// Highest rate of a stored curve, in bits per value.
const MAX_CURVE_BPS: f64 = 11.0;

/// Lowest rate of a stored curve, in bits per value: a little below the floor of the codecs.
fn min_curve_bps(code: CodeKind) -> f64 {
    match code {
        CodeKind::Rice => 1.02,
        CodeKind::Ans => 0.2,
    }
}

/// What a codec does to unit-variance data at one alpha.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Scale of the lattice.
    pub alpha: f64,
    /// Payload in bits per value, with the best parameters.
    pub payload_bps: f64,
    /// The best Rice parameter of each symbol class; empty for other codes.
    pub ks: Vec<u32>,
    /// Signal-to-noise ratio in decibels; with the least-squares gain where the code is ANS.
    pub snr_db: f64,
    /// Bits per value of an ideal coder: for Rice one with a static table per symbol position of a block, for ANS one with
    /// a static table per context.
    pub entropy_bps: f64,
}

/// `n` independent standard normal values, rounded to f32, from counters under `seed` by the Box-Muller transform.
///
/// ```
/// let x = gosset_codec::calibrate::gaussian(100_000, 1);
/// let mean_square = x.iter().map(|v| f64::from(v * v)).sum::<f64>() / 1e5;
/// assert!((mean_square - 1.0).abs() < 0.02);
/// ```
pub fn gaussian(n: usize, seed: u64) -> Vec<f32> {
    let key = [seed as u32, (seed >> 32) as u32];
    let block = |i: usize| {
        let words = philox4x32_10([i as u32, (i as u64 >> 32) as u32, 0, 0], key);
        // Odd multiples of 2^-33: inside (0, 1), so that the logarithm is finite.
        let [a, b, c, d] = words.map(|w| (2.0 * f64::from(w) + 1.0) / 8_589_934_592.0);
        let pair = |radius: f64, turn: f64| {
            let (sin, cos) = (std::f64::consts::TAU * turn).sin_cos();
            let radius = (-2.0 * radius.ln()).sqrt();
            [(radius * cos) as f32, (radius * sin) as f32]
        };
        let ([w, x], [y, z]) = (pair(a, b), pair(c, d));
        [w, x, y, z]
    };
    let mut values = vec![0.0; n];
    parallel::map_chunks_mut(&mut values, 4096, |chunk_idx, chunk| {
        for (i, out) in chunk.chunks_mut(4).enumerate() {
            out.copy_from_slice(&block(chunk_idx * 1024 + i)[..out.len()]);
        }
    });
    values
}

/// What a codec does to `values`, of unit variance and as many as its dimension divides, at scale `alpha`.
///
/// # Panics
/// If the number of values is no positive multiple of 8.
pub fn simulate(lattice: LatticeKind, code: CodeKind, alpha: f64, values: &[f32]) -> Simulation {
    assert!(!values.is_empty() && values.len().is_multiple_of(8), "{} values", values.len());
    let stats = count_symbols(lattice, code, values, alpha as f32, 1);
    let sums = lattice.dispatch(Distortion { values, alpha: alpha as f32 });
    let n = values.len() as f64;
    let (ks, noise, entropy_bits) = match &stats {
        SymbolStats::Rice(stats) => {
            let entropy_bits = sums.histograms.iter().map(|h| h.n() as f64 * h.entropy_bits()).sum();
            (stats.best_ks(), sums.noise(1.0), entropy_bits)
        }
        SymbolStats::Ans(stats) => (Vec::new(), sums.noise(sums.gain()), stats.conditional_entropy_bits()),
    };
    let snr_db = 10.0 * (sums.signal / noise).log10();
    Simulation { alpha, payload_bps: stats.bits() as f64 / n, ks, snr_db, entropy_bps: entropy_bits / n }
}

/// The rate curve of a codec on `values`, from below its floor to 11 bits per value: 8 points per doubling of alpha, and more
/// where a straight line between two of them would be off by more than 0.001 bits (where the best parameters change).
///
/// # Panics
/// If the number of values is no positive multiple of 8.
pub fn curve(lattice: LatticeKind, code: CodeKind, values: &[f32]) -> Vec<Simulation> {
    let at = |octave: f64| simulate(lattice, code, 2f64.powf(octave), values);
    // At an eighth, all four lattices map nearly every value to zero.
    let mut octave = -3.0;
    let mut before = at(octave);
    let mut points = Vec::new();
    while before.payload_bps < MAX_CURVE_BPS {
        let after = at(octave + OCTAVE_STEP);
        if after.payload_bps > min_curve_bps(code) {
            points.push(before.clone());
            refine(&before, &after, octave, OCTAVE_STEP, &at, &mut points);
        }
        (before, octave) = (after, octave + OCTAVE_STEP);
    }
    points.push(before);
    points
}

/// Appends points between two that are `step` octaves apart, until straight lines are good enough.
fn refine(
    a: &Simulation,
    b: &Simulation,
    octave: f64,
    step: f64,
    at: &impl Fn(f64) -> Simulation,
    points: &mut Vec<Simulation>,
) {
    let step = 0.5 * step;
    let mid = at(octave + step);
    let t = (mid.alpha - a.alpha) / (b.alpha - a.alpha);
    let straight = a.payload_bps + t * (b.payload_bps - a.payload_bps);
    if (mid.payload_bps - straight).abs() > CURVE_ERROR_BPS && step > MIN_OCTAVE_STEP {
        refine(a, &mid, octave, step, at, points);
        points.push(mid.clone());
        refine(&mid, b, octave + step, step, at, points);
    }
}

/// Rust source of the stored table of a curve: a `static` of the given name, with rows of alpha, payload and SNR.
pub fn table_source(name: &str, points: &[Simulation]) -> String {
    let mut text = format!("pub(super) static {name}: [[f64; 3]; {}] = [\n", points.len());
    for point in points {
        let _ = writeln!(text, "    [{:.6}, {:.5}, {:.3}],", point.alpha, point.payload_bps, point.snr_db);
    }
    text.push_str("];\n");
    text
}

struct Distortion<'a> {
    values: &'a [f32],
    alpha: f32,
}

/// Sums over values u and their reconstructions y/alpha.
#[derive(Default)]
struct Sums {
    /// Σ u².
    signal: f64,
    /// Σ u·y/alpha.
    product: f64,
    /// Σ (y/alpha)².
    power: f64,
    /// Of the stripped symbols, by position in the block.
    histograms: Vec<Histogram>,
}

impl Sums {
    /// Squared error of the reconstruction times `gain`.
    fn noise(&self, gain: f64) -> f64 {
        self.signal - 2.0 * gain * self.product + gain * gain * self.power
    }

    /// The gain with the least error.
    fn gain(&self) -> f64 {
        if self.power == 0.0 { 1.0 } else { self.product / self.power }
    }
}

impl LatticeVisitor for Distortion<'_> {
    type Out = Sums;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Sums {
        let chunk_len = 64 * STREAM_LEN;
        let n_chunks = self.values.len().div_ceil(chunk_len);
        let chunks = parallel::map_indexed(n_chunks, |chunk_idx| {
            let start = chunk_idx * chunk_len;
            let chunk = &self.values[start..(start + chunk_len).min(self.values.len())];
            let mut sums = Sums { histograms: vec![Histogram::new(); N], ..Sums::default() };
            let step = 1.0 / f64::from(self.alpha);
            for x in chunk.as_chunks::<N>().0 {
                let y = L::nearest_point(&x.map(|v| v * self.alpha));
                for (&x, y) in x.iter().zip(L::embed(&y)) {
                    let (x, y) = (f64::from(x), f64::from(y) * step);
                    sums.signal += x * x;
                    sums.product += x * y;
                    sums.power += y * y;
                }
                for (histogram, symbol) in sums.histograms.iter_mut().zip(L::strip(y)) {
                    histogram.add(symbol);
                }
            }
            sums
        });
        let mut all = Sums { histograms: vec![Histogram::new(); N], ..Sums::default() };
        for chunk in &chunks {
            all.signal += chunk.signal;
            all.product += chunk.product;
            all.power += chunk.power;
            all.histograms.iter_mut().zip(&chunk.histograms).for_each(|(all, part)| all.merge(part));
        }
        all
    }
}
