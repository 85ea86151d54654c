//! Records: what is written beside every perplexity.

use gosset_entropy::Rate;
use serde::{Deserialize, Serialize};

use crate::{PasskeyResult, PplProtocol, PplResult, TaskResult, TextOverlap};

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
    /// Whether the rows are ablations of one method: it, and each of its parts left out or replaced.
    #[serde(default)]
    pub ablations: bool,
}

/// The four rates of a file, in bits per weight; always given together, because each alone misleads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Code bits (or planes of a fixed-rate code) alone, over the quantized weights.
    pub payload_bps: f64,
    /// Everything that the quantized tensors take but their row scales, over the quantized weights.
    pub stream_bps: f64,
    /// Every byte that the quantized tensors take in the file: code, lengths, tables, scales, padding, checksums, their share of
    /// the header; over the quantized weights.
    pub all_in_bps: f64,
    /// Bytes of the file x 8 over all parameters of the model.
    pub file_bps: f64,
}

impl Rates {
    /// The rates of a file of `file_bytes` for a model of `n_params` whose quantized tensors take `coded`, header share included.
    ///
    /// ```
    /// use gosset_entropy::Rate;
    /// let coded = Rate { payload_bits: 300, length_bits: 16, scale_bits: 16, header_bits: 18, n: 100, ..Rate::default() };
    /// let rates = gosset_eval::Rates::new(&coded, 100, 200);
    /// assert_eq!((rates.payload_bps, rates.stream_bps, rates.all_in_bps, rates.file_bps), (3.0, 3.34, 3.5, 4.0));
    /// ```
    pub fn new(coded: &Rate, file_bytes: u64, n_params: u64) -> Self {
        Rates {
            payload_bps: coded.payload_bps(),
            stream_bps: coded.stream_bps(),
            all_in_bps: coded.all_in_bps(),
            file_bps: file_bps(file_bytes, n_params),
        }
    }

    /// The rates of an unquantized file of `file_bytes` that stores `n_weights` of its `n_params` parameters, those that a codec
    /// would replace, in `stored_bits`. Nothing in it is coded, so the first three rates are one.
    pub fn unquantized(stored_bits: u64, n_weights: u64, file_bytes: u64, n_params: u64) -> Self {
        let stored = if n_weights == 0 { 0.0 } else { stored_bits as f64 / n_weights as f64 };
        Rates { payload_bps: stored, stream_bps: stored, all_in_bps: stored, file_bps: file_bps(file_bytes, n_params) }
    }
}

fn file_bps(file_bytes: u64, n_params: u64) -> f64 {
    if n_params == 0 { 0.0 } else { file_bytes as f64 * 8.0 / n_params as f64 }
}

/// What a row was calibrated on, how that text relates to the one it is measured on, and what it took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CalibrationNote {
    /// Name of the text: `built-in`, or the file or folder name without its path.
    pub text: String,
    /// SHA-256 of the text.
    pub text_sha256: String,
    /// Tokens that were used.
    pub tokens: u64,
    /// Tokens of a sequence.
    pub window: u64,
    /// Seed that chose the sequences.
    pub seed: u64,
    /// Whether inputs came from the quantized prefix.
    pub sequential: bool,
    /// How much tokens counted, by name; `None` if all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_weights: Option<String>,
    /// How the text relates to that of the evaluation.
    pub overlap: TextOverlap,
    /// Wall time of computing activations and second moments; what an earlier row left in a cache takes none.
    pub seconds: f64,
    /// Peak of the heap while calibrating and quantizing, what the process held before not counted.
    pub peak_heap_bytes: u64,
}

/// One row of an [`EvalReport`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportRow {
    /// Codec name; `none` for the unquantized model.
    pub codec: String,
    /// Payload rate that was asked for.
    pub target_bps: Option<f64>,
    /// All-in rate that was asked for instead, the bits being shared out among tensors.
    #[serde(default)]
    pub target_bpw: Option<f64>,
    /// Whether this is no codec of Gosset but a method that it is compared with.
    ///
    /// The rates of a baseline are those of its packed bytes, without the header, padding and checksums that a container adds; its
    /// `file_bytes` are those of tensors and side files.
    #[serde(default)]
    pub baseline: bool,
    /// Whether the method's levels are those that a part of the source was rounded to before: it then measures the source's own
    /// rounding, and is left out where methods are ordered.
    #[serde(default)]
    pub source_grid: bool,
    /// That part, of the quantized weights; `None` for codecs.
    #[serde(default)]
    pub source_grid_share: Option<f64>,
    /// Part of the quantized tensors that a fallback type stands in for, as their width does not fit the method; `None` if there is
    /// none.
    #[serde(default)]
    pub fallback_share: Option<f64>,
    /// How keys and values were stored and read back while scoring; `None` for a cache in f32.
    #[serde(default)]
    pub kv: Option<String>,
    /// Bits of the cache's sealed pages over the scalars in them, at the ends of all windows; `None` if no page was sealed.
    #[serde(default)]
    pub kv_page_bps: Option<f64>,
    /// Every bit of the cache, exact positions, open rows and slack included, over the scalars that it held, at the ends of all windows.
    #[serde(default)]
    pub kv_all_in_bps: Option<f64>,
    /// Rates of the file; for codec `none`, see [`Rates::unquantized`].
    #[serde(flatten)]
    pub rates: Rates,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Perplexity.
    pub ppl: f64,
    /// Its standard error.
    pub ppl_sigma: f64,
    /// Difference of mean NLL to the unquantized model, `ln(ppl / ppl_none)`, if that was scored in the same run.
    pub delta_ln: Option<f64>,
    /// Peak heap while scoring plus bytes of the mapped file; on a device, plus bytes of weights in its memory instead.
    pub resident_bytes: u64,
    /// Wall time of scoring.
    pub seconds: f64,
    /// Wall time of quantizing and writing the file.
    pub quantize_seconds: Option<f64>,
    /// What happened to embeddings and output head.
    pub embeddings: String,
    /// Peak heap while scoring, without what the process held before the model was loaded.
    pub peak_heap_bytes: u64,
    /// The loaded model's part of the heap when scoring began, its tokenizer given back.
    pub loaded_heap_bytes: u64,
    /// The bound that `resident_bytes` is held to when weights stay compressed: file, two decoded row blocks and
    /// activations. `None` for the unquantized model, whose weights are on the heap.
    pub resident_bound_bytes: Option<u64>,
    /// Zero-shot tasks, in the order in which they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskResult>,
    /// Pass keys found in long prompts, one entry per context; absent if none were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passkey: Vec<PasskeyResult>,
    /// The text that the method was calibrated on; `None` for methods that see weights only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationNote>,
    /// The record of the perplexity, with the cumulative list over windows.
    pub record: PplRecord,
}
