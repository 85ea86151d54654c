//! Rates, distortions and speeds of every codec and baseline, as one table.
#![allow(clippy::print_stderr, reason = "a command-line tool talks to its terminal")]

use std::process::ExitCode;

use clap::Parser as _;
use gosset_benches::rd::{self, Args};

fn main() -> ExitCode {
    match rd::run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
