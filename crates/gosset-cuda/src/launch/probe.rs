//! Kernels that prove that modules load, launches reach the device, and random words are those of the CPU.

use gosset_transform::Domain;

use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{ProbeParams, ProbeRandomParams};
use crate::gpu::Gpu;
use crate::kernel::Launch;
use crate::memory::DevSliceMut;
use crate::stream::StreamRef;

/// Puts `y[i] = y[i] * factor + i`, wrapping, into the stream.
///
/// # Errors
/// [`CudaError::Shape`] for more than 2^32 - 256 words; [`CudaError::Driver`] where the module does not load.
pub fn affine(gpu: &Gpu, stream: StreamRef<'_>, y: DevSliceMut<'_, u32>, factor: u32) -> Result<(), CudaError> {
    let n = u32::try_from(y.len()).ok().filter(|&n| n <= u32::MAX - 255);
    let n = n.ok_or_else(|| CudaError::shape("probe", "at most 2^32 - 256 words", y.len()))?;
    let params = ProbeParams { y: y.ptr(), n, factor };
    let launch = Launch { grid: [n.div_ceil(256), 1, 1], block: [256, 1, 1], ..Launch::default() };
    // SAFETY: the entry takes `ProbeParams`; `y` holds `n` words by the contract of `DevSliceMut`.
    unsafe { gpu.kernel(Module::Probe, "probe_affine")?.launch(stream, launch, &params) }
}

/// Puts words `4 * first ..` of the random stream (seed, domain, index) into `y`, in the order of the stream.
///
/// # Errors
/// [`CudaError::Shape`] unless `y` holds whole blocks of four words, at most 2^32 - 256 of them.
pub fn random(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    y: DevSliceMut<'_, u32>,
    seed: u64,
    domain: Domain,
    index: u64,
    first: u32,
) -> Result<(), CudaError> {
    let n = u32::try_from(y.len() / 4).ok().filter(|&n| n <= u32::MAX - 255 && y.len().is_multiple_of(4));
    let n = n.ok_or_else(|| CudaError::shape("probe", "at most 2^32 - 256 blocks of 4 words", y.len()))?;
    let params = ProbeRandomParams { y: y.ptr(), seed, index, domain: domain as u32, first, n };
    let launch = Launch { grid: [n.div_ceil(256), 1, 1], block: [256, 1, 1], ..Launch::default() };
    // SAFETY: the entry takes `ProbeRandomParams`; `y` holds 4 n words by the contract of `DevSliceMut`.
    unsafe { gpu.kernel(Module::Probe, "probe_random")?.launch(stream, launch, &params) }
}
