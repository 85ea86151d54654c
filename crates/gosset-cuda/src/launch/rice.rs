//! Matrices under Rice codes: points, values and products from the streams of a file.
//!
//! The device holds the words as the file has them; a stream is the unit that one thread decodes. Activations are in the
//! rotated frame: what [`Rht::forward`](gosset_codec::Rht::forward) makes of them.

use gosset_codec::{CodeHeader, Decoder, LatticeHeader, MatrixHeader, Plane, PlaneData, SchemeHeader};
use gosset_entropy::{STREAM_LEN, STREAMS_PER_PAGE};
use gosset_lattice::LatticeKind;

use super::checks::{check_len, to_u32};
use super::decoded::{ExactRows, PointType, Status, ValueType, find, padded, scale_bits};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{RiceDecodeParams, RiceRowsParams};
use crate::gpu::Gpu;
use crate::kernel::Launch;
use crate::memory::{Buffer, DevSlice, DevSliceMut};
use crate::stream::StreamRef;

/// Most columns of x that a product takes at once.
pub const MAX_BATCH: usize = 8;

/// A matrix under Rice codes on the device.
#[derive(Debug)]
pub struct RiceMatrix {
    rows: u32,
    cols: u32,
    lattice: LatticeKind,
    step: f32,
    ks: [u32; 2],
    n_words: u64,
    words: Buffer<u32>,
    bases: Buffer<u64>,
    offsets: Buffer<u32>,
    lengths: Buffer<u16>,
    scales: Buffer<u16>,
    exact: Option<ExactRows>,
    status: Status,
}

impl RiceMatrix {
    /// Checks header and planes and brings them to the device.
    ///
    /// # Errors
    /// [`CudaError::Codec`] for planes that no decoder accepts, [`CudaError::Unsupported`] for other codes,
    /// [`CudaError::OutOfMemory`].
    pub fn upload(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Self, CudaError> {
        // Everything that indexes memory below was checked here: lengths, pages, shapes.
        let decoder = Decoder::new(header, planes)?;
        let unsupported = || CudaError::Unsupported { op: "rice", what: header.codec_name().to_owned() };
        let SchemeHeader::Lattice(LatticeHeader { lattice, step, code: CodeHeader::Rice { ks }, .. }) = &header.scheme
        else {
            return Err(unsupported());
        };
        let (Some(PlaneData::U32(words)), Some(PlaneData::U16(lengths)), Some(PlaneData::U64(bases))) =
            (find(planes, "words"), find(planes, "lengths"), find(planes, "bases"))
        else {
            return Err(unsupported());
        };
        to_u32("streams of a matrix", lengths.len())?;
        let mut by_class = [0; 2];
        by_class.iter_mut().zip(ks).for_each(|(k, &found)| *k = u32::from(found));
        let offsets: Vec<u32> = lengths
            .chunks(STREAMS_PER_PAGE)
            .flat_map(|page| {
                page.iter().scan(0, |end, &length| {
                    let start = *end;
                    *end += u32::from(length);
                    Some(start)
                })
            })
            .collect();
        Ok(Self {
            rows: to_u32("rows", decoder.rows())?,
            cols: to_u32("columns", decoder.cols())?,
            lattice: lattice.0,
            step: *step,
            ks: by_class,
            n_words: words.len() as u64,
            words: gpu.upload(&padded(words))?,
            bases: gpu.upload(bases)?,
            offsets: gpu.upload(&offsets)?,
            lengths: gpu.upload(lengths)?,
            scales: gpu.upload(&scale_bits(planes))?,
            exact: ExactRows::upload(gpu, &decoder, planes)?,
            status: Status::new(gpu)?,
        })
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols as usize
    }

    /// Bytes on the device, everything counted.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let own = self.words.bytes() + self.bases.bytes() + self.offsets.bytes() + self.lengths.bytes();
        let exact = self.exact.as_ref().map_or(0, ExactRows::device_bytes);
        (own + self.scales.bytes() + self.status.bytes()) as u64 + exact
    }

    /// The first stream that a decoder found damaged, or whose points did not fit the asked type; waits for the device.
    ///
    /// # Errors
    /// What a transfer can fail with.
    pub fn damaged_stream(&self, gpu: &Gpu) -> Result<Option<usize>, CudaError> {
        self.status.damaged_stream(gpu)
    }

    /// The lattice points, `[rows, cols]`, as [`Decoder::decode_points`] has them.
    ///
    /// Damage is not an error of the launch: [`RiceMatrix::damaged_stream`] tells afterwards.
    ///
    /// # Errors
    /// [`CudaError::Shape`], and what a launch can fail with.
    pub fn decode_points<T: PointType>(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        out: DevSliceMut<'_, T>,
    ) -> Result<(), CudaError> {
        check_len("points of a matrix", out.len(), self.rows() * self.cols())?;
        // SAFETY: the length was checked, and the kind is that of the element type.
        unsafe { self.decode_kind(gpu, stream, T::KIND, out.ptr()) }
    }

    /// The values in the rotated frame, `[rows, cols]`: those of [`Decoder::decode_rows_rotated`], rounded to the nearest of
    /// the asked type.
    ///
    /// Damage is not an error of the launch: [`RiceMatrix::damaged_stream`] tells afterwards.
    ///
    /// # Errors
    /// [`CudaError::Shape`], and what a launch can fail with.
    pub fn decode<T: ValueType>(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        mut out: DevSliceMut<'_, T>,
    ) -> Result<(), CudaError> {
        check_len("values of a matrix", out.len(), self.rows() * self.cols())?;
        // SAFETY: the length was checked, and the kind is that of the element type.
        unsafe {
            self.decode_kind(gpu, stream, T::KIND, out.ptr())?;
            self.exact.as_ref().map_or(Ok(()), |exact| exact.copy(gpu, stream, &mut out))
        }
    }

    /// `y = W x`: `x` is `[n_batch, cols]` in the rotated frame, `y` is `[n_batch, rows]`, `n_batch` from 1 to [`MAX_BATCH`].
    ///
    /// Sums are f32 and in a fixed order. Straight from the streams, which every column decodes anew: any lattice and any
    /// shape, but slow; [`RicePlanes`](super::rice_planes::RicePlanes) is fast.
    ///
    /// # Errors
    /// [`CudaError::Shape`], and what a launch can fail with.
    pub fn gemm(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        mut y: DevSliceMut<'_, f32>,
    ) -> Result<(), CudaError> {
        let n_batch = x.len() / self.cols();
        if !(1..=MAX_BATCH).contains(&n_batch) {
            return Err(CudaError::shape("x of a product", format!("1 to {MAX_BATCH} columns"), n_batch));
        }
        check_len("x of a product", x.len(), n_batch * self.cols())?;
        check_len("y of a product", y.len(), n_batch * self.rows())?;
        let group = self.cols().div_ceil(STREAM_LEN).next_power_of_two().min(32) as u32;
        let params = RiceRowsParams {
            words: self.words.as_slice().ptr(),
            bases: self.bases.as_slice().ptr(),
            offsets: self.offsets.as_slice().ptr(),
            scales: self.scales.as_slice().ptr(),
            x: x.ptr(),
            y: y.ptr(),
            n_words: self.n_words,
            rows: self.rows,
            cols: self.cols,
            dim: self.lattice.dim() as u32,
            group,
            step: self.step,
            ks: self.ks,
        };
        let blocks = to_u32("blocks of a product", (self.rows() * group as usize).div_ceil(128))?;
        let launch = Launch { grid: [blocks, n_batch as u32, 1], block: [128, 1, 1], ..Launch::default() };
        // SAFETY: the lengths of x and y were checked; tables and words were when they were uploaded.
        unsafe {
            gpu.kernel(Module::RiceRows, "rice_rows")?.launch(stream, launch, &params)?;
            let exact = self.exact.as_ref();
            exact.map_or(Ok(()), |exact| exact.dot(gpu, stream, x, &mut y, n_batch as u32))
        }
    }

    /// [`RiceMatrix::gemm`] of one column.
    ///
    /// # Errors
    /// [`CudaError::Shape`], and what a launch can fail with.
    pub fn gemv(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
    ) -> Result<(), CudaError> {
        check_len("x of a product", x.len(), self.cols())?;
        self.gemm(gpu, stream, x, y)
    }

    /// Decodes all streams to elements of a kind.
    ///
    /// # Safety
    /// `out` points to `rows * cols` elements of this kind.
    unsafe fn decode_kind(&self, gpu: &Gpu, stream: StreamRef<'_>, kind: u32, out: u64) -> Result<(), CudaError> {
        let params = RiceDecodeParams {
            words: self.words.as_slice().ptr(),
            bases: self.bases.as_slice().ptr(),
            offsets: self.offsets.as_slice().ptr(),
            lengths: self.lengths.as_slice().ptr(),
            scales: self.scales.as_slice().ptr(),
            out,
            status: self.status.ptr(),
            n_words: self.n_words,
            n_streams: self.lengths.len() as u32,
            rows: self.rows,
            cols: self.cols,
            kind,
            dim: self.lattice.dim() as u32,
            step: self.step,
            ks: self.ks,
        };
        let grid = [params.n_streams.div_ceil(64), 1, 1];
        let launch = Launch { grid, block: [64, 1, 1], ..Launch::default() };
        // SAFETY: by the contract of this function; tables and words were checked when they were uploaded.
        unsafe { gpu.kernel(Module::RiceDecode, "rice_decode")?.launch(stream, launch, &params) }
    }
}
