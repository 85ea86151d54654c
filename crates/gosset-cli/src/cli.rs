//! The command line as a whole: commands, version, help, usage errors.

use std::io::{self, Write};

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit::{Exit, TABLE, error, printable};
use crate::{
    chat, completions, dequantize, diff, doctor, generate, inspect, list, merge, quantize, recommend, sandbox, verify,
    version,
};

/// Compress language models close to the Shannon limit and run them from the compressed file.
#[derive(Debug, Parser)]
#[command(
    name = "gosset",
    bin_name = "gosset",
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Quantize(Box<quantize::QuantizeArgs>),
    Merge(merge::MergeArgs),
    Recommend(recommend::RecommendArgs),
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
    Diff(diff::DiffArgs),
    Dequantize(dequantize::DequantizeArgs),
    Generate(generate::GenerateArgs),
    Chat(chat::ChatArgs),
    List(list::ListArgs),
    Doctor(doctor::DoctorArgs),
    Completions(completions::CompletionsArgs),
    #[command(name = sandbox::VERB, hide = true)]
    RenderTemplate(sandbox::RenderArgs),
}

/// `--threads`, for the commands that compute.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ThreadArgs {
    /// Threads to compute with [default: one per core]. Results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl ThreadArgs {
    /// Makes the thread pool of the process.
    pub(crate) fn apply(self) -> Result<()> {
        let Some(n) = self.threads else { return Ok(()) };
        rayon::ThreadPoolBuilder::new()
            .num_threads(usize::from(n))
            .build_global()
            .map_err(|e| error(Exit::Failure, format!("--threads {n}: {e}")))
    }
}

impl Cli {
    /// Runs the command that was asked for.
    pub(crate) fn run(&self) -> Result<Exit> {
        let done = |result: Result<()>| result.map(|()| Exit::Ok);
        match &self.command {
            Command::Quantize(args) => done(quantize::run(args)),
            Command::Merge(args) => done(merge::run(args)),
            Command::Recommend(args) => done(recommend::run(args)),
            Command::Inspect(args) => done(inspect::run(args)),
            Command::Verify(args) => done(verify::run(args)),
            Command::Diff(args) => done(diff::run(args)),
            Command::Dequantize(args) => done(dequantize::run(args)),
            Command::Generate(args) => generate::run(args),
            Command::Chat(args) => done(chat::run(args)),
            Command::List(args) => done(list::run(args)),
            Command::Doctor(args) => done(doctor::run(args)),
            Command::Completions(args) => done(completions::run(args)),
            Command::RenderTemplate(args) => done(sandbox::run(args)),
        }
    }
}

/// The command with everything that is computed: version and the table of exit codes.
fn command() -> clap::Command {
    let examples = "Examples:
  gosset quantize model.gguf -o model.gosset --rate 4
  gosset recommend model.gguf --memory 8GB
  gosset inspect model.gosset
  gosset chat model.gosset";
    Cli::command().version(version::LONG).after_help(format!("{examples}\n\n{TABLE}"))
}

/// Parses the command line; prints help, version or the usage error and returns the code to leave with.
pub(crate) fn parse() -> Result<Cli, Exit> {
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|e| match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe (`gosset --help | head`) is no error.
            let _ = e.print();
            Exit::Ok
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = e.print();
            Exit::Usage
        }
        _ => {
            let _ = writeln!(io::stderr().lock(), "{}", usage_line(&e.render().to_string()));
            Exit::Usage
        }
    })
}

/// The message of a usage error on one line: without the usage text, with the command whose help explains it.
fn usage_line(rendered: &str) -> String {
    let message = rendered.split("\n\nUsage:").next().unwrap_or(rendered);
    let message = message.split("\n\nFor more information").next().unwrap_or(message);
    let words: Vec<&str> = message.split_whitespace().collect();
    let help = rendered
        .lines()
        .find_map(|line| line.strip_prefix("Usage: "))
        .map(|usage| usage.split_whitespace().take_while(|word| !word.starts_with(['[', '<', '-'])))
        .map(|words| words.collect::<Vec<_>>().join(" "))
        .filter(|command| !command.is_empty())
        .unwrap_or_else(|| "gosset".to_owned());
    format!("{}; see `{help} --help`", printable(&words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn help_prints_every_exit_code() {
        let help = command().render_long_help().to_string();
        for line in TABLE.lines() {
            assert!(help.contains(line.trim()), "{line}");
        }
    }

    #[test]
    fn usage_errors_are_one_line_with_a_way_on() {
        let rendered = |args: &[&str]| match command().try_get_matches_from(args) {
            Ok(_) => String::new(),
            Err(e) => usage_line(&e.render().to_string()),
        };
        for args in [
            &["gosset", "quantize"][..],
            &["gosset", "quantise"],
            &["gosset", "inspect", "--jason", "x"],
            &["gosset", "generate", "m", "--prompt", "a", "--stdin"],
            &["gosset", "generate", "m", "--temperature", "warm"],
        ] {
            let line = rendered(args);
            assert!(line.starts_with("error: ") && !line.contains('\n') && line.contains("--help`"), "{line}");
        }
        assert!(rendered(&["gosset", "quantize", "m"]).ends_with("see `gosset quantize --help`"));
    }
}
