//! `cargo xtask semver`: what changed in the public interfaces since the last release, by cargo-semver-checks.

use std::{
    fs,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    consumer::published,
    workspace::{Workspace, exit_code},
};

#[derive(Debug, Args)]
pub(crate) struct SemverArgs {
    /// What to compare with, any revision of git; otherwise the last tag of the form v1.2.3.
    #[arg(long, value_name = "REV")]
    since: Option<String>,
    /// Only these packages; otherwise all published ones with a library.
    #[arg(long = "package", short, value_name = "NAME")]
    packages: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, args: &SemverArgs) -> Result<ExitCode> {
    let Some(since) = args.since.clone().or_else(|| last_release(workspace)) else {
        eprintln!("SKIPPED: the semver check, because no tag names a release (expected one like v0.1.0)");
        return Ok(ExitCode::SUCCESS);
    };
    let tool = workspace.cargo().args(["semver-checks", "--version"]).stderr(Stdio::null()).output()?;
    if !tool.status.success() {
        eprintln!("SKIPPED: the semver check against {since}, because its tool is missing");
        eprintln!("(cargo install cargo-semver-checks --locked)");
        return Ok(ExitCode::SUCCESS);
    }
    let baseline = workspace.root().join("target/semver").join(since.replace('/', "-"));
    if baseline.exists() {
        fs::remove_dir_all(&baseline)?;
    }
    fs::create_dir_all(&baseline)?;
    let mut archive = git(workspace, &["archive", "--format=tar", &since]).stdout(Stdio::piped()).spawn()?;
    let tar = archive.stdout.take().context("the archive has an output")?;
    let unpacked = Command::new("tar").arg("-xf").arg("-").arg("-C").arg(&baseline).stdin(tar).status()?;
    if !archive.wait()?.success() || !unpacked.success() {
        bail!("{since}: expected a revision that git can archive");
    }
    let mut cargo = workspace.cargo();
    // The feature `cuda` needs a toolkit; all other features are compared.
    cargo.args(["semver-checks", "check-release", "--default-features", "--baseline-root"]).arg(&baseline);
    let names = if args.packages.is_empty() { published(workspace)? } else { args.packages.clone() };
    // The command has no library.
    cargo.args(names.iter().filter(|name| *name != "gosset-cli").flat_map(|name| ["--package", name]));
    Ok(exit_code(cargo.status()?))
}

fn git(workspace: &Workspace, args: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.current_dir(workspace.root()).args(args);
    git
}

/// The newest tag that names a release and is an ancestor of what is checked out.
fn last_release(workspace: &Workspace) -> Option<String> {
    let args = ["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"];
    let output = git(workspace, &args).stderr(Stdio::null()).output().ok()?;
    let tag = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !tag.is_empty()).then_some(tag)
}
