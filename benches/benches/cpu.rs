//! CPU micro-benchmarks.
mod codec;
mod entropy;
mod lattice;
mod transform;
fn main() {
    divan::main();
}
