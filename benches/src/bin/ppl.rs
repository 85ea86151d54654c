//! Perplexity of a model and of its compressed forms, each read back from the file it was written to.
#![allow(clippy::print_stderr, reason = "a command-line tool talks to its terminal")]

use std::process::ExitCode;

use clap::Parser as _;
use gosset_benches::ppl::{self, Args};
use peak_alloc::PeakAlloc;

/// Counts every heap byte, so that `resident_bytes` is measured and not estimated.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    match ppl::run(&Args::parse(), &HEAP) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
