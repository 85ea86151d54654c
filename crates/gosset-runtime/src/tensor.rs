//! Candle tensors as slices and back.

use std::ops::Deref;

use candle_core::{CpuStorage, Device, Storage, Tensor};

use crate::error::RuntimeError;

/// Borrows the elements of a contiguous f32 tensor on the CPU, without a copy.
///
/// An error of candle's kind if it is not f32, not contiguous or not on the CPU.
pub(crate) fn f32_slice(tensor: &Tensor) -> Result<impl Deref<Target = [f32]> + '_, RuntimeError> {
    let (guard, layout) = tensor.storage_and_layout();
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(candle_core::Error::RequiresContiguous { op: "f32_slice" }.into());
    };
    if !matches!(&*guard, Storage::Cpu(CpuStorage::F32(_))) {
        let (dtype, device) = (tensor.dtype(), tensor.device().location());
        let message = format!("expected an f32 tensor on the CPU, found {dtype:?} on {device:?}");
        return Err(candle_core::Error::Msg(message).into());
    }
    Ok(F32Slice { guard, start, end })
}

/// A read lock on a storage that was seen to be f32 on the CPU.
struct F32Slice<G> {
    guard: G,
    start: usize,
    end: usize,
}

impl<G: Deref<Target = Storage>> Deref for F32Slice<G> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &*self.guard {
            Storage::Cpu(CpuStorage::F32(data)) => &data[self.start..self.end],
            _ => unreachable!("the kind of storage was checked when the slice was taken"),
        }
    }
}

/// A row-major matrix as a tensor; takes the elements over without a copy.
pub(crate) fn tensor2(data: Vec<f32>, rows: usize, cols: usize) -> Result<Tensor, RuntimeError> {
    Ok(Tensor::from_vec(data, (rows, cols), &Device::Cpu)?)
}
