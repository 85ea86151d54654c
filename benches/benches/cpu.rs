//! CPU micro-benchmarks.
mod entropy;
mod lattice;
mod transform;
fn main() { divan::main(); }
