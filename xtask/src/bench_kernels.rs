//! `cargo xtask bench-kernels`: times of the CUDA kernels beside cuBLAS, kept under `docs/results` with their table and plot.
//!
//! Where there is no device the CPU part runs and nothing is kept. A machine with a device but without Rust takes what `--pack`
//! leaves, and `--import` takes back what it measured; docs/KERNELS.md has the lines.

use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::{
    binary,
    workspace::{Workspace, exit_code, utf8},
};

/// Seconds that a sanitizer may take per tool: it is 10 to 100 times slower than the tests themselves.
const SANITIZER_SECONDS: u32 = 900;
/// Shapes of the products that racecheck looks at: two blocks of rows, and a width with tiles of 64.
const REDUCED_SHAPES: &str = "64x512,48x576";

#[derive(Debug, Args)]
pub(crate) struct BenchKernelsArgs {
    /// Operations, comma-separated: shift_gemv, shift_gemm, rice_gemv, rice_gemm, fixed_gemv, unisvq_gemv, unisvq_gemm, rht, quantize, decode, kv_attend [default: all].
    #[arg(long, value_name = "LIST")]
    ops: Option<String>,
    /// Codecs, comma-separated, such as `shift-16@2` [default: those of the table].
    #[arg(long, value_name = "LIST")]
    codecs: Option<String>,
    /// Matrices as output x input dimension, comma-separated [default: those of Llama-3.1-8B].
    #[arg(long, value_name = "LIST")]
    shapes: Option<String>,
    /// Activations at once, comma-separated [default: 1,2,4,8,16,32,64].
    #[arg(long, value_name = "LIST")]
    batches: Option<String>,
    /// Two shapes, three batches, fewer replays; nothing is kept unless --json says where.
    #[arg(long)]
    quick: bool,
    /// Check the products of the matrices of these compressed models too, comma-separated.
    #[arg(long, value_name = "FILES")]
    container: Option<String>,
    /// Where the JSON goes [default: docs/results/DEVICE-kernels.json].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Leave PyTorch alone, also where it is installed.
    #[arg(long)]
    no_torch: bool,
    /// Run compute-sanitizer over the tests and the products instead, and keep its log.
    #[arg(long, conflicts_with_all = ["ops", "codecs", "shapes", "batches", "quick", "container", "json"])]
    sanitize: bool,
    /// Leave the binaries and scripts for a machine without Rust in this folder, and measure nothing.
    #[arg(long, value_name = "DIR")]
    pack: Option<PathBuf>,
    /// Keep results that such a machine made: JSON of `kernels`, or the log of the sanitizer.
    #[arg(long, value_name = "FILE")]
    import: Vec<PathBuf>,
}

pub(crate) fn run(workspace: &Workspace, args: &BenchKernelsArgs) -> Result<ExitCode> {
    if !args.import.is_empty() {
        args.import.iter().try_for_each(|file| import(workspace, file))?;
        println!("now run `cargo xtask tables`");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(folder) = &args.pack {
        return pack(workspace, folder);
    }
    let kernels = build_kernels(workspace)?;
    if args.sanitize {
        return sanitize(workspace, &kernels);
    }
    let scratch = workspace.root().join("target/bench-kernels");
    fs::create_dir_all(&scratch).with_context(|| format!("{}", scratch.display()))?;
    let json = args.json.clone().unwrap_or_else(|| scratch.join("kernels.json"));
    let mut command = Command::new(&kernels);
    command.arg("--json").arg(&json).args(["--command", &command_line(args)]);
    for (flag, value) in
        [("--ops", &args.ops), ("--codecs", &args.codecs), ("--shapes", &args.shapes), ("--batches", &args.batches)]
    {
        command.args(value.iter().flat_map(|value| [flag, value]));
    }
    if args.quick {
        command.arg("--quick");
    }
    if let Some(containers) = &args.container {
        command.args(["--container", containers]);
    }
    if let Some(torch) = torch(workspace, args, &scratch)? {
        command.arg("--torch").arg(torch);
    }
    let status = command.status().with_context(|| format!("starting {}", kernels.display()))?;
    if args.json.is_none() && !args.quick && status.success() && device(&json)?.is_some() {
        import(workspace, &json)?;
        let decode_json = scratch.join("decode.json");
        let decode = build_decode(workspace)?;
        let status = Command::new(&decode).arg("--json").arg(&decode_json).status();
        let status = status.with_context(|| format!("starting {}", decode.display()))?;
        ensure!(status.success(), "{} failed: {status}", decode.display());
        import(workspace, &decode_json)?;
        println!("now run `cargo xtask tables`");
    }
    Ok(exit_code(status))
}

/// The release binary, without candle.
fn build_kernels(workspace: &Workspace) -> Result<PathBuf> {
    let args = ["build", "--package=gosset-benches", "--no-default-features", "--features=kernels", "--bin=kernels"];
    binary::build_target(workspace, "kernels", &args.map(str::to_owned))
}

/// The release binary that measures tokens per second of a model's shapes.
fn build_decode(workspace: &Workspace) -> Result<PathBuf> {
    binary::build(workspace, "decode", &["gpu"])
}

/// The test binary of the kernels.
fn build_tests(workspace: &Workspace) -> Result<PathBuf> {
    let args = ["test", "--package=gosset-cuda", "--test=gpu", "--no-run"];
    binary::build_target(workspace, "gpu", &args.map(str::to_owned))
}

/// This command as it was given, to be named in the results.
fn command_line(args: &BenchKernelsArgs) -> String {
    let mut line = "cargo xtask bench-kernels".to_owned();
    for (flag, value) in
        [("ops", &args.ops), ("codecs", &args.codecs), ("shapes", &args.shapes), ("batches", &args.batches)]
    {
        if let Some(value) = value {
            line += &format!(" --{flag} {value}");
        }
    }
    if args.quick {
        line += " --quick";
    }
    if args.container.is_some() {
        line += " --container FILES";
    }
    line
}

/// PyTorch's times, where PyTorch is installed and sees a device.
fn torch(workspace: &Workspace, args: &BenchKernelsArgs, scratch: &Path) -> Result<Option<PathBuf>> {
    let sees_device = "import torch, sys; sys.exit(not torch.cuda.is_available())";
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let has_torch = || quiet(Command::new("python3").args(["-c", sees_device])).is_ok_and(|status| status.success());
    if args.no_torch || !has_torch() {
        return Ok(None);
    }
    let out = scratch.join("torch.json");
    let mut script = Command::new("python3");
    script.arg(workspace.root().join("benches/torch_bf16.py")).arg(&out);
    for (flag, value) in [("--shapes", &args.shapes), ("--batches", &args.batches)] {
        script.args(value.iter().flat_map(|value| [flag, value]));
    }
    let status = script.status().context("starting python3")?;
    ensure!(status.success(), "benches/torch_bf16.py failed: {status}; --no-torch leaves it out");
    Ok(Some(out))
}

/// Name of the device that results are of, such as `h200`; `None` where there was none.
fn device(json: &Path) -> Result<Option<String>> {
    let text = fs::read_to_string(json).with_context(|| format!("{}", json.display()))?;
    let value: Value = serde_json::from_str(&text).with_context(|| format!("{}", json.display()))?;
    let name = value["device"].as_str().with_context(|| format!("{}: no device is named", json.display()))?;
    Ok(slug(name))
}

/// `NVIDIA H200` as `h200`.
fn slug(name: &str) -> Option<String> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<String> =
        words.map(str::to_lowercase).filter(|word| word != "nvidia" && word != "geforce").collect();
    Some(words.join("-")).filter(|slug| !slug.is_empty() && slug != "none")
}

/// Keeps results under `docs/results`.
fn import(workspace: &Workspace, file: &Path) -> Result<()> {
    let results = workspace.root().join("docs/results");
    let text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let name = if file.extension().is_some_and(|extension| extension == "json") {
        let value: Value = serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?;
        if value["valid"] == Value::Bool(false) {
            let problems = value["problems"].to_string();
            bail!("{}: the run does not count: {problems}", file.display());
        }
        let device = value["device"].as_str().and_then(slug);
        let device = device.with_context(|| format!("{}: expected the results of a device", file.display()))?;
        let kind = if value["rows"][0].get("floor_fraction").is_some() { "kernels" } else { "decode" };
        format!("{device}-{kind}.json")
    } else {
        let device = text.lines().find_map(|line| line.strip_prefix("device: ")).and_then(slug);
        let device = device.with_context(|| format!("{}: expected a line `device: NAME`", file.display()))?;
        format!("{device}-sanitizer.txt")
    };
    let path = results.join(name);
    fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// What a machine without Rust runs: the sanitizer over the tests and over the products of reduced shapes.
fn sanitizer_script() -> String {
    format!(
        r#"#!/bin/bash
# compute-sanitizer over the kernels: memcheck over every test and product, racecheck over products of reduced shapes.
# usage: sanitize.sh TESTS KERNELS LOG [SECONDS]
# Each part of the tests is a process of its own, and all run at once; one that takes more than SECONDS is cut off and named.
set -u
export GOSSET_TEST_REDUCED=1
tests=$1 kernels=$2 log=$3 seconds=${{4:-{SANITIZER_SECONDS}}}
parts=$(mktemp -d)
check() {{
    name=$1 tool=$2
    shift 2
    echo "== $name: compute-sanitizer --tool $tool $*" > "$parts/$name"
    timeout "$seconds" compute-sanitizer --tool "$tool" --error-exitcode 9 "$@" >> "$parts/$name" 2>&1
    echo "exit code $?" >> "$parts/$name"
}}
for part in $("$tests" --list 2> /dev/null | sed -n 's/::.*: test$//p' | sort -u); do
    check "memcheck-tests-$part" memcheck "$tests" "$part::" --test-threads 1 &
done
check memcheck-products memcheck "$kernels" --check --shapes {REDUCED_SHAPES} --unique-rows 16 --batches 1,3,16 &
check racecheck-products racecheck "$kernels" --check --shapes {REDUCED_SHAPES} --unique-rows 16 --batches 1,3,16 &
wait
{{
    echo "device: $(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)"
    compute-sanitizer --version | tail -1
    # What the programs say about rows and tests is long and stands elsewhere.
    grep -hE '^==|ERROR SUMMARY|RACECHECK SUMMARY|Error|Race|Invalid|Warning|test result|FAILED|exit code' "$parts"/*
}} > "$log"
cat "$log"
! grep -E '^exit code [1-9]' "$log" > /dev/null
"#
    )
}

fn sanitize(workspace: &Workspace, kernels: &Path) -> Result<ExitCode> {
    let folder = workspace.root().join("target/bench-kernels");
    fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    let found = Command::new("compute-sanitizer").arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        println!("compute-sanitizer is not on the path; nothing was checked");
        return Ok(ExitCode::SUCCESS);
    }
    let tests = build_tests(workspace)?;
    let (script, log) = (folder.join("sanitize.sh"), folder.join("sanitizer.txt"));
    fs::write(&script, sanitizer_script()).with_context(|| format!("{}", script.display()))?;
    let status = Command::new("bash").arg(&script).args([&tests, kernels, &log]).status().context("starting bash")?;
    if status.success() {
        import(workspace, &log)?;
    } else {
        println!("the log stands in {}", log.display());
    }
    Ok(exit_code(status))
}

/// Leaves `kernels`, `gpu-tests`, `decode` (compressed where `xz` is there), `torch_bf16.py` and `sanitize.sh` in a folder.
fn pack(workspace: &Workspace, folder: &Path) -> Result<ExitCode> {
    fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    let built = [
        ("kernels", build_kernels(workspace)?),
        ("gpu-tests", build_tests(workspace)?),
        ("decode", build_decode(workspace)?),
    ];
    for (name, built) in built {
        let path = folder.join(name);
        fs::copy(&built, &path).with_context(|| format!("{}", path.display()))?;
        // Both only make the file smaller; a machine without them carries more.
        let _ = Command::new("strip").arg(&path).status();
        let _ = Command::new("xz").args(["-9", "--force", &utf8(&path)?]).status();
    }
    let torch = workspace.root().join("benches/torch_bf16.py");
    fs::copy(&torch, folder.join("torch_bf16.py")).with_context(|| format!("{}", torch.display()))?;
    fs::write(folder.join("sanitize.sh"), sanitizer_script())?;
    writeln!(io::stdout(), "{}", folder.display())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_short_names() {
        assert_eq!(slug("NVIDIA H200").as_deref(), Some("h200"));
        assert_eq!(slug("NVIDIA GeForce RTX 4090").as_deref(), Some("rtx-4090"));
        assert_eq!(slug("none"), None);
        assert_eq!(slug("NVIDIA"), None);
    }

    #[test]
    fn the_script_checks_memory_and_races() {
        let script = sanitizer_script();
        assert!(script.contains(" memcheck \"$tests") && script.contains(" racecheck \"$kernels"), "{script}");
        assert!(script.contains("check() {\n") && script.contains("seconds=${4:-900}"), "{script}");
    }

    #[test]
    fn invalid_runs_are_not_kept() {
        let workspace = Workspace::find().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("k.json");
        for (text, word) in [
            (r#"{"device": "NVIDIA X1", "valid": false, "problems": ["slow"], "rows": []}"#, "slow"),
            (r#"{"device": "none", "valid": true, "rows": []}"#, "of a device"),
        ] {
            fs::write(&json, text).unwrap();
            let error = format!("{:#}", import(&workspace, &json).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(device(&json).unwrap(), None);
    }
}
