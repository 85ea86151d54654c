//! Matrices of seeded random numbers, for benchmarks.

use gosset_codec::{CodecSpec, RateTarget, RotationSpec, SchemeSpec};
use gosset_transform::{Rht, TilePlan};
use gosset_trellis::shift::ShiftSpec;
use half::bf16;

use super::model::launch;
use super::shift::ShiftMatrix;
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::ModelNormalParams;
use crate::gpu::Gpu;
use crate::memory::Buffer;

/// A matrix of seeded bf16 numbers, about normal with this deviation; for benchmarks.
///
/// # Errors
/// [`CudaError::OutOfMemory`], and what a launch can fail with.
pub fn random_normal(gpu: &Gpu, len: usize, deviation: f32, seed: u32) -> Result<Buffer<bf16>, CudaError> {
    let out = Buffer::<bf16>::uninit(gpu, len)?;
    let stream = gpu.stream()?;
    let params = ModelNormalParams { out: out.as_slice().ptr(), n: len as u64, seed, deviation };
    let grid = [len.div_ceil(256).min(16 * gpu.info().n_sms as usize) as u32, 1, 1];
    // SAFETY: the kernel writes `n` elements, as many as the buffer has.
    unsafe { launch(gpu, stream.as_ref(), (Module::ModelOps, "model_normal"), (grid, 256, 0), &params) }?;
    stream.synchronize()?;
    Ok(out)
}

/// A matrix of random words in the codec's format, with [`ShiftMatrix::random`]; rows have mean square `1 / cols`.
///
/// # Errors
/// [`CudaError::Unsupported`] for another kind of codec, else as [`ShiftMatrix::random`].
pub fn random_shift(
    gpu: &Gpu,
    codec: &CodecSpec,
    (rows, cols): (usize, usize),
    seed: u32,
) -> Result<ShiftMatrix, CudaError> {
    let unsupported = || CudaError::Unsupported { op: "random weights", what: codec.name().to_owned() };
    let (SchemeSpec::Shift { state_bits, code, order }, RateTarget::PayloadBps(bps)) = (&codec.scheme, &codec.target)
    else {
        return Err(unsupported());
    };
    let rht = match codec.rotation {
        RotationSpec::Rht { tile, seed } => {
            let plan = TilePlan::new(cols, tile).map_err(|e| CudaError::Codec(e.to_string()))?;
            Some(Rht::new(plan, seed))
        }
        _ => None,
    };
    let spec = ShiftSpec { bits: *bps as u8, state_bits: *state_bits, code: (*code).into(), order: (*order).into() };
    let scale = bf16::from_f32(1.0 / (cols as f32).sqrt());
    ShiftMatrix::random(gpu, spec, rows, cols, rht.as_ref(), scale, seed)
}
