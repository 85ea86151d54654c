//! Where tensors come from: one trait over every kind of checkpoint.

use std::borrow::Cow;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::SourceError;

/// What a checkpoint is, without its tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// `gguf` or `safetensors`.
    pub kind: String,
    /// Name for people: the file or folder name, without its path.
    pub name: String,
    /// Architecture as `config.json` names it, for instance `LlamaForCausalLM`; `None` for tensors that are no known model.
    pub architecture: Option<String>,
    /// Every file that is read, for the check that an output does not overwrite an input.
    #[serde(skip)]
    pub files: Vec<PathBuf>,
    /// Bytes of all tensors as stored.
    pub total_bytes: u64,
    /// SHA-256 in lowercase hex of the headers and the index: changes with names, shapes, dtypes and layout, not with path or clock.
    pub fingerprint: String,
}

/// One tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// Hugging Face name, for instance `model.layers.0.mlp.down_proj.weight`.
    pub name: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// `F32`, `F16`, `BF16`, `F64`, integer types, or a GGUF block type such as `Q4_1`.
    pub dtype: String,
    /// Bytes as stored.
    pub n_bytes: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn n_weights(&self) -> u64 {
        self.shape.iter().map(|&d| d as u64).product()
    }

    /// Rows and columns as [`ModelSource::read_rows`] sees them: the first dimension and all others flattened.
    ///
    /// ```
    /// use gosset_quantize::TensorInfo;
    /// let t = |shape: &[usize]| TensorInfo { name: "w".into(), shape: shape.to_vec(), dtype: "F32".into(), n_bytes: 0 };
    /// assert_eq!(t(&[3, 4, 5]).rows_cols(), (3, 20));
    /// assert_eq!(t(&[7]).rows_cols(), (1, 7));
    /// assert_eq!(t(&[]).rows_cols(), (1, 1));
    /// ```
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.shape.as_slice() {
            [] => (1, 1),
            [n] => (1, *n),
            [rows, rest @ ..] => (*rows, rest.iter().product()),
        }
    }
}

/// A checkpoint that was opened and whose layout was checked. Reading its weights may still fail with an I/O error.
pub trait ModelSource: Send + Sync {
    /// What this checkpoint is.
    fn info(&self) -> &SourceInfo;

    /// The folder that is this checkpoint, if it is one; outputs are not written into it.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Every tensor, in a fixed order.
    fn tensors(&self) -> &[TensorInfo];

    /// Writes `rows` of tensor `index` to `out` as f32, row-major.
    ///
    /// The first dimension counts rows, all others are flattened; tensors of one or no dimension are one row. `out` has
    /// `rows.len() * cols` elements. Tensors without a float meaning give [`SourceError::NotFloat`].
    fn read_rows(&self, index: usize, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError>;

    /// All bytes of tensor `index` as stored, little-endian; rows are in Hugging Face order.
    fn raw_bytes(&self, index: usize) -> Result<Cow<'_, [u8]>, SourceError>;

    /// Copies the bytes of tensor `index` to `out`. Sources that can do so in pieces override this.
    fn copy_raw(&self, index: usize, out: &mut dyn Write) -> Result<(), SourceError> {
        out.write_all(&self.raw_bytes(index)?).map_err(|source| SourceError::Sink { source })
    }

    /// Asks for tensor `index` to be read ahead, without waiting. Nothing depends on it but time.
    fn read_ahead(&self, _index: usize) {}

    /// Says that tensor `index` will not be read again, so that what the system keeps of it can go.
    fn release(&self, _index: usize) {}

    /// The side file `name` (`config.json`, `tokenizer.json`, …), `None` if there is none.
    fn blob(&self, name: &str) -> Option<&[u8]>;

    /// Every side file with its name, in a fixed order.
    fn blobs(&self) -> Vec<(&str, &[u8])>;
}
