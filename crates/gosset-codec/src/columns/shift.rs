//! Strings of the bit-shift trellis along the outputs of one column.
//!
//! A column is cut into strings of at most 256 weights, all of one length but that the last may reach beyond the column: rings
//! that long lose 0.3 % of squared error to their seams, and several of them are searched at once.

use std::borrow::Cow;

use gosset_trellis::shift::{STRINGS_AT_ONCE, ShiftDecoder, ShiftEncoder, ShiftLayout, ShiftScratch, ShiftTrellis};

use crate::CodecError;
use crate::parallel::map_chunks_mut_with;
use crate::scheme::shift::{refused, trellis};
use crate::{ShiftCodeKind, ShiftOrderKind};

/// Most weights of a string.
const MAX_STRING: usize = 256;

/// Strings of a column, and weights of each.
fn strings(rows: usize) -> (usize, usize) {
    let n = rows.div_ceil(MAX_STRING);
    (n, rows.div_ceil(n).next_multiple_of(32))
}

/// Searches and codes columns, one after the other.
#[derive(Debug)]
pub(crate) struct ShiftColumns {
    trellis: ShiftTrellis,
    encoder: ShiftEncoder,
    decoder: ShiftDecoder,
    /// Strings of one column.
    layout: ShiftLayout,
    padded: Vec<f32>,
    decoded: Vec<f32>,
    words: Vec<u32>,
}

impl ShiftColumns {
    pub(crate) fn new(bits: u8, state_bits: u8, code: ShiftCodeKind, rows: usize) -> Result<Self, CodecError> {
        let trellis = trellis(bits, state_bits, code, ShiftOrderKind::Rows).map_err(refused)?;
        let (n, len) = strings(rows);
        let layout = trellis.layout(n, len).map_err(refused)?;
        let (encoder, decoder) = (ShiftEncoder::new(&trellis), ShiftDecoder::new(&trellis));
        Ok(Self {
            trellis,
            encoder,
            decoder,
            layout,
            padded: Vec::new(),
            decoded: vec![0.0; n * len],
            words: Vec::new(),
        })
    }

    /// Factor from the values of the code to columns of unit variance.
    pub(crate) fn step(&self) -> f32 {
        self.trellis.step()
    }

    /// Searches the strings of a column whose spread is `spread`, and writes what they stand for, in units of the code, to `units`.
    pub(crate) fn push(&mut self, x: &[f32], spread: f32, units: &mut [f32]) -> Result<(), CodecError> {
        self.padded.clear();
        self.padded.extend(x.iter().map(|v| v / spread));
        self.padded.resize(self.decoded.len(), 0.0);
        let start = self.words.len();
        self.words.resize(start + self.layout.n_words(), 0);
        let (layout, encoder, padded) = (&self.layout, &self.encoder, &self.padded);
        // Up to three strings stay on one thread and share what is read of the tables, which one string alone waits for; more of them
        // are shared out.
        let n = layout.n_strings();
        let at_once = if n < STRINGS_AT_ONCE { n } else { n.div_ceil(2).min(STRINGS_AT_ONCE) };
        let chunk = at_once * layout.words_per_string();
        map_chunks_mut_with(&mut self.words[start..], chunk, ShiftScratch::new, |scratch, i, words| {
            let first = i * at_once;
            let strings = first..first + words.len() / layout.words_per_string();
            encoder.encode(layout, padded, strings, words, scratch)
        })
        .into_iter()
        .collect::<Result<(), _>>()
        .map_err(refused)?;
        let words = &self.words[start..];
        self.decoder.decode(layout, words, 0..layout.n_blocks(), &mut self.decoded).map_err(refused)?;
        units.copy_from_slice(&self.decoded[..units.len()]);
        Ok(())
    }

    /// The words of all strings, those of the last column first; `columns` tells which columns came, one after the other.
    pub(crate) fn finish(self, columns: &[usize]) -> Vec<u32> {
        if columns.is_sorted_by(|a, b| a > b) {
            return self.words;
        }
        let mut lines: Vec<_> = columns.iter().zip(self.words.chunks_exact(self.layout.n_words())).collect();
        lines.sort_unstable_by_key(|(col, _)| std::cmp::Reverse(**col));
        lines.into_iter().flat_map(|(_, words)| words).copied().collect()
    }
}

/// Checked strings of columns.
#[derive(Debug)]
pub(crate) struct ShiftColumnsDecoder<'a> {
    decoder: ShiftDecoder,
    layout: ShiftLayout,
    words: Cow<'a, [u32]>,
    n_lines: usize,
}

impl<'a> ShiftColumnsDecoder<'a> {
    pub(crate) fn new(
        (bits, state_bits, code): (u8, u8, ShiftCodeKind),
        (n_lines, rows): (usize, usize),
        words: Cow<'a, [u32]>,
    ) -> Result<Self, CodecError> {
        let trellis = trellis(bits, state_bits, code, ShiftOrderKind::Rows).map_err(refused)?;
        let (n, len) = strings(rows);
        let layout = trellis.layout(n, len).map_err(refused)?;
        let expected = layout.n_words() as u64 * n_lines as u64;
        crate::plane::check_len(crate::scheme::lattice::WORDS, words.len(), expected)?;
        Ok(Self { decoder: ShiftDecoder::new(&trellis), layout, words, n_lines })
    }

    pub(crate) fn n_lines(&self) -> usize {
        self.n_lines
    }

    /// Writes the units of a line to the first values of `out`, which is made as long as its strings.
    pub(crate) fn decode_line(&self, line: usize, out: &mut Vec<f32>) -> Result<(), String> {
        out.resize(self.layout.rows() * self.layout.cols(), 0.0);
        let words = &self.words[line * self.layout.n_words()..][..self.layout.n_words()];
        self.decoder.decode(&self.layout, words, 0..self.layout.n_blocks(), out).map_err(|e| e.to_string())
    }
}
