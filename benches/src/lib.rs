//! Benchmarks and measurement binaries.
#![forbid(unsafe_code)]

pub mod kquants;
pub mod ppl;
pub mod rd;
