//! Times of the CUDA kernels beside cuBLAS, each beside its own distortion; correctness first.
#![allow(clippy::print_stderr, reason = "a command-line tool talks to its terminal")]

use std::process::ExitCode;

use clap::Parser as _;
use gosset_benches::kernels::{self, Args};

fn main() -> ExitCode {
    match kernels::run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("the run is invalid; the reasons stand below the table");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
