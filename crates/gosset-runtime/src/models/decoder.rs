//! The decoder that all architectures share: embedding, layers of attention and gated feed-forward, norm, head.

use std::sync::Arc;

use candle_core::Tensor;
use rayon::prelude::*;

use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::kv::{CodedCache, Seen};
use crate::kv_cache::{CacheForm, KvCache, LayerCache};
use crate::linear::{Activation, Linear};
use crate::models::layer::Layer;
use crate::norm::RmsNorm;
use crate::rope::Ropes;
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
        let layer_norms = config.architecture.layer_norms().into_iter().flatten().map(|part| (part, hidden, true));
        let head_norms = ["self_attn.q_norm", "self_attn.k_norm"];
        let head_norms = head_norms.map(|part| (part, config.head_dim, config.architecture.qk_norm));
        let norms: Vec<_> = layer_norms.chain(head_norms).collect();
        let weights = linears.map(|(part, out, inp, _)| tensor(named(part) + ".weight", &[out, inp], true));
        let biases = linears.map(|(part, out, _, bias)| tensor(named(part) + ".bias", &[out], bias));
        let norms =
            norms.into_iter().map(|(part, width, required)| tensor(named(part) + ".weight", &[width], required));
        let norms: Vec<_> = norms.collect();
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
    ropes: Ropes,
    embedding_scale: f32,
    final_softcap: Option<f32>,
}

/// Where the layers of one pass find and leave keys and values.
enum Memory<'a> {
    /// Each in its own cache.
    Kept(&'a mut [LayerCache]),
    /// All in the same one, emptied before each.
    Forgotten(LayerCache),
    /// All in one store.
    Coded(&'a mut CodedCache),
}

impl Decoder {
    /// Loads every tensor; their names and shapes were checked against [`expected_tensors`] before.
    pub(crate) fn load(config: &ModelConfig, weights: &dyn Weights, tied: bool) -> Result<Self, RuntimeError> {
        let embedding = Arc::new(weights.linear(EMBEDDING, None)?);
        let head = if tied { Arc::clone(&embedding) } else { Arc::new(weights.linear(HEAD, None)?) };
        let layers = (0..config.n_layers).map(|i| Layer::load(config, weights, i));
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
            norm: RmsNorm::load(config, weights, FINAL_NORM)?,
            embedding,
            head,
            ropes: Ropes::of(config),
            embedding_scale: config.embedding_scale,
            final_softcap: config.final_softcap,
        })
    }

    /// A cache without positions.
    pub(crate) fn new_cache(&self) -> KvCache {
        KvCache::new(self.layers.iter().map(Layer::shape))
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
    /// cache holds the positions it held before; a compressed one may have coded more of them. Every id is below the number of embedding
    /// rows.
    pub(crate) fn forward(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        watch: &mut dyn FnMut(&str, &Tensor) -> Result<(), RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        let start = cache.len();
        let memory = match &mut cache.form {
            CacheForm::Exact(layers) => Memory::Kept(layers),
            CacheForm::Coded(cache) => Memory::Coded(cache),
            #[cfg(feature = "gpu")]
            CacheForm::Device(_) => {
                return Err(RuntimeError::Options {
                    option: "cache".to_owned(),
                    expected: "one that this model made".to_owned(),
                    found: "one of a model on a device".to_owned(),
                });
            }
        };
        let result = self.pass(tokens, start, memory, watch);
        match result {
            Ok(_) => cache.advance(tokens),
            Err(_) => cache.cut(start),
        }
        result
    }

    /// [`forward`](Self::forward) from an empty cache that nobody will ask for: the layers take turns with one.
    pub(crate) fn forward_once(
        &self,
        tokens: &[u32],
        watch: &mut dyn FnMut(&str, &Tensor) -> Result<(), RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        let memory = self
            .layers
            .first()
            .map_or(Memory::Kept(&mut []), |layer| Memory::Forgotten(LayerCache::new(layer.shape())));
        self.pass(tokens, 0, memory, watch)
    }

    fn pass(
        &self,
        tokens: &[u32],
        start: usize,
        mut memory: Memory<'_>,
        watch: &mut dyn FnMut(&str, &Tensor) -> Result<(), RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        let rope = self.ropes.table(start..start + tokens.len());
        let mut x = self.embed(tokens)?;
        watch("model.embed_tokens", &x)?;
        for (i, layer) in self.layers.iter().enumerate() {
            x = match &mut memory {
                Memory::Kept(layers) => layer.forward(&x, &mut layers[i], &rope)?,
                Memory::Forgotten(cache) => {
                    cache.reuse(layer.shape());
                    layer.forward(&x, cache, &rope)?
                }
                Memory::Coded(cache) => {
                    let (shape, local) = (layer.shape(), layer.is_local());
                    let rope = rope.of_layer(local);
                    layer.forward_with(&x, |q, k, v| cache.attend((i, local), start, [q, k, v], rope, shape))?
                }
            };
            watch(layer.name(), &x)?;
        }
        let x = self.norm.forward(&x)?;
        watch("model.norm", &x)?;
        Ok(x)
    }

    /// Shows `see` the queries and keys of every layer, neither rotated, while `tokens` go through from an empty cache that nobody will
    /// ask for.
    pub(crate) fn probe(&self, tokens: &[u32], see: &mut Seen<'_>) -> Result<(), RuntimeError> {
        let rope = self.ropes.table(0..tokens.len());
        let mut x = self.embed(tokens)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let mut cache = LayerCache::new(layer.shape());
            x = layer.forward_with(&x, |q, k, v| {
                see(i, &f32_slice(q)?, &f32_slice(k)?)?;
                layer.attend(q, k, v, &mut cache, &rope)
            })?;
        }
        Ok(())
    }

    /// The frequencies that keys and queries are rotated with.
    pub(crate) fn ropes(&self) -> &Ropes {
        &self.ropes
    }

    /// What the first layer gets for `tokens`.
    fn embed(&self, tokens: &[u32]) -> Result<Tensor, RuntimeError> {
        let x = self.embedding.gather(tokens)?;
        // A product with 1 would be a copy.
        if self.embedding_scale == 1.0 { Ok(x) } else { scaled(&x, self.embedding_scale) }
    }

    /// Hidden states after the final norm of every token of `trees` that something follows, in the order of
    /// [`Trees::tokens`]: all go through each linear layer together, and attention sees its own tree alone.
    pub(crate) fn forward_trees(&self, trees: &Trees) -> Result<Tensor, RuntimeError> {
        let rope = self.ropes.table(0..trees.longest());
        let mut x = self.embed(trees.tokens())?;
        for layer in &self.layers {
            let rope = rope.of_layer(layer.is_local());
            x = layer.forward_with(&x, |q, k, v| trees.attend(q, k, v, rope, layer.shape()))?;
        }
        self.norm.forward(&x)
    }

    /// Logits of hidden states: `[n, hidden]` to `[n, vocab]`.
    pub(crate) fn logits(&self, hidden: &Tensor) -> Result<Tensor, RuntimeError> {
        let logits = self.head.apply(&Activation::new(hidden.contiguous()?))?;
        let Some(cap) = self.final_softcap else { return Ok(logits) };
        let (n, vocab) = logits.dims2()?;
        let mut capped = f32_slice(&logits)?.to_vec();
        capped.par_iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        tensor2(capped, n, vocab)
    }
}

/// Every element times `factor`.
fn scaled(x: &Tensor, factor: f32) -> Result<Tensor, RuntimeError> {
    let (n, cols) = x.dims2()?;
    tensor2(f32_slice(x)?.iter().map(|v| v * factor).collect(), n, cols)
}
