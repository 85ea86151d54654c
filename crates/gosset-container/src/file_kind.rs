//! Pipes, sockets and devices have paths like files, but are not to be opened or replaced like files.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

/// Metadata of the file or folder at `path`, links followed.
///
/// # Errors
///
/// Those of the system, and [`InvalidInput`](io::ErrorKind::InvalidInput) for pipes, sockets and devices: opening a pipe waits for its
/// other end, and the length of a device says nothing.
pub fn file_or_folder(path: &Path) -> io::Result<Metadata> {
    let meta = fs::metadata(path)?;
    if meta.is_file() || meta.is_dir() { Ok(meta) } else { Err(not_regular()) }
}

/// Whether a file at `path` can be made or replaced by renaming: nothing is there, or a regular file, or a link to one.
///
/// # Errors
///
/// Those of the system, and [`InvalidInput`](io::ErrorKind::InvalidInput) for everything else: pipes, sockets, devices, folders and
/// broken links.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
        Ok(meta) if meta.is_file() => return Ok(()),
        Ok(_) => {}
    }
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => Ok(()),
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Err(not_regular()),
    }
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}
