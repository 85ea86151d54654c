//! Records: what is written beside every perplexity.

use serde::{Deserialize, Serialize};

use crate::{PplProtocol, PplResult};

/// What was evaluated, on what, with what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Name of the model.
    pub model: String,
    /// SHA-256 of the text's bytes, before any joining of rows.
    pub text_sha256: String,
    /// SHA-256 of the tokenizer.
    pub tokenizer_sha256: String,
    /// SHA-256 of the token ids as little-endian 32-bit integers, without any BOS.
    pub token_ids_sha256: String,
    /// Type that activations and logits are computed in.
    pub dtype: String,
    /// Device that computed them.
    pub device: String,
}

/// One perplexity with its whole protocol: enough to repeat it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PplRecord {
    /// What was evaluated.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// How, as asked for.
    pub protocol: PplProtocol,
    /// What came out, with every setting that took effect.
    pub result: PplResult,
}

/// The machine-readable answer of an evaluation run: one row per codec and rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalReport {
    /// Name of the model.
    pub model: String,
    /// SHA-256 of the text's bytes.
    pub text_sha256: String,
    /// Name of the protocol.
    pub protocol: String,
    /// Windows scored.
    pub windows: usize,
    /// Tokens scored.
    pub tokens_scored: usize,
    /// The measurements; the unquantized model, if it was scored, is first and has codec `none`.
    pub rows: Vec<ReportRow>,
    /// The settings behind the protocol's name.
    pub settings: PplProtocol,
    /// SHA-256 of the tokenizer.
    pub tokenizer_sha256: String,
    /// SHA-256 of the token ids as little-endian 32-bit integers.
    pub token_ids_sha256: String,
    /// Tokens of the whole text.
    pub tokens: usize,
    /// Threads that computed.
    pub threads: usize,
}

/// One row of an [`EvalReport`].
///
/// The four rates are, in bits per weight: `payload_bps` code bits only, over the quantized weights; `stream_bps` everything but
/// row scales; `all_in_bps` every byte that the quantized tensors take in the file, padding, checksums and their share of the
/// header included; `file_bps` file bytes x 8 over all parameters of the model. For codec `none` they are those of the source
/// file: nothing is coded, so the first three all state the stored bits of the tensors that a codec would have replaced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportRow {
    /// Codec name; `none` for the unquantized model.
    pub codec: String,
    /// Payload rate that was asked for.
    pub target_bps: Option<f64>,
    /// Code bits per quantized weight.
    pub payload_bps: f64,
    /// Code bits, lengths, tables and the rest of the planes but for row scales, per quantized weight.
    pub stream_bps: f64,
    /// All bits of the quantized tensors in the file per quantized weight.
    pub all_in_bps: f64,
    /// File bits per parameter of the model.
    pub file_bps: f64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Perplexity.
    pub ppl: f64,
    /// Its standard error.
    pub ppl_sigma: f64,
    /// Difference of mean NLL to the unquantized model, `ln(ppl / ppl_none)`, if that was scored in the same run.
    pub delta_ln: Option<f64>,
    /// Peak heap while scoring plus bytes of the mapped file.
    pub resident_bytes: u64,
    /// Wall time of scoring.
    pub seconds: f64,
    /// Wall time of quantizing and writing the file.
    pub quantize_seconds: Option<f64>,
    /// What happened to embeddings and output head.
    pub embeddings: String,
    /// Peak heap while scoring alone.
    pub peak_heap_bytes: u64,
    /// The bound that `resident_bytes` is held to, if one applies.
    pub resident_bound_bytes: Option<u64>,
    /// The record of the perplexity, with the cumulative list over windows.
    pub record: PplRecord,
}
