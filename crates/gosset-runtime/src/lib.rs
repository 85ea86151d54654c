//! Runs transformers from a Gosset container, a GGUF file or a Hugging Face folder, on candle.

mod error;
pub mod source;
pub mod text;

pub use error::RuntimeError;
