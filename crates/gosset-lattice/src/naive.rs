//! Test oracles: nearest points by plain search in double precision, one obvious step at a time.
//!
//! Not for production: each oracle enumerates every candidate coset member near `x` and keeps the best, with the same tie
//! rules as [`Lattice::nearest_point`](crate::Lattice::nearest_point). Inputs must be finite and below 2^24 in magnitude.

use crate::moments::SQRT_3;

/// Nearest integer, half to even.
pub fn nearest_z(x: &[f32; 1]) -> [i32; 1] {
    [round_half_even(f64::from(x[0])) as i32]
}

/// Nearest point of 2·A2 in (n_y, n_x) to the real point (y, x), by comparing the rounding in each coset.
pub fn nearest_a2(x: &[f32; 2]) -> [i32; 2] {
    let x = [f64::from(x[0]) / SQRT_3, f64::from(x[1])];
    let candidates = [0.0, 1.0].map(|c| x.map(|v| 2.0 * round_half_even((v - c) / 2.0) + c));
    let distance = candidates.map(|y| 3.0 * (x[0] - y[0]) * (x[0] - y[0]) + (x[1] - y[1]) * (x[1] - y[1]));
    // A tie up to rounding is a tie.
    let best = if distance[1] < distance[0] - 1e-12 { candidates[1] } else { candidates[0] };
    best.map(|v| v as i32)
}

/// Nearest point of 2·D4, by trying every single-coordinate move of the rounded vector.
pub fn nearest_d4(x: &[f32; 4]) -> [i32; 4] {
    nearest_in_coset(&x.map(f64::from), 0.0).0.map(|v| v as i32)
}

/// Nearest point of 2·E8, by trying every single-coordinate move of the rounded vector in both cosets.
pub fn nearest_e8(x: &[f32; 8]) -> [i32; 8] {
    let x = x.map(f64::from);
    let (even, even_distance) = nearest_in_coset(&x, 0.0);
    let (odd, odd_distance) = nearest_in_coset(&x, 1.0);
    if odd_distance < even_distance { odd.map(|v| v as i32) } else { even.map(|v| v as i32) }
}

/// Nearest point of 2·D_N + (c, …, c) and its squared distance.
///
/// If the rounded vector is in the coset it is the nearest; otherwise the nearest differs from it in one coordinate by
/// one step (Conway & Sloane), so all 2N such vectors are measured, the first of the nearest kept, and up comes before down.
fn nearest_in_coset<const N: usize>(x: &[f64; N], c: f64) -> ([f64; N], f64) {
    let rounded = x.map(|v| 2.0 * round_half_even((v - c) / 2.0) + c);
    let is_member = |y: &[f64; N]| (y.iter().map(|v| v - c).sum::<f64>() as i64).rem_euclid(4) == 0;
    let distance = |y: &[f64; N]| x.iter().zip(y).map(|(x, y)| (x - y) * (x - y)).sum::<f64>();
    if is_member(&rounded) {
        return (rounded, distance(&rounded));
    }
    let mut best = (rounded, f64::INFINITY);
    for i in 0..N {
        for step in [2.0, -2.0] {
            let mut y = rounded;
            y[i] += step;
            if is_member(&y) && distance(&y) < best.1 {
                best = (y, distance(&y));
            }
        }
    }
    best
}

fn round_half_even(v: f64) -> f64 {
    libm::rint(v)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The single-move search itself against every point of the coset in a box around x.
    #[test]
    fn single_moves_suffice() {
        let x = [0.9f32, -1.1, 2.95, 0.3];
        let mut best = f64::INFINITY;
        for code in 0..7i32.pow(4) {
            let y: [i32; 4] = core::array::from_fn(|i| 2 * (code / 7i32.pow(i as u32) % 7 - 3));
            if y.iter().sum::<i32>().rem_euclid(4) == 0 {
                best = best.min(x.iter().zip(&y).map(|(x, &y)| (f64::from(*x) - f64::from(y)).powi(2)).sum());
            }
        }
        let found = nearest_d4(&x);
        let distance: f64 = x.iter().zip(&found).map(|(x, &y)| (f64::from(*x) - f64::from(y)).powi(2)).sum();
        assert_eq!(distance, best);
    }
}
