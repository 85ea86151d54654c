//! The integers.

use crate::round::{FAST_LIMIT, round_f32, round_f64, saturate};
use crate::{Lattice, moments, sealed};

/// The integers Z, one coordinate per block.
///
/// ```
/// use gosset_lattice::{Lattice, Z};
/// assert_eq!(Z::nearest_point(&[2.5]), [2]); // half to even
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Z;

impl sealed::Sealed for Z {}

impl Lattice<1> for Z {
    const NAME: &'static str = "z";
    const SECOND_MOMENT: f64 = moments::SECOND_MOMENT_Z;
    const CELL_VOLUME: f64 = moments::CELL_VOLUME_Z;
    const MSE_PER_DIM: f64 = moments::MSE_PER_DIM_Z;
    const AXIS_SCALE: [f32; 1] = [1.0];

    #[inline]
    fn nearest_point(x: &[f32; 1]) -> [i32; 1] {
        if x[0].abs() < FAST_LIMIT { [round_f32(x[0]).0] } else { [round_f64(saturate(x[0])).0] }
    }

    #[inline]
    fn contains(_: &[i32; 1]) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nearest_point_is_the_naive_one(x in -1e6f32..1e6, quarter in -1000i32..1000) {
            for x in [[x], [quarter as f32 * 0.25]] {
                prop_assert_eq!(Z::nearest_point(&x), naive::nearest_z(&x));
            }
        }
    }
}
