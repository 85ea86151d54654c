//! The affine grid and its nearest points.

use gosset_transform::{Domain, RandomStream};

use crate::matrix::{AffineMap, UniSvqHeader, centre};
use crate::parallel::map_chunks_mut;
use crate::{GridInit, Round};

/// Largest group.
const MAX_DIM: usize = 8;

/// Most nodes that the search for one nearest point visits.
///
/// Searches under the metrics of damped second moments end after some tens, rarely some thousands. A search that is cut off has the
/// best point that it has seen, which is never worse than successive rounding.
const MAX_NODES: u32 = 1 << 16;

/// Rows that one task rounds.
const ROWS: usize = 64;

/// The map that quantization starts from: a codebook A q + B of zero mean and unit mean variance per coordinate, for codes that are
/// uniform on 0 … 2^bits - 1.
///
/// A = s G and B = -s G (β 1) with β = (2^bits - 1)/2 and s = sqrt(12 d / ((2^(2 bits) - 1) |G|²)), |G|² being the sum of the squares of
/// the entries: sqrt(12 / (2^(2 bits) - 1)) for orthogonal G. Computed in f64 and rounded to f32.
///
/// # Panics
/// If `init` is [`GridInit::D4`] and `dim` is not 4.
#[must_use]
pub fn initial_map(init: GridInit, bits: u8, dim: u8, seed: u64) -> AffineMap {
    let d = usize::from(dim);
    let g: Vec<f64> = match init {
        GridInit::Identity => (0..d * d).map(|i| if i % (d + 1) == 0 { 1.0 } else { 0.0 }).collect(),
        GridInit::Random => random_orthogonal(d, seed),
        GridInit::D4 => {
            assert_eq!(d, 4, "dimension of D4");
            // Columns are the simple roots e1 - e2, e2 - e3, e3 - e4, e3 + e4 (Bourbaki, ch. VI, plate IV).
            vec![1., 0., 0., 0., -1., 1., 0., 0., 0., -1., 1., 1., 0., 0., -1., 1.]
        }
    };
    let levels = f64::from(1u32 << bits);
    let energy: f64 = g.iter().map(|v| v * v).sum();
    let s = (12.0 * d as f64 / ((levels * levels - 1.0) * energy)).sqrt();
    let b = g.chunks_exact(d).map(|row| -s * row.iter().sum::<f64>() * f64::from(centre(bits)));
    AffineMap { a: g.iter().map(|v| (s * v) as f32).collect(), b: b.map(|v| v as f32).collect() }
}

/// A random orthogonal matrix, row-major: Gram-Schmidt on rows of nearly Gaussian numbers, sums of twelve uniform ones from the stream
/// of (seed, [`Domain::Rotation`], d).
fn random_orthogonal(d: usize, seed: u64) -> Vec<f64> {
    let mut stream = RandomStream::new(seed, Domain::Rotation, d as u64);
    let mut uniform = || f64::from(stream.next_u32()) / (1u64 << 32) as f64;
    let mut g = Vec::with_capacity(d * d);
    while g.len() < d * d {
        let mut row: Vec<f64> = (0..d).map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0).collect();
        // Twice, which is enough for any row that is kept.
        for _ in 0..2 {
            for other in g.chunks_exact(d) {
                let product: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
                row.iter_mut().zip(other).for_each(|(a, b): (&mut f64, &f64)| *a -= product * b);
            }
        }
        let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
        if norm > 0.1 {
            g.extend(row.iter().map(|v| v / norm));
        }
    }
    g
}

/// The points `scale` · (A q + B) of groups of `dim` columns.
#[derive(Debug, Clone)]
pub struct Grid {
    dim: usize,
    bits: u8,
    scale: f32,
    map: AffineMap,
    is_centred: bool,
}

impl Grid {
    /// The grid of a header.
    ///
    /// # Panics
    /// If the header has another number of bits than 2 to 4, a group of more than 8 columns, or a map of another size.
    #[must_use]
    pub fn of(header: &UniSvqHeader) -> Self {
        let (dim, map) = (usize::from(header.dim), header.affine_map());
        assert!((2..=4).contains(&header.bits) && dim <= MAX_DIM, "{} bits, {dim} columns", header.bits);
        assert_eq!((map.a.len(), map.b.len()), (dim * dim, dim), "sizes of the affine map");
        Self { dim, bits: header.bits, scale: header.scale, map, is_centred: header.affine.is_none() }
    }

    /// The point of the codes of a group, or of the leading columns of one: the very values that a decoder finds.
    fn point(&self, q: &[u8], out: &mut [f32]) {
        if self.is_centred {
            let centre = centre(self.bits);
            out.iter_mut().zip(q).for_each(|(o, &q)| *o = self.scale * (f32::from(q) - centre));
            return;
        }
        for (i, out) in out.iter_mut().enumerate() {
            let row = &self.map.a[i * self.dim..];
            *out = self.scale * q.iter().zip(row).fold(self.map.b[i], |sum, (&q, &a)| sum + a * f32::from(q));
        }
    }

    /// A finder of nearest points of groups of `width` columns under `metric`, `[width, width]` and positive definite, Euclidean
    /// without. A metric that cannot be factored counts as none.
    ///
    /// # Panics
    /// If `width` is 0 or above the dimension, or the metric has another size.
    #[must_use]
    pub fn nearest(&self, width: usize, metric: Option<&[f64]>) -> NearestPoint {
        assert!((1..=self.dim).contains(&width), "{width} columns of a group of {}", self.dim);
        let mut finder = NearestPoint {
            width,
            top: (1 << self.bits) - 1,
            inverse: [[0.0; MAX_DIM]; MAX_DIM],
            b: [0.0; MAX_DIM],
            upper: [[0.0; MAX_DIM]; MAX_DIM],
            weight: [1.0; MAX_DIM],
            is_diagonal: true,
        };
        let scale = f64::from(self.scale);
        let a = |i: usize, j: usize| scale * f64::from(self.map.a[i * self.dim + j]);
        (0..width).for_each(|i| finder.b[i] = scale * f64::from(self.map.b[i]));
        let Some(inverse) = invert(width, a) else {
            // Every code gives the same point in some direction; the lowest codes are as good as any.
            return finder;
        };
        finder.inverse = inverse;
        let identity = |i: usize, j: usize| if i == j { 1.0 } else { 0.0 };
        let of_metric = metric.and_then(|m| {
            assert_eq!(m.len(), width * width, "entries of a metric of {width} columns");
            upper_factor(width, a, |i, j| m[i * width + j])
        });
        if let Some((upper, weight)) = of_metric.or_else(|| upper_factor(width, a, identity)) {
            (finder.upper, finder.weight) = (upper, weight);
        }
        // Rounding of A to f32 leaves 1e-7; what is decided by less than that is a tie.
        let is_small = |i: usize, j: usize| finder.upper[i][j].abs() < 1e-6;
        finder.is_diagonal = (0..width).all(|i| (i + 1..width).all(|j| is_small(i, j)));
        finder
    }

    /// The codes of points of this grid, row-major with `cols` columns.
    pub(crate) fn codes_of(&self, points: &[f32], cols: usize) -> Vec<u8> {
        let mut out = vec![0u8; points.len()];
        let whole = self.nearest(self.dim, None);
        let rest = (!cols.is_multiple_of(self.dim)).then(|| self.nearest(cols % self.dim, None));
        for (out, points) in out.chunks_exact_mut(cols).zip(points.chunks_exact(cols)) {
            for (q, x) in out.chunks_mut(self.dim).zip(points.chunks(self.dim)) {
                match &rest {
                    Some(rest) if x.len() < self.dim => rest.codes_of_point(x, q),
                    _ => whole.codes_of_point(x, q),
                }
            }
        }
        out
    }
}

/// Finds the codes of nearest points.
///
/// The error of a point in the metric M is |R (A⁻¹(x - B) - q)|² with R upper triangular, RᵀR = AᵀMA. Where R is diagonal (orthogonal A and
/// no metric, or one column) each code is rounded by itself, which is exact. Otherwise a depth-first search fixes codes from the last to the
/// first, nearest first (Schnorr and Euchner), and drops what exceeds the best point so far: exact too, up to 2^16 nodes.
/// Of points at the same distance that with the lexicographically lowest codes wins.
#[derive(Debug, Clone)]
pub struct NearestPoint {
    width: usize,
    /// Highest code.
    top: i32,
    /// The inverse of A.
    inverse: [[f64; MAX_DIM]; MAX_DIM],
    b: [f64; MAX_DIM],
    /// R with rows divided by their diagonal entries.
    upper: [[f64; MAX_DIM]; MAX_DIM],
    /// Squares of the diagonal of R.
    weight: [f64; MAX_DIM],
    is_diagonal: bool,
}

impl NearestPoint {
    /// Writes the codes of the point nearest to `x` to `q`.
    ///
    /// # Panics
    /// If either is shorter than the group.
    pub fn find(&self, x: &[f32], q: &mut [u8]) {
        match self.width {
            1 => self.find_in::<1>(x, q),
            2 => self.find_in::<2>(x, q),
            3 | 4 => self.find_in::<4>(x, q),
            _ => self.find_in::<8>(x, q),
        }
    }

    /// Groups of `D` codes; where the group is narrower, the further codes are zero and cost nothing.
    fn find_in<const D: usize>(&self, x: &[f32], q: &mut [u8]) {
        let y = self.coordinates::<D>(x);
        let codes = if self.is_diagonal {
            y.map(|y| round(y, self.top))
        } else {
            search(&y, &self.upper, &self.weight, self.top)
        };
        q[..self.width].iter_mut().zip(codes).for_each(|(q, code)| *q = code as u8);
    }

    /// A⁻¹ (x - B).
    fn coordinates<const D: usize>(&self, x: &[f32]) -> [f64; D] {
        let mut y = [0.0; D];
        for (i, y) in y.iter_mut().enumerate().take(self.width) {
            *y = (0..self.width).map(|j| self.inverse[i][j] * (f64::from(x[j]) - self.b[j])).sum();
        }
        y
    }

    /// The codes of `x`, a point up to rounding.
    fn codes_of_point(&self, x: &[f32], q: &mut [u8]) {
        let y = self.coordinates::<MAX_DIM>(x);
        q.iter_mut().zip(y).for_each(|(q, y)| *q = round(y, self.top) as u8);
    }
}

/// The nearest of 0 … `top`, the lower one of two.
fn round(y: f64, top: i32) -> i32 {
    // Rounded up by hand: without instructions beyond the baseline the library function costs as much as the rest of a search.
    let up = (y - 0.5).clamp(-1.0, f64::from(top));
    let whole = up as i32;
    (whole + i32::from(up > f64::from(whole))).max(0)
}

/// The search of [`NearestPoint`].
fn search<const D: usize>(
    y: &[f64; D],
    upper: &[[f64; MAX_DIM]; MAX_DIM],
    weight: &[f64; MAX_DIM],
    top: i32,
) -> [i32; D] {
    let (mut q, mut best) = ([0i32; D], [0i32; D]);
    let mut least = f64::INFINITY;
    // Of each level: the centre, the next codes below and above it, and what the levels behind cost.
    let (mut centre, mut below, mut above) = ([0.0; D], [0i32; D], [0i32; D]);
    let mut cost = [0.0; D];
    let mut level = D - 1;
    let mut nodes = 0;
    centre[level] = y[level];
    below[level] = round(y[level], top);
    above[level] = below[level] + 1;
    loop {
        let c = centre[level];
        let (lo, hi) = (below[level], above[level]);
        let code = if lo >= 0 && (hi > top || c - f64::from(lo) <= f64::from(hi) - c) {
            below[level] -= 1;
            lo
        } else if hi <= top {
            above[level] += 1;
            hi
        } else {
            -1
        };
        let off = c - f64::from(code);
        let distance = cost[level] + weight[level] * off * off;
        nodes += 1;
        // Codes come in the order of their distance: behind one that is too far, all are. Equal ones are looked at for their indices.
        if code < 0 || distance > least || nodes > MAX_NODES {
            level += 1;
            if level == D || (nodes > MAX_NODES && least.is_finite()) {
                return best;
            }
            continue;
        }
        q[level] = code;
        if level == 0 {
            if distance < least || q < best {
                (least, best) = (distance, q);
            }
            continue;
        }
        level -= 1;
        let feedback: f64 = (level + 1..D).map(|j| upper[level][j] * (y[j] - f64::from(q[j]))).sum();
        centre[level] = y[level] + feedback;
        below[level] = round(centre[level], top);
        above[level] = below[level] + 1;
        cost[level] = distance;
    }
}

type Square = [[f64; MAX_DIM]; MAX_DIM];

/// R with RᵀR = AᵀMA, rows divided by the diagonal, and the squares of the diagonal; `None` unless that is positive definite.
fn upper_factor(
    n: usize,
    a: impl Fn(usize, usize) -> f64,
    m: impl Fn(usize, usize) -> f64,
) -> Option<(Square, [f64; MAX_DIM])> {
    let (mut gram, mut weight) = ([[0.0; MAX_DIM]; MAX_DIM], [1.0; MAX_DIM]);
    for (i, row) in gram.iter_mut().enumerate().take(n) {
        for (j, entry) in row.iter_mut().enumerate().take(n) {
            *entry = (0..n).map(|k| a(k, i) * (0..n).map(|l| m(k, l) * a(l, j)).sum::<f64>()).sum();
        }
    }
    // Elimination from the first coordinate on: what is left of row k is row k of R times its diagonal entry.
    for k in 0..n {
        let pivot = gram[k][k];
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        weight[k] = pivot;
        let row = gram[k];
        for i in k + 1..n {
            let factor = row[i] / pivot;
            (k..n).for_each(|j| gram[i][j] -= factor * row[j]);
        }
        (k..n).for_each(|j| gram[k][j] = row[j] / pivot);
    }
    Some((gram, weight))
}

/// The inverse by Gauss and Jordan with row pivots, `None` for singular matrices.
fn invert(n: usize, a: impl Fn(usize, usize) -> f64) -> Option<Square> {
    let (mut m, mut inverse) = ([[0.0; MAX_DIM]; MAX_DIM], [[0.0; MAX_DIM]; MAX_DIM]);
    for i in 0..n {
        (0..n).for_each(|j| m[i][j] = a(i, j));
        inverse[i][i] = 1.0;
    }
    for k in 0..n {
        let p = (k..n).max_by(|&i, &j| m[i][k].abs().total_cmp(&m[j][k].abs()))?;
        m.swap(k, p);
        inverse.swap(k, p);
        let pivot = m[k][k];
        if pivot == 0.0 || !pivot.is_finite() {
            return None;
        }
        (0..n).for_each(|j| {
            m[k][j] /= pivot;
            inverse[k][j] /= pivot;
        });
        let (row, of_inverse) = (m[k], inverse[k]);
        for i in (0..n).filter(|&i| i != k) {
            let factor = m[i][k];
            (0..n).for_each(|j| {
                m[i][j] -= factor * row[j];
                inverse[i][j] -= factor * of_inverse[j];
            });
        }
    }
    Some(inverse)
}

impl Round for Grid {
    /// Rounds every row to its nearest point. Holds no state: codes are read off the points afterwards.
    fn round(&mut self, _block: usize, rows: usize, x: &[f32], metric: Option<&[f64]>, out: &mut [f32]) {
        let width = x.len() / rows.max(1);
        let finder = self.nearest(width, metric);
        let grid = &*self;
        map_chunks_mut(out, ROWS * width, |i, out| {
            let mut q = [0u8; MAX_DIM];
            let x = &x[i * ROWS * width..][..out.len()];
            for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                finder.find(x, &mut q);
                grid.point(&q[..width], out);
            }
        });
    }

    fn fork(&self) -> Option<Box<dyn Round + Send>> {
        Some(Box::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_rounded_up_from_half_below() {
        let special =
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e300, -0.0, 0.5, 0.5f64.next_up(), 14.5, 15.5];
        for y in special.into_iter().chain((-80..800).map(|i| f64::from(i) / 40.0)) {
            for top in [3, 7, 15] {
                assert_eq!(round(y, top), ((y - 0.5).ceil() as i32).clamp(0, top), "{y} of {top}");
            }
        }
    }
}
