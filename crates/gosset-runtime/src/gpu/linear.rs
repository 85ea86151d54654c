//! Weight matrices on the device.

use gosset_codec::DecodeScratch;
use gosset_container::CodedTensor;
use gosset_cuda::launch::model::{DenseElement, Rows, dense};
use gosset_cuda::{Buffer, CudaError, DevSlice, DevSliceMut, Gpu, StreamRef};
use half::{bf16, f16};
use rayon::prelude::*;

use super::DenseType;
use crate::error::RuntimeError;
use crate::weights::{Stored, Weights};

/// Weights that one task of an upload converts.
const TASK_LEN: usize = 1 << 20;

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
    Dense { weights: DenseWeights, rows: usize, cols: usize },
}

impl DeviceLinear {
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Dense { rows, .. } => *rows,
        }
    }

    pub(crate) fn cols(&self) -> usize {
        match self {
            Self::Dense { cols, .. } => *cols,
        }
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        match self {
            Self::Dense { weights, .. } => weights.bytes(),
        }
    }

    /// `y = x wᵀ`; `x` is `[batch, cols]`, `y` `[batch, rows]`.
    pub(crate) fn forward(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        batch: usize,
        y: DevSliceMut<'_, f32>,
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
        }
    }
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
}

/// Matrices with the same input, whose results lie side by side: `[n, sum of rows]` where they could be joined, else one after
/// the other.
#[derive(Debug)]
pub(crate) struct Stack {
    parts: Vec<DeviceLinear>,
    /// Rows of each matrix that went in.
    widths: Vec<usize>,
}

/// What loading has to say.
#[derive(Debug, Default)]
pub(crate) struct LoadNotes {
    /// Codec, matrices, coded bytes, bytes on the device.
    decoded: Vec<(&'static str, usize, u64, u64)>,
}

impl LoadNotes {
    fn add(&mut self, codec: &'static str, coded: u64, device: u64) {
        match self.decoded.iter_mut().find(|(name, ..)| *name == codec) {
            Some((_, n, c, d)) => (*n, *c, *d) = (*n + 1, *c + coded, *d + device),
            None => self.decoded.push((codec, 1, coded, device)),
        }
    }

    /// One line per codec.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let line = |(codec, n, coded, device): &(&str, usize, u64, u64)| {
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
        for tensor in &stored {
            if let Stored::Coded(coded) = tensor {
                let n = (tensor.rows() * tensor.cols()) as u64;
                notes.add(coded.header().codec_name(), coded.n_bytes(), n * forms[0].size());
            }
        }
        let groups: Vec<(Form, Vec<&Stored<'_>>)> = if forms.iter().all(|f| *f == forms[0]) {
            vec![(forms[0], stored.iter().collect())]
        } else {
            forms.iter().copied().zip(stored.iter().map(|s| vec![s])).collect()
        };
        let parts = groups.into_iter().map(|(form, group)| upload(gpu, form, &group)).collect::<Result<_, _>>()?;
        Ok(Self { parts, widths })
    }

    /// The matrix of a stack of one.
    pub(crate) fn only(&self) -> &DeviceLinear {
        &self.parts[0]
    }

    /// Rows of all matrices together.
    pub(crate) fn rows(&self) -> usize {
        self.widths.iter().sum()
    }

    pub(crate) fn cols(&self) -> usize {
        self.parts[0].cols()
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        self.parts.iter().map(DeviceLinear::device_bytes).sum()
    }

    /// The products of all matrices; [`rows_of`](Self::rows_of) tells where they are in `y`, `[batch * rows]`.
    pub(crate) fn forward(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        batch: usize,
        mut y: DevSliceMut<'_, f32>,
    ) -> Result<(), CudaError> {
        let mut at = 0;
        for part in &self.parts {
            let len = batch * part.rows();
            part.forward(gpu, stream, x, batch, y.reborrow().slice(at..at + len)?)?;
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

impl Form {
    fn size(self) -> u64 {
        if self == Form::F32 { 4 } else { 2 }
    }
}

impl Stored<'_> {
    fn rows(&self) -> usize {
        match self {
            Stored::Coded(coded) => coded.header().rows as usize,
            Stored::Rows { rows, .. } => *rows,
        }
    }

    fn cols(&self) -> usize {
        match self {
            Stored::Coded(coded) => coded.header().cols as usize,
            Stored::Rows { cols, .. } => *cols,
        }
    }

    fn form(&self, dense: DenseType) -> Form {
        match (self, dense) {
            (_, DenseType::F32) => Form::F32,
            (Stored::Rows { dtype, .. }, _) if dtype == "BF16" => Form::Bf16,
            _ => Form::F16,
        }
    }

    /// Bytes that the tensor takes on the device, before it is read.
    pub(crate) fn device_bytes(&self, dense: DenseType) -> u64 {
        (self.rows() as u64).saturating_mul(self.cols() as u64).saturating_mul(self.form(dense).size())
    }
}

/// Uploads matrices on top of each other.
fn upload(gpu: &Gpu, form: Form, group: &[&Stored<'_>]) -> Result<DeviceLinear, RuntimeError> {
    let cols = group[0].cols();
    let rows = group.iter().map(|s| s.rows()).sum::<usize>();
    let weights = match form {
        Form::F32 => DenseWeights::F32(gpu.upload(&convert::<f32>(group, cols)?)?),
        Form::F16 => DenseWeights::F16(gpu.upload(&convert::<f16>(group, cols)?)?),
        Form::Bf16 => DenseWeights::Bf16(gpu.upload(&convert::<bf16>(group, cols)?)?),
    };
    Ok(DeviceLinear::Dense { weights, rows, cols })
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
