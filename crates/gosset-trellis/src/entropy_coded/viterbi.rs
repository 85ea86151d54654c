//! The cheapest path through the trellis, eight at a time.

use alloc::vec::Vec;

use super::arch::Backend;
use super::{LANES, MAX_VALUE, Quantizer, TrellisCode, point};
use crate::TrellisError;

/// Buffers of one encoding thread; their contents before a call do not matter.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    /// Bit `lane` of element `step * n_states + state`: the z1 by which the best path of the lane came to the state.
    decisions: Vec<u8>,
    /// The values, a step of all lanes after the other, padded with zeros.
    steps: Vec<[f32; LANES]>,
}

/// Cost of states that no path has reached; so much that no path through one is ever the best.
pub(super) const UNREACHED: f32 = 1e30;

/// Writes the grid points of the cheapest paths for `values`, in grid steps, to `points`.
///
/// Value i belongs to lane i mod 8 and each lane is a path of its own from state 0. The cost of a path is the sum over its
/// points of (value - reconstruction)^2 + cost of the point, in f32, added in order; where two ways into a state cost
/// the same, the one with z1 = 0 is taken, and the lowest of the final states. The last step of lanes that are one
/// value shorter costs nothing. The result does not depend on the machine.
///
/// # Errors
/// [`TrellisError::Length`] if the slices differ in length, [`TrellisError::Parameter`] for a value that is NaN or larger
/// than [`MAX_VALUE`].
pub fn encode(
    code: TrellisCode,
    quantizer: &Quantizer,
    values: &[f32],
    points: &mut [i32],
    scratch: &mut Scratch,
) -> Result<(), TrellisError> {
    encode_from(code, quantizer, values, points, &mut [0; LANES], scratch)
}

/// As [`encode`], but paths start in `states`, one per lane, which become those in which they end: what continues a stream whose
/// values are not all known yet. A lane without a value keeps its state.
///
/// # Errors
/// Those of [`encode`], and [`TrellisError::Parameter`] for a state that the code has not.
pub fn encode_from(
    code: TrellisCode,
    quantizer: &Quantizer,
    values: &[f32],
    points: &mut [i32],
    states: &mut [u32; LANES],
    scratch: &mut Scratch,
) -> Result<(), TrellisError> {
    if let Some(&found) = states.iter().find(|&&state| state >= code.n_states()) {
        return Err(TrellisError::Parameter { name: "state", expected: "a state of the code", found: found.into() });
    }
    encode_with(Backend::detect(), code, quantizer, values, points, states, scratch)
}

pub(super) fn encode_with(
    backend: Backend,
    code: TrellisCode,
    quantizer: &Quantizer,
    values: &[f32],
    points: &mut [i32],
    states: &mut [u32; LANES],
    scratch: &mut Scratch,
) -> Result<(), TrellisError> {
    if points.len() != values.len() {
        return Err(TrellisError::Length { slice: "points", expected: values.len(), found: points.len() });
    }
    if let Some(bad) = values.iter().find(|x| !(-MAX_VALUE..=MAX_VALUE).contains(*x)) {
        let (name, expected) = ("value in grid steps", "-2^22 to 2^22");
        return Err(TrellisError::Parameter { name, expected, found: u64::from(bad.to_bits()) });
    }
    let n_steps = values.len().div_ceil(LANES);
    let n_states = code.n_states() as usize;
    scratch.steps.clear();
    scratch.steps.resize(n_steps, [0.0; LANES]);
    scratch.steps.as_flattened_mut()[..values.len()].copy_from_slice(values);
    scratch.decisions.resize(n_steps * n_states, 0);
    let whole_steps = values.len() / LANES;
    let last_lanes = values.len() % LANES;
    let taps = code.taps().map(|t| t as usize);
    let starts = states.map(|state| state as usize);
    let job = Forward { quantizer, taps, starts, steps: &scratch.steps, whole_steps, last_lanes };
    let ends = match n_states {
        8 => backend.forward::<8>(&job, &mut scratch.decisions),
        64 => backend.forward::<64>(&job, &mut scratch.decisions),
        _ => backend.forward::<256>(&job, &mut scratch.decisions),
    };
    trace_back(code, quantizer, &scratch.steps, &scratch.decisions, ends, points, states);
    Ok(())
}

/// What the forward pass reads.
pub(super) struct Forward<'a> {
    pub quantizer: &'a Quantizer,
    pub taps: [usize; 2],
    /// State of each lane before its first value.
    pub starts: [usize; LANES],
    pub steps: &'a [[f32; LANES]],
    /// Steps in which every lane has a value; one more may follow, in which the first `last_lanes` have.
    pub whole_steps: usize,
    pub last_lanes: usize,
}

/// An instruction set, for eight lanes of f32.
pub(super) trait Simd: Copy {
    type Register: Copy;

    fn load(self, x: &[f32; LANES]) -> Self::Register;
    fn store(self, x: &mut [f32; LANES], v: Self::Register);
    fn add(self, a: Self::Register, b: Self::Register) -> Self::Register;
    /// The smaller of each lane, and the bits of the lanes where `b` is smaller.
    fn min(self, a: Self::Register, b: Self::Register) -> (Self::Register, u8);
    /// Least costs of the four subsets (union, z1), as rows 2 union + z1.
    fn metrics(self, quantizer: &Quantizer, x: &[f32; LANES]) -> [Self::Register; 4];
}

/// Fills `decisions` and returns the best final state of each lane.
#[inline(always)]
pub(super) fn forward<S: Simd, const N: usize>(simd: S, job: &Forward<'_>, decisions: &mut [u8]) -> [u32; LANES] {
    let [taps0, taps1] = job.taps;
    let mut before = [[UNREACHED; LANES]; N];
    for (lane, &start) in job.starts.iter().enumerate() {
        before[start % N][lane] = 0.0;
    }
    let mut after = [[0.0; LANES]; N];
    let (decisions, _) = decisions.as_chunks_mut::<N>();
    for (step, (x, decisions)) in job.steps.iter().zip(decisions).enumerate() {
        let mut metrics = simd.metrics(job.quantizer, x);
        if step >= job.whole_steps {
            for metric in &mut metrics {
                let mut lanes = [0.0; LANES];
                simd.store(&mut lanes, *metric);
                lanes[job.last_lanes..].fill(0.0);
                *metric = simd.load(&lanes);
            }
        }
        for i in 0..N / 2 {
            let (even, even1) = (2 * i, 2 * (i ^ taps1) % N);
            let a = simd.add(simd.load(&before[even]), metrics[0]);
            let b = simd.add(simd.load(&before[even1]), metrics[1]);
            let (least, bits) = simd.min(a, b);
            simd.store(&mut after[i], least);
            decisions[i] = bits;
            // States with the highest bit follow odd ones, since taps0 has that bit and taps1 has not.
            let (odd, odd1) = (2 * i + 1, (2 * (i ^ taps1) + 1) % N);
            let a = simd.add(simd.load(&before[odd]), metrics[2]);
            let b = simd.add(simd.load(&before[odd1]), metrics[3]);
            let (least, bits) = simd.min(a, b);
            let to = (i ^ taps0) % N;
            simd.store(&mut after[to], least);
            decisions[to] = bits;
        }
        core::mem::swap(&mut before, &mut after);
    }
    let mut best = [0; LANES];
    for (lane, best) in best.iter_mut().enumerate() {
        for state in 1..N {
            if before[state][lane] < before[*best as usize][lane] {
                *best = state as u32;
            }
        }
    }
    best
}

/// Follows the decisions back from the final states and writes the points, and the states after the last value of each lane.
fn trace_back(
    code: TrellisCode,
    quantizer: &Quantizer,
    steps: &[[f32; LANES]],
    decisions: &[u8],
    mut states: [u32; LANES],
    points: &mut [i32],
    ends: &mut [u32; LANES],
) {
    let last_lanes = points.len() % LANES;
    // Where the last step is not a whole one, lanes without a value end where that step begins.
    *ends = states;
    let n_states = code.n_states() as usize;
    let [taps0, taps1] = code.taps();
    for (step, x) in steps.iter().enumerate().rev() {
        let decisions = &decisions[step * n_states..][..n_states];
        let mut out = [0; LANES];
        for (lane, (state, out)) in states.iter_mut().zip(&mut out).enumerate() {
            let z1 = u32::from(decisions[*state as usize] >> lane) & 1;
            let union = *state >> n_states.trailing_zeros().wrapping_sub(1);
            let shifted = *state ^ (union.wrapping_neg() & taps0) ^ (z1.wrapping_neg() & taps1);
            *state = 2 * shifted + union;
            *out = point(union, quantizer.best(x[lane], union, z1).1);
        }
        let points = &mut points[step * LANES..];
        let len = points.len().min(LANES);
        points[..len].copy_from_slice(&out[..len]);
        if last_lanes > 0 && step + 1 == steps.len() {
            ends[last_lanes..].copy_from_slice(&states[last_lanes..]);
        }
    }
}
