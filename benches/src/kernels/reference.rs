//! What products must be: f64 sums over dequantized weights, and the bound that every output is held to.

use rayon::prelude::*;

/// Most that an output may be off, over the product of the norms of the activation and of the row of weights.
///
/// Activations are rounded to f16 after the rotation (2^-12 of each, at random signs) and sums of 16 to 32 terms are f16
/// in the fastest kernels (6e-4 to 9e-4 relative to the output where it was measured).
pub(super) const MAX_REL_ERR: f64 = 1e-3;

/// Products of activations with rows in f64, and the norms that errors are measured by.
#[derive(Debug, Clone)]
pub(super) struct Reference {
    /// Of each activation, for each row.
    y: Vec<f64>,
    /// Norm of each row.
    row_norms: Vec<f64>,
    /// Norm of each activation.
    x_norms: Vec<f64>,
    rows: usize,
}

impl Reference {
    /// Products of `x`, whole activations of `cols` values, with the rows of `weights`.
    pub(super) fn new(weights: &[f32], cols: usize, x: &[f32]) -> Self {
        let rows = weights.len() / cols;
        let norm = |v: &[f32]| v.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        let y = x.chunks_exact(cols).flat_map(|x| {
            let y: Vec<f64> = weights.par_chunks_exact(cols).map(|row| dot(row, x)).collect();
            y
        });
        Reference {
            y: y.collect(),
            row_norms: weights.chunks_exact(cols).map(norm).collect(),
            x_norms: x.chunks_exact(cols).map(norm).collect(),
            rows,
        }
    }

    /// Largest error of `found`, of which each activation has `n_rows`: the rows of the reference again and again.
    ///
    /// NaN counts as infinite, so that an output that was not written is found.
    pub(super) fn max_rel_err(&self, found: &[f32], n_rows: usize) -> f64 {
        let mut worst = 0.0f64;
        for (b, y) in found.chunks_exact(n_rows).enumerate() {
            let expected = &self.y[b * self.rows..][..self.rows];
            for (r, &y) in y.iter().enumerate() {
                let row = r % self.rows;
                let error = (f64::from(y) - expected[row]).abs();
                let scale = (self.x_norms[b] * self.row_norms[row]).max(f64::MIN_POSITIVE);
                let error = if error.is_nan() { f64::INFINITY } else { error / scale };
                worst = worst.max(error);
            }
        }
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_output_is_looked_at() {
        let weights = [1.0, 0.0, 0.0, 2.0];
        let x = [3.0, 4.0, 1.0, 0.0];
        let reference = Reference::new(&weights, 2, &x);
        let right = [3.0, 8.0, 3.0, 8.0, 1.0, 0.0, 1.0, 0.0];
        assert_eq!(reference.max_rel_err(&right, 4), 0.0);
        for i in 0..right.len() {
            let mut wrong = right;
            wrong[i] += 0.5;
            assert!(reference.max_rel_err(&wrong, 4) > 0.04, "{i}");
            wrong[i] = f32::NAN;
            assert_eq!(reference.max_rel_err(&wrong, 4), f64::INFINITY);
        }
    }
}
