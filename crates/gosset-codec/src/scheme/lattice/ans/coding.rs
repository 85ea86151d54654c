//! How a lattice point becomes coded values: the order of its coordinates, what earlier ones tell about later ones, and the
//! context that each is coded in.
//!
//! The parity constraints of a lattice fix the low bits of some coordinates: the *residue*. What is left is coded, so that
//! nothing is spent on what is known.
//!
//! | lattice | coded, in this order | residue | contexts |
//! |---|---|---|---|
//! | Z | y_0 | none | 0 |
//! | A2 | n_x | none | 0 |
//! | | n_y | n_x mod 2 | 1 + residue |
//! | D4 | y_0, y_1, y_2 | 0 mod 2 | 0 |
//! | | y_3 | −(y_0 + y_1 + y_2) mod 4, which is even | 1 + residue/2 |
//! | E8 | y_0 | none | 0 |
//! | | y_1, …, y_6 | y_0 mod 2 | 1 + residue |
//! | | y_7 | −(y_0 + … + y_6) mod 4 | 3 + residue |
//!
//! The coset of an E8 point is the parity of y_0, the parity p of the strip shows in the residue of y_7 (and of y_3 in D4): the
//! contexts are those of coset and parity.
//!
//! The four lattices have four dimensions, so that here the dimension stands for the lattice and every rule is a constant
//! of it.

/// Contexts of the lattice with the most.
pub(crate) const MAX_CONTEXTS: usize = 8;

/// Number of contexts of the lattice of dimension `n`.
pub(crate) const fn n_contexts(n: usize) -> usize {
    match n {
        1 => 1,
        8 => 7,
        _ => 3,
    }
}

/// Index of the coordinate that is coded `i`-th.
#[inline(always)]
pub(crate) const fn coordinate<const N: usize>(i: usize) -> usize {
    if N == 2 { 1 - i } else { i }
}

/// Low bits of the coordinate coded `i`-th that the ones before determine.
#[inline(always)]
pub(crate) const fn known_bits<const N: usize>(i: usize) -> u32 {
    match (N, i) {
        (4 | 8, i) if i == N - 1 => 2,
        (2 | 8, 0) | (1, _) => 0,
        _ => 1,
    }
}

/// Those bits, from the coordinates coded before; whatever they hold, the result has no other bits.
#[inline(always)]
pub(crate) fn residue<const N: usize>(i: usize, y: &[i32; N]) -> i32 {
    match (N, i) {
        (2, 1) => y[1] & 1,
        (4 | 8, i) if i == N - 1 => {
            let parity = if N == 4 { !1 } else { !0 };
            y[..N - 1].iter().fold(0i32, |sum, &v| sum.wrapping_sub(v)) & 3 & parity
        }
        (8, 1..) => y[0] & 1,
        _ => 0,
    }
}

/// Context of the coordinate coded `i`-th, by its residue.
#[inline(always)]
pub(crate) const fn context<const N: usize>(i: usize, residue: i32) -> usize {
    let residue = residue as usize;
    match (N, i) {
        (2, 1) => 1 + (residue & 1),
        (4, 3) => 1 + (residue >> 1 & 1),
        (8, 7) => 3 + (residue & 3),
        (8, 1..) => 1 + (residue & 1),
        _ => 0,
    }
}

/// Context of the coordinate coded `i`-th where low bits are raw.
#[inline(always)]
pub(crate) const fn wide_context<const N: usize>(i: usize) -> usize {
    if N == 2 { i } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};

    struct Check;

    impl LatticeVisitor for Check {
        type Out = ();

        fn visit<const N: usize, L: BitStrip<N>>(self) {
            let mut seen = [false; MAX_CONTEXTS];
            for n in 0..20_000u32 {
                let y =
                    L::unstrip(std::array::from_fn(|i| n.wrapping_mul(2_654_435_761).rotate_left(5 * i as u32) & 31));
                let mut so_far = [0x5555; N];
                for i in 0..N {
                    let value = y[coordinate::<N>(i)];
                    let residue = residue::<N>(i, &so_far);
                    assert_eq!(value & ((1 << known_bits::<N>(i)) - 1), residue, "{} {y:?} {i}", L::NAME);
                    seen[context::<N>(i, residue)] = true;
                    so_far[coordinate::<N>(i)] = value;
                }
                assert_eq!(so_far, y);
            }
            assert!((0..MAX_CONTEXTS).all(|context| seen[context] == (context < n_contexts(N))), "{}", L::NAME);
        }
    }

    #[test]
    fn coordinates_have_the_residues_that_earlier_ones_tell() {
        LatticeKind::ALL.into_iter().for_each(|kind| kind.dispatch(Check));
    }
}
