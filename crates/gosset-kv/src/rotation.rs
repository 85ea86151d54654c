//! Orthonormal maps of one vector.

use std::f64::consts::TAU;

use gosset_transform::{Domain, Hadamard, RandomStream, Rht, Signs, TilePlan};

use crate::matrix::apply;
use crate::spec::Rotation;

/// An orthonormal map and its inverse.
#[derive(Debug, Clone)]
pub(crate) enum Rotator {
    /// The identity.
    None,
    /// Signs.
    Signs(Signs),
    /// Signs and a Walsh-Hadamard transform, of tiles where no Hadamard matrix of the width is known.
    Rht(Rht),
    /// Signs and a Hadamard transform of a width that is no power of two.
    Hadamard(Signs, Hadamard),
    /// A dense matrix.
    Dense(Dense),
}

impl Rotator {
    /// The rotation of vectors of `width` elements, at least 1, by `seed`.
    pub(crate) fn new(kind: Rotation, width: usize, seed: u64) -> Self {
        match kind {
            Rotation::None => Self::None,
            Rotation::Signs => Self::Signs(Signs::new(seed, width)),
            Rotation::Haar => Self::Dense(haar(width, seed)),
            Rotation::Rht => {
                if !width.is_power_of_two()
                    && let Some(hadamard) = Hadamard::new(width)
                {
                    return Self::Hadamard(Signs::new(seed, width), hadamard);
                }
                let tile = gosset_transform::MAX_TILE.min(1 << width.ilog2());
                let plan = TilePlan::new(width, tile).expect("the tile is a power of two and the width not 0");
                Self::Rht(Rht::new(plan, seed))
            }
        }
    }

    /// The map, in place; `scratch` has as many elements as the row.
    pub(crate) fn forward(&self, row: &mut [f32], scratch: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Signs(signs) => signs.apply(row),
            Self::Rht(rht) => rht.forward(row),
            Self::Hadamard(signs, hadamard) => {
                signs.apply(row);
                hadamard.forward(row);
            }
            Self::Dense(dense) => {
                scratch.copy_from_slice(row);
                apply(&dense.transposed, row.len(), scratch, row);
            }
        }
    }

    /// The inverse, in place.
    pub(crate) fn inverse(&self, row: &mut [f32], scratch: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Signs(signs) => signs.apply(row),
            Self::Rht(rht) => rht.inverse(row),
            Self::Hadamard(signs, hadamard) => {
                hadamard.inverse(row);
                signs.apply(row);
            }
            Self::Dense(dense) => {
                scratch.copy_from_slice(row);
                apply(&dense.matrix, row.len(), scratch, row);
            }
        }
    }
}

/// A square matrix and its transpose.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    matrix: Vec<f32>,
    transposed: Vec<f32>,
}

/// A matrix distributed uniformly among the orthonormal ones: rows of standard normal numbers made orthonormal one after the other,
/// which is the factor Q of a QR decomposition whose R has a positive diagonal.
///
/// Numbers come in pairs from two words of the stream of domain [`Domain::Rotation`], index 0, of the seed (Box and Muller); twice
/// through Gram-Schmidt makes rows orthonormal to the last digits of f64.
fn haar(width: usize, seed: u64) -> Dense {
    let mut stream = RandomStream::new(seed, Domain::Rotation, 0);
    let mut spare = None;
    let mut normal = || {
        spare.take().unwrap_or_else(|| {
            // In (0, 1], so that the logarithm is finite.
            let u = (f64::from(stream.next_u32()) + 1.0) / 4_294_967_296.0;
            let angle = TAU * f64::from(stream.next_u32()) / 4_294_967_296.0;
            let radius = (-2.0 * libm::log(u)).sqrt();
            spare = Some(radius * libm::sin(angle));
            radius * libm::cos(angle)
        })
    };
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(width);
    while rows.len() < width {
        let mut row: Vec<f64> = (0..width).map(|_| normal()).collect();
        for _ in 0..2 {
            for done in &rows {
                let product: f64 = row.iter().zip(done).map(|(a, b)| a * b).sum();
                row.iter_mut().zip(done).for_each(|(a, b)| *a -= product * b);
            }
        }
        let norm = row.iter().map(|a| a * a).sum::<f64>().sqrt();
        // A row that others span up to rounding has probability zero; another is drawn.
        if norm > 1e-9 {
            row.iter_mut().for_each(|a| *a /= norm);
            rows.push(row);
        }
    }
    let matrix = rows.iter().flatten().map(|&v| v as f32).collect();
    let transposed = (0..width).flat_map(|i| rows.iter().map(move |row| row[i] as f32)).collect();
    Dense { matrix, transposed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_keep_products_and_have_inverses() {
        for kind in [Rotation::None, Rotation::Signs, Rotation::Rht, Rotation::Haar] {
            for width in [2, 6, 50, 64, 80, 96, 112, 128, 256] {
                let rotator = Rotator::new(kind, width, 11);
                let mut stream = RandomStream::new(1, Domain::Rotation, 5);
                let mut vector =
                    || -> Vec<f32> { (0..width).map(|_| (stream.next_u32() >> 16) as f32 / 32768.0 - 1.0).collect() };
                let (x, q) = (vector(), vector());
                let (mut rx, mut rq, mut scratch) = (x.clone(), q.clone(), vec![0.0; width]);
                rotator.forward(&mut rx, &mut scratch);
                rotator.forward(&mut rq, &mut scratch);
                let dot =
                    |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
                assert!((dot(&rx, &rq) - dot(&x, &q)).abs() < 1e-4, "{kind:?} {width}");
                rotator.inverse(&mut rx, &mut scratch);
                assert!(rx.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5), "{kind:?} {width}");
            }
        }
    }

    /// The first column of a Haar matrix is uniform on the sphere: coordinates of a basis vector have mean 0 and variance 1/n.
    #[test]
    fn haar_spreads_a_basis_vector_evenly() {
        let (width, n_seeds) = (16, 2000);
        let (mut sums, mut squares) = ([0.0f64; 16], [0.0f64; 16]);
        for seed in 0..n_seeds {
            let mut row = vec![0.0; width];
            row[0] = 1.0;
            Rotator::new(Rotation::Haar, width, seed).forward(&mut row, &mut vec![0.0; width]);
            for (i, &v) in row.iter().enumerate() {
                sums[i] += f64::from(v);
                squares[i] += f64::from(v).powi(2);
            }
        }
        let n = n_seeds as f64;
        // Standard errors: 1/√(16 n) of the mean and about √2/16/√n of the square; five of each.
        assert!(sums.iter().all(|s| (s / n).abs() < 5.0 / (16.0 * n).sqrt()), "{sums:?}");
        assert!(squares.iter().all(|s| (16.0 * s / n - 1.0).abs() < 5.0 * 2f64.sqrt() / n.sqrt()), "{squares:?}");
    }
}
