//! Linear layers over weights that are dense, entropy-coded, or stored as they came.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Module, Tensor};
use gosset_codec::{DecodeScratch, Decoder};
use gosset_container::{CodedTensor, Container, UniSvqTensor};
use gosset_transform::{Rht, TilePlan};
use gosset_unisvq::FrameHeader;
use rayon::prelude::*;

use crate::columns;
use crate::error::RuntimeError;
use crate::row_blocks::{WeightRows, dense_product, product};
use crate::source::dequantize_rows;
use crate::tensor::{f32_slice, tensor2};
use crate::unisvq;
use crate::weights::{ContainerWeights, Weights};

/// `y = x Wᵀ + b`, whatever `W` is stored as.
///
/// `W` is `[out_features, in_features]`. Model code sees this type only, so that it exists once. Weights that are coded
/// stay so: a block of rows is decoded into scratch, multiplied and forgotten.
#[derive(Debug)]
#[non_exhaustive]
pub enum Linear {
    /// f32 in memory.
    Dense {
        /// `[out_features, in_features]`, contiguous.
        weight: Tensor,
        /// `[out_features]`.
        bias: Option<Vec<f32>>,
    },
    /// Entropy-coded in a container; multiplied in the rotated frame: the activation is rotated, the weight never.
    Coded {
        /// The planes in the file's map.
        weight: CodedTensor,
        /// `[out_features]`.
        bias: Option<Vec<f32>>,
    },
    /// Codes of an affine grid in a container; the activation enters the frame of the matrix, the map of the grid is folded into it, and
    /// the result leaves the frame.
    UniSvq {
        /// The codes in the file's map.
        weight: UniSvqTensor,
        /// `[out_features]`.
        bias: Option<Vec<f32>>,
    },
    /// Bytes of the source model in a container's map: F32, F16, BF16 or GGUF blocks.
    Blocks {
        /// Where the bytes are.
        weight: StoredRows,
        /// `[out_features]`.
        bias: Option<Vec<f32>>,
    },
    /// In the memory of a CUDA device of candle; made by [`Linear::to_device`].
    #[cfg(feature = "cuda")]
    Cuda(crate::candle_cuda::CudaLinear),
}

/// Name of the operation in errors.
const OP: &str = "linear";

/// Types of activations.
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Fails unless `dtype` is a type of activations.
pub(crate) fn check_dtype(dtype: DType) -> Result<(), RuntimeError> {
    if FLOATS.contains(&dtype) {
        return Ok(());
    }
    let supported = FLOATS.map(|d| format!("{d:?}")).join(", ");
    Err(RuntimeError::UnsupportedOp { op: OP, dtype: format!("{dtype:?}"), supported })
}

/// The error for a tensor that is not where the weights are.
pub(crate) fn elsewhere(weights: impl std::fmt::Debug, x: &Tensor) -> RuntimeError {
    let (expected, found) = (format!("{weights:?}"), format!("{:?}", x.device().location()));
    RuntimeError::TensorDevice { op: OP, expected, found }
}

/// A two-dimensional tensor that a container holds in the type of its source.
#[derive(Debug, Clone)]
pub struct StoredRows {
    container: Arc<Container>,
    name: String,
    rows: usize,
    cols: usize,
}

impl StoredRows {
    /// Tensor `name` of `container`, whose shape is `[rows, cols]`.
    pub(crate) fn new(container: Arc<Container>, name: &str, rows: usize, cols: usize) -> Self {
        Self { container, name: name.to_owned(), rows, cols }
    }
}

impl Linear {
    /// The layer of tensor `weight` of a container, in whatever form it is there, with tensor `bias` if one is named.
    ///
    /// # Errors
    /// [`RuntimeError::MissingTensor`] and [`RuntimeError::Container`] for names that are not there or no matrix,
    /// [`RuntimeError::Shape`] for a bias of another length.
    pub fn from_container(container: &Arc<Container>, weight: &str, bias: Option<&str>) -> Result<Self, RuntimeError> {
        let weights = ContainerWeights::new(Arc::clone(container));
        let values = bias.map(|name| weights.vector(name)).transpose()?;
        let n_values = values.as_ref().map(Vec::len);
        let linear = weights.linear(weight, values)?;
        match (bias, n_values) {
            (Some(name), Some(found)) if found != linear.out_features() => Err(RuntimeError::Shape {
                name: name.to_owned(),
                expected: vec![linear.out_features()],
                found: vec![found],
            }),
            _ => Ok(linear),
        }
    }

    /// Number of columns of the result.
    pub fn out_features(&self) -> usize {
        self.shape().0
    }

    /// Number of columns of the argument.
    pub fn in_features(&self) -> usize {
        self.shape().1
    }

    fn shape(&self) -> (usize, usize) {
        match self {
            Linear::Dense { weight, .. } => (weight.dims()[0], weight.dims()[1]),
            Linear::Coded { weight, .. } => (weight.header().rows as usize, weight.header().cols as usize),
            Linear::UniSvq { weight, .. } => (weight.header().rows as usize, weight.header().cols as usize),
            Linear::Blocks { weight, .. } => (weight.rows, weight.cols),
            #[cfg(feature = "cuda")]
            Linear::Cuda(weight) => weight.shape(),
        }
    }

    /// The layer in the memory of a CUDA device of candle, which is then its only place of work.
    ///
    /// Codes that have a kernel stay coded there; all other weights become dense in `dtype`, and are multiplied in it. The result
    /// takes activations in F32, F16 and BF16 and answers in the same type.
    ///
    /// # Errors
    /// [`RuntimeError::UnsupportedOp`] for a `dtype` that is none of these, [`RuntimeError::TensorDevice`] for a device that is no
    /// CUDA device or weights that are on one already, [`RuntimeError::Cuda`] where the kernels cannot run.
    #[cfg(feature = "cuda")]
    pub fn to_device(&self, device: &candle_core::Device, dtype: DType) -> Result<Self, RuntimeError> {
        let refused =
            |expected: &str, found| RuntimeError::TensorDevice { op: OP, expected: expected.to_owned(), found };
        match (self, device) {
            (Linear::Cuda(_), _) => Err(refused("weights on the CPU", format!("{:?}", device.location()))),
            (_, candle_core::Device::Cuda(device)) => {
                Ok(Linear::Cuda(crate::candle_cuda::CudaLinear::upload(self, device, dtype)?))
            }
            _ => Err(refused("a CUDA device", format!("{:?}", device.location()))),
        }
    }

    /// `[out_features]`, if there is one on the CPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn bias(&self) -> Option<&[f32]> {
        match self {
            Linear::Dense { bias, .. }
            | Linear::Coded { bias, .. }
            | Linear::UniSvq { bias, .. }
            | Linear::Blocks { bias, .. } => bias.as_deref(),
            Linear::Cuda(_) => None,
        }
    }

    /// Bytes on the heap, that is without what the file's map holds.
    pub fn heap_bytes(&self) -> usize {
        let (bias, weight) = match self {
            Linear::Dense { weight, bias } => (bias, weight.elem_count()),
            Linear::Coded { bias, .. } | Linear::UniSvq { bias, .. } | Linear::Blocks { bias, .. } => (bias, 0),
            #[cfg(feature = "cuda")]
            Linear::Cuda(_) => return 0,
        };
        (weight + bias.as_ref().map_or(0, Vec::len)) * size_of::<f32>()
    }

    /// The layer's value for `x` `[n, in_features]`: `[n, out_features]`.
    pub(crate) fn apply(&self, x: &Activation) -> Result<Tensor, RuntimeError> {
        let (n, cols) = x.plain.dims2()?;
        if cols != self.in_features() {
            return Err(RuntimeError::Shape {
                name: "(activation)".to_owned(),
                expected: vec![n, self.in_features()],
                found: vec![n, cols],
            });
        }
        let (mut y, bias) = match self {
            Linear::Dense { weight, bias } => {
                (dense_product(&f32_slice(weight)?, &f32_slice(&x.plain)?, n, cols), bias)
            }
            Linear::Coded { weight, bias } => {
                let decoder = weight.decoder()?;
                let x = match decoder.rotation() {
                    Some(rht) => x.rotated(rht)?,
                    None => x.plain.clone(),
                };
                let x = f32_slice(&x)?;
                let y = match decoder.n_column_streams() {
                    Some(_) => columns::product(&decoder, &x, n)?,
                    None => product(&CodedRows(decoder), &x, n)?,
                };
                (y, bias)
            }
            Linear::UniSvq { weight, bias } => (unisvq::multiply(weight, x, n)?, bias),
            Linear::Blocks { weight, bias } => (product(&weight.open()?, &f32_slice(&x.plain)?, n)?, bias),
            #[cfg(feature = "cuda")]
            Linear::Cuda(weight) => return weight.forward(&x.plain),
        };
        if let Some(bias) = bias {
            y.par_chunks_mut(bias.len()).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
        tensor2(y, n, self.out_features())
    }

    /// Rows `ids` of the weight in its original basis, `[ids.len(), in_features]`: the weight as an embedding table.
    ///
    /// Only these rows are decoded. Every id is below `out_features`.
    pub(crate) fn gather(&self, ids: &[u32]) -> Result<Tensor, RuntimeError> {
        let cols = self.in_features();
        let mut out = vec![0f32; ids.len() * cols];
        let rows = out.par_chunks_mut(cols).zip(ids).map(|(out, &id)| (out, id as usize));
        match self {
            Linear::Dense { weight, .. } => {
                let weight = f32_slice(weight)?;
                let weight: &[f32] = &weight;
                rows.for_each(|(out, id)| out.copy_from_slice(&weight[id * cols..][..cols]));
            }
            Linear::Coded { weight, .. } => {
                let decoder = weight.decoder()?;
                rows.try_for_each_init(DecodeScratch::new, |scratch, (out, id)| {
                    decoder.decode_rows(id..id + 1, out, scratch).map_err(RuntimeError::from)
                })?;
            }
            Linear::UniSvq { weight, .. } => unisvq::gather(weight, ids, &mut out)?,
            Linear::Blocks { weight, .. } => {
                let stored = weight.open()?;
                rows.try_for_each(|(out, id)| stored.fill(id..id + 1, out, &mut ()))?;
            }
            #[cfg(feature = "cuda")]
            Linear::Cuda(weight) => {
                return Err(RuntimeError::TensorDevice {
                    op: "gather",
                    expected: "weights on the CPU".to_owned(),
                    found: format!("{:?}", weight.device().location()),
                });
            }
        }
        tensor2(out, ids.len(), cols)
    }
}

impl Linear {
    /// [`apply`](Self::apply) for activations of any type, wherever the weights are.
    fn module(&self, x: Tensor) -> Result<Tensor, RuntimeError> {
        check_dtype(x.dtype())?;
        #[cfg(feature = "cuda")]
        if let Linear::Cuda(weight) = self {
            return weight.forward(&x);
        }
        if !x.device().is_cpu() {
            return Err(elsewhere(candle_core::DeviceLocation::Cpu, &x));
        }
        let dtype = x.dtype();
        Ok(self.apply(&Activation::new(x.to_dtype(DType::F32)?))?.to_dtype(dtype)?)
    }
}

impl Module for Linear {
    /// [`Linear`] as candle sees it: the last dimension of `x` is `in_features`, the others are kept, and so are the device and the
    /// type of `x`, which is F32, F16 or BF16. On the CPU sums are in f32 whatever the type is.
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let mut dims = x.dims().to_vec();
        if dims.last() != Some(&self.in_features()) {
            let (expected, found) = (self.in_features(), x.shape());
            candle_core::bail!("expected in_features = {expected} as the last dimension, found shape {found:?}");
        }
        let n: usize = dims[..dims.len() - 1].iter().product();
        let flat = x.contiguous()?.reshape((n, self.in_features()))?;
        let y = self.module(flat).map_err(candle_core::Error::wrap)?;
        if let Some(last) = dims.last_mut() {
            *last = self.out_features();
        }
        y.reshape(dims)
    }
}

/// The input of one or several linear layers, with its rotated copies: layers of the same rotation share one.
pub(crate) struct Activation {
    plain: Tensor,
    rotated: RefCell<Vec<(TilePlan, u64, Tensor)>>,
    framed: RefCell<Vec<(FrameHeader, Tensor)>>,
}

impl Activation {
    /// Around `x`, `[n, features]`, contiguous f32.
    pub(crate) fn new(x: Tensor) -> Self {
        Self { plain: x, rotated: RefCell::new(Vec::new()), framed: RefCell::new(Vec::new()) }
    }

    /// The input as it came.
    pub(crate) fn plain(&self) -> &Tensor {
        &self.plain
    }

    /// The input in a frame with the signs of its seed; `enter` makes it from the plain one, the first time.
    pub(crate) fn in_frame(
        &self,
        frame: &FrameHeader,
        enter: impl FnOnce(&Tensor) -> Result<Tensor, RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        let mut known = self.framed.borrow_mut();
        if let Some((_, x)) = known.iter().find(|(of, _)| of == frame) {
            return Ok(x.clone());
        }
        let x = enter(&self.plain)?;
        known.push((frame.clone(), x.clone()));
        Ok(x)
    }

    fn rotated(&self, rht: &Rht) -> Result<Tensor, RuntimeError> {
        let mut known = self.rotated.borrow_mut();
        if let Some((_, _, x)) = known.iter().find(|(plan, seed, _)| plan == rht.plan() && *seed == rht.seed()) {
            return Ok(x.clone());
        }
        let (n, cols) = self.plain.dims2()?;
        let mut rows = f32_slice(&self.plain)?.to_vec();
        rows.par_chunks_mut(cols).with_min_len(8).for_each(|row| rht.forward(row));
        let x = tensor2(rows, n, cols)?;
        known.push((rht.plan().clone(), rht.seed(), x.clone()));
        Ok(x)
    }
}

/// A coded matrix in the frame of the rotated activation.
struct CodedRows<'a>(Decoder<'a>);

impl WeightRows for CodedRows<'_> {
    type Scratch = DecodeScratch;

    fn shape(&self) -> (usize, usize) {
        (self.0.rows(), self.0.cols())
    }

    fn row_step(&self) -> usize {
        self.0.row_block()
    }

    fn fill(&self, rows: Range<usize>, out: &mut [f32], scratch: &mut DecodeScratch) -> Result<(), RuntimeError> {
        Ok(self.0.decode_rows_rotated(rows, out, scratch)?)
    }
}

impl StoredRows {
    fn open(&self) -> Result<OpenRows<'_>, RuntimeError> {
        let raw = self.container.raw(&self.name)?;
        Ok(OpenRows { dtype: raw.dtype, bytes: raw.bytes, rows: self.rows, cols: self.cols })
    }
}

/// The bytes of a [`StoredRows`], checked and ready to read.
struct OpenRows<'a> {
    dtype: &'a str,
    bytes: &'a [u8],
    rows: usize,
    cols: usize,
}

impl WeightRows for OpenRows<'_> {
    type Scratch = ();

    fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    fn row_step(&self) -> usize {
        1
    }

    fn fill(&self, rows: Range<usize>, out: &mut [f32], (): &mut ()) -> Result<(), RuntimeError> {
        dequantize_rows(self.dtype, self.bytes, self.cols, rows, out)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn candle_sees_a_module_that_keeps_leading_dimensions() {
        let weight = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0], (2, 3), &Device::Cpu).unwrap();
        let linear = Linear::Dense { weight, bias: Some(vec![0.5, -0.5]) };
        assert_eq!((linear.out_features(), linear.in_features(), linear.heap_bytes()), (2, 3, 32));
        let x = Tensor::from_vec((0..12).map(|v| v as f32).collect::<Vec<_>>(), (2, 2, 3), &Device::Cpu).unwrap();
        let y = linear.forward(&x).unwrap();
        assert_eq!(y.dims(), [2, 2, 2]);
        let expected = [[[8.5, 16.5], [26.5, 61.5]], [[44.5, 106.5], [62.5, 151.5]]];
        assert_eq!(y.to_vec3::<f32>().unwrap(), expected);
        let transposed = x.reshape((3, 4)).unwrap().t().unwrap();
        assert_eq!(linear.forward(&transposed).unwrap().dims(), [4, 2]);
        assert!(linear.forward(&x.reshape((6, 2)).unwrap()).is_err(), "two columns are not three");
    }

    #[test]
    fn h06_the_type_of_the_activation_is_kept_or_refused_by_name() {
        let weight = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0], (2, 3), &Device::Cpu).unwrap();
        let linear = Linear::Dense { weight, bias: None };
        let x = Tensor::from_vec((0..6).map(|v| v as f32).collect::<Vec<_>>(), (2, 3), &Device::Cpu).unwrap();
        for dtype in FLOATS {
            let y = linear.forward(&x.to_dtype(dtype).unwrap()).unwrap();
            assert_eq!(y.dtype(), dtype);
            let y = y.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
            assert_eq!(y, [[8.0, 17.0], [26.0, 62.0]]);
        }
        for dtype in [DType::F64, DType::U32, DType::U8, DType::I64] {
            let error = linear.forward(&x.to_dtype(dtype).unwrap()).unwrap_err().to_string();
            assert!(error.contains("linear") && error.contains(&format!("{dtype:?}")), "{error}");
        }
        let none = x.narrow(0, 0, 0).unwrap();
        assert_eq!(linear.forward(&none).unwrap().dims(), [0, 2]);
    }
}
