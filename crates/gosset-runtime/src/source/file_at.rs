//! A file that is read at given positions, without a map: a file that shrinks gives an error, never a signal.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use gosset_container::{file_advice, file_kind};

use crate::RuntimeError;

/// An open file with the length it had when it was opened.
#[derive(Debug)]
pub(crate) struct FileAt {
    path: PathBuf,
    file: File,
    len: u64,
}

impl FileAt {
    pub(crate) fn open(path: &Path) -> Result<Self, RuntimeError> {
        file_kind::file_or_folder(path).map_err(RuntimeError::io(path))?;
        let file = File::open(path).map_err(RuntimeError::io(path))?;
        let meta = file.metadata().map_err(RuntimeError::io(path))?;
        if meta.is_dir() {
            return Err(RuntimeError::Io { path: path.to_owned(), source: io::ErrorKind::IsADirectory.into() });
        }
        Ok(Self { path: path.to_owned(), file, len: meta.len() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `out` with the bytes from position `at`.
    pub(crate) fn read_exact_at(&self, out: &mut [u8], at: u64) -> Result<(), RuntimeError> {
        read_exact_at(&self.file, out, at).map_err(RuntimeError::io(&self.path))
    }

    /// Asks for `len` bytes from position `at` to be read ahead.
    pub(crate) fn read_ahead(&self, at: u64, len: u64) {
        file_advice::read_ahead(&self.file, at, len);
    }

    /// Gives back the cached pages of `len` bytes from position `at`.
    pub(crate) fn release(&self, at: u64, len: u64) {
        file_advice::release(&self.file, at, len);
    }

    /// A reader from the start; calls at positions go on working beside it.
    pub(crate) fn reader(&self) -> impl Read + '_ {
        struct Cursor<'a>(&'a FileAt, u64);
        impl Read for Cursor<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                let left = usize::try_from(self.0.len.saturating_sub(self.1)).unwrap_or(usize::MAX);
                let n = left.min(out.len());
                read_exact_at(&self.0.file, &mut out[..n], self.1)?;
                self.1 += n as u64;
                Ok(n)
            }
        }
        Cursor(self, 0)
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut at: u64) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                out = &mut out[n..];
                at += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_refused_without_waiting_for_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe.gguf");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        for error in [FileAt::open(&path).map(drop), crate::source::open_source(&path).map(drop)] {
            let error = error.unwrap_err();
            assert!(matches!(error, RuntimeError::Io { .. }), "{error}");
            assert!(error.to_string().ends_with("not a regular file"), "{error}");
        }
    }
}
