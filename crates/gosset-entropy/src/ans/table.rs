//! State tables, made of frequencies by integer arithmetic.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::{FreqTable, TABLE_LEN, TABLE_LOG};

/// Bits of an entry that hold the number of bits to read.
const N_BITS: u32 = 6;
/// Place of the value in an entry.
const VALUE_SHIFT: u32 = 16;

/// Owners of the slots: `(symbol, occurrence)` of slots 0 … 1023.
fn spread(freqs: &[u16]) -> Vec<(u16, u16)> {
    let mut keyed = Vec::with_capacity(TABLE_LEN);
    for (symbol, &freq) in freqs.iter().enumerate() {
        for j in 0..freq {
            // At most 25 bits of key, so that key, symbol and occurrence share a word.
            let key = ((2 * u64::from(j) + 1) << 24) / u64::from(freq);
            keyed.push(key << 32 | (symbol as u64) << 16 | u64::from(j));
        }
    }
    keyed.sort_unstable();
    keyed.into_iter().map(|key| ((key >> 16) as u16, key as u16)).collect()
}

/// The decoder's side of a table: what each of the 1024 states means, in 4 KiB.
#[derive(Clone)]
pub struct DecodeTable {
    /// Per state: the value in the upper 16 bits (−32768 for the escape), the base in bits 6 to 15, the number of bits to read
    /// in bits 0 to 5.
    pub(super) entries: [u32; TABLE_LEN],
    pub(super) escape: EscapeCode,
}

/// How to read values outside of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EscapeCode {
    pub(super) k: u8,
    pub(super) step: i32,
    /// First value of the run.
    pub(super) first: i32,
    /// Last value of the run.
    pub(super) last: i32,
}

/// Value field of escape entries.
pub(super) const ESCAPE: i32 = -32_768;

impl DecodeTable {
    /// The table of `freqs`.
    pub fn new(freqs: &FreqTable<'_>) -> Self {
        let mut entries = [0; TABLE_LEN];
        for (entry, (symbol, occurrence)) in entries.iter_mut().zip(spread(freqs.freqs())) {
            let symbol = usize::from(symbol);
            let value = if symbol == freqs.run_len() { ESCAPE } else { freqs.value(symbol) };
            let x = u32::from(freqs.freqs()[symbol]) + u32::from(occurrence);
            let n_bits = TABLE_LOG - x.ilog2();
            let base = (x << n_bits) - TABLE_LEN as u32;
            *entry = (value as u32) << VALUE_SHIFT | base << N_BITS | n_bits;
        }
        let (first, step) = (freqs.first(), freqs.step());
        let last = freqs.value(freqs.run_len() - 1);
        Self { entries, escape: EscapeCode { k: freqs.escape_k(), step, first, last } }
    }

    /// The entry of each state, for decoders on other devices: the value in the upper 16 bits (−32768 for the escape), the
    /// base in bits 6 to 15, the number of bits to read in bits 0 to 5.
    pub fn entries(&self) -> &[u32; TABLE_LEN] {
        &self.entries
    }

    /// How values outside of the run are coded: order of the code, step, first and last value of the run.
    pub fn escape(&self) -> [i32; 4] {
        let EscapeCode { k, step, first, last } = self.escape;
        [i32::from(k), step, first, last]
    }
}

impl core::fmt::Debug for DecodeTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DecodeTable").field("escape", &self.escape).finish_non_exhaustive()
    }
}

/// The encoder's side of a table.
#[derive(Debug, Clone)]
pub struct EncodeTable {
    freqs: FreqTable<'static>,
    symbols: Vec<EncodeSymbol>,
    /// States by symbol and occurrence.
    states: Box<[u16]>,
}

#[derive(Debug, Clone, Copy)]
struct EncodeSymbol {
    /// Bits that states at `threshold` and above write; those below write one less.
    n_bits: u32,
    threshold: u32,
    /// Index of the state of x = 0, were there one, in `states`.
    start: i32,
}

impl EncodeTable {
    /// The table of `freqs`.
    pub fn new(freqs: &FreqTable<'_>) -> Self {
        let mut symbols = Vec::with_capacity(freqs.freqs().len());
        let mut start = 0;
        for &freq in freqs.freqs() {
            let freq = u32::from(freq);
            // The least shift that takes x from [1024, 2048) below 2·freq; it may take a small x below freq.
            let n_bits = TABLE_LOG - freq.ilog2();
            symbols.push(EncodeSymbol { n_bits, threshold: freq << n_bits, start: start - freq as i32 });
            start += freq as i32;
        }
        let mut states = vec![0; TABLE_LEN].into_boxed_slice();
        for (state, (symbol, occurrence)) in spread(freqs.freqs()).into_iter().enumerate() {
            let symbol = usize::from(symbol);
            let x = i32::from(freqs.freqs()[symbol]) + i32::from(occurrence);
            states[(symbols[symbol].start + x) as usize] = state as u16;
        }
        let owned = FreqTable::new(freqs.first(), freqs.step(), freqs.escape_k(), freqs.freqs().to_vec());
        Self { freqs: owned.expect("a table of valid frequencies"), symbols, states }
    }

    /// The frequencies.
    pub fn freqs(&self) -> &FreqTable<'static> {
        &self.freqs
    }

    /// State before `symbol` is decoded and state `after` follows, with the bits that take the one to the other.
    #[inline]
    pub(super) fn step_back(&self, after: u32, symbol: usize) -> (u32, u32, u32) {
        let x = after + TABLE_LEN as u32;
        let entry = self.symbols[symbol];
        let n_bits = entry.n_bits - u32::from(x < entry.threshold);
        let before = self.states[(entry.start + (x >> n_bits) as i32) as usize];
        (u32::from(before), x & ((1 << n_bits) - 1), n_bits)
    }
}
