//! What a compressed model may take while it is scored.

use gosset_runtime::{LOGIT_SLICE, ModelConfig};

/// Elements of the row block that the runtime decodes at a time; it rounds to whole rows, so one row of the widest linear more.
const DECODED_BLOCK: usize = 1 << 19;

/// Rows of one score matrix of attention, per thread.
const SCORE_ROWS: usize = 192;

/// Elements of the operands that a matrix product packs for its kernels, per thread.
const PACKED: usize = 1 << 19;

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
    // What a layer holds to its end: the residual stream, its sum with attention, and twice a normalized activation beside its
    // rotated copy; queries, keys and values.
    let layer = window * (6 * config.hidden_size + q_dim + 2 * kv_dim);
    // And in turn: gate, up and their product; or the attended values, their rotated copy and the scores of each thread.
    let feed_forward = 3 * window * config.intermediate_size;
    let attention = 2 * window * q_dim + threads * SCORE_ROWS * (window + 2 * head_dim);
    // Or, after the layers, one slice of logits.
    let logits = LOGIT_SLICE * (config.vocab_size + 2 * config.hidden_size);
    // Keys and values of one layer, which scoring shares between layers, and the rotary tables of the window.
    let cache = 2 * window * kv_dim + 2 * window * head_dim;
    let at_once = threads * PACKED + cache + layer + feed_forward.max(attention).max(logits);
    Activations { row_block: row_block as u64, activations: (at_once * F32) as u64 }
}
