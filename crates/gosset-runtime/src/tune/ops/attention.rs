//! Causal attention with its rotation. Scores are made again on the way back, a block of queries at a time, instead of being kept.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{slice, tensor_like, with};
use crate::arch::{Mat, MatMut, Threads, exp_sum_in_place, matmul, matmul_add};
use crate::attention::{AttentionShape, attend, max};
use crate::kv_cache::LayerCache;
use crate::rope::RopeTable;
use crate::tensor::{f32_slice, tensor2};

/// Queries at a time on the way back.
const BLOCK: usize = 64;

/// Shape and angles of one sequence from its first position.
pub(in crate::tune) struct Attention {
    pub(in crate::tune) shape: AttentionShape,
    pub(in crate::tune) rope: RopeTable,
}

struct Attend(Arc<Attention>);

impl CustomOp3 for Attend {
    fn name(&self) -> &'static str {
        "causal-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        ql: &Layout,
        k: &CpuStorage,
        kl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Attention { shape, ref rope } = *self.0;
        let (q, k, v) = (slice(q, ql)?, slice(k, kl)?, slice(v, vl)?);
        let row = shape.heads * shape.head_dim;
        let mut cache = LayerCache::new(shape);
        cache.append(k, v, rope);
        let q = tensor2(q.to_vec(), q.len() / row, row).map_err(candle_core::Error::msg)?;
        let out = attend(&q, &cache, rope, shape).map_err(candle_core::Error::msg)?;
        let out = f32_slice(&out).map_err(candle_core::Error::msg)?.to_vec();
        Ok((CpuStorage::F32(out), ql.shape().clone()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        out: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let values = |tensor| with(tensor, <[f32]>::to_vec);
        let pass = Pass { attention: &self.0, q: values(q)?, k: values(k)?, v: values(v)? };
        let (q_grad, k_grad, v_grad) = with(out, |out| with(grad, |grad| pass.back(out, grad)))??;
        Ok((Some(tensor_like(q_grad, q)?), Some(tensor_like(k_grad, k)?), Some(tensor_like(v_grad, v)?)))
    }
}

/// Operands of the way back, `[queries, heads * head_dim]` and `[n, kv_heads * head_dim]`.
struct Pass<'a> {
    attention: &'a Attention,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// Gradients of one query head, `[queries, head_dim]` and `[n, head_dim]`.
struct HeadGrads {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Pass<'_> {
    /// Gradients of queries, keys and values: `out` is what was attended, `grad` its gradient.
    fn back(mut self, out: &[f32], grad: &[f32]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let AttentionShape { heads, kv_heads, head_dim, scale, .. } = self.attention.shape;
        let (q_row, kv_row, group) = (heads * head_dim, kv_heads * head_dim, heads / kv_heads);
        let start = self.k.len() / kv_row - self.q.len() / q_row;
        for (x, row, start, scale) in [(&mut self.q, q_row, start, scale), (&mut self.k, kv_row, 0, 1.0)] {
            turn(&self.attention.rope, x, (row, head_dim), start, scale, false);
        }
        // Each head by itself; those that share keys add up in their order.
        let all: Vec<HeadGrads> = (0..heads).into_par_iter().map(|head| self.head(head, out, grad)).collect();
        let (mut q, mut k, mut v) = (vec![0f32; grad.len()], vec![0f32; self.k.len()], vec![0f32; self.v.len()]);
        for (head, grads) in all.into_iter().enumerate() {
            let add = |to: &mut [f32], row: usize, head: usize, from: &[f32]| {
                let to = to.chunks_exact_mut(row).map(|row| &mut row[head * head_dim..(head + 1) * head_dim]);
                to.zip(from.chunks_exact(head_dim)).for_each(|(to, from)| {
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                });
            };
            add(&mut q, q_row, head, &grads.q);
            add(&mut k, kv_row, head / group, &grads.k);
            add(&mut v, kv_row, head / group, &grads.v);
        }
        for (x, row, start, scale) in [(&mut q, q_row, start, scale), (&mut k, kv_row, 0, 1.0)] {
            turn(&self.attention.rope, x, (row, head_dim), start, scale, true);
        }
        (q, k, v)
    }

    fn head(&self, head: usize, out: &[f32], grad: &[f32]) -> HeadGrads {
        let shape = self.attention.shape;
        let AttentionShape { heads, kv_heads, head_dim: d, .. } = shape;
        let (q_row, kv_row) = (heads * d, kv_heads * d);
        let (n, n_keys) = (self.q.len() / q_row, self.k.len() / kv_row);
        let (start, at, kv_at) = (n_keys - n, head * d, head / (heads / kv_heads) * d);
        let mut grads = HeadGrads { q: vec![0.0; n * d], k: vec![0.0; n_keys * d], v: vec![0.0; n_keys * d] };
        let (mut scores, mut score_grads) = (vec![0f32; BLOCK.min(n) * n_keys], vec![0f32; BLOCK.min(n) * n_keys]);
        for first in (0..n).step_by(BLOCK) {
            let rows = BLOCK.min(n - first);
            let seen = start + first + rows;
            let (p, dp) = (&mut scores[..rows * seen], &mut score_grads[..rows * seen]);
            let q = Mat::new(&self.q[first * q_row + at..], rows, d, q_row);
            let grad_rows = Mat::new(&grad[first * q_row + at..], rows, d, q_row);
            let (k, v) = (Mat::new(&self.k[kv_at..], seen, d, kv_row), Mat::new(&self.v[kv_at..], seen, d, kv_row));
            matmul(MatMut::new(p, rows, seen, seen), q, k.t(), Threads::One);
            for (r, row) in p.chunks_exact_mut(seen).enumerate() {
                let position = start + first + r;
                let (known, later) = row.split_at_mut(position + 1);
                let (before, known) = known.split_at_mut(shape.first_seen(position));
                before.fill(0.0);
                let largest = max(known);
                let inverse = 1.0 / exp_sum_in_place(known, largest);
                known.iter_mut().for_each(|p| *p *= inverse);
                later.fill(0.0);
            }
            let probabilities = Mat::new(p, rows, seen, seen);
            matmul_add(MatMut::new(&mut grads.v[..seen * d], seen, d, d), probabilities.t(), grad_rows, Threads::One);
            matmul(MatMut::new(dp, rows, seen, seen), grad_rows, v.t(), Threads::One);
            for (r, (dp, p)) in dp.chunks_exact_mut(seen).zip(p.chunks_exact(seen)).enumerate() {
                // Σ p dp over the keys is the product of what was attended and its gradient.
                let range = (first + r) * q_row + at..(first + r) * q_row + at + d;
                let mean: f32 = out[range.clone()].iter().zip(&grad[range]).map(|(o, g)| o * g).sum();
                dp.iter_mut().zip(p).for_each(|(dp, p)| *dp = p * (*dp - mean));
            }
            let score_grads = Mat::new(dp, rows, seen, seen);
            let q_grad = &mut grads.q[first * d..(first + rows) * d];
            matmul(MatMut::new(q_grad, rows, d, d), score_grads, k, Threads::One);
            matmul_add(MatMut::new(&mut grads.k[..seen * d], seen, d, d), score_grads.t(), q, Threads::One);
        }
        grads
    }
}

/// Rotates every head by its position, or back, and scales it; the first row is at `start`.
fn turn(rope: &RopeTable, x: &mut [f32], (row, head_dim): (usize, usize), start: usize, scale: f32, back: bool) {
    let half = head_dim / 2;
    x.par_chunks_mut(row).enumerate().with_min_len(16).for_each(|(i, x)| {
        let position = start + i;
        let (cos, sin) = (&rope.cos()[position * half..][..half], &rope.sin()[position * half..][..half]);
        for head in x.chunks_exact_mut(head_dim) {
            let (a, b) = head.split_at_mut(half);
            for i in 0..half {
                let sin = if back { -sin[i] } else { sin[i] };
                (a[i], b[i]) = ((a[i] * cos[i] - b[i] * sin) * scale, (b[i] * cos[i] + a[i] * sin) * scale);
            }
        }
    });
}

/// Causal attention of the last positions, `[queries, heads * head_dim]`, over all from position 0 of the table on,
/// `[n, kv_heads * head_dim]`; none of them is rotated yet.
pub(in crate::tune) fn attention(q: &Tensor, k: &Tensor, v: &Tensor, attention: &Arc<Attention>) -> Result<Tensor> {
    q.contiguous()?.apply_op3(&k.contiguous()?, &v.contiguous()?, Attend(Arc::clone(attention)))
}
