//! Lattice points under the ANS coder.
//!
//! The sequence of values is cut into streams of [`ANS_STREAM_LEN`] and blocks of the lattice's dimension N; the last
//! block is padded with zeros. Block b of a stream belongs to lane b mod 4. A decoder takes four blocks at a time, one per
//! lane, and in them the coordinates in the order of [`coding`]: the first of all four blocks, then the second of all four, and
//! so on, each followed by its raw bits. The last blocks of a stream may be fewer than four.
//!
//! Planes: `words`, the streams one after the other, and `lengths`, the number of words of each.

pub(crate) mod coding;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod family;
pub(crate) mod stats;

/// Values of a stream.
///
/// The states at its start take 40 bits, the length 16 and the padding to whole words 16 on average: 0.0022 bits per value. No
/// coordinate that an encoder makes takes more than 62 bits, so that 16 bits hold the number of words of any stream.
pub(crate) const ANS_STREAM_LEN: usize = 1 << 15;

/// Bits of a stream besides those of its symbols and the length: the states and half a word of padding.
pub(crate) const STREAM_END_BITS: u64 = 40 + 16;

/// Most raw bits: a coordinate takes at most 10 bits more and 32 are available at once.
pub(crate) const MAX_RAW_BITS: u32 = 20;

/// Number of raw bits for `alpha`: none up to a limit, where the tables grow too large; beyond it, as many as bring the
/// standard deviation of what is left below 2^(7/2).
pub(crate) fn raw_bits(n: usize, alpha: f32) -> u32 {
    let (narrow, least) = match n {
        4 | 8 => (22.7, 2),
        2 => (16.0, 1),
        _ => (11.4, 1),
    };
    if alpha <= narrow {
        return 0;
    }
    let mut raw_bits = least;
    let mut sigma = alpha / (1 << least) as f32;
    while sigma > 11.4 && raw_bits < MAX_RAW_BITS {
        (raw_bits, sigma) = (raw_bits + 1, 0.5 * sigma);
    }
    raw_bits
}
