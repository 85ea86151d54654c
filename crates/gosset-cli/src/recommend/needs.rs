//! What running a model takes besides its weights.

use gosset_runtime::{LOGIT_SLICE, ModelConfig};

/// Positions that generation computes at once while it reads a prompt.
const PREFILL: usize = 512;
/// Rows of one score matrix of attention, per thread.
const SCORE_ROWS: usize = 192;
/// Elements of the row block that the runtime decodes at a time; it rounds to whole rows, so one row of the widest linear more.
const DECODED_BLOCK: usize = 1 << 19;
/// Elements of the operands that a matrix product packs for its kernels, per thread.
const PACKED: usize = 1 << 19;
/// Bytes of the program, the tokenizer and its caches, generously.
const PROGRAM: u64 = 48_000_000;
/// Keys and values are stored as f32.
const F32: usize = size_of::<f32>();

/// Bytes besides the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(super) struct Needs {
    /// Keys and values of the whole context.
    pub(super) kv_bytes: u64,
    /// What the cache may have reserved beyond them: it grows by doubling.
    pub(super) kv_growth_bytes: u64,
    /// Hidden states, attention, logits and decoded weights while a block of the prompt is read.
    pub(super) scratch_bytes: u64,
    /// The program and its tokenizer.
    pub(super) program_bytes: u64,
}

impl Needs {
    /// Of running `config` with a context of `context` positions on `threads` threads.
    pub(super) fn new(config: &ModelConfig, context: usize, threads: usize) -> Self {
        let kv_bytes = kv_bytes(config, context);
        Needs {
            kv_bytes,
            kv_growth_bytes: kv_bytes,
            scratch_bytes: scratch_bytes(config, context, threads),
            program_bytes: PROGRAM,
        }
    }

    /// All of them.
    pub(super) fn total(&self) -> u64 {
        self.kv_bytes + self.kv_growth_bytes + self.scratch_bytes + self.program_bytes
    }
}

/// Bytes of keys and values, 2 · layers · KV heads · head width · context · 4.
fn kv_bytes(config: &ModelConfig, context: usize) -> u64 {
    let row = 2 * config.n_layers as u64 * config.n_kv_heads as u64 * config.head_dim as u64;
    row.saturating_mul(context as u64).saturating_mul(F32 as u64)
}

/// The formula with its numbers.
pub(super) fn kv_formula(config: &ModelConfig, context: usize) -> String {
    let (layers, heads, width) = (config.n_layers, config.n_kv_heads, config.head_dim);
    format!("2 (K and V) x {layers} layers x {heads} heads x {width} wide x {context} positions x {F32} bytes (f32)")
}

/// The largest context of which keys and values take no more than `bytes`, with the growth of the cache.
pub(super) fn context_of(config: &ModelConfig, bytes: u64) -> usize {
    (bytes / (2 * kv_bytes(config, 1)).max(1)) as usize
}

fn scratch_bytes(config: &ModelConfig, context: usize, threads: usize) -> u64 {
    let head_dim = config.head_dim;
    let window = context.min(PREFILL);
    let (q_dim, kv_dim) = (config.n_heads * head_dim, config.n_kv_heads * head_dim);
    let widest = config.hidden_size.max(config.intermediate_size).max(q_dim);
    let row_block = DECODED_BLOCK + widest;
    // The residual stream, its sum with attention, and twice a normalized activation beside its rotated copy; queries, keys, values.
    let layer = window * (6 * config.hidden_size + q_dim + 2 * kv_dim);
    // In turn: gate, up and their product; or attended values, their rotated copy and the scores of each thread; or logits.
    let feed_forward = 3 * window * config.intermediate_size;
    let attention = 2 * window * q_dim + threads * SCORE_ROWS * (context + 2 * head_dim);
    let logits = LOGIT_SLICE * (config.vocab_size + 2 * config.hidden_size);
    let rotary = 2 * context * head_dim;
    let elements = row_block + threads * PACKED + rotary + layer + feed_forward.max(attention).max(logits);
    (elements * F32) as u64
}
