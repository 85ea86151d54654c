//! Rotations of any position held, for keys that are stored before them.

use gosset_kv::KeyRotation;

use crate::rope::{RopeFrequencies, RopeTable};

/// Positions of one row of the coarse table.
const STEP: usize = 128;

/// Cosines and sines of all positions from two small tables: the angle of a position is that of the last multiple of [`STEP`] plus that
/// of the rest.
///
/// A table with a row per position would take as much as a tenth of a cache at two bits. The sum of angles costs six operations a pair
/// and is off by the rounding of two f32 products, 1e-7.
#[derive(Debug, Clone)]
pub(crate) struct PositionRotation {
    frequencies: RopeFrequencies,
    half: usize,
    /// Positions `0..STEP`.
    fine: RopeTable,
    /// Cosines of the multiples of `STEP`, `[multiples, half]`.
    coarse_cos: Vec<f32>,
    /// Sines of them.
    coarse_sin: Vec<f32>,
}

impl PositionRotation {
    /// Without positions.
    pub(crate) fn new(frequencies: &RopeFrequencies) -> Self {
        let fine = frequencies.table(0..STEP);
        let half = fine.cos().len() / STEP;
        Self { frequencies: frequencies.clone(), half, fine, coarse_cos: Vec::new(), coarse_sin: Vec::new() }
    }

    /// Makes sure that positions below `len` can be rotated.
    pub(crate) fn cover(&mut self, len: usize) {
        let held = self.coarse_cos.len() / self.half;
        for multiple in held..len.div_ceil(STEP) {
            let row = self.frequencies.table(multiple * STEP..multiple * STEP + 1);
            self.coarse_cos.extend_from_slice(row.cos());
            self.coarse_sin.extend_from_slice(row.sin());
        }
    }

    /// Bytes on the heap.
    pub(crate) fn allocated_bytes(&self) -> usize {
        let coarse = self.coarse_cos.capacity() + self.coarse_sin.capacity();
        (coarse + self.fine.cos().len() + self.fine.sin().len()) * size_of::<f32>()
    }
}

impl KeyRotation for PositionRotation {
    /// # Panics
    ///
    /// For a position that was not covered; the cache covers all that it holds.
    fn rotate(&self, position: u64, key: &mut [f32]) {
        let (coarse, fine) = (position as usize / STEP * self.half, position as usize % STEP * self.half);
        let (coarse, fine) = (coarse..coarse + self.half, fine..fine + self.half);
        let (coarse_cos, coarse_sin) = (&self.coarse_cos[coarse.clone()], &self.coarse_sin[coarse]);
        let (fine_cos, fine_sin) = (&self.fine.cos()[fine.clone()], &self.fine.sin()[fine]);
        let (x, y) = key.split_at_mut(self.half);
        for i in 0..self.half {
            let cos = coarse_cos[i] * fine_cos[i] - coarse_sin[i] * fine_sin[i];
            let sin = coarse_sin[i] * fine_cos[i] + coarse_cos[i] * fine_sin[i];
            (x[i], y[i]) = (x[i] * cos - y[i] * sin, y[i] * cos + x[i] * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rope::RopeScaling;

    #[test]
    fn a_sum_of_two_angles_is_the_angle_of_the_position() {
        // Two products and a sum of numbers up to 1, each rounded to 2^-24, for cosine and sine; then once more for the coordinates.
        const TOLERANCE: f32 = 6e-7;
        let frequencies = RopeFrequencies::new(16, 10_000.0, &RopeScaling::None);
        let mut rotation = PositionRotation::new(&frequencies);
        let key: Vec<f32> = (0..16).map(|i| (i as f32 * 0.7).sin()).collect();
        for position in [0, 1, STEP - 1, STEP, STEP + 1, 1000, 131_071] {
            rotation.cover(position + 1);
            let (mut expected, mut found) = (vec![0.0; 16], key.clone());
            frequencies.table(position..position + 1).rotate(position, &key, 1.0, &mut expected);
            rotation.rotate(position as u64, &mut found);
            let error = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(error <= TOLERANCE, "{position}: {error}");
        }
    }

    #[test]
    fn tables_have_a_row_for_each_step_and_keep_it() {
        let mut rotation = PositionRotation::new(&RopeFrequencies::new(64, 10_000.0, &RopeScaling::None));
        rotation.cover(8192);
        assert_eq!(rotation.coarse_cos.len(), 8192 / STEP * 32);
        let before = rotation.coarse_cos.clone();
        rotation.cover(100);
        assert_eq!(rotation.coarse_cos, before);
    }
}
