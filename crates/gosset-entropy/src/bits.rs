//! Bit strings in 32-bit words, most significant bit first.

use alloc::vec::Vec;

use crate::EntropyError;

/// Appends bits to a growing vector of words; bit 0 of the string is bit 31 of word 0.
///
/// ```
/// let mut writer = gosset_entropy::BitWriter::new();
/// writer.write(0b101, 3);
/// writer.write(u32::MAX, 32);
/// assert_eq!(writer.len_bits(), 35);
/// assert_eq!(writer.into_words(), [0xbfff_ffff, 0xe000_0000]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct BitWriter {
    words: Vec<u32>,
    /// The last `n_pending` bits of the string in the low bits; bits above are stale.
    pending: u64,
    /// Below 32.
    n_pending: u32,
}

impl BitWriter {
    /// An empty bit string.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty bit string with room for `capacity_bits` bits.
    pub fn with_capacity_bits(capacity_bits: u64) -> Self {
        let n_words = usize::try_from(capacity_bits.div_ceil(32)).unwrap_or(0);
        Self { words: Vec::with_capacity(n_words), pending: 0, n_pending: 0 }
    }

    /// Appends the low `n_bits` bits of `value`, the most significant of them first; higher bits of `value` are ignored.
    ///
    /// # Panics
    /// If `n_bits` exceeds 32.
    #[inline]
    pub fn write(&mut self, value: u32, n_bits: u32) {
        assert!(n_bits <= 32, "a write of {n_bits} bits exceeds 32");
        let mask = (1u64 << n_bits) - 1;
        self.pending = (self.pending << n_bits) | (u64::from(value) & mask);
        self.n_pending += n_bits;
        if self.n_pending >= 32 {
            self.n_pending -= 32;
            self.words.push((self.pending >> self.n_pending) as u32);
        }
    }

    /// Number of bits written.
    #[inline]
    pub fn len_bits(&self) -> u64 {
        self.words.len() as u64 * 32 + u64::from(self.n_pending)
    }

    /// Appends zeros up to the next word boundary.
    pub fn pad_to_word(&mut self) {
        if self.n_pending > 0 {
            self.write(0, 32 - self.n_pending);
        }
    }

    /// The words, the last one padded with zeros.
    pub fn into_words(mut self) -> Vec<u32> {
        self.pad_to_word();
        self.words
    }
}

/// Reads a range of bits of a slice of words, in the order in which [`BitWriter`] wrote them.
///
/// ```
/// let mut reader = gosset_entropy::BitReader::new(&[0xbfff_ffff, 0xe000_0000], 1, 34)?;
/// assert_eq!(reader.read(2)?, 0b01);
/// assert_eq!(reader.read(32)?, u32::MAX);
/// assert!(reader.read(1).is_err());
/// # Ok::<(), gosset_entropy::EntropyError>(())
/// ```
#[derive(Debug, Clone)]
pub struct BitReader<'a> {
    words: &'a [u32],
    start_bit: u64,
    len_bits: u64,
    position: u64,
}

impl<'a> BitReader<'a> {
    /// A reader of `len_bits` bits of `words` from `start_bit` on.
    ///
    /// # Errors
    /// [`EntropyError::RangeOutsideWords`] if the range does not lie inside the words.
    pub fn new(words: &'a [u32], start_bit: u64, len_bits: u64) -> Result<Self, EntropyError> {
        check_range(words, start_bit, len_bits)?;
        Ok(Self { words, start_bit, len_bits, position: 0 })
    }

    /// The next `n_bits` bits as an integer.
    ///
    /// # Errors
    /// [`EntropyError::Truncated`] if fewer are left; nothing is consumed then.
    ///
    /// # Panics
    /// If `n_bits` exceeds 32.
    #[inline]
    pub fn read(&mut self, n_bits: u32) -> Result<u32, EntropyError> {
        assert!(n_bits <= 32, "a read of {n_bits} bits exceeds 32");
        if u64::from(n_bits) > self.remaining() {
            return Err(EntropyError::Truncated {
                position: self.position,
                requested: n_bits,
                len_bits: self.len_bits,
            });
        }
        let bit = self.start_bit + self.position;
        let word_idx = (bit / 32) as usize;
        let word = |idx: usize| u64::from(self.words.get(idx).copied().unwrap_or(0));
        let window = ((word(word_idx) << 32) | word(word_idx + 1)) << (bit % 32);
        self.position += u64::from(n_bits);
        // Two shifts, so that 0 bits do not shift by 64.
        Ok(((window >> 32) >> (32 - n_bits)) as u32)
    }

    /// Bits read so far.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bits left.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.len_bits - self.position
    }
}

/// Checks that a bit range lies inside `words`.
pub(crate) fn check_range(words: &[u32], start_bit: u64, len_bits: u64) -> Result<(), EntropyError> {
    let available_bits = words.len() as u64 * 32;
    match start_bit.checked_add(len_bits) {
        Some(end) if end <= available_bits => Ok(()),
        _ => Err(EntropyError::RangeOutsideWords { start_bit, len_bits, available_bits }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(values in proptest::collection::vec((any::<u32>(), 0u32..=32), 0..200), offset in 0u32..=32) {
            let mut writer = BitWriter::new();
            writer.write(0x5555_5555, offset);
            for &(value, n_bits) in &values {
                writer.write(value, n_bits);
            }
            let len_bits = writer.len_bits();
            let words = writer.into_words();
            prop_assert_eq!(words.len() as u64, len_bits.div_ceil(32));
            let mut reader = BitReader::new(&words, u64::from(offset), len_bits - u64::from(offset)).unwrap();
            for &(value, n_bits) in &values {
                let mask = (((1u64 << n_bits) - 1) & 0xffff_ffff) as u32;
                prop_assert_eq!(reader.read(n_bits), Ok(value & mask));
            }
            prop_assert_eq!(reader.remaining(), 0);
            prop_assert!(reader.read(1).is_err());
        }
    }

    #[test]
    fn ranges_outside_the_words_are_rejected() {
        assert!(BitReader::new(&[0], 0, 33).is_err());
        assert!(BitReader::new(&[0], u64::MAX, 1).is_err());
        assert!(BitReader::new(&[], 0, 0).is_ok());
    }

    #[test]
    fn padding_reaches_the_word_boundary_once() {
        let mut writer = BitWriter::with_capacity_bits(40);
        writer.write(1, 1);
        writer.pad_to_word();
        writer.pad_to_word();
        assert_eq!(writer.len_bits(), 32);
        assert_eq!(writer.into_words(), [1 << 31]);
    }
}
