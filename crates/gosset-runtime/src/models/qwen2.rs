//! Qwen2 and Qwen2.5.

use super::Architecture;

/// Llama with biases on q, k and v.
pub(super) static QWEN2: Architecture =
    Architecture { class: "Qwen2ForCausalLM", model_type: "qwen2", qkv_bias: true, qk_norm: false };
