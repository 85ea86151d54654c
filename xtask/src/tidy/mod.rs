//! `cargo xtask tidy`: the rules of the house, read from `cargo metadata` and from the files themselves.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use cargo_metadata::MetadataCommand;

use crate::workspace::Workspace;

mod arrows;
mod files;
mod published;
mod source;
mod tree;
mod unsafe_code;
mod versions;

pub(crate) use versions::ONCE;

/// One broken rule: where, and what was expected and found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    place: String,
    what: String,
}

impl Finding {
    fn new(place: impl fmt::Display, what: impl Into<String>) -> Self {
        Finding { place: place.to_string(), what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// A file of the repository, its path relative to the root with forward slashes.
#[derive(Debug)]
struct RepoFile {
    path: String,
    text: String,
}

pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    check(workspace)?;
    println!("tidy");
    Ok(ExitCode::SUCCESS)
}

/// Passes if no rule is broken; otherwise prints every finding.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let metadata = MetadataCommand::new()
        .current_dir(workspace.root())
        .other_options(["--locked".to_owned()])
        .exec()
        .context("cargo metadata --locked (is Cargo.lock up to date?)")?;
    let files = tree::text_files(workspace.root())?;
    let mut findings = arrows::check(&metadata);
    findings.extend(versions::check(&metadata));
    findings.extend(published::check(&metadata, &files));
    findings.extend(files::check(&files));
    findings.extend(unsafe_code::check(&files));
    findings.sort();
    findings.dedup();
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    Ok(())
}

/// `path` below `root` with forward slashes.
fn relative(root: &Path, path: &Path) -> Option<String> {
    let rest: PathBuf = path.strip_prefix(root).ok()?.to_owned();
    Some(rest.to_str()?.replace('\\', "/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_checkout_has_sound_metadata() {
        let workspace = Workspace::find().unwrap();
        let metadata = MetadataCommand::new().current_dir(workspace.root()).exec().unwrap();
        assert!(metadata.workspace_packages().iter().any(|p| p.name.as_str() == "xtask"));
    }

    #[test]
    fn findings_read_place_first() {
        assert_eq!(Finding::new("a.rs:3", "tab").to_string(), "a.rs:3: tab");
    }
}
