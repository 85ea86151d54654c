//! What one conversation holds on the device: keys and values, activations, a stream, the captured step.

use gosset_cuda::launch::model::{Argmax, AttentionScratch, AttentionShape, copy_cache};
use gosset_cuda::{Buffer, Gpu, Graph, Stream, StreamRef};
use half::f16;

use super::CacheType;
use super::linear::{Needs, Workspace};
use crate::error::RuntimeError;

/// Widths of the activations of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Widths {
    pub(crate) hidden: usize,
    pub(crate) ffn: usize,
    pub(crate) vocab: usize,
}

/// Bytes of activations that a chunk of a prompt may take.
const CHUNK_BYTES: usize = 64 << 20;

/// Bytes of logits that may exist at a time.
const LOGIT_BYTES: usize = 64 << 20;

impl Widths {
    /// Elements of all activations of one row.
    fn row_len(&self, shape: &AttentionShape) -> usize {
        let q = shape.heads * shape.head_dim;
        3 * self.hidden + shape.qkv_len() + 2 * q + 3 * self.ffn
    }

    /// Rows that go through the model at once.
    pub(crate) fn chunk(&self, shape: &AttentionShape) -> usize {
        (CHUNK_BYTES / (4 * self.row_len(shape))).clamp(64, 512)
    }

    /// Rows whose logits are made at once.
    pub(crate) fn logit_rows(&self) -> usize {
        (LOGIT_BYTES / (4 * self.vocab)).clamp(1, crate::LOGIT_SLICE)
    }

    /// Bytes of the activations of `rows` rows and of the logits of `logit_rows`.
    pub(crate) fn bytes(&self, shape: &AttentionShape, rows: usize, logit_rows: usize) -> u64 {
        4 * (rows as u64 * self.row_len(shape) as u64 + logit_rows as u64 * self.vocab as u64)
    }
}

/// Keys and values of all layers, `[layers, kv_heads, capacity, head_stride]` each.
#[derive(Debug)]
pub(crate) enum Cache {
    F16(Buffer<f16>, Buffer<f16>),
    F32(Buffer<f32>, Buffer<f32>),
}

impl Cache {
    fn new(gpu: &Gpu, kind: CacheType, len: usize) -> Result<Self, RuntimeError> {
        Ok(match kind {
            CacheType::F16 => Self::F16(gpu.alloc(len)?, gpu.alloc(len)?),
            CacheType::F32 => Self::F32(gpu.alloc(len)?, gpu.alloc(len)?),
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::F16(k, v) => k.bytes() + v.bytes(),
            Self::F32(k, v) => k.bytes() + v.bytes(),
        };
        bytes as u64
    }
}

/// Activations, `rows` rows each.
#[derive(Debug)]
pub(crate) struct Activations {
    pub(crate) rows: usize,
    /// The residual stream.
    pub(crate) x: Buffer<f32>,
    pub(crate) normed: Buffer<f32>,
    pub(crate) qkv: Buffer<f32>,
    pub(crate) q: Buffer<f32>,
    pub(crate) attended: Buffer<f32>,
    pub(crate) gate_up: Buffer<f32>,
    pub(crate) gated: Buffer<f32>,
    /// What the next normalization adds to the residual stream.
    pub(crate) delta: Buffer<f32>,
}

impl Activations {
    fn new(gpu: &Gpu, widths: &Widths, shape: &AttentionShape, rows: usize) -> Result<Self, RuntimeError> {
        let alloc = |width: usize| gpu.alloc::<f32>(rows * width);
        let q = shape.heads * shape.head_dim;
        Ok(Self {
            rows,
            x: alloc(widths.hidden)?,
            normed: alloc(widths.hidden)?,
            qkv: alloc(shape.qkv_len())?,
            q: alloc(q)?,
            attended: alloc(q)?,
            gate_up: alloc(2 * widths.ffn)?,
            gated: alloc(widths.ffn)?,
            delta: alloc(widths.hidden)?,
        })
    }
}

/// The captured step, or why there is none.
#[derive(Debug)]
pub(crate) enum Step {
    /// So many steps have run as plain launches.
    Plain(u32),
    /// Captured.
    Captured(Graph),
    /// Capture failed once; plain launches from then on.
    Refused,
}

/// Everything that changes while one conversation goes on.
#[derive(Debug)]
pub(crate) struct State {
    // Fields drop in this order: the stream last, after the memory that its work uses.
    pub(crate) step: Step,
    pub(crate) shape: AttentionShape,
    pub(crate) cache: Cache,
    pub(crate) scratch: AttentionScratch,
    pub(crate) activations: Activations,
    pub(crate) workspace: Workspace,
    /// Position of the first row, then one token per row.
    pub(crate) inputs: Buffer<u32>,
    pub(crate) logits: Buffer<f32>,
    pub(crate) argmax: Argmax,
    pub(crate) stream: Stream,
    widths: Widths,
    needs: Needs,
    n_layers: usize,
    kind: CacheType,
}

impl State {
    /// With room for `shape.capacity` positions and one row.
    pub(crate) fn new(
        gpu: &Gpu,
        shape: AttentionShape,
        (widths, needs): (Widths, Needs),
        n_layers: usize,
        kind: CacheType,
    ) -> Result<Self, RuntimeError> {
        Ok(Self {
            step: Step::Plain(0),
            shape,
            cache: Cache::new(gpu, kind, n_layers * shape.cache_len())?,
            scratch: AttentionScratch::new(gpu, &shape)?,
            activations: Activations::new(gpu, &widths, &shape, 1)?,
            workspace: Workspace::new(gpu, needs, 1)?,
            inputs: gpu.alloc(2)?,
            logits: gpu.alloc(widths.vocab)?,
            argmax: Argmax::new(gpu)?,
            stream: gpu.stream()?,
            widths,
            needs,
            n_layers,
            kind,
        })
    }

    /// Makes room for `positions` in all, of which `held` are there, for `rows` at a time and `logit_rows` rows of logits.
    ///
    /// What has to grow grows by doubling; at most `limit` positions.
    pub(crate) fn reserve(
        &mut self,
        gpu: &Gpu,
        (held, positions, limit): (usize, usize, usize),
        rows: usize,
        logit_rows: usize,
    ) -> Result<(), RuntimeError> {
        let mut moved = false;
        if positions > self.shape.capacity {
            let capacity = positions.max(2 * self.shape.capacity).min(limit.max(positions));
            let shape = AttentionShape { capacity, ..self.shape };
            let mut cache = Cache::new(gpu, self.kind, self.n_layers * shape.cache_len())?;
            let stream = self.stream.as_ref();
            for layer in 0..self.n_layers {
                let (from, to) = (range(&self.shape, layer), range(&shape, layer));
                let (old, new) = (&self.shape, &shape);
                match (&self.cache, &mut cache) {
                    (Cache::F16(k, v), Cache::F16(nk, nv)) => {
                        for (b, nb) in [(k, nk), (v, nv)] {
                            let from = (old, b.as_slice().slice(from.clone())?);
                            copy_cache(gpu, stream, from, (new, nb.as_mut().slice(to.clone())?), held)?;
                        }
                    }
                    (Cache::F32(k, v), Cache::F32(nk, nv)) => {
                        for (b, nb) in [(k, nk), (v, nv)] {
                            let from = (old, b.as_slice().slice(from.clone())?);
                            copy_cache(gpu, stream, from, (new, nb.as_mut().slice(to.clone())?), held)?;
                        }
                    }
                    _ => unreachable!("both were made for the same type"),
                }
            }
            self.stream.synchronize()?;
            (self.shape, self.cache, moved) = (shape, cache, true);
        }
        if rows > self.activations.rows {
            // Prompts of any length share the size of a whole chunk.
            let rows = rows.next_power_of_two().min(self.widths.chunk(&self.shape)).max(rows);
            self.stream.synchronize()?;
            self.activations = Activations::new(gpu, &self.widths, &self.shape, rows)?;
            self.workspace = Workspace::new(gpu, self.needs, rows)?;
            self.inputs = gpu.alloc(rows + 1)?;
            moved = true;
        }
        if logit_rows * self.widths.vocab > self.logits.len() {
            self.stream.synchronize()?;
            self.logits = gpu.alloc(logit_rows * self.widths.vocab)?;
            moved = true;
        }
        if moved && matches!(self.step, Step::Captured(_)) {
            // The graph names memory that is gone.
            self.step = Step::Plain(1);
        }
        Ok(())
    }

    /// Puts position and tokens where the kernels read them.
    pub(crate) fn set_inputs(&mut self, position: usize, tokens: &[u32]) -> Result<(), RuntimeError> {
        let mut inputs = Vec::with_capacity(tokens.len() + 1);
        inputs.push(u32::try_from(position).unwrap_or(u32::MAX));
        inputs.extend_from_slice(tokens);
        let stream: StreamRef<'_> = self.stream.as_ref();
        Ok(self.inputs.write_on(stream, &inputs)?)
    }

    /// Bytes of keys and values.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// Bytes of everything else.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        let activations = self.widths.bytes(&self.shape, self.activations.rows, 0);
        activations + self.workspace.bytes() + (self.scratch.bytes() + self.logits.bytes() + self.inputs.bytes()) as u64
    }
}

/// Elements of one layer's keys (or values) within those of all layers.
pub(crate) fn range(shape: &AttentionShape, layer: usize) -> std::ops::Range<usize> {
    layer * shape.cache_len()..(layer + 1) * shape.cache_len()
}
