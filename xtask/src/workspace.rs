//! Where things are: the workspace, the user's cache, the data folder.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
};

use anyhow::{Context, Result};

/// The checkout that this xtask was built from.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The folder above the xtask package.
    pub(crate) fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().context("the xtask package lies inside the workspace")?;
        let root = root.canonicalize().with_context(|| format!("workspace folder {}", root.display()))?;
        Ok(Workspace { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A cargo command that runs in the workspace root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
        command.current_dir(&self.root);
        // Cargo sets these for the xtask itself; they would only confuse the build of something else.
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION", "RUST_RECURSION_COUNT"] {
            command.env_remove(name);
        }
        command
    }
}

/// The cache folder: `$GOSSET_CACHE`, else `$XDG_CACHE_HOME/gosset`, else `~/.cache/gosset`.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    cache_dir_from(|name| env::var_os(name))
        .context("no cache folder: expected one of GOSSET_CACHE, XDG_CACHE_HOME or HOME to be set")
}

fn cache_dir_from(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("GOSSET_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("gosset")))
        .or_else(|| Some(set("HOME").or_else(|| set("USERPROFILE"))?.join(".cache/gosset")))
}

/// The folder named by `GOSSET_DATA`, if that is set; texts are looked up there first.
pub(crate) fn data_dir() -> Option<PathBuf> {
    env::var_os("GOSSET_DATA").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The exit code that stands for a child's status: its own, or 130 if a signal ended it.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    match status.code() {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => ExitCode::from(130),
    }
}

/// A path as the argument of a program.
pub(crate) fn utf8(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{}: expected a path in UTF-8", path.display()))
}

/// `98_362_432` as `98.4 MB`.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_folder_follows_the_documented_order() {
        let lookup = |vars: &'static [(&'static str, &'static str)]| {
            cache_dir_from(move |name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
        };
        assert_eq!(lookup(&[("GOSSET_CACHE", "/c"), ("XDG_CACHE_HOME", "/x")]), Some(PathBuf::from("/c")));
        assert_eq!(lookup(&[("GOSSET_CACHE", ""), ("XDG_CACHE_HOME", "/x")]), Some(PathBuf::from("/x/gosset")));
        assert_eq!(lookup(&[("HOME", "/h")]), Some(PathBuf::from("/h/.cache/gosset")));
        assert_eq!(lookup(&[]), None);
    }

    #[test]
    fn the_workspace_is_found() {
        assert!(Workspace::find().unwrap().root().join("xtask/models.toml").is_file());
    }
}
