//! Causal grouped-query attention over the cache.

use candle_core::Tensor;
use rayon::prelude::*;

use crate::arch::{Mat, MatMut, Threads, exp_sum_in_place, matmul};
use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::kv_cache::LayerCache;
use crate::rope::RopeTable;
use crate::tensor::{f32_slice, tensor2};

/// What one attention layer does: heads, their width, what scores are multiplied by, and how far queries see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionShape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Factor of scores.
    pub(crate) scale: f32,
    /// Positions that a query sees, its own included; `None` for all.
    pub(crate) window: Option<usize>,
}

impl AttentionShape {
    /// The shape that a configuration states for layer `index`.
    pub(crate) fn of(config: &ModelConfig, index: usize) -> Self {
        Self {
            heads: config.n_heads,
            kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            scale: 1.0 / (config.query_scalar as f32).sqrt(),
            window: config.window_of(index),
        }
    }

    /// First position that a query at `position` sees.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Rows of one score matrix: a block of query positions times the query heads that share a KV head.
///
/// 192 rows times 2048 keys in f32 are 1.5 MB, which stays in a core's second-level cache.
pub(crate) const SCORE_ROWS: usize = 192;

/// Attention of the last `n` cached positions over everything up to each of them, as far back as the window reaches.
///
/// `q` is `[n, heads * head_dim]`, not yet rotated; its keys and values are in `cache` already, whose last `n`
/// positions `rope` covers. Returns `[n, heads * head_dim]`.
///
/// Each task takes a block of queries and reads only the keys up to the block's end; the heads of a group are stacked
/// into one product, so keys are never repeated.
pub(crate) fn attend(
    q: &Tensor,
    cache: &LayerCache,
    rope: &RopeTable,
    shape: AttentionShape,
) -> Result<Tensor, RuntimeError> {
    let (n, q_row) = q.dims2()?;
    let q = f32_slice(q)?;
    let q: &[f32] = &q;
    let group = shape.heads / shape.kv_heads;
    let block = (SCORE_ROWS / group).clamp(8, 64);
    let start = cache.len() - n;
    let mut out = vec![0f32; n * q_row];
    if n == 1 {
        // One query is one block; its KV heads are the only work to share out.
        let span = group * shape.head_dim;
        out.par_chunks_mut(span).enumerate().for_each_init(Workspace::default, |workspace, (kv_head, out)| {
            workspace.attend_block(out, span, q, start, kv_head, cache, rope, shape);
        });
        return tensor2(out, n, q_row);
    }
    out.par_chunks_mut(block * q_row).zip(q.par_chunks(block * q_row)).enumerate().for_each_init(
        Workspace::default,
        |workspace, (i, (out, q))| {
            for kv_head in 0..shape.kv_heads {
                let out = &mut out[kv_head * group * shape.head_dim..];
                workspace.attend_block(out, q_row, q, start + i * block, kv_head, cache, rope, shape);
            }
        },
    );
    tensor2(out, n, q_row)
}

/// Buffers of one task.
#[derive(Default)]
struct Workspace {
    /// Rotated, scaled queries: `[positions * group, head_dim]`.
    queries: Vec<f32>,
    /// Scores, then their exponentials: `[positions * group, keys]`.
    scores: Vec<f32>,
    /// Sums of values: `[positions * group, head_dim]`.
    sums: Vec<f32>,
}

impl Workspace {
    /// Attention of one KV head's group for the positions from `first` on.
    ///
    /// `q` is rows of all heads; `out` starts at the group's first column and has rows `out_row` elements apart.
    #[expect(clippy::too_many_arguments, reason = "one call site, all of them needed")]
    fn attend_block(
        &mut self,
        out: &mut [f32],
        out_row: usize,
        q: &[f32],
        first: usize,
        kv_head: usize,
        cache: &LayerCache,
        rope: &RopeTable,
        shape: AttentionShape,
    ) {
        let AttentionShape { heads, kv_heads, head_dim, scale, .. } = shape;
        let (group, q_row, kv_row) = (heads / kv_heads, heads * head_dim, cache.row_len());
        let n = q.len() / q_row;
        // Keys before the window of the first query are not looked at.
        let from = shape.first_seen(first);
        let (rows, n_keys) = (n * group, first + n - from);
        let span = kv_head * group * head_dim..(kv_head + 1) * group * head_dim;

        self.queries.resize(rows * head_dim, 0.0);
        for (i, (q, to)) in q.chunks_exact(q_row).zip(self.queries.chunks_exact_mut(group * head_dim)).enumerate() {
            for (q, to) in q[span.clone()].chunks_exact(head_dim).zip(to.chunks_exact_mut(head_dim)) {
                rope.rotate(first + i, q, scale, to);
            }
        }

        // Growing once to the largest block avoids clearing: every score that is read was written by this product.
        self.scores.resize(self.scores.len().max(rows * n_keys), 0.0);
        let scores = &mut self.scores[..rows * n_keys];
        let at = (from - cache.first()) * kv_row + kv_head * head_dim;
        let keys = Mat::new(&cache.keys()[at..], n_keys, head_dim, kv_row);
        let values = Mat::new(&cache.values()[at..], n_keys, head_dim, kv_row);
        matmul(
            MatMut::new(scores, rows, n_keys, n_keys),
            Mat::new(&self.queries, rows, head_dim, head_dim),
            keys.t(),
            Threads::One,
        );

        // The queries are used up: their first elements hold the reciprocal sums.
        for (r, row) in scores.chunks_exact_mut(n_keys).enumerate() {
            let position = first + r / group;
            let (seen, later) = row.split_at_mut(position + 1 - from);
            let (before, seen) = seen.split_at_mut(shape.first_seen(position) - from);
            let max = max(seen);
            self.queries[r] = 1.0 / exp_sum_in_place(seen, max);
            before.fill(0.0);
            later.fill(0.0);
        }

        self.sums.resize(rows * head_dim, 0.0);
        matmul(
            MatMut::new(&mut self.sums, rows, head_dim, head_dim),
            Mat::new(scores, rows, n_keys, n_keys),
            values,
            Threads::One,
        );
        for (r, sums) in self.sums.chunks_exact(head_dim).enumerate() {
            let at = r / group * out_row + r % group * head_dim;
            let inverse = self.queries[r];
            out[at..at + head_dim].iter_mut().zip(sums).for_each(|(o, s)| *o = s * inverse);
        }
    }
}

/// Largest element; NaN elements are passed over (their exponentials stay NaN).
pub(crate) fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut chunks = x.chunks_exact(16);
    for chunk in &mut chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = if v > *lane { v } else { *lane };
        }
    }
    let tail = chunks.remainder().iter();
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m })
}
