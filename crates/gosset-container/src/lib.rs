//! The Gosset file: compressed matrices, exact tensors and everything needed to run a model, in one safetensors file.
//!
//! [`Writer`] makes such a file, [`Container`] maps one. `docs/FORMAT.md` describes every bit of it. Every byte of a file is under a
//! checksum: that of the header is checked when the file is opened, those of the planes when a plane is first used.

mod error;
pub mod file_advice;
pub mod file_kind;
mod forecast;
mod header;
mod json;
mod ledger;
mod manifest;
mod names;
mod planes;
mod reader;
pub mod safetensors_header;
mod shards;
mod temp_file;
mod unisvq;
mod verify;
mod writer;

pub use error::{ContainerError, Problem};
pub use forecast::{Forecast, PlaneForecast};
pub use ledger::{Causes, EntryKind, Ledger, LedgerEntry};
pub use manifest::{
    BlobEntry, ContainerKind, Digest, FORMAT_MAJOR, FORMAT_MINOR, FormatVersion, GENERATOR, Manifest, NEEDS,
    PlaneEntry, Section, Storage, TensorEntry,
};
pub use reader::{CodedTensor, Container, RawTensor};
pub use shards::{SHARD_KEY, join, split};
pub use unisvq::UniSvqTensor;
pub use verify::{ValueStatistics, VerifyProgress, VerifyReport};
pub use writer::{ManifestInfo, Summary, Writer};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
