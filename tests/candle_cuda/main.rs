//! `Linear` on a CUDA device of candle: case H06 and what belongs to it.
//!
//! Every test needs a GPU; without one it says so and passes. The containers are made by the tests, or read from the folder
//! `GOSSET_PARITY` if that is set, so that a machine with a GPU need not search trellises.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and says what it skips")]

mod errors;
mod matrices;
mod parity;

use candle_core::Device;

/// The first GPU as candle's device; says so and gives `None` without one.
fn device() -> Option<Device> {
    match Device::new_cuda(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let line = error.to_string();
            eprintln!("SKIPPED: no CUDA device ({})", line.lines().next().unwrap_or_default());
            None
        }
    }
}
