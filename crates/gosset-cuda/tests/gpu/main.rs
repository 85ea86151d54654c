//! What must hold on a device: one binary, so that it can be carried to a machine without a toolchain.
//!
//! Without a device every test says so on stderr and passes.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests say what they skip")]

mod ans;
mod blas;
mod device;
mod fixed;
mod kv;
mod loading;
mod model;
mod quantize;
mod rht;
mod rice;
mod shift;
mod unisvq;
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

/// Whether the tests run under a sanitizer, which is 10 to 50 times slower: fewer sizes then, the same kernels.
fn reduced() -> bool {
    std::env::var_os("GOSSET_TEST_REDUCED").is_some()
}
