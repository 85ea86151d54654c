//! From a matrix to words.

use alloc::vec::Vec;
use core::ops::Range;

use super::arch::Backend;
use super::layout::{ShiftLayout, StepKind};
use super::spec::ShiftTrellis;
use super::viterbi::{Target, Viterbi, ViterbiScratch};
use crate::TrellisError;

/// Strings that are searched together: they share what is read of the tables.
pub const STRINGS_AT_ONCE: usize = 4;

/// Encoder of one trellis: tables of 16 bytes per state. Any number of threads may use it, each with its own scratch.
#[derive(Debug)]
pub struct ShiftEncoder {
    trellis: ShiftTrellis,
    viterbi: Viterbi,
}

/// Buffers of one encoding thread; their contents before a call do not matter. They take 4 · 2^(L - k V) bytes per step of
/// a string: 128 MiB for rows of 4096 columns at L = 18 and two bits, 2 MiB at L = 14 and three bits.
#[derive(Clone, Debug, Default)]
pub struct ShiftScratch {
    viterbi: ViterbiScratch,
    strings: Vec<StringBuffers>,
}

#[derive(Clone, Debug, Default)]
struct StringBuffers {
    kinds: Vec<StepKind>,
    targets: Vec<Target>,
    states: Vec<u32>,
    is_zero: bool,
}

impl ShiftScratch {
    /// New buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl ShiftEncoder {
    /// An encoder with the fastest backend of this machine.
    #[must_use]
    pub fn new(trellis: &ShiftTrellis) -> Self {
        Self::with_backend(trellis, Backend::detect())
    }

    /// An encoder with a given backend; the words are the same with all.
    #[must_use]
    pub fn with_backend(trellis: &ShiftTrellis, backend: Backend) -> Self {
        Self { trellis: trellis.clone(), viterbi: Viterbi::new(trellis, backend) }
    }

    /// Writes the words of the given strings of a row-major matrix of unit variance.
    ///
    /// The words of a string depend on its own weights only, not on the strings around it. Each string is the best of
    /// those that pass the seam of the ring in the state which the weights around the seam ask for; weights are taken
    /// to be within ±4.5, where the codes end. A string of zeros is a string of zero bits, whatever it decodes to.
    ///
    /// # Errors
    /// [`TrellisError::Length`] if `values` is not a matrix of the layout or `words` not as long as the strings;
    /// [`TrellisError::Parameter`] for strings or a trellis that are not the layout's.
    pub fn encode(
        &self,
        layout: &ShiftLayout,
        values: &[f32],
        strings: Range<usize>,
        words: &mut [u32],
        scratch: &mut ShiftScratch,
    ) -> Result<(), TrellisError> {
        layout.check(self.trellis.spec(), &strings)?;
        let expected = layout.rows() * layout.cols();
        if values.len() != expected {
            return Err(TrellisError::Length { slice: "values", expected, found: values.len() });
        }
        let expected = strings.len() * layout.words_per_string();
        if words.len() != expected {
            return Err(TrellisError::Length { slice: "words", expected, found: words.len() });
        }
        scratch.strings.resize_with(STRINGS_AT_ONCE, StringBuffers::default);
        let words = words.chunks_mut(layout.words_per_string() * STRINGS_AT_ONCE);
        for (first, words) in strings.step_by(STRINGS_AT_ONCE).zip(words) {
            let ShiftScratch { viterbi, strings } = &mut *scratch;
            let n = words.len() / layout.words_per_string();
            for (string, buffers) in (first..first + n).zip(strings.iter_mut()) {
                self.gather(layout, values, string, buffers);
            }
            self.search(&mut strings[..n], viterbi);
            for (words, buffers) in words.chunks_exact_mut(layout.words_per_string()).zip(strings.iter()) {
                pack(words, &buffers.states, self.trellis.spec().step_bits());
            }
        }
        Ok(())
    }

    /// The targets of a string.
    fn gather(&self, layout: &ShiftLayout, values: &[f32], string: usize, buffers: &mut StringBuffers) {
        let v = self.trellis.spec().weights_per_step();
        let (rows, cols) = layout.region(string);
        let at = |position| {
            let (row, col) = layout.place(position);
            values[(rows.start + row) * layout.cols() + cols.start + col]
        };
        buffers.kinds.clear();
        buffers.targets.clear();
        buffers.is_zero = true;
        for step in 0..layout.n_steps() {
            let kind = layout.step_kind(step, rows.len(), cols.len());
            let x = match kind {
                StepKind::Full if v == 2 => [at(2 * step), at(2 * step + 1)],
                StepKind::Full | StepKind::First => [at(v * step), 0.0],
                StepKind::Free => [0.0; 2],
            };
            buffers.is_zero &= x == [0.0; 2];
            buffers.kinds.push(kind);
            buffers.targets.push(self.viterbi.target(kind, x));
        }
        buffers.states.clear();
        buffers.states.resize(layout.n_steps(), 0);
    }

    /// The states of up to [`STRINGS_AT_ONCE`] strings, together where they are read at the same positions.
    fn search(&self, strings: &mut [StringBuffers], scratch: &mut ViterbiScratch) {
        let alike = strings.iter().all(|other| other.kinds == strings[0].kinds && !other.is_zero);
        match strings {
            [a, b, c, d] if alike => self.search_together([a, b, c, d], scratch),
            [a, b, c] if alike => self.search_together([a, b, c], scratch),
            [a, b] if alike => self.search_together([a, b], scratch),
            _ => {
                for string in strings.iter_mut().filter(|string| !string.is_zero) {
                    self.search_together([string], scratch);
                }
            }
        }
    }

    /// The states of strings that are read at the same positions.
    fn search_together<const R: usize>(&self, strings: [&mut StringBuffers; R], scratch: &mut ViterbiScratch) {
        let mut kinds: &[StepKind] = &[];
        let mut targets: [&[Target]; R] = [&[]; R];
        let mut n = 0;
        let states = strings.map(|string| {
            (kinds, targets[n]) = (&string.kinds, &string.targets);
            n += 1;
            &mut string.states[..]
        });
        self.viterbi.rings(kinds, targets, states, scratch);
    }
}

/// Lays the newest bits of each state into words, first step in the most significant bits.
fn pack(words: &mut [u32], states: &[u32], step_bits: u32) {
    let mut words = words.iter_mut();
    let (mut buffer, mut n_bits) = (0u64, 0);
    for &state in states {
        buffer = buffer << step_bits | u64::from(state & ((1 << step_bits) - 1));
        n_bits += step_bits;
        if n_bits >= 32 {
            n_bits -= 32;
            if let Some(word) = words.next() {
                *word = (buffer >> n_bits) as u32;
            }
        }
    }
}
