//! `cargo xtask rd`: builds the release binary `rd` and runs it on resolved sources.

use std::{
    env,
    path::{Path, PathBuf, absolute},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    binary,
    fetch::Models,
    workspace::{Workspace, cache_dir, utf8},
};

/// Sources that `rd` draws by itself.
const DRAWN: [&str; 2] = ["gaussian", "laplace"];

/// Sources of the whole table.
const FULL: [&str; 4] = ["gaussian", "laplace", "embedded", "smollm2"];

#[derive(Debug, Args)]
pub(crate) struct RdArgs {
    /// What is quantized, comma-separated: gaussian, laplace, embedded, a known model (`cargo xtask fetch --list`), or the path of
    /// a checkpoint or of any safetensors file with matrices [default: gaussian; with --full gaussian,laplace,embedded,smollm2].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    source: Vec<String>,
    /// Seed of drawn matrices [default: 1].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Codecs and baselines, comma-separated; `e8@3.5` fixes the rate of one [default: all].
    #[arg(long, value_name = "LIST")]
    codecs: Option<String>,
    /// Payload rates in bits per weight, comma-separated [default: 2,3,4; with --full 1.25 to 6].
    #[arg(long, value_name = "LIST")]
    rates: Option<String>,
    /// Rows of drawn matrices [default: 64; with --full 256].
    #[arg(long, value_name = "N")]
    rows: Option<u32>,
    /// Columns of drawn matrices [default: 4096].
    #[arg(long, value_name = "N")]
    cols: Option<u32>,
    /// Matrices of a checkpoint: parts of names, comma-separated, or `all` [default: two of a model, all of other files].
    #[arg(long, value_name = "LIST")]
    tensors: Option<String>,
    /// Every source, the whole ladder of rates, larger matrices: an hour or more.
    #[arg(long)]
    full: bool,
    /// Split the gap from this baseline to E8 by cause, at each of its rates.
    #[arg(long, value_name = "BASELINE")]
    decompose: Option<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the JSON to this file, and CSV beside it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Fetch a model whose packages state no licence.
    #[arg(long)]
    accept: bool,
    /// Further options for `rd`, after `--` (see `cargo xtask rd -- --help`).
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, args: &RdArgs) -> Result<ExitCode> {
    let mut rd_args = rd_args(workspace, args)?;
    rd_args.extend(["--command".to_owned(), command(env::args().skip(1))]);
    // What comes after `--` may ask for help, which wants no further option but minds none either.
    rd_args.extend(args.rest.iter().cloned());
    binary::run(&binary::build(workspace, "rd", &[])?, &rd_args)
}

/// The command line of `rd`.
fn rd_args(workspace: &Workspace, args: &RdArgs) -> Result<Vec<String>> {
    let full: Vec<String> = FULL.iter().map(|&name| name.to_owned()).collect();
    let sources = if args.source.is_empty() && args.full { &full } else { &args.source };
    let sources = sources.iter().map(|name| resolve(workspace, name, args.accept)).collect::<Result<Vec<_>>>()?;
    let mut out = given([
        ("--source", Some(sources.join(",")).filter(|list| !list.is_empty())),
        ("--seed", args.seed.map(|n| n.to_string())),
        ("--codecs", args.codecs.clone()),
        ("--rates", args.rates.clone()),
        ("--rows", args.rows.map(|n| n.to_string())),
        ("--cols", args.cols.map(|n| n.to_string())),
        ("--tensors", args.tensors.clone()),
        ("--decompose", args.decompose.clone()),
        ("--out", args.out.as_deref().map(|path| utf8(&absolute(path)?)).transpose()?),
    ]);
    for (flag, on) in [("--full", args.full), ("--json", args.json)] {
        if on {
            out.push(flag.to_owned());
        }
    }
    Ok(out)
}

/// What `rd --source` gets: a drawn source as it is, a path, or a known name with its path.
pub(crate) fn resolve(workspace: &Workspace, name: &str, accept: bool) -> Result<String> {
    if DRAWN.contains(&name) {
        return Ok(name.to_owned());
    }
    let path = if name == "embedded" {
        workspace.root().join("assets/tiny")
    } else if Path::new(name).exists() {
        return plain(&Path::new(name).canonicalize().with_context(|| name.to_owned())?);
    } else {
        let models = Models::load(workspace)?;
        if !models.knows(name) {
            bail!("source `{name}`: no such path, and not one of {}, embedded, {}", DRAWN.join(", "), models.names());
        }
        models.get(name)?.fetch(&cache_dir()?, accept)?
    };
    Ok(format!("{name}={}", plain(&path)?))
}

/// A path that can stand in a list.
fn plain(path: &Path) -> Result<String> {
    let text = utf8(path)?;
    if text.contains(',') {
        bail!("{text}: expected a path without commas, which separate the sources");
    }
    Ok(text)
}

/// Words of a command line: each flag that has a value, and the value.
pub(crate) fn given<const N: usize>(flags: [(&str, Option<String>); N]) -> Vec<String> {
    flags.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?])).flatten().collect()
}

/// The command that was typed.
pub(crate) fn command(args: impl Iterator<Item = String>) -> String {
    ["cargo xtask".to_owned()].into_iter().chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command line of `rd` for one of `cargo xtask rd`.
    fn mapped(words: &[&str]) -> Result<Vec<String>> {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            rd: RdArgs,
        }
        let cli = <Cli as clap::Parser>::try_parse_from(["rd"].iter().chain(words))?;
        rd_args(&Workspace::find()?, &cli.rd)
    }

    #[test]
    fn options_reach_the_binary() {
        assert_eq!(mapped(&[]).unwrap(), [""; 0]);
        let words = ["--source", "laplace", "--seed", "7", "--codecs", "e8,z", "--rates", "2,3", "--json"];
        assert_eq!(mapped(&words).unwrap(), words);
        let args = mapped(&["--decompose", "higgs2", "--out", "x.json", "--full", "--source", "gaussian"]).unwrap();
        assert!(args.contains(&"higgs2".to_owned()) && args.contains(&"--full".to_owned()), "{args:?}");
        assert!(args.iter().any(|arg| arg.ends_with("/x.json")), "{args:?}");
    }

    #[test]
    fn sources_are_names_and_paths() {
        let args = mapped(&["--source", "embedded,gaussian"]).unwrap();
        assert!(args[1].starts_with("embedded=") && args[1].ends_with("assets/tiny,gaussian"), "{args:?}");
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tiny/model.safetensors");
        assert!(mapped(&["--source", file]).unwrap()[1].ends_with("assets/tiny/model.safetensors"));
        let error = mapped(&["--source", "no-such"]).unwrap_err().to_string();
        assert!(error.contains("gaussian") && error.contains("smollm2"), "{error}");
    }

    #[test]
    fn the_command_is_named_as_it_was_typed() {
        let args = ["rd", "--rates", "2"].map(str::to_owned);
        assert_eq!(command(args.into_iter()), "cargo xtask rd --rates 2");
    }
}
