//! Where the weights of a matrix lie in strings, and strings in words.

use core::ops::Range;

use super::arch::MAX_WORDS;
use super::spec::{ShiftOrder, ShiftSpec};
use crate::TrellisError;

/// Side of a tile.
pub const TILE_SIDE: usize = 16;

/// The strings of one matrix.
///
/// A string is a ring of steps, each of k V bits for V consecutive weights. The bits are laid into 32-bit words from the
/// most significant bit on, and the strings follow each other. A string has as many steps as its weights need, rounded
/// up to whole words: the positions beyond the last column of a row, and those of a tile beyond the edges of the
/// matrix, hold weights that no one reads. So a row of `c` columns takes `c k` bits rounded up to a multiple of 32 at
/// k = 2 and 4, of 96 at k = 3 and 6 and of 160 at k = 5; a tile takes 256 k bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShiftLayout {
    spec: ShiftSpec,
    rows: usize,
    cols: usize,
    n_strings: usize,
    n_steps: usize,
}

/// Which weights of a step are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepKind {
    /// All.
    Full,
    /// The first of two.
    First,
    /// None.
    Free,
}

impl ShiftLayout {
    pub(crate) fn new(spec: ShiftSpec, rows: usize, cols: usize) -> Result<Self, TrellisError> {
        if rows == 0 || cols == 0 {
            return Err(TrellisError::Parameter { name: "rows and columns", expected: "at least 1", found: 0 });
        }
        let v = spec.weights_per_step();
        // The fewest steps that fill whole words.
        let group = 32 >> spec.step_bits().trailing_zeros();
        let (n_strings, n_steps) = match spec.order {
            ShiftOrder::Rows => (Some(rows), cols.div_ceil(v).checked_next_multiple_of(group)),
            ShiftOrder::Tiles => {
                let n_tiles = rows.div_ceil(TILE_SIDE).checked_mul(cols.div_ceil(TILE_SIDE));
                (n_tiles, Some(TILE_SIDE * TILE_SIDE / v))
            }
        };
        let too_many = TrellisError::Parameter { name: "columns", expected: "a matrix that fits", found: cols as u64 };
        let (Some(n_strings), Some(n_steps)) = (n_strings, n_steps) else { return Err(too_many) };
        let n_bits = n_steps.checked_mul(spec.step_bits() as usize).and_then(|bits| bits.checked_mul(n_strings));
        match n_bits.and(rows.checked_mul(cols)) {
            Some(_) if n_steps * spec.step_bits() as usize / 32 <= MAX_WORDS => {
                Ok(Self { spec, rows, cols, n_strings, n_steps })
            }
            _ => Err(too_many),
        }
    }

    /// The trellis.
    #[must_use]
    pub fn spec(&self) -> ShiftSpec {
        self.spec
    }

    /// Rows of the matrix.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of strings.
    #[must_use]
    pub fn n_strings(&self) -> usize {
        self.n_strings
    }

    /// Steps of a string.
    #[must_use]
    pub fn n_steps(&self) -> usize {
        self.n_steps
    }

    /// Positions of a string, those that no one reads included.
    #[must_use]
    pub fn n_positions(&self) -> usize {
        self.n_steps * self.spec.weights_per_step()
    }

    /// Words of a string.
    #[must_use]
    pub fn words_per_string(&self) -> usize {
        self.n_steps * self.spec.step_bits() as usize / 32
    }

    /// Words of all strings.
    #[must_use]
    pub fn n_words(&self) -> usize {
        self.words_per_string() * self.n_strings
    }

    /// Rows that share strings: 1, or 16 for tiles.
    #[must_use]
    pub fn rows_per_block(&self) -> usize {
        match self.spec.order {
            ShiftOrder::Rows => 1,
            ShiftOrder::Tiles => TILE_SIDE,
        }
    }

    /// Strings of a block of rows.
    #[must_use]
    pub fn strings_per_block(&self) -> usize {
        match self.spec.order {
            ShiftOrder::Rows => 1,
            ShiftOrder::Tiles => self.cols.div_ceil(TILE_SIDE),
        }
    }

    /// Number of blocks of rows.
    #[must_use]
    pub fn n_blocks(&self) -> usize {
        self.n_strings / self.strings_per_block()
    }

    /// Strings of blocks of rows.
    #[must_use]
    pub fn strings_of(&self, blocks: Range<usize>) -> Range<usize> {
        let per_block = self.strings_per_block();
        blocks.start.saturating_mul(per_block)..blocks.end.saturating_mul(per_block)
    }

    /// Refuses strings that there are not and the layout of another trellis.
    pub(crate) fn check(&self, spec: ShiftSpec, strings: &Range<usize>) -> Result<(), TrellisError> {
        if spec != self.spec {
            let expected = "a layout of the same trellis";
            return Err(TrellisError::Parameter { name: "bits per weight", expected, found: self.spec.bits.into() });
        }
        if strings.start > strings.end || strings.end > self.n_strings {
            let expected = "strings of the layout";
            return Err(TrellisError::Parameter { name: "end of strings", expected, found: strings.end as u64 });
        }
        Ok(())
    }

    /// Rows and columns, within the matrix, that a string covers.
    #[must_use]
    pub fn region(&self, string: usize) -> (Range<usize>, Range<usize>) {
        match self.spec.order {
            ShiftOrder::Rows => (string..string + 1, 0..self.cols),
            ShiftOrder::Tiles => {
                let per_block = self.strings_per_block();
                let (row, col) = (string / per_block * TILE_SIDE, string % per_block * TILE_SIDE);
                (row..self.rows.min(row + TILE_SIDE), col..self.cols.min(col + TILE_SIDE))
            }
        }
    }

    /// Row and column of a position, counted from the first of the string's region.
    #[inline]
    #[must_use]
    pub fn place(&self, position: usize) -> (usize, usize) {
        match self.spec.order {
            ShiftOrder::Rows => (0, position),
            ShiftOrder::Tiles => {
                let (lane, register, half) = (position >> 3, position >> 1 & 3, position & 1);
                ((lane >> 2) + 8 * (register & 1), 2 * (lane & 3) + 8 * (register >> 1) + half)
            }
        }
    }

    /// Which weights of a step are read, in a region of so many rows and columns.
    pub(crate) fn step_kind(&self, step: usize, n_rows: usize, n_cols: usize) -> StepKind {
        let v = self.spec.weights_per_step();
        let read = |position| {
            let (row, col) = self.place(position);
            row < n_rows && col < n_cols
        };
        // The second weight of a step is one column on, so it is not read where the first is not.
        match (read(step * v), v == 1 || read(step * v + 1)) {
            (true, true) => StepKind::Full,
            (true, false) => StepKind::First,
            (false, _) => StepKind::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::ShiftCode;
    use super::*;
    use alloc::vec;

    fn spec(bits: u8, order: ShiftOrder) -> ShiftSpec {
        ShiftSpec { bits, state_bits: 12, code: ShiftCode::Quantiles, order }
    }

    #[test]
    fn a_row_is_rounded_up_to_whole_words() {
        for (bits, cols, words) in
            [(2, 1, 1), (2, 16, 1), (2, 17, 2), (3, 1, 3), (3, 32, 3), (3, 33, 6), (4, 8, 1), (5, 33, 10), (6, 16, 3)]
        {
            let layout = ShiftLayout::new(spec(bits, ShiftOrder::Rows), 7, cols).unwrap();
            assert_eq!(
                (layout.words_per_string(), layout.n_words()),
                (words, 7 * words),
                "{bits} bits, {cols} columns"
            );
            assert!(layout.words_per_string() * 32 >= cols * usize::from(bits));
        }
    }

    #[test]
    fn every_weight_has_one_position() {
        for order in [ShiftOrder::Rows, ShiftOrder::Tiles] {
            for (rows, cols) in [(1, 1), (7, 65), (16, 16), (33, 30)] {
                let layout = ShiftLayout::new(spec(3, order), rows, cols).unwrap();
                let mut seen = vec![0; rows * cols];
                for string in 0..layout.n_strings() {
                    let (in_rows, in_cols) = layout.region(string);
                    for position in 0..layout.n_positions() {
                        let (row, col) = layout.place(position);
                        let kind = layout.step_kind(position / 2, in_rows.len(), in_cols.len());
                        let read = kind == StepKind::Full || (kind == StepKind::First && position % 2 == 0);
                        assert_eq!(read, row < in_rows.len() && col < in_cols.len());
                        if read {
                            seen[(in_rows.start + row) * cols + in_cols.start + col] += 1;
                        }
                    }
                }
                assert!(seen.iter().all(|&n| n == 1), "{order:?}, {rows} x {cols}");
            }
        }
    }

    #[test]
    fn eight_consecutive_positions_of_a_tile_are_the_registers_of_a_lane() {
        // Lane 5 of mma.m16n8k16: group 1, thread 1 in the group.
        let layout = ShiftLayout::new(spec(2, ShiftOrder::Tiles), 16, 16).unwrap();
        let places: alloc::vec::Vec<_> = (40..48).map(|position| layout.place(position)).collect();
        assert_eq!(places, [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]);
    }

    #[test]
    fn matrices_that_cannot_be_counted_are_refused() {
        for order in [ShiftOrder::Rows, ShiftOrder::Tiles] {
            for (rows, cols) in [(0, 1), (1, 0), (usize::MAX, 2), (1 << 40, 1 << 30), (2, usize::MAX)] {
                assert!(ShiftLayout::new(spec(3, order), rows, cols).is_err(), "{rows} x {cols}");
            }
        }
    }
}
