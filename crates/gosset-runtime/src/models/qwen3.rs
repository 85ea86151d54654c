//! Qwen3, dense.

use super::Architecture;

/// Llama with a stated head_dim and normalized queries and keys.
pub(super) static QWEN3: Architecture =
    Architecture { class: "Qwen3ForCausalLM", model_type: "qwen3", qkv_bias: false, qk_norm: true };
