//! What the shape of the unit of rounding costs under error feedback, on matrices of a model.
#![allow(clippy::print_stderr, reason = "a command-line tool talks to its terminal")]

use std::process::ExitCode;

use clap::Parser as _;
use gosset_benches::feedback::{self, Args};

fn main() -> ExitCode {
    match feedback::run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
