//! A rounder by exhaustive search, and reproducible numbers.

use gosset_unisvq::{DampingSpec, Hessian, Round};

/// The affine grid s (q - (2^b - 1) / 2) in blocks of `d`, by exhaustive search over all its points: the lowest index wins ties.
pub(crate) struct ExhaustiveGrid {
    points: Vec<Vec<f64>>,
    /// Calls per block, in order.
    pub(crate) visited: Vec<usize>,
}

impl ExhaustiveGrid {
    pub(crate) fn new(bits: u32, d: u32, step: f64) -> Self {
        let levels = 1usize << bits;
        let digit = |index: usize, i: u32| index / levels.pow(d - 1 - i) % levels;
        let value = |q: usize| step * (q as f64 - (levels - 1) as f64 / 2.0);
        let points = (0..levels.pow(d)).map(|index| (0..d).map(|i| value(digit(index, i))).collect()).collect();
        Self { points, visited: Vec::new() }
    }

    /// Index of the nearest point to `x` in `metric`.
    pub(crate) fn index(&self, x: &[f32], metric: Option<&[f64]>) -> usize {
        let d = x.len();
        let cost = |point: &[f64]| -> f64 {
            let e: Vec<f64> = x.iter().zip(point).map(|(x, p)| f64::from(*x) - p).collect();
            match metric {
                None => e.iter().map(|e| e * e).sum(),
                Some(m) => (0..d * d).map(|i| e[i / d] * m[i] * e[i % d]).sum(),
            }
        };
        let mut best = (0, f64::INFINITY);
        for (i, point) in self.points.iter().enumerate() {
            // A narrower last block uses the first coordinates.
            let c = cost(&point[..d]);
            if c < best.1 {
                best = (i, c);
            }
        }
        best.0
    }
}

impl Round for ExhaustiveGrid {
    fn round(&mut self, block: usize, rows: usize, x: &[f32], metric: Option<&[f64]>, out: &mut [f32]) {
        self.visited.push(block);
        let d = x.len() / rows;
        for (x, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
            let point = &self.points[self.index(x, metric)];
            out.iter_mut().zip(point).for_each(|(o, p)| *o = *p as f32);
        }
    }
}

/// A grid of `levels` levels per value, in the Euclidean sense.
#[derive(Clone)]
pub(crate) struct FastGrid {
    pub(crate) step: f64,
    pub(crate) levels: u32,
}

impl FastGrid {
    fn level(&self, x: f64) -> f64 {
        let top = f64::from(self.levels - 1);
        self.step * ((x / self.step + top / 2.0).round().clamp(0.0, top) - top / 2.0)
    }
}

impl Round for FastGrid {
    fn round(&mut self, _: usize, _: usize, x: &[f32], _: Option<&[f64]>, out: &mut [f32]) {
        out.iter_mut().zip(x).for_each(|(o, x)| *o = self.level(f64::from(*x)) as f32);
    }

    fn fork(&self) -> Option<Box<dyn Round + Send>> {
        Some(Box::new(self.clone()))
    }
}

/// The generator of the golden numbers: sums of four draws of glibc's linear congruential generator.
pub(crate) struct Lcg(pub(crate) u64);

impl Lcg {
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = (self.0 * 1_103_515_245 + 12345) & 0x7fff_ffff;
        ((self.0 >> 16) & 0x7fff) as f64 / 32768.0
    }

    /// Mean 0, variance 1, nearly Gaussian.
    pub(crate) fn gaussian(&mut self) -> f64 {
        ((0..4).map(|_| self.uniform()).sum::<f64>() - 2.0) * 3f64.sqrt()
    }

    /// Exactly Gaussian up to the raster of 2^-30 of its uniform draws (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let mut fine = || (self.uniform() + self.uniform() / 32768.0) + 2f64.powi(-31);
        let (radius, angle) = ((-2.0 * fine().ln()).sqrt(), std::f64::consts::TAU * fine());
        radius * angle.cos()
    }

    pub(crate) fn matrix(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.gaussian() as f32).collect()
    }
}

/// `q` orthonormal rows in `n` dimensions by modified Gram-Schmidt, row-major.
pub(crate) fn random_orthogonal(n: usize, rng: &mut Lcg) -> Vec<f64> {
    let mut q: Vec<f64> = (0..n * n).map(|_| rng.gaussian()).collect();
    for i in 0..n {
        let (done, rest) = q.split_at_mut(i * n);
        let row = &mut rest[..n];
        for other in done.chunks_exact(n) {
            let dot: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
            row.iter_mut().zip(other).for_each(|(a, b)| *a -= dot * b);
        }
        let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
        row.iter_mut().for_each(|v| *v /= norm);
    }
    q
}

/// Qᵀ diag(i^-p) Q for a random orthogonal Q: second moments with a spectrum that falls with power `p`.
pub(crate) fn power_law(n: usize, p: f64, rng: &mut Lcg) -> Hessian {
    let q = random_orthogonal(n, rng);
    let mut h = vec![0.0; n * n];
    for (k, row) in q.chunks_exact(n).enumerate() {
        let weight = ((k + 1) as f64).powf(-p);
        for i in 0..n {
            let factor = weight * row[i];
            h[i * n..(i + 1) * n].iter_mut().zip(row).for_each(|(v, r)| *v += factor * r);
        }
    }
    Hessian::new(n, h, 10 * n as u64).unwrap()
}

/// Damping as it is used throughout.
pub(crate) fn damping() -> DampingSpec {
    DampingSpec::default()
}

/// The step of the two-bit grid of unit variance, 0.894427, over weights of RMS 1 scaled by c.
pub(crate) fn two_bit_step(c: f64) -> f64 {
    (12.0f64 / 15.0).sqrt() / c
}
