//! The Rice code with an escape.
//!
//! The codeword of z with parameter k: with q = z >> k, if q < 24, q zeros, a one, and the low k bits of z, most significant
//! first; otherwise the escape, 24 zeros and the 32 bits of z. So every `u32` has a codeword, no value wraps or is clamped, and
//! decoding needs to look at most 24 bits ahead to know which kind it reads.
//!
//! **Streams fit 16-bit lengths.** A plain codeword has at most 23 + 1 + 15 = 39 bits, an escape has 56. A stream of 512
//! symbols therefore has at most 512 · 56 = 28672 bits, less than 2^16.
//!
//! Symbol positions take turns through `N` parameters, one for each coordinate of a lattice: position i uses `ks[i % N]`.

pub use crate::fit::{RiceFit, accumulate_by_class};

use crate::bits::check_range;
use crate::{BitWriter, EntropyError};

/// Largest parameter.
pub const MAX_K: u32 = 15;
/// Zeros that announce an escape.
pub const ESCAPE_ZEROS: u32 = 24;
/// Length of an escape in bits.
pub const ESCAPE_LEN_BITS: u32 = ESCAPE_ZEROS + 32;

/// Symbols that the decoder takes between two refills of its bit buffer.
const GROUP: usize = 4;
/// Symbols after which the parameters repeat, for every `N`.
const BLOCK: usize = 8;

/// Length in bits of the codeword of `z` with parameter `k`.
///
/// ```
/// use gosset_entropy::rice::len_bits;
/// assert_eq!([len_bits(0, 2), len_bits(7, 2), len_bits(23, 0), len_bits(24, 0)], [3, 4, 24, 56]);
/// ```
///
/// # Panics
/// If `k` exceeds [`MAX_K`].
#[inline]
pub const fn len_bits(z: u32, k: u32) -> u32 {
    assert!(k <= MAX_K, "rice parameter out of range");
    let q = z >> k;
    if q < ESCAPE_ZEROS { q + 1 + k } else { ESCAPE_LEN_BITS }
}

/// Appends the codewords of `symbols`; position i uses parameter `ks[i % N]`.
///
/// # Panics
/// If a parameter exceeds [`MAX_K`].
pub fn encode<const N: usize>(writer: &mut BitWriter, symbols: &[u32], ks: &[u32; N]) {
    assert!(ks.iter().all(|&k| k <= MAX_K), "rice parameters {ks:?} exceed {MAX_K}");
    let (blocks, rest) = symbols.as_chunks::<N>();
    for block in blocks {
        for i in 0..N {
            write_codeword(writer, block[i], ks[i]);
        }
    }
    for (&z, &k) in rest.iter().zip(ks) {
        write_codeword(writer, z, k);
    }
}

#[inline(always)]
fn write_codeword(writer: &mut BitWriter, z: u32, k: u32) {
    let q = z >> k;
    let len = q.wrapping_add(1 + k);
    if q < ESCAPE_ZEROS && len <= 32 {
        writer.write((1 << k) | (z & ((1 << k) - 1)), len);
    } else if q < ESCAPE_ZEROS {
        writer.write(0, q);
        writer.write((1 << k) | (z & ((1 << k) - 1)), 1 + k);
    } else {
        writer.write(0, ESCAPE_ZEROS);
        writer.write(z, 32);
    }
}

/// Decodes `out.len()` symbols from the `len_bits` bits of `words` at `start_bit`; position i uses parameter `ks[i % N]`.
///
/// `N` is 1, 2, 4 or 8. Whatever the words hold, the time is linear in `out.len()`. [`decode_pair`] is faster where there are
/// two streams to decode.
///
/// # Errors
/// [`EntropyError::InvalidParameter`], [`EntropyError::RangeOutsideWords`], and [`EntropyError::LengthMismatch`] if the symbols do
/// not take exactly `len_bits` bits; `out` holds meaningless values then.
pub fn decode<const N: usize>(
    words: &[u32],
    start_bit: u64,
    len_bits: u64,
    ks: &[u32; N],
    out: &mut [u32],
) -> Result<(), EntropyError> {
    decode_lanes(words, [(start_bit, len_bits)], ks, [out])
}

/// Decodes two streams of the same words and parameters at once, each as [`decode`] would.
///
/// `spans` are the first bit and the length in bits of each. A symbol can only be located after the one before it, so a single
/// stream leaves most of a core idle; two independent ones fill it.
///
/// ```
/// use gosset_entropy::{BitWriter, rice};
/// let mut writer = BitWriter::new();
/// rice::encode(&mut writer, &[3, 1], &[0]);
/// rice::encode(&mut writer, &[2], &[0]);
/// let (mut a, mut b) = ([0; 2], [0; 1]);
/// rice::decode_pair(&writer.into_words(), [(0, 6), (6, 3)], &[0], [&mut a, &mut b])?;
/// assert_eq!((a, b), ([3, 1], [2]));
/// # Ok::<(), gosset_entropy::EntropyError>(())
/// ```
///
/// # Errors
/// Those of [`decode`], for the first stream that has one.
pub fn decode_pair<const N: usize>(
    words: &[u32],
    spans: [(u64, u64); 2],
    ks: &[u32; N],
    outs: [&mut [u32]; 2],
) -> Result<(), EntropyError> {
    decode_lanes(words, spans, ks, outs)
}

fn decode_lanes<const N: usize, const LANES: usize>(
    words: &[u32],
    spans: [(u64, u64); LANES],
    ks: &[u32; N],
    outs: [&mut [u32]; LANES],
) -> Result<(), EntropyError> {
    const { assert!(N > 0 && BLOCK.is_multiple_of(N), "symbol positions take turns through 1, 2, 4 or 8 parameters") };
    if let Some(&k) = ks.iter().find(|&&k| k > MAX_K) {
        return Err(EntropyError::InvalidParameter { k, max: MAX_K });
    }
    for (start_bit, len_bits) in spans {
        check_range(words, start_bit, len_bits)?;
    }
    let mut cursors = spans.map(|(start_bit, _)| Cursor::new(words, start_bit));
    // A parameter known at compile time turns the variable shifts by k into constant ones.
    match (ks[0], ks.iter().all(|&k| k == ks[0])) {
        (0, true) => fill(&mut cursors, |_| 0, outs),
        (1, true) => fill(&mut cursors, |_| 1, outs),
        (2, true) => fill(&mut cursors, |_| 2, outs),
        (3, true) => fill(&mut cursors, |_| 3, outs),
        (k, true) => fill(&mut cursors, |_| k, outs),
        (_, false) => fill(&mut cursors, |i| ks[i % N], outs),
    }
    for ((start_bit, expected), cursor) in spans.into_iter().zip(&cursors) {
        let consumed = cursor.position() - start_bit;
        if consumed != expected {
            return Err(EntropyError::LengthMismatch { start_bit, expected, consumed });
        }
    }
    Ok(())
}

/// Fills each lane of `outs` from its cursor, the lanes taking turns by groups; position i has parameter `k_at(i % BLOCK)`.
#[inline(always)]
fn fill<const LANES: usize>(
    cursors: &mut [Cursor<'_>; LANES],
    k_at: impl Fn(usize) -> u32 + Copy,
    outs: [&mut [u32]; LANES],
) {
    let mut lanes = outs.map(|out| out.as_chunks_mut::<BLOCK>());
    let n_common = lanes.iter().map(|(blocks, _)| blocks.len()).min().unwrap_or(0);
    for block_idx in 0..n_common {
        for first in (0..BLOCK).step_by(GROUP) {
            for (cursor, (blocks, _)) in cursors.iter_mut().zip(&mut lanes) {
                cursor.group(|i| k_at(first + i), &mut blocks[block_idx][first..first + GROUP]);
            }
        }
    }
    for (cursor, (blocks, rest)) in cursors.iter_mut().zip(&mut lanes) {
        for block in &mut blocks[n_common..] {
            for first in (0..BLOCK).step_by(GROUP) {
                cursor.group(|i| k_at(first + i), &mut block[first..first + GROUP]);
            }
        }
        rest.iter_mut().enumerate().for_each(|(i, z)| *z = cursor.symbol(k_at(i)));
    }
}

/// A position in the words with the bits after it in a register.
struct Cursor<'a> {
    words: &'a [u32],
    /// The bits from the position on, left-justified: `n_valid` of them are counted, more may be there, the rest is zero.
    buffer: u64,
    n_valid: u32,
    /// Index of the word whose bits come after the counted ones; beyond the end, words are zero.
    next: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at bit `start_bit`, which lies in `words` or at their end.
    fn new(words: &'a [u32], start_bit: u64) -> Self {
        let skipped = (start_bit % 32) as u32;
        let mut cursor = Self { words, buffer: 0, n_valid: 0, next: (start_bit / 32) as usize };
        cursor.refill();
        cursor.consume(skipped);
        cursor
    }

    /// The bit position, which may lie beyond the words.
    fn position(&self) -> u64 {
        self.next as u64 * 32 - u64::from(self.n_valid)
    }

    /// Makes at least 32 bits valid.
    ///
    /// Without a branch: the next word is always merged after the valid bits, and counted only if all of it fits. A word that
    /// was merged in part is merged again later at the place that its first bits have moved to.
    #[inline(always)]
    fn refill(&mut self) {
        let word = self.words.get(self.next).copied().unwrap_or(0);
        self.buffer |= (u64::from(word) << 32) >> self.n_valid;
        let counted = u32::from(self.n_valid < 32);
        self.n_valid += counted * 32;
        self.next += counted as usize;
    }

    /// Drops `n_bits` ≤ 32 valid bits.
    #[inline(always)]
    fn consume(&mut self, n_bits: u32) {
        self.buffer <<= n_bits;
        self.n_valid -= n_bits;
    }

    /// Decodes one group; position i of it has parameter `k_at(i)`.
    #[inline(always)]
    fn group(&mut self, k_at: impl Fn(usize) -> u32 + Copy, out: &mut [u32]) {
        if !self.try_group(k_at, out) {
            out.iter_mut().enumerate().for_each(|(i, z)| *z = self.symbol(k_at(i)));
        }
    }

    /// Decodes a group of plain codewords if together they fit the valid bits; otherwise stays where it is.
    ///
    /// The symbols are decoded first and judged together afterwards, so that the common case has one branch. With Σk + GROUP
    /// bits of ones and remainders in a group, a total below Σk + GROUP + 24 proves that no run reached 24 zeros.
    #[inline(always)]
    fn try_group(&mut self, k_at: impl Fn(usize) -> u32, out: &mut [u32]) -> bool {
        self.refill();
        let mut buffer = self.buffer;
        let mut used = 0;
        let mut limit = ESCAPE_ZEROS - 1;
        for (i, z) in out.iter_mut().enumerate() {
            let k = k_at(i);
            // The low bit only matters to an empty buffer, which the total then rejects.
            let q = (buffer | 1).leading_zeros();
            let from_one = buffer << q;
            // The leading one lands on bit k and adds 1 << k.
            *z = ((from_one >> (63 - k)) as u32).wrapping_add(q.wrapping_sub(1) << k);
            buffer = (from_one << k) << 1;
            used += q + 1 + k;
            limit += 1 + k;
        }
        let fits = used <= limit.min(self.n_valid);
        if fits {
            self.buffer = buffer;
            self.n_valid -= used;
        }
        fits
    }

    /// Decodes one codeword of either kind.
    #[cold]
    fn symbol(&mut self, k: u32) -> u32 {
        self.refill();
        let q = self.buffer.leading_zeros();
        if q >= ESCAPE_ZEROS {
            self.consume(ESCAPE_ZEROS);
            self.refill();
            let z = (self.buffer >> 32) as u32;
            self.consume(32);
            return z;
        }
        self.consume(q + 1);
        self.refill();
        let remainder = ((self.buffer >> 1) >> (63 - k)) as u32;
        self.consume(k);
        (q << k) | remainder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BitReader, STREAM_LEN};
    use alloc::string::String;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// The definition, bit by bit.
    fn decode_naive<const N: usize>(
        reader: &mut BitReader<'_>,
        ks: &[u32; N],
        out: &mut [u32],
    ) -> Result<(), EntropyError> {
        for (i, z) in out.iter_mut().enumerate() {
            let k = ks[i % N];
            let mut q = 0;
            while q < ESCAPE_ZEROS && reader.read(1)? == 0 {
                q += 1;
            }
            *z = if q == ESCAPE_ZEROS { reader.read(32)? } else { (q << k) | reader.read(k)? };
        }
        Ok(())
    }

    fn encoded<const N: usize>(symbols: &[u32], ks: &[u32; N], offset: u32) -> (Vec<u32>, u64) {
        let mut writer = BitWriter::new();
        writer.write(u32::MAX, offset);
        encode(&mut writer, symbols, ks);
        let len_bits = writer.len_bits() - u64::from(offset);
        (writer.into_words(), len_bits)
    }

    fn expected_len<const N: usize>(symbols: &[u32], ks: &[u32; N]) -> u64 {
        symbols.iter().enumerate().map(|(i, &z)| u64::from(len_bits(z, ks[i % N]))).sum()
    }

    fn round_trips<const N: usize>(symbols: &[u32], ks: [u32; N], offset: u32) {
        let (words, len_bits) = encoded(symbols, &ks, offset);
        assert_eq!(len_bits, expected_len(symbols, &ks));
        let mut out = alloc::vec![0; symbols.len()];
        decode(&words, u64::from(offset), len_bits, &ks, &mut out).unwrap();
        assert_eq!(out, symbols);
        // The pair of the whole and of its first third, in both orders.
        let third = symbols.len() / 3;
        let third_len: u64 = expected_len(&symbols[..third], &ks);
        let spans = [(u64::from(offset), len_bits), (u64::from(offset), third_len)];
        let mut short = alloc::vec![0; third];
        decode_pair(&words, spans, &ks, [&mut out, &mut short]).unwrap();
        assert_eq!((&out[..], &short[..]), (symbols, &symbols[..third]));
        decode_pair(&words, [spans[1], spans[0]], &ks, [&mut short, &mut out]).unwrap();
        assert_eq!((&out[..], &short[..]), (symbols, &symbols[..third]));
        let too_long = [spans[0], (spans[1].0, third_len + 1)];
        assert!(decode_pair(&words, too_long, &ks, [&mut out, &mut short]).is_err());
        let mut reader = BitReader::new(&words, u64::from(offset), len_bits).unwrap();
        decode_naive(&mut reader, &ks, &mut out).unwrap();
        assert_eq!((reader.remaining(), &out[..]), (0, symbols));
    }

    /// Symbols of every size: mostly small, some just around the escape, some of full width.
    fn symbol() -> impl Strategy<Value = u32> {
        prop_oneof![8 => 0u32..8, 3 => 0u32..200, 1 => any::<u32>(), 1 => (0u32..=MAX_K, 0u32..4).prop_map(|(k, d)| (24 << k) + d - 2), 1 => Just(u32::MAX)]
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(symbols in proptest::collection::vec(symbol(), 0..530), ks in proptest::array::uniform8(0..=MAX_K), offset in 0u32..32) {
            round_trips(&symbols, [ks[0]], offset);
            round_trips(&symbols, [ks[0] % 4; 8], offset);
            round_trips(&symbols, [ks[0], ks[1]], offset);
            round_trips(&symbols, [ks[0], ks[0], ks[0], ks[1]], offset);
            round_trips(&symbols, ks, offset);
        }

        #[test]
        fn any_words_decode_as_defined_or_fail(words in proptest::collection::vec(prop_oneof![any::<u32>(), Just(0), Just(1)], 0..40), start in 0u64..1400, len in 0u64..1400, k in 0u32..18, n in 0usize..600) {
            let mut out = alloc::vec![0; n];
            let result = decode(&words, start, len, &[k], &mut out);
            let mut naive = alloc::vec![0; n];
            let expected = match BitReader::new(&words, start, len) {
                Ok(mut reader) if k <= MAX_K => decode_naive(&mut reader, &[k], &mut naive).is_ok() && reader.remaining() == 0,
                _ => false,
            };
            prop_assert_eq!(result.is_ok(), expected);
            if expected {
                prop_assert_eq!(out, naive);
            }
        }

        #[test]
        fn damaged_streams_fail_or_differ(symbols in proptest::collection::vec(symbol(), 1..100), k in 0u32..4, at: prop::sample::Index, cut in 1u64..64) {
            let (mut words, len_bits) = encoded(&symbols, &[k], 0);
            let mut out = alloc::vec![0; symbols.len()];
            prop_assert!(decode(&words, 0, len_bits.saturating_sub(cut), &[k], &mut out).is_err());
            let n_words = words.len().saturating_sub(1);
            prop_assert!(decode(&words[..n_words], 0, len_bits, &[k], &mut out).is_err());
            let bit = at.index(len_bits as usize);
            words[bit / 32] ^= 1 << (31 - bit % 32);
            if decode(&words, 0, len_bits, &[k], &mut out).is_ok() {
                prop_assert_ne!(out, symbols);
            }
        }
    }

    #[test]
    fn published_codewords() {
        let cases: [(&[u32], &str); 4] = [
            (&[0, 0, 2, 0, 0, 0, 0, 2], "100100110100100100100110"),
            (&[0, 0, 0, 0, 0, 0, 0, 1], "100100100100100100100101"),
            (&[2, 1, 0, 8, 5, 2, 0, 0], "110101100001000101110100100"),
            (&[2, 2, 2, 2, 2, 2, 2, 1], "110110110110110110110101"),
        ];
        for (symbols, bits) in cases {
            let (words, len_bits) = encoded(symbols, &[2], 0);
            let written: String = (0..len_bits as usize)
                .map(|i| if words[i / 32] >> (31 - i % 32) & 1 == 1 { '1' } else { '0' })
                .collect();
            assert_eq!(written, bits);
        }
    }

    #[test]
    fn the_longest_stream_fits_a_16_bit_length() {
        for k in 0..=MAX_K {
            let (_, len_bits) = encoded(&[u32::MAX; STREAM_LEN], &[k], 0);
            assert_eq!(len_bits, 28672);
            assert!(super::len_bits((24 << k) - 1, k) <= 39);
        }
        assert!(u16::try_from(STREAM_LEN as u32 * ESCAPE_LEN_BITS).is_ok());
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let mut out = [0; 2];
        assert_eq!(decode(&[0], 0, 2, &[16], &mut out), Err(EntropyError::InvalidParameter { k: 16, max: 15 }));
        assert!(matches!(decode(&[0], 31, 2, &[0], &mut out), Err(EntropyError::RangeOutsideWords { .. })));
        assert_eq!(
            decode(&[0xa000_0000], 0, 4, &[0], &mut out),
            Err(EntropyError::LengthMismatch { start_bit: 0, expected: 4, consumed: 3 })
        );
    }
}
