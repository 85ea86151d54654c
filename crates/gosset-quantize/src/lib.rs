//! From a checkpoint to a Gosset container: sources, tensor policy, rate targets, pipeline.
//!
//! A [`ModelSource`] lists tensors and reads their rows. [`plan`] decides for each tensor whether it is quantized, kept bit-exact
//! or skipped, and why; [`run`] carries the plan out into one file; [`dequantize`] turns such a file back into a safetensors folder.
#![forbid(unsafe_code)]

mod error;
mod source;

pub use error::{QuantizeError, SourceError};
pub use source::{ModelSource, SourceInfo, TensorInfo};
