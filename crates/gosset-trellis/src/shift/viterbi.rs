//! The search for the best string: Viterbi's algorithm on integers.
//!
//! States before a step that differ in their k V oldest bits only have the same continuations, so what is kept of the
//! past is one metric and one way per *suffix*, the L - k V bits that survive. A step takes, for each suffix of the states
//! after it, the least of 2^(k V) sums: a metric before the step and the cost of the state. Targets and weights are
//! fixed-point numbers, so that every instruction set finds the same string; the way is carried in the lowest bits of
//! the sum, where the minimum also settles ties in favour of the smallest way.

use alloc::vec;
use alloc::vec::Vec;

use super::arch::{self, Backend, LANES, METRIC_CAP, StepLane, StepShape};
use super::layout::StepKind;
use super::spec::ShiftTrellis;

/// Fractional bits of targets and weights, some of the lowest of which are zero.
const FRACTION_BITS: u32 = 12;
/// Largest magnitude of a target or weight, so that no sum exceeds 31 bits.
const LIMIT: f32 = 4.5;
/// Bits on either side of the seam of a ring from which the state at the seam is found, in multiples of L.
///
/// Against a search of the whole ring, the squared error at L = 14 is higher by 0.02 % in rows of 4096 columns and 0.3 % in
/// tiles at two bits per weight, and by less at three and four. With half as many it is 0.05 % and 0.9 %.
const SEAM_BITS: u32 = 16;

/// The tables of one trellis.
#[derive(Debug)]
pub(crate) struct Viterbi {
    backend: Backend,
    shape: StepShape,
    /// Weights of each state, in the order of [`arch::step`].
    pairs: Vec<u32>,
    /// Half the squared length of the weights that are read, and the way, for each kind of step.
    base: [Vec<i32>; 3],
}

/// The numbers that a step should come near to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Target {
    negated: u32,
    half_energy: i32,
}

/// Buffers of one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct ViterbiScratch {
    strings: Vec<StringScratch>,
}

#[derive(Clone, Debug, Default)]
struct StringScratch {
    before: Vec<i32>,
    after: Vec<i32>,
    ways: Vec<u8>,
}

/// `x` as a multiple of 2^(low_bits - FRACTION_BITS), nearest, in units of 2^-FRACTION_BITS; NaN counts as the least.
fn to_fixed(x: f32, low_bits: u32) -> i32 {
    let x = if x > LIMIT {
        LIMIT
    } else if x >= -LIMIT {
        x
    } else {
        -LIMIT
    };
    let scale = (1u32 << (FRACTION_BITS - low_bits)) as f32;
    // The sum is positive, so that truncation rounds down.
    const OFFSET: i32 = 1 << 15;
    (((x * scale + (OFFSET as f32 + 0.5)) as i32) - OFFSET) << low_bits
}

fn pack(x: [i32; 2]) -> u32 {
    u32::from(x[0] as i16 as u16) | u32::from(x[1] as i16 as u16) << 16
}

impl Viterbi {
    pub(crate) fn new(trellis: &ShiftTrellis, backend: Backend) -> Self {
        let spec = trellis.spec();
        let shape = StepShape { state_bits: spec.state_bits.into(), step_bits: spec.step_bits() };
        let (n, ways, suffixes) = (1usize << shape.state_bits, shape.ways(), shape.suffixes());
        let mut pairs = vec![0; n];
        let mut base = [vec![0; n], vec![0; n], vec![0; n]];
        // The product of a weight and a target must leave the bits of the way alone.
        let low_bits = shape.step_bits.div_ceil(2);
        for state in 0..n {
            let (way, suffix) = (state / suffixes, state % suffixes);
            let at = (suffix / LANES * ways + way) * LANES + suffix % LANES;
            let values = trellis.code().values(state as u32, shape.state_bits);
            let mut c = values.map(|value| to_fixed(value * trellis.step(), low_bits));
            if spec.weights_per_step() == 1 {
                c[1] = 0;
            }
            pairs[at] = pack(c);
            let with_way = |energy: i32| (energy >> 1 >> shape.step_bits << shape.step_bits) | way as i32;
            base[StepKind::Full as usize][at] = with_way(c[0] * c[0] + c[1] * c[1]);
            base[StepKind::First as usize][at] = with_way(c[0] * c[0]);
            base[StepKind::Free as usize][at] = way as i32;
        }
        Self { backend, shape, pairs, base }
    }

    /// What a step of that kind should come near to; numbers that no one reads are of no account.
    pub(crate) fn target(&self, kind: StepKind, mut x: [f32; 2]) -> Target {
        let n_read = 2 - kind as usize;
        x[n_read..].fill(0.0);
        let x = x.map(|x| to_fixed(x, self.shape.step_bits / 2));
        Target { negated: pack(x.map(|x| -x)), half_energy: (x[0] * x[0] + x[1] * x[1]) >> 1 }
    }

    /// The states after each step of the best rings of all those whose state at the seam is what a search around the
    /// seam finds; `states[r]` for `targets[r]`.
    pub(crate) fn rings<const R: usize>(
        &self,
        kinds: &[StepKind],
        targets: [&[Target]; R],
        states: [&mut [u32]; R],
        scratch: &mut ViterbiScratch,
    ) {
        let n = kinds.len();
        scratch.strings.resize_with(scratch.strings.len().max(R), StringScratch::default);
        let seam = (SEAM_BITS * self.shape.state_bits).div_ceil(self.shape.step_bits) as usize;
        let seam = seam.min(n);
        self.pass((n - seam..n).chain(0..seam), kinds, targets, [None; R], scratch);
        let starts = core::array::from_fn(|r| {
            let string = &scratch.strings[r];
            let mut start = 0;
            self.trace(&string.ways, 2 * seam, self.best_suffix(&string.before), |step, state| {
                if step == seam - 1 {
                    start = state;
                }
            });
            Some(start)
        });
        // The state after the last step is the one before the first, so that step needs no search.
        self.pass(0..n - 1, kinds, targets, starts, scratch);
        for ((states, start), string) in states.into_iter().zip(starts).zip(&scratch.strings) {
            states[n - 1] = start.unwrap_or_default();
            let suffix = states[n - 1] as usize >> self.shape.step_bits;
            self.trace(&string.ways, n - 1, suffix, |step, state| states[step] = state);
        }
    }

    /// Searches the given steps from a known state or from all; the metrics after the last are `before`, and the ways of
    /// the i-th step are at i times the number of suffixes.
    fn pass<const R: usize>(
        &self,
        steps: impl Iterator<Item = usize>,
        kinds: &[StepKind],
        targets: [&[Target]; R],
        starts: [Option<u32>; R],
        scratch: &mut ViterbiScratch,
    ) {
        let suffixes = self.shape.suffixes();
        let (strings, _) = scratch.strings.split_first_chunk_mut::<R>().expect("a scratch per string was made");
        for (string, start) in strings.iter_mut().zip(starts) {
            string.after.clear();
            string.after.resize(self.shape.metrics_len(), 0);
            string.before.clear();
            string.before.resize(self.shape.metrics_len(), if start.is_some() { METRIC_CAP } else { 0 });
            if let Some(state) = start {
                string.before[self.shape.place(state as usize & (suffixes - 1))] = 0;
            }
        }
        let mut least = [0; R];
        for (i, step) in steps.enumerate() {
            let mut r = 0;
            let mut lanes = strings.each_mut().map(|string| {
                if string.ways.len() < (i + 1) * suffixes {
                    string.ways.resize((i + 1) * suffixes, 0);
                }
                let target = targets[r][step];
                // With half the energy of the target added, metrics are half squared distances over the least.
                let bias = least[r] - target.half_energy;
                r += 1;
                StepLane {
                    target: target.negated,
                    bias: bias >> self.shape.step_bits << self.shape.step_bits,
                    before: &string.before,
                    after: &mut string.after,
                    ways: &mut string.ways[i * suffixes..][..suffixes],
                }
            });
            let base = &self.base[kinds[step] as usize];
            least = arch::step(self.backend, self.shape, &self.pairs, base, &mut lanes);
            for string in strings.iter_mut() {
                core::mem::swap(&mut string.before, &mut string.after);
            }
        }
    }

    /// The suffix of the least metric, the smallest of several.
    fn best_suffix(&self, metrics: &[i32]) -> usize {
        (0..self.shape.suffixes()).min_by_key(|&suffix| metrics[self.shape.place(suffix)]).unwrap_or(0)
    }

    /// Hands out the states after each of the steps that led to `suffix`, last first.
    fn trace(&self, ways: &[u8], n_steps: usize, mut suffix: usize, mut sink: impl FnMut(usize, u32)) {
        let suffixes = self.shape.suffixes();
        for step in (0..n_steps).rev() {
            let state = usize::from(ways[step * suffixes + suffix]) * suffixes + suffix;
            sink(step, state as u32);
            suffix = state >> self.shape.step_bits;
        }
    }
}
