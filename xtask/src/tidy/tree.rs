//! The files that the rules read.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{RepoFile, relative};

/// Endings of files that are text by agreement.
const TEXT: &[&str] = &["rs", "toml", "md", "py", "sh", "yml", "yaml", "txt", "csv", "json", "cu", "cuh", "jinja"];

/// Every text file of the repository: what git tracks or would add, or without git everything but build folders.
pub(super) fn text_files(root: &Path) -> Result<Vec<RepoFile>> {
    let mut paths = match listed_by_git(root) {
        Some(paths) => paths,
        None => {
            let mut paths = Vec::new();
            walk(root, root, &mut paths)?;
            paths
        }
    };
    paths.sort();
    paths.dedup();
    let mut files = Vec::new();
    for path in paths.into_iter().filter(|path| is_text(path)) {
        let bytes = match fs::read(root.join(&path)) {
            Ok(bytes) => bytes,
            // Listed in the index but removed from the work tree.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).context(path),
        };
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(RepoFile { path, text });
        }
    }
    Ok(files)
}

fn is_text(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.') {
        Some((_, extension)) => TEXT.contains(&extension) || name == ".gitignore",
        None => name.starts_with("LICENSE") || path == ".ci/run",
    }
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    // A folder that lies inside someone else's repository is not ours to ask about.
    if !root.join(".git").exists() {
        return None;
    }
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").current_dir(root).args(args).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let names = String::from_utf8(output.stdout).ok()?;
    Some(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn walk(root: &Path, folder: &Path, paths: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("{}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if !name.starts_with("target") && name != ".git" {
                walk(root, &entry.path(), paths)?;
            }
        } else if kind.is_file() {
            paths.extend(relative(root, &entry.path()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_the_tree_is_walked_and_build_folders_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["src", "target", "target-x"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("a.rs"), "fn a() {}\n").unwrap();
        }
        fs::write(dir.path().join("model.gguf"), [0xff, 0]).unwrap();
        fs::write(dir.path().join("bad.txt"), [0xff, 0]).unwrap();
        let files = text_files(dir.path()).unwrap();
        assert_eq!(files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["src/a.rs"]);
    }
}
