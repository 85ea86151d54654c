//! Bit streams, Rice codes, asymmetric numeral systems, stream tables and rate accounting.
//!
//! The crate turns non-negative integers into bits and back and knows nothing about where they come from:
//!
//! - [`BitWriter`], [`BitReader`]: bit strings in 32-bit words, most significant bit first.
//! - [`zigzag`], [`unzigzag`]: signed integers as non-negative ones.
//! - [`rice`]: the Rice code with an escape, its fit, encoder and decoder.
//! - [`ans`]: tabled asymmetric numeral systems with contexts, for the last tenth of a bit.
//! - [`stream`]: the layout of Rice codes: streams of 512 symbols with 16-bit lengths, pages of 64 streams.
//! - [`Rate`]: bits by cause.
//! - [`Histogram`]: empirical entropies, the yardstick of any code.
//!
//! Decoders are for untrusted bits: any input gives values or an [`EntropyError`], never a panic, and nothing is allocated
//! by a claimed size. The crate is `no_std` with `alloc` and contains no `unsafe`; bits are the same with and without the feature `std`.
//!
//! ```
//! use gosset_entropy::{BitWriter, rice};
//!
//! let symbols = [0, 0, 2, 0, 0, 0, 0, 2];
//! let mut writer = BitWriter::new();
//! rice::encode(&mut writer, &symbols, &[2]);
//! let len_bits = writer.len_bits();
//! assert_eq!(len_bits, 24);
//! let words = writer.into_words();
//! assert_eq!(words, [0b1001_0011_0100_1001_0010_0110_0000_0000]);
//!
//! let mut decoded = [0; 8];
//! rice::decode(&words, 0, len_bits, &[2], &mut decoded)?;
//! assert_eq!(decoded, symbols);
//! # Ok::<(), gosset_entropy::EntropyError>(())
//! ```
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod ans;
mod bits;
mod error;
mod fit;
mod histogram;
mod rate;
pub mod rice;
pub mod stream;
mod zigzag;

pub use bits::{BitReader, BitWriter};
pub use error::EntropyError;
pub use fit::RiceFit;
pub use histogram::{Histogram, conditional_entropy_bits, entropy_bits};
pub use rate::Rate;
pub use stream::{EncodedPage, PageBuilder, STREAM_LEN, STREAMS_PER_PAGE, StreamIndex, StreamSpan, StreamTable};
pub use zigzag::{unzigzag, zigzag};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
