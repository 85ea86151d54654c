//! Matrices under ANS codes, of lattices and of the entropy-coded trellis: points and values.
//!
//! One thread decodes one stream of 32768 (lattices) or 16384 (trellis) values, so a matrix has little parallelism: these
//! kernels are for loading, where a matrix is decoded once to f16 or bf16.

use std::sync::Arc;

use gosset_codec::device::{AnsTables, TrellisTables, lattice_ans_tables, trellis_tables};
use gosset_codec::{Decoder, MatrixHeader, Plane, PlaneData, SchemeHeader};
use gosset_lattice::LatticeKind;

use super::checks::{check_len, to_u32};
use super::decoded::{ExactRows, PointType, Status, ValueType, find, padded, scale_bits};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{AnsLatticeParams, AnsTrellisParams};
use crate::gpu::Gpu;
use crate::kernel::Launch;
use crate::memory::{Buffer, DevSliceMut};
use crate::stream::StreamRef;

/// Threads of a block: one warp, so that few streams spread over many multiprocessors.
const BLOCK: u32 = 32;

/// Bytes of the state table of one context.
const TABLE_BYTES: u32 = 4096;

/// A matrix under an ANS code on the device.
#[derive(Debug)]
pub struct AnsMatrix {
    rows: u32,
    cols: u32,
    step: f32,
    raw_bits: u32,
    kind: Kind,
    words: Buffer<u32>,
    starts: Buffer<u64>,
    tables: Arc<Buffer<u32>>,
    escapes: Buffer<i32>,
    scales: Buffer<u16>,
    exact: Option<ExactRows>,
    status: Status,
}

/// What the decoded numbers are.
#[derive(Debug)]
enum Kind {
    Lattice(LatticeKind),
    Trellis { units: Buffer<f32>, taps: [u32; 2] },
}

impl AnsMatrix {
    /// Checks header and planes and brings them to the device.
    ///
    /// # Errors
    /// [`CudaError::Codec`] for planes that no decoder accepts, [`CudaError::Unsupported`] for other codes,
    /// [`CudaError::OutOfMemory`].
    pub fn upload(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Self, CudaError> {
        // Everything that indexes memory below was checked here: lengths, shapes, tables.
        let decoder = Decoder::new(header, planes)?;
        let unsupported = || CudaError::Unsupported { op: "ans", what: header.codec_name().to_owned() };
        let (tables, kind, step) = match &header.scheme {
            SchemeHeader::Lattice(lattice) => (
                lattice_ans_tables(lattice).map_err(|_| unsupported())?,
                Kind::Lattice(lattice.lattice.0),
                lattice.step,
            ),
            SchemeHeader::Trellis(trellis) => {
                let TrellisTables { ans, units, taps } = trellis_tables(trellis)?;
                (ans, Kind::Trellis { units: gpu.upload(&units)?, taps }, trellis.step)
            }
            _ => return Err(unsupported()),
        };
        let (Some(PlaneData::U32(words)), Some(PlaneData::U16(lengths))) =
            (find(planes, "words"), find(planes, "lengths"))
        else {
            return Err(unsupported());
        };
        to_u32("streams of a matrix", lengths.len())?;
        let ends = lengths.iter().scan(0, |end, &length| {
            *end += u64::from(length);
            Some(*end)
        });
        let starts: Vec<u64> = std::iter::once(0).chain(ends).collect();
        let AnsTables { entries, escapes, raw_bits } = tables;
        Ok(Self {
            rows: to_u32("rows", decoder.rows())?,
            cols: to_u32("columns", decoder.cols())?,
            step,
            raw_bits,
            kind,
            words: gpu.upload(&padded(words))?,
            starts: gpu.upload(&starts)?,
            tables: gpu.table(entries)?,
            escapes: gpu.upload(escapes.as_flattened())?,
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

    /// Bytes on the device; state tables, 4 to 32 KB, are shared by all matrices that name them and not counted.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let own = self.words.bytes() + self.starts.bytes() + self.escapes.bytes();
        let units = match &self.kind {
            Kind::Lattice(_) => 0,
            Kind::Trellis { units, .. } => units.bytes(),
        };
        let exact = self.exact.as_ref().map_or(0, ExactRows::device_bytes);
        (own + units + self.scales.bytes() + self.status.bytes()) as u64 + exact
    }

    /// The first stream that a decoder found damaged, or whose points did not fit the asked type; waits for the device.
    ///
    /// # Errors
    /// What a transfer can fail with.
    pub fn damaged_stream(&self, gpu: &Gpu) -> Result<Option<usize>, CudaError> {
        self.status.damaged_stream(gpu)
    }

    /// The points, `[rows, cols]`, as [`Decoder::decode_points`] has them.
    ///
    /// Damage is not an error of the launch: [`AnsMatrix::damaged_stream`] tells afterwards.
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
    /// Damage is not an error of the launch: [`AnsMatrix::damaged_stream`] tells afterwards.
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

    /// Decodes all streams to elements of a kind.
    ///
    /// # Safety
    /// `out` points to `rows * cols` elements of this kind.
    unsafe fn decode_kind(&self, gpu: &Gpu, stream: StreamRef<'_>, kind: u32, out: u64) -> Result<(), CudaError> {
        let n_streams = (self.starts.len() - 1) as u32;
        let n_contexts = (self.escapes.len() / 4) as u32;
        let launch = Launch {
            grid: [n_streams.div_ceil(BLOCK), 1, 1],
            block: [BLOCK, 1, 1],
            shared_bytes: n_contexts * TABLE_BYTES,
            ..Launch::default()
        };
        match &self.kind {
            &Kind::Lattice(lattice) => {
                let params = AnsLatticeParams {
                    words: self.words.as_slice().ptr(),
                    starts: self.starts.as_slice().ptr(),
                    tables: self.tables.as_slice().ptr(),
                    escapes: self.escapes.as_slice().ptr(),
                    scales: self.scales.as_slice().ptr(),
                    out,
                    status: self.status.ptr(),
                    n_streams,
                    n_contexts,
                    rows: self.rows,
                    cols: self.cols,
                    kind,
                    dim: lattice.dim() as u32,
                    raw_bits: self.raw_bits,
                    step: self.step,
                };
                // SAFETY: by the contract of this function; tables and words were checked when they were uploaded.
                unsafe { gpu.kernel(Module::AnsLattice, "ans_lattice")?.launch(stream, launch, &params) }
            }
            Kind::Trellis { units, taps } => {
                let params = AnsTrellisParams {
                    words: self.words.as_slice().ptr(),
                    starts: self.starts.as_slice().ptr(),
                    tables: self.tables.as_slice().ptr(),
                    escapes: self.escapes.as_slice().ptr(),
                    units: units.as_slice().ptr(),
                    scales: self.scales.as_slice().ptr(),
                    out,
                    status: self.status.ptr(),
                    n_streams,
                    reach: (units.len() / 2) as u32,
                    rows: self.rows,
                    cols: self.cols,
                    kind,
                    raw_bits: self.raw_bits,
                    step: self.step,
                    taps: *taps,
                };
                // SAFETY: by the contract of this function; tables and words were checked when they were uploaded.
                unsafe { gpu.kernel(Module::AnsTrellis, "ans_trellis")?.launch(stream, launch, &params) }
            }
        }
    }
}
