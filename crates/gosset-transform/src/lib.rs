//! Counter-based random streams, sign diagonals, fast Walsh-Hadamard transform and tiled randomized Hadamard transform.
//!
//! A randomized Hadamard transform (RHT) makes the coordinates of a weight row or an activation look Gaussian before
//! they meet a lattice. It is orthonormal, so norms and inner products are kept, and applying it to both operands of
//! a product leaves the product alone: the weights are never rotated back.
//!
//! | item | gives |
//! |---|---|
//! | [`philox4x32_10`], [`RandomStream`] | reproducible random words, addressed by (seed, domain, index, word) |
//! | [`Signs`] | the ±1 diagonal of a seed |
//! | [`fwht`] | the unnormalised Walsh-Hadamard transform, in place |
//! | [`TilePlan`] | how a row of any width is cut into power-of-two tiles, without padding |
//! | [`Rht`] | the orthonormal transform of rows, tile by tile, and its inverse |
//! | [`Backend`], [`Kernel`] | loops of other crates as vector code |
//! | [`Hadamard`] | the orthonormal transform across a whole row, for widths that are products of known orders |
//!
//! Results are bit-identical on every machine, whatever instruction set is used and however rows are grouped: every
//! path adds in the same order, and a multiplication is never contracted with an addition. (The one exception is
//! IEEE 754's own: which payload a NaN carries.)
//!
//! `no_std` with `alloc`. The `std` feature (default) finds vector instructions at run time; without it they are used
//! only where the whole build enables them.
//!
//! ```
//! use gosset_transform::{DEFAULT_TILE, Rht, TilePlan};
//!
//! let plan = TilePlan::new(172, DEFAULT_TILE)?;
//! assert_eq!(plan.to_string(), "1 x 128 + 1 x 32 + 1 x 8 + 1 x 4");
//!
//! let rht = Rht::new(plan, 0);
//! let mut row = vec![0.0; 172];
//! row[171] = 1.0; // In the last tile, of length 4: its energy spreads evenly over four columns.
//! rht.forward(&mut row);
//! assert_eq!(row[168..], [0.5, -0.5, -0.5, 0.5]);
//! rht.inverse(&mut row);
//! assert_eq!(row[168..], [0.0, 0.0, 0.0, 1.0]);
//! # Ok::<(), gosset_transform::TransformError>(())
//! ```
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod arch;
mod error;
mod fwht;
mod hadamard;
mod hadamard_order;
mod philox;
mod plan;
mod rht;
mod signs;

pub use arch::{Backend, Kernel};
pub use error::TransformError;
pub use fwht::{butterflies, fwht, fwht_scalar};
pub use hadamard::Hadamard;
pub use hadamard_order::MAX_PALEY_ORDER;
pub use philox::{Domain, RandomStream, philox4x32_10};
pub use plan::{DEFAULT_TILE, MAX_TILE, MAX_WIDTH, TilePlan, TileRun};
pub use rht::Rht;
pub use signs::Signs;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
