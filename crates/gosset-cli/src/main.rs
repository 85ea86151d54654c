//! The `gosset` command: quantize, merge, inspect, verify, diff, dequantize, generate, chat.
//!
//! Results go to stdout, everything else to stderr; every error is one line, and its exit code stands in one table ([`exit`]).
#![forbid(unsafe_code)]

mod cache;
mod chat;
mod cli;
mod compare;
mod completions;
mod dequantize;
mod device;
mod diff;
mod doctor;
mod exit;
mod generate;
mod inspect;
mod interrupt;
mod kv;
mod list;
mod merge;
mod model;
mod output;
mod progress;
mod prompt;
mod quantize;
mod recipe_check;
mod recommend;
mod sandbox;
mod size;
mod verify;
mod version;
mod weights;

use std::process::ExitCode;

use exit::Exit;

fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(exit) => return ExitCode::from(exit as u8),
    };
    interrupt::install();
    let exit = match cli.run() {
        Ok(exit) => exit,
        Err(error) if exit::is_closed_pipe(&error) => Exit::Ok,
        Err(error) => {
            output::note(&format!("error: {}", exit::one_line(&error)));
            exit::code(&error)
        }
    };
    ExitCode::from(exit as u8)
}
