//! Benchmarks and measurement binaries.
