//! Benchmarks and measurement binaries.
#![forbid(unsafe_code)]

#[cfg(feature = "gpu")]
pub mod decode;
#[cfg(feature = "models")]
pub mod feedback;
#[cfg(feature = "kernels")]
pub mod kernels;
#[cfg(feature = "models")]
pub mod kquants;
#[cfg(feature = "models")]
pub mod kv_scores;
#[cfg(feature = "models")]
pub mod ppl;
#[cfg(feature = "models")]
pub mod rd;
