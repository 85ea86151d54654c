//! `cargo xtask kv-scores`: builds the release binary `kv-scores` and runs it on a model.

use std::{
    env,
    path::{PathBuf, absolute},
    process::ExitCode,
};

use anyhow::Result;
use clap::Args;

use crate::{
    binary,
    eval::text_path,
    rd,
    workspace::{Workspace, utf8},
};

#[derive(Debug, Args)]
pub(crate) struct KvScoresArgs {
    /// A known model (`cargo xtask fetch --list`), `embedded`, or the path of a checkpoint.
    #[arg(long, value_name = "NAME|PATH", default_value = "embedded")]
    model: String,
    /// A text file, `wikitext2` or `embedded` [default: the embedded text for the embedded model, else wikitext2].
    #[arg(long, value_name = "PATH|NAME")]
    text: Option<String>,
    /// Tokens of the text [default: 1024].
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// Layers, comma-separated [default: the first, the last and two between].
    #[arg(long, value_name = "LIST")]
    layers: Option<String>,
    /// Rates, comma-separated [default: 2,3,4].
    #[arg(long, value_name = "LIST")]
    bits: Option<String>,
    /// Draws of what is random [default: 16].
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
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

pub(crate) fn run(workspace: &Workspace, args: &KvScoresArgs) -> Result<ExitCode> {
    let mut words = kv_scores_args(workspace, args)?;
    words.extend(["--command".to_owned(), rd::command(env::args().skip(1))]);
    binary::run(&binary::build(workspace, "kv-scores", &[])?, &words)
}

/// The command line of `kv-scores`.
fn kv_scores_args(workspace: &Workspace, args: &KvScoresArgs) -> Result<Vec<String>> {
    let text = text_path(workspace, args.text.as_deref(), args.model == "embedded")?;
    let mut out = rd::given([
        ("--model", Some(rd::resolve(workspace, &args.model, args.accept)?)),
        ("--text", Some(utf8(&text)?)),
        ("--tokens", args.tokens.map(|n| n.to_string())),
        ("--layers", args.layers.clone()),
        ("--bits", args.bits.clone()),
        ("--seeds", args.seeds.map(|n| n.to_string())),
        ("--out", args.out.as_deref().map(|path| utf8(&absolute(path)?)).transpose()?),
    ]);
    if args.json {
        out.push("--json".to_owned());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_the_binary() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            scores: KvScoresArgs,
        }
        let mapped = |words: &[&str]| {
            let cli = <Cli as clap::Parser>::try_parse_from(["kv-scores"].iter().chain(words)).unwrap();
            kv_scores_args(&Workspace::find().unwrap(), &cli.scores)
        };
        let plain = mapped(&[]).unwrap();
        assert_eq!((plain.len(), plain[0].as_str(), plain[2].as_str()), (4, "--model", "--text"));
        assert!(plain[1].ends_with("assets/tiny") && plain[3].ends_with("assets/text/eval.txt"), "{plain:?}");
        let words = ["--tokens", "64", "--layers", "0,2", "--bits", "2", "--seeds", "4", "--json"];
        assert_eq!(mapped(&words).unwrap()[4..], words);
        assert!(mapped(&["--model", "no-such"]).is_err());
    }
}
