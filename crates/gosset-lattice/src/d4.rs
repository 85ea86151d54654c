//! The checkerboard lattice of dimension 4.

use crate::round::{all_fast, first_max, round_f32, round_f64, saturate};
use crate::{Lattice, moments, sealed};

/// 2·D4: even coordinates with sum ≡ 0 (mod 4).
///
/// ```
/// use gosset_lattice::{D4, Lattice};
/// assert_eq!(D4::nearest_point(&[1.9, 0.2, -0.8, 0.1]), [2, 0, -2, 0]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct D4;

impl sealed::Sealed for D4 {}

impl Lattice<4> for D4 {
    const NAME: &'static str = "d4";
    const SECOND_MOMENT: f64 = moments::SECOND_MOMENT_D4;
    const CELL_VOLUME: f64 = moments::CELL_VOLUME_D4;
    const MSE_PER_DIM: f64 = moments::MSE_PER_DIM_D4;
    const AXIS_SCALE: [f32; 4] = [1.0; 4];

    /// Rounds x/2; if the sum is odd, moves the coordinate with the largest rounding error to its second-nearest integer.
    ///
    /// Source: Conway & Sloane, *Sphere Packings, Lattices and Groups*, ch. 20, section 2.
    #[inline]
    fn nearest_point(x: &[f32; 4]) -> [i32; 4] {
        if all_fast(x) {
            let h = x.map(|v| v * 0.5);
            let rounded = h.map(round_f32);
            let f = rounded.map(|(f, _)| f);
            let d: [f32; 4] = core::array::from_fn(|i| h[i] - rounded[i].1);
            fix_parity(f, d)
        } else {
            nearest_point_wide(x)
        }
    }

    #[inline]
    fn contains(y: &[i32; 4]) -> bool {
        let any = y.iter().fold(0, |bits, v| bits | v);
        let sum = y.iter().fold(0i32, |sum, &v| sum.wrapping_add(v));
        any & 1 == 0 && sum & 3 == 0
    }
}

/// The point from the rounded halves `f` and the rounding errors `d`.
#[inline(always)]
fn fix_parity(f: [i32; 4], d: [f32; 4]) -> [i32; 4] {
    let is_off = (f[0] ^ f[1] ^ f[2] ^ f[3]) & 1;
    let (moved_at, _) = first_max(&d.map(f32::abs));
    core::array::from_fn(|i| {
        let step = if d[i] >= 0.0 { 2 * is_off } else { -2 * is_off };
        2 * f[i] + if i == moved_at { step } else { 0 }
    })
}

#[cold]
fn nearest_point_wide(x: &[f32; 4]) -> [i32; 4] {
    let h = x.map(|v| saturate(v) * 0.5);
    let rounded = h.map(round_f64);
    // The error of a rounding has no more significant bits than the value itself, so it is exact in single precision.
    let d: [f32; 4] = core::array::from_fn(|i| (h[i] - rounded[i].1) as f32);
    fix_parity(rounded.map(|(f, _)| f), d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nearest_point_is_the_naive_one(x: [i16; 4], shift in 0u32..12) {
            // Dyadic inputs, dense in ties.
            let x = x.map(|v| f32::from(v) / (1u32 << shift) as f32);
            let point = D4::nearest_point(&x);
            prop_assert!(D4::contains(&point));
            prop_assert_eq!(point, naive::nearest_d4(&x));
            prop_assert_eq!(point, nearest_point_wide(&x));
        }

        #[test]
        fn nearest_point_of_large_values_is_the_naive_one(x in proptest::array::uniform4(-16_777_216.0f32..16_777_216.0), shift in 0u32..12) {
            // Magnitudes from 2^12 to 2^24: both the single- and the double-precision path, and blocks that mix them.
            let x: [f32; 4] = std::array::from_fn(|i| x[i] / (1u32 << (shift * (i as u32 % 2))) as f32);
            prop_assert_eq!(D4::nearest_point(&x), naive::nearest_d4(&x));
        }

        #[test]
        fn any_bits_give_a_lattice_point(x: [u32; 4]) {
            prop_assert!(D4::contains(&D4::nearest_point(&x.map(f32::from_bits))));
        }
    }

    #[test]
    fn deep_holes_round_up_at_the_first_coordinate() {
        assert_eq!(D4::nearest_point(&[2.0, 0.0, 0.0, 0.0]), [4, 0, 0, 0]);
        assert_eq!(D4::nearest_point(&[16_777_214.0, 0.0, 0.0, 0.0]), [16_777_216, 0, 0, 0]);
    }
}
