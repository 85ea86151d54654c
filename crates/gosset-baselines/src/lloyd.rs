//! Codebooks of least squared error for iid N(0, 1) values, by Lloyd's algorithm run to convergence.
//!
//! In one dimension the two conditions (thresholds half-way between levels, levels at the means of their cells) are iterated with
//! the normal distribution itself. In two and four dimensions cells and means are taken over a fixed set of points: an additive
//! recurrence, which fills the unit cube more evenly than random numbers, carried to normal values by the Box-Muller map. Such sets
//! hold a thousand points or more per codeword, so that what is learned is the distribution and not the points.
//!
//! Everything is a function of its arguments: elementary functions come from `libm`, sums have a fixed order, and the number of
//! threads does not show.

use std::thread;

use gosset_transform::{Domain, RandomStream};

use crate::nearest::CodeTree;

/// Parts that the points are cut into, whatever the number of threads.
const PARTS: usize = 64;

/// Relative improvement below which Lloyd's algorithm has converged.
const CONVERGED: f64 = 2e-6;

/// `n` points of P normal coordinates that fill the space evenly; P is even.
pub fn even_normals<const P: usize>(n: usize) -> Vec<[f32; P]> {
    // Generalized golden ratio: the root of x^(P+1) = x + 1. Its powers are the steps of the recurrence (Roberts 2018).
    let mut root = 1.5f64;
    for _ in 0..64 {
        root = libm::pow(1.0 + root, 1.0 / (P as f64 + 1.0));
    }
    let steps: [u64; P] =
        std::array::from_fn(|i| (libm::pow(root, -(i as f64 + 1.0)) * 2f64.powi(53)) as u64 * (1 << 11));
    let mut at = [1u64 << 63; P];
    let point = |_| {
        for (at, step) in at.iter_mut().zip(steps) {
            *at = at.wrapping_add(step);
        }
        normals(at)
    };
    (0..n).map(point).collect()
}

/// `n` points of P independent normal coordinates; P is even.
pub fn random_normals<const P: usize>(n: usize, seed: u64) -> Vec<[f32; P]> {
    let mut stream = RandomStream::new(seed, Domain::Rotation, 0);
    let mut word = move || (u64::from(stream.next_u32()) << 32) | u64::from(stream.next_u32());
    (0..n).map(|_| normals(std::array::from_fn(|_| word()))).collect()
}

/// Box and Muller's map of pairs of uniform 64-bit words to pairs of normal values.
pub(crate) fn normals<const P: usize>(words: [u64; P]) -> [f32; P] {
    let mut out = [0.0; P];
    for (out, words) in out.as_chunks_mut::<2>().0.iter_mut().zip(words.as_chunks::<2>().0) {
        // In (0, 1]: the logarithm is finite.
        let unit = |word: u64| ((word >> 11) + 1) as f64 / 2f64.powi(53);
        let radius = libm::sqrt(-2.0 * libm::log(unit(words[0])));
        let (sin, cos) = libm::sincos(std::f64::consts::TAU * unit(words[1]));
        *out = [(radius * cos) as f32, (radius * sin) as f32];
    }
    out
}

/// A codebook of `n` random points with the density that is best for fine quantization: normal with variance (P + 2) / P (Zador).
pub fn random_start<const P: usize>(n: usize, seed: u64) -> Vec<[f32; P]> {
    let spread = libm::sqrt((P as f64 + 2.0) / P as f64) as f32;
    random_normals::<P>(n, seed).into_iter().map(|point| point.map(|v| v * spread)).collect()
}

/// A codebook of `n` points in the plane on a Fibonacci spiral of that same density: locally close to hexagonal everywhere.
pub fn spiral_start(n: usize) -> Vec<[f32; 2]> {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let point = |i: usize| {
        let radius = libm::sqrt(-4.0 * libm::log(1.0 - (i as f64 + 0.5) / n as f64));
        let (sin, cos) = libm::sincos(std::f64::consts::TAU * ((i as f64 * GOLDEN) % 1.0));
        [(radius * cos) as f32, (radius * sin) as f32]
    };
    (0..n).map(point).collect()
}

/// What one pass over the points gives.
struct Pass<const P: usize> {
    sums: Vec<[f64; P]>,
    counts: Vec<u64>,
    /// Squared error of each cell.
    errors: Vec<f64>,
    squared_error: f64,
}

impl<const P: usize> Pass<P> {
    fn empty(n: usize) -> Self {
        Pass { sums: vec![[0.0; P]; n], counts: vec![0; n], errors: vec![0.0; n], squared_error: 0.0 }
    }

    /// The mean of every cell. A codeword without a point takes a part of the cell with the largest error that is still whole.
    fn means(&self) -> Vec<[f32; P]> {
        let mut means: Vec<[f32; P]> = vec![[0.0; P]; self.counts.len()];
        for ((mean, sum), &count) in means.iter_mut().zip(&self.sums).zip(&self.counts) {
            *mean = sum.map(|s| (s / count.max(1) as f64) as f32);
        }
        let mut by_error: Vec<usize> = (0..means.len()).filter(|&i| self.counts[i] > 1).collect();
        by_error.sort_by(|&a, &b| self.errors[b].total_cmp(&self.errors[a]).then(a.cmp(&b)));
        let unused = (0..means.len()).filter(|&i| self.counts[i] == 0);
        for (unused, &large) in unused.zip(&by_error) {
            let size = libm::sqrt(self.errors[large] / (self.counts[large] * P as u64) as f64) as f32;
            means[unused] = means[large];
            means[unused][0] += 0.5 * size;
            means[large][0] -= 0.5 * size;
        }
        means
    }
}

/// Squared error per coordinate of `codebook` on `points`.
pub fn mse<const P: usize>(codebook: &[[f32; P]], points: &[[f32; P]]) -> f64 {
    pass(codebook, points).squared_error / (points.len() * P) as f64
}

/// Lloyd's algorithm on `points` from `codebook`, at most `passes` passes; the squared error per coordinate at the end.
///
/// A codeword without a point takes a part of the cell with the largest error.
pub fn lloyd<const P: usize>(codebook: &mut [[f32; P]], points: &[[f32; P]], passes: usize) -> f64 {
    let mut before = f64::INFINITY;
    for _ in 0..passes {
        let pass = pass(codebook, points);
        codebook.copy_from_slice(&pass.means());
        let now = pass.squared_error;
        if before - now < now * CONVERGED {
            break;
        }
        before = now;
    }
    mse(codebook, points)
}

/// Lloyd's algorithm after `noisy` passes in which every codeword is also moved at random, by `shake` times the distance scale of its
/// place in the first of them and by less and less in the later ones, so that codewords leave arrangements that are merely locally best.
///
/// Source: Zeger, Vaisey, Gersho, *Globally optimal vector quantizer design by stochastic relaxation*, 1992.
pub fn relax<const P: usize>(
    codebook: &mut [[f32; P]],
    points: &[[f32; P]],
    noisy: usize,
    passes: usize,
    shake: f64,
    seed: u64,
) -> f64 {
    let mut stream = RandomStream::new(seed, Domain::Dither, 0);
    let mut word = move || (u64::from(stream.next_u32()) << 32) | u64::from(stream.next_u32());
    for noisy_pass in 0..noisy {
        let pass = pass(codebook, points);
        let left = 1.0 - noisy_pass as f64 / noisy as f64;
        let amount = shake * left * left * left;
        // Cells of the best quantizer have equal parts of the error; that part over the points of a cell is its squared size.
        let part = pass.squared_error / (codebook.len() * P) as f64;
        codebook.copy_from_slice(&pass.means());
        for (codeword, &count) in codebook.iter_mut().zip(&pass.counts).filter(|(_, count)| **count > 0) {
            let noise: [f32; P] = normals(std::array::from_fn(|_| word()));
            let step = (amount * libm::sqrt(part / count as f64)) as f32;
            codeword.iter_mut().zip(noise).for_each(|(c, noise)| *c += step * noise);
        }
    }
    lloyd(codebook, points, passes)
}

/// Sums and counts of the points nearest to each codeword.
fn pass<const P: usize>(codebook: &[[f32; P]], points: &[[f32; P]]) -> Pass<P> {
    let tree = CodeTree::new(codebook);
    let part = |points: &[[f32; P]]| {
        let mut out = Pass::empty(codebook.len());
        for point in points {
            let (index, distance) = tree.nearest(point);
            let index = usize::from(index);
            out.counts[index] += 1;
            out.errors[index] += f64::from(distance);
            out.squared_error += f64::from(distance);
            for (sum, &v) in out.sums[index].iter_mut().zip(point) {
                *sum += f64::from(v);
            }
        }
        out
    };
    let parts: Vec<_> = points.chunks(points.len().div_ceil(PARTS).max(1)).collect();
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let done: Vec<Pass<P>> = thread::scope(|scope| {
        let workers: Vec<_> = parts
            .chunks(parts.len().div_ceil(n_threads).max(1))
            .map(|parts| scope.spawn(|| parts.iter().map(|points| part(points)).collect::<Vec<_>>()))
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic in a pass")).collect()
    });
    let mut all = Pass::empty(codebook.len());
    for part in done {
        all.squared_error += part.squared_error;
        all.counts.iter_mut().zip(part.counts).for_each(|(count, more)| *count += more);
        all.errors.iter_mut().zip(part.errors).for_each(|(error, more)| *error += more);
        for (sum, more) in all.sums.iter_mut().zip(part.sums) {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
    all
}

/// The levels of the best scalar quantizer with `n` levels, ascending, and its squared error.
///
/// Source: Max, *Quantizing for minimum distortion*, 1960; Lloyd, *Least squares quantization in PCM*, 1957 and 1982.
///
/// ```
/// let (levels, mse) = gosset_baselines::lloyd::lloyd_max(4);
/// assert!((levels[3] - 1.5104).abs() < 1e-4 && (mse - 0.1175).abs() < 1e-4);
/// ```
pub fn lloyd_max(n: usize) -> (Vec<f64>, f64) {
    let density = |x: f64| libm::exp(-0.5 * x * x) / libm::sqrt(std::f64::consts::TAU);
    // Upper tails keep their digits; cells on the negative side are mirrored to the positive one.
    let tail = |x: f64| 0.5 * libm::erfc(x * std::f64::consts::FRAC_1_SQRT_2);
    let mass = |a: f64, b: f64| if a < 0.0 { tail(-b) - tail(-a) } else { tail(a) - tail(b) };
    let mut levels: Vec<f64> = (0..n).map(|i| 6.0 * (i as f64 + 0.5) / n as f64 - 3.0).collect();
    loop {
        let mut moved = 0f64;
        let mut kept = 0.0;
        let middles: Vec<f64> = levels.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).collect();
        for i in 0..n {
            let a = if i == 0 { f64::NEG_INFINITY } else { middles[i - 1] };
            let b = if i + 1 == n { f64::INFINITY } else { middles[i] };
            let mass = mass(a, b);
            let mean = (density(a) - density(b)) / mass;
            kept += mean * mean * mass;
            moved = moved.max((mean - levels[i]).abs());
            levels[i] = mean;
        }
        if moved < 1e-12 {
            return (levels, 1.0 - kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published values of the best scalar quantizers (Max 1960). The last one was computed by hand to three digits; 32 levels reach
    /// 0.002505, and since the normal density is log-concave, no other quantizer satisfies both conditions.
    #[test]
    fn the_best_scalar_quantizers_have_their_published_errors() {
        for (n, mse) in [(2, 0.3634), (4, 0.1175), (8, 0.03454), (16, 0.009497), (32, 0.002499)] {
            let (levels, found) = lloyd_max(n);
            assert!((found / mse - 1.0).abs() < 3e-3, "{n}: {found}");
            assert!(levels.iter().zip(levels.iter().rev()).all(|(a, b)| (a + b).abs() < 1e-9));
        }
    }

    #[test]
    fn even_points_are_normal() {
        let points = even_normals::<4>(1 << 14);
        for i in 0..4 {
            let mean = points.iter().map(|p| f64::from(p[i])).sum::<f64>() / points.len() as f64;
            let square = points.iter().map(|p| f64::from(p[i] * p[i])).sum::<f64>() / points.len() as f64;
            // Random points would miss by 1/128.
            assert!(mean.abs() < 2e-3 && (square - 1.0).abs() < 4e-3, "{i}: {mean} {square}");
        }
    }

    #[test]
    fn lloyd_converges_to_centroids_in_the_plane() {
        let points = even_normals::<2>(1 << 14);
        let mut codebook = random_start::<2>(16, 3);
        let found = lloyd(&mut codebook, &points, 200);
        let pass = pass(&codebook, &points);
        for ((c, sum), &count) in codebook.iter().zip(&pass.sums).zip(&pass.counts) {
            assert!((0..2).all(|i| (f64::from(c[i]) - sum[i] / count as f64).abs() < 0.02));
        }
        assert!((found / 0.1074 - 1.0).abs() < 0.02, "{found}");
    }
}
