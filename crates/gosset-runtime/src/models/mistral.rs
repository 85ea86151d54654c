//! Mistral, dense.

use super::{Architecture, llama::LLAMA};
use crate::config::WindowRule;

/// Llama whose layers all have a window, unless it is null.
pub(super) static MISTRAL: Architecture =
    Architecture { class: "MistralForCausalLM", model_type: "mistral", windows: WindowRule::All, ..LLAMA };
