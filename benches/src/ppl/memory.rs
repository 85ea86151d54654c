//! What a compressed model may take while it is scored.

use gosset_runtime::{LOGIT_SLICE, ModelConfig};

/// Elements of the row block that the runtime decodes at a time; it rounds to whole rows, so one row of the widest linear more.
const DECODED_BLOCK: usize = 1 << 19;

/// Rows of one score matrix of attention, per thread.
const SCORE_ROWS: usize = 192;

/// Parts of the bound on resident memory, in bytes: the file is added by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Activations {
    /// The largest decoded row block.
    pub(super) row_block: u64,
    /// Everything that grows with the window: hidden states, feed-forward, attention, keys and values, one slice of logits.
    pub(super) activations: u64,
}

/// The memory that scoring windows of `window` tokens needs beside the weights.
pub(super) fn activations(config: &ModelConfig, window: usize, threads: usize) -> Activations {
    const F32: usize = size_of::<f32>();
    let head_dim = config.head_dim;
    let (q_dim, kv_dim) = (config.n_heads * head_dim, config.n_kv_heads * head_dim);
    let widest = config.hidden_size.max(config.intermediate_size).max(q_dim);
    let row_block = (DECODED_BLOCK + widest) * F32;
    // Residual stream, its sum with attention, normalized, rotated, and the result of the layer.
    let hidden = 5 * window * config.hidden_size;
    // Gate, up, their product; then the product beside its rotated copy.
    let feed_forward = 3 * window * config.intermediate_size;
    // Queries and the attended values beside their rotated copy; keys and values before they enter the cache.
    let attention = window * (3 * q_dim + 2 * kv_dim);
    let scores = threads * SCORE_ROWS * (window + 2 * head_dim);
    // The cache of all layers; the hidden states of the window stay for the logits.
    let cache = 2 * config.n_layers * window * kv_dim;
    let logits = LOGIT_SLICE * (config.vocab_size + 2 * config.hidden_size);
    let at_once = hidden + feed_forward.max(attention + scores).max(logits) + cache;
    Activations { row_block: row_block as u64, activations: (at_once * F32) as u64 }
}
