//! Help, version, completions, list, and how the command behaves in a pipe.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use crate::support::{Bench, finish};

#[test]
fn the_help_has_commands_examples_and_exit_codes() {
    let bench = Bench::new();
    let help = bench.run("--help").ok().stdout;
    for part in
        ["quantize", "inspect", "verify", "dequantize", "generate", "chat", "list", "completions", "Exit codes", "130"]
    {
        assert!(help.contains(part), "{help}");
    }
    for command in ["quantize", "inspect", "verify", "dequantize", "generate", "chat", "completions"] {
        let help = bench.run(&format!("{command} --help")).ok().stdout;
        assert!(help.contains("Example"), "{command}: {help}");
    }
    bench.run("").fails_with_help();
}

impl crate::support::Run {
    fn fails_with_help(self) {
        assert_eq!((self.code, self.stderr.contains("Usage: gosset")), (2, true), "{self:?}");
    }
}

#[test]
fn the_version_names_the_commit() {
    let version = Bench::new().run("--version").ok().stdout;
    let rest = version.strip_prefix(concat!("gosset ", env!("CARGO_PKG_VERSION"), " (git ")).unwrap();
    let hash = rest.strip_suffix(")\n").unwrap();
    let hash = hash.strip_suffix("-dirty").unwrap_or(hash);
    assert!(hash == "unknown" || hash.len() == 12 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{version}");
}

#[test]
fn completions_exist_for_every_shell() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = bench.run(&format!("completions {shell}")).ok().stdout;
        assert!(script.contains("gosset") && script.contains("rate-for"), "{shell}");
    }
    bench.run("completions tcsh").fails(2, &["tcsh", "fish"]);
}

#[test]
fn usage_errors_are_one_line() {
    let bench = Bench::new();
    for line in ["quantise x", "inspect", "inspect a b", "verify --jason x", "generate", "--frobnicate"] {
        let run = bench.run(line).fails(2, &["--help`"]);
        assert_eq!(run.stderr.lines().count(), 1, "{run:?}");
    }
}

#[test]
fn the_list_shows_known_models_and_the_cache() {
    let bench = Bench::new();
    let run = bench.run("list").ok();
    for part in ["smollm2", "Apache-2.0", "98.4 MB", "not fetched", "cargo xtask fetch smollm2", "no containers"] {
        assert!(run.stdout.contains(part), "{}", run.stdout);
    }
    let models = bench.path("cache/models/smollm2");
    fs::create_dir_all(&models).unwrap();
    fs::write(models.join("SmolLM2-135M-Instruct.Q4_1.gguf"), "GGUF").unwrap();
    fs::create_dir_all(bench.path("cache/models/mine")).unwrap();
    fs::copy(bench.container(), bench.path("cache/t0.gosset")).unwrap();
    fs::write(bench.path("cache/broken.gosset"), "?").unwrap();
    let json = bench.run("list --json").ok().json();
    assert_eq!(json["models"][0]["cached"], true);
    assert!(json["models"].as_array().unwrap().iter().any(|m| m["name"] == "mine"));
    let containers = json["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 2);
    assert!(containers[0]["problem"].is_string() && containers[1]["n_params"].is_u64(), "{containers:?}");
    let text = bench.run("list").ok().stdout;
    assert!(text.contains("t0.gosset") && text.contains("unreadable"), "{text}");
}

#[test]
fn a_model_in_the_cache_is_found_by_name() {
    let bench = Bench::new();
    bench.t0("cache/models/tiny", &gosset_tests::t0::T0::llama());
    bench.run("quantize tiny -o tiny.gosset --rate 4 -q").ok();
    bench.run("generate tiny -p a -n 1").ok();
}

#[test]
fn a_closed_pipe_is_no_error() {
    let bench = Bench::new();
    bench.container();
    for line in
        ["inspect t0.gosset --tensors", "inspect t0.gosset --json", "generate t0.gosset -p a -n 200", "list", "--help"]
    {
        let mut child =
            bench.command(line.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let code = child.wait().unwrap().code();
        assert!(
            code == Some(0) && !stderr.contains("panicked") && !stderr.contains("error"),
            "{line}: {code:?} {stderr}"
        );
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let full = std::path::Path::new("/dev/full");
    if !full.exists() {
        eprintln!("SKIPPED: no /dev/full here");
        return;
    }
    let bench = Bench::new();
    bench.container();
    let mut command = bench.command(["inspect", "t0.gosset", "--json"]);
    let out = fs::OpenOptions::new().write(true).open(full).unwrap();
    let child = command.stdout(out).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    // And a plain run still works.
    finish(&mut bench.command(["inspect", "t0.gosset"])).ok();
}
