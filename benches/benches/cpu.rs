//! CPU micro-benchmarks.
mod transform;
fn main() { divan::main(); }
