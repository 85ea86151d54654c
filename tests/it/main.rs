//! Laws that span crates: a checkpoint becomes a file, the file runs, and what it computes is measured.
//!
//! Tests are named after the acceptance case that they keep. Those that need a real model or text skip loudly without it.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and says what it skips")]

mod checkpoint;
mod container;
mod damage;
#[cfg(feature = "gpu")]
mod device;
mod eval;
mod models;
mod non_finite;
mod patch;
mod rate_distortion;
mod rates;
mod reference;
mod text;
mod trained;
mod weights;
