//! Bit stripping: removing the bits that the lattice constraints make redundant.
//!
//! The coordinates of a lattice point obey parity constraints, so coding them one by one wastes whole bits: 8 per E8
//! vector, 1 per D4 vector (beyond the common factor 2), 1 per A2 vector. Stripping maps a point to N free symbols and loses
//! nothing; it is a bijection between the lattice and the N-tuples of non-negative integers. With
//! zz(v) = 2v for v ≥ 0 and −2v − 1 for v < 0:
//!
//! - **Z**: zz(y).
//! - **A2**: p = n_x mod 2, t_y = (n_y − p)/2; symbols zz(t_y), zz(n_x).
//! - **D4**: s = y/2, p = (s_0 + s_1 + s_2) mod 2, t = (s_3 − p)/2; symbols zz(s_0), zz(s_1), zz(s_2), zz(t).
//! - **E8**: c = y_0 mod 2, s = (y − c)/2, p = (s_0 + … + s_6) mod 2, t = (s_7 − p)/2; symbols zz(s_0), …, zz(s_6) and
//!   2·zz(t) + c: the coset bit rides in the low bit of the last symbol.

use crate::{A2, D4, E8, Lattice, Z};

/// A lattice whose points map one to one to `N` non-negative symbols.
///
/// Both directions use wrapping arithmetic and are total. They invert each other, [`BitStrip::unstrip`] after
/// [`BitStrip::strip`] for coordinates up to 2^27 in magnitude and the other way round for symbols below 2^28.
pub trait BitStrip<const N: usize>: Lattice<N> {
    /// Number of symbol classes: positions of one class are alike in distribution and share code parameters.
    const N_CLASSES: usize;
    /// Class of each of the `N` symbol positions, below [`BitStrip::N_CLASSES`].
    const SYMBOL_CLASS: [usize; N];

    /// Symbols of the lattice point `y`.
    fn strip(y: [i32; N]) -> [u32; N];

    /// The lattice point of the symbols `s`; any symbols give a lattice point.
    fn unstrip(s: [u32; N]) -> [i32; N];
}

#[inline(always)]
fn zigzag(v: i32) -> u32 {
    ((v << 1) ^ (v >> 31)) as u32
}

#[inline(always)]
fn unzigzag(z: u32) -> i32 {
    (z >> 1) as i32 ^ -((z & 1) as i32)
}

/// 2t + p without overflow checks.
#[inline(always)]
fn double_plus(t: i32, p: i32) -> i32 {
    (t << 1).wrapping_add(p)
}

impl BitStrip<1> for Z {
    const N_CLASSES: usize = 1;
    const SYMBOL_CLASS: [usize; 1] = [0];

    #[inline]
    fn strip(y: [i32; 1]) -> [u32; 1] {
        y.map(zigzag)
    }

    #[inline]
    fn unstrip(s: [u32; 1]) -> [i32; 1] {
        s.map(unzigzag)
    }
}

impl BitStrip<2> for A2 {
    const N_CLASSES: usize = 2;
    const SYMBOL_CLASS: [usize; 2] = [0, 1];

    #[inline]
    fn strip(y: [i32; 2]) -> [u32; 2] {
        let p = y[1] & 1;
        [zigzag(y[0].wrapping_sub(p) >> 1), zigzag(y[1])]
    }

    #[inline]
    fn unstrip(s: [u32; 2]) -> [i32; 2] {
        let n_x = unzigzag(s[1]);
        [double_plus(unzigzag(s[0]), n_x & 1), n_x]
    }
}

impl BitStrip<4> for D4 {
    const N_CLASSES: usize = 2;
    const SYMBOL_CLASS: [usize; 4] = [0, 0, 0, 1];

    #[inline]
    fn strip(y: [i32; 4]) -> [u32; 4] {
        let s = y.map(|v| v >> 1);
        let p = (s[0] ^ s[1] ^ s[2]) & 1;
        [zigzag(s[0]), zigzag(s[1]), zigzag(s[2]), zigzag(s[3].wrapping_sub(p) >> 1)]
    }

    #[inline]
    fn unstrip(s: [u32; 4]) -> [i32; 4] {
        let mut s = s.map(unzigzag);
        let p = (s[0] ^ s[1] ^ s[2]) & 1;
        s[3] = double_plus(s[3], p);
        s.map(|v| v << 1)
    }
}

impl BitStrip<8> for E8 {
    const N_CLASSES: usize = 1;
    const SYMBOL_CLASS: [usize; 8] = [0; 8];

    #[inline]
    fn strip(y: [i32; 8]) -> [u32; 8] {
        let c = y[0] & 1;
        // Floor shifts: (y − c)/2 is y >> 1 for the low bit c that all coordinates share.
        let s = y.map(|v| v >> 1);
        let p = s[..7].iter().fold(0, |parity, v| parity ^ v) & 1;
        let mut symbols = s.map(zigzag);
        symbols[7] = (zigzag(s[7].wrapping_sub(p) >> 1) << 1) | c as u32;
        symbols
    }

    #[inline]
    fn unstrip(s: [u32; 8]) -> [i32; 8] {
        let c = (s[7] & 1) as i32;
        let t = unzigzag(s[7] >> 1);
        let mut s = s.map(unzigzag);
        let p = s[..7].iter().fold(0, |parity, v| parity ^ v) & 1;
        s[7] = double_plus(t, p);
        s.map(|v| double_plus(v, c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX_SYMBOL: u32 = 1 << 28;
    const MAX_MAGNITUDE: i32 = 1 << 27;

    /// Every tuple of symbols below 2^28 is the strip of exactly one lattice point.
    fn symbols_round_trip<const N: usize, L: BitStrip<N>>(s: [u32; N]) {
        let y = L::unstrip(s);
        assert!(L::contains(&y), "{}: {y:?} from {s:?} is no lattice point", L::NAME);
        assert_eq!(L::strip(y), s, "{}", L::NAME);
        for class in L::SYMBOL_CLASS {
            assert!(class < L::N_CLASSES);
        }
    }

    fn point_round_trips<const N: usize, L: BitStrip<N>>(y: [i32; N]) {
        if L::contains(&y) {
            assert_eq!(L::unstrip(L::strip(y)), y, "{}", L::NAME);
        }
    }

    proptest! {
        #[test]
        fn strip_is_a_bijection_on_each_lattice(s in proptest::array::uniform8(0..MAX_SYMBOL), small in proptest::array::uniform8(0u32..6)) {
            for s in [s, small] {
                symbols_round_trip::<1, Z>([s[0]]);
                symbols_round_trip::<2, A2>([s[0], s[1]]);
                symbols_round_trip::<4, D4>([s[0], s[1], s[2], s[3]]);
                symbols_round_trip::<8, E8>(s);
            }
        }

        #[test]
        fn points_round_trip_up_to_2_pow_27(raw in proptest::array::uniform8(-MAX_MAGNITUDE..=MAX_MAGNITUDE)) {
            point_round_trips::<1, Z>([raw[0]]);
            point_round_trips::<2, A2>([raw[0], raw[0] & 1 | raw[1] & !1]);
            let mut d4 = [raw[0] & !1, raw[1] & !1, raw[2] & !1, raw[3] & !3];
            d4[3] |= (d4[0] + d4[1] + d4[2]) & 2;
            prop_assert!(D4::contains(&d4));
            point_round_trips::<4, D4>(d4);
            let c = raw[0] & 1;
            let mut e8 = raw.map(|v| v & !1 | c);
            e8[7] ^= e8.iter().fold(0i32, |sum, &v| sum.wrapping_add(v)) & 2;
            prop_assert!(E8::contains(&e8));
            point_round_trips::<8, E8>(e8);
        }

        #[test]
        fn unstrip_is_total(s: [u32; 8]) {
            let _ = Z::unstrip([s[0]]);
            let _ = A2::unstrip([s[0], s[1]]);
            let _ = D4::unstrip([s[0], s[1], s[2], s[3]]);
            let _ = E8::unstrip(s);
        }
    }

    #[test]
    fn extremes_do_not_panic() {
        for v in [i32::MIN, i32::MAX] {
            let _ = (Z::strip([v]), A2::strip([v; 2]), D4::strip([v; 4]), E8::strip([v; 8]));
        }
        for s in [u32::MAX, 1 << 31] {
            let _ = (Z::unstrip([s]), A2::unstrip([s; 2]), D4::unstrip([s; 4]), E8::unstrip([s; 8]));
        }
    }

    #[test]
    fn published_e8_symbols() {
        assert_eq!(E8::strip([0, 0, 2, 0, 0, 0, 0, -2]), [0, 0, 2, 0, 0, 0, 0, 2]);
        assert_eq!(E8::strip([1; 8]), [0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(E8::strip([2, -2, 0, 8, -6, 2, 0, 0]), [2, 1, 0, 8, 5, 2, 0, 0]);
        assert_eq!(E8::strip([3; 8]), [2, 2, 2, 2, 2, 2, 2, 1]);
    }

    /// Small points of each lattice have small symbols: the map is onto an initial segment, which is what makes it cheap.
    #[test]
    fn all_small_symbol_tuples_are_hit_once() {
        let mut points = std::collections::BTreeSet::new();
        for code in 0..4u32.pow(8) {
            let s: [u32; 8] = core::array::from_fn(|i| (code >> (2 * i)) & 3);
            assert!(points.insert(E8::unstrip(s)));
        }
        assert_eq!(points.len(), 65536);
    }
}
