//! The `gosset` command as users see it: exit codes, lines, files.

mod bad_input;
mod chat;
mod command_line;
mod damage;
mod generate;
mod interrupt;
mod quantize;
mod round_trip;
mod support;
