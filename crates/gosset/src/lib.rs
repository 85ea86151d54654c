//! Near-Shannon quantization of transformer weights: the product crates behind one name.
//!
//! | module | what |
//! |---|---|
//! | [`transform`] | Philox streams, signs, fast Walsh-Hadamard transform, tiled RHT |
//! | [`lattice`] | nearest points and bit stripping of Z, A2, D4, E8 |
//! | [`entropy`] | bit streams, Rice codes, stream tables, rates |
//! | [`trellis`] | the bit-shift trellis and the entropy-coded trellis |
//! | [`codec`] | a matrix to compressed planes and back |
//! | [`unisvq`] | the affine grid, second moments, error feedback |
//! | [`container`] | the file |
//! | [`kv`] | compressed caches of keys and values |
//! | [`quantize`] | a checkpoint to a container |
//! | [`runtime`] | models that run from the compressed form |
//!
//! Each is a crate of its own: depend on the single one you need where compile time matters.
#![forbid(unsafe_code)]

pub use gosset_codec as codec;
pub use gosset_container as container;
pub use gosset_entropy as entropy;
pub use gosset_kv as kv;
pub use gosset_lattice as lattice;
pub use gosset_quantize as quantize;
pub use gosset_runtime as runtime;
pub use gosset_transform as transform;
pub use gosset_trellis as trellis;
pub use gosset_unisvq as unisvq;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
