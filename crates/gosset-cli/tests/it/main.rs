//! The `gosset` command as users see it: exit codes, lines, files.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "all of this crate is a test, its helpers too")]

mod bad_input;
mod chat;
mod command_line;
mod damage;
mod device;
mod diff;
mod generate;
mod interrupt;
mod kv;
mod long_runs;
mod quantize;
mod recommend;
mod resume;
mod round_trip;
mod sandbox;
mod support;
