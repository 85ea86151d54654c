//! Gemma 3: text models, and the text part of those that see.

use super::{Architecture, Gate, llama::LLAMA};
use crate::config::WindowRule;

/// Norms on both sides of attention and feed-forward part, five layers with a window for each without, and two rotary bases.
pub(super) static GEMMA3_TEXT: Architecture = Architecture {
    class: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    qk_norm: true,
    gemma_norms: true,
    gate: Gate::GeluTanh,
    scaled_embedding: true,
    windows: WindowRule::Pattern,
    ..LLAMA
};

/// The same, as part `text_config` of a configuration; what sees is not run.
pub(super) static GEMMA3: Architecture =
    Architecture { class: "Gemma3ForConditionalGeneration", model_type: "gemma3", ..GEMMA3_TEXT };
