//! What strangers' bytes do: the corpora of the fuzz targets, damaged golden files, streams that claim more than they hold.
//!
//! Everything ends in values or in a typed error, and allocates no more than the input's size times what `fuzz/src/lib.rs` states. Tests
//! run one after the other, because the whole process counts what it allocates.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test may panic, and says what it skips"
)]

mod bombs;
mod corpus;
#[path = "../../fuzz/src/lib.rs"]
#[allow(dead_code, unreachable_pub, reason = "what the fuzz targets alone use")]
mod entries;
mod mutations;
mod results;
mod seeds;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by whoever counts.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SplitMix64: the same numbers in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}
