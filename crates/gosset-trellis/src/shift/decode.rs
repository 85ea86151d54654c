//! From words to a matrix.

use core::ops::Range;

use super::arch::{self, Backend};
use super::layout::{ShiftLayout, TILE_SIDE};
use super::spec::{ShiftOrder, ShiftTrellis};
use crate::TrellisError;

/// Decoder of one trellis; any number of threads may use it.
#[derive(Clone, Debug)]
pub struct ShiftDecoder {
    trellis: ShiftTrellis,
    backend: Backend,
    tables: arch::DecodeTables,
}

impl ShiftDecoder {
    /// A decoder with the fastest backend of this machine.
    #[must_use]
    pub fn new(trellis: &ShiftTrellis) -> Self {
        Self::with_backend(trellis, Backend::detect())
    }

    /// A decoder with a given backend; the values are the same with all.
    #[must_use]
    pub fn with_backend(trellis: &ShiftTrellis, backend: Backend) -> Self {
        Self { trellis: trellis.clone(), backend, tables: arch::DecodeTables::new(trellis) }
    }

    /// Writes whole blocks of rows, in units of the code: times [`ShiftTrellis::step`] they are the rows that were encoded.
    ///
    /// `words` are those of the blocks `blocks`, each of [`ShiftLayout::rows_per_block`] rows, and `out` is row-major: as
    /// many rows as the blocks have within the matrix. Any words decode to finite numbers.
    ///
    /// # Errors
    /// [`TrellisError::Length`] if `words` or `out` do not fit the blocks; [`TrellisError::Parameter`] for blocks or a
    /// trellis that are not the layout's.
    pub fn decode(
        &self,
        layout: &ShiftLayout,
        words: &[u32],
        blocks: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), TrellisError> {
        let strings = layout.strings_of(blocks.clone());
        layout.check(self.trellis.spec(), &strings)?;
        let expected = strings.len() * layout.words_per_string();
        if words.len() != expected {
            return Err(TrellisError::Length { slice: "words", expected, found: words.len() });
        }
        let first_row = blocks.start * layout.rows_per_block();
        let end_row = layout.rows().min(blocks.end * layout.rows_per_block());
        let expected = end_row.saturating_sub(first_row) * layout.cols();
        if out.len() != expected {
            return Err(TrellisError::Length { slice: "output", expected, found: out.len() });
        }
        let words = words.chunks_exact(layout.words_per_string());
        match self.trellis.spec().order {
            ShiftOrder::Rows => {
                for (words, out) in words.zip(out.chunks_exact_mut(layout.cols())) {
                    arch::decode(self.backend, &self.tables, words, out);
                }
            }
            ShiftOrder::Tiles => {
                let mut tile = [0.0; TILE_SIDE * TILE_SIDE];
                for (string, words) in strings.zip(words) {
                    arch::decode(self.backend, &self.tables, words, &mut tile);
                    let (rows, cols) = layout.region(string);
                    for (position, value) in tile.iter().enumerate() {
                        let (row, col) = layout.place(position);
                        if row < rows.len() && col < cols.len() {
                            out[(rows.start - first_row + row) * layout.cols() + cols.start + col] = *value;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the states after each step of one string: the integers that a decoder on another device must find.
    ///
    /// # Errors
    /// [`TrellisError::Length`] if `words` or `states` are not those of a string of the layout;
    /// [`TrellisError::Parameter`] for another trellis than the layout's.
    pub fn states(&self, layout: &ShiftLayout, words: &[u32], states: &mut [u32]) -> Result<(), TrellisError> {
        layout.check(self.trellis.spec(), &(0..0))?;
        let expected = layout.words_per_string();
        if words.len() != expected {
            return Err(TrellisError::Length { slice: "words", expected, found: words.len() });
        }
        let expected = layout.n_steps();
        if states.len() != expected {
            return Err(TrellisError::Length { slice: "states", expected, found: states.len() });
        }
        for (step, state) in states.iter_mut().enumerate() {
            *state = self.tables.state(words, step);
        }
        Ok(())
    }
}
