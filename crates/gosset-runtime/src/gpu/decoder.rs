//! The decoder on a device: the same model as on the processor, weights and state in device memory.

use std::sync::{Arc, Mutex, PoisonError};

use gosset_cuda::launch::model::{
    AttentionShape, Delta, Rope, attend, attend_step, embed, read, rmsnorm, rope_append, silu_mul,
};
use gosset_cuda::{Buffer, CudaError, DevSlice, Gpu, Graph, StreamRef};
use gosset_kv::{KvShape, KvSpec, Probe};

use super::kernels::check_kernels;
use super::kv_plan::KvPlan;
use super::linear::{DenseWeights, DeviceLinear, LoadNotes, Needs, Stack};
use super::state::{Cache, CacheForm, State, Step, Widths, range};
use super::watcher::Watcher;
use super::{CacheType, GpuDevice, GpuOptions};
use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::kv::Seen;
use crate::language_model::Watch;
use crate::linear::Linear;
use crate::models::{EMBEDDING, FINAL_NORM, HEAD};
use crate::rope::RopeFrequencies;
use crate::tensor::f32_slice;
use crate::weights::{Stored, Weights};

/// Positions that a cache has room for from the start, unless an option says otherwise.
const DEFAULT_CONTEXT: usize = 4096;

/// Positions that a compressed cache has room for from the start, unless an option says otherwise or more are needed.
const CODED_CONTEXT: usize = 1024;

/// Plain steps before one is captured: the first loads the modules.
const WARM_STEPS: u32 = 2;

/// A model on a device. Immutable, so that threads share it; what changes is in a [`State`].
#[derive(Debug)]
pub(crate) struct GpuDecoder {
    gpu: Gpu,
    options: GpuOptions,
    embedding: Table,
    layers: Vec<Layer>,
    norm: Buffer<f32>,
    /// `None`: the embedding's matrix.
    head: Option<Stack>,
    /// Turns per position of each pair.
    turns: Buffer<f64>,
    shape: AttentionShape,
    widths: Widths,
    needs: Needs,
    max_positions: usize,
    eps: f32,
    /// States for passes that nobody keeps.
    idle: Mutex<Vec<State>>,
    notes: Vec<String>,
}

/// The embedding table.
#[derive(Debug)]
pub(super) enum Table {
    /// On the device, where rows are copied from.
    Device(Stack),
    /// Rows are decoded on the processor; the matrix is on the device only as the head.
    Host { rows: Arc<Linear>, head: Option<Stack> },
}

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) name: String,
    pub(super) input_norm: Buffer<f32>,
    pub(super) qkv: Stack,
    pub(super) qkv_bias: Option<Buffer<f32>>,
    pub(super) q_norm: Option<Buffer<f32>>,
    pub(super) k_norm: Option<Buffer<f32>>,
    pub(super) o: Stack,
    pub(super) o_bias: Option<Buffer<f32>>,
    pub(super) post_attention_norm: Buffer<f32>,
    pub(super) gate_up: Stack,
    pub(super) gate_up_bias: Option<Buffer<f32>>,
    pub(super) down: Stack,
    pub(super) down_bias: Option<Buffer<f32>>,
}

/// Takes the logits of some positions from the given one on; its error ends the pass.
pub(crate) type Sink<'a> = dyn FnMut(usize, &[f32]) -> Result<(), RuntimeError> + 'a;

impl GpuDecoder {
    /// Loads every tensor; names and shapes were checked before.
    pub(crate) fn load(
        config: &ModelConfig,
        weights: &dyn Weights,
        tied: bool,
        device: &GpuDevice,
    ) -> Result<Self, RuntimeError> {
        check_kernels(config)?;
        let GpuDevice { gpu, options } = device;
        let (shape, widths) = (attention_shape(config, options), widths(config));
        check_memory(config, weights, tied, device, &shape, &widths)?;

        let mut notes = LoadNotes::default();
        let vector = |name: &str| Ok::<_, RuntimeError>(gpu.upload(&weights.vector(name)?)?);
        let optional = |name: String| weights.shape(&name).map(|_| vector(&name)).transpose();
        let mut stack = |names: &[String]| Stack::load(gpu, weights, names, options.dense, &mut notes);
        let embedding = match weights.stored(EMBEDDING)? {
            Stored::Coded(_) | Stored::UniSvq(_) => {
                let rows = Arc::new(weights.linear(EMBEDDING, None)?);
                let head = tied.then(|| stack(&[EMBEDDING.to_owned()])).transpose()?;
                Table::Host { rows, head }
            }
            Stored::Rows { .. } => Table::Device(stack(&[EMBEDDING.to_owned()])?),
        };
        let head = if tied { None } else { Some(stack(&[HEAD.to_owned()])?) };
        let mut layers = Vec::with_capacity(config.n_layers);
        for i in 0..config.n_layers {
            let name = format!("model.layers.{i}");
            let part = |part: &str| format!("{name}.{part}.weight");
            let bias = |parts: &[(&str, usize)]| -> Result<Option<Buffer<f32>>, RuntimeError> {
                let names = parts.iter().map(|(part, width)| (format!("{name}.{part}.bias"), *width));
                let names: Vec<_> = names.collect();
                if names.iter().all(|(name, _)| weights.shape(name).is_none()) {
                    return Ok(None);
                }
                let mut all = Vec::new();
                for (name, width) in &names {
                    match weights.shape(name) {
                        Some(_) => all.extend(weights.vector(name)?),
                        None => all.resize(all.len() + width, 0.0),
                    }
                }
                Ok(Some(gpu.upload(&all)?))
            };
            let (q, kv, ffn, hidden) = (config.q_dim(), config.kv_dim(), widths.ffn, widths.hidden);
            layers.push(Layer {
                input_norm: vector(&part("input_layernorm"))?,
                qkv: stack(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].map(part))?,
                qkv_bias: bias(&[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)])?,
                q_norm: optional(part("self_attn.q_norm"))?,
                k_norm: optional(part("self_attn.k_norm"))?,
                o: stack(&[part("self_attn.o_proj")])?,
                o_bias: bias(&[("self_attn.o_proj", hidden)])?,
                post_attention_norm: vector(&part("post_attention_layernorm"))?,
                gate_up: stack(&["mlp.gate_proj", "mlp.up_proj"].map(part))?,
                gate_up_bias: bias(&[("mlp.gate_proj", ffn), ("mlp.up_proj", ffn)])?,
                down: stack(&[part("mlp.down_proj")])?,
                down_bias: bias(&[("mlp.down_proj", hidden)])?,
                name,
            });
        }
        let final_norm = vector(FINAL_NORM)?;
        Self::assemble(config, device, embedding, layers, final_norm, head, notes.lines())
    }

    /// A model of parts that are on the device already.
    pub(super) fn assemble(
        config: &ModelConfig,
        device: &GpuDevice,
        embedding: Table,
        layers: Vec<Layer>,
        norm: Buffer<f32>,
        head: Option<Stack>,
        notes: Vec<String>,
    ) -> Result<Self, RuntimeError> {
        let GpuDevice { gpu, options } = device;
        let table = match &embedding {
            Table::Device(stack) | Table::Host { head: Some(stack), .. } => Some(stack),
            Table::Host { head: None, .. } => None,
        };
        let turns = RopeFrequencies::new(config.head_dim, config.rope_theta, &config.rope_scaling).turns();
        Ok(Self {
            needs: needs(&layers, [table, head.as_ref()]),
            gpu: gpu.clone(),
            options: options.clone(),
            embedding,
            layers,
            norm,
            head,
            turns: gpu.upload(&turns)?,
            shape: attention_shape(config, options),
            widths: widths(config),
            max_positions: config.max_positions,
            eps: config.rms_norm_eps as f32,
            idle: Mutex::new(Vec::new()),
            notes,
        })
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn options(&self) -> &GpuOptions {
        &self.options
    }

    pub(super) fn attention_shape(&self) -> &AttentionShape {
        &self.shape
    }

    /// The matrix of the embedding, if it is on the device.
    pub(super) fn table(&self) -> Option<&DeviceLinear> {
        match &self.embedding {
            Table::Device(stack) => Some(stack.only()),
            Table::Host { .. } => None,
        }
    }

    /// A state with room for the positions of the options.
    pub(super) fn default_state(&self) -> Result<State, RuntimeError> {
        self.new_state(self.shape.capacity, None)
    }

    /// What compressed caches of `spec` are made of.
    pub(crate) fn kv_plan(
        &self,
        spec: &KvSpec,
        shape: KvShape,
        probe: Option<&Probe>,
    ) -> Result<Arc<KvPlan>, RuntimeError> {
        Ok(Arc::new(KvPlan::new(spec, shape, self.shape.heads, probe, &self.gpu.info().name)?))
    }

    /// What a user should know about how the model is held.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Bytes of weights on the device.
    pub(crate) fn device_bytes(&self) -> u64 {
        let (layers, embeddings, norms) = self.bytes_by_cause();
        layers + embeddings + norms
    }

    /// Bytes of the layers' matrices and biases, of embedding and head, and of norms and frequencies.
    pub(super) fn bytes_by_cause(&self) -> (u64, u64, u64) {
        let vector = |b: &Buffer<f32>| b.bytes() as u64;
        let option = |b: &Option<Buffer<f32>>| b.as_ref().map_or(0, vector);
        let matrices = |l: &Layer| {
            let stacks: u64 = [&l.qkv, &l.o, &l.gate_up, &l.down].iter().map(|s| s.device_bytes()).sum();
            let biases = [&l.qkv_bias, &l.o_bias, &l.gate_up_bias, &l.down_bias];
            stacks + biases.iter().map(|b| option(b)).sum::<u64>()
        };
        let norms =
            |l: &Layer| vector(&l.input_norm) + vector(&l.post_attention_norm) + option(&l.q_norm) + option(&l.k_norm);
        let table = match &self.embedding {
            Table::Device(stack) => stack.device_bytes(),
            Table::Host { head, .. } => head.as_ref().map_or(0, Stack::device_bytes),
        };
        let head = self.head.as_ref().map_or(0, Stack::device_bytes);
        let outer_norms = vector(&self.norm) + self.turns.bytes() as u64;
        let sum = |f: &dyn Fn(&Layer) -> u64| self.layers.iter().map(f).sum::<u64>();
        (sum(&matrices), table + head, outer_norms + sum(&norms))
    }

    fn head(&self) -> &Stack {
        match (&self.head, &self.embedding) {
            (Some(head), _) | (None, Table::Device(head) | Table::Host { head: Some(head), .. }) => head,
            (None, Table::Host { head: None, .. }) => unreachable!("a model without head is tied, and has its matrix"),
        }
    }

    fn new_state(&self, capacity: usize, plan: Option<&Arc<KvPlan>>) -> Result<State, RuntimeError> {
        let shape = AttentionShape { capacity, ..self.shape };
        let form = plan.map_or(CacheForm::Exact(self.options.cache), CacheForm::Coded);
        State::new(&self.gpu, shape, (self.widths, self.needs), self.layers.len(), form)
    }

    /// The state of a conversation, made if there is none, with room for `positions` or more.
    fn state_in<'s>(
        &self,
        slot: &'s mut Option<Box<State>>,
        plan: Option<&Arc<KvPlan>>,
        positions: usize,
    ) -> Result<&'s mut State, RuntimeError> {
        Ok(match slot {
            Some(state) => state,
            None => {
                // Pages take little room only if there are no more of them than are needed.
                let capacity = match (plan, self.options.context) {
                    (Some(_), None) => CODED_CONTEXT.max(positions).min(self.max_positions),
                    _ => self.shape.capacity,
                };
                slot.insert(Box::new(self.new_state(capacity, plan)?))
            }
        })
    }

    /// Rows that go through the model at once.
    fn chunk(&self) -> usize {
        self.widths.chunk(&self.shape)
    }

    /// Runs `use_state` with a state that holds no positions, and keeps the state for the next time.
    fn with_idle<R>(
        &self,
        positions: usize,
        use_state: impl FnOnce(&mut State) -> Result<R, RuntimeError>,
    ) -> Result<R, RuntimeError> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let known = idle().pop();
        let mut state = match known {
            Some(state) => state,
            None => self.new_state(positions, None)?,
        };
        let result = use_state(&mut state);
        if result.is_ok() {
            idle().push(state);
        }
        result
    }

    /// Logits after the last of `tokens`, which follow the `held` positions of `slot`.
    pub(crate) fn next_logits(
        &self,
        tokens: &[u32],
        held: usize,
        (slot, plan): (&mut Option<Box<State>>, Option<&Arc<KvPlan>>),
        cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>, RuntimeError> {
        let total = held + tokens.len();
        let state = self.state_in(slot, plan, total)?;
        state.reserve(&self.gpu, (held, total, self.max_positions), tokens.len().min(state.chunk()), 1)?;
        let chunk = state.activations.rows;
        let mut at = held;
        for part in tokens.chunks(chunk) {
            if cancelled() {
                return Err(RuntimeError::Cancelled);
            }
            let last = at + part.len() == total;
            if last && part.len() == 1 {
                self.step(state, at, part[0])?;
            } else {
                self.prepare(state, at, part)?;
                self.hidden(state, part.len(), &mut Watcher::Nobody)?;
                if last {
                    self.launch_logits(state, part.len() - 1, 1)?;
                }
            }
            at += part.len();
        }
        let mut logits = vec![0f32; self.widths.vocab];
        let from = state.logits.as_slice().slice(0..logits.len())?;
        read(&self.gpu, state.stream.as_ref(), from, &mut logits)?;
        Ok(logits)
    }

    /// Hidden states after the final norm of `tokens`, `[tokens.len(), hidden]`, which follow the `held` positions of `slot`.
    pub(crate) fn forward(
        &self,
        tokens: &[u32],
        held: usize,
        (slot, plan): (&mut Option<Box<State>>, Option<&Arc<KvPlan>>),
    ) -> Result<Vec<f32>, RuntimeError> {
        let state = self.state_in(slot, plan, held + tokens.len())?;
        self.forward_in(tokens, held, state, &mut Watcher::Nobody)
    }

    /// [`forward`](Self::forward) from no positions, in a state that nobody keeps.
    pub(crate) fn forward_once(&self, tokens: &[u32], watch: &mut Watch<'_>) -> Result<Vec<f32>, RuntimeError> {
        self.with_idle(tokens.len(), |state| self.forward_in(tokens, 0, state, &mut Watcher::Residual(watch)))
    }

    /// Shows `see` the queries and keys of every layer, neither rotated, while `tokens` go through a state that nobody keeps.
    pub(crate) fn probe(&self, tokens: &[u32], see: &mut Seen<'_>) -> Result<(), RuntimeError> {
        self.with_idle(tokens.len(), |state| self.forward_in(tokens, 0, state, &mut Watcher::Keys(see)).map(|_| ()))
    }

    fn forward_in(
        &self,
        tokens: &[u32],
        held: usize,
        state: &mut State,
        watch: &mut Watcher<'_, '_>,
    ) -> Result<Vec<f32>, RuntimeError> {
        let hidden = self.widths.hidden;
        let rows = tokens.len().min(state.chunk());
        state.reserve(&self.gpu, (held, held + tokens.len(), self.max_positions), rows, 1)?;
        let mut out = vec![0f32; tokens.len() * hidden];
        let mut at = held;
        for (part, out) in tokens.chunks(rows).zip(out.chunks_mut(rows * hidden)) {
            self.prepare(state, at, part)?;
            self.hidden(state, part.len(), watch)?;
            let normed = state.activations.normed.as_slice().slice(0..out.len())?;
            read(&self.gpu, state.stream.as_ref(), normed, out)?;
            at += part.len();
        }
        Ok(out)
    }

    /// Logits of hidden states, `[n, hidden]` to `[n, vocab]`.
    pub(crate) fn logits(&self, hidden: &[f32]) -> Result<Vec<f32>, RuntimeError> {
        let n = hidden.len() / self.widths.hidden;
        let rows = n.min(self.widths.logit_rows()).min(self.chunk());
        self.with_idle(1, |state| {
            state.reserve(&self.gpu, (0, 1, self.max_positions), rows, rows)?;
            let mut out = vec![0f32; n * self.widths.vocab];
            for (hidden, out) in hidden.chunks(rows * self.widths.hidden).zip(out.chunks_mut(rows * self.widths.vocab))
            {
                state.activations.normed.write_on(state.stream.as_ref(), hidden)?;
                self.launch_logits(state, 0, hidden.len() / self.widths.hidden)?;
                let from = state.logits.as_slice().slice(0..out.len())?;
                read(&self.gpu, state.stream.as_ref(), from, out)?;
            }
            Ok(out)
        })
    }

    /// Hands `sink` slices of the logits of `positions`, first position and rows.
    pub(crate) fn score(
        &self,
        tokens: &[u32],
        positions: std::ops::Range<usize>,
        sink: &mut Sink<'_>,
    ) -> Result<(), RuntimeError> {
        let (rows, slice) = (tokens.len().min(self.chunk()), self.widths.logit_rows());
        self.with_idle(tokens.len(), |state| {
            state.reserve(&self.gpu, (0, tokens.len(), self.max_positions), rows, slice)?;
            let mut logits = vec![0f32; slice * self.widths.vocab];
            let mut at = 0;
            for part in tokens.chunks(rows) {
                self.prepare(state, at, part)?;
                self.hidden(state, part.len(), &mut Watcher::Nobody)?;
                let wanted = positions.start.max(at)..positions.end.min(at + part.len());
                for first in wanted.clone().step_by(slice) {
                    let n = slice.min(wanted.end - first);
                    self.launch_logits(state, first - at, n)?;
                    let logits = &mut logits[..n * self.widths.vocab];
                    let from = state.logits.as_slice().slice(0..logits.len())?;
                    read(&self.gpu, state.stream.as_ref(), from, logits)?;
                    sink(first, logits)?;
                }
                at += part.len();
            }
            Ok(())
        })
    }

    /// Puts position and tokens on the device, and with them the embeddings if those are made on the processor.
    fn prepare(&self, state: &mut State, position: usize, tokens: &[u32]) -> Result<(), RuntimeError> {
        state.begin(&self.gpu, position, tokens.len())?;
        state.set_inputs(position, tokens)?;
        if let Table::Host { rows, .. } = &self.embedding {
            let x = rows.gather(tokens)?;
            state.activations.x.write_on(state.stream.as_ref(), &f32_slice(&x)?)?;
        }
        Ok(())
    }

    /// One token: as a graph if there is one.
    fn step(&self, state: &mut State, position: usize, token: u32) -> Result<(), RuntimeError> {
        self.prepare(state, position, &[token])?;
        if let Step::Plain(n @ 0..WARM_STEPS) = state.step {
            state.step = Step::Plain(n + 1);
        } else if let (Step::Plain(_), true) = (&state.step, self.options.graph) {
            state.step = match self.capture(state) {
                Ok(graph) => Step::Captured(graph),
                Err(_) => Step::Refused,
            };
        }
        if let Step::Captured(graph) = &state.step {
            return Ok(graph.launch(state.stream.as_ref())?);
        }
        self.hidden(state, 1, &mut Watcher::Nobody)?;
        self.launch_logits(state, 0, 1)
    }

    fn capture(&self, state: &mut State) -> Result<Graph, RuntimeError> {
        // The stream is lent to the capture while the rest of the state is written by the launches.
        let stream = self.gpu.stream()?;
        let own = std::mem::replace(&mut state.stream, stream);
        let result = Graph::capture(&own, |captured| {
            let work = self
                .hidden_on(captured, state, 1, &mut Watcher::Nobody)
                .and_then(|()| self.logits_on(captured, state, 0, 1));
            if self.options.break_capture {
                // Waiting cannot be captured.
                captured.synchronize()?;
            }
            work.map_err(|error| match error {
                RuntimeError::Cuda(error) => error,
                other => CudaError::Codec(other.to_string()),
            })
        });
        state.stream = own;
        Ok(result?)
    }

    /// Launches the layers for `n` rows; the hidden states after the final norm are in `normed`.
    fn hidden(&self, state: &mut State, n: usize, watch: &mut Watcher<'_, '_>) -> Result<(), RuntimeError> {
        let stream = state.stream.clone();
        self.hidden_on(stream.as_ref(), state, n, watch)
    }

    pub(super) fn hidden_on(
        &self,
        stream: StreamRef<'_>,
        state: &mut State,
        n: usize,
        watch: &mut Watcher<'_, '_>,
    ) -> Result<(), RuntimeError> {
        let gpu = &self.gpu;
        let State { shape, cache, scratch, activations: a, inputs, workspace: ws, .. } = state;
        let hidden = n * self.widths.hidden;
        let q_len = n * shape.heads * shape.head_dim;
        let position = inputs.as_slice().slice(0..1)?;
        if let Table::Device(table) = &self.embedding
            && table.is_dense()
        {
            let (tokens, x) = (inputs.as_slice().slice(1..n + 1)?, a.x.as_mut().slice(0..hidden)?);
            gather(gpu, stream, table, tokens, self.widths.hidden, x)?;
        }
        self.show(stream, "model.embed_tokens", a.x.as_slice().slice(0..hidden)?, None, None, watch)?;
        let mut bias: Option<&Buffer<f32>> = None;
        for (i, layer) in self.layers.iter().enumerate() {
            let delta = (i > 0).then_some(&a.delta);
            let signs = layer.qkv.signs();
            norm(gpu, stream, (&mut a.x, &mut a.normed), delta, bias, &layer.input_norm, self.eps, signs, hidden)?;
            let qkv_len = n * layer.qkv.rows();
            layer.qkv.forward(
                gpu,
                stream,
                a.normed.as_slice().slice(0..hidden)?,
                signs.is_some(),
                n,
                a.qkv.as_mut().slice(0..qkv_len)?,
                ws,
            )?;
            let rope = Rope {
                turns: self.turns.as_slice(),
                interleaved: false,
                bias: layer.qkv_bias.as_ref().map(Buffer::as_slice),
                q_norm: layer.q_norm.as_ref().map(Buffer::as_slice),
                k_norm: layer.k_norm.as_ref().map(Buffer::as_slice),
                eps: self.eps,
                position,
            };
            let qkv = layer.qkv.rows_of::<3>(a.qkv.as_slice().slice(0..qkv_len)?, n)?;
            self.show_keys(stream, i, &rope, qkv, n, watch)?;
            let (mut q, out) = (a.q.as_mut().slice(0..q_len)?, a.attended.as_mut().slice(0..q_len)?);
            let own = range(shape, i);
            macro_rules! attention {
                ($keys:expr, $values:expr) => {{
                    let (mut k, mut v) = ($keys.as_mut().slice(own.clone())?, $values.as_mut().slice(own)?);
                    if n == 1 {
                        attend_step(gpu, stream, shape, &rope, qkv, k, v, scratch, out)?;
                    } else {
                        rope_append(gpu, stream, shape, &rope, qkv, q.reborrow(), k.reborrow(), v.reborrow())?;
                        attend(gpu, stream, shape, position, q.as_slice(), k.as_slice(), v.as_slice(), out)?;
                    }
                }};
            }
            match cache {
                Cache::F16(keys, values) => attention!(keys, values),
                Cache::F32(keys, values) => attention!(keys, values),
                Cache::Coded(coded) if n == 1 => coded.step(gpu, stream, i, &rope, qkv, out)?,
                Cache::Coded(coded) => coded.prompt(gpu, stream, i, &rope, qkv, q, out)?,
            }
            let attended = a.attended.as_slice().slice(0..q_len)?;
            layer.o.forward(gpu, stream, attended, false, n, a.delta.as_mut().slice(0..hidden)?, ws)?;
            let bias_o = layer.o_bias.as_ref();
            let weight = &layer.post_attention_norm;
            let signs = layer.gate_up.signs();
            norm(gpu, stream, (&mut a.x, &mut a.normed), Some(&a.delta), bias_o, weight, self.eps, signs, hidden)?;
            let gate_len = n * layer.gate_up.rows();
            let normed = a.normed.as_slice().slice(0..hidden)?;
            layer.gate_up.forward(
                gpu,
                stream,
                normed,
                signs.is_some(),
                n,
                a.gate_up.as_mut().slice(0..gate_len)?,
                ws,
            )?;
            let parts = layer.gate_up.rows_of::<2>(a.gate_up.as_slice().slice(0..gate_len)?, n)?;
            let gate_bias = layer.gate_up_bias.as_ref().map(Buffer::as_slice);
            let ffn = self.widths.ffn;
            let signs = layer.down.signs();
            silu_mul(gpu, stream, parts, gate_bias, ffn, signs, a.gated.as_mut().slice(0..n * ffn)?)?;
            let gated = a.gated.as_slice().slice(0..n * ffn)?;
            layer.down.forward(gpu, stream, gated, signs.is_some(), n, a.delta.as_mut().slice(0..hidden)?, ws)?;
            bias = layer.down_bias.as_ref();
            let (x, delta) = (a.x.as_slice().slice(0..hidden)?, a.delta.as_slice().slice(0..hidden)?);
            self.show(stream, &layer.name, x, Some(delta), bias, watch)?;
        }
        let delta = (!self.layers.is_empty()).then_some(&a.delta);
        norm(gpu, stream, (&mut a.x, &mut a.normed), delta, bias, &self.norm, self.eps, None, hidden)?;
        self.show(stream, "model.norm", a.normed.as_slice().slice(0..hidden)?, None, None, watch)
    }

    /// Launches the head for `n` rows of `normed` from `first` on.
    fn launch_logits(&self, state: &mut State, first: usize, n: usize) -> Result<(), RuntimeError> {
        let stream = state.stream.clone();
        self.logits_on(stream.as_ref(), state, first, n)
    }

    pub(super) fn logits_on(
        &self,
        stream: StreamRef<'_>,
        state: &mut State,
        first: usize,
        n: usize,
    ) -> Result<(), RuntimeError> {
        let hidden = self.widths.hidden;
        let x = state.activations.normed.as_slice().slice(first * hidden..(first + n) * hidden)?;
        let y = state.logits.as_mut().slice(0..n * self.widths.vocab)?;
        Ok(self.head().forward(&self.gpu, stream, x, false, n, y, &mut state.workspace)?)
    }
}

fn attention_shape(config: &ModelConfig, options: &GpuOptions) -> AttentionShape {
    AttentionShape {
        heads: config.n_heads,
        kv_heads: config.n_kv_heads,
        head_dim: config.head_dim,
        capacity: options.context.unwrap_or(DEFAULT_CONTEXT.min(config.max_positions)).max(1),
    }
}

fn widths(config: &ModelConfig) -> Widths {
    Widths { hidden: config.hidden_size, ffn: config.intermediate_size, vocab: config.vocab_size }
}

/// What the products of all layers and of the outer matrices need.
fn needs(layers: &[Layer], outer: [Option<&Stack>; 2]) -> Needs {
    let of_layers = layers.iter().flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down]);
    of_layers.chain(outer.into_iter().flatten()).map(Stack::needs).fold(Needs::default(), Needs::max)
}

/// `x += delta + bias`, `normed = norm(x)`, over the first `len` elements.
#[expect(clippy::too_many_arguments, reason = "one operation with two optional inputs")]
fn norm(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    (x, normed): (&mut Buffer<f32>, &mut Buffer<f32>),
    delta: Option<&Buffer<f32>>,
    bias: Option<&Buffer<f32>>,
    weight: &Buffer<f32>,
    eps: f32,
    signs: Option<DevSlice<'_, u32>>,
    len: usize,
) -> Result<(), CudaError> {
    let delta = match delta {
        Some(delta) => Some(Delta { values: delta.as_slice().slice(0..len)?, bias: bias.map(Buffer::as_slice) }),
        None => None,
    };
    rmsnorm(
        gpu,
        stream,
        x.as_mut().slice(0..len)?,
        delta,
        weight.as_slice(),
        eps,
        signs,
        normed.as_mut().slice(0..len)?,
    )
}

fn gather(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    table: &Stack,
    tokens: DevSlice<'_, u32>,
    cols: usize,
    x: gosset_cuda::DevSliceMut<'_, f32>,
) -> Result<(), CudaError> {
    match table.only() {
        DeviceLinear::Dense { weights, .. } => match weights {
            DenseWeights::F32(w) => embed(gpu, stream, w.as_slice(), tokens, cols, x),
            DenseWeights::F16(w) => embed(gpu, stream, w.as_slice(), tokens, cols, x),
            DenseWeights::Bf16(w) => embed(gpu, stream, w.as_slice(), tokens, cols, x),
        },
        DeviceLinear::Shift(_) | DeviceLinear::Rice { .. } | DeviceLinear::UniSvq(_) => {
            Err(CudaError::Unsupported { op: "rows of an embedding", what: "a coded table".to_owned() })
        }
    }
}

/// Compares what the model needs with what is free, before anything is uploaded.
fn check_memory(
    config: &ModelConfig,
    weights: &dyn Weights,
    tied: bool,
    device: &GpuDevice,
    shape: &AttentionShape,
    widths: &Widths,
) -> Result<(), RuntimeError> {
    let GpuDevice { gpu, options } = device;
    let head = (!tied).then_some(HEAD);
    let names = crate::models::expected_tensors(config).map(|t| (t.name, t.shape));
    let names = names.chain(head.map(|h| (h.to_owned(), vec![widths.vocab, widths.hidden])));
    let (mut bytes, mut needs) = (0u64, Needs::default());
    for (name, expected) in names {
        if weights.shape(&name).is_none() {
            continue;
        }
        bytes = bytes.saturating_add(match expected.len() {
            2 => {
                let stored = weights.stored(&name)?;
                needs = needs.max(stored.needs());
                stored.device_bytes(options.dense)
            }
            _ => 4 * expected.iter().product::<usize>() as u64,
        });
    }
    let element = if options.cache == CacheType::F16 { 2 } else { 4 };
    let per_position = (2 * shape.kv_heads * shape.head_stride() * config.n_layers) as u64;
    let cache = per_position.saturating_mul(element).saturating_mul(shape.capacity as u64);
    let rows = widths.chunk(shape);
    let workspace = widths.bytes(shape, rows, widths.logit_rows()).saturating_add(needs.bytes(rows));
    let free = gpu.free_bytes()?;
    if bytes.saturating_add(cache).saturating_add(workspace) > free {
        let positions = shape.capacity;
        return Err(RuntimeError::DeviceMemory { weights: bytes, cache, positions, workspace, free });
    }
    Ok(())
}
