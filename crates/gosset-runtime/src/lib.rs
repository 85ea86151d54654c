//! Runs transformers from a Gosset container, a GGUF file or a Hugging Face folder, on candle.

mod arch;
mod attention;
mod config;
mod error;
mod generate;
mod kv_cache;
mod language_model;
mod linear;
mod models;
mod norm;
mod rope;
mod row_blocks;
mod sampler;
pub mod source;
mod tensor;
#[cfg(test)]
mod tests;
pub mod text;
mod weights;

pub use config::ModelConfig;
pub use error::RuntimeError;
pub use generate::{GenerateOptions, Generation, StopReason, generate};
pub use kv_cache::KvCache;
pub use language_model::{LOGIT_SLICE, LanguageModel, LoadOptions, Resident};
pub use linear::{Linear, StoredRows};
pub use models::Architecture;
pub use rope::RopeScaling;
pub use sampler::Sampling;
