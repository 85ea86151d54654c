//! The file that a container is composed in, and what killed processes left of theirs.
//!
//! A temporary file is locked for as long as its process works on it, and the system drops the lock however the process ends.
//! So a file under our name pattern that can be locked belongs to nobody. Unlike process ids, locks say the same in every
//! container that mounts the folder, and are never reused.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use tempfile::NamedTempFile;

const PREFIX: &str = ".gosset-";
const SUFFIX: &str = ".tmp";

/// A new, locked file in `dir`.
pub(crate) fn create(dir: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    #[cfg(unix)]
    {
        // The usual permissions of a new file instead of the private ones of a temporary file.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    loop {
        let file = builder.tempfile_in(dir)?;
        // A file system without locks has nothing to sweep by either.
        let _ = file.as_file().lock();
        // Another process may have swept the file between its creation and the lock, but not later.
        if file.path().symlink_metadata().is_ok() {
            return Ok(file);
        }
    }
}

/// Removes temporary files in `dir` whose process has ended. What cannot be read, locked or removed stays.
pub(crate) fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        if !ours || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            // Still locked here, so that its creator, if it is about to lock it, finds it gone.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_nobody_works_on_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let live = create(dir.path()).unwrap();
        // What a killed process leaves: the name without the lock.
        fs::write(dir.path().join(".gosset-Ab12.tmp"), "half a container").unwrap();
        let others = [".gosset-notes.txt", "x.gosset", "gosset-1.tmp"];
        others.iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
        fs::create_dir(dir.path().join(".gosset-folder.tmp")).unwrap();
        sweep(dir.path());
        assert!(live.path().exists());
        assert!(!dir.path().join(".gosset-Ab12.tmp").exists());
        assert!(others.iter().all(|name| dir.path().join(name).exists()));
        assert!(dir.path().join(".gosset-folder.tmp").exists());

        let path = live.path().to_owned();
        let (file, _) = live.keep().unwrap();
        sweep(dir.path());
        assert!(path.exists());
        drop(file);
        sweep(dir.path());
        assert!(!path.exists());
        sweep(&dir.path().join("absent"));
    }
}
