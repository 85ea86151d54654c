//! One safetensors file, read by position.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use gosset_container::safetensors_header::{self as st, Header, HeaderProblem};
use gosset_container::{file_advice, file_kind};
use sha2::{Digest, Sha256};

use crate::error::SourceError;

/// Bytes looked at to tell other kinds of files apart.
const PREFIX: u64 = 64;

/// An open file whose header was checked and whose length fits it.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    /// SHA-256 of length prefix and header.
    pub(super) header_digest: [u8; 32],
    file: PositionedFile,
}

impl Shard {
    pub(super) fn open(path: PathBuf) -> Result<Self, SourceError> {
        let io = |what| {
            let path = path.clone();
            move |source| SourceError::Io { path, what, source }
        };
        let of_header = |problem: HeaderProblem| SourceError::Header { path: path.clone(), problem: Box::new(problem) };
        file_kind::file_or_folder(&path).map_err(io("opening"))?;
        let mut file = File::open(&path).map_err(io("opening"))?;
        let file_bytes = file.metadata().map_err(io("opening"))?.len();
        let mut prefix = Vec::new();
        (&mut file).take(PREFIX).read_to_end(&mut prefix).map_err(io("reading the header"))?;
        let len = st::header_len(&prefix, file_bytes).map_err(of_header)?;
        let file = PositionedFile::new(file);
        // At most the file's own length, by the check above.
        let mut json = vec![0u8; len as usize];
        file.read_exact_at(8, &mut json).map_err(io("reading the header"))?;
        let header = st::parse(&json).map_err(of_header)?;
        header.check_file_length(file_bytes).map_err(of_header)?;
        let header_digest = Sha256::new().chain_update(len.to_le_bytes()).chain_update(&json).finalize().into();
        Ok(Shard { path, header, header_digest, file })
    }

    /// Fills `out` from byte `at` of the file.
    pub(super) fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.file.read_exact_at(at, out).map_err(|source| SourceError::Io {
            path: self.path.clone(),
            what: "reading weights (was the file changed meanwhile?)",
            source,
        })
    }
}

impl Shard {
    /// Asks for `len` bytes from byte `at` to be read ahead.
    pub(super) fn read_ahead(&self, at: u64, len: u64) {
        self.file.with(|file| file_advice::read_ahead(file, at, len));
    }

    /// Gives back the cached pages of `len` bytes from byte `at`.
    pub(super) fn release(&self, at: u64, len: u64) {
        self.file.with(|file| file_advice::release(file, at, len));
    }
}

/// A file that many threads read at positions of their own.
#[derive(Debug)]
struct PositionedFile {
    #[cfg(unix)]
    file: File,
    #[cfg(not(unix))]
    file: std::sync::Mutex<File>,
}

impl PositionedFile {
    #[cfg(unix)]
    fn new(file: File) -> Self {
        PositionedFile { file }
    }

    #[cfg(unix)]
    fn read_exact_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, out, at)
    }

    #[cfg(unix)]
    fn with(&self, take: impl FnOnce(&File)) {
        take(&self.file);
    }

    #[cfg(not(unix))]
    fn with(&self, take: impl FnOnce(&File)) {
        take(&self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    #[cfg(not(unix))]
    fn new(file: File) -> Self {
        PositionedFile { file: std::sync::Mutex::new(file) }
    }

    #[cfg(not(unix))]
    fn read_exact_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(out)
    }
}
