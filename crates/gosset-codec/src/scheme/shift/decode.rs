//! From words to states and values.

use std::borrow::Cow;
use std::ops::Range;

use gosset_trellis::TrellisError;
use gosset_trellis::shift::{self, ShiftLayout};

use super::{WORDS, refused, trellis};
use crate::decode::DecodeScratch;
use crate::plane::{PlaneSet, check_len, required};
use crate::scheme::StreamError;
use crate::{CodecError, ShiftHeader};

/// Buffers of one decoding thread, grown to a block of rows when they are first used.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShiftBuffers {
    pub(crate) values: Vec<f32>,
    states: Vec<u32>,
    points: Vec<i32>,
}

/// Checked planes of the bit-shift trellis scheme.
#[derive(Debug)]
pub(crate) struct ShiftDecoder<'a> {
    decoder: shift::ShiftDecoder,
    layout: ShiftLayout,
    step: f32,
    words: Cow<'a, [u32]>,
}

impl<'a> ShiftDecoder<'a> {
    /// Checks the header and the planes of a matrix of `rows` x `cols` values.
    pub(crate) fn new(
        header: &ShiftHeader,
        rows: usize,
        cols: usize,
        planes: &PlaneSet<'_, 'a>,
    ) -> Result<Self, CodecError> {
        let trellis = trellis(header.bits, header.state_bits, header.code, header.order).map_err(refused)?;
        if !(header.step.is_normal() && header.step > 0.0) {
            let expected = "a positive normal number".to_owned();
            return Err(CodecError::Header { field: "step", found: header.step.to_string(), expected });
        }
        let layout = trellis.layout(rows, cols).map_err(refused)?;
        let words = required(WORDS, planes.u32s(WORDS)?)?;
        check_len(WORDS, words.len(), layout.n_words() as u64)?;
        Ok(Self { decoder: shift::ShiftDecoder::new(&trellis), layout, step: header.step, words })
    }

    /// Rows that are decoded together.
    pub(crate) fn row_block(&self) -> usize {
        self.layout.rows_per_block()
    }

    /// Factor from values in units of the code to values of unit RMS per row.
    pub(crate) fn step(&self) -> f32 {
        self.step
    }

    /// Hands the values of `range`, in units of the code, to `sink`.
    pub(crate) fn decode_units(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        mut sink: impl FnMut(usize, &[f32]),
    ) -> Result<(), StreamError> {
        let values = &mut scratch.shift.values;
        self.decode_blocks(range, |block, first, rows, within| {
            values.resize(rows * self.layout.cols(), 0.0);
            self.decoder.decode(&self.layout, self.words_of(block), block..block + 1, values)?;
            sink(first + within.start, &values[within]);
            Ok(())
        })
    }

    /// Hands the states of `range` to `sink`: for each weight, that after the step which holds the weight.
    pub(crate) fn decode_points(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        mut sink: impl FnMut(usize, &[i32]),
    ) -> Result<(), StreamError> {
        let ShiftBuffers { states, points, .. } = &mut scratch.shift;
        let (layout, cols) = (&self.layout, self.layout.cols());
        let v = layout.spec().weights_per_step();
        states.resize(layout.n_steps(), 0);
        self.decode_blocks(range, |block, first, rows, within| {
            points.resize(rows * cols, 0);
            let words = self.words_of(block).chunks_exact(layout.words_per_string());
            for (string, words) in layout.strings_of(block..block + 1).zip(words) {
                self.decoder.states(layout, words, states)?;
                let (in_rows, in_cols) = layout.region(string);
                for (position, &state) in states.iter().flat_map(|state| std::iter::repeat_n(state, v)).enumerate() {
                    let (row, col) = layout.place(position);
                    if row < in_rows.len() && col < in_cols.len() {
                        points[row * cols + in_cols.start + col] = state as i32;
                    }
                }
            }
            sink(first + within.start, &points[within]);
            Ok(())
        })
    }

    /// Words of the strings of a block of rows.
    fn words_of(&self, block: usize) -> &[u32] {
        let n = self.layout.words_per_string() * self.layout.strings_per_block();
        &self.words[block * n..][..n]
    }

    /// Calls `f` with each block of rows that `range` touches, the position of its first value, its rows, and the part of
    /// its values that lies in `range`.
    fn decode_blocks(
        &self,
        range: Range<usize>,
        mut f: impl FnMut(usize, usize, usize, Range<usize>) -> Result<(), TrellisError>,
    ) -> Result<(), StreamError> {
        let (rows, cols) = (self.layout.rows(), self.layout.cols());
        let per_block = self.layout.rows_per_block();
        for block in range.start / (per_block * cols)..range.end.div_ceil(per_block * cols) {
            let first = block * per_block * cols;
            let n_rows = per_block.min(rows - block * per_block);
            let within = range.start.saturating_sub(first)..(range.end - first).min(n_rows * cols);
            let error = |error: TrellisError| {
                let stream = block * self.layout.strings_per_block();
                StreamError { first, stream, bit: 0, what: error.to_string() }
            };
            f(block, first, n_rows, within).map_err(error)?;
        }
        Ok(())
    }
}
