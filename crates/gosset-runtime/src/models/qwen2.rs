//! Qwen2 and Qwen2.5.

use super::{Architecture, llama::LLAMA};
use crate::config::WindowRule;

/// Llama with biases on q, k and v; the upper layers may have a window.
pub(super) static QWEN2: Architecture = Architecture {
    class: "Qwen2ForCausalLM",
    model_type: "qwen2",
    qkv_bias: true,
    windows: WindowRule::Upper,
    ..LLAMA
};
