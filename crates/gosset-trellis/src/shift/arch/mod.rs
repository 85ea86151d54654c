//! One step of the search and the decoding of words, for several instruction sets: the choice is made here.

use alloc::boxed::Box;

use super::code::{Code, INDEX_BITS, TABLE_LEN, half_to_f32};
use super::spec::ShiftTrellis;

mod scalar;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

/// Numbers that a kernel handles at once; tables are laid out in blocks of so many.
pub(crate) const LANES: usize = 16;

/// Shape of one step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// Bits of the state.
    pub state_bits: u32,
    /// Bits that a step appends.
    pub step_bits: u32,
}

impl StepShape {
    /// Ways into a state.
    pub(crate) fn ways(self) -> usize {
        1 << self.step_bits
    }

    /// Suffixes, which are what is left of a state after the oldest bits are gone: the states before a step up to
    /// their oldest bits.
    pub(crate) fn suffixes(self) -> usize {
        1 << (self.state_bits - self.step_bits)
    }

    /// Right shift that turns a way into the upper part of the index of the suffix it comes from, and the distance
    /// of two such parts in the array of metrics.
    ///
    /// The distance is kept off powers of two, which would all fall into one set of the cache.
    pub(crate) fn way_shift_and_stride(self) -> (u32, usize) {
        match self.state_bits.checked_sub(2 * self.step_bits) {
            Some(lower) if lower >= 4 => (0, (1 << lower) + LANES),
            Some(lower) => (0, 1 << lower),
            None => (2 * self.step_bits - self.state_bits, 1),
        }
    }

    /// Where the metric of a suffix is kept.
    pub(crate) fn place(self, suffix: usize) -> usize {
        match self.state_bits.checked_sub(2 * self.step_bits) {
            Some(lower) if lower >= 4 => (suffix >> lower) * ((1 << lower) + LANES) + (suffix & ((1 << lower) - 1)),
            _ => suffix,
        }
    }

    /// Length of the array of metrics.
    pub(crate) fn metrics_len(self) -> usize {
        self.place(self.suffixes() - 1) + 1 + LANES
    }
}

/// One string in one step of the search.
pub(crate) struct StepLane<'a> {
    /// The two negated targets, 16 bits each, lower first.
    pub target: u32,
    /// What is taken off every metric.
    pub bias: i32,
    /// Metrics before the step, at [`StepShape::place`].
    pub before: &'a [i32],
    /// Metrics after the step.
    pub after: &'a mut [i32],
    /// The best way into each suffix's state.
    pub ways: &'a mut [u8],
}

/// Largest metric: 40 units of variance over the least.
pub(crate) const METRIC_CAP: i32 = 40 << 24;

/// Which instructions the trellis uses. All backends give the same bits.
///
/// A value is a proof that this machine has the instructions: only [`detect`](Self::detect) hands out vector backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
}

impl Backend {
    /// The portable backend: plain Rust, the oracle of the others.
    #[must_use]
    pub fn scalar() -> Self {
        Self(Level::Scalar)
    }

    /// The fastest backend of this machine. The answer is cached by the standard library; asking again is one load.
    #[must_use]
    pub fn detect() -> Self {
        Self::all().last().unwrap_or_else(Self::scalar)
    }

    /// Every backend of this machine, the fastest last.
    pub fn all() -> impl Iterator<Item = Self> {
        let scalar = core::iter::once(Self::scalar());
        #[cfg(target_arch = "x86_64")]
        let vector = {
            let avx2 = x86::Avx2::detect().map(|proof| Self(Level::Avx2(proof)));
            avx2.into_iter().chain(x86::Avx512::detect().map(|proof| Self(Level::Avx512(proof))))
        };
        #[cfg(not(target_arch = "x86_64"))]
        let vector = core::iter::empty();
        scalar.chain(vector)
    }

    /// `scalar`, `avx2` or `avx512`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => "avx512",
        }
    }
}

/// One step for `R` strings: the best way into each state, over all ways; gives the least metric after it of each.
///
/// `pairs` and `base` hold what belongs to (block of suffixes, way, lane), in this order: the pair of weights, and half
/// its squared length with the way in the lowest bits. Ties go to the smallest way.
pub(crate) fn step<const R: usize>(
    backend: Backend,
    shape: StepShape,
    pairs: &[u32],
    base: &[i32],
    lanes: &mut [StepLane<'_>; R],
) -> [i32; R] {
    let n = shape.suffixes() << shape.step_bits;
    assert!(pairs.len() == n && base.len() == n, "tables have an entry per state");
    for lane in lanes.iter() {
        let enough = lane.before.len() >= shape.metrics_len() && lane.after.len() >= shape.metrics_len();
        assert!(enough && lane.ways.len() >= shape.suffixes(), "a string has a metric and a way per suffix");
    }
    match backend.0 {
        Level::Scalar => scalar::step(shape, pairs, base, lanes),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) => avx2.step(shape, pairs, base, lanes),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(avx512) => avx512.step(shape, pairs, base, lanes),
    }
}

/// What decoding reads.
#[derive(Clone, Debug)]
pub(crate) struct DecodeTables {
    /// Bits that a step appends.
    step_bits: u32,
    /// Bits of the state.
    state_bits: u32,
    /// Multipliers, shifted so that the index is in the ten upper bits of the product and bits beyond the state fall off.
    multipliers: [u32; 2],
    values: DecodeValues,
}

#[derive(Clone, Debug)]
enum DecodeValues {
    /// One weight per step.
    Single(Box<[f32; TABLE_LEN]>),
    /// Two weights per step, an index for each.
    Double(Box<[f32; TABLE_LEN]>),
    /// Two weights per step under one index.
    Pairs(Box<[[f32; 2]; TABLE_LEN]>),
}

impl DecodeTables {
    pub(crate) fn new(trellis: &ShiftTrellis) -> Self {
        let spec = trellis.spec();
        let left = 32 - u32::from(spec.state_bits);
        let (multipliers, values) = match trellis.code() {
            Code::Quantiles { multipliers, table } => {
                let values = Box::new(core::array::from_fn(|i| half_to_f32(table[i])));
                let double = spec.weights_per_step() == 2;
                (*multipliers, if double { DecodeValues::Double(values) } else { DecodeValues::Single(values) })
            }
            Code::Pairs { multiplier, table } => {
                let pair = |word: u32| [half_to_f32(word as u16), half_to_f32((word >> 16) as u16)];
                ([*multiplier; 2], DecodeValues::Pairs(Box::new(core::array::from_fn(|i| pair(table[i])))))
            }
        };
        let multipliers = multipliers.map(|multiplier| multiplier << left);
        Self { step_bits: spec.step_bits(), state_bits: spec.state_bits.into(), multipliers, values }
    }

    /// The 32 bits of the ring that end with a step; the lowest are its state.
    #[inline]
    fn window(&self, words: &[u32], step: usize) -> u32 {
        let last = (step + 1) * self.step_bits as usize - 1;
        let word = last / 32;
        let before = if word == 0 { words.len() - 1 } else { word - 1 };
        ((u64::from(words[before]) << 32 | u64::from(words[word])) >> (31 - last % 32)) as u32
    }

    /// The state after a step of a ring.
    pub(crate) fn state(&self, words: &[u32], step: usize) -> u32 {
        self.window(words, step) & ((1 << self.state_bits) - 1)
    }
}

/// Words of the longest string, so that bits are counted in 31 bits.
pub(crate) const MAX_WORDS: usize = 1 << 25;

/// The first weights of a ring, as many as `out` takes; `words` hold all of its steps.
pub(crate) fn decode(backend: Backend, tables: &DecodeTables, words: &[u32], out: &mut [f32]) {
    let v = if matches!(tables.values, DecodeValues::Single(_)) { 1 } else { 2 };
    let n_bits = out.len().div_ceil(v) * tables.step_bits as usize;
    assert!(n_bits <= words.len() * 32 && words.len() <= MAX_WORDS, "the words hold all steps");
    match backend.0 {
        Level::Scalar => scalar::decode(tables, words, 0, out),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(avx2) => avx2.decode(tables, words, out),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(avx512) => avx512.avx2().decode(tables, words, out),
    }
}
