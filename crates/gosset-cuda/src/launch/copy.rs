//! Copies between arrays of equal blocks, as caches of different capacities have them.

use super::checks::check_len;
use super::model::launch;
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::ModelCacheCopyParams;
use crate::gpu::Gpu;
use crate::memory::{DevSlice, DevSliceMut, DeviceType};
use crate::stream::StreamRef;

/// Bytes that the kernel moves at a time.
const UNIT: usize = 16;

/// Copies the first `len` elements of each of `n_blocks` blocks of `from` to the start of the same block of `to`.
///
/// Blocks of an array are as long as each other: its length over `n_blocks`. They begin and end, as the copies do, at multiples of 16 bytes.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
pub fn copy_blocks<T: DeviceType>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    n_blocks: usize,
    from: DevSlice<'_, T>,
    to: DevSliceMut<'_, T>,
    len: usize,
) -> Result<(), CudaError> {
    if n_blocks == 0 || n_blocks > 65_535 {
        return Err(CudaError::shape("blocks to copy", "1 to 65535", n_blocks));
    }
    let (from_block, to_block) = (from.len() / n_blocks, to.len() / n_blocks);
    check_len("blocks to copy from", from.len(), n_blocks * from_block)?;
    check_len("blocks to copy to", to.len(), n_blocks * to_block)?;
    if len > from_block.min(to_block) {
        let expected = format!("at most {} elements", from_block.min(to_block));
        return Err(CudaError::shape("part of a block to copy", expected, len));
    }
    if len == 0 {
        return Ok(());
    }
    let aligned = |elements: usize| (elements * size_of::<T>()).is_multiple_of(UNIT);
    let places = [from.ptr(), to.ptr()];
    if ![len, from_block, to_block].into_iter().all(aligned) || places.iter().any(|p| !p.is_multiple_of(UNIT as u64)) {
        return Err(CudaError::shape("blocks to copy", format!("multiples of {UNIT} bytes"), len * size_of::<T>()));
    }
    let units = |elements: usize| (elements * size_of::<T>() / UNIT) as u64;
    let params = ModelCacheCopyParams {
        from: from.ptr(),
        to: to.ptr(),
        from_units: units(from_block),
        to_units: units(to_block),
        n_units: units(len),
    };
    let grid = [params.n_units.div_ceil(256).min(64) as u32, n_blocks as u32, 1];
    // SAFETY: the lengths were checked.
    unsafe { launch(gpu, stream, (Module::ModelOps, "model_cache_copy"), (grid, 256, 0), &params) }
}
