//! The decoder that all architectures share: embedding, layers of attention and gated feed-forward, norm, head.

use std::sync::Arc;

use candle_core::Tensor;
use rayon::prelude::*;

use crate::arch::silu_mul;
use crate::attention::{AttentionShape, attend};
use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::kv_cache::{KvCache, LayerCache};
use crate::linear::{Activation, Linear};
use crate::norm::RmsNorm;
use crate::rope::{RopeFrequencies, RopeTable};
use crate::tensor::{f32_slice, tensor2};
use crate::trees::Trees;
use crate::weights::Weights;

/// Name of the embedding table.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";

/// Name of the output head.
pub(crate) const HEAD: &str = "lm_head.weight";

/// Name of the weight of the last norm.
pub(crate) const FINAL_NORM: &str = "model.norm.weight";

/// A tensor that a configuration asks for.
pub(crate) struct ExpectedTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    /// Optional tensors are used if they are there.
    pub(crate) required: bool,
}

/// Every tensor of a model of this configuration, the output head left out; layer by layer, lazily.
///
/// Biases and head norms are optional where the architecture does not demand them: a checkpoint that has one wants it used.
pub(crate) fn expected_tensors(config: &ModelConfig) -> impl Iterator<Item = ExpectedTensor> + '_ {
    let tensor = |name: String, shape: &[usize], required| ExpectedTensor { name, shape: shape.to_vec(), required };
    let outer = [(EMBEDDING, vec![config.vocab_size, config.hidden_size]), (FINAL_NORM, vec![config.hidden_size])];
    let layers = (0..config.n_layers).flat_map(move |layer| {
        let named = |part: &str| format!("model.layers.{layer}.{part}");
        let (hidden, ffn, q, kv) = (config.hidden_size, config.intermediate_size, config.q_dim(), config.kv_dim());
        let qkv_bias = config.architecture.qkv_bias || config.attention_bias;
        let linears = [
            ("self_attn.q_proj", q, hidden, qkv_bias),
            ("self_attn.k_proj", kv, hidden, qkv_bias),
            ("self_attn.v_proj", kv, hidden, qkv_bias),
            ("self_attn.o_proj", hidden, q, config.attention_bias && !config.architecture.qkv_bias),
            ("mlp.gate_proj", ffn, hidden, config.mlp_bias),
            ("mlp.up_proj", ffn, hidden, config.mlp_bias),
            ("mlp.down_proj", hidden, ffn, config.mlp_bias),
        ];
        let norms = [
            ("input_layernorm", hidden, true),
            ("post_attention_layernorm", hidden, true),
            ("self_attn.q_norm", config.head_dim, config.architecture.qk_norm),
            ("self_attn.k_norm", config.head_dim, config.architecture.qk_norm),
        ];
        let weights = linears.map(|(part, out, inp, _)| tensor(named(part) + ".weight", &[out, inp], true));
        let biases = linears.map(|(part, out, _, bias)| tensor(named(part) + ".bias", &[out], bias));
        let norms = norms.map(|(part, width, required)| tensor(named(part) + ".weight", &[width], required));
        weights.into_iter().chain(biases).chain(norms)
    });
    outer.into_iter().map(move |(name, shape)| tensor(name.to_owned(), &shape, true)).chain(layers)
}

/// A loaded model without its tokenizer: token ids in, hidden states and logits out.
#[derive(Debug)]
pub(crate) struct Decoder {
    embedding: Arc<Linear>,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Arc<Linear>,
    rope: RopeFrequencies,
    shape: AttentionShape,
}

#[derive(Debug)]
struct Layer {
    /// For instance `model.layers.3`.
    name: String,
    input_norm: RmsNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    post_attention_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Where the layers of one pass find and leave keys and values.
enum Memory<'a> {
    /// Each in its own cache.
    Kept(&'a mut [LayerCache]),
    /// All in the same one, emptied before each.
    Forgotten(LayerCache),
}

impl Decoder {
    /// Loads every tensor; their names and shapes were checked against [`expected_tensors`] before.
    pub(crate) fn load(config: &ModelConfig, weights: &dyn Weights, tied: bool) -> Result<Self, RuntimeError> {
        let norm = |name: &str| Ok::<_, RuntimeError>(RmsNorm::new(weights.vector(name)?, config.rms_norm_eps));
        let embedding = Arc::new(weights.linear(EMBEDDING, None)?);
        let head = if tied { Arc::clone(&embedding) } else { Arc::new(weights.linear(HEAD, None)?) };
        let layers = (0..config.n_layers).map(|i| {
            let name = format!("model.layers.{i}");
            let part = |part: &str| format!("{name}.{part}.weight");
            let head_norm = |n: &str| weights.shape(&part(n)).map(|_| norm(&part(n))).transpose();
            let linear = |part: &str| {
                let bias = format!("{name}.{part}.bias");
                let bias = weights.shape(&bias).map(|_| weights.vector(&bias)).transpose()?;
                weights.linear(&format!("{name}.{part}.weight"), bias)
            };
            Ok::<_, RuntimeError>(Layer {
                input_norm: norm(&part("input_layernorm"))?,
                q: linear("self_attn.q_proj")?,
                k: linear("self_attn.k_proj")?,
                v: linear("self_attn.v_proj")?,
                o: linear("self_attn.o_proj")?,
                q_norm: head_norm("self_attn.q_norm")?,
                k_norm: head_norm("self_attn.k_norm")?,
                post_attention_norm: norm(&part("post_attention_layernorm"))?,
                gate: linear("mlp.gate_proj")?,
                up: linear("mlp.up_proj")?,
                down: linear("mlp.down_proj")?,
                name,
            })
        });
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
            norm: norm(FINAL_NORM)?,
            embedding,
            head,
            rope: RopeFrequencies::new(config.head_dim, config.rope_theta, &config.rope_scaling),
            shape: AttentionShape { heads: config.n_heads, kv_heads: config.n_kv_heads, head_dim: config.head_dim },
        })
    }

    /// A cache without positions.
    pub(crate) fn new_cache(&self) -> KvCache {
        KvCache::new(self.layers.len(), self.shape.kv_heads, self.shape.head_dim)
    }

    /// Bytes on the heap that weights take.
    pub(crate) fn heap_bytes(&self) -> usize {
        let head = if Arc::ptr_eq(&self.embedding, &self.head) { 0 } else { self.head.heap_bytes() };
        let layers = self.layers.iter().map(Layer::heap_bytes).sum::<usize>();
        self.embedding.heap_bytes() + head + layers + self.norm.heap_bytes()
    }

    /// Hidden states after the final norm, `[tokens.len(), hidden]`; the cache takes the tokens' positions.
    ///
    /// `watch` sees the output of the embedding and of every layer with its name; its error ends the pass. After any error the
    /// cache is as before. Every id is below the number of embedding rows.
    pub(crate) fn forward(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        watch: &mut dyn FnMut(&str, &Tensor) -> Result<(), RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        let start = cache.len();
        let result = self.pass(tokens, start, Memory::Kept(&mut cache.layers), watch);
        match result {
            Ok(_) => cache.advance(tokens),
            Err(_) => cache.truncate(start),
        }
        result
    }

    /// [`forward`](Self::forward) from an empty cache that nobody will ask for: the layers take turns with one.
    pub(crate) fn forward_once(
        &self,
        tokens: &[u32],
        watch: &mut dyn FnMut(&str, &Tensor) -> Result<(), RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        self.pass(tokens, 0, Memory::Forgotten(LayerCache::new(self.shape.kv_heads, self.shape.head_dim)), watch)
    }

    fn pass(
        &self,
        tokens: &[u32],
        start: usize,
        mut memory: Memory<'_>,
        watch: &mut dyn FnMut(&str, &Tensor) -> Result<(), RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        let rope = self.rope.table(start..start + tokens.len());
        let mut x = self.embedding.gather(tokens)?;
        watch("model.embed_tokens", &x)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let cache = match &mut memory {
                Memory::Kept(layers) => &mut layers[i],
                Memory::Forgotten(cache) => {
                    cache.truncate(0);
                    cache
                }
            };
            x = layer.forward(&x, cache, &rope, self.shape)?;
            watch(&layer.name, &x)?;
        }
        let x = self.norm.forward(&x)?;
        watch("model.norm", &x)?;
        Ok(x)
    }

    /// Hidden states after the final norm of every token of `trees` that something follows, in the order of
    /// [`Trees::tokens`]: all go through each linear layer together, and attention sees its own tree alone.
    pub(crate) fn forward_trees(&self, trees: &Trees) -> Result<Tensor, RuntimeError> {
        let rope = self.rope.table(0..trees.longest());
        let mut x = self.embedding.gather(trees.tokens())?;
        for layer in &self.layers {
            x = layer.forward_with(&x, |q, k, v| trees.attend(q, k, v, &rope, self.shape))?;
        }
        self.norm.forward(&x)
    }

    /// Logits of hidden states: `[n, hidden]` to `[n, vocab]`.
    pub(crate) fn logits(&self, hidden: &Tensor) -> Result<Tensor, RuntimeError> {
        self.head.apply(&Activation::new(hidden.contiguous()?))
    }
}

impl Layer {
    fn forward(
        &self,
        x: &Tensor,
        cache: &mut LayerCache,
        rope: &RopeTable,
        shape: AttentionShape,
    ) -> Result<Tensor, RuntimeError> {
        self.forward_with(x, |q, k, v| {
            cache.append(&f32_slice(k)?, &f32_slice(v)?, rope);
            attend(q, cache, rope, shape)
        })
    }

    /// The layer around an attention that is given: queries, keys (neither rotated yet) and values of all rows to what is attended.
    fn forward_with(
        &self,
        x: &Tensor,
        attention: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Tensor, RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        let normed = Activation::new(self.input_norm.forward(x)?);
        let normalized = |y: Tensor, norm: &Option<RmsNorm>| norm.as_ref().map_or(Ok(y.clone()), |n| n.forward(&y));
        let q = normalized(self.q.apply(&normed)?, &self.q_norm)?;
        let k = normalized(self.k.apply(&normed)?, &self.k_norm)?;
        let v = self.v.apply(&normed)?;
        let attended = attention(&q, &k, &v)?;
        let x = (x + self.o.apply(&Activation::new(attended))?)?;

        let normed = Activation::new(self.post_attention_norm.forward(&x)?);
        let gated = gated(&self.gate.apply(&normed)?, &self.up.apply(&normed)?)?;
        Ok((x + self.down.apply(&Activation::new(gated))?)?)
    }

    fn heap_bytes(&self) -> usize {
        let linears = [&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down];
        let norms =
            [Some(&self.input_norm), Some(&self.post_attention_norm), self.q_norm.as_ref(), self.k_norm.as_ref()];
        linears.iter().map(|l| l.heap_bytes()).sum::<usize>()
            + norms.iter().flatten().map(|n| n.heap_bytes()).sum::<usize>()
    }
}

/// `silu(gate) * up`.
fn gated(gate: &Tensor, up: &Tensor) -> Result<Tensor, RuntimeError> {
    /// Elements per task: some microseconds of work.
    const TASK_LEN: usize = 1 << 14;
    let (n, cols) = gate.dims2()?;
    let up = f32_slice(up)?;
    let mut out = f32_slice(gate)?.to_vec();
    out.par_chunks_mut(TASK_LEN).zip(up.par_chunks(TASK_LEN)).for_each(|(gate, up)| silu_mul(gate, up));
    tensor2(out, n, cols)
}
