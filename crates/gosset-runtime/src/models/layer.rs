//! One layer of a decoder: attention, then a gated feed-forward part, each around the residual stream.

use candle_core::Tensor;
use rayon::prelude::*;

use crate::attention::{AttentionShape, attend};
use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::kv_cache::LayerCache;
use crate::linear::{Activation, Linear};
use crate::models::Gate;
use crate::norm::RmsNorm;
use crate::rope::RopeTables;
use crate::tensor::{f32_slice, tensor2};
use crate::weights::Weights;

/// Name of layer `index`, without a dot at its end.
pub(crate) fn layer_name(index: usize) -> String {
    format!("model.layers.{index}")
}

/// A layer that can be loaded and run alone.
#[derive(Debug)]
pub(crate) struct Layer {
    name: String,
    shape: AttentionShape,
    local: bool,
    gate_kind: Gate,
    input_norm: Option<RmsNorm>,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    /// Of what attention gives, before it is added.
    attention_output_norm: Option<RmsNorm>,
    feed_forward_norm: Option<RmsNorm>,
    /// Of what the feed-forward part gives, before it is added.
    feed_forward_output_norm: Option<RmsNorm>,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Layer {
    /// Loads the tensors of layer `index`, whose names and shapes were checked before.
    pub(crate) fn load(config: &ModelConfig, weights: &dyn Weights, index: usize) -> Result<Self, RuntimeError> {
        let name = layer_name(index);
        let norm = |name: &str| RmsNorm::load(config, weights, name);
        let part = |part: &str| format!("{name}.{part}.weight");
        let head_norm = |n: &str| weights.shape(&part(n)).map(|_| norm(&part(n))).transpose();
        let linear = |part: &str| {
            let bias = format!("{name}.{part}.bias");
            let bias = weights.shape(&bias).map(|_| weights.vector(&bias)).transpose()?;
            weights.linear(&format!("{name}.{part}.weight"), bias)
        };
        let [input_norm, attention_output_norm, feed_forward_norm, feed_forward_output_norm] =
            config.architecture.layer_norms();
        let optional = |name: Option<&str>| name.map(|name| norm(&part(name))).transpose();
        Ok(Self {
            shape: AttentionShape::of(config, index),
            local: config.local_layers.contains(index),
            gate_kind: config.architecture.gate,
            input_norm: optional(input_norm)?,
            q: linear("self_attn.q_proj")?,
            k: linear("self_attn.k_proj")?,
            v: linear("self_attn.v_proj")?,
            o: linear("self_attn.o_proj")?,
            q_norm: head_norm("self_attn.q_norm")?,
            k_norm: head_norm("self_attn.k_norm")?,
            attention_output_norm: optional(attention_output_norm)?,
            feed_forward_norm: optional(feed_forward_norm)?,
            feed_forward_output_norm: optional(feed_forward_output_norm)?,
            gate: linear("mlp.gate_proj")?,
            up: linear("mlp.up_proj")?,
            down: linear("mlp.down_proj")?,
            name,
        })
    }

    /// For instance `model.layers.3`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What its attention does.
    pub(crate) fn shape(&self) -> AttentionShape {
        self.shape
    }

    /// Whether it is local, which decides about its rotary frequencies.
    pub(crate) fn is_local(&self) -> bool {
        self.local
    }

    /// The residual stream after this layer; the cache takes the positions of `x`, `[n, hidden]`.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        cache: &mut LayerCache,
        rope: &RopeTables,
    ) -> Result<Tensor, RuntimeError> {
        self.forward_with(x, |q, k, v| self.attend(q, k, v, cache, rope))
    }

    /// Attention of queries, keys (neither rotated yet) and values whose positions the cache takes.
    pub(crate) fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        cache: &mut LayerCache,
        rope: &RopeTables,
    ) -> Result<Tensor, RuntimeError> {
        let rope = rope.of_layer(self.local);
        cache.append(&f32_slice(k)?, &f32_slice(v)?, rope);
        attend(q, cache, rope, self.shape)
    }

    /// The layer around an attention that is given: queries, keys (neither rotated yet) and values of all rows to what is attended.
    pub(crate) fn forward_with(
        &self,
        x: &Tensor,
        attention: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Tensor, RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        let [q, k, v] = self.queries_keys_values(self.attention_input(x)?)?;
        let x = self.add_attention(x, attention(&q, &k, &v)?)?;
        let gated = self.gated(self.feed_forward_input(&x)?)?;
        self.add_feed_forward(&x, gated)
    }

    /// What q, k and v read: the normalized residual stream.
    pub(crate) fn attention_input(&self, x: &Tensor) -> Result<Tensor, RuntimeError> {
        normalized(x.clone(), &self.input_norm)
    }

    /// Queries and keys, not rotated yet, and values for what [`attention_input`](Self::attention_input) gave.
    pub(crate) fn queries_keys_values(&self, input: Tensor) -> Result<[Tensor; 3], RuntimeError> {
        let input = Activation::new(input);
        let q = normalized(self.q.apply(&input)?, &self.q_norm)?;
        let k = normalized(self.k.apply(&input)?, &self.k_norm)?;
        Ok([q, k, self.v.apply(&input)?])
    }

    /// The residual stream after attention, from what was attended: the input of o.
    pub(crate) fn add_attention(&self, x: &Tensor, attended: Tensor) -> Result<Tensor, RuntimeError> {
        Ok((x + normalized(self.o.apply(&Activation::new(attended))?, &self.attention_output_norm)?)?)
    }

    /// What gate and up read: the normalized residual stream after attention.
    pub(crate) fn feed_forward_input(&self, x: &Tensor) -> Result<Tensor, RuntimeError> {
        normalized(x.clone(), &self.feed_forward_norm)
    }

    /// The gate's value times up, of what [`feed_forward_input`](Self::feed_forward_input) gave: the input of down.
    pub(crate) fn gated(&self, input: Tensor) -> Result<Tensor, RuntimeError> {
        let input = Activation::new(input);
        gated(self.gate_kind, &self.gate.apply(&input)?, &self.up.apply(&input)?)
    }

    /// The residual stream after the layer, from that after attention and the input of down.
    pub(crate) fn add_feed_forward(&self, x: &Tensor, gated: Tensor) -> Result<Tensor, RuntimeError> {
        Ok((x + normalized(self.down.apply(&Activation::new(gated))?, &self.feed_forward_output_norm)?)?)
    }

    /// Bytes on the heap that weights take.
    pub(crate) fn heap_bytes(&self) -> usize {
        let linears = [&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down];
        let norms = [
            &self.input_norm,
            &self.attention_output_norm,
            &self.feed_forward_norm,
            &self.feed_forward_output_norm,
            &self.q_norm,
            &self.k_norm,
        ];
        linears.iter().map(|l| l.heap_bytes()).sum::<usize>()
            + norms.into_iter().flatten().map(RmsNorm::heap_bytes).sum::<usize>()
    }
}

fn normalized(y: Tensor, norm: &Option<RmsNorm>) -> Result<Tensor, RuntimeError> {
    match norm {
        Some(norm) => norm.forward(&y),
        None => Ok(y),
    }
}

/// The gate's value times `up`, element by element.
fn gated(kind: Gate, gate: &Tensor, up: &Tensor) -> Result<Tensor, RuntimeError> {
    /// Elements per task: some microseconds of work.
    const TASK_LEN: usize = 1 << 14;
    let (n, cols) = gate.dims2()?;
    let up = f32_slice(up)?;
    let mut out = f32_slice(gate)?.to_vec();
    out.par_chunks_mut(TASK_LEN).zip(up.par_chunks(TASK_LEN)).for_each(|(gate, up)| kind.multiply(gate, up));
    tensor2(out, n, cols)
}
