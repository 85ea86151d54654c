//! Tabled asymmetric numeral systems (tANS) with static integer tables, contexts chosen by the caller and raw bits between.
//!
//! A code is a set of [`FreqTable`]s, one per context: integer frequencies that sum to 1024 over a run of values in equal
//! steps, and an escape for all other values. Everything else follows from those integers by integer arithmetic.
//!
//! **State table.** Symbol s of a table with frequency f_s owns f_s of the 1024 slots. Its j-th occurrence, j = 0 … f_s − 1, has
//! the key ⌊(2j + 1)·2^24 / f_s⌋; slots 0 … 1023 go to the occurrences in ascending order of (key, s), which spreads each symbol
//! evenly. The occurrence j of s at slot i makes the decoding entry of state i: symbol s; with x = f_s + j, the number of
//! bits n = 10 − ⌊log2 x⌋; and the base x·2^n − 1024. A decoder in state i emits s, reads n bits as an integer b (most
//! significant bit first) and goes to state base + b.
//!
//! **Escape.** The last symbol of a table announces a value outside of its run. A sign bit follows the state bits (0: above the
//! run, 1: below) and then the number e ≥ 0 of steps beyond the nearest end of the run, in the exponential Golomb code of order
//! k: with q = e + 2^k of b bits, b − 1 − k zeros and the b bits of q. So every `i32` of the right residue has a codeword.
//!
//! **Stream.** Four states, the *lanes*, share one bit string: their starting states in lanes 0 to 3, 10 bits each, then the bits
//! of the symbols in the order in which the decoder asks for them. All lanes end in state 0, which a decoder checks, as it does
//! that only zeros pad the string to whole 32-bit words. Words are filled from the most significant bit. A stream of no symbols
//! has 40 zero bits.
//!
//! **Least cost.** No frequency exceeds 1002, so no symbol costs less than 1/32 bit on average and, since a state that takes
//! no bits falls by 22 at least, a lane takes at least one bit in 47 symbols: streams of b bits hold less than 64·b symbols.
//!
//! ```
//! use gosset_entropy::ans::{DecodeTable, EncodeTable, FreqTable, StreamDecoder, StreamEncoder};
//!
//! // The values -2, 0, 2 and the escape.
//! let freqs = FreqTable::new(-2, 2, 0, &[200, 623, 200, 1])?;
//! let values = [0, 0, 2, 0, -2, 0, 40, 0];
//!
//! let tables = [EncodeTable::new(&freqs)];
//! let mut encoder = StreamEncoder::new();
//! for (i, &value) in values.iter().enumerate() {
//!     encoder.symbol(i % 4, 0, value);
//! }
//! let mut words = Vec::new();
//! encoder.finish(&tables, &mut words)?;
//! assert_eq!(words.len(), 3);
//!
//! let table = DecodeTable::new(&freqs);
//! let mut decoder = StreamDecoder::new(&words)?;
//! let decoded: Vec<i32> = (0..8)
//!     .map(|i| {
//!         decoder.refill();
//!         decoder.symbol(i % 4, &table)
//!     })
//!     .collect();
//! decoder.finish()?;
//! assert_eq!(decoded, values);
//! # Ok::<(), gosset_entropy::EntropyError>(())
//! ```
//!
//! Source: J. Duda, *Asymmetric numeral systems*, arXiv 1311.2540 (tANS; even spread by sorted keys).

mod cost;
mod decode;
mod encode;
mod freq;
mod table;

pub use decode::StreamDecoder;
pub use encode::StreamEncoder;
pub use freq::FreqTable;
pub use table::{DecodeTable, EncodeTable};

use crate::EntropyError;

/// Base-two logarithm of the number of slots of a table, and the number of bits of a state.
pub const TABLE_LOG: u32 = 10;
/// Slots of a table, and the sum of its frequencies.
pub const TABLE_LEN: usize = 1 << TABLE_LOG;
/// Largest frequency: the largest whose symbol costs 1/32 bit or more.
pub const MAX_FREQ: u16 = 1002;
/// States that share a bit string.
pub const LANES: usize = 4;
/// Largest magnitude of the values in the run of a table.
pub const MAX_DIRECT: i32 = 32_767;
/// Largest order of the escape code.
pub const MAX_ESCAPE_K: u8 = 16;
/// Costs are counted in units of 2^-16 bit.
pub const COST_BITS: u32 = 16;
/// Largest number of bits that one symbol without escape takes.
pub const MAX_SYMBOL_BITS: u32 = TABLE_LOG;
/// Bits that may be taken after a refill.
pub const REFILL_BITS: u32 = 32;
/// A stream of b bits holds fewer symbols than this many times b.
pub const MAX_SYMBOLS_PER_BIT: u64 = 64;

/// Checks that a stream of `n_words` words can hold `n_symbols` symbols, before anything is allocated for them.
///
/// # Errors
/// [`EntropyError::StreamTooShort`].
pub fn check_len(n_symbols: u64, n_words: u64) -> Result<(), EntropyError> {
    if n_symbols > n_words.saturating_mul(32 * MAX_SYMBOLS_PER_BIT) {
        return Err(EntropyError::StreamTooShort { n_symbols, n_words });
    }
    Ok(())
}
