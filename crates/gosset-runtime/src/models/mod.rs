//! Architectures: what each adds to the common decoder, one file each.

mod decoder;
mod gemma3;
mod layer;
mod llama;
mod mistral;
mod names;
mod qwen2;
mod qwen3;

use crate::arch::{gelu_tanh_mul, silu_mul};
use crate::config::WindowRule;

#[cfg(feature = "gpu")]
pub(crate) use decoder::FINAL_NORM;
pub(crate) use decoder::{Decoder, EMBEDDING, HEAD, expected_tensors};
pub(crate) use layer::{Layer, layer_name};
pub(crate) use names::{of_layers, text_name};

/// What tells one architecture from another.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Architecture {
    /// First entry of `architectures` in `config.json`.
    pub class: &'static str,
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// q, k and v always have a bias.
    pub qkv_bias: bool,
    /// Queries and keys are normalized per head before the rotation.
    pub qk_norm: bool,
    /// What attention and feed-forward part give is normalized before it is added, and the stored weights of all norms are less by one.
    pub gemma_norms: bool,
    /// What the gate goes through.
    pub gate: Gate,
    /// Embeddings are multiplied by the root of their width.
    pub scaled_embedding: bool,
    /// Which layers see a window of positions only.
    pub(crate) windows: WindowRule,
}

impl Architecture {
    /// Names of the norms of a layer, as the data flow: before attention, of what it gives, before the feed-forward part, of what that
    /// gives.
    pub(crate) const fn layer_norms(&self) -> [Option<&'static str>; 4] {
        if self.gemma_norms {
            [
                Some("input_layernorm"),
                Some("post_attention_layernorm"),
                Some("pre_feedforward_layernorm"),
                Some("post_feedforward_layernorm"),
            ]
        } else {
            [Some("input_layernorm"), None, Some("post_attention_layernorm"), None]
        }
    }
}

/// What the gate of a feed-forward part goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gate {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// GELU as tanh approximates it (`gelu_pytorch_tanh`).
    GeluTanh,
}

impl Gate {
    /// Multiplies its value of each `gate` by `up`, in place.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub(crate) fn multiply(self, gate: &mut [f32], up: &[f32]) {
        match self {
            Gate::Silu => silu_mul(gate, up),
            Gate::GeluTanh => gelu_tanh_mul(gate, up),
        }
    }
}

/// Every architecture that runs, in the order of messages.
pub(crate) static ARCHITECTURES: [&Architecture; 6] =
    [&llama::LLAMA, &qwen2::QWEN2, &qwen3::QWEN3, &mistral::MISTRAL, &gemma3::GEMMA3_TEXT, &gemma3::GEMMA3];
