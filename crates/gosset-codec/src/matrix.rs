//! Borrowed matrices.

use crate::CodecError;

/// A borrowed matrix of `rows` x `cols` values in row-major order; columns are the input (contraction) dimension.
///
/// ```
/// use gosset_codec::MatRef;
///
/// let m = MatRef::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3)?;
/// assert_eq!(m.row(1), [4.0, 5.0, 6.0]);
/// # Ok::<(), gosset_codec::CodecError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatRef<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
}

impl<'a> MatRef<'a> {
    /// The matrix whose rows are the consecutive runs of `cols` values of `data`.
    ///
    /// # Errors
    /// [`CodecError::Shape`] unless `rows` and `cols` are at least 1, `rows` is below 2^32 and `data` holds `rows *
    /// cols` values.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Result<Self, CodecError> {
        check_shape(data.len(), rows, cols)?;
        Ok(Self { data, rows, cols })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All values in row-major order.
    pub fn data(&self) -> &'a [f32] {
        self.data
    }

    /// The values of row `i`.
    ///
    /// # Panics
    /// If `i` is not below [`MatRef::rows`].
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.data[i * self.cols..][..self.cols]
    }
}

/// Refuses empty shapes and shapes that do not match the number of values.
pub(crate) fn check_shape(len: usize, rows: usize, cols: usize) -> Result<(), CodecError> {
    if rows == 0 || cols == 0 || u32::try_from(rows).is_err() || rows.checked_mul(cols) != Some(len) {
        return Err(CodecError::Shape { rows, cols, len });
    }
    Ok(())
}

/// Refuses NaN and infinite values, naming the first and counting all.
pub(crate) fn check_finite(data: &[f32], cols: usize) -> Result<(), CodecError> {
    const CHUNK: usize = 4096;
    // x·0 is 0 for finite x and NaN otherwise, and a sum keeps a NaN: one branch per chunk.
    let is_bad = |chunk: &[f32]| chunk.iter().fold(0.0f32, |sum, &v| sum + v * 0.0).is_nan();
    let Some(chunk_idx) = data.chunks(CHUNK).position(is_bad) else { return Ok(()) };
    let rest = &data[chunk_idx * CHUNK..];
    let first = rest.iter().position(|v| !v.is_finite()).unwrap_or(0);
    let at = chunk_idx * CHUNK + first;
    Err(CodecError::NonFinite {
        row: at / cols,
        col: at % cols,
        value: rest[first].to_string(),
        n_nan: rest.iter().filter(|v| v.is_nan()).count() as u64,
        n_infinite: rest.iter().filter(|v| v.is_infinite()).count() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_must_match() {
        for (len, rows, cols) in [(0, 0, 0), (0, 0, 5), (5, 5, 0), (5, 1, 4), (1, usize::MAX, usize::MAX)] {
            assert_eq!(check_shape(len, rows, cols), Err(CodecError::Shape { rows, cols, len }));
        }
        assert!(MatRef::new(&[0.0; 6], 3, 2).is_ok());
    }

    #[test]
    fn non_finite_values_are_located_and_counted() {
        let mut data = vec![1.0f32; 100 * 99];
        assert_eq!(check_finite(&data, 99), Ok(()));
        data[7000] = f32::NEG_INFINITY;
        data[7001] = f32::NAN;
        data[9899] = f32::INFINITY;
        let error = check_finite(&data, 99).unwrap_err();
        assert_eq!(
            error.to_string(),
            "row 70, column 70: found -inf, expected finite values (1 NaN and 2 infinite in all)"
        );
    }
}
