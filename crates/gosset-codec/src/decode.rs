//! From header and planes to values.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use gosset_entropy::{Rate, STREAM_LEN};
use gosset_transform::Rht;
use half::bf16;

use crate::codec::{EXACT_ROWS, EXACT_VALUES, SCALES};
use crate::columns::{self, ColumnsDecoder};
use crate::encoded::plane_rate;
use crate::plane::{PlaneSet, check_len, required};
use crate::scheme::shift::ShiftBuffers;
use crate::scheme::{SchemeDecoder, StreamError};
use crate::{CodecError, MatrixHeader, Plane, scheme};

/// Buffers of one decoding thread; their contents before a call do not matter.
#[derive(Clone)]
pub struct DecodeScratch {
    /// Symbols of two streams.
    pub(crate) symbols: Box<[[u32; STREAM_LEN]; 2]>,
    /// Points of one stream.
    pub(crate) points: Box<[i32; STREAM_LEN]>,
    /// Values of one stream.
    pub(crate) values: Box<[f32; STREAM_LEN]>,
    /// Blocks of rows of the bit-shift trellis.
    pub(crate) shift: ShiftBuffers,
    /// Part of a column in its scale.
    pub(crate) scaled: Vec<f32>,
}

impl DecodeScratch {
    /// New buffers.
    pub fn new() -> Self {
        Self::filled_with(0)
    }

    /// Buffers that hold the given bits everywhere, for tests of the claim that this does not matter.
    #[doc(hidden)]
    pub fn filled_with(bits: u32) -> Self {
        Self {
            symbols: Box::new([[bits; STREAM_LEN]; 2]),
            points: Box::new([bits as i32; STREAM_LEN]),
            values: Box::new([f32::from_bits(bits); STREAM_LEN]),
            shift: ShiftBuffers::default(),
            scaled: Vec::new(),
        }
    }
}

impl Default for DecodeScratch {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for DecodeScratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecodeScratch").finish_non_exhaustive()
    }
}

/// Decoder of one matrix from checked planes; any number of threads may use it, each with its own [`DecodeScratch`].
#[derive(Debug)]
pub struct Decoder<'a> {
    rows: usize,
    cols: usize,
    rht: Option<Rht>,
    body: Body<'a>,
    rate: Rate,
}

/// How the values are stored.
#[derive(Debug)]
enum Body<'a> {
    Rows(RowsDecoder<'a>),
    Columns(ColumnsDecoder<'a>),
}

/// Planes of a matrix stored by rows.
#[derive(Debug)]
struct RowsDecoder<'a> {
    cols: usize,
    scheme: SchemeDecoder<'a>,
    scales: Cow<'a, [bf16]>,
    exact_rows: Cow<'a, [u32]>,
    exact_values: Cow<'a, [f32]>,
}

impl<'a> Decoder<'a> {
    /// A decoder of untrusted planes under an untrusted header.
    ///
    /// Everything that decoding relies on is checked here, in time linear in the number of streams and rows; borrowed
    /// planes are not copied. Values of scales are not judged: a NaN there gives NaN rows.
    ///
    /// # Errors
    /// [`CodecError::Header`], [`CodecError::Rotation`], the errors about planes, [`CodecError::ExactRows`] and
    /// [`CodecError::Streams`].
    pub fn new(header: &MatrixHeader, planes: &[Plane<'a>]) -> Result<Self, CodecError> {
        let set = PlaneSet::new(planes);
        let (rows, cols) = checked_shape(header)?;
        let body = match &header.columns {
            None => Body::Rows(RowsDecoder::new(header, (rows, cols), &set)?),
            Some(columns) => {
                set.check_names(columns::plane_names(header, columns))?;
                Body::Columns(ColumnsDecoder::new(header, columns, (rows, cols), &set)?)
            }
        };
        // Last, since the signs take memory in proportion to the columns, which the planes have vouched for by now.
        let rht = header.rotation.to_rht(cols)?;
        Ok(Self { rows, cols, rht, body, rate: plane_rate(header, planes) })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The rotation of the rows, to be applied to an activation before its product with rotated rows.
    pub fn rotation(&self) -> Option<&Rht> {
        self.rht.as_ref()
    }

    /// Takes a column of a matrix that is stored by columns, or the result of a product with such columns, from their frame to that of
    /// the outputs: the rotation of the outputs is undone and rows get their factors. Nothing changes for a matrix stored by rows.
    ///
    /// # Panics
    /// Unless `y` has one value per row.
    pub fn restore_outputs(&self, y: &mut [f32]) {
        assert_eq!(y.len(), self.rows, "one value per row");
        if let Body::Columns(columns) = &self.body {
            columns.restore(y);
        }
    }

    /// Smallest number of rows of which every multiple starts a stream, so that blocks of so many rows are decoded
    /// without decoding any stream twice; at most [`Decoder::rows`]. All rows where the matrix is stored by columns.
    pub fn row_block(&self) -> usize {
        match &self.body {
            Body::Rows(body) => body.scheme.row_block(self.cols).min(self.rows),
            Body::Columns(_) => self.rows,
        }
    }

    /// Number of rows that are stored exactly.
    pub fn n_exact_rows(&self) -> usize {
        match &self.body {
            Body::Rows(body) => body.exact_rows.len(),
            Body::Columns(_) => 0,
        }
    }

    /// Bits by cause; their sum is the size of all planes.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Writes the given rows to `out`, row-major, in the original basis.
    ///
    /// # Errors
    /// [`CodecError::RowRange`], [`CodecError::OutputLength`], and [`CodecError::Stream`] for damaged streams, after
    /// which `out` holds meaningless values.
    pub fn decode_rows(
        &self,
        rows: Range<usize>,
        out: &mut [f32],
        scratch: &mut DecodeScratch,
    ) -> Result<(), CodecError> {
        self.checked_range(&rows, out.len())?;
        let body = match &self.body {
            Body::Rows(body) => body,
            Body::Columns(columns) => {
                columns.decode_rows(rows, self.cols, out, scratch)?;
                if let Some(rht) = &self.rht {
                    out.chunks_exact_mut(self.cols).for_each(|row| rht.inverse(row));
                }
                return Ok(());
            }
        };
        body.decode_scaled(rows.clone(), out, scratch)?;
        if let Some(rht) = &self.rht {
            for (row, scale) in out.chunks_exact_mut(self.cols).zip(&body.scales[rows.clone()]) {
                // An all-zero row stays all zero, without signs.
                if *scale != bf16::ZERO {
                    rht.inverse(row);
                }
            }
        }
        body.restore_exact_rows(rows, out, |_| ());
        Ok(())
    }

    /// Writes the given rows to `out`, row-major, in the rotated frame of the inputs: y = (R x)·(R w).
    ///
    /// Rows of a matrix stored by columns are not rotated along the outputs here; the whole of it is decoded for any of them.
    ///
    /// # Errors
    /// Those of [`Decoder::decode_rows`].
    pub fn decode_rows_rotated(
        &self,
        rows: Range<usize>,
        out: &mut [f32],
        scratch: &mut DecodeScratch,
    ) -> Result<(), CodecError> {
        self.checked_range(&rows, out.len())?;
        let body = match &self.body {
            Body::Rows(body) => body,
            Body::Columns(columns) => return columns.decode_rows(rows, self.cols, out, scratch),
        };
        body.decode_scaled(rows.clone(), out, scratch)?;
        body.restore_exact_rows(rows, out, |row| {
            if let Some(rht) = &self.rht {
                rht.forward(row);
            }
        });
        Ok(())
    }

    /// Writes the integer points of the given rows to `out`, row-major; those of rows stored exactly mean nothing.
    ///
    /// # Errors
    /// Those of [`Decoder::decode_rows`]; [`CodecError::Orientation`] for a matrix stored by columns.
    pub fn decode_points(
        &self,
        rows: Range<usize>,
        out: &mut [i32],
        scratch: &mut DecodeScratch,
    ) -> Result<(), CodecError> {
        let values = self.checked_range(&rows, out.len())?;
        let Body::Rows(body) = &self.body else {
            return Err(CodecError::Orientation { found: "columns", expected: "rows" });
        };
        let start = values.start;
        let sink = |at: usize, points: &[i32]| out[at - start..][..points.len()].copy_from_slice(points);
        body.scheme.decode_points(values, scratch, sink).map_err(|error| body.locate(error))
    }

    /// Writes the given columns of a matrix stored by columns to `out`, column after column, in the frame in which both its
    /// inputs and its outputs are rotated.
    ///
    /// # Errors
    /// [`CodecError::Orientation`] for a matrix stored by rows, [`CodecError::ColumnRange`], [`CodecError::OutputLength`] and
    /// [`CodecError::Stream`].
    pub fn decode_columns_rotated(
        &self,
        columns: Range<usize>,
        out: &mut [f32],
        scratch: &mut DecodeScratch,
    ) -> Result<(), CodecError> {
        let body = self.columns()?;
        if columns.start > columns.end || columns.end > self.cols {
            return Err(CodecError::ColumnRange { start: columns.start, end: columns.end, cols: self.cols });
        }
        let expected = columns.len() * self.rows;
        if out.len() != expected {
            return Err(CodecError::OutputLength { found: out.len(), expected });
        }
        body.decode_columns(columns, out, scratch)
    }

    /// Streams of a matrix stored by columns, each of which can be decoded by itself; `None` for one stored by rows.
    pub fn n_column_streams(&self) -> Option<usize> {
        self.columns().ok().map(ColumnsDecoder::n_streams)
    }

    /// The columns that have values in one of the [`n_column_streams`](Self::n_column_streams), in the order in which they are
    /// decoded; none for a matrix stored by rows.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn columns_of_stream(&self, stream: usize) -> &[u32] {
        self.columns().map_or(&[], |columns| columns.columns_of(stream))
    }

    /// Hands the values of one of the [`n_column_streams`](Self::n_column_streams) to `sink`, in the frame of
    /// [`decode_columns_rotated`](Self::decode_columns_rotated): column, first row, values. Columns of zeros are in no stream.
    ///
    /// # Errors
    /// [`CodecError::Orientation`] for a matrix stored by rows, [`CodecError::Stream`] for damaged streams.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn decode_column_stream(
        &self,
        stream: usize,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), CodecError> {
        self.columns()?.decode_stream(stream, scratch, sink)
    }

    fn columns(&self) -> Result<&ColumnsDecoder<'a>, CodecError> {
        match &self.body {
            Body::Columns(columns) => Ok(columns),
            Body::Rows(_) => Err(CodecError::Orientation { found: "rows", expected: "columns" }),
        }
    }

    /// Positions of the values of `rows`.
    fn checked_range(&self, rows: &Range<usize>, found: usize) -> Result<Range<usize>, CodecError> {
        if rows.start > rows.end || rows.end > self.rows {
            return Err(CodecError::RowRange { start: rows.start, end: rows.end, rows: self.rows });
        }
        let expected = rows.len() * self.cols;
        if found != expected {
            return Err(CodecError::OutputLength { found, expected });
        }
        Ok(rows.start * self.cols..rows.end * self.cols)
    }
}

impl<'a> RowsDecoder<'a> {
    fn new(header: &MatrixHeader, (rows, cols): (usize, usize), set: &PlaneSet<'_, 'a>) -> Result<Self, CodecError> {
        let names = [scheme::plane_names(&header.scheme), &[SCALES, EXACT_ROWS, EXACT_VALUES]].concat();
        set.check_names(&names)?;
        let scales = required(SCALES, set.bf16s(SCALES)?)?;
        check_len(SCALES, scales.len(), header.rows)?;
        let exact_rows = set.u32s(EXACT_ROWS)?.unwrap_or_default();
        let exact_values = set.f32s(EXACT_VALUES)?.unwrap_or_default();
        check_exact_rows(&exact_rows, header.rows)?;
        check_len(EXACT_VALUES, exact_values.len(), exact_rows.len() as u64 * header.cols)?;
        let scheme = SchemeDecoder::new(&header.scheme, rows, cols, set)?;
        Ok(Self { cols, scheme, scales, exact_rows, exact_values })
    }

    /// Decodes rows in the frame of the code, rows stored exactly being zero.
    fn decode_scaled(
        &self,
        rows: Range<usize>,
        out: &mut [f32],
        scratch: &mut DecodeScratch,
    ) -> Result<(), CodecError> {
        let values = rows.start * self.cols..rows.end * self.cols;
        let start = values.start;
        let step = self.scheme.step();
        let sink = |at: usize, units: &[f32]| {
            let mut row = at / self.cols;
            let mut left_in_row = self.cols - at % self.cols;
            let mut out = &mut out[at - start..][..units.len()];
            let mut units = units;
            while !units.is_empty() {
                let len = left_in_row.min(units.len());
                let (run, rest) = units.split_at(len);
                let (out_run, out_rest) = out.split_at_mut(len);
                let scale = self.scales[row];
                if scale == bf16::ZERO {
                    out_run.fill(0.0);
                } else {
                    let factor = scale.to_f32() * step;
                    out_run.iter_mut().zip(run).for_each(|(out, unit)| *out = factor * unit);
                }
                (units, out, row, left_in_row) = (rest, out_rest, row + 1, self.cols);
            }
        };
        self.scheme.decode_units(values, scratch, sink).map_err(|error| self.locate(error))
    }

    /// Overwrites the rows that are stored exactly, and passes each to `finish`.
    fn restore_exact_rows(&self, rows: Range<usize>, out: &mut [f32], finish: impl Fn(&mut [f32])) {
        let first = self.exact_rows.partition_point(|&row| (row as usize) < rows.start);
        let last = self.exact_rows.partition_point(|&row| (row as usize) < rows.end);
        for i in first..last {
            let at = (self.exact_rows[i] as usize - rows.start) * self.cols;
            let out = &mut out[at..][..self.cols];
            out.copy_from_slice(&self.exact_values[i * self.cols..][..self.cols]);
            finish(out);
        }
    }

    fn locate(&self, error: StreamError) -> CodecError {
        let StreamError { first, stream, bit, what } = error;
        CodecError::Stream { row: first / self.cols, stream, bit, what }
    }
}

fn checked_shape(header: &MatrixHeader) -> Result<(usize, usize), CodecError> {
    let bad = |field, found: u64, expected: &str| {
        Err(CodecError::Header { field, found: found.to_string(), expected: expected.to_owned() })
    };
    let (Ok(rows), Ok(cols)) = (u32::try_from(header.rows), usize::try_from(header.cols)) else {
        return bad("rows", header.rows, "less than 2^32");
    };
    if rows == 0 {
        return bad("rows", header.rows, "at least 1");
    }
    if cols == 0 {
        return bad("cols", header.cols, "at least 1");
    }
    // Twice the values, so that byte offsets and rounding up to whole blocks cannot overflow either.
    match (rows as usize).checked_mul(cols).and_then(|n| n.checked_mul(8)) {
        Some(_) => Ok((rows as usize, cols)),
        None => bad("cols", header.cols, "a matrix that fits the address space"),
    }
}

fn check_exact_rows(exact_rows: &[u32], rows: u64) -> Result<(), CodecError> {
    for (index, &found) in exact_rows.iter().enumerate() {
        let ascending = index == 0 || exact_rows[index - 1] < found;
        if !ascending || u64::from(found) >= rows {
            return Err(CodecError::ExactRows { index, found, rows });
        }
    }
    Ok(())
}
