//! Hadamard matrices of one order: Sylvester's and Paley's two constructions.

use alloc::vec;
use alloc::vec::Vec;

/// Largest order of a matrix that is no power of two: its entries take a byte each.
pub const MAX_PALEY_ORDER: u32 = 1024;

/// How the Hadamard matrix of an order is made: the order alone decides.
///
/// Source: Paley, *On orthogonal matrices*, J. Math. Phys. 12 (1933). Quadratic characters of primes only, no prime powers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Construction {
    /// A power of two: entry (i, j) is -1 iff `i & j` has an odd number of ones.
    Sylvester,
    /// q + 1 for a prime q = 3 mod 4.
    PaleyOne { prime: u32 },
    /// 2 (q + 1) for a prime q = 1 mod 4.
    PaleyTwo { prime: u32 },
}

/// The construction of `order`, which is Sylvester's where that exists, then Paley's first, then his second; `None` if there is none.
pub(crate) fn construction(order: u32) -> Option<Construction> {
    if order.is_power_of_two() {
        return Some(Construction::Sylvester);
    }
    if order == 0 || order > MAX_PALEY_ORDER || !order.is_multiple_of(4) {
        return None;
    }
    let (one, two) = (order - 1, order / 2 - 1);
    if one % 4 == 3 && is_prime(one) {
        Some(Construction::PaleyOne { prime: one })
    } else if two % 4 == 1 && is_prime(two) {
        Some(Construction::PaleyTwo { prime: two })
    } else {
        None
    }
}

/// Entries of the matrix of `order` that are -1, row by row; `None` for a power of two, which needs no table, and where there is no matrix.
///
/// With chi the quadratic character of the prime q, chi(0) = 0:
/// - first construction: row 0 is all ones; row i + 1 is -1, then 1 at column i + 1 and chi(i - j) at every other column j + 1;
/// - second: C is the symmetric matrix of order q + 1 whose first row is 0, 1, …, 1 and whose entry (i + 1, j + 1) is chi(i - j); every
///   zero of C becomes the block (1, -1; -1, -1) and every ±1 the block ±(1, 1; 1, -1).
pub(crate) fn negative_entries(order: u32) -> Option<Vec<bool>> {
    let n = order as usize;
    let mut out = vec![false; n.checked_mul(n).filter(|_| order <= MAX_PALEY_ORDER)?];
    match construction(order)? {
        Construction::Sylvester => return None,
        Construction::PaleyOne { prime } => {
            let residue = squares(prime);
            for i in 0..prime as usize {
                let row = &mut out[(i + 1) * n..][..n];
                row[0] = true;
                for j in 0..prime as usize {
                    row[j + 1] = i != j && !residue[difference(i, j, prime)];
                }
            }
        }
        Construction::PaleyTwo { prime } => {
            let residue = squares(prime);
            for (i, j) in (0..n / 2).flat_map(|i| (0..n / 2).map(move |j| (i, j))) {
                let character = if i == j {
                    0
                } else if i == 0 || j == 0 || residue[difference(i - 1, j - 1, prime)] {
                    1
                } else {
                    -1
                };
                let block = match character {
                    0 => [[false, true], [true, true]],
                    1 => [[false, false], [false, true]],
                    _ => [[true, true], [true, false]],
                };
                for (a, row) in block.iter().enumerate() {
                    out[(2 * i + a) * n + 2 * j..][..2].copy_from_slice(row);
                }
            }
        }
    }
    Some(out)
}

fn difference(i: usize, j: usize, prime: u32) -> usize {
    (i + prime as usize - j) % prime as usize
}

/// Which residues of `prime` are squares of nonzero ones.
fn squares(prime: u32) -> Vec<bool> {
    let mut out = vec![false; prime as usize];
    (1..u64::from(prime)).for_each(|i| out[(i * i % u64::from(prime)) as usize] = true);
    out
}

fn is_prime(n: u32) -> bool {
    n >= 2 && (2..n).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_that_is_claimed_is_a_hadamard_matrix() {
        let mut n_paley = 0;
        for order in (4..=260).step_by(4) {
            let Some(negative) = negative_entries(order) else { continue };
            n_paley += 1;
            let n = order as usize;
            let sign = |i: usize, j: usize| if negative[i * n + j] { -1 } else { 1 };
            for (a, b) in (0..n).flat_map(|a| (0..=a).map(move |b| (a, b))) {
                let product: i32 = (0..n).map(|j| sign(a, j) * sign(b, j)).sum();
                assert_eq!(product, if a == b { n as i32 } else { 0 }, "order {order}, rows {a} and {b}");
            }
        }
        assert_eq!(n_paley, 33);
    }

    #[test]
    fn orders_have_the_constructions_of_the_literature() {
        use Construction::{PaleyOne, PaleyTwo, Sylvester};
        for (order, expected) in [
            (1, Some(Sylvester)),
            (2, Some(Sylvester)),
            (12, Some(PaleyOne { prime: 11 })),
            (20, Some(PaleyOne { prime: 19 })),
            (28, Some(PaleyTwo { prime: 13 })), // 27 is no prime.
            (36, Some(PaleyTwo { prime: 17 })),
            (68, Some(PaleyOne { prime: 67 })),
            (76, Some(PaleyTwo { prime: 37 })),
            (108, Some(PaleyOne { prime: 107 })),
            (1 << 28, Some(Sylvester)),
            (100, None), // Needs the field of 49 elements.
            (172, None),
            (0, None),
            (6, None),
            (1032, None), // 1031 is a prime, but the order is too large.
        ] {
            assert_eq!(construction(order), expected, "order {order}");
        }
    }
}
