//! Products with matrices of affine-grid codes: the map of the grid is folded into the activation.

use std::ops::Range;

use candle_core::Tensor;
use gosset_container::UniSvqTensor;
use gosset_unisvq::UniSvqDecoder;
use rayon::prelude::*;

use crate::error::RuntimeError;
use crate::linear::Activation;
use crate::row_blocks::{WeightRows, product};
use crate::tensor::{f32_slice, tensor2};

/// Values decoded at a time where rows are wanted in the original basis, in whole blocks of rows.
const BLOCK_VALUES: usize = 1 << 16;

/// The bare codes of a matrix, which an activation with a folded map is multiplied with.
struct Codes<'a>(UniSvqDecoder<'a>);

impl WeightRows for Codes<'_> {
    type Scratch = ();

    fn shape(&self) -> (usize, usize) {
        (self.0.rows(), self.0.cols())
    }

    fn row_step(&self) -> usize {
        1
    }

    fn fill(&self, rows: Range<usize>, out: &mut [f32], (): &mut ()) -> Result<(), RuntimeError> {
        self.0.codes_as_f32(rows, out);
        Ok(())
    }
}

/// `x Wᵀ` for `n` rows of activations, row-major.
///
/// Rotated activations are shared by the matrices that read `x` through the same frame; the fold is per matrix and costs a few
/// operations for each input.
pub(crate) fn multiply(weight: &UniSvqTensor, x: &Activation, n: usize) -> Result<Vec<f32>, RuntimeError> {
    let codes = Codes(weight.decoder()?);
    let decoder = &codes.0;
    let (rows, cols) = (decoder.rows(), decoder.cols());
    let rotated = rotated(decoder, x, n)?;
    let t = f32_slice(&rotated)?;
    let mut folded = vec![0f32; n * cols];
    let betas: Vec<f32> =
        folded.par_chunks_mut(cols).zip(t.par_chunks(cols)).map(|(out, t)| decoder.fold(t, out)).collect();
    let mut y = product(&codes, &folded, n)?;
    y.par_chunks_mut(rows).zip(betas).for_each(|(y, beta)| {
        y.iter_mut().for_each(|z| *z += beta);
        decoder.finish_output(y);
    });
    Ok(y)
}

/// `x` in the frame of the input side.
fn rotated(decoder: &UniSvqDecoder<'_>, x: &Activation, n: usize) -> Result<Tensor, RuntimeError> {
    let enter = |x: &Tensor| {
        let mut rows = f32_slice(x)?.to_vec();
        rows.par_chunks_mut(decoder.cols()).with_min_len(8).for_each(|row| decoder.rotate_input(row));
        tensor2(rows, n, decoder.cols())
    };
    if decoder.input_is_shared() { x.in_frame(&decoder.header().input, enter) } else { enter(x.plain()) }
}

/// Rows `ids` of the matrix in its original basis, row-major.
///
/// Ids that follow each other are decoded in whole blocks of rows; others cost a block each.
pub(crate) fn gather(weight: &UniSvqTensor, ids: &[u32], out: &mut [f32]) -> Result<(), RuntimeError> {
    let decoder = weight.decoder()?;
    let cols = decoder.cols();
    let first = ids.first().map_or(0, |&id| id as usize);
    if ids.iter().enumerate().all(|(i, &id)| id as usize == first + i) {
        decode(&decoder, first..first + ids.len(), out);
    } else {
        out.par_chunks_mut(cols).zip(ids).for_each(|(out, &id)| decoder.decode_rows(id as usize..id as usize + 1, out));
    }
    Ok(())
}

/// Rows of a matrix in the original basis, on all threads.
pub(crate) fn decode(decoder: &UniSvqDecoder<'_>, rows: Range<usize>, out: &mut [f32]) {
    let (cols, block) = (decoder.cols(), decoder.row_block());
    let step = block * (BLOCK_VALUES / (block * cols).max(1)).max(1);
    // Up to the first multiple of the step, then in whole steps.
    let head = (rows.start.next_multiple_of(step).min(rows.end) - rows.start) * cols;
    let (head, tail) = out.split_at_mut(head);
    let aligned = rows.start + head.len() / cols;
    decoder.decode_rows(rows.start..aligned, head);
    tail.par_chunks_mut(step * cols).enumerate().for_each(|(i, out)| {
        let start = aligned + i * step;
        decoder.decode_rows(start..start + out.len() / cols, out);
    });
}
