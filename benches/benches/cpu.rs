//! CPU micro-benchmarks.
fn main() { divan::main(); }
