//! Benchmarks and measurement binaries.
#![forbid(unsafe_code)]

pub mod ppl;
pub mod rd;
