//! Differentiable operations that candle does not have: frames, products with constant matrices, causal attention.
//!
//! Each is an operation of its own so that the graph keeps nothing but inputs and outputs, and so that no gradient is taken with
//! respect to what stays constant: candle's product would take that of the codes as well, which doubles the work.

use candle_core::{CpuStorage, CustomOp1, CustomOp3, D, Device, Layout, Result, Shape, Tensor};
use gosset_unisvq::Frame;
use rayon::prelude::*;
use std::sync::Arc;

fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let values = storage.as_slice::<f32>()?;
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&values[start..end]),
        None => Err(candle_core::Error::RequiresContiguous { op: "tune" }),
    }
}

fn values(tensor: &Tensor) -> Result<CpuStorage> {
    Ok(CpuStorage::F32(tensor.flatten_all()?.to_vec1::<f32>()?))
}

/// `Uᵀ x` of every row, or `U x`: each is the adjoint of the other.
struct Rotate {
    frame: Arc<Frame>,
    inverse: bool,
}

impl CustomOp1 for Rotate {
    fn name(&self) -> &'static str {
        "rotate"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut out = slice(storage, layout)?.to_vec();
        let apply = if self.inverse { Frame::unrotate } else { Frame::rotate };
        out.par_chunks_mut(self.frame.width()).with_min_len(16).for_each(|row| apply(&self.frame, row));
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(turned(grad, &self.frame, !self.inverse)?))
    }
}

fn turned(x: &Tensor, frame: &Arc<Frame>, inverse: bool) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Rotate { frame: Arc::clone(frame), inverse })
}

/// `Uᵀ x` of every row of `[tokens, width]`.
pub(super) fn rotate(x: &Tensor, frame: &Arc<Frame>) -> Result<Tensor> {
    if frame.is_identity() { Ok(x.clone()) } else { turned(x, frame, false) }
}

/// `U x` of every row of `[tokens, width]`.
pub(super) fn unrotate(x: &Tensor, frame: &Arc<Frame>) -> Result<Tensor> {
    if frame.is_identity() { Ok(x.clone()) } else { turned(x, frame, true) }
}

/// x Wᵀ for a constant W, or x W.
struct ConstantProduct {
    /// `[rows, cols]`.
    weight: Tensor,
    transposed: bool,
}

impl CustomOp1 for ConstantProduct {
    fn name(&self) -> &'static str {
        "constant-product"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = Tensor::from_slice(slice(storage, layout)?, layout.shape(), &Device::Cpu)?;
        let y = x.matmul(&if self.transposed { self.weight.t()? } else { self.weight.clone() })?;
        Ok((values(&y)?, y.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let adjoint = Self { weight: self.weight.clone(), transposed: !self.transposed };
        grad.contiguous()?.apply_op1(adjoint).map(Some)
    }
}

/// x Wᵀ: `[tokens, cols]` by a constant `[rows, cols]`.
pub(super) fn constant_product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(ConstantProduct { weight: weight.clone(), transposed: true })
}

/// Causal attention of rotated queries `[heads, n, d]`, rotated keys and values `[kv_heads, n, d]`. Scores are made again on the way
/// back, one head at a time, instead of being kept: they would be by far the largest part of the graph.
struct Attention;

/// Causal softmax of scaled scores of one head, `[n, n]`.
fn probabilities(q: &Tensor, k: &Tensor) -> Result<Tensor> {
    let (n, d) = q.dims2()?;
    let scale = 1.0 / (d as f32).sqrt();
    let mut scores = q.matmul(&k.t()?)?.flatten_all()?.to_vec1::<f32>()?;
    scores.par_chunks_mut(n).enumerate().for_each(|(row, scores)| {
        let (seen, hidden) = scores.split_at_mut(row + 1);
        hidden.fill(0.0);
        let max = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0f32;
        for v in seen.iter_mut() {
            *v = ((*v - max) * scale).exp();
            sum += *v;
        }
        seen.iter_mut().for_each(|v| *v /= sum);
    });
    Tensor::from_vec(scores, (n, n), &Device::Cpu)
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "causal-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let tensor = |s: &CpuStorage, l: &Layout| Tensor::from_slice(slice(s, l)?, l.shape(), &Device::Cpu);
        let (q, k, v) = (tensor(q, q_layout)?, tensor(k, k_layout)?, tensor(v, v_layout)?);
        let (heads, n, d) = q.dims3()?;
        let group = heads / k.dim(0)?;
        let mut out = Vec::with_capacity(heads * n * d);
        for head in 0..heads {
            let p = probabilities(&q.get(head)?, &k.get(head / group)?)?;
            out.extend(p.matmul(&v.get(head / group)?)?.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok((CpuStorage::F32(out), (heads, n, d).into()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (q, k, v) = (q.detach(), k.detach(), v.detach());
        let (heads, _, d) = q.dims3()?;
        let kv_heads = k.dim(0)?;
        let group = heads / kv_heads;
        let scale = 1.0 / (d as f64).sqrt();
        let (mut q_grads, mut k_grads, mut v_grads) = (Vec::new(), Vec::new(), Vec::new());
        for kv_head in 0..kv_heads {
            let (k, v) = (k.get(kv_head)?, v.get(kv_head)?);
            let (mut k_grad, mut v_grad) = (k.zeros_like()?, v.zeros_like()?);
            for head in kv_head * group..(kv_head + 1) * group {
                let (q, grad) = (q.get(head)?, grad.get(head)?.contiguous()?);
                let p = probabilities(&q, &k)?;
                v_grad = (v_grad + p.t()?.matmul(&grad)?)?;
                let p_grad = grad.matmul(&v.t()?)?;
                let mean = (&p * &p_grad)?.sum_keepdim(D::Minus1)?;
                let score_grad = ((p * p_grad.broadcast_sub(&mean)?)? * scale)?;
                q_grads.push(score_grad.matmul(&k)?);
                k_grad = (k_grad + score_grad.t()?.matmul(&q)?)?;
            }
            k_grads.push(k_grad);
            v_grads.push(v_grad);
        }
        Ok((Some(Tensor::stack(&q_grads, 0)?), Some(Tensor::stack(&k_grads, 0)?), Some(Tensor::stack(&v_grads, 0)?)))
    }
}

/// Causal attention of `[heads, n, d]` over `[kv_heads, n, d]`, `kv_heads` a divisor of `heads`: `[heads, n, d]`.
pub(super) fn attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    q.contiguous()?.apply_op3(&k.contiguous()?, &v.contiguous()?, Attention)
}

/// `x / sqrt(mean(x²) + eps) * weight` over the last axis.
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
    x.broadcast_div(&scale)?.broadcast_mul(weight)
}

/// Rotates `[heads, n, d]`, coordinates i and i + d/2 being a pair; `cos` and `sin` are `[n, d/2]`.
pub(super) fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let half = x.dim(D::Minus1)? / 2;
    let (a, b) = (x.narrow(D::Minus1, 0, half)?, x.narrow(D::Minus1, half, half)?);
    let first = (a.broadcast_mul(cos)? - b.broadcast_mul(sin)?)?;
    let second = (b.broadcast_mul(cos)? + a.broadcast_mul(sin)?)?;
    Tensor::cat(&[first, second], D::Minus1)
}
