//! The one error type of this crate.

use std::path::PathBuf;

/// What can go wrong between a checkpoint on disk and generated text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The operating system refused to read a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A field of `config.json` is absent, of the wrong type or out of range.
    #[error("config.json: {field}: expected {expected}, found {found}")]
    Config {
        /// Name of the field.
        field: String,
        /// What would have been accepted.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The architecture is none of those implemented here.
    #[error(
        "architecture {found} cannot be run; those that can: {supported}. Weights in safetensors can be quantized, inspected and \
         dequantized whatever the architecture is"
    )]
    UnsupportedArchitecture {
        /// As the model names itself.
        found: String,
        /// Names that work.
        supported: String,
    },
    /// A tensor the architecture needs is not in the checkpoint.
    #[error("tensor {name} is missing, expected shape {expected:?}")]
    MissingTensor {
        /// Hugging Face name.
        name: String,
        /// Shape that `config.json` implies.
        expected: Vec<usize>,
    },
    /// A tensor's shape contradicts `config.json`.
    #[error("tensor {name}: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// Hugging Face name.
        name: String,
        /// Shape that `config.json` implies.
        expected: Vec<usize>,
        /// Shape in the checkpoint.
        found: Vec<usize>,
    },
    /// A tensor is stored in a type this crate cannot read.
    #[error("tensor {name}: dtype {dtype} is not supported; supported: {supported}")]
    UnsupportedDtype {
        /// Name of the tensor.
        name: String,
        /// As stored.
        dtype: String,
        /// Types that work.
        supported: String,
    },
    /// A part that the asked operation needs is not in the file or folder.
    #[error("{part} is missing: {detail}")]
    MissingPart {
        /// For instance `tokenizer.json`.
        part: String,
        /// Where it was looked for and what needs it.
        detail: String,
    },
    /// The two settings about sharing the embedding and the output head contradict the tensors.
    #[error("{0}")]
    Tie(String),
    /// A computed number is not finite.
    #[error("non-finite value at position {position}: first seen in {layer}")]
    NonFinite {
        /// First bad layer, for instance `model.layers.1`.
        layer: String,
        /// Position of the first bad token within the scored sequence.
        position: usize,
    },
    /// An activation is not finite although the weights are: it overflowed while the calibration text went through the model.
    #[error("calibration: {value} in {place} at token {token}, channel {channel}, expected finite activations")]
    NonFiniteActivation {
        /// Where, for instance `the input of model.layers.1.mlp.down_proj`: the first such place.
        place: String,
        /// Calibration token, counted over all sequences.
        token: u64,
        /// Channel.
        channel: u64,
        /// The value.
        value: f32,
    },
    /// A calibration text cannot be used.
    #[error("{}: {detail}", path.display())]
    CalibrationText {
        /// File or folder.
        path: PathBuf,
        /// Expected and found.
        detail: String,
    },
    /// A file of second moments is damaged.
    #[error("{}: {detail}", path.display())]
    HessianCache {
        /// The file.
        path: PathBuf,
        /// Expected and found.
        detail: String,
    },
    /// Second moments are of another model, text or choice of tokens.
    #[error("{}: is of another calibration: {what}: expected {expected}, found {found}; choose another folder", path.display())]
    HessianCacheDiffers {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// As asked for.
        expected: String,
        /// As the file states.
        found: String,
    },
    /// Second moments could not be accumulated.
    #[error("calibration: {place}: {source}")]
    Moments {
        /// Where.
        place: String,
        /// Why.
        source: gosset_unisvq::UniSvqError,
    },
    /// More positions were asked for than the model was made for.
    #[error("context of {limit} tokens: {asked} were asked for ({detail})")]
    ContextOverflow {
        /// Positions the call would need.
        asked: usize,
        /// `max_position_embeddings`.
        limit: usize,
        /// How `asked` adds up.
        detail: String,
    },
    /// A token id beyond the embedding table.
    #[error("token {id} at position {position}: expected an id below {vocab_size}")]
    Token {
        /// The id.
        id: u32,
        /// Its index in the given tokens.
        position: usize,
        /// Rows of the embedding table.
        vocab_size: usize,
    },
    /// An option of a call is out of its range.
    #[error("{option}: expected {expected}, found {found}")]
    Options {
        /// Name of the option.
        option: String,
        /// Accepted range.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A GGUF file is damaged or uses something unknown.
    #[error("{}: {detail}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Expected, found and where.
        detail: String,
    },
    /// A GGUF file written for a big-endian machine.
    #[error("{}: big-endian GGUF (version field {version:#010x}): only little-endian files are read; convert it", path.display())]
    BigEndianGguf {
        /// The file.
        path: PathBuf,
        /// The version field as read.
        version: u32,
    },
    /// A tensor of a GGUF file has a block type that this crate cannot read.
    #[error("{}: tensor {tensor}: block type {id} is unknown; supported: {supported}", path.display())]
    GgufBlockType {
        /// The file.
        path: PathBuf,
        /// Name in the file.
        tensor: String,
        /// Type id in the file.
        id: u32,
        /// Names that work.
        supported: String,
    },
    /// A GGUF file ends before the data its header promises.
    #[error("{}: {what} ends at byte {expected}, found a file of {found} bytes: the download is probably incomplete", path.display())]
    TruncatedGguf {
        /// The file.
        path: PathBuf,
        /// Header, or the first tensor that lies beyond the end.
        what: String,
        /// Bytes the file would need at least.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// Parts of a split GGUF model are not there.
    #[error("{}: {} of {n_parts} parts missing: {}", path.display(), missing.len(), missing.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "))]
    MissingParts {
        /// The part that was opened.
        path: PathBuf,
        /// How many parts there should be.
        n_parts: usize,
        /// Where the missing ones would be.
        missing: Vec<PathBuf>,
    },
    /// The path holds something that is no checkpoint.
    #[error("{}: {found}; expected a GGUF file, a safetensors file or a Hugging Face folder", path.display())]
    NotACheckpoint {
        /// File or folder.
        path: PathBuf,
        /// What it was recognised as.
        found: String,
    },
    /// A safetensors checkpoint could not be opened.
    #[error(transparent)]
    Source(#[from] gosset_quantize::SourceError),
    /// Raw bytes of a tensor do not fit its type and shape.
    #[error("raw tensor of type {dtype}: {detail}")]
    Raw {
        /// Type as stored.
        dtype: String,
        /// Expected and found.
        detail: String,
    },
    /// A tokenizer could not be built or used.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A chat template could not be compiled or rendered.
    #[error("chat template: {0}")]
    Template(String),
    /// A model name led to no file.
    #[error("model {name}: not found; tried {tried}")]
    UnknownModel {
        /// As given.
        name: String,
        /// Every place that was looked at.
        tried: String,
    },
    /// An operation does not exist for tensors of this type.
    #[error("{op}: dtype {dtype} is not supported; supported: {supported}")]
    UnsupportedOp {
        /// Name of the operation.
        op: &'static str,
        /// Type of the tensor.
        dtype: String,
        /// Types that work.
        supported: String,
    },
    /// A tensor is on another device than the weights.
    #[error("{op}: expected {expected}, found {found}; move the tensor, or the weights with Linear::to_device")]
    TensorDevice {
        /// Name of the operation.
        op: &'static str,
        /// Where the weights are.
        expected: String,
        /// Where the tensor is.
        found: String,
    },
    /// The device that was asked for cannot be had.
    #[error(transparent)]
    Device(#[from] crate::DeviceError),
    /// A compressed cache was asked for on a device that has no kernels for it.
    #[error(
        "this compressed cache is for the CPU alone, and the model is on {device}: {reason}; choose the device cpu, a cache such as \
         shift-10@3,sinks=4, or leave the cache in its usual form"
    )]
    KvDevice {
        /// Where the model is.
        device: String,
        /// What was expected of the cache, and what was found.
        reason: String,
    },
    /// The model needs something that devices have no kernels for.
    #[error("{class} runs on the CPU alone: {reason}; choose the device cpu")]
    DeviceModel {
        /// Class of the architecture.
        class: &'static str,
        /// What is missing.
        reason: String,
    },
    /// A compressed cache, or what it is made of.
    #[error(transparent)]
    Kv(#[from] gosset_kv::KvError),
    /// The device has no room for the model.
    #[error(
        "device memory: {} for weights, {} for keys and values of {positions} positions, {} of workspace; {} free: lower the context, choose fewer bits, or use the CPU",
        mib(*weights), mib(*cache), mib(*workspace), mib(*free)
    )]
    DeviceMemory {
        /// Bytes of weights.
        weights: u64,
        /// Bytes of keys and values.
        cache: u64,
        /// Positions that they are for.
        positions: usize,
        /// Bytes of buffers.
        workspace: u64,
        /// Bytes free, within the limit that was set.
        free: u64,
    },
    /// The CUDA device cannot do what was asked.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Cuda(#[from] gosset_cuda::CudaError),
    /// The caller asked to stop; nothing is wrong.
    #[error("cancelled")]
    Cancelled,
    /// A container could not be opened or a part of it is damaged.
    #[error(transparent)]
    Container(#[from] gosset_container::ContainerError),
    /// A matrix of the affine grid.
    #[error(transparent)]
    Grid(#[from] gosset_unisvq::UniSvqError),
    /// A coded matrix could not be decoded.
    #[error(transparent)]
    Codec(#[from] gosset_codec::CodecError),
    /// A tensor operation failed; a defect of this crate, since shapes are checked before.
    #[error("tensor operation: {0}")]
    Candle(#[from] candle_core::Error),
}

impl RuntimeError {
    /// [`RuntimeError::Raw`] for a type name.
    pub(crate) fn raw(dtype: &str, detail: String) -> Self {
        RuntimeError::Raw { dtype: dtype.to_owned(), detail }
    }

    /// [`RuntimeError::Gguf`] for a path.
    pub(crate) fn gguf(path: &std::path::Path, detail: impl Into<String>) -> Self {
        RuntimeError::Gguf { path: path.to_owned(), detail: detail.into() }
    }

    /// [`RuntimeError::Io`] for a path, for use with `map_err`.
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| RuntimeError::Io { path: path.to_owned(), source }
    }

    /// [`RuntimeError::Config`] from anything printable.
    pub(crate) fn config(field: &str, expected: impl Into<String>, found: impl std::fmt::Display) -> Self {
        RuntimeError::Config { field: field.to_owned(), expected: expected.into(), found: found.to_string() }
    }
}

/// A number of bytes in words.
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
