//! Dither: points uniform on the Voronoi cell of a lattice, from a counter.
//!
//! With U uniform on the cell, Q(x + U) − U differs from x by an error that is uniform on the cell too, whatever x is: a reconstruction
//! is unbiased for each vector, not on average over vectors. Nothing is stored; the dither of a vector follows from seed, layer, role,
//! head and position.
//!
//! A uniform point of any region that tiles space with translations of the lattice becomes uniform on the cell when its nearest point
//! is taken off. The cube [−2, 2)^N is one for Z, 2·D4 and 2·E8, as 4Z^N is a sublattice of each; for 2·A2 it is the rectangle
//! [−√3, √3) x [−1, 1), whose sides (2, 0) and (0, 2) in integer coordinates are lattice points.

use gosset_lattice::BitStrip;
use gosset_transform::{Domain, RandomStream};

use crate::{Place, Role};

/// Layers that dither streams can tell apart.
pub(crate) const MAX_LAYERS: usize = 1 << 13;
/// KV heads that dither streams can tell apart.
pub(crate) const MAX_HEADS: usize = 1 << 10;

/// The stream of a vector: layer in bits 51 to 63 of the index, role (1 for values) in bit 50, head in bits 40 to 49, position below.
pub(crate) fn stream(seed: u64, place: Place, position: u64) -> RandomStream {
    let role = u64::from(place.role == Role::Value);
    let place = u64::from(place.layer) << 51 | role << 50 | u64::from(place.head) << 40;
    RandomStream::new(seed, Domain::Dither, place | position & ((1 << 40) - 1))
}

/// Fills `u`, whole blocks, with points uniform on the cell; coordinates are multiples of 2^-24 of the sides of the region before its
/// nearest point is taken off. One word of the stream for each coordinate.
#[inline]
pub(crate) fn fill<const N: usize, L: BitStrip<N>>(stream: &mut RandomStream, u: &mut [f32]) {
    for block in u.as_chunks_mut::<N>().0 {
        let mut c = [0.0; N];
        for (c, scale) in c.iter_mut().zip(L::AXIS_SCALE) {
            let half_side = if N == 2 { scale } else { 2.0 };
            // 24 bits of the word: exact in f32.
            let unit = (stream.next_u32() >> 8) as f32 * (1.0 / 8_388_608.0) - 1.0;
            *c = unit * half_side;
        }
        let nearest = L::embed(&L::nearest_point(&c));
        for ((u, c), nearest) in block.iter_mut().zip(c).zip(nearest) {
            *u = c - nearest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_lattice::{LatticeKind, LatticeVisitor};

    struct Moments;

    impl LatticeVisitor for Moments {
        type Out = (f64, Vec<f64>, f64, f64);

        /// Second moment per dimension, second moment of each axis, of all of them, largest mean and largest correlation.
        fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out {
            let n = 1 << 18;
            let (mut mean, mut second, mut cross) = ([0.0f64; N], [0.0f64; N], 0.0f64);
            let mut u = vec![0.0; N];
            for position in 0..n {
                let place = Place { layer: 3, role: Role::Key, head: 1 };
                fill::<N, L>(&mut stream(7, place, position), &mut u);
                assert_eq!(
                    L::nearest_point(&u.as_chunks::<N>().0[0].map(|v| v * 0.999_99)),
                    [0; N],
                    "{}: {u:?}",
                    L::NAME
                );
                for i in 0..N {
                    mean[i] += f64::from(u[i]);
                    second[i] += f64::from(u[i]).powi(2);
                }
                cross += f64::from(u[0]) * f64::from(u[N - 1]);
            }
            let n = n as f64;
            let per_axis: Vec<f64> = second.iter().map(|s| s / n).collect();
            let total = per_axis.iter().sum::<f64>() / N as f64;
            let mean = mean.iter().map(|m| (m / n).abs()).fold(0.0, f64::max);
            (total, per_axis, mean, if N == 1 { 0.0 } else { (cross / n).abs() })
        }
    }

    /// V8 of the fact sheet: E|U|² per dimension, the same on every axis, no mean, no correlation of the first and last coordinate.
    #[test]
    fn moments_of_the_dither_are_those_of_the_cell() {
        for (kind, moment) in [
            (LatticeKind::Z, 1.0 / 12.0),
            (LatticeKind::A2, 5.0 / 18.0),
            (LatticeKind::D4, 13.0 / 30.0),
            (LatticeKind::E8, 929.0 / 3240.0),
        ] {
            let (total, axes, mean, cross) = kind.dispatch(Moments);
            // The fourth moment is below 4 times the squared second: standard errors over 2^18 vectors are below 0.4 %.
            assert!((total / moment - 1.0).abs() < 0.01, "{kind}: {total}, expected {moment}");
            assert!(axes.iter().all(|a| (a / moment - 1.0).abs() < 0.016), "{kind}: {axes:?}, expected {moment}");
            let error = (moment / f64::from(1 << 18)).sqrt();
            assert!(mean < 5.0 * error && cross < 5.0 * moment / 512.0, "{kind}: mean {mean}, correlation {cross}");
        }
    }

    #[test]
    fn every_part_of_the_address_changes_the_dither() {
        let place = Place { layer: 1, role: Role::Key, head: 2 };
        let base = stream(5, place, 9);
        let others = [
            stream(6, place, 9),
            stream(5, Place { layer: 2, ..place }, 9),
            stream(5, Place { role: Role::Value, ..place }, 9),
            stream(5, Place { head: 3, ..place }, 9),
            stream(5, place, 10),
            stream(5, place, 9 + (1 << 32)),
        ];
        for other in others {
            assert!((0..8).any(|i| other.word(i) != base.word(i)), "{other:?}");
        }
    }
}
