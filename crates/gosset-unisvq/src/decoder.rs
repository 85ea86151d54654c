//! From codes to weights and products.

use std::ops::Range;

use half::f16;

use crate::incoherence::Frame;
use crate::matrix::{AffineMap, UniSvqHeader, centre};
use crate::{UniSvqError, pack};

/// A checked view of a quantized matrix.
///
/// A product with an activation never makes the weights: with t = U_nᵀ (S_U x) ([`rotate_input`](Self::rotate_input)), and t' and beta from
/// [`fold`](Self::fold), every output in the frame is z = Σ t'_j q_j + beta over the bare codes q
/// ([`codes_as_f32`](Self::codes_as_f32)), and the result is S_V (U_m z) ([`finish_output`](Self::finish_output)).
#[derive(Debug, Clone)]
pub struct UniSvqDecoder<'a> {
    header: UniSvqHeader,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    codes: &'a [u8],
    input: Frame,
    output: Frame,
    input_scales: Vec<f32>,
    output_scales: Vec<f32>,
    input_is_tuned: bool,
}

impl<'a> UniSvqDecoder<'a> {
    /// Checks `header` against `codes` and the scales, which stand for the signs of the frames where they are given.
    ///
    /// What is allocated is bounded by the lengths of `codes`: a few bytes for each row and column.
    ///
    /// # Errors
    /// [`UniSvqError::Parameter`], [`UniSvqError::Shape`], [`UniSvqError::NonFinite`] and [`UniSvqError::Frame`] for a header that
    /// contradicts itself or what it comes with.
    pub fn new(
        header: &UniSvqHeader,
        codes: &'a [u8],
        input_scales: Option<&[f16]>,
        output_scales: Option<&[f16]>,
    ) -> Result<Self, UniSvqError> {
        header.check()?;
        let expected = header.code_bytes();
        if expected != Some(codes.len()) {
            let (rows, cols, bits) = (header.rows, header.cols, header.bits);
            return Err(UniSvqError::Shape {
                what: "bytes of codes",
                expected: format!("{rows} rows of {cols} codes of {bits} bits"),
                found: codes.len().to_string(),
            });
        }
        // Both are bounded by the number of bytes now.
        let (rows, cols) = (header.rows as usize, header.cols as usize);
        let scales = |what, values: Option<&[f16]>, width: usize| {
            let Some(values) = values else { return Ok(None) };
            if values.len() != width {
                let (expected, found) = (width.to_string(), values.len().to_string());
                return Err(UniSvqError::Shape { what, expected, found });
            }
            match values.iter().position(|v| !v.is_finite()) {
                Some(col) => Err(UniSvqError::NonFinite { what, row: 0, col, value: values[col].to_string() }),
                None => Ok(Some(values.iter().map(|v| v.to_f32()).collect::<Vec<f32>>())),
            }
        };
        let input_values = scales("input scales", input_scales, cols)?;
        let output_values = scales("output scales", output_scales, rows)?;
        let (input, output) = (Frame::new(&header.input, cols)?, Frame::new(&header.output, rows)?);
        Ok(Self {
            header: header.clone(),
            rows,
            cols,
            row_bytes: pack::row_bytes(cols, header.bits),
            codes,
            input_is_tuned: input_values.is_some(),
            input_scales: input_values.unwrap_or_else(|| input.signs()),
            output_scales: output_values.unwrap_or_else(|| output.signs()),
            input,
            output,
        })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &UniSvqHeader {
        &self.header
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Packed codes of row `row`.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row_codes(&self, row: usize) -> &'a [u8] {
        &self.codes[row * self.row_bytes..][..self.row_bytes]
    }

    /// Frame of the input side.
    #[must_use]
    pub fn input(&self) -> &Frame {
        &self.input
    }

    /// Frame of the output side.
    #[must_use]
    pub fn output(&self) -> &Frame {
        &self.output
    }

    /// S_U: the signs of the input frame, or what they were tuned to.
    #[must_use]
    pub fn input_scales(&self) -> &[f32] {
        &self.input_scales
    }

    /// S_V: the signs of the output frame, or what they were tuned to.
    #[must_use]
    pub fn output_scales(&self) -> &[f32] {
        &self.output_scales
    }

    /// Whether S_U is the signs of the input frame: all matrices with such an input and the same frame share one
    /// [rotated activation](Self::rotate_input).
    #[must_use]
    pub fn input_is_shared(&self) -> bool {
        !self.input_is_tuned
    }

    /// x becomes t = U_nᵀ (S_U x).
    ///
    /// # Panics
    /// If `x` is not one row of the input.
    pub fn rotate_input(&self, x: &mut [f32]) {
        x.iter_mut().zip(&self.input_scales).for_each(|(x, s)| *x *= s);
        self.input.rotate(x);
    }

    /// Writes t' to `out` and returns beta, such that W~ t = q t' + beta for codes q.
    ///
    /// t' = `scale` · Aᵀ t for every group, beta = `scale` · Σ B · t; sums in f32 and f64.
    ///
    /// # Panics
    /// If `t` or `out` is not one row of the input.
    pub fn fold(&self, t: &[f32], out: &mut [f32]) -> f32 {
        assert_eq!((t.len(), out.len()), (self.cols, self.cols), "lengths of an activation and its fold");
        let scale = self.header.scale;
        let mut beta = 0f64;
        match &self.header.affine {
            None => {
                for (out, &t) in out.iter_mut().zip(t) {
                    *out = scale * t;
                    beta += f64::from(t);
                }
                beta *= -f64::from(centre(self.header.bits));
            }
            Some(AffineMap { a, b }) => {
                let d = usize::from(self.header.dim);
                for (out, t) in out.chunks_mut(d).zip(t.chunks(d)) {
                    for (j, out) in out.iter_mut().enumerate() {
                        *out = scale * t.iter().enumerate().map(|(i, &t)| a[i * d + j] * t).sum::<f32>();
                    }
                    beta += t.iter().zip(b).map(|(&t, &b)| f64::from(t) * f64::from(b)).sum::<f64>();
                }
            }
        }
        (beta * f64::from(scale)) as f32
    }

    /// z becomes S_V (U_m z).
    ///
    /// # Panics
    /// If `z` is not one row of the output.
    pub fn finish_output(&self, z: &mut [f32]) {
        self.output.unrotate(z);
        z.iter_mut().zip(&self.output_scales).for_each(|(z, s)| *z *= s);
    }

    /// The codes of `rows`, row-major.
    ///
    /// # Panics
    /// If there are no such rows or `out` has another length.
    pub fn codes_as_f32(&self, rows: Range<usize>, out: &mut [f32]) {
        self.check_rows(&rows, out.len());
        for (row, out) in rows.zip(out.chunks_exact_mut(self.cols)) {
            pack::unpack_row_f32(self.row_codes(row), self.header.bits, 0, out);
        }
    }

    /// Rows of W~, the matrix in its frame.
    ///
    /// Every value is f32: `scale` · (b + a₀ q₀ + a₁ q₁ + …), summed from left to right.
    ///
    /// # Panics
    /// If there are no such rows or `out` has another length.
    pub fn decode_rows_rotated(&self, rows: Range<usize>, out: &mut [f32]) {
        self.codes_as_f32(rows, out);
        let scale = self.header.scale;
        match &self.header.affine {
            None => {
                let centre = centre(self.header.bits);
                out.iter_mut().for_each(|v| *v = scale * (*v - centre));
            }
            Some(AffineMap { a, b }) => {
                let d = usize::from(self.header.dim);
                let mut q = [0f32; 8];
                for row in out.chunks_exact_mut(self.cols) {
                    for group in row.chunks_mut(d) {
                        let n = group.len();
                        q[..n].copy_from_slice(group);
                        for (i, v) in group.iter_mut().enumerate() {
                            *v = scale * q[..n].iter().zip(&a[i * d..]).fold(b[i], |sum, (&q, &a)| sum + a * q);
                        }
                    }
                }
            }
        }
    }

    /// Ranges of rows that start and end at multiples of this cost no extra work in [`decode_rows`](Self::decode_rows): rows mix within
    /// blocks of this size. It is the number of rows where the output frame is one transform.
    #[must_use]
    pub fn row_block(&self) -> usize {
        self.output.granule()
    }

    /// Rows of the matrix in the original basis.
    ///
    /// # Panics
    /// If there are no such rows or `out` has another length.
    pub fn decode_rows(&self, rows: Range<usize>, out: &mut [f32]) {
        self.check_rows(&rows, out.len());
        if rows.is_empty() {
            return;
        }
        let block = self.row_block();
        let first = rows.start / block * block;
        let end = rows.end.div_ceil(block).saturating_mul(block).min(self.rows);
        if first == rows.start && end == rows.end {
            return self.decode_blocks(rows, out);
        }
        let mut whole = vec![0f32; (end - first) * self.cols];
        self.decode_blocks(first..end, &mut whole);
        out.copy_from_slice(&whole[(rows.start - first) * self.cols..][..out.len()]);
    }

    fn decode_blocks(&self, rows: Range<usize>, out: &mut [f32]) {
        let first = rows.start;
        self.decode_rows_rotated(rows, out);
        self.output.unrotate_columns(first, out, self.cols);
        for (row, sv) in out.chunks_exact_mut(self.cols).zip(&self.output_scales[first..]) {
            self.input.unrotate(row);
            row.iter_mut().zip(&self.input_scales).for_each(|(v, su)| *v *= su * sv);
        }
    }

    fn check_rows(&self, rows: &Range<usize>, len: usize) {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert_eq!(len, rows.len() * self.cols, "values of {} rows of {}", rows.len(), self.cols);
    }
}
