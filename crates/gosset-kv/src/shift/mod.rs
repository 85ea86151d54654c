//! The fixed-width bit-shift trellis: strings of bits of one length for all vectors, read from any place.
//!
//! **Code.** A vector of d coordinates is d/2 pairs. The string of a vector is a ring of B bits; step t appends k bits to it, k being one of 0
//! and 2 to 10 and fixed for each pair of a head (its *pattern*), and the last L bits are the state s. The pair is
//! `table[(s · A · 2^(17−L) >> 7) & 1023]`, in 32 bits, which leaves nothing of the bits before the L last; a step of 0 bits gives (0, 0). The
//! state before the first step is the last L bits of the string. L is 10 with A = 1, or 12 with A = 905; one table serves all k, with a gain
//! for each k that is part of the factors of coordinates. On Gaussian values it is 0.10, 0.11, 0.13, 0.15, 0.19, 0.26, 0.37 bits per value from the
//! bound of rate and distortion at k = 2 to 8 and L = 10; L = 12 saves 0.03 bits at 4 and 5, for a search of four times the work.
//!
//! **Row**: a byte with the scale of the vector, in codecs that have one; then B/8 bytes, first bit highest. **Page** of n rows: n scales; then
//! for each of ⌊B/32⌋ words, n words, little-endian, the w-th word of row after row, in which the first bit of the string is the highest; then
//! the bytes that are left of each row, row after row. A page has no other bytes: all of it is where a multiplication says.
//!
//! **Order of operations.** Every operation is one of f32, rounded by itself: no fused multiplication and addition anywhere, sums in the order
//! that is written. Then any machine, vector unit or GPU writes the same bytes.
//!
//! 1. Frame. x − m where there is a mean, then within ±2^40. With norms: signs; butterflies (a + b, a − b) of strides 1, 2, 4, …; times the
//!    f32 nearest to 1/√d (widths without a single power of two: see `gosset_transform::Hadamard` and `TilePlan`). In the frame `probe`:
//!    y\[i\] = ((0 + x\[0\]·T\[0\]\[i\]) + x\[1\]·T\[1\]\[i\]) + …. In the frame `pairs`: with c and s of the position (see `crate::rotary`) each
//!    rotary pair (a, b), whose mean is (m0, m1), becomes (a − (m0·c − m1·s), b − (m0·s + m1·c)), within ±2^40, and coordinates 2t and 2t + 1 of y.
//! 2. Scale. y\[i\] times the coordinate's scale: 1, in the frame `pairs` one over its deviation, 0 for pairs without bits. Squares y\[i\]·y\[i\]; with h half the power of two from d on, then half of that, down to 1: square i gets square i + h added, if
//!    there is one; t is the first, times the f32 1/n of the n coordinates with bits, or the largest square times ⅛ if that is more. Field 0 for t = 0, else
//!    4·e + c + 129 within 1 to 255, where t = 2^e·m and c is how many of 2^(1/8), 2^(3/8), 2^(5/8), 2^(7/8) (as f32) m reaches; it stands for
//!    the scale g = 2^((field − 129)/8). Without a scale g = 1.
//! 3. Targets. (y\[i\]·(1/g))·f\[i\] within ±64; 1/g is rounded to f32, f\[i\] is the coordinate's factor.
//! 4. Metrics, over the steps that have bits. With the points c of a state, e = (c0·c0 + c1·c1)·½ and the step's weight w,
//!    M'\[s\] = least\[s >> k\] + w·((e − x0·c0) − x1·c1), where least\[u\] is the least of M\[h·2^(L−k) + u\] over h. Of equal ones the state with
//!    the lowest number counts, on the way back.
//! 5. Ring. First a walk over the 24 steps before the seam and the 24 after it (over the ring again if it has fewer), from least = 0; the way
//!    back from its best state passes the seam at a state S. Then a walk over all steps from least = 0 at S, 10^30 elsewhere, and the way back
//!    from S.

mod pattern;
mod plan;
mod scale;
mod search;
mod strings;
mod table;

use std::sync::OnceLock;

use crate::KvError;

pub(crate) use pattern::{even, least_bits, waterfill};
pub(crate) use plan::{Buffers, Strings};
pub use plan::{ShiftFrame, ShiftPlan, ShiftRotary, ShiftRotation};
pub(crate) use scale::{INVERSES, SCALES};
pub(crate) use search::{Scratch, Step, ring};
pub(crate) use strings::{PageFormat, PageView, Reader, write_states};

use search::States;
use table::TABLE;

/// Most bits of a step.
pub(crate) const MAX_STEP_BITS: u32 = 10;
/// Bits of an index into the table.
const INDEX_BITS: u32 = 10;
/// Factor of the table for steps of so many bits: the points that suit few bits lie nearer to each other. From `shift_table`, as the table.
pub(crate) const GAINS: [f32; MAX_STEP_BITS as usize + 1] = table::GAINS;
/// Squared error of unit Gaussian values by bits of a step, measured with the table.
pub(crate) const DISTORTIONS: [f64; MAX_STEP_BITS as usize + 1] = table::DISTORTIONS;

/// The trellis of one length of states.
#[derive(Debug)]
pub(crate) struct Trellis {
    bits: u32,
    /// A · 2^(17−L).
    multiplier: u32,
    pairs: Vec<[f32; 2]>,
    states: States,
}

impl Trellis {
    /// The trellis with states of 10 or 12 bits.
    pub(crate) fn get(bits: u32) -> Result<&'static Self, KvError> {
        static TRELLISES: [OnceLock<Trellis>; 2] = [const { OnceLock::new() }; 2];
        let (place, odd) = match bits {
            10 => (0, 1),
            12 => (1, 905),
            _ => {
                let reason = "expected states of 10 or 12 bits: shift-10 or shift-12".to_owned();
                return Err(KvError::Spec { spec: format!("shift-{bits}"), reason });
            }
        };
        Ok(TRELLISES[place].get_or_init(|| Self::new(bits, odd << (7 + INDEX_BITS - bits))))
    }

    fn new(bits: u32, multiplier: u32) -> Self {
        let pairs: Vec<[f32; 2]> = TABLE.iter().map(|&word| halves(word)).collect();
        let states = States::new(bits, |state| pairs[index(multiplier, state)]);
        Self { bits, multiplier, pairs, states }
    }

    pub(crate) fn state_bits(&self) -> u32 {
        self.bits
    }

    pub(crate) fn multiplier(&self) -> u32 {
        self.multiplier
    }

    pub(crate) fn states(&self) -> &States {
        &self.states
    }

    /// The pair of the state in the lowest bits of `window`.
    #[inline(always)]
    pub(crate) fn pair(&self, window: u32) -> [f32; 2] {
        self.pairs[index(self.multiplier, window)]
    }

    /// The table as it is: words of two binary16 numbers, first coordinate lower.
    pub(crate) fn table() -> &'static [u32; 1 << INDEX_BITS] {
        &TABLE
    }
}

#[inline(always)]
fn index(multiplier: u32, window: u32) -> usize {
    (window.wrapping_mul(multiplier) >> 7) as usize & ((1 << INDEX_BITS) - 1)
}

fn halves(word: u32) -> [f32; 2] {
    [word, word >> 16].map(|half| half::f16::from_bits(half as u16).to_f32())
}
