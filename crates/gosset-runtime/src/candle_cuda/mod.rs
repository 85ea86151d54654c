//! [`Linear`] on a CUDA device of candle: for models that are candle's, whose tensors live there.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use gosset_container::Container;
//! use gosset_runtime::Linear;
//!
//! let device = Device::new_cuda(0)?;
//! let container = Container::open("model.gosset".as_ref())?;
//! let linear = Linear::from_container(&container, "model.layers.0.mlp.up_proj.weight", None)?;
//! let linear = linear.to_device(&device, DType::F16)?;
//! let x = Tensor::randn(0f32, 1.0, (1, linear.in_features()), &device)?.to_dtype(DType::F16)?;
//! assert_eq!(linear.forward(&x)?.dtype(), DType::F16);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The weights are copied once, by [`Linear::to_device`]; codes that have a kernel stay coded, all others become dense in the type
//! that was asked for. Everything is launched on candle's stream, so that it is in order with the
//! operations before and after it, and a product returns as soon as it is launched.

mod coded;
mod raw;

use candle_core::{CudaDevice, DType, Device, Tensor};

use crate::error::RuntimeError;
use crate::linear::{Linear, check_dtype, elsewhere};
use coded::CodedWeight;

/// The weights of a [`Linear`] in a device's memory.
#[derive(Debug)]
pub struct CudaLinear {
    device: CudaDevice,
    weight: Weight,
    /// `[out_features]`, f32, as sums are before they are rounded.
    bias: Option<Tensor>,
    out_features: usize,
    in_features: usize,
}

#[derive(Debug)]
enum Weight {
    /// `[out_features, in_features]`.
    Dense(Tensor),
    /// For a kernel of ours.
    Coded(Box<CodedWeight>),
}

impl CudaLinear {
    /// Copies `linear` to `device`; see [`Linear::to_device`].
    pub(crate) fn upload(linear: &Linear, device: &CudaDevice, dtype: DType) -> Result<Self, RuntimeError> {
        check_dtype(dtype)?;
        let (out_features, in_features) = (linear.out_features(), linear.in_features());
        let on_device = Device::Cuda(device.clone());
        let bias = linear.bias().map(|bias| Tensor::new(bias, &on_device)).transpose()?;
        let weight = match linear {
            Linear::Coded { weight, .. } => {
                CodedWeight::upload(weight, device)?.map(|weight| Weight::Coded(Box::new(weight)))
            }
            _ => None,
        };
        let weight = match weight {
            Some(weight) => weight,
            None => Weight::Dense(dense(linear, &on_device, dtype)?),
        };
        Ok(Self { device: device.clone(), weight, bias, out_features, in_features })
    }

    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.out_features, self.in_features)
    }

    /// The device that holds the weights.
    pub fn device(&self) -> Device {
        Device::Cuda(self.device.clone())
    }

    /// Whether the weights are still coded on the device.
    pub fn is_coded(&self) -> bool {
        matches!(self.weight, Weight::Coded(_))
    }

    /// Bytes of device memory that the weights take.
    pub fn device_bytes(&self) -> u64 {
        let dense = |t: &Tensor| (t.elem_count() * t.dtype().size_in_bytes()) as u64;
        let weight = match &self.weight {
            Weight::Dense(weight) => dense(weight),
            Weight::Coded(weight) => weight.bytes(),
        };
        weight + self.bias.as_ref().map_or(0, dense)
    }

    /// `x` `[n, in_features]`, contiguous, on this device: `[n, out_features]` in the type of `x`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, RuntimeError> {
        let location = self.device().location();
        if x.device().location() != location {
            return Err(elsewhere(location, x));
        }
        let n = x.dims2()?.0;
        if n == 0 {
            return Ok(Tensor::zeros((0, self.out_features), x.dtype(), x.device())?);
        }
        let y = match &self.weight {
            Weight::Dense(weight) => x.to_dtype(weight.dtype())?.matmul(&weight.t()?)?,
            Weight::Coded(weight) => weight.product(x)?,
        };
        let y = match &self.bias {
            Some(bias) => y.to_dtype(DType::F32)?.broadcast_add(bias)?,
            None => y,
        };
        Ok(y.to_dtype(x.dtype())?)
    }
}

/// The weight in its original basis as a tensor of `dtype` on `device`.
fn dense(linear: &Linear, device: &Device, dtype: DType) -> Result<Tensor, RuntimeError> {
    let rows: Vec<u32> = (0..linear.out_features() as u32).collect();
    // Some hundred rows at a time, so that the host never holds the whole matrix in f32.
    let blocks = rows.chunks(512).map(|ids| Ok(linear.gather(ids)?.to_dtype(dtype)?.to_device(device)?));
    Ok(Tensor::cat(&blocks.collect::<Result<Vec<_>, RuntimeError>>()?, 0)?)
}
