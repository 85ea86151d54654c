//! What one conversation holds on the device: keys and values, activations, a stream, the captured step.

use std::sync::Arc;

use gosset_cuda::launch::model::{Argmax, AttentionScratch, AttentionShape, copy_cache};
use gosset_cuda::{Buffer, Gpu, Graph, Stream, StreamRef};
use gosset_kv::KvMemory;
use half::f16;

use super::CacheType;
use super::kv_plan::{KvPlan, PROMPT_ROWS};
use super::kv_state::KvState;
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

/// How keys and values are to be held.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CacheForm<'a> {
    Exact(CacheType),
    Coded(&'a Arc<KvPlan>),
}

/// Keys and values of all layers; exact ones `[layers, kv_heads, capacity, head_stride]` each.
#[derive(Debug)]
pub(crate) enum Cache {
    F16(Buffer<f16>, Buffer<f16>),
    F32(Buffer<f32>, Buffer<f32>),
    Coded(Box<KvState>),
}

impl Cache {
    fn new(gpu: &Gpu, form: CacheForm<'_>, shape: &AttentionShape, n_layers: usize) -> Result<Self, RuntimeError> {
        let len = n_layers * shape.cache_len();
        Ok(match form {
            CacheForm::Exact(CacheType::F16) => Self::F16(gpu.alloc(len)?, gpu.alloc(len)?),
            CacheForm::Exact(CacheType::F32) => Self::F32(gpu.alloc(len)?, gpu.alloc(len)?),
            CacheForm::Coded(plan) => Self::Coded(Box::new(KvState::new(gpu, plan, shape)?)),
        })
    }

    /// Makes room for the positions of `new` instead of those of `old`; the first `held` stay.
    fn grow(
        &mut self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        (old, new): (&AttentionShape, &AttentionShape),
        n_layers: usize,
        held: usize,
    ) -> Result<(), RuntimeError> {
        macro_rules! grown {
            ($from:expr) => {{
                let mut grown = gpu.alloc(n_layers * new.cache_len())?;
                for layer in 0..n_layers {
                    let from = $from.as_slice().slice(range(old, layer))?;
                    copy_cache(gpu, stream, (old, from), (new, grown.as_mut().slice(range(new, layer))?), held)?;
                }
                grown
            }};
        }
        match self {
            Self::F16(k, v) => {
                let (keys, values) = (grown!(k), grown!(v));
                stream.synchronize()?;
                (*k, *v) = (keys, values);
            }
            Self::F32(k, v) => {
                let (keys, values) = (grown!(k), grown!(v));
                stream.synchronize()?;
                (*k, *v) = (keys, values);
            }
            Self::Coded(coded) => coded.grow(gpu, stream, new.capacity)?,
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::F16(k, v) => (k.bytes() + v.bytes()) as u64,
            Self::F32(k, v) => (k.bytes() + v.bytes()) as u64,
            Self::Coded(coded) => coded.bytes(),
        }
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
}

impl State {
    /// With room for `shape.capacity` positions and one row.
    pub(crate) fn new(
        gpu: &Gpu,
        shape: AttentionShape,
        (widths, needs): (Widths, Needs),
        n_layers: usize,
        form: CacheForm<'_>,
    ) -> Result<Self, RuntimeError> {
        Ok(Self {
            step: Step::Plain(0),
            shape,
            cache: Cache::new(gpu, form, &shape, n_layers)?,
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
            self.cache.grow(gpu, self.stream.as_ref(), (&self.shape, &shape), self.n_layers, held)?;
            (self.shape, moved) = (shape, true);
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

    /// Rows that go through the model at once.
    pub(crate) fn chunk(&self) -> usize {
        let rows = self.widths.chunk(&self.shape);
        match &self.cache {
            Cache::F16(..) | Cache::F32(..) => rows,
            Cache::Coded(_) => rows.min(PROMPT_ROWS),
        }
    }

    /// Prepares the cache for `rows` rows from `position` on.
    pub(crate) fn begin(&mut self, gpu: &Gpu, position: usize, rows: usize) -> Result<(), RuntimeError> {
        match &mut self.cache {
            Cache::F16(..) | Cache::F32(..) => Ok(()),
            Cache::Coded(coded) => coded.begin(gpu, self.stream.as_ref(), &self.shape, position, rows),
        }
    }

    /// Goes back to `len` positions, or to fewer that can be continued; returns how many are held.
    pub(crate) fn rewind(&mut self, len: usize) -> usize {
        match &mut self.cache {
            Cache::F16(..) | Cache::F32(..) => len,
            Cache::Coded(coded) => coded.rewind(len),
        }
    }

    /// The compressed cache, if it is one.
    #[cfg(test)]
    pub(crate) fn coded(&self) -> Option<&KvState> {
        match &self.cache {
            Cache::F16(..) | Cache::F32(..) => None,
            Cache::Coded(coded) => Some(coded),
        }
    }

    /// What `held` positions of a compressed cache take, by cause.
    pub(crate) fn memory(&self, held: usize) -> Option<KvMemory> {
        match &self.cache {
            Cache::F16(..) | Cache::F32(..) => None,
            Cache::Coded(coded) => Some(coded.memory(held)),
        }
    }

    /// Bytes of keys and values.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// Bytes of everything else.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        let activations = self.widths.bytes(&self.shape, self.activations.rows, 0);
        let of_cache = match &self.cache {
            Cache::F16(..) | Cache::F32(..) => 0,
            Cache::Coded(coded) => coded.workspace_bytes(),
        };
        of_cache
            + activations
            + self.workspace.bytes()
            + (self.scratch.bytes() + self.logits.bytes() + self.inputs.bytes()) as u64
    }
}

/// Elements of one layer's keys (or values) within those of all layers.
pub(crate) fn range(shape: &AttentionShape, layer: usize) -> std::ops::Range<usize> {
    layer * shape.cache_len()..(layer + 1) * shape.cache_len()
}
