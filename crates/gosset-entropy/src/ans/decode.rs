//! From the words of a stream to values.

use super::table::{ESCAPE, EscapeCode};
use super::{DecodeTable, LANES, REFILL_BITS, TABLE_LEN, TABLE_LOG};
use crate::EntropyError;

/// Most bits of an escaped number after its leading one; more prove damage.
const MAX_ESCAPE_BITS: u32 = 31;

/// Decoder of one stream; the caller asks for symbols and raw bits in the order in which they were given to the
/// [`StreamEncoder`](super::StreamEncoder).
///
/// Untrusted words give meaningless values and an error at the end, in time linear in what is asked for. Symbols do not return
/// errors, so that loops over them have no branches; [`StreamDecoder::finish`] tells whether all was well.
#[derive(Debug, Clone)]
pub struct StreamDecoder<'a> {
    words: &'a [u32],
    /// The bits from the position on, left-justified: `n_valid` of them are counted, more may be there, the rest is zero.
    buffer: u64,
    n_valid: u32,
    /// Index of the word whose bits come after the counted ones; beyond the end, words are zero.
    next: usize,
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
        let mut decoder = Self { words, buffer: 0, n_valid: 0, next: 0, states: [0; LANES], damaged: false };
        for lane in 0..LANES {
            decoder.refill();
            decoder.states[lane] = decoder.raw(TABLE_LOG);
        }
        Ok(decoder)
    }

    /// Makes [`REFILL_BITS`] bits available to the calls that follow, each of which takes as many as it says.
    ///
    /// Without a branch: the next word is always merged after the valid bits, and counted only if all of it fits. A word that
    /// was merged in part is merged again later at the place that its first bits have moved to.
    #[inline(always)]
    pub fn refill(&mut self) {
        let word = self.words.get(self.next).copied().unwrap_or(0);
        self.buffer |= (u64::from(word) << 32) >> self.n_valid;
        let counted = u32::from(self.n_valid < 32);
        self.n_valid += counted * 32;
        self.next += counted as usize;
    }

    /// The next value of lane `lane` under `table`. Takes at most [`MAX_SYMBOL_BITS`](super::MAX_SYMBOL_BITS) bits; after an
    /// escape, [`REFILL_BITS`] are available.
    ///
    /// # Panics
    /// If `lane` is not below [`LANES`].
    #[inline(always)]
    pub fn symbol(&mut self, lane: usize, table: &DecodeTable) -> i32 {
        let entry = table.entries[self.states[lane] as usize % TABLE_LEN];
        // Two shifts, so that 0 bits do not shift by 64; the shift counts take the low six bits of the entry.
        let bits = (self.buffer >> 1) >> (!entry & 63);
        self.buffer <<= entry & 63;
        self.n_valid = self.n_valid.wrapping_sub(entry & 63);
        self.states[lane] = ((entry >> 6) + bits as u32) % TABLE_LEN as u32;
        let value = entry as i32 >> 16;
        if value == ESCAPE { self.escaped(table.escape) } else { value }
    }

    /// The next `n_bits` ≤ 32 bits as they are.
    #[inline(always)]
    pub fn raw(&mut self, n_bits: u32) -> u32 {
        let bits = (self.buffer >> 1) >> (63 - n_bits);
        self.buffer <<= n_bits;
        self.n_valid = self.n_valid.wrapping_sub(n_bits);
        bits as u32
    }

    /// Reads what follows an escape symbol.
    #[cold]
    #[inline(never)]
    fn escaped(&mut self, code: EscapeCode) -> i32 {
        self.refill();
        let below = self.raw(1) == 1;
        self.refill();
        let n_zeros = self.buffer.leading_zeros();
        let n_low = n_zeros + u32::from(code.k);
        if n_low > MAX_ESCAPE_BITS {
            self.damaged = true;
            return 0;
        }
        self.raw(n_zeros + 1);
        self.refill();
        let q = 1 << n_low | i64::from(self.raw(n_low));
        self.refill();
        let distance = (q - (1 << code.k) + 1) * i64::from(code.step);
        let value = if below { i64::from(code.first) - distance } else { i64::from(code.last) + distance };
        i32::try_from(value).unwrap_or_else(|_| {
            self.damaged = true;
            0
        })
    }

    /// Whether all was well: every escape was valid, all lanes are in the final state, and the words ended where the symbols did.
    ///
    /// # Errors
    /// [`EntropyError::Escape`], [`EntropyError::FinalState`] or [`EntropyError::StreamEnd`].
    pub fn finish(self) -> Result<(), EntropyError> {
        let consumed = (self.next as u64 * 32).wrapping_sub(u64::from(self.n_valid));
        if self.damaged {
            return Err(EntropyError::Escape);
        }
        let len_bits = self.words.len() as u64 * 32;
        let unread = len_bits.checked_sub(consumed);
        if unread.is_none_or(|unread| unread >= u64::from(REFILL_BITS)) {
            return Err(EntropyError::StreamEnd { consumed, len_bits });
        }
        if let Some(lane) = self.states.iter().position(|&state| state != 0) {
            return Err(EntropyError::FinalState { lane, found: self.states[lane] });
        }
        let padding = unread.unwrap_or(0) as u32;
        let last = self.words.last().copied().unwrap_or(0);
        if padding > 0 && last << (32 - padding) != 0 {
            return Err(EntropyError::StreamPadding { last_word: last, padding_bits: padding });
        }
        Ok(())
    }
}
