//! Products with a coded matrix that is stored input column after input column.
//!
//! `y = V⁻¹ Σ_k x_k w_k` with the columns `w_k` rotated along the outputs by V: the sum is taken in the rotated frame and un-rotated
//! once, where rows get their factors too. Columns are decoded stream by stream; what is summed where depends on the shapes alone, so that the result is the same for any
//! number of threads.

use gosset_codec::{DecodeScratch, Decoder};
use rayon::prelude::*;

use crate::arch::{Mat, MatMut, Threads, matmul};
use crate::error::RuntimeError;

/// Groups of streams that have a partial sum of their own when there is one activation.
const GROUPS: usize = 16;

/// Elements of the columns that are multiplied at once by several activations: 2 MB of f32.
const BLOCK_LEN: usize = 1 << 19;

/// `x · Wᵀ` for `n` rows of `x`, row-major, in the frame of the inputs; the outputs are in the original basis.
pub(crate) fn product(w: &Decoder<'_>, x: &[f32], n: usize) -> Result<Vec<f32>, RuntimeError> {
    let n_streams = w.n_column_streams().unwrap_or(0);
    let mut y = if n == 1 { one(w, x, n_streams)? } else { many(w, x, n, n_streams)? };
    y.par_chunks_mut(w.rows()).for_each(|y| w.restore_outputs(y));
    Ok(y)
}

/// One activation: columns are added up as they are decoded.
fn one(w: &Decoder<'_>, x: &[f32], n_streams: usize) -> Result<Vec<f32>, RuntimeError> {
    let rows = w.rows();
    let per_group = n_streams.div_ceil(GROUPS).max(1);
    let sum = |first: usize| {
        let (mut y, mut scratch) = (vec![0f32; rows], DecodeScratch::new());
        for stream in first..n_streams.min(first + per_group) {
            w.decode_column_stream(stream, &mut scratch, |col, row, values| {
                let x = x[col];
                y[row..][..values.len()].iter_mut().zip(values).for_each(|(y, v)| *y += x * v);
            })?;
        }
        Ok::<_, RuntimeError>(y)
    };
    let parts = (0..n_streams).into_par_iter().step_by(per_group).map(sum).collect::<Result<Vec<_>, _>>()?;
    let mut y = vec![0f32; rows];
    for part in parts {
        y.iter_mut().zip(part).for_each(|(y, part)| *y += part);
    }
    Ok(y)
}

/// Several activations: blocks of columns are decoded whole, then multiplied.
fn many(w: &Decoder<'_>, x: &[f32], n: usize, n_streams: usize) -> Result<Vec<f32>, RuntimeError> {
    let (rows, cols) = (w.rows(), w.cols());
    let block_cols = (BLOCK_LEN / rows).max(1);
    let mut y = vec![0f32; n * rows];
    let (mut part, mut inputs) = (vec![0f32; n * rows], Vec::new());
    let mut stream = 0;
    while stream < n_streams {
        // As many streams as have up to a block of columns, one at least; a column may go on in the stream that follows.
        let first = stream;
        let mut columns = w.columns_of_stream(first).to_vec();
        stream += 1;
        while stream < n_streams {
            let more = w.columns_of_stream(stream);
            let fresh = more.iter().filter(|&col| columns.last() != Some(col)).count();
            if fresh > 0 && columns.len() + fresh > block_cols {
                break;
            }
            columns.extend_from_slice(&more[more.len() - fresh..]);
            stream += 1;
        }
        // Each stream has its own part of the block, as its columns follow each other.
        let block = decode_block(w, first..stream, &columns)?;
        inputs.clear();
        inputs.extend(x.chunks_exact(cols).flat_map(|x| columns.iter().map(|&col| x[col as usize])));
        let k = columns.len();
        let (inputs, block) = (Mat::new(&inputs, n, k, k), Mat::new(&block, k, rows, rows));
        matmul(MatMut::new(&mut part, n, rows, rows), inputs, block, Threads::Pool);
        y.par_iter_mut().zip(&part).with_min_len(1 << 12).for_each(|(y, part)| *y += part);
    }
    Ok(y)
}

/// The columns of some streams, column after column in the order of `columns`.
fn decode_block(w: &Decoder<'_>, streams: std::ops::Range<usize>, columns: &[u32]) -> Result<Vec<f32>, RuntimeError> {
    let rows = w.rows();
    let mut block = vec![0f32; columns.len() * rows];
    // Where columns take one stream or less, streams are decoded side by side.
    let whole = streams.clone().all(|stream| stream == streams.start || starts_column(w, stream));
    if whole {
        let mut rest = &mut block[..];
        let mut parts = Vec::with_capacity(streams.len());
        for stream in streams {
            let (part, after) = rest.split_at_mut(w.columns_of_stream(stream).len() * rows);
            parts.push((stream, part));
            rest = after;
        }
        parts.into_par_iter().try_for_each_init(DecodeScratch::new, |scratch, (stream, part)| {
            decode_into(w, stream, w.columns_of_stream(stream), part, scratch)
        })?;
    } else {
        let mut scratch = DecodeScratch::new();
        streams.into_iter().try_for_each(|stream| decode_into(w, stream, columns, &mut block, &mut scratch))?;
    }
    Ok(block)
}

/// Whether a stream has other columns than the one before it.
fn starts_column(w: &Decoder<'_>, stream: usize) -> bool {
    w.columns_of_stream(stream).first() != w.columns_of_stream(stream - 1).last()
}

fn decode_into(
    w: &Decoder<'_>,
    stream: usize,
    columns: &[u32],
    out: &mut [f32],
    scratch: &mut DecodeScratch,
) -> Result<(), RuntimeError> {
    let rows = w.rows();
    // Columns come in the order of `columns`.
    let mut at = 0;
    w.decode_column_stream(stream, scratch, |col, row, values| {
        while at + 1 < columns.len() && columns[at] as usize != col {
            at += 1;
        }
        out[at * rows + row..][..values.len()].copy_from_slice(values);
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use gosset_codec::{CodecSpec, ColumnEncoder, ColumnOptions, N_CLASSES, RotationHeader};

    use super::*;
    use crate::row_blocks::dense_product;
    use crate::tests::numbers;

    #[test]
    fn products_are_those_of_the_decoded_matrix() {
        // Many columns in a stream, one column in several streams, a stream per column; widths that no power of two divides.
        let cases = [
            ("e8@3", 96, 700),
            ("e8@3", 70_000, 3),
            ("trellis-8@2", 172, 300),
            ("trellis-8@2", 40_000, 4),
            ("shift-12@2", 300, 9),
        ];
        for (codec, rows, cols) in cases {
            let spec = CodecSpec::parse(codec).unwrap();
            let is_shift = codec.starts_with("shift");
            let options = ColumnOptions {
                inputs: if is_shift { spec.rotation.header(cols).unwrap() } else { RotationHeader::None },
                outputs: spec.rotation.header(rows).unwrap(),
                step: if is_shift { 0.01 } else { 0.5 },
                exponents: if is_shift { Vec::new() } else { vec![0; cols] },
                reach: 2.0,
                gains: [0.9; N_CLASSES],
                row_exponents: if rows % 8 == 0 { (0..rows).map(|row| (row % 16) as u8).collect() } else { Vec::new() },
            };
            let mut encoder = ColumnEncoder::new(&spec, rows, cols, &options).unwrap();
            for col in (0..cols).rev() {
                // Some columns are zero.
                let scale = if col % 7 == 3 { 0.0 } else { 1.0 };
                let x = numbers(rows, col as u32, 0.0, scale);
                encoder.round_column(col, &x, &mut vec![0.0; rows]).unwrap();
            }
            let encoded = encoder.finish().unwrap();
            let decoder = encoded.decoder().unwrap();
            let mut dense = vec![0.0; rows * cols];
            decoder.decode_rows_rotated(0..rows, &mut dense, &mut DecodeScratch::new()).unwrap();
            for n in [1, 2, 5] {
                let x = numbers(n * cols, 99, 0.0, 1.0);
                let (found, expected) = (product(&decoder, &x, n).unwrap(), dense_product(&dense, &x, n, cols));
                // The largest factor is 13.5.
                let bound = if rows % 8 == 0 { 1.4e-4 } else { 1e-5 } * (cols as f32).sqrt();
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= bound), "{codec}, {n}");
                let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
                assert_eq!(pool.install(|| product(&decoder, &x, n).unwrap()), found, "{codec}, {n}");
            }
        }
    }
}
