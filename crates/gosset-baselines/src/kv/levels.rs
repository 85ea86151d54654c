//! The best scalar quantizers of known distributions, and the distributions that random directions have.

use std::f64::consts::{FRAC_1_PI, PI};

/// Steps that an interval is cut into; the density is taken as constant in each.
const STEPS: usize = 1 << 14;

/// Lloyd's algorithm ends when no level moves by more than this part of the interval, or after so many passes.
const CONVERGED: f64 = 1e-10;
const PASSES: usize = 2000;

/// Levels of a scalar quantizer, ascending, and what separates them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Levels {
    levels: Vec<f32>,
    thresholds: Vec<f32>,
}

impl Levels {
    /// The `2^bits` levels of least squared error for a density on `from..to`; it need not be normalized.
    ///
    /// Starts from levels of density f^(1/3), which is best for many levels (Panter and Dite 1951), and iterates the two conditions:
    /// thresholds half-way between levels, levels at the means of their cells.
    ///
    /// Source: Max, *Quantizing for minimum distortion*, 1960; Lloyd, *Least squares quantization in PCM*, 1957 and 1982.
    pub(crate) fn best(bits: u32, from: f64, to: f64, density: impl Fn(f64) -> f64) -> Self {
        let n = 1usize << bits;
        let step = (to - from) / STEPS as f64;
        let middle = |i: usize| from + (i as f64 + 0.5) * step;
        let f: Vec<f64> = (0..STEPS).map(|i| density(middle(i))).collect();
        let running = |term: &dyn Fn(usize) -> f64| {
            let mut sum = 0.0;
            let mut sums = vec![0.0; STEPS + 1];
            for i in 0..STEPS {
                sum += term(i);
                sums[i + 1] = sum;
            }
            sums
        };
        let mass = running(&|i| f[i]);
        let moment = running(&|i| f[i] * middle(i));
        // Integrals from the lower end to t.
        let upto = |t: f64| {
            let at = ((t - from) / step).clamp(0.0, STEPS as f64);
            let i = (at as usize).min(STEPS - 1);
            let part = (at - i as f64) * f[i];
            (mass[i] + part, moment[i] + part * 0.5 * (from + i as f64 * step + t))
        };

        let roots = running(&|i| libm::cbrt(f[i]));
        let start = |i: usize| {
            let goal = (i as f64 + 0.5) / n as f64 * roots[STEPS];
            middle(roots.partition_point(|&r| r <= goal) - 1)
        };
        let mut levels: Vec<f64> = (0..n).map(start).collect();
        for _ in 0..PASSES {
            let mut moved = 0f64;
            let mut lower = (0.0, 0.0);
            for i in 0..n {
                let upper =
                    if i + 1 < n { upto(0.5 * (levels[i] + levels[i + 1])) } else { (mass[STEPS], moment[STEPS]) };
                if upper.0 > lower.0 {
                    let mean = (upper.1 - lower.1) / (upper.0 - lower.0);
                    moved = moved.max((mean - levels[i]).abs());
                    levels[i] = mean;
                }
                lower = upper;
            }
            if moved < CONVERGED * (to - from) {
                break;
            }
        }
        let thresholds = levels.windows(2).map(|pair| (0.5 * (pair[0] + pair[1])) as f32).collect();
        Self { levels: levels.into_iter().map(|level| level as f32).collect(), thresholds }
    }

    /// Index of the level nearest to `v`.
    pub(crate) fn nearest(&self, v: f32) -> u32 {
        self.thresholds.partition_point(|&t| t < v) as u32
    }

    /// The level of an index.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub(crate) fn level(&self, index: u32) -> f32 {
        self.levels[index as usize]
    }

    /// All levels, ascending.
    pub(crate) fn all(&self) -> &[f32] {
        &self.levels
    }
}

/// Standard deviations of a coordinate beyond which there is no mass worth a level.
const REACH: f64 = 9.0;

/// Levels for one coordinate of a random direction in `d` dimensions: density (1 - x²)^((d - 3) / 2).
pub(crate) fn coordinate(bits: u32, d: usize) -> Levels {
    let to = (REACH / (d as f64).sqrt()).min(1.0);
    Levels::best(bits, -to, to, |x| libm::pow(1.0 - x * x, 0.5 * (d as f64 - 3.0)))
}

/// Levels for the norm of three coordinates of a random direction in `d` dimensions, d > 5: density r² (1 - r²)^((d - 5) / 2).
pub(crate) fn triplet_norm(bits: u32, d: usize) -> Levels {
    let to = (REACH / (d as f64).sqrt()).min(1.0);
    Levels::best(bits, 0.0, to, |r| r * r * libm::pow(1.0 - r * r, 0.5 * (d as f64 - 5.0)))
}

/// Levels for one coordinate of the octahedral map of a random direction in space.
pub(crate) fn octahedral(bits: u32) -> Levels {
    Levels::best(bits, -1.0, 1.0, octahedral_density)
}

/// Density of a coordinate of the octahedral map of a uniformly distributed direction.
///
/// An element du dw of the square is the solid angle du dw / |v|³, where v is its point on the octahedron |x| + |y| + |z| = 1; the
/// integral over w, in two parts that meet at the edge of the lower half |u| + |w| = 1, is elementary.
fn octahedral_density(u: f64) -> f64 {
    let (u, v) = (u.abs(), 1.0 - u.abs());
    FRAC_1_PI * (v / (2.0 * u * u + v * v) + u / (u * u + 2.0 * v * v)) / (u * u + v * v).sqrt()
}

/// The square root of π / 2: 1 / E|g| of a standard normal g.
pub(crate) fn sqrt_half_pi() -> f64 {
    (0.5 * PI).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mse(levels: &Levels, from: f64, to: f64, density: impl Fn(f64) -> f64) -> f64 {
        let n = 100_000;
        let (mut error, mut mass) = (0.0, 0.0);
        for i in 0..n {
            let x = from + (to - from) * (f64::from(i) + 0.5) / f64::from(n);
            let e = x - f64::from(levels.level(levels.nearest(x as f32)));
            error += density(x) * e * e;
            mass += density(x);
        }
        error / mass
    }

    /// Max 1960, to the digits printed there.
    #[test]
    fn levels_of_the_normal_density_are_those_of_max() {
        let normal = |x: f64| libm::exp(-0.5 * x * x);
        for (bits, expected) in [(0, 1.0), (1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497), (5, 0.002499)] {
            let levels = Levels::best(bits, -9.0, 9.0, normal);
            let found = mse(&levels, -9.0, 9.0, normal);
            assert!((found / expected - 1.0).abs() < 3e-3, "{bits}: {found}");
            assert!(levels.all().iter().zip(levels.all().iter().rev()).all(|(a, b)| (a + b).abs() < 1e-5));
        }
    }

    #[test]
    fn eight_bits_come_within_a_percent_of_the_asymptote() {
        let normal = |x: f64| libm::exp(-0.5 * x * x);
        let found = mse(&Levels::best(8, -9.0, 9.0, normal), -9.0, 9.0, normal);
        // Panter and Dite: sqrt(3) pi / 2 * 2^-2b, approached from below.
        let asymptote = 3f64.sqrt() * PI / 2.0 / 65536.0;
        assert!(found < asymptote && found > 0.97 * asymptote, "{found} {asymptote}");
    }

    #[test]
    fn a_narrow_sphere_has_lower_errors_than_the_normal_limit() {
        let d = 128.0f64;
        let to = REACH / d.sqrt();
        let found = d * mse(&coordinate(2, 128), -to, to, |x| libm::pow(1.0 - x * x, 0.5 * (d - 3.0)));
        assert!(found < 0.1175 && found > 0.1150, "{found}");
    }

    #[test]
    fn the_octahedral_density_is_a_density() {
        let n = 100_000;
        let sum: f64 =
            (0..n).map(|i| octahedral_density(-1.0 + 2.0 * (f64::from(i) + 0.5) / f64::from(n))).sum::<f64>() * 2.0
                / f64::from(n);
        assert!((sum - 1.0).abs() < 1e-8, "{sum}");
    }
}
