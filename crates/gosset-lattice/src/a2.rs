//! The hexagonal lattice.

use crate::moments::{self, INV_SQRT_3, SQRT_3};
use crate::round::{round_f64, saturate};
use crate::{Lattice, sealed};

/// 2·A2, the hexagonal lattice, stored as (n_y, n_x) with n_y ≡ n_x (mod 2).
///
/// The real point is (n_y·√3, n_x); inputs to [`Lattice::nearest_point`] are real coordinates (y, x).
///
/// ```
/// use gosset_lattice::{A2, Lattice};
/// assert_eq!(A2::nearest_point(&[1.7, 0.8]), [1, 1]);
/// assert_eq!(A2::embed(&[1, 1]), [3.0f32.sqrt(), 1.0]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct A2;

impl sealed::Sealed for A2 {}

impl Lattice<2> for A2 {
    const NAME: &'static str = "a2";
    const SECOND_MOMENT: f64 = moments::SECOND_MOMENT_A2;
    const CELL_VOLUME: f64 = moments::CELL_VOLUME_A2;
    const MSE_PER_DIM: f64 = moments::MSE_PER_DIM_A2;
    const AXIS_SCALE: [f32; 2] = [SQRT_3 as f32, 1.0];

    /// The better of the both-even and the both-odd rounding under the metric 3·Δn_y² + Δn_x².
    ///
    /// With d the signed distances to the nearest even integers in units of 2, the odd candidate lies at ½ − |d| in each
    /// coordinate, so the squares cancel and it wins exactly when 3·|d_y| + |d_x| > 1. Double precision, since y/√3 is
    /// irrational: a tie is decided correctly down to 1e-15.
    #[inline]
    fn nearest_point(x: &[f32; 2]) -> [i32; 2] {
        let h = [saturate(x[0]) * (0.5 * INV_SQRT_3), saturate(x[1]) * 0.5];
        let (f_y, r_y) = round_f64(h[0]);
        let (f_x, r_x) = round_f64(h[1]);
        let (d_y, d_x) = (h[0] - r_y, h[1] - r_x);
        if 3.0 * d_y.abs() + d_x.abs() > 1.0 {
            [2 * f_y + odd_step(f_y, d_y), 2 * f_x + odd_step(f_x, d_x)]
        } else {
            [2 * f_y, 2 * f_x]
        }
    }

    #[inline]
    fn contains(y: &[i32; 2]) -> bool {
        (y[0] ^ y[1]) & 1 == 0
    }
}

/// Step from the even integer 2f to the nearest odd one, `d` being the signed distance from f in units of 2. At d = 0 both
/// are equally near, and rounding half to even of the coset index picks the step that leaves that index even.
#[inline(always)]
fn odd_step(f: i32, d: f64) -> i32 {
    if d > 0.0 || (d == 0.0 && f & 1 == 0) { 1 } else { -1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nearest_point_is_the_naive_one(y in -1e4f32..1e4, x in -1e4f32..1e4, n_y in -50i32..50, quarter in -400i32..400) {
            for x in [[y, x], [(f64::from(n_y) * SQRT_3) as f32, quarter as f32 * 0.25]] {
                let point = A2::nearest_point(&x);
                prop_assert!(A2::contains(&point));
                prop_assert_eq!(point, naive::nearest_a2(&x));
            }
        }
    }

    #[test]
    fn saturated_inputs_stay_in_the_lattice() {
        for x in [[f32::NAN, 1.0], [f32::INFINITY, f32::MIN], [1e30, -3.0], [16_777_216.0, -16_777_215.0]] {
            assert!(A2::contains(&A2::nearest_point(&x)));
        }
    }
}
