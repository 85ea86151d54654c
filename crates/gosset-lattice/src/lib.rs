//! Nearest points and bit stripping of the lattices Z, A2, D4 and E8.
//!
//! Every lattice is a zero-sized type that implements [`Lattice`] (geometry) and [`BitStrip`] (a bijection between the
//! lattice and N-tuples of small non-negative integers, ready for an entropy coder). [`LatticeKind`] names a lattice at
//! run time and [`LatticeKind::dispatch`] turns that name into a type once, so that inner loops are monomorphic.
//!
//! The lattices are used in an integer embedding, scaled so that all coordinates are integers:
//!
//! | type   | set                                                               | cell volume | MSE per dimension |
//! |--------|-------------------------------------------------------------------|-------------|-------------------|
//! | [`Z`]  | the integers                                                      | 1           | 1/12              |
//! | [`A2`] | 2·A2 as (n_y, n_x), n_y ≡ n_x (mod 2); real point (n_y·√3, n_x)   | 2√3         | 5/18              |
//! | [`D4`] | 2·D4: even coordinates with sum ≡ 0 (mod 4)                       | 32          | 13/30             |
//! | [`E8`] | 2·E8: coordinates of one parity with sum ≡ 0 (mod 4)              | 256         | 929/3240          |
//!
//! The crate is `no_std`, allocates nothing and contains no `unsafe`. All results are the same on every machine: the
//! arithmetic is IEEE single and double precision without fused operations, and `libm` serves the transcendentals. The feature `std`
//! changes nothing.
//!
//! ```
//! use gosset_lattice::{BitStrip, E8, Lattice};
//!
//! let y = E8::nearest_point(&[0.6, -0.4, 1.2, 0.3, -0.9, 0.1, 0.2, -1.3]);
//! assert_eq!(y, [0, 0, 2, 0, 0, 0, 0, -2]);
//! let symbols = E8::strip(y);
//! assert_eq!(symbols, [0, 0, 2, 0, 0, 0, 0, 2]);
//! assert_eq!(E8::unstrip(symbols), y);
//! ```
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]

mod a2;
mod d4;
mod e8;
mod kind;
pub mod moments;
pub mod naive;
mod round;
mod strip;
mod z;

pub use a2::A2;
pub use d4::D4;
pub use e8::E8;
pub use kind::{LatticeKind, LatticeVisitor};
pub use round::MAX_COORDINATE;
pub use strip::BitStrip;
pub use z::Z;

mod sealed {
    pub trait Sealed {}
}

/// A lattice of dimension `N` in an integer embedding: exact nearest points, membership and the constants of its cell.
///
/// The trait is sealed; its implementors are [`Z`], [`A2`], [`D4`] and [`E8`].
pub trait Lattice<const N: usize>: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The name used in specifications, files and on the command line: `z`, `a2`, `d4` or `e8`.
    const NAME: &'static str;
    /// Normalized second moment G of the Voronoi cell (dimensionless), an exact expression of [`moments`].
    const SECOND_MOMENT: f64;
    /// Volume V of the Voronoi cell in the embedding of this crate.
    const CELL_VOLUME: f64;
    /// Mean squared error per dimension of a uniform source, G·V^(2/N).
    const MSE_PER_DIM: f64;
    /// Factor from integer coordinate i to real coordinate i: (√3, 1) for A2, ones elsewhere.
    const AXIS_SCALE: [f32; N];

    /// Nearest lattice point of `x`, one block of `N` real coordinates in alpha-scaled units.
    ///
    /// Exact for finite inputs of magnitude up to [`MAX_COORDINATE`]; larger ones saturate there and NaN counts as 0, so
    /// the result is a lattice point for any input. Ties: each coordinate rounds half to even, equal distances go to the
    /// even coset, the first of equal deltas is moved, and a zero delta moves up.
    fn nearest_point(x: &[f32; N]) -> [i32; N];

    /// Nearest points of consecutive blocks of `N` coordinates: [`Lattice::nearest_point`] on each.
    ///
    /// # Panics
    /// If `x` and `y` differ in length, or the length is no multiple of `N`.
    fn nearest_points(x: &[f32], y: &mut [i32]) {
        assert_eq!(x.len(), y.len(), "x and y differ in length");
        let (x_blocks, x_rest) = x.as_chunks::<N>();
        let (y_blocks, _) = y.as_chunks_mut::<N>();
        assert!(x_rest.is_empty(), "length {} is no multiple of {N}", x.len());
        for (x, y) in x_blocks.iter().zip(y_blocks) {
            *y = Self::nearest_point(x);
        }
    }

    /// Whether the integer vector `y` is a point of the lattice.
    fn contains(y: &[i32; N]) -> bool;

    /// Real coordinates of the lattice point `y`: exact below 2^24, except for the rounding of √3 in A2.
    #[inline]
    fn embed(y: &[i32; N]) -> [f32; N] {
        core::array::from_fn(|i| y[i] as f32 * Self::AXIS_SCALE[i])
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
