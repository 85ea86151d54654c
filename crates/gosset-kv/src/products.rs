//! Products and softmax of attention over tiles, as loops over independent lanes that the compiler turns into vector code.
//!
//! Queries lie transposed, one lane each, so that no sum runs across lanes. Additions and multiplications are never contracted: results
//! are the same whatever instructions are used.

use std::ops::Range;

use gosset_transform::Kernel;

/// Queries are padded to a multiple of this.
pub(crate) const LANES: usize = 8;

/// `scores[c][r] = ⟨keys[c], query of lane r⟩`.
pub(crate) struct Scores<'a> {
    /// `[m, d]`.
    pub(crate) keys: &'a [f32],
    /// `[d, stride]`.
    pub(crate) queries: &'a [f32],
    pub(crate) d: usize,
    /// Which lanes, both ends multiples of [`LANES`].
    pub(crate) lanes: Range<usize>,
    pub(crate) stride: usize,
    /// `[m, lanes]`.
    pub(crate) scores: &'a mut [f32],
}

impl Kernel for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let width = self.lanes.len();
        let d = self.d;
        let mut lane = 0;
        while lane < width {
            let from = self.lanes.start + lane;
            if width - lane >= 2 * LANES {
                columns::<{ 2 * LANES }>(self.keys, self.queries, d, from, self.stride, lane, width, self.scores);
                lane += 2 * LANES;
            } else {
                columns::<LANES>(self.keys, self.queries, d, from, self.stride, lane, width, self.scores);
                lane += LANES;
            }
        }
    }
}

/// Scores of `W` lanes from `from` on, for four keys at a time.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one loop nest, cut out for its const parameter")]
fn columns<const W: usize>(
    keys: &[f32],
    queries: &[f32],
    d: usize,
    from: usize,
    stride: usize,
    lane: usize,
    width: usize,
    scores: &mut [f32],
) {
    const KEYS: usize = 4;
    let mut quads = keys.chunks_exact(KEYS * d);
    let mut outs = scores.chunks_exact_mut(KEYS * width);
    for (quad, out) in (&mut quads).zip(&mut outs) {
        let mut sums = [[0f32; W]; KEYS];
        let (a, rest) = quad.split_at(d);
        let (b, rest) = rest.split_at(d);
        let (c, e) = rest.split_at(d);
        for ((((query, a), b), c), e) in queries.chunks_exact(stride).zip(a).zip(b).zip(c).zip(e) {
            // An array: loops of unknown length over a tile end up on the stack, one float at a time.
            let Some(query) = query[from..].first_chunk::<W>() else { continue };
            for (sums, x) in sums.iter_mut().zip(&[*a, *b, *c, *e]) {
                for (sum, q) in sums.iter_mut().zip(query) {
                    *sum += x * q;
                }
            }
        }
        for (out, sums) in out.chunks_exact_mut(width).zip(&sums) {
            out[lane..lane + W].copy_from_slice(sums);
        }
    }
    for (key, out) in quads.remainder().chunks_exact(d).zip(outs.into_remainder().chunks_exact_mut(width)) {
        let mut sums = [0f32; W];
        for (query, x) in queries.chunks_exact(stride).zip(key) {
            let Some(query) = query[from..].first_chunk::<W>() else { continue };
            for (sum, q) in sums.iter_mut().zip(query) {
                *sum += x * q;
            }
        }
        out[lane..lane + W].copy_from_slice(&sums);
    }
}

/// Turns scores into weights `exp(score - max)` with the largest score so far, and counts them.
pub(crate) struct Softmax<'a> {
    /// `[m, lanes]`; minus infinity where a query does not see.
    pub(crate) scores: &'a mut [f32],
    pub(crate) max: &'a mut [f32],
    pub(crate) total: &'a mut [f32],
    /// What earlier sums are to be multiplied by.
    pub(crate) factors: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let width = self.max.len();
        for lane in (0..width).step_by(LANES) {
            let mut max = [0f32; LANES];
            max.copy_from_slice(&self.max[lane..lane + LANES]);
            let before = max;
            for row in self.scores.chunks_exact(width) {
                for (max, x) in max.iter_mut().zip(&row[lane..lane + LANES]) {
                    *max = if *x > *max { *x } else { *max };
                }
            }
            let mut shift = [0f32; LANES];
            let mut factor = [0f32; LANES];
            for i in 0..LANES {
                // Lanes that have seen nothing yet have weights of zero.
                shift[i] = if max[i] == f32::NEG_INFINITY { 0.0 } else { max[i] };
                factor[i] = exp(before[i] - shift[i]);
            }
            let mut total = [0f32; LANES];
            for (total, (sum, factor)) in total.iter_mut().zip(self.total[lane..].iter().zip(&factor)) {
                *total = sum * factor;
            }
            for row in self.scores.chunks_exact_mut(width) {
                let row = &mut row[lane..lane + LANES];
                for i in 0..LANES {
                    row[i] = exp(row[i] - shift[i]);
                    total[i] += row[i];
                }
            }
            self.max[lane..lane + LANES].copy_from_slice(&max);
            self.total[lane..lane + LANES].copy_from_slice(&total);
            self.factors[lane..lane + LANES].copy_from_slice(&factor);
        }
    }
}

/// `sums[r] += Σ_c weights[c][r] values[c]`.
pub(crate) struct Sums<'a> {
    /// `[m, d]`.
    pub(crate) values: &'a [f32],
    /// `[m, lanes]`.
    pub(crate) weights: &'a [f32],
    pub(crate) d: usize,
    /// `[lanes, d]`.
    pub(crate) sums: &'a mut [f32],
}

impl Kernel for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (d, width) = (self.d, self.sums.len() / self.d);
        for (quad, sums) in self.sums.chunks_exact_mut(ROWS * d).enumerate() {
            let mut at = 0;
            while at + WIDE <= d {
                let tile = weighted::<WIDE>(self.values, self.weights, d, width, quad * ROWS, at);
                for (tile, sums) in tile.iter().zip(sums.chunks_exact_mut(d)) {
                    sums[at..at + WIDE].iter_mut().zip(tile).for_each(|(sum, add)| *sum += add);
                }
                at += WIDE;
            }
            while at < d {
                let tile = weighted::<1>(self.values, self.weights, d, width, quad * ROWS, at);
                for (tile, sums) in tile.iter().zip(sums.chunks_exact_mut(d)) {
                    sums[at] += tile[0];
                }
                at += 1;
            }
        }
    }
}

/// Rows of sums that are made together: each value is loaded once for all of them.
const ROWS: usize = 4;
/// Coordinates of a tile: with [`ROWS`], as many sums as leave registers free.
const WIDE: usize = 16;

/// Weighted sums of coordinates `at..at + W` for the lanes from `lane` on.
#[inline(always)]
fn weighted<const W: usize>(
    values: &[f32],
    weights: &[f32],
    d: usize,
    width: usize,
    lane: usize,
    at: usize,
) -> [[f32; W]; ROWS] {
    let mut sums = [[0f32; W]; ROWS];
    for (value, weights) in values.chunks_exact(d).zip(weights.chunks_exact(width)) {
        let (Some(value), Some(weights)) = (value[at..].first_chunk::<W>(), weights[lane..].first_chunk::<ROWS>())
        else {
            continue;
        };
        for (sums, weight) in sums.iter_mut().zip(weights) {
            for (sum, v) in sums.iter_mut().zip(value) {
                *sum += weight * v;
            }
        }
    }
    sums
}

/// Multiplies rows of `[lanes, d]` by their factors; factors of 1 cost nothing.
pub(crate) fn scale_rows(sums: &mut [f32], factors: &[f32]) {
    let d = sums.len() / factors.len();
    for (row, factor) in sums.chunks_exact_mut(d).zip(factors) {
        if *factor != 1.0 {
            row.iter_mut().for_each(|sum| *sum *= factor);
        }
    }
}

/// `exp(x)` for x up to 0, without branches; 0 below -87, so that what is not seen has no weight.
///
/// `x = n ln 2 + r` with `|r| <= ln(2) / 2`; 2^n is put together from its bits, and `exp(r)` is its Taylor polynomial of degree 7, whose
/// remainder `(ln(2)/2)^8 / 8!` is 5e-9.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// 1.5 · 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts, the first of which has 9 bits: its products with every n here are exact.
    const LN2_HI: f32 = 355.0 / 512.0;
    const LN2_LO: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;
    const LEAST: f32 = -87.0;
    // Comparisons such that a NaN passes through.
    let bounded = if x < LEAST { LEAST } else { x };
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (bounded - n * LN2_HI) - n * LN2_LO;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    if x < LEAST { 0.0 } else { p * power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_transform::Backend;

    #[test]
    fn exp_is_close_and_zero_far_below() {
        for i in -870_000..=0 {
            let x = i as f32 / 10_000.0;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) - exact).abs() <= 3e-7 * exact, "{x}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!((exp(-88.0), exp(f32::NEG_INFINITY)), (0.0, 0.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn products_are_those_of_three_loops_on_every_backend() {
        // Sums of up to 80 products of numbers up to 1, each rounded to 2^-24.
        const TOLERANCE: f32 = 1e-5;
        let wave = |n: usize, step: f32| (0..n).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
        for (m, d, lanes) in [(1, 8, 8), (5, 20, 16), (64, 80, 24), (7, 33, 40)] {
            let (keys, queries, weights) = (wave(m * d, 0.7), wave(d * lanes, 1.3), wave(m * lanes, 0.4));
            let mut found = Vec::new();
            for backend in [Backend::scalar(), Backend::detect()] {
                let (mut scores, mut sums) = (vec![0.0; m * lanes], vec![0.5; lanes * d]);
                let all = 0..lanes;
                let scores_of =
                    Scores { keys: &keys, queries: &queries, d, lanes: all, stride: lanes, scores: &mut scores };
                backend.vectorize(scores_of);
                backend.vectorize(Sums { values: &keys, weights: &weights, d, sums: &mut sums });
                for c in 0..m {
                    for r in 0..lanes {
                        let exact: f32 = (0..d).map(|k| keys[c * d + k] * queries[k * lanes + r]).sum();
                        assert!((scores[c * lanes + r] - exact).abs() <= TOLERANCE);
                    }
                }
                for r in 0..lanes {
                    for k in 0..d {
                        let exact: f32 = (0..m).map(|c| weights[c * lanes + r] * keys[c * d + k]).sum();
                        assert!((sums[r * d + k] - exact - 0.5).abs() <= TOLERANCE);
                    }
                }
                found.push((scores, sums));
            }
            assert!(found[0] == found[1], "the same bits with and without vector instructions");
        }
    }
}
