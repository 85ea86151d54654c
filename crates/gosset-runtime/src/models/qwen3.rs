//! Qwen3, dense.

use super::{Architecture, llama::LLAMA};
use crate::config::WindowRule;

/// Llama with a stated head_dim and normalized queries and keys; the upper layers may have a window.
pub(super) static QWEN3: Architecture =
    Architecture { class: "Qwen3ForCausalLM", model_type: "qwen3", qk_norm: true, windows: WindowRule::Upper, ..LLAMA };
