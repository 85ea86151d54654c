//! Bias and variance of attention scores over coded keys, by how keys are coded.
#![allow(clippy::print_stderr, reason = "a command-line tool talks to its terminal")]

use std::process::ExitCode;

use clap::Parser as _;
use gosset_benches::kv_scores::{self, Args};

fn main() -> ExitCode {
    match kv_scores::run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
