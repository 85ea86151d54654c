//! Fast Walsh-Hadamard transform.

use core::ops::{Add, Sub};

use crate::arch::{self, Backend};

/// Replaces `x` by `H x`, with `H` the Sylvester-Hadamard matrix of order `x.len()`: natural order, entries ±1.
///
/// `H[i][j] = (-1)^popcount(i & j)`; unnormalised, so applying it twice multiplies by the length. Uses AVX2 where the
/// machine has it; every result is bit-identical to [`fwht_scalar`]. `n log2 n` additions, no memory.
///
/// # Panics
///
/// If the length is not a power of two (zero is none).
///
/// Source: Fino and Algazi, *Unified matrix treatment of the fast Walsh-Hadamard transform*, IEEE Trans. Comput. 1976.
///
/// ```
/// let mut x = [1.0, 2.0, 3.0, 4.0];
/// gosset_transform::fwht(&mut x);
/// assert_eq!(x, [10.0, -2.0, -4.0, 0.0]);
/// ```
pub fn fwht(x: &mut [f32]) {
    check_len(x.len());
    arch::fwht(Backend::detect(), x);
}

/// [`fwht`] without vector instructions of its own: the definition that the other paths are held to.
///
/// Stages run from stride 1 up; each replaces a pair `(a, b)` at that distance by `(a + b, a - b)`.
///
/// # Panics
///
/// If the length is not a power of two (zero is none).
///
/// ```
/// let mut x = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0];
/// gosset_transform::fwht_scalar(&mut x);
/// assert_eq!(x, [2.0, 0.0, 2.0, 0.0, 0.0, 2.0, 0.0, 2.0]);
/// ```
pub fn fwht_scalar(x: &mut [f32]) {
    check_len(x.len());
    butterflies(x, 1);
}

/// The unnormalised Walsh-Hadamard transform along the outer axis of `x`, whose elements are runs of `stride` values, in the order of
/// [`fwht`]; for f32 and f64, and for columns of a row-major matrix.
///
/// The length of `x` over `stride` is a power of two; otherwise `x` holds meaningless values afterwards.
///
/// ```
/// // Two columns, four rows.
/// let mut x = [1.0f64, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 1.0];
/// gosset_transform::butterflies(&mut x, 2);
/// assert_eq!(x, [10.0, 1.0, -2.0, -1.0, -4.0, -1.0, 0.0, 1.0]);
/// ```
pub fn butterflies<T: Copy + Add<Output = T> + Sub<Output = T>>(x: &mut [T], stride: usize) {
    let mut half = stride;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (lo, hi) = pair.split_at_mut(half);
            for (a, b) in lo.iter_mut().zip(hi) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

fn check_len(len: usize) {
    assert!(len.is_power_of_two(), "length {len} of a Walsh-Hadamard transform, expected a power of two");
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::philox::{Domain, RandomStream};

    /// The product with the dense matrix, in f64.
    fn naive(x: &[f32]) -> Vec<f64> {
        let entry = |i: usize, j: usize| if (i & j).count_ones() % 2 == 1 { -1.0 } else { 1.0 };
        (0..x.len()).map(|i| x.iter().enumerate().map(|(j, &v)| entry(i, j) * f64::from(v)).sum()).collect()
    }

    #[test]
    fn equals_the_dense_product() {
        for log2 in 0..=11 {
            let mut stream = RandomStream::new(17, Domain::Rotation, log2);
            // Multiples of 2^-8 up to 128: all sums are exact in f32, so the comparison is, too.
            let x: Vec<f32> = (0..1 << log2).map(|_| (stream.next_u32() as i32 >> 20) as f32 / 256.0).collect();
            let expected = naive(&x);
            for transform in [fwht, fwht_scalar] {
                let mut y = x.clone();
                transform(&mut y);
                assert!(y.iter().zip(&expected).all(|(&a, &b)| f64::from(a) == b), "length {}", 1 << log2);
            }
        }
    }

    #[test]
    #[should_panic(expected = "length 12 of a Walsh-Hadamard transform, expected a power of two")]
    fn refuses_a_length_that_is_no_power_of_two() {
        fwht(&mut [0.0; 12]);
    }

    #[test]
    #[should_panic(expected = "length 0")]
    fn refuses_an_empty_slice() {
        fwht(&mut []);
    }
}
