//! What can go wrong: [`SourceError`] while reading a checkpoint, [`QuantizeError`] in everything after.

use std::io;
use std::path::PathBuf;

use gosset_codec::CodecError;
use gosset_container::ContainerError;
use gosset_container::safetensors_header::HeaderProblem;
use gosset_unisvq::UniSvqError;
use thiserror::Error;

use crate::part::Part;

/// Why a checkpoint cannot be read.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum SourceError {
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
    /// Nothing at this path.
    #[error("{}: no such file or folder", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// A folder without any file.
    #[error("{}: the folder is empty, expected a checkpoint", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// Weights are there, but as pickle files only.
    #[error(
        "{}: found {} but no safetensors file; pickle files can run code and are not loaded: convert the weights to safetensors first",
        path.display(), files.join(", ")
    )]
    OnlyPickle {
        /// The folder.
        path: PathBuf,
        /// The pickle files.
        files: Vec<String>,
    },
    /// Files are there, none of which holds weights.
    #[error("{}: no weights (*.safetensors) in this folder; found {}", path.display(), found.join(", "))]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// Some of the files that are there.
        found: Vec<String>,
    },
    /// GGUF files are there, which this reader does not open.
    #[error("{}: found {}, no safetensors file; name the GGUF file instead of its folder", path.display(), files.join(", "))]
    OnlyGguf {
        /// The folder.
        path: PathBuf,
        /// The GGUF files.
        files: Vec<String>,
    },
    /// A tokenizer is there, but no weights.
    #[error("{}: a tokenizer but no weights (*.safetensors) in this folder; found {}", path.display(), found.join(", "))]
    OnlyTokenizer {
        /// The folder.
        path: PathBuf,
        /// Some of the files that are there.
        found: Vec<String>,
    },
    /// Several weight files and nothing that says how they belong together.
    #[error(
        "{}: {} safetensors files ({}) and no model.safetensors.index.json that joins them; name one file",
        path.display(), files.len(), files.join(", ")
    )]
    SeveralFiles {
        /// The folder.
        path: PathBuf,
        /// The files.
        files: Vec<String>,
    },
    /// The index of a sharded checkpoint is malformed.
    #[error("{}: bad index: {reason}", path.display())]
    BadIndex {
        /// The index file.
        path: PathBuf,
        /// Expected and found.
        reason: String,
    },
    /// The index names a file that is not a plain name inside the folder.
    #[error("{}: shard name {name:?} is refused: expected a plain file name inside the folder", path.display())]
    UnsafeShardName {
        /// The index file.
        path: PathBuf,
        /// The name as written.
        name: String,
    },
    /// A symbolic link leads nowhere.
    #[error("{}: broken link, its target {} does not exist", path.display(), target.display())]
    BrokenLink {
        /// The link.
        path: PathBuf,
        /// What it points to.
        target: PathBuf,
    },
    /// Shards that the index names are absent.
    #[error(
        "{}: {} shard file(s) missing: {}; {hint}",
        path.display(), missing.len(),
        missing.iter().map(|(f, n)| format!("{f} ({n} tensors)")).collect::<Vec<_>>().join(", ")
    )]
    MissingShards {
        /// The index file.
        path: PathBuf,
        /// Each absent file with the number of tensors the index places in it.
        missing: Vec<(String, usize)>,
        /// Whether the tensors are elsewhere.
        hint: String,
    },
    /// A shard lacks a tensor that the index places in it.
    #[error("{}: tensor {name:?} is not in this file, where the index places it", path.display())]
    MissingTensor {
        /// The shard.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// One name in two shards.
    #[error("tensor {name:?} is in both {} and {}", first.display(), second.display())]
    DuplicateTensor {
        /// The tensor.
        name: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A safetensors header breaks a rule, or the file is of another kind.
    #[error("{}: {problem}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The rule.
        problem: Box<HeaderProblem>,
    },
    /// A side file is not the JSON it should be.
    #[error("{}: {reason}", path.display())]
    BadConfig {
        /// The file.
        path: PathBuf,
        /// Expected and found.
        reason: String,
    },
    /// The weights are quantized already.
    #[error("{name}: the input is already quantized ({format}); full-precision weights are needed")]
    AlreadyQuantized {
        /// The checkpoint.
        name: String,
        /// Which format, with dtype and tensor count.
        format: String,
    },
    /// A tensor has no reading as floats.
    #[error("tensor {name:?}: dtype {dtype} cannot be read as floats")]
    NotFloat {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: String,
    },
    /// A dtype this reader does not know.
    #[error("tensor {name:?}: unsupported dtype {dtype}, expected one of {supported}")]
    UnsupportedDtype {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: String,
        /// What is supported.
        supported: String,
    },
    /// Rows outside the tensor or a buffer of the wrong size.
    #[error("tensor {name:?}: {what}: expected {expected}, found {found}")]
    Range {
        /// The tensor.
        name: String,
        /// What was asked.
        what: &'static str,
        /// The limit or size that holds.
        expected: u64,
        /// What was given.
        found: u64,
    },
    /// The receiver of copied bytes failed.
    #[error("writing copied bytes: {source}")]
    Sink {
        /// The receiver's reason.
        source: io::Error,
    },
    /// A reader outside this crate failed; the message is complete.
    #[error("{message}")]
    Other {
        /// What, expected, found and where.
        message: String,
        /// The cause, if it is an error value.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl SourceError {
    /// Wraps the error of a reader outside this crate.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source = error.into();
        SourceError::Other { message: source.to_string(), source: Some(source) }
    }
}

/// Why a checkpoint was not quantized or a container not expanded.
#[non_exhaustive]
#[derive(Debug, Error)]
pub enum QuantizeError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The container cannot be written or read.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// The codec refuses the options.
    #[error("{0}")]
    Options(#[source] CodecError),
    /// The codec refuses one tensor.
    #[error("tensor {tensor:?}: {source}")]
    Codec {
        /// The tensor.
        tensor: String,
        /// The codec's reason.
        source: CodecError,
    },
    /// The affine grid refuses one tensor, or what is known of its inputs.
    #[error("tensor {tensor:?}: {source}")]
    UniSvq {
        /// The tensor.
        tensor: String,
        /// The reason.
        source: UniSvqError,
    },
    /// No method has that name.
    #[error(
        "unknown method `{name}`, expected one of {codecs}; {with_feedback} with +feedback; or unisvq with its variants"
    )]
    UnknownMethod {
        /// The name found.
        name: String,
        /// The codecs there are.
        codecs: String,
        /// Those of them that have a form with feedback.
        with_feedback: String,
    },
    /// The method cannot be asked for that rate.
    #[error("{method} cannot reach {asked} bits per weight, expected {expected}")]
    MethodRate {
        /// The method.
        method: String,
        /// The rate found.
        asked: f64,
        /// What it can be asked for.
        expected: String,
    },
    /// The method needs the activations of the model and got none.
    #[error(
        "{method} needs the inputs of the layers: expected activations from a calibration text, found none; calibrate, or choose a method without calibration such as {instead}"
    )]
    NeedsCalibration {
        /// The method.
        method: String,
        /// One that does without.
        instead: String,
    },
    /// The options ask for another calibration than the one at hand.
    #[error("calibration: expected {expected}, found {found}")]
    CalibrationDiffers {
        /// What the options say.
        expected: String,
        /// What the activations say.
        found: String,
    },
    /// The activations of the model could not be computed; the message is complete.
    #[error("{message}")]
    Activations {
        /// What, expected, found and where.
        message: String,
        /// The cause, if it is an error value.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// Another run works on the same output.
    #[error("{}: another run is working here ({holder}); wait for it, or choose another output", path.display())]
    Locked {
        /// The work folder.
        path: PathBuf,
        /// What the other one says about itself.
        holder: String,
    },
    /// The unfinished run that is there is another one.
    #[error("{}: holds an unfinished run of another job: {}", path.display(), differences.join("; "))]
    OtherJob {
        /// The work folder.
        path: PathBuf,
        /// What differs: the thing, what the folder says, what was asked for.
        differences: Vec<String>,
    },
    /// A part that is not of the form that it should have.
    #[error("part {text:?}: expected i/n with i from 0 to n - 1, such as 0/3")]
    PartSyntax {
        /// The text found.
        text: String,
    },
    /// The options leave nothing that a part could do by itself.
    #[error("part {part}: {reason}")]
    PartImpossible {
        /// The part.
        part: Part,
        /// Why, and what to ask for instead.
        reason: &'static str,
    },
    /// A file that is no part of a run.
    #[error("{}: not a part: {reason}", path.display())]
    NotAPart {
        /// The file.
        path: PathBuf,
        /// Expected and found.
        reason: String,
    },
    /// Parts that are not all of a run.
    #[error("parts: {reason}")]
    PartsIncomplete {
        /// What is missing, or there twice.
        reason: String,
    },
    /// Parts of different runs.
    #[error("{} and {} are of different runs: {}", first.display(), second.display(), differences.join("; "))]
    PartsDiffer {
        /// One part.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// What differs: the thing, what the first says, what the second says.
        differences: Vec<String>,
    },
    /// The work folder is not as a run leaves it.
    #[error("{}: {reason}", path.display())]
    WorkFolder {
        /// The file or folder.
        path: PathBuf,
        /// Expected and found.
        reason: String,
    },
    /// The observer asked to stop; what is finished was kept.
    #[error("stopped after {done} of {total} tensors, which are kept in {}", work.display())]
    Paused {
        /// Tensors that were finished.
        done: usize,
        /// Tensors planned.
        total: usize,
        /// The work folder.
        work: PathBuf,
    },
    /// The recipe of a container cannot be read as options.
    #[error("recipe: {reason}")]
    Recipe {
        /// Expected and found.
        reason: String,
    },
    /// An override is not of the form that it should have.
    #[error("override {text:?}: expected PATTERN=RATE or PATTERN=keep")]
    OverrideSyntax {
        /// The text found.
        text: String,
    },
    /// An override names no tensor.
    #[error("override {pattern:?} matches none of the {n_tensors} tensors")]
    OverrideUnmatched {
        /// The pattern.
        pattern: String,
        /// How many tensors there are.
        n_tensors: usize,
    },
    /// An override asks for what a tensor cannot take.
    #[error("override {pattern:?}: tensor {tensor:?} cannot be quantized: {reason}")]
    OverrideImpossible {
        /// The pattern.
        pattern: String,
        /// The tensor.
        tensor: String,
        /// Why.
        reason: String,
    },
    /// A weight names no tensor, or is none.
    #[error("weight {weight} for {pattern:?}: {reason}")]
    Weight {
        /// The pattern.
        pattern: String,
        /// The weight.
        weight: f64,
        /// Expected and found.
        reason: String,
    },
    /// No choice of rates meets the target.
    #[error("{codec} cannot make {asked} {unit} of this model, expected from {floor} to {ceiling}")]
    TargetRange {
        /// Name of the codec.
        codec: String,
        /// The target.
        asked: f64,
        /// What the lowest rates give.
        floor: f64,
        /// What the highest rates give.
        ceiling: f64,
        /// What is counted.
        unit: &'static str,
    },
    /// The finished planes take more than was asked for.
    #[error(
        "asked for {asked} bytes, the planes and the header take {found}: rows that have to be stored exactly, or values that no rate fits; ask for more"
    )]
    TargetMissed {
        /// Bytes that were to be kept to.
        asked: u64,
        /// Bytes that it would be.
        found: u64,
    },
    /// Strict mode, and some tensors would stay wider than asked.
    #[error(
        "strict: {} tensor(s) cannot be quantized: {}",
        fallbacks.len(),
        fallbacks.iter().map(|(n, r)| format!("{n} ({r})")).collect::<Vec<_>>().join(", ")
    )]
    Strict {
        /// Each tensor with its reason.
        fallbacks: Vec<(String, String)>,
    },
    /// NaN or infinite weights.
    #[error(
        "tensor {tensor:?}: non-finite weight {value} at row {row}, column {column} ({n_nan} NaN and {n_inf} infinite in this tensor, {n_tensors} tensor(s) affected)"
    )]
    NonFinite {
        /// First tensor that has one.
        tensor: String,
        /// Row of the first one.
        row: usize,
        /// Its column.
        column: usize,
        /// Its value.
        value: f32,
        /// NaN count of the tensor.
        n_nan: u64,
        /// Count of infinities of the tensor.
        n_inf: u64,
        /// Tensors with any.
        n_tensors: usize,
    },
    /// Finite weights in F64 that are infinite as f32.
    #[error(
        "tensor {tensor:?}: weight {value:e} at row {row}, column {column} does not fit f32 ({count} such weight(s) in this tensor, {n_tensors} tensor(s) affected)"
    )]
    BeyondF32 {
        /// First tensor that has one.
        tensor: String,
        /// Row of the first one.
        row: usize,
        /// Its column.
        column: usize,
        /// Its value.
        value: f64,
        /// How many the tensor has.
        count: u64,
        /// Tensors with any, or with NaN or infinity.
        n_tensors: usize,
    },
    /// Finite weights that are infinite in the dtype they are expanded to.
    #[error("tensor {tensor:?}: {count} weight(s) do not fit {dtype}, the largest is {largest:e}; expand to {instead}")]
    DtypeOverflow {
        /// The tensor.
        tensor: String,
        /// Dtype asked for.
        dtype: &'static str,
        /// How many do not fit.
        count: u64,
        /// Largest magnitude.
        largest: f32,
        /// Dtypes that hold them.
        instead: &'static str,
    },
    /// The tie flag and the tensors contradict each other.
    #[error(
        "config.json says the output head is not tied (tie_word_embeddings = false) but there is no lm_head.weight; pass a tie option to decide"
    )]
    TieUndecided,
    /// The output would replace or sit inside the input.
    #[error("{}: the output would overwrite or sit inside the input {}", out.display(), input.display())]
    OutputIsInput {
        /// The output.
        out: PathBuf,
        /// The input it hits.
        input: PathBuf,
    },
    /// The output folder is in use.
    #[error("{}: exists already, expected a new or empty folder", path.display())]
    OutputExists {
        /// The folder.
        path: PathBuf,
    },
    /// Nothing to do.
    #[error("no tensor of {name} can be quantized: {reason}")]
    NothingToQuantize {
        /// The checkpoint.
        name: String,
        /// What was there instead.
        reason: String,
    },
    /// A raw tensor of a block type needs a dequantizer that was not given.
    #[error("tensor {tensor:?}: dtype {dtype} needs a dequantizer: {reason}")]
    RawDequantize {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: String,
        /// Why it failed.
        reason: String,
    },
    /// A file or folder could not be written.
    #[error("{}: {what}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The observer asked to stop.
    #[error("cancelled after {done} of {total} tensors; nothing was written")]
    Cancelled {
        /// Tensors that were finished.
        done: usize,
        /// Tensors planned.
        total: usize,
    },
}

impl QuantizeError {
    /// Wraps the error of a runtime that computes activations.
    pub fn activations(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source = error.into();
        QuantizeError::Activations { message: source.to_string(), source: Some(source) }
    }
}
