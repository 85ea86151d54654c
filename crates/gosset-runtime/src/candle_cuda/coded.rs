//! Weights that stay coded on the device, multiplied by a kernel of ours.

use candle_core::{CudaDevice, Tensor};
use gosset_container::CodedTensor;

use crate::error::RuntimeError;

/// A coded matrix in device memory.
#[derive(Debug)]
pub(super) enum CodedWeight {}

impl CodedWeight {
    /// The matrix on `device`, or `None` if its code has no kernel.
    pub(super) fn upload(_weight: &CodedTensor, _device: &CudaDevice) -> Result<Option<Self>, RuntimeError> {
        Ok(None)
    }

    /// Bytes of device memory.
    pub(super) fn bytes(&self) -> u64 {
        match *self {}
    }

    /// `x` `[n, in_features]`: `[n, out_features]`, f32.
    pub(super) fn product(&self, _x: &Tensor) -> Result<Tensor, RuntimeError> {
        match *self {}
    }
}
