//! What must hold on a device: one binary, so that it can be carried to a machine without a toolchain.
//!
//! Without a device every test says so on stderr and passes.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests say what they skip")]

mod ans;
mod blas;
mod device;
mod fixed;
mod loading;
mod model;
mod quantize;
mod rht;
mod rice;
mod shift;
mod viterbi;

use gosset_cuda::Gpu;

/// The first device, or a loud line.
fn gpu() -> Option<Gpu> {
    match Gpu::detect() {
        Ok(gpu) => Some(gpu),
        Err(reason) => {
            eprintln!("SKIPPED, no GPU: {reason}");
            None
        }
    }
}
