//! The Gosset lattice.

use crate::round::{all_fast, first_max, first_min, reduce, round_f32, round_f64, saturate};
use crate::{Lattice, moments, sealed};

/// 2·E8: all coordinates even or all odd, with sum ≡ 0 (mod 4).
///
/// ```
/// use gosset_lattice::{E8, Lattice};
/// let y = E8::nearest_point(&[3.3, 3.4, 3.6, 3.1, 2.9, 3.2, 2.8, 3.05]);
/// assert_eq!(y, [3; 8]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E8;

impl sealed::Sealed for E8 {}

impl Lattice<8> for E8 {
    const NAME: &'static str = "e8";
    const SECOND_MOMENT: f64 = moments::SECOND_MOMENT_E8;
    const CELL_VOLUME: f64 = moments::CELL_VOLUME_E8;
    const MSE_PER_DIM: f64 = moments::MSE_PER_DIM_E8;
    const AXIS_SCALE: [f32; 8] = [1.0; 8];

    /// Nearest point of 2·E8 to `x`; ties go to the even coset.
    ///
    /// `x` is one block of 8 coordinates in alpha-scaled units. The result has all-even or all-odd coordinates with
    /// sum ≡ 0 (mod 4). Constant time: one rounding serves both cosets, and a sum of eight magnitudes compares them.
    ///
    /// Source: Conway & Sloane, *Sphere Packings, Lattices and Groups*, ch. 20, section 3 (E8 as D8 and its translate).
    #[inline]
    fn nearest_point(x: &[f32; 8]) -> [i32; 8] {
        if !all_fast(x) {
            return nearest_point_wide(x);
        }
        let h = x.map(|v| v * 0.5);
        let rounded = h.map(round_f32);
        let d: [f32; 8] = core::array::from_fn(|i| h[i] - rounded[i].1);
        nearer_coset(rounded.map(|(f, _)| f), d)
    }

    #[inline]
    fn contains(y: &[i32; 8]) -> bool {
        let mixed = y.iter().fold(0, |mixed, v| mixed | (v ^ y[0]));
        let sum = y.iter().fold(0i32, |sum, &v| sum.wrapping_add(v));
        mixed & 1 == 0 && sum & 3 == 0
    }
}

/// Coset distances that differ by less than this are compared again in double precision: the eleven roundings of the
/// single-precision comparison, of numbers below 4, are off by less than 11·2^-23 together.
const DOUBTFUL: f32 = 1.0 / 262_144.0;

/// The point from the rounded halves `f` and the rounding errors `d`, |d| ≤ ½.
///
/// In units of 2, the even candidate is f and the odd one lies at distance ½ − |d| in each coordinate, so the squared
/// distances differ by Σ(¼ − |d|) = 2 − Σ|d|. A candidate with the wrong parity moves the coordinate where that is
/// cheapest: 1 − 2·max|d| for the even coset, 2·min|d| for the odd one. No square is ever needed, and since the d are exact, the
/// comparison is one of exact numbers.
#[inline(always)]
fn nearer_coset(f: [i32; 8], d: [f32; 8]) -> [i32; 8] {
    let magnitude = d.map(f32::abs);
    // 1 where the odd coordinate nearest to x lies below 2f, otherwise 0. At d = 0 both neighbours are equally near, and
    // rounding half to even of the coset index picks the one with the even index.
    let below: [i32; 8] = core::array::from_fn(|i| i32::from(d[i] < 0.0) | (i32::from(d[i] == 0.0) & f[i]));

    let even_is_off = reduce(f, |a, b| a ^ b) & 1;
    let odd_is_off = even_is_off ^ (reduce(below, |a, b| a ^ b) & 1);
    let (max_at, max) = first_max(&magnitude);
    let (min_at, min) = first_min(&magnitude);
    let sum = reduce(magnitude, |a, b| a + b);
    let excess_of_odd = (2.0 - sum) + (odd_is_off as f32 * (2.0 * min) - even_is_off as f32 * (1.0 - 2.0 * max));
    let odd_wins = if excess_of_odd.abs() < DOUBTFUL {
        excess_of_odd_exact(&magnitude, even_is_off, odd_is_off) < 0.0
    } else {
        excess_of_odd < 0.0
    };

    // The winner is as likely odd as even, so it is formed by masks and not by a branch.
    let odd = -i32::from(odd_wins);
    let moved_at = if odd_wins { min_at } else { max_at };
    let up = if odd_wins { (below[min_at & 7] == 1) | (min == 0.5) } else { d[max_at & 7] >= 0.0 };
    let is_off = (odd_is_off & odd) | (even_is_off & !odd);
    let step = if up { 2 * is_off } else { -2 * is_off };
    let mut y: [i32; 8] = core::array::from_fn(|i| 2 * f[i] + (odd & (1 - 2 * below[i])));
    y[moved_at & 7] += step;
    y
}

/// Squared distance of the odd candidate less that of the even one, in units of 4; exact when all magnitudes are multiples
/// of 2^-50.
#[cold]
fn excess_of_odd_exact(magnitude: &[f32; 8], even_is_off: i32, odd_is_off: i32) -> f64 {
    let magnitude = magnitude.map(f64::from);
    let max = magnitude.iter().fold(0.0, |a: f64, &b| a.max(b));
    let min = magnitude.iter().fold(1.0, |a: f64, &b| a.min(b));
    2.0 - magnitude.iter().sum::<f64>() + f64::from(odd_is_off) * (2.0 * min)
        - f64::from(even_is_off) * (1.0 - 2.0 * max)
}

#[cold]
fn nearest_point_wide(x: &[f32; 8]) -> [i32; 8] {
    let h = x.map(|v| saturate(v) * 0.5);
    let rounded = h.map(round_f64);
    // The error of a rounding has no more significant bits than the value itself, so it is exact in single precision.
    let d: [f32; 8] = core::array::from_fn(|i| (h[i] - rounded[i].1) as f32);
    nearer_coset(rounded.map(|(f, _)| f), d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn nearest_point_is_the_naive_one(x: [i16; 8], shift in 0u32..15) {
            // Dyadic inputs, dense in ties.
            let x = x.map(|v| f32::from(v) / (1u32 << shift) as f32);
            let point = E8::nearest_point(&x);
            prop_assert!(E8::contains(&point));
            prop_assert_eq!(point, naive::nearest_e8(&x));
            prop_assert_eq!(point, nearest_point_wide(&x));
        }

        #[test]
        fn nearest_point_of_reals_is_the_naive_one(x in proptest::array::uniform8(-40f32..40.0)) {
            prop_assert_eq!(E8::nearest_point(&x), naive::nearest_e8(&x));
        }

        #[test]
        fn nearest_point_of_large_values_is_the_naive_one(x in proptest::array::uniform8(-16_777_216.0f32..16_777_216.0), shift in 0u32..12) {
            // Magnitudes from 2^12 to 2^24: both the single- and the double-precision path, and blocks that mix them.
            let x: [f32; 8] = std::array::from_fn(|i| x[i] / (1u32 << (shift * (i as u32 % 2))) as f32);
            prop_assert_eq!(E8::nearest_point(&x), naive::nearest_e8(&x));
        }

        #[test]
        fn any_bits_give_a_lattice_point(x: [u32; 8]) {
            prop_assert!(E8::contains(&E8::nearest_point(&x.map(f32::from_bits))));
        }
    }

    #[test]
    fn published_points() {
        let cases = [
            ([0.6, -0.4, 1.2, 0.3, -0.9, 0.1, 0.2, -1.3], [0, 0, 2, 0, 0, 0, 0, -2]),
            ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -0.2], [1; 8]),
            ([2.6, -3.1, 0.4, 7.7, -5.2, 1.9, 0.0, -0.5], [2, -2, 0, 8, -6, 2, 0, 0]),
            ([3.3, 3.4, 3.6, 3.1, 2.9, 3.2, 2.8, 3.05], [3; 8]),
        ];
        for (x, y) in cases {
            assert_eq!(E8::nearest_point(&x), y);
            assert_eq!(naive::nearest_e8(&x), y);
        }
    }

    #[test]
    fn deep_holes_and_large_values() {
        assert_eq!(E8::nearest_point(&[2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), [4, 0, 0, 0, 0, 0, 0, 0]);
        let x = [16_777_216.0, -16_777_216.0, 16_777_215.0, -16_777_213.0, 8_388_609.0, 5.0, 1.0, 0.25];
        assert_eq!(E8::nearest_point(&x), naive::nearest_e8(&x));
    }
}
