//! Frequency tables: what a code is made of.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::{COST_BITS, MAX_DIRECT, MAX_ESCAPE_K, MAX_FREQ, TABLE_LEN, cost};
use crate::EntropyError;

/// Integer frequencies of a run of values in equal steps and of the escape to all other values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreqTable<'a> {
    first: i32,
    step: i32,
    escape_k: u8,
    freqs: Cow<'a, [u16]>,
}

/// Where a value lies in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the run, with this symbol.
    Direct(usize),
    /// Outside: on the lower side or not, and the number of steps beyond the end of the run.
    Escape { below: bool, excess: u64 },
}

impl<'a> FreqTable<'a> {
    /// The table of the values `first`, `first + step`, … with the frequencies `freqs`, the last of which is that of the
    /// escape; escaped values take an exponential Golomb code of order `escape_k`.
    ///
    /// # Errors
    /// [`EntropyError::Frequencies`] unless there are at least two frequencies, each from 1 to [`MAX_FREQ`], with the sum
    /// [`TABLE_LEN`]; and [`EntropyError::FrequencyRun`] unless `step` is 1 or more, `escape_k` at most [`MAX_ESCAPE_K`] and
    /// all values of the run at most [`MAX_DIRECT`] in magnitude.
    pub fn new(first: i32, step: i32, escape_k: u8, freqs: impl Into<Cow<'a, [u16]>>) -> Result<Self, EntropyError> {
        let freqs = freqs.into();
        let sum: u64 = freqs.iter().map(|&freq| u64::from(freq)).sum();
        if freqs.len() < 2 || sum != TABLE_LEN as u64 {
            return Err(EntropyError::Frequencies { n: freqs.len(), sum, largest_allowed: MAX_FREQ });
        }
        if freqs.iter().any(|freq| !(1..=MAX_FREQ).contains(freq)) {
            return Err(EntropyError::Frequencies { n: freqs.len(), sum, largest_allowed: MAX_FREQ });
        }
        let last = i64::from(first) + i64::from(step) * (freqs.len() as i64 - 2);
        let limit = i64::from(MAX_DIRECT);
        if step < 1 || escape_k > MAX_ESCAPE_K || i64::from(first) < -limit || last > limit {
            return Err(EntropyError::FrequencyRun { first: i64::from(first), last, step, escape_k });
        }
        Ok(Self { first, step, escape_k, freqs })
    }

    /// The table of the negated values.
    pub fn mirrored(&self) -> FreqTable<'static> {
        let (escape, run) = self.freqs.split_last().expect("a table has two frequencies at least");
        let freqs: Vec<u16> = run.iter().rev().chain([escape]).copied().collect();
        let first = -(self.first + self.step * (run.len() as i32 - 1));
        FreqTable { first, step: self.step, escape_k: self.escape_k, freqs: Cow::Owned(freqs) }
    }

    /// First value of the run.
    pub fn first(&self) -> i32 {
        self.first
    }

    /// Distance of the values.
    pub fn step(&self) -> i32 {
        self.step
    }

    /// Order of the escape code.
    pub fn escape_k(&self) -> u8 {
        self.escape_k
    }

    /// Frequencies of the run and, last, of the escape.
    pub fn freqs(&self) -> &[u16] {
        &self.freqs
    }

    /// Number of values in the run, which is also the symbol of the escape.
    pub fn run_len(&self) -> usize {
        self.freqs.len() - 1
    }

    /// The value of symbol `symbol`, which is in the run.
    pub(super) fn value(&self, symbol: usize) -> i32 {
        self.first + self.step * symbol as i32
    }

    /// Where `value` lies.
    ///
    /// # Panics
    /// If it is no whole number of steps away from the run.
    #[inline]
    pub(super) fn place(&self, value: i32) -> Place {
        let (offset, step) = (i64::from(value) - i64::from(self.first), i64::from(self.step));
        assert!(offset % step == 0, "value {value} is not of the form {} + {step}·n", self.first);
        let index = offset / step;
        let run_len = self.run_len() as i64;
        if index < 0 {
            Place::Escape { below: true, excess: (-1 - index) as u64 }
        } else if index >= run_len {
            Place::Escape { below: false, excess: (index - run_len) as u64 }
        } else {
            Place::Direct(index as usize)
        }
    }

    /// Bits that `value` takes on average, in units of 2^-16 bit.
    ///
    /// ```
    /// let table = gosset_entropy::ans::FreqTable::new(-1, 1, 0, &[256, 511, 256, 1])?;
    /// assert_eq!(table.cost(-1), 2 << 16);
    /// assert_eq!(table.cost(4), (10 + 1 + 3) << 16);
    /// # Ok::<(), gosset_entropy::EntropyError>(())
    /// ```
    ///
    /// # Panics
    /// If `value` is no whole number of steps away from the run.
    pub fn cost(&self, value: i32) -> u64 {
        match self.place(value) {
            Place::Direct(symbol) => u64::from(cost::of_freq(self.freqs[symbol])),
            Place::Escape { excess, .. } => {
                let len_bits = 1 + escape_len_bits(excess, self.escape_k);
                u64::from(cost::of_freq(self.freqs[self.run_len()])) + (u64::from(len_bits) << COST_BITS)
            }
        }
    }
}

/// Length of the exponential Golomb code of order `k` of `excess`.
pub(super) fn escape_len_bits(excess: u64, k: u8) -> u32 {
    let n_bits = (excess + (1 << k)).ilog2() + 1;
    2 * n_bits - 1 - u32::from(k)
}
