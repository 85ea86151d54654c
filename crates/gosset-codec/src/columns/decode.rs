//! From header and planes to columns.

use std::borrow::Cow;
use std::ops::Range;

use gosset_transform::Rht;

use super::code::{self, ZERO};
use super::encode::{STEPS, STEPS_TEXT};
use super::lattice::LatticeColumnsDecoder;
use super::shift::ShiftColumnsDecoder;
use super::trellis::TrellisColumnsDecoder;
use super::{COLUMNS, ColumnsHeader, ROW_EXPONENTS};
use crate::decode::DecodeScratch;
use crate::plane::{PlaneSet, check_len, required};
use crate::scheme::lattice::{LENGTHS, WORDS};
use crate::{CodeHeader, CodecError, MatrixHeader, SchemeHeader, ShiftOrderKind};

/// Most weights per bit of the planes: what keeps a small file from claiming a large matrix.
const MAX_WEIGHTS_PER_BIT: u64 = 64;

/// Checked planes of a matrix stored by columns.
#[derive(Debug)]
pub(crate) struct ColumnsDecoder<'a> {
    rows: usize,
    /// Columns that have symbols, last first: the order of storage.
    coded: Vec<u32>,
    bytes: Cow<'a, [u8]>,
    gains: Vec<u16>,
    step: f32,
    outputs: Option<Rht>,
    /// Factors of the rows; none where all are one.
    row_factors: Vec<f32>,
    scheme: Scheme<'a>,
}

#[derive(Debug)]
enum Scheme<'a> {
    Lattice(LatticeColumnsDecoder<'a>),
    Trellis(TrellisColumnsDecoder<'a>),
    Shift(ShiftColumnsDecoder<'a>),
}

/// Names of the planes of a matrix stored by columns.
pub(crate) fn plane_names(header: &MatrixHeader, columns: &ColumnsHeader) -> &'static [&'static str] {
    match (&header.scheme, columns.row_exponents) {
        (SchemeHeader::Shift(_), false) => &[WORDS, COLUMNS],
        (SchemeHeader::Shift(_), true) => &[WORDS, COLUMNS, ROW_EXPONENTS],
        (_, false) => &[WORDS, LENGTHS, COLUMNS],
        (_, true) => &[WORDS, LENGTHS, COLUMNS, ROW_EXPONENTS],
    }
}

impl<'a> ColumnsDecoder<'a> {
    /// Checks headers and planes of a matrix of `rows` x `cols` values, `8 * rows * cols` being no overflow.
    pub(crate) fn new(
        header: &MatrixHeader,
        columns: &ColumnsHeader,
        (rows, cols): (usize, usize),
        set: &PlaneSet<'_, 'a>,
    ) -> Result<Self, CodecError> {
        let bytes = required(COLUMNS, set.u8s(COLUMNS)?)?;
        check_len(COLUMNS, bytes.len(), header.cols)?;
        let words = required(WORDS, set.u32s(WORDS)?)?;
        let n_bits = 8 * (bytes.len() as u64 + 4 * words.len() as u64);
        check_vouched(header.rows * header.cols, n_bits)?;
        let coded: Vec<u32> = (0..cols as u32).rev().filter(|&col| bytes[col as usize] != ZERO).collect();
        let shape = (coded.len(), rows);
        let classes = bytes.iter().filter(|&&byte| byte != ZERO).fold(0u16, |set, &byte| set | 1 << (byte & 15));
        let (step, scheme) = match &header.scheme {
            SchemeHeader::Lattice(lattice) => {
                let CodeHeader::Ans { table, raw_bits } = lattice.code else {
                    return Err(not_by_columns("a Rice code"));
                };
                let lengths = required(LENGTHS, set.u16s(LENGTHS)?)?;
                let code = (table, raw_bits);
                let decoder = LatticeColumnsDecoder::new(lattice.lattice.0, code, shape, classes, words, &lengths)?;
                (lattice.step, Scheme::Lattice(decoder))
            }
            SchemeHeader::Trellis(trellis) => {
                let lengths = required(LENGTHS, set.u16s(LENGTHS)?)?;
                let decoder =
                    TrellisColumnsDecoder::new(trellis.states, trellis.table, shape, classes, words, &lengths)?;
                (trellis.step, Scheme::Trellis(decoder))
            }
            SchemeHeader::Shift(shift) => {
                if shift.order != ShiftOrderKind::Rows {
                    return Err(not_by_columns("tiles"));
                }
                let decoder = ShiftColumnsDecoder::new((shift.bits, shift.state_bits, shift.code), shape, words)?;
                (shift.step, Scheme::Shift(decoder))
            }
        };
        if !STEPS.contains(&step) {
            let expected = STEPS_TEXT.to_owned();
            return Err(CodecError::Header { field: "step", found: step.to_string(), expected });
        }
        if columns.gains.len() > 16 {
            let (found, expected) = (columns.gains.len().to_string(), "16 classes at most".to_owned());
            return Err(CodecError::Header { field: "gains", found, expected });
        }
        let row_factors = if columns.row_exponents {
            let bytes = required(ROW_EXPONENTS, set.u8s(ROW_EXPONENTS)?)?;
            check_len(ROW_EXPONENTS, bytes.len(), header.rows.div_ceil(2))?;
            code::row_factors(&bytes, rows).ok_or_else(|| {
                let expected = "zeros in the half byte after the last of an odd number of rows".to_owned();
                CodecError::Header { field: ROW_EXPONENTS, found: "other bits".to_owned(), expected }
            })?
        } else {
            Vec::new()
        };
        let outputs = columns.outputs.to_rht(rows)?;
        Ok(Self { row_factors, rows, coded, bytes, gains: columns.gains.clone(), step, outputs, scheme })
    }

    /// From the frame of columns to outputs: undoes their rotation and applies the factors of rows.
    pub(crate) fn restore(&self, y: &mut [f32]) {
        if let Some(rht) = &self.outputs {
            rht.inverse(y);
        }
        y.iter_mut().zip(&self.row_factors).for_each(|(y, factor)| *y *= factor);
    }

    /// Number of streams, the parts that can be decoded by themselves.
    pub(crate) fn n_streams(&self) -> usize {
        match &self.scheme {
            Scheme::Lattice(decoder) => decoder.layout().n_streams(),
            Scheme::Trellis(decoder) => decoder.layout().n_streams(),
            Scheme::Shift(decoder) => decoder.n_lines(),
        }
    }

    /// The columns that have values in a stream, last one first.
    pub(crate) fn columns_of(&self, stream: usize) -> &[u32] {
        match &self.scheme {
            Scheme::Lattice(decoder) => &self.coded[decoder.layout().stream(stream).0],
            Scheme::Trellis(decoder) => &self.coded[decoder.layout().stream(stream).0],
            Scheme::Shift(_) => &self.coded[stream..stream + 1],
        }
    }

    /// Hands the values of a stream to `sink`, in the rotated frame: column, first row, values.
    pub(crate) fn decode_stream(
        &self,
        stream: usize,
        scratch: &mut DecodeScratch,
        mut sink: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), CodecError> {
        let mut scaled = std::mem::take(&mut scratch.scaled);
        let mut emit = |line: usize, first: usize, units: &[f32]| {
            let col = self.coded[line] as usize;
            let factor = self.factor(self.bytes[col]);
            // What a column was padded with is dropped.
            let len = units.len().min(self.rows.saturating_sub(first));
            scaled.clear();
            scaled.extend(units[..len].iter().map(|unit| factor * unit));
            if len > 0 {
                sink(col, first, &scaled);
            }
        };
        let class = |line: usize| code::unpack(self.bytes[self.coded[line] as usize]).1;
        let result = match &self.scheme {
            Scheme::Lattice(decoder) => decoder.decode_stream(stream, class, scratch, &mut emit),
            Scheme::Trellis(decoder) => decoder.decode_stream(stream, class, scratch, &mut emit),
            Scheme::Shift(decoder) => {
                let mut units = std::mem::take(&mut scratch.shift.values);
                let result = decoder.decode_line(stream, &mut units);
                if result.is_ok() {
                    emit(stream, 0, &units);
                }
                scratch.shift.values = units;
                result
            }
        };
        scratch.scaled = scaled;
        result.map_err(|what| CodecError::Stream { row: 0, stream, bit: 0, what })
    }

    /// What the units of a column with that byte are multiplied by.
    fn factor(&self, byte: u8) -> f32 {
        match self.scheme {
            Scheme::Shift(_) => code::scale(self.step, byte),
            _ => {
                let (exponent, class) = code::unpack(byte);
                code::step(self.step, exponent) * code::gain(&self.gains, class)
            }
        }
    }

    /// Writes columns in the rotated frame to `out`, column after column.
    pub(crate) fn decode_columns(
        &self,
        columns: Range<usize>,
        out: &mut [f32],
        scratch: &mut DecodeScratch,
    ) -> Result<(), CodecError> {
        out.fill(0.0);
        for stream in 0..self.n_streams() {
            if !self.columns_of(stream).iter().any(|&col| columns.contains(&(col as usize))) {
                continue;
            }
            self.decode_stream(stream, scratch, |col, first, values| {
                if columns.contains(&col) {
                    out[(col - columns.start) * self.rows + first..][..values.len()].copy_from_slice(values);
                }
            })?;
        }
        Ok(())
    }

    /// Writes rows of `cols` values to `out`, restored along the outputs only.
    pub(crate) fn decode_rows(
        &self,
        rows: Range<usize>,
        cols: usize,
        out: &mut [f32],
        scratch: &mut DecodeScratch,
    ) -> Result<(), CodecError> {
        out.fill(0.0);
        let mut column = vec![0.0; self.rows];
        let n_streams = self.n_streams();
        let mut stream = 0;
        while stream < n_streams {
            // A stream holds whole columns, or a column takes several streams, one after the other.
            let here = self.columns_of(stream);
            let [col] = *here else {
                let mut block = vec![0.0; here.len() * self.rows];
                self.decode_stream(stream, scratch, |col, first, values| {
                    let line = here.iter().position(|&c| c as usize == col).unwrap_or(0);
                    block[line * self.rows + first..][..values.len()].copy_from_slice(values);
                })?;
                for (&col, column) in here.iter().zip(block.chunks_exact_mut(self.rows)) {
                    self.place(column, col as usize, &rows, cols, out);
                }
                stream += 1;
                continue;
            };
            while stream < n_streams && self.columns_of(stream) == [col] {
                self.decode_stream(stream, scratch, |_, first, values| {
                    column[first..][..values.len()].copy_from_slice(values);
                })?;
                stream += 1;
            }
            self.place(&mut column, col as usize, &rows, cols, out);
        }
        Ok(())
    }

    /// Restores a column and puts the part in `rows` where it belongs in `out`.
    fn place(&self, column: &mut [f32], col: usize, rows: &Range<usize>, cols: usize, out: &mut [f32]) {
        self.restore(column);
        for (out, value) in out.chunks_exact_mut(cols).zip(&column[rows.clone()]) {
            out[col] = *value;
        }
    }
}

/// Refuses more weights than so many bits may hold.
pub(crate) fn check_vouched(n_weights: u64, n_bits: u64) -> Result<(), CodecError> {
    if n_weights > MAX_WEIGHTS_PER_BIT.saturating_mul(n_bits) {
        return Err(CodecError::TooFewBits { n_weights, n_bits });
    }
    Ok(())
}

fn not_by_columns(found: &str) -> CodecError {
    let expected = "lattices under ANS, trellises or bit-shift trellises in rows order, by columns".to_owned();
    CodecError::Header { field: "scheme", found: found.to_owned(), expected }
}
