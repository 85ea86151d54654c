//! From values to the words of a stream.

use alloc::vec::Vec;

use super::freq::Place;
use super::{EncodeTable, LANES, TABLE_LOG};
use crate::{BitWriter, EntropyError};

/// Largest number of words of a stream, so that 16 bits hold it.
const MAX_WORDS: usize = u16::MAX as usize;

/// Collects what a decoder will ask for, in that order, and codes it backwards at the end.
///
/// One encoder serves any number of streams, one after the other; it keeps its memory.
#[derive(Debug, Clone, Default)]
pub struct StreamEncoder {
    ops: Vec<Op>,
    /// Bits in reverse order: low 32 bits of value, length above.
    chunks: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Symbol { lane: u8, table: u16, value: i32 },
    Raw { value: u32, n_bits: u8 },
}

impl StreamEncoder {
    /// An encoder without symbols.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a value that lane `lane` will decode with table `table`.
    ///
    /// # Panics
    /// If `lane` is not below [`LANES`].
    #[inline]
    pub fn symbol(&mut self, lane: usize, table: u16, value: i32) {
        assert!(lane < LANES, "lane {lane} of {LANES}");
        self.ops.push(Op::Symbol { lane: lane as u8, table, value });
    }

    /// Appends the low `n_bits` ≤ 32 bits of `value` as they are.
    ///
    /// # Panics
    /// If `n_bits` exceeds 32.
    #[inline]
    pub fn raw(&mut self, value: u32, n_bits: u32) {
        assert!(n_bits <= 32, "{n_bits} raw bits exceed 32");
        self.ops.push(Op::Raw { value, n_bits: n_bits as u8 });
    }

    /// Appends the words of the stream to `words` and returns their number; the encoder is empty afterwards.
    ///
    /// # Errors
    /// [`EntropyError::StreamWords`] if it takes more words than a 16-bit length can tell; `words` is unchanged then.
    ///
    /// # Panics
    /// If a symbol names a table that is not in `tables`, or a value that is no whole number of steps away from those of its
    /// table.
    pub fn finish(&mut self, tables: &[EncodeTable], words: &mut Vec<u32>) -> Result<u16, EntropyError> {
        let start = words.len();
        self.finish_by(|table| &tables[usize::from(table)], words);
        let n_words = words.len() - start;
        u16::try_from(n_words).map_err(|_| {
            words.truncate(start);
            EntropyError::StreamWords { n_words: n_words as u64, max: MAX_WORDS }
        })
    }

    /// As [`finish`](Self::finish), with the tables given one by one and no limit on the number of words; returns the length of the
    /// stream in bits, before it is padded to whole words.
    ///
    /// # Panics
    /// If a value is no whole number of steps away from those of its table.
    pub fn finish_by<'t>(&mut self, table_of: impl Fn(u16) -> &'t EncodeTable, words: &mut Vec<u32>) -> u64 {
        self.chunks.clear();
        let mut states = [0; LANES];
        for op in self.ops.drain(..).rev() {
            match op {
                Op::Raw { value, n_bits } => push(&mut self.chunks, value, u32::from(n_bits)),
                Op::Symbol { lane, table, value } => {
                    let table = table_of(table);
                    let symbol = match table.freqs().place(value) {
                        Place::Direct(symbol) => symbol,
                        Place::Escape { below, excess } => {
                            push_escape(&mut self.chunks, below, excess, table.freqs().escape_k());
                            table.freqs().run_len()
                        }
                    };
                    let state = &mut states[usize::from(lane)];
                    let (before, bits, n_bits) = table.step_back(*state, symbol);
                    push(&mut self.chunks, bits, n_bits);
                    *state = before;
                }
            }
        }
        states.iter().rev().for_each(|&state| push(&mut self.chunks, state, TABLE_LOG));
        let len_bits: u64 = self.chunks.iter().map(|chunk| chunk >> 32).sum();
        let mut writer = BitWriter::with_capacity_bits(len_bits);
        self.chunks.iter().rev().for_each(|&chunk| writer.write(chunk as u32, (chunk >> 32) as u32));
        words.extend(writer.into_words());
        len_bits
    }
}

#[inline]
fn push(chunks: &mut Vec<u64>, value: u32, n_bits: u32) {
    chunks.push(u64::from(n_bits) << 32 | u64::from(value));
}

/// The bits of an escape, last ones first.
#[cold]
fn push_escape(chunks: &mut Vec<u64>, below: bool, excess: u64, k: u8) {
    // Below 2^31 + 2^15 + 2^16, as the value and the end of the run have 32 and 16 bits with sign.
    let q = excess + (1 << k);
    let n_bits = q.ilog2() + 1;
    push(chunks, q as u32, n_bits);
    push(chunks, 0, n_bits - 1 - u32::from(k));
    push(chunks, u32::from(below), 1);
}
