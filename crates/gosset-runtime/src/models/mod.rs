//! Architectures: what each adds to the common decoder, one file each.

mod decoder;
mod layer;
mod llama;
mod qwen2;
mod qwen3;

#[cfg(feature = "gpu")]
pub(crate) use decoder::FINAL_NORM;
pub(crate) use decoder::{Decoder, EMBEDDING, HEAD, expected_tensors};
pub(crate) use layer::{Layer, layer_name};

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
}

/// Every architecture that runs, in the order of messages.
pub(crate) static ARCHITECTURES: [&Architecture; 3] = [&llama::LLAMA, &qwen2::QWEN2, &qwen3::QWEN3];
