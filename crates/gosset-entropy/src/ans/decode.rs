//! From the words of a stream to values.

use super::table::{ESCAPE, EscapeCode};
use super::{DecodeTable, LANES, REFILL_BITS, TABLE_LEN, TABLE_LOG};
use crate::EntropyError;

/// Most bits of an escaped number after its leading one; more prove damage.
const MAX_ESCAPE_BITS: u32 = 31;

/// A position in the words of a stream, with the bits after it in a register.
#[derive(Debug, Clone, Copy)]
struct Cursor<'a> {
    words: &'a [u32],
    /// The bits from the position on, left-justified: `n_valid` of them are counted, more may be there, the rest is zero.
    buffer: u64,
    n_valid: u32,
    /// Index of the word whose bits come after the counted ones; beyond the end, words are zero.
    next: usize,
}

impl Cursor<'_> {
    /// Makes [`REFILL_BITS`] bits valid.
    ///
    /// Without a branch: the next word is always merged after the valid bits, and counted only if all of it fits. A word that
    /// was merged in part is merged again later at the place that its first bits have moved to.
    #[inline(always)]
    fn refill(&mut self) {
        let word = self.words.get(self.next).copied().unwrap_or(0);
        self.buffer |= (u64::from(word) << 32) >> (self.n_valid & 63);
        let counted = u32::from(self.n_valid < 32);
        self.n_valid += counted * 32;
        self.next += counted as usize;
    }

    /// The next `n_bits` ≤ 32 bits; of `n_bits`, the low six bits count.
    #[inline(always)]
    fn take(&mut self, n_bits: u32) -> u32 {
        // Two shifts, so that 0 bits do not shift by 64.
        let bits = (self.buffer >> 1) >> (!n_bits & 63);
        self.buffer <<= n_bits & 63;
        self.n_valid = self.n_valid.wrapping_sub(n_bits & 63);
        bits as u32
    }

    /// The value after an escape symbol, `None` if it has more than 32 bits; takes the cursor by value and gives it back, so that
    /// it can stay in registers where there is no escape.
    #[cold]
    #[inline(never)]
    fn escaped(mut self, code: EscapeCode) -> (Self, Option<i32>) {
        self.refill();
        let below = self.take(1) == 1;
        self.refill();
        let n_zeros = self.buffer.leading_zeros();
        let n_low = n_zeros + u32::from(code.k);
        if n_low > MAX_ESCAPE_BITS {
            return (self, None);
        }
        self.take(n_zeros + 1);
        self.refill();
        let q = 1 << n_low | i64::from(self.take(n_low));
        self.refill();
        let distance = (q - (1 << code.k) + 1) * i64::from(code.step);
        let value = if below { i64::from(code.first) - distance } else { i64::from(code.last) + distance };
        (self, i32::try_from(value).ok())
    }
}

/// Decoder of one stream; the caller asks for symbols and raw bits in the order in which they were given to the
/// [`StreamEncoder`](super::StreamEncoder).
///
/// Untrusted words give meaningless values and an error at the end, in time linear in what is asked for. Symbols do not return
/// errors, so that loops over them have no branches; [`StreamDecoder::finish`] tells whether all was well. The decoder is small
/// and `Copy`: a loop over a local copy keeps it in registers.
#[derive(Debug, Clone, Copy)]
pub struct StreamDecoder<'a> {
    cursor: Cursor<'a>,
    states: [u32; LANES],
    damaged: bool,
}

impl<'a> StreamDecoder<'a> {
    /// A decoder of the stream that takes exactly `words`.
    ///
    /// # Errors
    /// [`EntropyError::StreamEnd`] if the words are too few to hold the starting states.
    pub fn new(words: &'a [u32]) -> Result<Self, EntropyError> {
        let head_bits = u64::from(TABLE_LOG) * LANES as u64;
        let len_bits = words.len() as u64 * 32;
        if len_bits < head_bits {
            return Err(EntropyError::StreamEnd { consumed: head_bits, len_bits });
        }
        let cursor = Cursor { words, buffer: 0, n_valid: 0, next: 0 };
        let mut decoder = Self { cursor, states: [0; LANES], damaged: false };
        for lane in 0..LANES {
            decoder.refill();
            decoder.states[lane] = decoder.raw(TABLE_LOG);
        }
        Ok(decoder)
    }

    /// Makes [`REFILL_BITS`] bits available to the calls that follow, each of which takes as many as it says.
    #[inline(always)]
    pub fn refill(&mut self) {
        self.cursor.refill();
    }

    /// The next value of lane `lane` under `table`. Takes at most [`MAX_SYMBOL_BITS`](super::MAX_SYMBOL_BITS) bits; after an
    /// escape, [`REFILL_BITS`] are available.
    ///
    /// # Panics
    /// If `lane` is not below [`LANES`].
    #[inline(always)]
    pub fn symbol(&mut self, lane: usize, table: &DecodeTable) -> i32 {
        let entry = table.entries[self.states[lane] as usize % TABLE_LEN];
        let bits = self.cursor.take(entry);
        self.states[lane] = ((entry >> 6) + bits) % TABLE_LEN as u32;
        let value = entry as i32 >> 16;
        if value != ESCAPE {
            return value;
        }
        let (cursor, value) = self.cursor.escaped(table.escape);
        self.cursor = cursor;
        self.damaged |= value.is_none();
        value.unwrap_or(0)
    }

    /// The next `n_bits` ≤ 32 bits as they are.
    #[inline(always)]
    pub fn raw(&mut self, n_bits: u32) -> u32 {
        self.cursor.take(n_bits)
    }

    /// Bits taken so far; beyond the length of the words if they ended early.
    pub fn consumed_bits(&self) -> u64 {
        (self.cursor.next as u64 * 32).wrapping_sub(u64::from(self.cursor.n_valid))
    }

    /// Whether all was well: every escape was valid, all lanes are in the final state, and the words ended where the symbols did.
    ///
    /// # Errors
    /// [`EntropyError::Escape`], [`EntropyError::FinalState`] or [`EntropyError::StreamEnd`].
    pub fn finish(self) -> Result<(), EntropyError> {
        let words = self.cursor.words;
        if self.damaged {
            return Err(EntropyError::Escape);
        }
        let consumed = self.consumed_bits();
        let len_bits = words.len() as u64 * 32;
        let unread = len_bits.checked_sub(consumed);
        if unread.is_none_or(|unread| unread >= u64::from(REFILL_BITS)) {
            return Err(EntropyError::StreamEnd { consumed, len_bits });
        }
        if let Some(lane) = self.states.iter().position(|&state| state != 0) {
            return Err(EntropyError::FinalState { lane, found: self.states[lane] });
        }
        let padding = unread.unwrap_or(0) as u32;
        let last = words.last().copied().unwrap_or(0);
        if padding > 0 && last << (32 - padding) != 0 {
            return Err(EntropyError::StreamPadding { last_word: last, padding_bits: padding });
        }
        Ok(())
    }
}
