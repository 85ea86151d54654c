//! Candle's device memory and streams as the kernels see them. All `unsafe` of the seam is here.

use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle_core::{CudaDevice, CudaStorage, Layout};
use gosset_cuda::{CudaError, DevSlice, DevSliceMut, StreamRef};

/// The driver's number of candle's device.
pub(super) fn ordinal(device: &CudaDevice) -> usize {
    device.cuda_stream().context().ordinal()
}

/// New storage of `n_out` f32 values that `launch` puts the computation of into candle's stream.
///
/// `launch` gets the stream, the f32 elements of `storage` that `layout` shows, which must be contiguous, and the output, every
/// value of which it must have written when the stream has done the work.
pub(super) fn map(
    storage: &CudaStorage,
    layout: &Layout,
    n_out: usize,
    launch: impl FnOnce(StreamRef<'_>, DevSlice<'_, f32>, DevSliceMut<'_, f32>) -> Result<(), CudaError>,
) -> candle_core::Result<CudaStorage> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(candle_core::Error::RequiresContiguous { op: "gosset-linear" }.bt());
    };
    let device = storage.device.clone();
    let stream = device.cuda_stream();
    let x = storage.as_cuda_slice::<f32>()?;
    // SAFETY: nobody reads the values before `launch` has had them written, since all of candle's work is in the same stream.
    let mut out = unsafe { device.alloc::<f32>(n_out)? };
    {
        // When the guards are dropped, after the launch, candle notes the read and the write for other streams of its own.
        let (x_ptr, _reads) = x.device_ptr(&stream);
        let (out_ptr, _writes) = out.device_ptr_mut(&stream);
        // SAFETY: the layout lies within its storage; the memory is of the device's primary context and is freed in the order of
        // the stream, which is after the work.
        let x = unsafe { DevSlice::from_raw(x_ptr + (start * size_of::<f32>()) as u64, end - start) };
        // SAFETY: an allocation of that length, which only this function knows; freed as above.
        let y = unsafe { DevSliceMut::from_raw(out_ptr, n_out) };
        // SAFETY: `stream` lives longer than the launch, and is a stream of the device's primary context.
        let queue = unsafe { StreamRef::from_raw(stream.cu_stream().cast()) };
        launch(queue, x, y).map_err(candle_core::Error::wrap)?;
    }
    Ok(CudaStorage::wrap_cuda_slice(out, device))
}
