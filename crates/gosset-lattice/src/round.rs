//! Rounding half to even by the magic-constant trick, and the limits within which it is exact.
//!
//! Adding 1.5·2^23 to |v| < 2^22 leaves a float whose unit in the last place is 1, so the addition itself rounds half to
//! even and the integer sits in the low mantissa bits. `f32::round_ties_even` is a library call on baseline x86-64; this
//! is one addition and one integer subtraction, the same on every machine.

/// Largest coordinate magnitude that a nearest point is computed for, 2^26; inputs beyond it saturate.
///
/// Far above the 2^24 up to which `f32` holds every integer, and small enough that no later integer arithmetic
/// overflows.
pub const MAX_COORDINATE: f32 = 67_108_864.0;

/// Coordinates below this magnitude take the single-precision path; all others, and NaN, the double-precision one.
pub(crate) const FAST_LIMIT: f32 = 4_194_304.0;

const MAGIC_F32: f32 = 12_582_912.0;
const MAGIC_F64: f64 = 6_755_399_441_055_744.0;

/// `v` rounded half to even, as integer and as float. Exact for |v| < 2^22, meaningless beyond.
#[inline(always)]
pub(crate) fn round_f32(v: f32) -> (i32, f32) {
    let shifted = v + MAGIC_F32;
    (shifted.to_bits().wrapping_sub(MAGIC_F32.to_bits()) as i32, shifted - MAGIC_F32)
}

/// `v` rounded half to even, as integer and as float. Exact for |v| < 2^31.
#[inline(always)]
pub(crate) fn round_f64(v: f64) -> (i32, f64) {
    let shifted = v + MAGIC_F64;
    (shifted.to_bits() as i32, shifted - MAGIC_F64)
}

/// `v` in double precision, saturated to ±[`MAX_COORDINATE`]; NaN becomes 0.
#[inline(always)]
pub(crate) fn saturate(v: f32) -> f64 {
    if v.is_nan() { 0.0 } else { f64::from(v.clamp(-MAX_COORDINATE, MAX_COORDINATE)) }
}

/// Whether every coordinate may take the single-precision path.
#[inline(always)]
pub(crate) fn all_fast<const N: usize>(x: &[f32; N]) -> bool {
    // Written as a fold without early exit, so that it becomes two vector comparisons; NaN compares false.
    x.iter().fold(true, |fast, v| fast & (v.abs() < FAST_LIMIT))
}

/// Index and value of the first of the largest of `N` numbers, none of them NaN.
///
/// First the value, then where it is: both are vector operations without a branch, which random data would mispredict.
#[inline(always)]
pub(crate) fn first_max<const N: usize>(values: &[f32; N]) -> (usize, f32) {
    let max = reduce(*values, |a, b| if a > b { a } else { b });
    (first_equal(values, max), max)
}

/// Index and value of the first of the smallest of `N` numbers, none of them NaN.
#[inline(always)]
pub(crate) fn first_min<const N: usize>(values: &[f32; N]) -> (usize, f32) {
    let min = reduce(*values, |a, b| if a < b { a } else { b });
    (first_equal(values, min), min)
}

#[inline(always)]
fn first_equal<const N: usize>(values: &[f32; N], value: f32) -> usize {
    let mut equal = 0;
    for (i, v) in values.iter().enumerate() {
        equal |= u32::from(*v == value) << i;
    }
    equal.trailing_zeros() as usize
}

/// Combines `N` values, a power of two, by halves: the order that vector registers combine in.
#[inline(always)]
pub(crate) fn reduce<T: Copy, const N: usize>(mut values: [T; N], combine: impl Fn(T, T) -> T) -> T {
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            values[i] = combine(values[i], values[i + half]);
        }
        half /= 2;
    }
    values[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rounding_agrees_with_round_ties_even(v in -4_194_303.0f32..4_194_303.0, half in -4_000_000i32..4_000_000) {
            for v in [v, half as f32 * 0.5] {
                let (i, f) = round_f32(v);
                prop_assert_eq!(f, v.round_ties_even());
                prop_assert_eq!(i, v.round_ties_even() as i32);
                let (i, f) = round_f64(f64::from(v));
                prop_assert_eq!(f, f64::from(v).round_ties_even());
                prop_assert_eq!(i, f64::from(v).round_ties_even() as i32);
            }
        }
    }

    #[test]
    fn saturation_is_total() {
        assert_eq!(saturate(f32::NAN), 0.0);
        assert_eq!(saturate(f32::INFINITY), 67_108_864.0);
        assert_eq!(saturate(f32::MIN), -67_108_864.0);
    }
}
