//! The manifest: what a container holds, as JSON in the header's metadata.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use gosset_codec::{CodeHeader, MatrixHeader, SchemeHeader};
use gosset_unisvq::UniSvqHeader;

use crate::json::bounded_value;

/// Major format version that this crate writes and reads. A step means that older readers cannot understand newer files.
pub const FORMAT_MAJOR: u32 = 1;

/// Highest minor format version that this crate writes and knows all of. A step means additions that older readers may ignore,
/// or codings that they have no words for and refuse by naming what they need.
///
/// 1 added ANS, the entropy-coded trellis and the bit-shift trellis, 2 matrices of affine-grid codes (UniSVQ) and
/// matrices stored by columns. A file says the lowest version that has all of its codings,
/// so that one with Rice codes alone is still a file of format 1.0.
pub const FORMAT_MINOR: u32 = 2;

/// What this crate calls itself in the files it writes.
pub const GENERATOR: &str = concat!("gosset ", env!("CARGO_PKG_VERSION"));

/// Lowest program version that reads each minor version of the format.
pub const NEEDS: [&str; FORMAT_MINOR as usize + 1] = ["gosset 0.1.0", "gosset 0.1.0", "gosset 0.1.0"];

/// Version of the format of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatVersion {
    /// Steps when older readers cannot understand the file.
    pub major: u32,
    /// Steps when something is added that older readers may ignore, or refuse because they have no words for it.
    pub minor: u32,
}

impl FormatVersion {
    /// The lowest version that has words for all of `tensors`.
    pub(crate) fn of(tensors: &[TensorEntry]) -> Self {
        let minor = |t: &TensorEntry| match &t.storage {
            Storage::UniSvq { .. } => 2,
            Storage::Coded { header, .. } if header.columns.is_some() => 2,
            Storage::Coded { header, .. } if !is_rice(header) => 1,
            _ => 0,
        };
        FormatVersion { major: FORMAT_MAJOR, minor: tensors.iter().map(minor).max().unwrap_or(0) }
    }

    /// The lowest program version that reads it.
    pub(crate) fn needs(self) -> &'static str {
        NEEDS[self.minor.min(FORMAT_MINOR) as usize]
    }
}

/// Whether a matrix is under the one coding of format 1.0.
pub(crate) fn is_rice(header: &MatrixHeader) -> bool {
    matches!(&header.scheme, SchemeHeader::Lattice(lattice) if matches!(lattice.code, CodeHeader::Rice { .. }))
}

/// What the tensors of a container are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ContainerKind {
    /// A language model with its configuration.
    Model,
    /// Tensors without a known meaning.
    Tensors,
}

/// A named part of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// Name; `tensors` and `blobs` are those of version 1.
    pub name: String,
    /// Whether a reader that does not know the section must refuse the file.
    pub required: bool,
    /// Planes that belong to the section itself, stored as `@section/<name>#<plane>`. Empty for `tensors` and `blobs`, whose
    /// planes are listed with their entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planes: Vec<PlaneEntry>,
}

/// One plane with its checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneEntry {
    /// Name within its tensor, for instance `words`.
    pub name: String,
    /// XXH3-64 of the bytes, 16 lowercase hexadecimal digits.
    pub xxh3: Digest,
}

/// One tensor of a container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Name in the checkpoint.
    pub name: String,
    /// How it is stored.
    pub storage: Storage,
}

/// How one tensor is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Storage {
    /// Compressed.
    Coded {
        /// Dtype in the checkpoint.
        source_dtype: String,
        /// Everything but the planes that decoding needs.
        header: MatrixHeader,
        /// The planes.
        planes: Vec<PlaneEntry>,
    },
    /// Codes of an affine grid.
    UniSvq {
        /// Dtype in the checkpoint.
        source_dtype: String,
        /// Everything but codes and tuned scales.
        header: UniSvqHeader,
        /// The planes.
        planes: Vec<PlaneEntry>,
    },
    /// Kept bit-exact.
    Raw {
        /// Dtype: a safetensors name or a GGUF block type.
        dtype: String,
        /// Shape.
        shape: Vec<usize>,
        /// Why it was kept.
        reason: String,
        /// XXH3-64 of the bytes.
        xxh3: Digest,
    },
}

/// One side file of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobEntry {
    /// Name, for instance `config.json`.
    pub name: String,
    /// XXH3-64 of the bytes.
    pub xxh3: Digest,
}

/// Everything about a container but the bytes of its planes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format version of the file.
    pub format: FormatVersion,
    /// Program that wrote the file.
    pub generator: String,
    /// Lowest program version that reads it.
    pub needs: String,
    /// What the tensors are.
    pub kind: ContainerKind,
    /// Parts of the file.
    pub sections: Vec<Section>,
    /// The tensors, in the order they were written.
    pub tensors: Vec<TensorEntry>,
    /// The side files.
    pub blobs: Vec<BlobEntry>,
    /// Where the weights came from.
    #[serde(deserialize_with = "bounded_value")]
    pub source: Value,
    /// Every option of the run that made the file; running it again gives the same bytes.
    #[serde(deserialize_with = "bounded_value")]
    pub recipe: Value,
}

impl TensorEntry {
    /// Shape: rows and columns of a coded matrix, the stored shape of a raw tensor.
    pub fn shape(&self) -> Vec<usize> {
        match &self.storage {
            Storage::Coded { header, .. } => matrix_shape(header.rows, header.cols),
            Storage::UniSvq { header, .. } => matrix_shape(header.rows, header.cols),
            Storage::Raw { shape, .. } => shape.clone(),
        }
    }

    /// Number of weights. Saturates, because the claim of a hostile file may not fit.
    pub fn n_weights(&self) -> u64 {
        match &self.storage {
            Storage::Coded { header, .. } => header.rows.saturating_mul(header.cols),
            Storage::UniSvq { header, .. } => header.rows.saturating_mul(header.cols),
            Storage::Raw { shape, .. } => shape.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64)),
        }
    }

    /// Whether the tensor is under a codec, so that [`Container::coded`](crate::Container::coded) hands it out.
    pub fn is_coded(&self) -> bool {
        matches!(self.storage, Storage::Coded { .. })
    }

    /// Whether the tensor is a matrix of grid codes, so that [`Container::unisvq`](crate::Container::unisvq) hands it out.
    pub fn is_unisvq(&self) -> bool {
        matches!(self.storage, Storage::UniSvq { .. })
    }

    /// Whether the tensor is compressed in any way.
    pub fn is_quantized(&self) -> bool {
        self.is_coded() || self.is_unisvq()
    }

    /// Dtype in the checkpoint.
    pub fn dtype(&self) -> &str {
        match &self.storage {
            Storage::Coded { source_dtype, .. } | Storage::UniSvq { source_dtype, .. } => source_dtype,
            Storage::Raw { dtype, .. } => dtype,
        }
    }

    /// Number of planes in the file.
    pub fn n_planes(&self) -> usize {
        match &self.storage {
            Storage::Coded { planes, .. } | Storage::UniSvq { planes, .. } => planes.len(),
            Storage::Raw { .. } => 1,
        }
    }
}

/// Saturates, because the claim of a hostile file may not fit.
fn matrix_shape(rows: u64, cols: u64) -> Vec<usize> {
    [rows, cols].map(|d| usize::try_from(d).unwrap_or(usize::MAX)).to_vec()
}

/// A 64-bit checksum, written as 16 lowercase hexadecimal digits and read from nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest(pub u64);

impl Digest {
    /// The digest of `bytes`: XXH3-64 with seed 0.
    pub fn of(bytes: &[u8]) -> Self {
        Digest(xxhash_rust::xxh3::xxh3_64(bytes))
    }

    /// Reads 16 lowercase hexadecimal digits.
    ///
    /// ```
    /// use gosset_container::Digest;
    /// assert_eq!(Digest::parse("00000000000000ff"), Some(Digest(255)));
    /// assert_eq!(Digest::parse("00000000000000FF"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let lower_hex = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 16 || !text.as_bytes().iter().all(lower_hex) {
            return None;
        }
        u64::from_str_radix(text, 16).ok().map(Digest)
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<Digest> for String {
    fn from(d: Digest) -> Self {
        d.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Digest::parse(&text).ok_or_else(|| format!("checksum {text:?}: expected 16 lowercase hexadecimal digits"))
    }
}
