//! Tokens per second and resident bytes of a model's shapes on a CUDA device, dense and compressed.
#![allow(clippy::print_stderr, reason = "a command-line tool talks to its terminal")]

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match gosset_benches::decode::run(&gosset_benches::decode::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
