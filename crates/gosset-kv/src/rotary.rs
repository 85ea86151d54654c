//! The mean key under the rotary embedding: what the frame `pairs` takes off keys.
//!
//! A key k before the embedding is m + δ with the mean m of its head; at position p it is R_p m + R_p δ. Two things commute with R_p: taking
//! R_p m off, and one factor for each pair of coordinates that rotate together. So keys can be coded as attention sees them.
//!
//! The rotation of a position has the cosine and sine, rounded to f32, of its angle: turns × position, of which the whole part is taken off
//! in f64. They come from `libm`, the same on every machine.

use crate::RopePairs;

/// Positions that share a base angle when many are rotated.
pub(crate) const RUN: usize = 64;

/// Cosine and sine of an angle in turns.
fn unit(turns: f64) -> [f32; 2] {
    let angle = (turns - libm::floor(turns)) * std::f64::consts::TAU;
    [libm::cos(angle) as f32, libm::sin(angle) as f32]
}

/// Angles of all positions, and which coordinates they turn.
#[derive(Debug, Clone)]
pub(crate) struct Rotary {
    /// Turns per position, by pair.
    turns: Vec<f64>,
    pairs: RopePairs,
    /// Cosines and sines of positions `0..RUN`, `[RUN, pairs]`.
    fine: Vec<[f32; 2]>,
}

impl Rotary {
    pub(crate) fn new(turns: &[f64], pairs: RopePairs) -> Self {
        let fine = (0..RUN).flat_map(|i| turns.iter().map(move |t| unit(t * i as f64))).collect();
        Self { turns: turns.to_vec(), pairs, fine }
    }

    /// The two coordinates of pair `t`.
    pub(crate) fn coordinates(&self, t: usize) -> [usize; 2] {
        self.pairs.coordinates(t, 2 * self.turns.len())
    }

    /// Cosines and sines of a position, by pair.
    pub(crate) fn units(&self, position: u64) -> impl Iterator<Item = [f32; 2]> + '_ {
        self.turns.iter().map(move |t| unit(t * position as f64))
    }

    /// The mean as a position turns it, by pair: (m₀c − m₁s, m₀s + m₁c), every operation rounded to f32.
    fn turned(&self, position: u64, mean: &[f32]) -> impl Iterator<Item = [f32; 2]> {
        self.units(position).enumerate().map(|(t, [c, s])| {
            let [m0, m1] = self.coordinates(t).map(|i| mean[i]);
            [m0 * c - m1 * s, m0 * s + m1 * c]
        })
    }

    /// Takes the mean, as `position` turns it, off the key `x`.
    pub(crate) fn take_off(&self, position: u64, mean: &[f32], x: &mut [f32]) {
        for (t, [a, b]) in self.turned(position, mean).enumerate() {
            let [i, j] = self.coordinates(t);
            (x[i], x[j]) = (x[i] - a, x[j] - b);
        }
    }

    /// Adds rotated means to keys at positions from `first` on, `[n, head_dim]`: to rounding what [`take_off`](Self::take_off) takes.
    pub(crate) fn put_on(&self, first: u64, mean: &[f32], keys: &mut [f32]) {
        let (half, d) = (self.turns.len(), mean.len());
        let mut base = Vec::with_capacity(half);
        for (run, keys) in keys.chunks_mut(RUN * d).enumerate() {
            base.clear();
            base.extend(self.turned(first + (run * RUN) as u64, mean));
            for (key, units) in keys.chunks_exact_mut(d).zip(self.fine.chunks_exact(half)) {
                match self.pairs {
                    RopePairs::Halves => {
                        let (x, y) = key.split_at_mut(half);
                        for (((x, y), [a, b]), [c, s]) in x.iter_mut().zip(y).zip(&base).zip(units) {
                            *x += a * c - b * s;
                            *y += a * s + b * c;
                        }
                    }
                    RopePairs::Interleaved => {
                        for ((xy, [a, b]), [c, s]) in key.as_chunks_mut::<2>().0.iter_mut().zip(&base).zip(units) {
                            xy[0] += a * c - b * s;
                            xy[1] += a * s + b * c;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_off_is_put_back() {
        for pairs in [RopePairs::Halves, RopePairs::Interleaved] {
            let rotary = Rotary::new(&[1.0 / std::f64::consts::TAU, 0.01, 1e-4], pairs);
            let mean = [3.0, -1.0, 0.5, 100.0, -7.0, 0.25];
            let first = 130_000;
            let mut keys: Vec<f32> = (0..150 * 6).map(|i| (i as f32 * 0.37).sin()).collect();
            let original = keys.clone();
            for (i, key) in keys.chunks_exact_mut(6).enumerate() {
                rotary.take_off(first + i as u64, &mean, key);
            }
            assert!(keys.iter().zip(&original).any(|(a, b)| (a - b).abs() > 50.0));
            rotary.put_on(first, &mean, &mut keys);
            // Sums of products of numbers up to 100, four roundings each.
            let worst = keys.iter().zip(&original).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(worst < 5e-5, "{pairs:?}: {worst}");
        }
    }

    #[test]
    fn a_pair_turns_by_its_angle() {
        let rotary = Rotary::new(&[0.25], RopePairs::Halves);
        for (position, expected) in [(0, [1.0, 0.0]), (1, [0.0, 1.0]), (2, [-1.0, 0.0]), (4, [1.0, 0.0])] {
            let mut x = [0.0, 0.0];
            rotary.take_off(position, &[1.0, 0.0], &mut x);
            let close = x.iter().zip(expected).all(|(x, e): (_, f32)| (x + e).abs() < 1e-7);
            assert!(close, "{position}: {x:?}");
        }
    }
}
