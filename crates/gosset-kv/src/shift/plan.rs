//! What vectors of one head go through before the search and after the table.

use std::sync::Arc;

use gosset_transform::{Backend, Kernel};

use super::{GAINS, INVERSES, PageFormat, Reader, Scratch, Step, Trellis, ring, scale, write_states};
use crate::matrix::{ROWS, apply};
use crate::rotary::Rotary;
use crate::rotation::Rotator;

/// Largest magnitude of a coordinate after its mean: 2^40.
const MOST: f32 = 1_099_511_627_776.0;
/// Largest magnitude of a target, which table and gain reach nowhere.
const MOST_TARGET: f32 = 64.0;

/// How the vectors of a head lie in the stored frame.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ShiftFrame {
    /// A rotation, shared by the heads of a layer.
    Rotation(ShiftRotation),
    /// Pairs of coordinates that the rotary embedding turns, less the mean key as their position turns it: pair t of y is pair t of x.
    Pairs(ShiftRotary),
    /// Matrices of a head: y = (x − mean)·to_frame, and back x = mean + y·from_frame.
    Matrix {
        /// `[head_dim, head_dim]`: row j is what coordinate j of a vector adds to each coordinate of the frame, deviations of 1.
        to_frame: Vec<f32>,
        /// `[head_dim, head_dim]`: row i is what point i adds to each coordinate of a vector.
        from_frame: Vec<f32>,
    },
}

/// The angles of all positions.
#[derive(Debug, Clone)]
pub struct ShiftRotary(pub(crate) Arc<Rotary>);

impl ShiftRotary {
    /// Cosine and sine by which a position turns each pair, `[head_dim / 2]`.
    pub fn units(&self, position: u64) -> Vec<[f32; 2]> {
        self.0.units(position).collect()
    }

    /// The two coordinates of pair `t`.
    pub fn coordinates(&self, t: usize) -> [usize; 2] {
        self.0.coordinates(t)
    }
}

/// Signs and a transform, as the option `rot` has it.
#[derive(Debug, Clone)]
pub struct ShiftRotation(pub(crate) Arc<Rotator>);

impl ShiftRotation {
    /// Signs before a Walsh-Hadamard transform of the whole vector, if the rotation is of that form.
    pub fn signs(&self, head_dim: usize) -> Option<Vec<f32>> {
        match &*self.0 {
            Rotator::Rht(rht) if head_dim.is_power_of_two() && rht.plan().width() == head_dim => {
                Some((0..head_dim).map(|j| if rht.signs().is_negative(j) { -1.0 } else { 1.0 }).collect())
            }
            _ => None,
        }
    }
}

/// What a writer or reader of the strings of one head needs beside the table: the same numbers on every machine.
#[derive(Debug, Clone)]
pub struct ShiftPlan {
    /// Bits of the step of each pair, 0 or 2 to 10.
    pub bits: Vec<u8>,
    /// What errors of each pair's step count.
    pub weights: Vec<f32>,
    /// By coordinate: to deviations of about 1, by which the scale of a vector is found; 0 for pairs without bits.
    pub scales: Vec<f32>,
    /// By coordinate: from scaled coordinates of the frame to targets.
    pub to_target: Vec<f32>,
    /// By coordinate: from points to coordinates of the frame; 1 with matrices, which have it in them.
    pub factors: Vec<f32>,
    /// What is taken off first, if anything.
    pub mean: Option<Vec<f32>>,
    /// The frame.
    pub frame: ShiftFrame,
    /// One over the number of coordinates that have bits.
    pub share: f32,
    pub(crate) steps: Vec<Step>,
    pub(crate) reader: Reader,
}

impl ShiftPlan {
    /// `weights` of pairs, any multiple of them.
    pub(crate) fn new(bits: Vec<u8>, weights: &[f64], mean: Option<Vec<f32>>, frame: ShiftFrame) -> Self {
        let coded = bits.iter().filter(|bits| **bits > 0).count().max(1);
        let most = weights.iter().fold(0.0f64, |most, &w| most.max(w));
        let weights: Vec<f32> = weights.iter().map(|w| (w / most) as f32).collect();
        let steps = bits.iter().zip(&weights).filter(|(bits, _)| **bits > 0);
        let steps = steps.map(|(&bits, &weight)| Step { bits: bits.into(), weight }).collect();
        let gains = || bits.iter().flat_map(|&bits| [GAINS[usize::from(bits)]; 2]);
        let scales = bits.iter().flat_map(|&bits| [if bits > 0 { 1.0 } else { 0.0 }; 2]).collect();
        let to_target = gains().map(|gain| 1.0 / gain).collect();
        let factors = match frame {
            ShiftFrame::Rotation(_) | ShiftFrame::Pairs(_) => gains().collect(),
            ShiftFrame::Matrix { .. } => vec![1.0; 2 * bits.len()],
        };
        let reader = Reader::new(&bits);
        let share = 1.0 / (2 * coded) as f32;
        Self { bits, weights, scales, to_target, factors, mean, frame, share, steps, reader }
    }

    /// With standard deviations of pairs in the factors.
    pub(crate) fn scaled_by(mut self, sigmas: &[f64]) -> Self {
        for (t, &sigma) in sigmas.iter().enumerate() {
            let factor = sigma * f64::from(GAINS[usize::from(self.bits[t])]);
            for i in [2 * t, 2 * t + 1] {
                self.scales[i] *= (1.0 / sigma) as f32;
                self.factors[i] = factor as f32;
            }
        }
        self
    }

    /// Codes the vector at `position` into a row.
    #[expect(clippy::too_many_arguments, reason = "a vector is where it is, what it is and what codes it")]
    pub(crate) fn write(
        &self,
        backend: Backend,
        trellis: &Trellis,
        format: PageFormat,
        position: u64,
        x: &[f32],
        row: &mut [u8],
        buffers: &mut Buffers,
    ) {
        let Buffers { y, other, targets, states, search } = buffers;
        y.clear();
        match (&self.mean, &self.frame) {
            (Some(mean), ShiftFrame::Pairs(rotary)) => {
                y.extend_from_slice(x);
                rotary.0.take_off(position, mean, y);
                y.iter_mut().for_each(|y| *y = y.clamp(-MOST, MOST));
            }
            (Some(mean), _) => y.extend(x.iter().zip(mean).map(|(x, m)| (x - m).clamp(-MOST, MOST))),
            (None, _) => y.extend(x.iter().map(|x| x.clamp(-MOST, MOST))),
        }
        other.clear();
        other.resize(x.len(), 0.0);
        match &self.frame {
            ShiftFrame::Rotation(rotation) => rotation.0.forward(y, other),
            ShiftFrame::Pairs(rotary) => {
                for (t, pair) in other.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    *pair = rotary.coordinates(t).map(|i| y[i]);
                }
                std::mem::swap(y, other);
            }
            ShiftFrame::Matrix { to_frame, .. } => {
                apply(to_frame, x.len(), y, other);
                std::mem::swap(y, other);
            }
        }
        y.iter_mut().zip(&self.scales).for_each(|(y, scale)| *y *= scale);
        let byte = if format.field > 0 { scale::byte(y, self.share, other) } else { scale::ONE };
        let inverse = INVERSES[usize::from(byte)];
        row[..format.field].fill(byte);
        targets.clear();
        for ((y, f), _) in (y.as_chunks::<2>().0.iter().zip(self.to_target.as_chunks::<2>().0))
            .zip(&self.bits)
            .filter(|(_, bits)| **bits > 0)
        {
            targets.extend([0, 1].map(|i| (y[i] * inverse * f[i]).clamp(-MOST_TARGET, MOST_TARGET)));
        }
        states.resize(self.steps.len(), 0);
        ring(backend, trellis.states(), &self.steps, targets, states, search);
        write_states(&self.steps, states, &mut row[format.field..]);
    }

    /// Brings scaled points of positions from `first` on, `[n, head_dim]`, to original coordinates.
    pub(crate) fn leave(&self, first: u64, out: &mut [f32]) {
        let d = self.to_target.len();
        let mut scratch = vec![0.0; ROWS * d];
        match &self.frame {
            ShiftFrame::Rotation(rotation) => {
                for x in out.chunks_exact_mut(d) {
                    x.iter_mut().zip(&self.factors).for_each(|(x, f)| *x *= f);
                    rotation.0.inverse(x, &mut scratch[..d]);
                }
            }
            ShiftFrame::Pairs(rotary) => {
                for x in out.chunks_exact_mut(d) {
                    scratch[..d].copy_from_slice(x);
                    let points = scratch.as_chunks::<2>().0.iter().zip(self.factors.as_chunks::<2>().0);
                    for (t, (points, factors)) in points.take(d / 2).enumerate() {
                        let [i, j] = rotary.coordinates(t);
                        (x[i], x[j]) = (points[0] * factors[0], points[1] * factors[1]);
                    }
                }
                if let Some(mean) = &self.mean {
                    rotary.0.put_on(first, mean, out);
                }
                return;
            }
            ShiftFrame::Matrix { from_frame, .. } => {
                for x in out.chunks_mut(ROWS * d) {
                    let scratch = &mut scratch[..x.len()];
                    scratch.copy_from_slice(x);
                    apply(from_frame, d, scratch, x);
                }
            }
        }
        if let Some(mean) = &self.mean {
            for x in out.chunks_exact_mut(d) {
                x.iter_mut().zip(mean).for_each(|(x, m)| *x += m);
            }
        }
    }

    /// Writes scaled points of strings, `[n, head_dim]`.
    pub(crate) fn read(&self, trellis: &Trellis, strings: impl Strings, out: &mut [f32]) {
        Backend::detect().vectorize(Read { plan: self, trellis, strings, out });
    }
}

/// Where strings are read from.
pub(crate) trait Strings {
    /// The scale of a row, and its words as [`Reader::words`] gives them.
    fn row(&self, reader: &Reader, row: usize, words: &mut Vec<u32>) -> f32;
}

struct Read<'a, S> {
    plan: &'a ShiftPlan,
    trellis: &'a Trellis,
    strings: S,
    out: &'a mut [f32],
}

impl<S: Strings> Kernel for Read<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { plan, trellis, strings, out } = self;
        let mut words = Vec::new();
        for (r, out) in out.chunks_exact_mut(plan.to_target.len()).enumerate() {
            let scale = strings.row(&plan.reader, r, &mut words);
            if plan.steps.len() < plan.bits.len() {
                out.fill(0.0);
            }
            plan.reader.read(trellis, &words, scale, out);
        }
    }
}

/// Buffers of one thread.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    y: Vec<f32>,
    other: Vec<f32>,
    targets: Vec<f32>,
    states: Vec<u32>,
    search: Scratch,
}
