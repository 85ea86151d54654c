//! Models of random weights, made on the device: what a shape costs in memory and time needs no checkpoint.

use gosset_codec::{CodecSpec, RotationSpec};
use gosset_cuda::launch::model::{ROTATED_TILE, random_normal, random_shift, read};
use gosset_cuda::{Buffer, CudaError, Event, Gpu, Graph, StreamRef};

use super::decoder::{GpuDecoder, Layer, Table};
use super::kernels::check_kernels;
use super::linear::{DenseWeights, DeviceLinear, Stack};
use super::state::State;
use super::watcher::Watcher;
use super::{GpuDevice, GpuOptions};
use crate::config::ModelConfig;
use crate::error::RuntimeError;

/// What random weights are held as.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RandomWeights {
    /// About normal numbers in BF16.
    Bf16,
    /// Random words in the format of a shift codec.
    Coded(CodecSpec),
}

/// Bytes of device memory by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceMemory {
    /// Matrices of the layers, with their scales and signs.
    pub layers: u64,
    /// Embedding table and head.
    pub embeddings: u64,
    /// Norms and rotary frequencies.
    pub norms: u64,
    /// Activations, logits, scratch.
    pub workspace: u64,
    /// Keys and values.
    pub cache: u64,
    /// Everything that buffers hold, as counted where they are allocated; the others do not exceed it.
    pub allocated: u64,
}

/// A decoder of random weights that continues a text by itself: the likeliest token of each step is the next input.
#[derive(Debug)]
pub struct RandomModel {
    decoder: GpuDecoder,
    state: State,
    graph: Option<Graph>,
    /// Rows of a coded table that are decoded together.
    unit: Option<Buffer<f32>>,
}

/// Rows of a shift-coded matrix that are decoded together.
const UNIT_ROWS: usize = 16;

impl RandomModel {
    /// A model of this configuration; `embeddings` holds for the table and, unless `tied`, for the head.
    ///
    /// # Errors
    /// [`RuntimeError::Cuda`], also if memory is short; [`RuntimeError::DeviceModel`] for an architecture that runs on the processor alone;
    /// [`RuntimeError::Options`] for heads that attention does not take.
    pub fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        layers: &RandomWeights,
        embeddings: &RandomWeights,
        tied: bool,
        options: &GpuOptions,
    ) -> Result<Self, RuntimeError> {
        check_kernels(config)?;
        let mut seed = 0;
        let mut matrix = |form: &RandomWeights, widths: &[usize], cols: usize| -> Result<Stack, RuntimeError> {
            seed += 1;
            let rows = widths.iter().sum::<usize>();
            let linear = match form {
                RandomWeights::Bf16 => {
                    let weights = random_normal(gpu, rows * cols, 1.0 / (cols as f32).sqrt(), seed)?;
                    DeviceLinear::Dense { weights: DenseWeights::Bf16(weights), rows, cols }
                }
                RandomWeights::Coded(codec) => {
                    DeviceLinear::Shift(Box::new(random_shift(gpu, codec, (rows, cols), seed)?))
                }
            };
            let one_rotation = match form {
                RandomWeights::Coded(CodecSpec { rotation: RotationSpec::Rht { tile, .. }, .. }) => {
                    *tile as usize == ROTATED_TILE && cols.is_multiple_of(ROTATED_TILE)
                }
                _ => false,
            };
            Ok(Stack::of(linear, widths, one_rotation))
        };
        let ones = || gpu.upload(&vec![1f32; config.hidden_size]);
        let (hidden, ffn, q, kv) = (config.hidden_size, config.intermediate_size, config.q_dim(), config.kv_dim());
        let table = matrix(embeddings, &[config.vocab_size], hidden)?;
        let head = if tied { None } else { Some(matrix(embeddings, &[config.vocab_size], hidden)?) };
        let mut all = Vec::with_capacity(config.n_layers);
        for i in 0..config.n_layers {
            all.push(Layer {
                name: format!("model.layers.{i}"),
                input_norm: ones()?,
                qkv: matrix(layers, &[q, kv, kv], hidden)?,
                qkv_bias: None,
                q_norm: None,
                k_norm: None,
                o: matrix(layers, &[hidden], q)?,
                o_bias: None,
                post_attention_norm: ones()?,
                gate_up: matrix(layers, &[ffn, ffn], hidden)?,
                gate_up_bias: None,
                down: matrix(layers, &[hidden], ffn)?,
                down_bias: None,
            });
        }
        let device = GpuDevice { gpu: gpu.clone(), options: options.clone() };
        let unit = match table.only() {
            DeviceLinear::Shift(_) => Some(gpu.alloc(UNIT_ROWS * hidden)?),
            _ => None,
        };
        let decoder = GpuDecoder::assemble(config, &device, Table::Device(table), all, ones()?, head, Vec::new())?;
        let state = decoder.default_state()?;
        Ok(Self { decoder, state, graph: None, unit })
    }

    /// Memory that the model holds.
    pub fn memory(&self) -> DeviceMemory {
        let (layers, embeddings, norms) = self.decoder.bytes_by_cause();
        let unit = self.unit.as_ref().map_or(0, |b| b.bytes() as u64);
        DeviceMemory {
            layers,
            embeddings,
            norms,
            workspace: self.state.workspace_bytes() + unit,
            cache: self.state.cache_bytes(),
            allocated: self.decoder.gpu().allocated_bytes(),
        }
    }

    /// Runs `n` steps from `position` on, the first for `token`; returns microseconds of the device and the last token.
    ///
    /// What the cache holds before `position` does not matter to time. Where the table is coded each step waits for its token,
    /// whose row is decoded between two steps; else the steps follow each other on the device.
    ///
    /// # Errors
    /// [`RuntimeError::ContextOverflow`] beyond the room of the cache, [`RuntimeError::NonFinite`], [`RuntimeError::Cuda`].
    pub fn run(&mut self, position: usize, token: u32, n: usize) -> Result<(f64, u32), RuntimeError> {
        let limit = self.state.shape.capacity;
        if position + n > limit {
            let detail = format!("{position} before, {n} steps");
            return Err(RuntimeError::ContextOverflow { asked: position + n, limit, detail });
        }
        let gpu = self.decoder.gpu().clone();
        self.state.set_inputs(position, &[token])?;
        if self.graph.is_none() && self.decoder.options().graph {
            // A plain step first: it loads the modules.
            self.gather()?;
            self.launch_step()?;
            self.state.stream.synchronize()?;
            self.graph = Some(self.capture()?);
            self.state.set_inputs(position, &[token])?;
        }
        let (start, end) = (Event::new(&gpu)?, Event::new(&gpu)?);
        self.state.stream.synchronize()?;
        start.record(self.state.stream.as_ref())?;
        for _ in 0..n {
            self.gather()?;
            match &self.graph {
                Some(graph) => graph.launch(self.state.stream.as_ref())?,
                None => self.launch_step()?,
            }
        }
        end.record(self.state.stream.as_ref())?;
        let mut token = [0];
        let stream = self.state.stream.as_ref();
        read(&gpu, stream, self.state.inputs.as_slice().slice(1..2)?, &mut token)?;
        let mut logits = vec![0f32; self.state.logits.len()];
        read(&gpu, stream, self.state.logits.as_slice(), &mut logits)?;
        if logits.iter().any(|v| !v.is_finite()) {
            return Err(RuntimeError::NonFinite { layer: "lm_head".to_owned(), position: position + n - 1 });
        }
        Ok((end.elapsed_us(&start)?, token[0]))
    }

    /// The row of a coded table, decoded on the device for the token that the step before chose.
    fn gather(&mut self) -> Result<(), RuntimeError> {
        let (Some(unit), Some(DeviceLinear::Shift(table))) = (&mut self.unit, self.decoder.table()) else {
            return Ok(());
        };
        let (stream, hidden) = (self.state.stream.as_ref(), table.cols());
        let mut token = [0];
        read(self.decoder.gpu(), stream, self.state.inputs.as_slice().slice(1..2)?, &mut token)?;
        let row = token[0] as usize;
        let first = row / UNIT_ROWS * UNIT_ROWS;
        let rows = first..(first + UNIT_ROWS).min(table.rows());
        table.decode(stream, rows.clone(), unit.as_mut().slice(0..rows.len() * hidden)?)?;
        let x = &mut self.state.activations.x;
        x.copy_on(stream, unit.as_slice().slice((row - first) * hidden..(row - first + 1) * hidden)?)?;
        if let Some(rht) = table.rotation() {
            rht.inverse_in_place(stream, x.as_mut().slice(0..hidden)?, 1)?;
        }
        Ok(())
    }

    fn launch_step(&mut self) -> Result<(), RuntimeError> {
        let stream = self.state.stream.clone();
        self.launch_step_on(stream.as_ref())
    }

    fn launch_step_on(&mut self, stream: StreamRef<'_>) -> Result<(), RuntimeError> {
        self.decoder.hidden_on(stream, &mut self.state, 1, &mut Watcher::Nobody)?;
        self.decoder.logits_on(stream, &mut self.state, 0, 1)?;
        let State { argmax, inputs, logits, .. } = &mut self.state;
        let (position, token) = inputs.as_mut().split_at(1)?;
        Ok(argmax.launch(self.decoder.gpu(), stream, logits.as_slice(), token.slice(0..1)?, position)?)
    }

    fn capture(&mut self) -> Result<Graph, RuntimeError> {
        let stream = self.decoder.gpu().stream()?;
        let own = std::mem::replace(&mut self.state.stream, stream);
        let result = Graph::capture(&own, |captured| {
            self.launch_step_on(captured).map_err(|error| match error {
                RuntimeError::Cuda(error) => error,
                other => CudaError::Codec(other.to_string()),
            })
        });
        self.state.stream = own;
        Ok(result?)
    }
}
