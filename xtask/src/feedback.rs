//! `cargo xtask feedback`: builds the release binary `feedback` and runs it on a model.

use std::{
    env,
    path::{PathBuf, absolute},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;

use crate::{
    binary, rd,
    workspace::{Workspace, utf8},
};

#[derive(Debug, Args)]
pub(crate) struct FeedbackArgs {
    /// A known model (`cargo xtask fetch --list`), `embedded`, or the path of a checkpoint.
    #[arg(long, value_name = "NAME|PATH", default_value = "embedded")]
    model: String,
    /// Text of the held-out tokens [default: the embedded text].
    #[arg(long, value_name = "PATH")]
    held_out: Option<PathBuf>,
    /// Held-out tokens [default: 8192].
    #[arg(long, value_name = "N")]
    held_out_tokens: Option<usize>,
    /// Text to calibrate on: `built-in`, a file in UTF-8, or a folder of .txt files [default: built-in].
    #[arg(long, value_name = "TEXT")]
    calibration: Option<String>,
    /// Tokens to calibrate on [default: 32768].
    #[arg(long, value_name = "N")]
    calibration_tokens: Option<usize>,
    /// Keep second moments in this folder and take them from it.
    #[arg(long, value_name = "DIR")]
    hessian_cache: Option<PathBuf>,
    /// Matrices: parts of names, comma-separated [default: q, v, o, up and down of two layers].
    #[arg(long, value_name = "LIST")]
    tensors: Option<String>,
    /// What is compared, comma-separated [default: e8 without feedback, by columns and over inputs, trellises by columns and in tiles].
    #[arg(long, value_name = "LIST")]
    codecs: Option<String>,
    /// Payload rates in bits per weight, comma-separated [default: 2,3,4].
    #[arg(long, value_name = "LIST")]
    rates: Option<String>,
    /// Damping of second moments, as a share of the mean diagonal [default: 0.01].
    #[arg(long, value_name = "SHARE")]
    damping: Option<f64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the JSON to this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Fetch a model whose packages state no licence.
    #[arg(long)]
    accept: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &FeedbackArgs) -> Result<ExitCode> {
    let mut words = feedback_args(workspace, args)?;
    words.extend(["--command".to_owned(), rd::command(env::args().skip(1))]);
    binary::run(&binary::build(workspace, "feedback", &[])?, &words)
}

/// The command line of `feedback`.
fn feedback_args(workspace: &Workspace, args: &FeedbackArgs) -> Result<Vec<String>> {
    let held_out = args.held_out.clone().unwrap_or_else(|| workspace.root().join("assets/text/eval.txt"));
    let held_out = held_out.canonicalize().with_context(|| format!("{}", held_out.display()))?;
    let calibration = match args.calibration.as_deref() {
        Some(path) if path != "built-in" => Some(utf8(&absolute(path)?)?),
        name => name.map(str::to_owned),
    };
    let path = |path: &Option<PathBuf>| path.as_deref().map(|path| utf8(&absolute(path)?)).transpose();
    let mut out = rd::given([
        ("--model", Some(rd::resolve(workspace, &args.model, args.accept)?)),
        ("--held-out", Some(utf8(&held_out)?)),
        ("--held-out-tokens", args.held_out_tokens.map(|n| n.to_string())),
        ("--calibration", calibration),
        ("--calibration-tokens", args.calibration_tokens.map(|n| n.to_string())),
        ("--hessian-cache", path(&args.hessian_cache)?),
        ("--tensors", args.tensors.clone()),
        ("--codecs", args.codecs.clone()),
        ("--rates", args.rates.clone()),
        ("--damping", args.damping.map(|share| share.to_string())),
        ("--out", path(&args.out)?),
    ]);
    if args.json {
        out.push("--json".to_owned());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(words: &[&str]) -> Result<Vec<String>> {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            feedback: FeedbackArgs,
        }
        let cli = <Cli as clap::Parser>::try_parse_from(["feedback"].iter().chain(words))?;
        feedback_args(&Workspace::find()?, &cli.feedback)
    }

    #[test]
    fn without_options_everything_is_embedded() {
        let args = mapped(&[]).unwrap();
        assert_eq!((args.len(), args[0].as_str(), args[2].as_str()), (4, "--model", "--held-out"));
        assert!(args[1].starts_with("embedded=") && args[1].ends_with("assets/tiny"), "{args:?}");
        assert!(args[3].ends_with("assets/text/eval.txt"), "{args:?}");
    }

    #[test]
    fn options_reach_the_binary() {
        let words = "--held-out-tokens 64 --calibration-tokens 128 --tensors q_proj --codecs e8 --rates 2,3 --damping 0.1 --json";
        let words: Vec<&str> = words.split(' ').collect();
        let args = mapped(&words).unwrap();
        assert_eq!(args[4..], words);
        let args = mapped(&["--out", "x.json", "--hessian-cache", "hc", "--calibration", "built-in"]).unwrap();
        assert!(
            args.contains(&"built-in".to_owned())
                && args.iter().any(|arg| arg.starts_with('/') && arg.ends_with("/hc"))
        );
        assert!(mapped(&["--model", "no-such"]).is_err() && mapped(&["--held-out", "no/such"]).is_err());
    }
}
