//! Llama 1 to 3 and everything of the same shape (SmolLM2, TinyLlama, …).

use super::{Architecture, Gate};
use crate::config::WindowRule;

/// No biases unless `config.json` asks for them.
pub(super) static LLAMA: Architecture = Architecture {
    class: "LlamaForCausalLM",
    model_type: "llama",
    qkv_bias: false,
    qk_norm: false,
    gemma_norms: false,
    gate: Gate::Silu,
    scaled_embedding: false,
    windows: WindowRule::Never,
};
