//! The search for the string of a vector: Viterbi's algorithm in f32, in the order that [`crate::shift`] states.

use gosset_transform::{Backend, Kernel};

/// Steps on either side of the seam from which the state there is found. All of a ring of 32 steps at 2 bits lowers the squared error by
/// another 0.5 %, half as many raise it by 2 %.
const REACH: usize = 24;
/// Metric of states that a walk does not start from.
const FAR: f32 = 1e30;
/// States whose metrics are folded in registers.
const BLOCK: usize = 32;

/// A step that appends bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Step {
    /// 2 to 10.
    pub(crate) bits: u32,
    /// What its squared errors count.
    pub(crate) weight: f32,
}

/// Points of all states.
#[derive(Debug, Clone)]
pub(crate) struct States {
    bits: u32,
    points: [Vec<f32>; 2],
    /// Half the squared length of points.
    energy: Vec<f32>,
}

impl States {
    pub(crate) fn new(bits: u32, point: impl Fn(u32) -> [f32; 2]) -> Self {
        let of = |i: usize| (0..1u32 << bits).map(|s| point(s)[i]).collect::<Vec<f32>>();
        let points = [of(0), of(1)];
        let energy = points[0].iter().zip(&points[1]).map(|(a, b)| (a * a + b * b) * 0.5).collect();
        Self { bits, points, energy }
    }
}

/// Buffers of one thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Metrics after each step of a walk, of all states.
    metrics: Vec<f32>,
    least: Vec<f32>,
}

/// Writes the states after each step of the best ring for the targets `x`, two for each step, to `out`; there is a step at least.
pub(crate) fn ring(
    backend: Backend,
    states: &States,
    steps: &[Step],
    x: &[f32],
    out: &mut [u32],
    scratch: &mut Scratch,
) {
    backend.vectorize(Ring { states, steps, x, out, scratch });
}

struct Ring<'a> {
    states: &'a States,
    steps: &'a [Step],
    x: &'a [f32],
    out: &'a mut [u32],
    scratch: &'a mut Scratch,
}

impl Kernel for Ring<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { states, steps, x, out, scratch } = self;
        let n = steps.len();
        // Steps before the seam count down from n.
        let around = |i: usize| (i + n * REACH.div_ceil(n) - REACH) % n;
        let len = 2 * REACH;
        walk(states, steps, x, around, len, None, scratch);
        let mut last = 0;
        let ends = &scratch.metrics[(len - 1) << states.bits..len << states.bits];
        for (s, m) in ends.iter().enumerate() {
            last = if *m < ends[last] { s } else { last };
        }
        let mut seam = 0;
        trace(states, steps, around, REACH - 1..len, last as u32, &scratch.metrics, |_, s| seam = s);
        walk(states, steps, x, |i| i, n, Some(seam), scratch);
        trace(states, steps, |i| i, 0..n, seam, &scratch.metrics, |i, s| out[i] = s);
    }
}

/// Fills the metrics after each of `len` steps.
#[inline(always)]
fn walk(
    states: &States,
    steps: &[Step],
    x: &[f32],
    order: impl Fn(usize) -> usize,
    len: usize,
    start: Option<u32>,
    scratch: &mut Scratch,
) {
    let all = 1usize << states.bits;
    let Scratch { metrics, least } = scratch;
    if metrics.len() < len * all {
        metrics.resize(len * all, 0.0);
    }
    least.resize(all, 0.0);
    for i in 0..len {
        let at = order(i);
        let step = steps[at];
        let suffixes = all >> step.bits;
        let least = &mut least[..suffixes];
        let (done, rest) = metrics.split_at_mut(i * all);
        if i > 0 {
            fold(&done[(i - 1) * all..], least);
        } else {
            least.fill(if start.is_some() { FAR } else { 0.0 });
            if let Some(start) = start {
                least[start as usize & (suffixes - 1)] = 0.0;
            }
        }
        let (to, x) = (&mut rest[..all], [x[2 * at], x[2 * at + 1]]);
        match (step.bits, step.weight == 1.0) {
            // A product by 1 changes nothing.
            (2, _) => extend::<4, true>(states, step, x, least, to),
            (3, _) => extend::<8, true>(states, step, x, least, to),
            (_, true) => extend::<16, false>(states, step, x, least, to),
            (_, false) => extend::<16, true>(states, step, x, least, to),
        }
    }
}

/// The least metric of the states with each suffix.
#[inline(always)]
fn fold(metrics: &[f32], least: &mut [f32]) {
    let suffixes = least.len();
    if suffixes >= BLOCK {
        for (block, out) in least.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            let mut best = [f32::INFINITY; BLOCK];
            for row in metrics.chunks_exact(suffixes) {
                let Some(row) = row[block * BLOCK..].first_chunk::<BLOCK>() else { continue };
                for (best, &m) in best.iter_mut().zip(row) {
                    *best = if m < *best { m } else { *best };
                }
            }
            *out = best;
        }
        return;
    }
    let mut best = [f32::INFINITY; BLOCK];
    for row in metrics.as_chunks::<BLOCK>().0 {
        for (best, &m) in best.iter_mut().zip(row) {
            *best = if m < *best { m } else { *best };
        }
    }
    for (suffix, out) in least.iter_mut().enumerate() {
        *out = best[suffix..].iter().step_by(suffixes).fold(f32::INFINITY, |a, &m| if m < a { m } else { a });
    }
}

/// Metrics after a step; `C` divides the number of states that follow one suffix.
#[inline(always)]
fn extend<const C: usize, const WEIGHTED: bool>(
    states: &States,
    step: Step,
    x: [f32; 2],
    least: &[f32],
    to: &mut [f32],
) {
    let chunks = |values| <[f32]>::as_chunks::<C>(values).0;
    let (c0, c1, energy) = (chunks(&states.points[0]), chunks(&states.points[1]), chunks(&states.energy));
    let points = energy.iter().zip(c0.iter().zip(c1));
    let per_suffix = (1usize << step.bits) / C;
    for ((to, (energy, (c0, c1))), i) in to.as_chunks_mut::<C>().0.iter_mut().zip(points).zip(0..) {
        let least = least[i / per_suffix];
        // An array of its own, or the compiler leaves the lanes in single file.
        let mut sums = [0.0f32; C];
        for (sum, (e, (c0, c1))) in sums.iter_mut().zip(energy.iter().zip(c0.iter().zip(c1))) {
            let cost = (e - x[0] * c0) - x[1] * c1;
            *sum = least + if WEIGHTED { step.weight * cost } else { cost };
        }
        *to = sums;
    }
}

/// Hands out the states after the steps `range` of a walk that ended in `last` at the end of the range, last first.
#[inline(always)]
fn trace(
    states: &States,
    steps: &[Step],
    order: impl Fn(usize) -> usize,
    range: std::ops::Range<usize>,
    last: u32,
    metrics: &[f32],
    mut sink: impl FnMut(usize, u32),
) {
    let all = 1usize << states.bits;
    let mut state = last as usize;
    for i in range.clone().rev() {
        sink(i, state as u32);
        if i > range.start {
            let bits = steps[order(i)].bits;
            let before = &metrics[(i - 1) * all..i * all];
            let mut best = state >> bits;
            for from in (best..all).step_by(all >> bits) {
                best = if before[from] < before[best] { from } else { best };
            }
            state = best;
        }
    }
}
