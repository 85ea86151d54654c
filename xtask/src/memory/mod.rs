//! `cargo xtask memory`: what quantizing and running a model that does not fit takes, under a limit that the system enforces.

mod model;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::binary;
use crate::workspace::Workspace;

/// Time between two looks at the memory of the child.
const POLL: Duration = Duration::from_millis(20);

/// How much more the last layer may take than the second.
const MAX_GROWTH: f64 = 1.05;

#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Layers of the generated model, about 90 MB each in bfloat16.
    #[arg(long, value_name = "N", default_value_t = 12)]
    layers: usize,
    /// Limit of the private memory of the process (RLIMIT_DATA), in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 400)]
    limit: u64,
    /// The codec.
    #[arg(long, value_name = "NAME", default_value = "e8")]
    codec: String,
    /// Where model and outputs go, removed at the end.
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// The command to measure [default: a release build].
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Where the record goes.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Largest resident memory seen, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Resident {
    anonymous: u64,
    file: u64,
}

pub(crate) fn run(workspace: &Workspace, args: &MemoryArgs) -> Result<ExitCode> {
    ensure!(cfg!(target_os = "linux"), "resident memory is read from /proc: expected Linux");
    let gosset = match &args.binary {
        Some(path) => path.canonicalize().with_context(|| path.display().to_string())?,
        None => {
            let words = ["build", "--package=gosset-cli", "--bin=gosset"].map(str::to_owned);
            binary::build_target(workspace, "gosset", &words)?
        }
    };
    let scratch = args.scratch.clone().unwrap_or_else(|| workspace.root().join("target/memory"));
    fs::create_dir_all(&scratch)?;
    let t0 = model::shape(args.layers);
    let mut rows = Vec::new();
    for kind in ["safetensors", "gguf"] {
        let input = scratch.join(if kind == "gguf" { "model.gguf" } else { "model" });
        let bytes = match kind {
            "gguf" => model::write_gguf(&t0, &input)?,
            _ => model::write_safetensors(&t0, &input)?,
        };
        let output = scratch.join(format!("{kind}.gosset"));
        let mut words: Vec<String> =
            ["quantize", "--rate", "3", "--force", "--codec", &args.codec].map(str::to_owned).into();
        words.extend([format!("--max-memory={}MiB", args.limit), input.display().to_string()]);
        words.extend(["-o".to_owned(), output.display().to_string()]);
        let (row, is_flat) = measure(&gosset, &words, args)?;
        println!("{kind}, {bytes} bytes: {row}");
        ensure!(is_flat, "{kind}: layer {} takes more than {MAX_GROWTH} of what layer 2 takes", args.layers);
        rows.push(json!({ "input": kind, "model_bytes": bytes, "quantize": row }));
        if kind == "safetensors" {
            let words = ["generate", "--prompt", "a", "-n", "4"].map(str::to_owned);
            let words: Vec<String> = words.into_iter().chain([output.display().to_string()]).collect();
            let (row, _) = measure(&gosset, &words, args)?;
            println!("generating from it: {row}");
            rows.push(json!({ "input": "container", "model_bytes": fs::metadata(&output)?.len(), "generate": row }));
        }
    }
    fs::remove_dir_all(&scratch)?;
    if let Some(out) = &args.out {
        let (layers, limit, codec) = (args.layers, args.limit, &args.codec);
        let command = format!("cargo xtask memory --layers {layers} --limit {limit} --codec {codec}");
        let threads = thread::available_parallelism().map_or(0, usize::from);
        let record = json!({ "command": command, "limit_bytes": limit << 20, "threads": threads, "rows": rows });
        fs::write(out, serde_json::to_string_pretty(&record)? + "\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the command under the limit and notes its memory by layer; whether the last layer takes what the second one takes.
fn measure(gosset: &Path, words: &[String], args: &MemoryArgs) -> Result<(Value, bool)> {
    let limit = format!("ulimit -d {} && exec \"$0\" \"$@\"", args.limit << 10);
    let mut command = Command::new("sh");
    command.args(["-c", &limit]).arg(gosset).args(words).stdout(Stdio::null()).stderr(Stdio::piped());
    let started = Instant::now();
    let mut child = command.spawn().context("starting sh")?;
    let lines = Arc::new(Mutex::new(Vec::<String>::new()));
    let stderr = child.stderr.take().context("its stderr is piped")?;
    let reader = thread::spawn({
        let lines = Arc::clone(&lines);
        move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        }
    });
    let (mut whole, mut layers) = (Resident::default(), BTreeMap::<usize, Resident>::new());
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Some(now) = resident(child.id()) {
            whole = whole.max(now);
            let layer = lines.lock().unwrap_or_else(PoisonError::into_inner).last().and_then(|line| layer_of(line));
            if let Some(layer) = layer {
                let of_layer = layers.entry(layer).or_default();
                *of_layer = of_layer.max(now);
            }
        }
        thread::sleep(POLL);
    };
    let _ = reader.join();
    let seconds = started.elapsed().as_secs_f64();
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    if !status.success() {
        bail!("gosset {}: {status}: {}", words.join(" "), lines.last().map_or("", String::as_str));
    }
    let by_layer: Vec<Value> = layers
        .iter()
        .map(|(layer, r)| json!({ "layer": layer + 1, "anonymous": r.anonymous, "file": r.file }))
        .collect();
    // The progress that tells of layers has a least distance in time: of a fast run not every layer is seen.
    let second = layers.range(1..args.layers / 2).next();
    let last = layers.range(args.layers / 2..).next_back();
    let growth = second.zip(last).map(|((_, second), (_, last))| last.anonymous as f64 / second.anonymous as f64);
    let row = json!({
        "seconds": (seconds * 10.0).round() / 10.0,
        "said": lines.iter().find(|line| line.contains("of memory")),
        "peak_anonymous": whole.anonymous, "peak_file": whole.file,
        "layers": by_layer, "last_over_second": growth,
    });
    Ok((row, growth.is_some_and(|growth| growth <= MAX_GROWTH)))
}

impl Resident {
    fn max(self, other: Self) -> Self {
        Resident { anonymous: self.anonymous.max(other.anonymous), file: self.file.max(other.file) }
    }
}

/// The layer of a line such as `quantizing 12/110, …: model.layers.1.mlp.up_proj.weight`, from 0.
fn layer_of(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("quantizing")?.split_once(".layers.")?.1;
    rest.split('.').next()?.parse().ok()
}

/// Resident memory of a process; `None` if it has ended.
fn resident(process: u32) -> Option<Resident> {
    let mut text = String::new();
    fs::File::open(format!("/proc/{process}/status")).ok()?.read_to_string(&mut text).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    Some(Resident { anonymous: field("RssAnon:")?, file: field("RssFile:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_read_from_lines_of_progress() {
        let line = "quantizing 12/110, 1.0 M weights/s, 3 s left: model.layers.11.mlp.up_proj.weight";
        assert_eq!(layer_of(line), Some(11));
        assert_eq!(layer_of("scanning 12/110: model.layers.1.mlp.up_proj.weight"), None);
    }
}
