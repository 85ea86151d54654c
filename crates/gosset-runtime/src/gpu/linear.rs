//! Weight matrices on the device: dense, or in the form in which their container holds them.

use std::borrow::Cow;

use gosset_codec::{
    CodeHeader, DecodeScratch, LatticeHeader, MatrixHeader, Plane, PlaneData, RotationHeader, SchemeHeader,
};
use gosset_container::{CodedTensor, UniSvqTensor};
use gosset_cuda::launch::model::{DenseElement, ROTATED_TILE, Rows, dense, dense_strided};
use gosset_cuda::launch::rht::{DeviceRht, RhtOutput};
use gosset_cuda::launch::rice::{MAX_BATCH as RICE_BATCH, RiceMatrix};
use gosset_cuda::launch::rice_planes::{RicePlanes, RiceScratch};
use gosset_cuda::launch::shift::ShiftMatrix;
use gosset_cuda::launch::unisvq::{DeviceUniSvq, UniSvqNeeds, UniSvqWorkspace};
use gosset_cuda::{Buffer, CudaError, DevSlice, DevSliceMut, Gpu, StreamRef};
use gosset_unisvq::UniSvqDecoder;
use half::{bf16, f16};
use rayon::prelude::*;

use super::DenseType;
use crate::error::RuntimeError;
use crate::weights::{Stored, Weights};

/// Weights that one task of an upload converts.
const TASK_LEN: usize = 1 << 20;

/// Weights that are dequantized at a time where a product is made from dense ones: 32 MiB of f32.
const CHUNK_LEN: usize = 8 << 20;

/// Rows of shift-coded matrices that are decoded together.
const SHIFT_ROWS: usize = 16;

/// A dense matrix in one of the types that products take.
#[derive(Debug)]
pub(crate) enum DenseWeights {
    F32(Buffer<f32>),
    F16(Buffer<f16>),
    Bf16(Buffer<bf16>),
}

/// One weight matrix, `[rows, cols]`.
#[derive(Debug)]
pub(crate) enum DeviceLinear {
    Dense {
        weights: DenseWeights,
        rows: usize,
        cols: usize,
    },
    /// Fixed-rate trellis codes.
    Shift(Box<ShiftMatrix>),
    /// Rice codes of lattice points; activations are rotated first.
    Rice {
        matrix: RiceWeights,
        rotation: Option<Box<DeviceRht>>,
    },
    /// Affine-grid codes; products rotate both sides.
    UniSvq(Box<DeviceUniSvq>),
}

/// Rice codes in one of the layouts that products take.
#[derive(Debug)]
pub(crate) enum RiceWeights {
    /// The streams of the file: any lattice and any shape.
    Streams(Box<RiceMatrix>),
    /// The codes of E8 laid out in planes: the fast one.
    Planes(Box<RicePlanes>),
}

impl RiceWeights {
    fn rows(&self) -> usize {
        match self {
            Self::Streams(matrix) => matrix.rows(),
            Self::Planes(matrix) => matrix.rows(),
        }
    }

    fn cols(&self) -> usize {
        match self {
            Self::Streams(matrix) => matrix.cols(),
            Self::Planes(matrix) => matrix.cols(),
        }
    }

    fn device_bytes(&self) -> u64 {
        match self {
            Self::Streams(matrix) => matrix.device_bytes(),
            Self::Planes(matrix) => matrix.device_bytes(),
        }
    }
}

/// Memory that products need beside weights and activations.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Rotated activations.
    rotated: Buffer<f32>,
    /// Dequantized rows.
    chunk: Buffer<f32>,
    rice: RiceScratch,
    unisvq: UniSvqWorkspace,
}

/// Sizes of a [`Workspace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Needs {
    /// Columns of the widest activation that is rotated by itself.
    rotated_cols: usize,
    /// Weights of the largest piece that is dequantized for batches.
    chunk_len: usize,
    /// Sums and counters of products with Rice codes.
    rice: (usize, usize),
    /// Most rows and columns of matrices of affine-grid codes.
    unisvq: (usize, usize),
}

impl Needs {
    /// The larger of both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            rotated_cols: self.rotated_cols.max(other.rotated_cols),
            chunk_len: self.chunk_len.max(other.chunk_len),
            rice: (self.rice.0.max(other.rice.0), self.rice.1.max(other.rice.1)),
            unisvq: (self.unisvq.0.max(other.unisvq.0), self.unisvq.1.max(other.unisvq.1)),
        }
    }

    /// Bytes of a workspace for `rows` rows.
    pub(crate) fn bytes(self, rows: usize) -> u64 {
        let chunk = if rows > 1 { self.chunk_len } else { 0 };
        4 * (rows * self.rotated_cols + chunk + self.rice.0 + self.rice.1) as u64 + self.unisvq(rows).bytes()
    }

    fn unisvq(self, rows: usize) -> UniSvqNeeds {
        match self.unisvq {
            (0, _) => UniSvqNeeds::default(),
            (outputs, inputs) => UniSvqNeeds::new(outputs, inputs, rows),
        }
    }
}

impl Workspace {
    /// For activations of `rows` rows.
    pub(crate) fn new(gpu: &Gpu, needs: Needs, rows: usize) -> Result<Self, CudaError> {
        let chunk = if rows > 1 { needs.chunk_len } else { 0 };
        let mut unisvq = UniSvqWorkspace::new();
        unisvq.reserve(gpu, needs.unisvq(rows))?;
        Ok(Self {
            unisvq,
            rotated: gpu.alloc(rows * needs.rotated_cols)?,
            chunk: gpu.alloc(chunk)?,
            rice: RiceScratch::of_len(gpu, needs.rice.0, needs.rice.1)?,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.rotated.bytes() + self.chunk.bytes()) as u64 + self.rice.device_bytes() + self.unisvq.bytes()
    }
}

impl DeviceLinear {
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Dense { rows, .. } => *rows,
            Self::Shift(matrix) => matrix.rows(),
            Self::Rice { matrix, .. } => matrix.rows(),
            Self::UniSvq(matrix) => matrix.rows(),
        }
    }

    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "asked by layers on candle's device"))]
    pub(crate) fn cols(&self) -> usize {
        match self {
            Self::Dense { cols, .. } => *cols,
            Self::Shift(matrix) => matrix.cols(),
            Self::Rice { matrix, .. } => matrix.cols(),
            Self::UniSvq(matrix) => matrix.cols(),
        }
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        match self {
            Self::Dense { weights, .. } => weights.bytes(),
            Self::Shift(matrix) => matrix.device_bytes() as u64,
            Self::Rice { matrix, rotation } => {
                matrix.device_bytes() + rotation.as_ref().map_or(0, |rht| 4 * rht.words().len() as u64)
            }
            Self::UniSvq(matrix) => matrix.bytes() as u64,
        }
    }

    /// A coded matrix as it is, or `None` if there is no product for its code.
    #[cfg(feature = "cuda")]
    pub(crate) fn coded(gpu: &Gpu, tensor: &CodedTensor) -> Result<Option<Self>, RuntimeError> {
        let stored = Stored::Coded(tensor.clone());
        match stored.form(DenseType::F32) {
            form @ (Form::Shift | Form::Rice) => upload_coded(gpu, form, &stored).map(Some),
            Form::UniSvq | Form::F32 | Form::F16 | Form::Bf16 => Ok(None),
        }
    }

    /// What products with the matrix need.
    pub(crate) fn needs(&self) -> Needs {
        match self {
            Self::Dense { .. } => Needs::default(),
            Self::Shift(matrix) => {
                let (rows, cols) = (matrix.rows(), matrix.cols());
                Needs { rotated_cols: cols, chunk_len: chunk_rows(rows, cols) * cols, ..Needs::default() }
            }
            Self::Rice { matrix, rotation } => {
                let rice = match matrix {
                    RiceWeights::Streams(_) => (0, 0),
                    RiceWeights::Planes(matrix) => matrix.scratch_len(RICE_BATCH),
                };
                let rotated_cols = rotation.as_ref().map_or(0, |_| matrix.cols());
                Needs { rotated_cols, rice, ..Needs::default() }
            }
            Self::UniSvq(matrix) => Needs { unisvq: (matrix.rows(), matrix.cols()), ..Needs::default() },
        }
    }

    /// `y = x wᵀ`; `x` is `[batch, cols]` as layers outside of a model have it, `y` `[batch, rows]`.
    #[cfg(feature = "cuda")]
    pub(crate) fn product(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        batch: usize,
        y: DevSliceMut<'_, f32>,
        ws: &mut Workspace,
    ) -> Result<(), CudaError> {
        self.forward(gpu, stream, x, false, batch, y, ws)
    }

    /// `y = x wᵀ`; `x` is `[batch, cols]`, `rotated` already or not, `y` `[batch, rows]`.
    #[expect(clippy::too_many_arguments, reason = "one call site")]
    fn forward(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        rotated: bool,
        batch: usize,
        mut y: DevSliceMut<'_, f32>,
        ws: &mut Workspace,
    ) -> Result<(), CudaError> {
        match self {
            Self::Dense { weights, rows, cols } => {
                let shape = (*rows, *cols);
                match weights {
                    DenseWeights::F32(w) => dense(gpu, stream, w.as_slice(), shape, x, batch, y),
                    DenseWeights::F16(w) => dense(gpu, stream, w.as_slice(), shape, x, batch, y),
                    DenseWeights::Bf16(w) => dense(gpu, stream, w.as_slice(), shape, x, batch, y),
                }
            }
            Self::Shift(matrix) if batch == 1 && !rotated && matrix.fuses_rotation() => matrix.gemv(stream, x, y),
            Self::Shift(matrix) => {
                let Workspace { rotated: room, chunk, .. } = ws;
                let x = rotate(stream, matrix.rotation().filter(|_| !rotated), x, batch, room)?;
                if batch == 1 {
                    return matrix.gemv_rotated(stream, x, y);
                }
                let (rows, cols) = (matrix.rows(), matrix.cols());
                let step = chunk_rows(rows, cols);
                for first in (0..rows).step_by(step) {
                    let n = step.min(rows - first);
                    let mut weights = chunk.as_mut().slice(0..n * cols)?;
                    matrix.decode(stream, first..first + n, weights.reborrow())?;
                    let y = y.reborrow().slice(first..batch * rows)?;
                    dense_strided(gpu, stream, weights.as_slice(), (n, cols), x, batch, (y, rows))?;
                }
                Ok(())
            }
            Self::Rice { matrix, rotation } => {
                let Workspace { rotated: room, rice, .. } = ws;
                let x = rotate(stream, rotation.as_deref().filter(|_| !rotated), x, batch, room)?;
                let (rows, cols) = (matrix.rows(), matrix.cols());
                for first in (0..batch).step_by(RICE_BATCH) {
                    let end = batch.min(first + RICE_BATCH);
                    let x = x.slice(first * cols..end * cols)?;
                    let y = y.reborrow().slice(first * rows..end * rows)?;
                    match matrix {
                        RiceWeights::Streams(matrix) => matrix.gemm(gpu, stream, x, y)?,
                        RiceWeights::Planes(matrix) => matrix.gemm(gpu, stream, x, y, rice)?,
                    }
                }
                Ok(())
            }
            Self::UniSvq(matrix) => matrix.product(stream, x, batch, y, &mut ws.unisvq),
        }
    }
}

/// Rows that are dequantized at a time.
fn chunk_rows(rows: usize, cols: usize) -> usize {
    ((CHUNK_LEN / cols.max(1)).max(1).next_multiple_of(SHIFT_ROWS)).min(rows)
}

/// The activation in the frame of the weights.
fn rotate<'a>(
    stream: StreamRef<'_>,
    rotation: Option<&DeviceRht>,
    x: DevSlice<'a, f32>,
    batch: usize,
    rotated: &'a mut Buffer<f32>,
) -> Result<DevSlice<'a, f32>, CudaError> {
    let Some(rht) = rotation else { return Ok(x) };
    let mut out = rotated.as_mut().slice(0..x.len())?;
    rht.forward(stream, x, batch, RhtOutput::F32(out.reborrow()))?;
    rotated.as_slice().slice(0..x.len())
}

impl DenseWeights {
    fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::F32(b) => b.bytes(),
            Self::F16(b) => b.bytes(),
            Self::Bf16(b) => b.bytes(),
        };
        bytes as u64
    }
}

/// What a tensor becomes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    F32,
    F16,
    Bf16,
    /// As it is coded.
    Shift,
    /// As it is coded.
    Rice,
    /// As it is coded.
    UniSvq,
}

/// Matrices with the same input, whose results lie side by side: `[n, sum of rows]` where they could be joined, else one after
/// the other.
#[derive(Debug)]
pub(crate) struct Stack {
    parts: Vec<DeviceLinear>,
    /// Rows of each matrix that went in.
    widths: Vec<usize>,
    /// Whether all parts take one rotation by tiles of 128, which what makes their input can do as it writes.
    one_rotation: bool,
}

/// What loading has to say.
#[derive(Debug, Default)]
pub(crate) struct LoadNotes {
    /// Codec, matrices, coded bytes, bytes on the device.
    decoded: Vec<(String, usize, u64, u64)>,
}

impl LoadNotes {
    fn add(&mut self, codec: String, coded: u64, device: u64) {
        match self.decoded.iter_mut().find(|(name, ..)| *name == codec) {
            Some((_, n, c, d)) => (*n, *c, *d) = (*n + 1, *c + coded, *d + device),
            None => self.decoded.push((codec, 1, coded, device)),
        }
    }

    /// One line per codec.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let line = |(codec, n, coded, device): &(String, usize, u64, u64)| {
            format!(
                "{n} matrices of {codec} are decoded on the device, which has no product for this codec: {:.1} MiB instead of {:.1} MiB",
                mib(*device),
                mib(*coded)
            )
        };
        self.decoded.iter().map(line).collect()
    }
}

impl Stack {
    /// Uploads matrices `names`, which have the same number of columns.
    pub(crate) fn load(
        gpu: &Gpu,
        weights: &dyn Weights,
        names: &[String],
        dense: DenseType,
        notes: &mut LoadNotes,
    ) -> Result<Self, RuntimeError> {
        let stored = names.iter().map(|name| weights.stored(name)).collect::<Result<Vec<_>, _>>()?;
        let widths: Vec<usize> = stored.iter().map(Stored::rows).collect();
        let forms: Vec<Form> = stored.iter().map(|s| s.form(dense)).collect();
        for (tensor, form) in stored.iter().zip(&forms) {
            match (tensor, form) {
                (Stored::Coded(coded), Form::F32 | Form::F16 | Form::Bf16) => {
                    notes.add(coded.header().codec_name().to_owned(), coded.n_bytes(), tensor.device_bytes(dense));
                }
                (Stored::UniSvq(coded), Form::F32 | Form::F16 | Form::Bf16) => {
                    notes.add(coded.header().name(), coded.n_bytes(), tensor.device_bytes(dense));
                }
                _ => {}
            }
        }
        let same = forms.iter().all(|f| *f == forms[0]);
        let parts = match forms[0] {
            Form::Shift if same && let Some((header, planes)) = join_shift(&stored) => {
                vec![DeviceLinear::Shift(Box::new(ShiftMatrix::new(gpu, &header, &planes)?))]
            }
            Form::UniSvq if same && let Some(joined) = join_unisvq(gpu, &stored)? => vec![joined],
            Form::F32 | Form::F16 | Form::Bf16 if same => {
                vec![upload(gpu, forms[0], &stored.iter().collect::<Vec<_>>())?]
            }
            _ => forms.iter().zip(&stored).map(|(form, s)| upload(gpu, *form, &[s])).collect::<Result<_, _>>()?,
        };
        let rotations: Vec<_> = stored.iter().map(Stored::rotation).collect();
        let one_rotation = rotations[0].is_some_and(has_fused_tiles) && rotations.iter().all(|r| *r == rotations[0]);
        let coded = parts.iter().all(|part| !matches!(part, DeviceLinear::Dense { .. }));
        Ok(Self { parts, widths, one_rotation: one_rotation && coded })
    }

    /// A stack of one matrix that is there already.
    ///
    /// `one_rotation`: whether it was made for activations rotated by tiles of 128.
    pub(crate) fn of(linear: DeviceLinear, widths: &[usize], one_rotation: bool) -> Self {
        Self { parts: vec![linear], widths: widths.to_vec(), one_rotation }
    }

    /// Signs of the rotation that whoever makes the input may do; [`forward`](Self::forward) is told then.
    pub(crate) fn signs(&self) -> Option<DevSlice<'_, u32>> {
        if !self.one_rotation {
            return None;
        }
        match self.only() {
            DeviceLinear::Dense { .. } | DeviceLinear::UniSvq(_) => None,
            DeviceLinear::Shift(matrix) => matrix.rotation().map(DeviceRht::words),
            DeviceLinear::Rice { rotation, .. } => rotation.as_deref().map(DeviceRht::words),
        }
    }

    /// Whether rows can be copied out.
    pub(crate) fn is_dense(&self) -> bool {
        matches!(self.only(), DeviceLinear::Dense { .. })
    }

    /// What products with the matrices need.
    pub(crate) fn needs(&self) -> Needs {
        self.parts.iter().map(DeviceLinear::needs).fold(Needs::default(), Needs::max)
    }

    /// The matrix of a stack of one.
    pub(crate) fn only(&self) -> &DeviceLinear {
        &self.parts[0]
    }

    /// Rows of all matrices together.
    pub(crate) fn rows(&self) -> usize {
        self.widths.iter().sum()
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        self.parts.iter().map(DeviceLinear::device_bytes).sum()
    }

    /// The products of all matrices; [`rows_of`](Self::rows_of) tells where they are in `y`, `[batch * rows]`.
    ///
    /// `rotated`: whether `x` was rotated with [`signs`](Self::signs).
    #[expect(clippy::too_many_arguments, reason = "input, output and workspace of a product")]
    pub(crate) fn forward(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        rotated: bool,
        batch: usize,
        mut y: DevSliceMut<'_, f32>,
        ws: &mut Workspace,
    ) -> Result<(), CudaError> {
        let mut at = 0;
        for part in &self.parts {
            let len = batch * part.rows();
            part.forward(gpu, stream, x, rotated, batch, y.reborrow().slice(at..at + len)?, ws)?;
            at += len;
        }
        Ok(())
    }

    /// The results of each matrix in what [`forward`](Self::forward) wrote.
    pub(crate) fn rows_of<'a, const N: usize>(
        &self,
        y: DevSlice<'a, f32>,
        batch: usize,
    ) -> Result<[Rows<'a>; N], CudaError> {
        let mut widths = [0; N];
        widths.iter_mut().zip(&self.widths).for_each(|(to, from)| *to = *from);
        if self.parts.len() == 1 {
            return Rows::parts(y, batch, widths);
        }
        let mut parts = [Rows { values: y, stride: 0 }; N];
        let mut at = 0;
        for (part, width) in parts.iter_mut().zip(widths) {
            *part = Rows { values: y.slice(at..at + batch * width)?, stride: width };
            at += batch * width;
        }
        Ok(parts)
    }
}

impl Stored<'_> {
    fn rows(&self) -> usize {
        match self {
            Stored::Coded(coded) => coded.header().rows as usize,
            Stored::UniSvq(coded) => coded.header().rows as usize,
            Stored::Rows { rows, .. } => *rows,
        }
    }

    fn cols(&self) -> usize {
        match self {
            Stored::Coded(coded) => coded.header().cols as usize,
            Stored::UniSvq(coded) => coded.header().cols as usize,
            Stored::Rows { cols, .. } => *cols,
        }
    }

    fn rotation(&self) -> Option<&RotationHeader> {
        match self {
            Stored::Coded(coded) => Some(&coded.header().rotation),
            Stored::UniSvq(_) | Stored::Rows { .. } => None,
        }
    }

    fn form(&self, dense: DenseType) -> Form {
        if let Stored::UniSvq(coded) = self
            && DeviceUniSvq::takes(coded.header())
        {
            return Form::UniSvq;
        }
        // Columns that are coded one by one are decoded as they are loaded.
        if let Stored::Coded(coded) = self
            && coded.header().columns.is_none()
        {
            match &coded.header().scheme {
                SchemeHeader::Shift(_) => return Form::Shift,
                SchemeHeader::Lattice(LatticeHeader { code: CodeHeader::Rice { .. }, .. }) => return Form::Rice,
                _ => {}
            }
        }
        match (self, dense) {
            (_, DenseType::F32) => Form::F32,
            (Stored::Rows { dtype, .. }, _) if dtype == "BF16" => Form::Bf16,
            _ => Form::F16,
        }
    }

    /// At most what products with the tensor need.
    pub(crate) fn needs(&self) -> Needs {
        match self {
            Stored::Rows { .. } => Needs::default(),
            Stored::UniSvq(_) => Needs { unisvq: (self.rows(), self.cols()), ..Needs::default() },
            Stored::Coded(_) => {
                let (rows, cols) = (self.rows(), self.cols());
                Needs { rotated_cols: cols, chunk_len: chunk_rows(rows, cols) * cols, ..Needs::default() }
            }
        }
    }

    /// Bytes that the tensor takes on the device, before it is read.
    pub(crate) fn device_bytes(&self, dense: DenseType) -> u64 {
        let size = match (self.form(dense), self) {
            (Form::Shift | Form::Rice, Stored::Coded(coded)) => return coded.n_bytes(),
            (Form::UniSvq, Stored::UniSvq(coded)) => return coded.n_bytes(),
            (Form::F32, _) => 4,
            _ => 2,
        };
        (self.rows() as u64).saturating_mul(self.cols() as u64).saturating_mul(size)
    }
}

/// Uploads matrices on top of each other.
fn upload(gpu: &Gpu, form: Form, group: &[&Stored<'_>]) -> Result<DeviceLinear, RuntimeError> {
    let cols = group[0].cols();
    let rows = group.iter().map(|s| s.rows()).sum::<usize>();
    let weights = match form {
        Form::Shift | Form::Rice => return upload_coded(gpu, form, group[0]),
        Form::UniSvq => {
            let Stored::UniSvq(coded) = group[0] else { unreachable!("only affine-grid codes have that form") };
            return Ok(DeviceLinear::UniSvq(Box::new(DeviceUniSvq::new(gpu, &coded.decoder()?)?)));
        }
        Form::F32 => DenseWeights::F32(gpu.upload(&convert::<f32>(group, cols)?)?),
        Form::F16 => DenseWeights::F16(gpu.upload(&convert::<f16>(group, cols)?)?),
        Form::Bf16 => DenseWeights::Bf16(gpu.upload(&convert::<bf16>(group, cols)?)?),
    };
    Ok(DeviceLinear::Dense { weights, rows, cols })
}

/// Whether a rotation is by tiles of 128 columns alone.
fn has_fused_tiles(rotation: &RotationHeader) -> bool {
    matches!(rotation, RotationHeader::Rht { runs, .. } if matches!(runs[..], [[tile, _]] if tile as usize == ROTATED_TILE))
}

/// Uploads a coded matrix as it is.
fn upload_coded(gpu: &Gpu, form: Form, stored: &Stored<'_>) -> Result<DeviceLinear, RuntimeError> {
    let Stored::Coded(coded) = stored else { unreachable!("only coded tensors have such forms") };
    let planes = coded.planes();
    if form == Form::Shift {
        return Ok(DeviceLinear::Shift(Box::new(ShiftMatrix::new(gpu, coded.header(), &planes)?)));
    }
    let matrix = match RicePlanes::upload(gpu, coded.header(), &planes) {
        Ok(matrix) => RiceWeights::Planes(Box::new(matrix)),
        Err(CudaError::Unsupported { .. }) => {
            RiceWeights::Streams(Box::new(RiceMatrix::upload(gpu, coded.header(), &planes)?))
        }
        Err(error) => return Err(error.into()),
    };
    let rotation = coded.decoder()?.rotation().map(|rht| DeviceRht::new(gpu, rht).map(Box::new)).transpose()?;
    Ok(DeviceLinear::Rice { matrix, rotation })
}

/// Matrices of affine-grid codes on top of each other, if they read one activation in one frame through one map.
fn join_unisvq(gpu: &Gpu, stored: &[Stored<'_>]) -> Result<Option<DeviceLinear>, RuntimeError> {
    let coded: Vec<&UniSvqTensor> = stored
        .iter()
        .filter_map(|s| match s {
            Stored::UniSvq(coded) => Some(coded),
            Stored::Coded(_) | Stored::Rows { .. } => None,
        })
        .collect();
    let decoders = coded.iter().map(|coded| coded.decoder()).collect::<Result<Vec<_>, _>>()?;
    let parts: Vec<&UniSvqDecoder<'_>> = decoders.iter().collect();
    if parts.len() < stored.len() || !DeviceUniSvq::join(&parts) {
        return Ok(None);
    }
    Ok(Some(DeviceLinear::UniSvq(Box::new(DeviceUniSvq::joined(gpu, &parts)?))))
}

/// Shift-coded matrices on top of each other, as one coded matrix: strings of rows, or of blocks of 16 rows, follow each other.
///
/// `None` if they differ in more than their rows, or if blocks would straddle two matrices.
fn join_shift(stored: &[Stored<'_>]) -> Option<(MatrixHeader, Vec<Plane<'static>>)> {
    let coded: Vec<&CodedTensor> = stored
        .iter()
        .map(|s| match s {
            Stored::Coded(coded) => Some(coded),
            Stored::UniSvq(_) | Stored::Rows { .. } => None,
        })
        .collect::<Option<_>>()?;
    let (first, last) = (coded.first()?.header(), coded.last()?.header());
    let (mut words, mut scales, mut exact_rows, mut exact_values) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut rows = 0u64;
    for tensor in &coded {
        let header = tensor.header();
        let alike = (&header.scheme, &header.rotation, header.cols) == (&first.scheme, &first.rotation, first.cols);
        let whole = header.rows.is_multiple_of(SHIFT_ROWS as u64) || std::ptr::eq(header, last);
        let offset = u32::try_from(rows).ok()?;
        if !alike || !whole {
            return None;
        }
        for plane in tensor.planes() {
            match (&*plane.name, &plane.data) {
                ("words", PlaneData::U32(data)) => words.extend_from_slice(data),
                ("scales", PlaneData::Bf16(data)) => scales.extend_from_slice(data),
                ("exact_rows", PlaneData::U32(data)) => exact_rows.extend(data.iter().map(|row| row + offset)),
                ("exact_values", PlaneData::F32(data)) => exact_values.extend_from_slice(data),
                _ => return None,
            }
        }
        rows += header.rows;
    }
    let plane = |name, data| Plane { name: Cow::Borrowed(name), data };
    let mut planes =
        vec![plane("words", PlaneData::U32(Cow::Owned(words))), plane("scales", PlaneData::Bf16(Cow::Owned(scales)))];
    if !exact_rows.is_empty() {
        planes.push(plane("exact_rows", PlaneData::U32(Cow::Owned(exact_rows))));
        planes.push(plane("exact_values", PlaneData::F32(Cow::Owned(exact_values))));
    }
    Some((MatrixHeader { rows, ..first.clone() }, planes))
}

/// All rows of the matrices as `T`.
fn convert<T: DenseElement>(group: &[&Stored<'_>], cols: usize) -> Result<Vec<T>, RuntimeError> {
    let mut out = Vec::new();
    for stored in group {
        let start = out.len();
        out.resize(start + stored.rows() * cols, T::from_f32(0.0));
        let to = &mut out[start..];
        match stored {
            Stored::Rows { read, .. } => convert_rows(to, cols, 1, |range, out, _| read(range, out))?,
            Stored::Coded(coded) => convert_coded(coded, to, cols)?,
            Stored::UniSvq(coded) => {
                let decoder = coded.decoder()?;
                convert_rows(to, cols, decoder.row_block(), |range, out, _| {
                    decoder.decode_rows(range, out);
                    Ok(())
                })?;
            }
        }
    }
    Ok(out)
}

fn convert_coded<T: DenseElement>(coded: &CodedTensor, to: &mut [T], cols: usize) -> Result<(), RuntimeError> {
    let decoder = coded.decoder()?;
    convert_rows(to, cols, decoder.row_block(), |range, out, scratch| Ok(decoder.decode_rows(range, out, scratch)?))
}

/// Converts what `read` writes, in tasks of whole steps of rows.
fn convert_rows<T: DenseElement>(
    to: &mut [T],
    cols: usize,
    step: usize,
    read: impl Fn(std::ops::Range<usize>, &mut [f32], &mut DecodeScratch) -> Result<(), RuntimeError> + Sync,
) -> Result<(), RuntimeError> {
    let step = step.max(1);
    let task_rows = (TASK_LEN / cols.max(1) / step).max(1) * step;
    to.par_chunks_mut(task_rows * cols).enumerate().try_for_each_init(
        || (Vec::new(), DecodeScratch::new()),
        |(block, scratch), (i, to)| {
            let first = i * task_rows;
            block.resize(to.len(), 0.0);
            read(first..first + to.len() / cols, block, scratch)?;
            to.iter_mut().zip(&*block).for_each(|(to, v)| *to = T::from_f32(*v));
            Ok(())
        },
    )
}
