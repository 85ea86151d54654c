//! Nearest points of 2·E8 in a metric.

use gosset_lattice::{E8, Lattice};

/// Most nodes of one search. In the metrics of damped second moments searches end after some tens; one that is cut off has the best
/// point that it saw, the Euclidean one at worst.
const MAX_NODES: u32 = 1 << 16;

/// Finds points of 2·E8 that minimize (x - p)ᵀ M (x - p).
#[derive(Debug, Clone)]
pub(super) struct E8Metric {
    /// M = RᵀR, upper triangular, row-major.
    r: [[f64; 8]; 8],
}

impl E8Metric {
    /// Of a metric `m`, 8 x 8 row-major, symmetric; `None` if it is not positive definite.
    pub(super) fn new(m: &[f64; 64]) -> Option<Self> {
        let mut r = [[0.0f64; 8]; 8];
        for i in 0..8 {
            for j in i..8 {
                let known: f64 = (0..i).map(|k| r[k][i] * r[k][j]).sum();
                let rest = m[8 * i + j] - known;
                if j > i {
                    r[i][j] = rest / r[i][i];
                } else if rest > 0.0 && rest.is_finite() {
                    r[i][i] = rest.sqrt();
                } else {
                    return None;
                }
            }
        }
        Some(Self { r })
    }

    /// The nearest point to `x`; of equal ones, the one that is found first.
    ///
    /// Coordinates are fixed from the last to the first, values near the centre first (Schnorr and Euchner), in both cosets: all even
    /// and all odd coordinates with a sum divisible by 4, which decides the residue of the first one.
    pub(super) fn nearest_point(&self, x: &[f32; 8]) -> [i32; 8] {
        let euclidean = E8::nearest_point(x);
        let mut search = Search {
            r: &self.r,
            x: x.map(f64::from),
            p: [0; 8],
            best: euclidean,
            least: self.cost(x, &euclidean),
            nodes: MAX_NODES,
        };
        for odd in [0, 1] {
            search.descend(8, 0.0, odd);
        }
        search.best
    }

    /// (x - p)ᵀ M (x - p).
    fn cost(&self, x: &[f32; 8], p: &[i32; 8]) -> f64 {
        let e: [f64; 8] = std::array::from_fn(|i| f64::from(x[i]) - f64::from(p[i]));
        self.r.iter().map(|row| row.iter().zip(e).map(|(r, e)| r * e).sum::<f64>().powi(2)).sum()
    }
}

struct Search<'a> {
    r: &'a [[f64; 8]; 8],
    x: [f64; 8],
    p: [i32; 8],
    best: [i32; 8],
    least: f64,
    nodes: u32,
}

impl Search<'_> {
    /// Tries the values of coordinate `depth` - 1, those behind it being fixed at a cost of `cost`; `odd` is the coset.
    fn descend(&mut self, depth: usize, cost: f64, odd: i32) {
        if depth == 0 {
            (self.best, self.least) = (self.p, cost);
            return;
        }
        let i = depth - 1;
        let behind: f64 = (depth..8).map(|j| self.r[i][j] * (self.x[j] - f64::from(self.p[j]))).sum();
        let centre = self.x[i] + behind / self.r[i][i];
        // Coordinates of a coset are 2 apart; the first one is given modulo 4 by the sum of the others.
        let (step, residue) = match i {
            0 => (4, -self.p[1..].iter().sum::<i32>()),
            _ => (2, odd),
        };
        let nearest = residue + step * ((centre - f64::from(residue)) / f64::from(step)).round() as i32;
        let towards = if centre >= f64::from(nearest) { step } else { -step };
        // nearest, one step towards the centre, one step back, two steps on, …: ascending distances.
        for k in 0.. {
            let away = if k % 2 == 1 { (k + 1) / 2 * towards } else { -(k / 2) * towards };
            let value = nearest + away;
            let here = cost + (self.r[i][i] * (centre - f64::from(value))).powi(2);
            if here >= self.least || self.nodes == 0 {
                return;
            }
            self.nodes -= 1;
            self.p[i] = value;
            self.descend(i, here, odd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_codec::calibrate::gaussian;

    /// A metric A Aᵀ + ε I from drawn values.
    fn metric(seed: u64, floor: f64) -> [f64; 64] {
        let a = gaussian(64, seed);
        std::array::from_fn(|ij| {
            let (i, j) = (ij / 8, ij % 8);
            let sum: f64 = (0..8).map(|k| f64::from(a[8 * i + k]) * f64::from(a[8 * j + k])).sum();
            sum + if i == j { floor } else { 0.0 }
        })
    }

    fn drawn(seed: u64, spread: f32) -> [f32; 8] {
        let x = gaussian(8, seed);
        std::array::from_fn(|i| spread * x[i])
    }

    #[test]
    fn the_identity_gives_euclidean_points() {
        let mut m = [0.0; 64];
        (0..8).for_each(|i| m[9 * i] = 2.5);
        let metric = E8Metric::new(&m).unwrap();
        for seed in 0..500 {
            let x = drawn(seed, 3.0);
            let (found, expected) = (metric.nearest_point(&x), E8::nearest_point(&x));
            assert!(
                (metric.cost(&x, &found) - metric.cost(&x, &expected)).abs() < 1e-9,
                "{x:?} {found:?} {expected:?}"
            );
        }
    }

    #[test]
    fn points_are_of_the_lattice_and_no_minimal_vector_leads_to_a_nearer_one() {
        // The 240 minimal vectors of 2·E8: (±2, ±2, 0, …) and all ±1 with an even number of signs.
        let mut minimal: Vec<[i32; 8]> = Vec::new();
        for signs in 0..256u32 {
            if signs.count_ones().is_multiple_of(2) {
                minimal.push(std::array::from_fn(|i| if signs >> i & 1 == 1 { -1 } else { 1 }));
            }
        }
        for i in 0..8 {
            for j in 0..i {
                for (a, b) in [(2, 2), (2, -2), (-2, 2), (-2, -2)] {
                    let mut v = [0; 8];
                    (v[i], v[j]) = (a, b);
                    minimal.push(v);
                }
            }
        }
        assert_eq!(minimal.len(), 240);
        let mut gains = 0;
        for seed in 0..300 {
            let metric = E8Metric::new(&metric(seed, 0.5)).unwrap();
            let x = drawn(1000 + seed, 2.0);
            let p = metric.nearest_point(&x);
            assert!(E8::contains(&p), "{p:?}");
            let cost = metric.cost(&x, &p);
            for v in &minimal {
                let other = std::array::from_fn(|i| p[i] + v[i]);
                assert!(metric.cost(&x, &other) >= cost * (1.0 - 1e-12), "{p:?} {other:?}");
            }
            let euclidean = metric.cost(&x, &E8::nearest_point(&x));
            assert!(cost <= euclidean);
            gains += u32::from(cost < euclidean);
        }
        assert!(gains > 100, "{gains}");
    }

    #[test]
    fn singular_metrics_are_refused() {
        assert!(E8Metric::new(&[1.0; 64]).is_none() && E8Metric::new(&[f64::NAN; 64]).is_none());
    }
}
