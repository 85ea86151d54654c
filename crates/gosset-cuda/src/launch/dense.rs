//! Products with dense matrices; weights in f32, f16 or bf16, activations in f32.

use super::checks::to_u32;
use super::model::{DenseElement, GEMV_BATCH, Rows, expect, launch};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::ModelDenseParams;
use crate::gpu::Gpu;
use crate::memory::{DevSlice, DevSliceMut};
use crate::stream::StreamRef;

/// Rows from which a dense matrix is tall: two rows per warp then still give every multiprocessor enough warps.
const TALL_ROWS: u32 = 12_288;

/// `y = x wᵀ`: `w` is `[rows, cols]`, `x` `[batch, cols]`, `y` `[batch, rows]`; sums in f32.
///
/// Up to [`GEMV_BATCH`] the time is that of reading the weights once.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
pub fn dense<T: DenseElement>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    w: DevSlice<'_, T>,
    (rows, cols): (usize, usize),
    x: DevSlice<'_, f32>,
    batch: usize,
    y: DevSliceMut<'_, f32>,
) -> Result<(), CudaError> {
    expect("y of a dense product", y.len(), batch.checked_mul(rows))?;
    dense_strided(gpu, stream, w, (rows, cols), x, batch, (y, rows))
}

/// As [`dense`], with rows of `y` further apart than they are wide: `y` and the distance.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
pub fn dense_strided<T: DenseElement>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    w: DevSlice<'_, T>,
    (rows, cols): (usize, usize),
    x: DevSlice<'_, f32>,
    batch: usize,
    (y, y_stride): (DevSliceMut<'_, f32>, usize),
) -> Result<(), CudaError> {
    expect("dense weights", w.len(), rows.checked_mul(cols))?;
    expect("x of a dense product", x.len(), batch.checked_mul(cols))?;
    Rows { values: y.as_slice(), stride: y_stride }.check("y of a dense product", batch, rows)?;
    let params = ModelDenseParams {
        w: w.ptr(),
        x: x.ptr(),
        y: y.ptr(),
        y_stride: y_stride as u64,
        rows: to_u32("rows", rows)?,
        cols: to_u32("columns", cols)?,
        batch: to_u32("batch", batch)?,
        weight_type: T::MODULE.number,
    };
    let (module, entry, grid, block) = match batch {
        0 => return Ok(()),
        1..=GEMV_BATCH => {
            // Module, entry, threads, rows per block.
            let (module, entry, block, rows) = match batch {
                1 if params.rows >= TALL_ROWS => (T::MODULE.module, "model_gemv_tall", 64, 4),
                1 => (T::MODULE.module, "model_gemv_low", 128, 4),
                2..=4 => (T::MODULE.batch, "model_gemv_4", 128, 8),
                _ => (T::MODULE.batch, "model_gemv_8", 128, 8),
            };
            (module, entry, [params.rows.div_ceil(rows), 1, 1], block)
        }
        _ => {
            let tiles = params.batch.div_ceil(64);
            if tiles > 65_535 {
                return Err(CudaError::shape("batch of a dense product", "at most 2^22", batch));
            }
            (Module::ModelGemm, "model_gemm", [params.rows.div_ceil(128), tiles, 1], 256)
        }
    };
    // SAFETY: the lengths were checked.
    unsafe { launch(gpu, stream, (module, entry), (grid, block, 0), &params) }
}
