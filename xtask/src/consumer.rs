//! `cargo xtask consumer`: our packages as strangers would get them, in a project that is none of ours (`tests/consumer`).
//!
//! The packages are made, unpacked beside a copy of that project and put in the place of the registry's. `locked` checks everything with
//! the versions of our Cargo.lock and shares our target folder; `core` checks what has no candle, and `minimal` all, with the lowest
//! versions that our manifests allow; `latest` checks all with the newest.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, bail};
use cargo_metadata::MetadataCommand;
use clap::{Args, ValueEnum};

use crate::{tidy::ONCE, workspace::Workspace};

/// The target of the check without a standard library.
pub(crate) const BARE_TARGET: &str = "thumbv7em-none-eabihf";

/// What begins the part of the consumer's manifest that only a shared target folder needs.
const PROFILES: &str = "\n# As in our workspace";

#[derive(Debug, Args)]
pub(crate) struct ConsumerArgs {
    /// Which versions of other people's crates to take.
    #[arg(value_enum, default_values_t = [Arm::Locked, Arm::Core, Arm::Latest, Arm::Minimal])]
    arms: Vec<Arm>,
}

/// Which versions of other people's crates a consumer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arm {
    /// Those of our Cargo.lock.
    Locked,
    /// The lowest that our manifests allow, without candle.
    Core,
    /// The newest.
    Latest,
    /// The lowest that our manifests allow.
    Minimal,
}

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::Locked => "locked",
            Arm::Core => "core",
            Arm::Latest => "latest",
            Arm::Minimal => "minimal",
        }
    }
}

pub(crate) fn run(workspace: &Workspace, args: &ConsumerArgs) -> Result<ExitCode> {
    package(workspace)?;
    for &arm in &args.arms {
        eprintln!("== consumer, {} versions", arm.name());
        check(workspace, arm)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the gate does: packages, the consumer under our own lock file, the lowest versions of what has no candle.
pub(crate) fn check_in_gate(workspace: &Workspace) -> Result<()> {
    package(workspace)?;
    check(workspace, Arm::Locked)?;
    check(workspace, Arm::Core)
}

/// Names of the packages that are published.
pub(crate) fn published(workspace: &Workspace) -> Result<Vec<String>> {
    let metadata = MetadataCommand::new().current_dir(workspace.root()).no_deps().exec()?;
    let published = metadata.packages.iter().filter(|package| package.publish.is_none());
    Ok(published.map(|package| package.name.to_string()).collect())
}

/// Makes the packages. What is in them is compiled by the check of a consumer, not by `cargo package`, which would build candle twice more.
fn package(workspace: &Workspace) -> Result<()> {
    let names = published(workspace)?;
    let make = |offline: bool| {
        let mut cargo = workspace.cargo();
        cargo.args(["package", "--no-verify", "--allow-dirty", "--quiet", "--target-dir"]).arg(target(workspace));
        cargo.args(offline.then_some("--offline"));
        cargo.args(names.iter().flat_map(|name| ["--package", name]));
        // Nothing but what the cache of the registry has is needed after a build; without one the network is asked.
        if offline { cargo.stderr(Stdio::null()).status() } else { cargo.status() }
    };
    if make(true)?.success() || make(false)?.success() {
        return Ok(());
    }
    bail!("cargo package failed")
}

/// Our target folder, where packages are made too.
fn target(workspace: &Workspace) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.root().join("target"), PathBuf::from)
}

fn check(workspace: &Workspace, arm: Arm) -> Result<()> {
    let folder = assemble(workspace, arm)?;
    if !resolve(workspace, arm, &folder)? {
        return Ok(());
    }
    let versions = lock_versions(&fs::read_to_string(folder.join("Cargo.lock"))?)?;
    check_once(&versions)?;
    if arm == Arm::Locked {
        let ours = lock_versions(&fs::read_to_string(workspace.root().join("Cargo.lock"))?)?;
        if let Some((name, version)) = versions.iter().find(|at| !at.0.starts_with("consumer-") && !ours.contains(at)) {
            bail!("{name} {version} is in the consumer's tree and not in our Cargo.lock");
        }
    }
    let own_target = folder.with_file_name(format!("{}-target", arm.name()));
    let target = if arm == Arm::Locked { target(workspace) } else { own_target };
    let what: &[&str] = match arm {
        Arm::Core => &["--package", "consumer-codec", "--package", "consumer-no-std"],
        _ => &["--workspace"],
    };
    cargo_check(workspace, &folder, &target, what)?;
    if arm == Arm::Locked && bare_target_is_there()? {
        let what = ["--package", "consumer-no-std", "--target", BARE_TARGET];
        cargo_check(workspace, &folder, &target, &what)?;
    }
    Ok(())
}

fn cargo_check(workspace: &Workspace, folder: &Path, target: &Path, what: &[&str]) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.current_dir(folder).args(["check", "--quiet", "--locked", "--target-dir"]).arg(target).args(what);
    let status = cargo.status()?;
    if !status.success() {
        bail!("cargo check {} in {} failed: {status}", what.join(" "), folder.display());
    }
    Ok(())
}

/// Whether the target without a standard library is installed; says loudly if not.
fn bare_target_is_there() -> Result<bool> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", BARE_TARGET]).output()?;
    let there = Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir();
    if !there {
        eprintln!("SKIPPED: no_std on {BARE_TARGET}, which is not installed (rustup target add {BARE_TARGET})");
    }
    Ok(there)
}

/// A workspace of the consumer and our packages, in which the latter take the place of the registry's.
fn assemble(workspace: &Workspace, arm: Arm) -> Result<PathBuf> {
    let base = target(workspace).join("consumer");
    let folder = base.join(arm.name());
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let consumer = workspace.root().join("tests/consumer");
    copy(&consumer, &folder)?;
    let manifest = folder.join("Cargo.toml");
    fs::write(&manifest, assembled(&fs::read_to_string(&manifest)?, arm)?)?;
    let metadata = MetadataCommand::new().current_dir(workspace.root()).no_deps().exec()?;
    for package in metadata.packages.iter().filter(|package| package.publish.is_none()) {
        let name = format!("{}-{}", package.name, package.version);
        unpack(&target(workspace).join("package").join(format!("{name}.crate")), &folder.join("crates"))?;
        fs::rename(folder.join("crates").join(&name), folder.join("crates").join(package.name.as_str()))?;
    }
    fs::copy(workspace.root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    Ok(folder)
}

/// The consumer's manifest with unpacked packages as members; without our profiles where no target folder is shared.
fn assembled(manifest: &str, arm: Arm) -> Result<String> {
    let moved = manifest.replace("\"../../crates/", "\"crates/").replace("members = [", "members = [\"crates/*\", ");
    if moved.contains("../") || !moved.contains("\"crates/*\"") {
        bail!("tests/consumer/Cargo.toml: expected members = [ and paths below ../../crates");
    }
    let (project, _) = moved.split_once(PROFILES).with_context(|| format!("tests/consumer/Cargo.toml: {PROFILES}"))?;
    Ok(if arm == Arm::Locked { moved } else { format!("{project}\n[profile.dev]\ndebug = false\n") })
}

fn unpack(package: &Path, into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    let status = Command::new("tar").arg("-xzf").arg(package).arg("-C").arg(into).status().context("starting tar")?;
    if !status.success() {
        bail!("unpacking {} failed: {status}", package.display());
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("{}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if !entry.file_type()?.is_dir() {
            fs::copy(entry.path(), to)?;
        } else if entry.file_name() != "target" {
            copy(&entry.path(), &to)?;
        }
    }
    Ok(())
}

/// Writes the lock file of an arm; false where that would need a network that is not there.
fn resolve(workspace: &Workspace, arm: Arm, folder: &Path) -> Result<bool> {
    let mut cargo = workspace.cargo();
    cargo.current_dir(folder);
    match arm {
        // Prunes the copy of our own, and resolves nothing anew.
        Arm::Locked => cargo.args(["metadata", "--format-version", "1", "--offline"]),
        Arm::Latest => cargo.arg("generate-lockfile"),
        // The resolver's option is not stable; the build that follows is.
        Arm::Core | Arm::Minimal => {
            cargo.args(["-Z", "direct-minimal-versions", "generate-lockfile"]).env("RUSTC_BOOTSTRAP", "1")
        }
    };
    let output = cargo.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(true);
    }
    let message = String::from_utf8_lossy(&output.stderr);
    if arm != Arm::Locked && is_network_trouble(&message) {
        eprintln!("SKIPPED: the consumer with {} versions, because the registry cannot be reached", arm.name());
        return Ok(false);
    }
    bail!("resolving {} versions failed:\n{message}", arm.name())
}

fn is_network_trouble(message: &str) -> bool {
    let signs =
        ["Could not resolve host", "failed to download", "Couldn't connect", "spurious network error", "offline"];
    signs.iter().any(|sign| message.contains(sign)) && !message.contains("failed to select a version")
}

/// Names and versions of a lock file.
fn lock_versions(lock: &str) -> Result<BTreeSet<(String, String)>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock has no packages")?;
    let text = |package: &toml::Value, key: &str| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    packages.iter().map(|p| text(p, "name").zip(text(p, "version")).context("a package without version")).collect()
}

/// Refuses a tree with two versions of a crate whose types cross borders.
fn check_once(versions: &BTreeSet<(String, String)>) -> Result<()> {
    for name in ONCE {
        let found: Vec<&str> =
            versions.iter().filter(|(n, _)| n == name).map(|(_, version)| version.as_str()).collect();
        if found.len() > 1 {
            bail!("the consumer's tree has {name} {}: expected one version", found.join(" and "));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_take_the_place_of_paths_and_profiles_stay_where_the_target_folder_is_shared() {
        let manifest = fs::read_to_string(Workspace::find().unwrap().root().join("tests/consumer/Cargo.toml")).unwrap();
        let locked = assembled(&manifest, Arm::Locked).unwrap();
        let latest = assembled(&manifest, Arm::Latest).unwrap();
        for text in [&locked, &latest] {
            let table: toml::Table = text.parse().unwrap();
            assert_eq!(table["workspace"]["members"][0].as_str(), Some("crates/*"));
            assert_eq!(table["patch"]["crates-io"]["gosset"]["path"].as_str(), Some("crates/gosset"));
        }
        assert!(locked.contains("opt-level") && !latest.contains("opt-level"));
        assert!(assembled("[workspace]\nmembers = [\"a\"]\n", Arm::Locked).is_err());
        assert!(assembled("[workspace]\n", Arm::Locked).is_err());
    }

    #[test]
    fn the_consumer_replaces_every_published_library() {
        let workspace = Workspace::find().unwrap();
        let manifest = fs::read_to_string(workspace.root().join("tests/consumer/Cargo.toml")).unwrap();
        let table: toml::Table = manifest.parse().unwrap();
        let patched = table["patch"]["crates-io"].as_table().unwrap();
        let names = published(&workspace).unwrap();
        assert!(names.len() > 10);
        for name in names.iter().filter(|name| *name != "gosset-cli") {
            assert!(patched.contains_key(name), "{name}");
        }
    }

    #[test]
    fn two_versions_of_one_crate_are_refused() {
        let lock = |versions: &[&str]| {
            let text: String =
                versions.iter().map(|v| format!("[[package]]\nname = \"half\"\nversion = \"{v}\"\n")).collect();
            lock_versions(&text).unwrap()
        };
        assert!(check_once(&lock(&["2.7.1"])).is_ok());
        assert!(check_once(&lock(&["1.8.3", "2.7.1"])).unwrap_err().to_string().contains("1.8.3 and 2.7.1"));
    }

    #[test]
    fn only_what_the_network_did_is_skipped() {
        assert!(is_network_trouble("error: failed to download from `x`: Could not resolve host: x"));
        assert!(!is_network_trouble("error: failed to select a version for `half`; offline was not asked for"));
    }
}
