//! The zigzag map between signed and non-negative integers.

/// 2v for v ≥ 0 and −2v − 1 for v < 0: 0, −1, 1, −2, 2, … become 0, 1, 2, 3, 4, ….
///
/// ```
/// assert_eq!([0, -1, 1, -2, i32::MIN].map(gosset_entropy::zigzag), [0, 1, 2, 3, u32::MAX]);
/// ```
#[inline]
pub const fn zigzag(v: i32) -> u32 {
    ((v << 1) ^ (v >> 31)) as u32
}

/// Inverse of [`zigzag`].
///
/// ```
/// assert_eq!([0, 1, 2, 3, u32::MAX].map(gosset_entropy::unzigzag), [0, -1, 1, -2, i32::MIN]);
/// ```
#[inline]
pub const fn unzigzag(z: u32) -> i32 {
    (z >> 1) as i32 ^ -((z & 1) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn zigzag_is_a_bijection(v: i32, z: u32) {
            prop_assert_eq!(unzigzag(zigzag(v)), v);
            prop_assert_eq!(zigzag(unzigzag(z)), z);
        }
    }
}
