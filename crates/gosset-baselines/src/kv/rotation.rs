//! Random rotations of a vector, and random projections of it.

use gosset_transform::{Domain, Hadamard, RandomStream, Signs};

use crate::lloyd::normals;

/// Independent standard normal numbers of a seed and stream.
fn random_numbers(seed: u64, stream: u64, n: usize) -> Vec<f64> {
    let mut words = RandomStream::new(seed, Domain::Rotation, stream);
    let mut word = move || (u64::from(words.next_u32()) << 32) | u64::from(words.next_u32());
    (0..n.div_ceil(2)).flat_map(|_| normals([word(), word()])).map(f64::from).take(n).collect()
}

/// A matrix that multiplies vectors, row by row and column by column, so that both products run along memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Matrix {
    rows: usize,
    by_row: Vec<f32>,
    by_col: Vec<f32>,
}

impl Matrix {
    /// Independent standard normal entries.
    pub(crate) fn gaussian(seed: u64, stream: u64, rows: usize, cols: usize) -> Self {
        Self::new(rows, cols, random_numbers(seed, stream, rows * cols))
    }

    /// An orthogonal matrix from the uniform (Haar) distribution: normal rows, orthonormalized in order.
    pub(crate) fn haar(seed: u64, stream: u64, d: usize) -> Self {
        let mut rows = random_numbers(seed, stream, d * d);
        for i in 0..d {
            let (done, row) = rows.split_at_mut(i * d);
            let row = &mut row[..d];
            // The second pass removes what rounding left of the first.
            for _ in 0..2 {
                for other in done.chunks_exact(d) {
                    let dot: f64 = other.iter().zip(&*row).map(|(a, b)| a * b).sum();
                    row.iter_mut().zip(other).for_each(|(a, b)| *a -= dot * b);
                }
                let norm = row.iter().map(|a| a * a).sum::<f64>().sqrt();
                row.iter_mut().for_each(|a| *a /= norm);
            }
        }
        Self::new(d, d, rows)
    }

    fn new(rows: usize, cols: usize, entries: Vec<f64>) -> Self {
        let by_row: Vec<f32> = entries.iter().map(|&v| v as f32).collect();
        let by_col =
            (0..cols).flat_map(|c| (0..rows).map(move |r| (r, c))).map(|(r, c)| by_row[r * cols + c]).collect();
        Self { rows, by_row, by_col }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// `out = M x`.
    pub(crate) fn forward(&self, x: &[f32], out: &mut [f32]) {
        combine(&self.by_col, x.iter().copied(), out);
    }

    /// `out = Mᵀ y`.
    pub(crate) fn transposed(&self, y: impl Iterator<Item = f32>, out: &mut [f32]) {
        combine(&self.by_row, y, out);
    }
}

/// Sum of `rows` times `weights`.
fn combine(rows: &[f32], weights: impl Iterator<Item = f32>, out: &mut [f32]) {
    out.fill(0.0);
    for (row, weight) in rows.chunks_exact(out.len()).zip(weights) {
        out.iter_mut().zip(row).for_each(|(out, v)| *out += weight * v);
    }
}

/// A random orthogonal map of vectors.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Rotation {
    /// Signs, then a Hadamard matrix of the whole width.
    Hadamard(Signs, Hadamard),
    /// Uniformly distributed.
    Haar(Matrix),
}

impl Rotation {
    /// Uniformly distributed over the rotations and reflections of `d` dimensions.
    pub(crate) fn haar(seed: u64, stream: u64, d: usize) -> Self {
        Self::Haar(Matrix::haar(seed, stream, d))
    }

    /// Random signs and a Hadamard matrix; uniformly distributed where no Hadamard matrix of that width is known.
    pub(crate) fn hadamard(seed: u64, stream: u64, d: usize) -> Self {
        // Signs are addressed by their seed alone.
        let own = seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Hadamard::new(d).map_or_else(|| Self::haar(seed, stream, d), |h| Self::Hadamard(Signs::new(own, d), h))
    }

    pub(crate) fn forward(&self, x: &mut [f32]) {
        match self {
            Self::Hadamard(signs, hadamard) => {
                signs.apply(x);
                hadamard.forward(x);
            }
            Self::Haar(matrix) => {
                let from = x.to_vec();
                matrix.forward(&from, x);
            }
        }
    }

    pub(crate) fn inverse(&self, x: &mut [f32]) {
        match self {
            Self::Hadamard(signs, hadamard) => {
                hadamard.inverse(x);
                signs.apply(x);
            }
            Self::Haar(matrix) => {
                let from = x.to_vec();
                matrix.transposed(from.into_iter(), x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_keep_norms_and_come_back() {
        for d in [8, 34, 64, 80, 96, 112, 128] {
            let x: Vec<f32> = (0..d).map(|i| (i as f32 * 0.37).sin() + 0.2).collect();
            for rotation in [Rotation::haar(5, 1, d), Rotation::hadamard(5, 1, d)] {
                let mut z = x.clone();
                rotation.forward(&mut z);
                let energy = |v: &[f32]| v.iter().map(|a| f64::from(a * a)).sum::<f64>();
                assert!((energy(&z) / energy(&x) - 1.0).abs() < 1e-5, "{d}");
                assert!(x.iter().zip(&z).any(|(a, b)| (a - b).abs() > 0.1));
                rotation.inverse(&mut z);
                assert!(x.iter().zip(&z).all(|(a, b)| (a - b).abs() < 1e-5), "{d}");
            }
        }
    }

    #[test]
    fn head_widths_of_models_have_hadamard_matrices() {
        for d in [64, 80, 96, 112, 128, 160, 192, 256] {
            assert!(matches!(Rotation::hadamard(0, 0, d), Rotation::Hadamard(..)), "{d}");
        }
    }

    /// Mean and variance of an entry over seeds; 1/d within 5 standard errors.
    #[test]
    fn entries_of_haar_matrices_have_the_moments_of_a_sphere() {
        let (d, n) = (8, 2000);
        let entries: Vec<f64> = (0..n).map(|seed| f64::from(Matrix::haar(seed, 0, d).by_row[10])).collect();
        let mean = entries.iter().sum::<f64>() / n as f64;
        let square = entries.iter().map(|v| v * v).sum::<f64>() / n as f64;
        let error = (1.0 / (d as f64 * n as f64)).sqrt();
        assert!(mean.abs() < 5.0 * error, "{mean}");
        assert!((square - 1.0 / d as f64).abs() < 5.0 * 2f64.sqrt() / d as f64 / (n as f64).sqrt(), "{square}");
    }
}
