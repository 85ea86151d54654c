//! The one error type of this crate.

use std::io;
use std::path::PathBuf;

use gosset_codec::CodecError;
use gosset_unisvq::UniSvqError;
use thiserror::Error;

use crate::manifest::{FORMAT_MAJOR, GENERATOR};
use crate::safetensors_header::HeaderProblem;

/// Why a container cannot be written, opened or used.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum ContainerError {
    /// The operating system refused.
    #[error("{}: {what}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The output exists and may not be replaced.
    #[error("{}: exists already", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The output path is not a file name in an existing folder.
    #[error("{}: {reason}", path.display())]
    OutputPath {
        /// The output.
        path: PathBuf,
        /// Expected and found.
        reason: &'static str,
    },
    /// The file is of another kind.
    #[error("{}: this is {found}, not a Gosset container", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The kind, in words.
        found: &'static str,
    },
    /// The safetensors layer is broken.
    #[error("{}: {problem}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The rule that is broken.
        problem: Box<HeaderProblem>,
    },
    /// The header is not the one that was written.
    #[error("{}: header checksum: expected {expected}, found {found}; the file is damaged", path.display())]
    HeaderChecksum {
        /// The file.
        path: PathBuf,
        /// The digits in the file.
        expected: String,
        /// The digits of the bytes.
        found: String,
    },
    /// The file needs another version of this program.
    #[error(
        "{}: format {found}: made by {generator}, needs {needs}; this is {GENERATOR}, which reads format {FORMAT_MAJOR}.x",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Format of the file, `major.minor`.
        found: String,
        /// Program that made it.
        generator: String,
        /// Lowest program version that reads it, as the file says.
        needs: String,
    },
    /// A part this program does not know and may not ignore.
    #[error("{}: required section {section:?} is unknown to {GENERATOR}: made by {generator}, needs {needs}", path.display())]
    UnknownSection {
        /// The file.
        path: PathBuf,
        /// The section.
        section: String,
        /// Program that made the file.
        generator: String,
        /// Lowest program version that reads it, as the file says.
        needs: String,
    },
    /// The manifest contradicts itself or the header.
    #[error("{}: manifest: {reason}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Expected, found and where.
        reason: String,
    },
    /// The bytes of a plane are not those that were written.
    #[error("{}: {plane:?}: checksum: expected {expected:016x}, found {found:016x}; the file is damaged", path.display())]
    PlaneChecksum {
        /// The file.
        path: PathBuf,
        /// Name of the plane in the file.
        plane: String,
        /// The checksum in the manifest.
        expected: u64,
        /// The checksum of the bytes.
        found: u64,
    },
    /// A coded tensor does not decode.
    #[error("{}: tensor {tensor:?}: {source}", path.display())]
    Coded {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The codec's reason.
        source: CodecError,
    },
    /// A matrix of grid codes does not fit its planes.
    #[error("{}: tensor {tensor:?}: {source}", path.display())]
    UniSvq {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The reason.
        source: Box<UniSvqError>,
    },
    /// Several parts are damaged.
    #[error("{}: {} damaged part(s): {}", path.display(), problems.len(), problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Each damaged part.
        problems: Vec<Problem>,
    },
    /// No tensor of that name.
    #[error("{}: no tensor {name:?} among {n_tensors}", path.display())]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        name: String,
        /// How many there are.
        n_tensors: usize,
    },
    /// A tensor of the other kind was asked for.
    #[error("{}: tensor {name:?} is {found}, expected {expected}", path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// How it is stored.
        found: &'static str,
        /// How it should be.
        expected: &'static str,
    },
    /// A name was given to the writer twice.
    #[error("{what} {name:?} was added twice")]
    Duplicate {
        /// `tensor` or `blob`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Bytes, shape and dtype given to the writer disagree.
    #[error("tensor {name:?}: {what}: expected {expected}, found {found}")]
    Input {
        /// The tensor.
        name: String,
        /// Which property.
        what: &'static str,
        /// What would be right.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The writer failed before; what it holds is incomplete.
    #[error("{}: an earlier write failed, nothing can be finished", path.display())]
    Poisoned {
        /// The output.
        path: PathBuf,
    },
}

/// One damaged part that [`Container::verify`](crate::Container::verify) found.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{part}: {what}")]
pub struct Problem {
    /// Tensor, blob or section, with the plane.
    pub part: String,
    /// Expected and found.
    pub what: String,
}
