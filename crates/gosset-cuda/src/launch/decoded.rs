//! What decoders write: the element types, and rows that a matrix stores exactly.

use std::borrow::Cow;

use gosset_codec::{Decoder, Plane, PlaneData};
use half::{bf16, f16};

use super::checks::to_u32;
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{ExactCopyParams, ExactDotParams};
use crate::gpu::Gpu;
use crate::kernel::Launch;
use crate::memory::{Buffer, DevSlice, DevSliceMut, DeviceType};
use crate::stream::StreamRef;

/// Element types of decoded points; a decoder reports streams whose points do not fit.
pub trait PointType: DeviceType {
    /// Number of the type in the kernels.
    #[doc(hidden)]
    const KIND: u32;
}

/// Element types of decoded values.
pub trait ValueType: DeviceType {
    /// Number of the type in the kernels.
    #[doc(hidden)]
    const KIND: u32;
}

impl PointType for i32 {
    const KIND: u32 = 0;
}
impl PointType for i16 {
    const KIND: u32 = 1;
}
impl PointType for i8 {
    const KIND: u32 = 2;
}
impl ValueType for f32 {
    const KIND: u32 = 3;
}
impl ValueType for f16 {
    const KIND: u32 = 4;
}
impl ValueType for bf16 {
    const KIND: u32 = 5;
}

/// Where decoders note the first stream that they found damaged.
#[derive(Debug)]
pub(super) struct Status(Buffer<u32>);

impl Status {
    /// What stands there as long as no stream was found damaged.
    const INTACT: u32 = u32::MAX;

    pub(super) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self(gpu.upload(&[Self::INTACT])?))
    }

    /// For the kernels, which put the least number of a damaged stream there, plus one.
    pub(super) fn ptr(&self) -> u64 {
        self.0.as_slice().ptr()
    }

    /// Bytes on the device.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The first damaged stream; waits for the device.
    pub(super) fn damaged_stream(&self, gpu: &Gpu) -> Result<Option<usize>, CudaError> {
        let status = gpu.download(self.0.as_slice())?;
        Ok(status.first().filter(|&&first| first != Self::INTACT).map(|&first| first as usize - 1))
    }
}

/// Rows that a matrix stores exactly, in the rotated frame on the device.
#[derive(Debug)]
pub(super) struct ExactRows {
    index: Buffer<u32>,
    values: Buffer<f32>,
    rows: u32,
    cols: u32,
}

impl ExactRows {
    /// Uploads the exact rows of a checked matrix; `None` if it has none.
    pub(super) fn upload(gpu: &Gpu, decoder: &Decoder<'_>, planes: &[Plane<'_>]) -> Result<Option<Self>, CudaError> {
        let (Some(PlaneData::U32(index)), Some(PlaneData::F32(values))) =
            (find(planes, "exact_rows"), find(planes, "exact_values"))
        else {
            return Ok(None);
        };
        if index.is_empty() {
            return Ok(None);
        }
        let cols = decoder.cols();
        let mut values = values.to_vec();
        if let Some(rht) = decoder.rotation() {
            values.chunks_exact_mut(cols).for_each(|row| rht.forward(row));
        }
        Ok(Some(Self {
            index: gpu.upload(index)?,
            values: gpu.upload(&values)?,
            rows: to_u32("rows", decoder.rows())?,
            cols: to_u32("columns", cols)?,
        }))
    }

    /// Bytes on the device.
    pub(super) fn device_bytes(&self) -> u64 {
        (self.index.bytes() + self.values.bytes()) as u64
    }

    /// Writes the exact rows' products into `y`, `[n_batch, rows]`.
    ///
    /// # Safety
    /// `x` has `n_batch * cols` elements and `y` `n_batch * rows`.
    pub(super) unsafe fn dot(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        y: &mut DevSliceMut<'_, f32>,
        n_batch: u32,
    ) -> Result<(), CudaError> {
        let params = ExactDotParams {
            values: self.values.as_slice().ptr(),
            index: self.index.as_slice().ptr(),
            x: x.ptr(),
            y: y.ptr(),
            rows: self.rows,
            cols: self.cols,
        };
        let launch = Launch { grid: [self.index.len() as u32, n_batch, 1], block: [256, 1, 1], ..Launch::default() };
        // SAFETY: by the contract of this function; rows of `index` were checked to lie in the matrix.
        unsafe { gpu.kernel(Module::RiceExact, "exact_dot")?.launch(stream, launch, &params) }
    }

    /// Writes the exact rows into `out`, `[rows, cols]`.
    ///
    /// # Safety
    /// `out` has `rows * cols` elements.
    pub(super) unsafe fn copy<T: ValueType>(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        out: &mut DevSliceMut<'_, T>,
    ) -> Result<(), CudaError> {
        let params = ExactCopyParams {
            values: self.values.as_slice().ptr(),
            index: self.index.as_slice().ptr(),
            out: out.ptr(),
            cols: self.cols,
            kind: T::KIND,
        };
        let launch = Launch { grid: [self.index.len() as u32, 1, 1], block: [256, 1, 1], ..Launch::default() };
        // SAFETY: by the contract of this function; rows of `index` were checked to lie in the matrix.
        unsafe { gpu.kernel(Module::RiceExact, "exact_copy")?.launch(stream, launch, &params) }
    }
}

/// The elements of a plane.
pub(super) fn find<'p, 'a>(planes: &'p [Plane<'a>], name: &str) -> Option<&'p PlaneData<'a>> {
    planes.iter().find(|plane| plane.name == name).map(|plane| &plane.data)
}

/// Words up to a multiple of four, which is how readers of bits fetch them.
pub(super) fn padded(words: &[u32]) -> Cow<'_, [u32]> {
    match words.len() % 4 {
        0 => Cow::Borrowed(words),
        rest => [words, &[0; 3][..4 - rest]].concat().into(),
    }
}

/// The bits of the row scales.
pub(super) fn scale_bits(planes: &[Plane<'_>]) -> Vec<u16> {
    match find(planes, "scales") {
        Some(PlaneData::Bf16(scales)) => scales.iter().map(|scale| scale.to_bits()).collect(),
        _ => Vec::new(),
    }
}
