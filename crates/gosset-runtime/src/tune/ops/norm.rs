//! Root-mean-square normalization.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{TASK_ROWS, like, slice, sums_over_rows, tensor_like, with};
use crate::norm::{RmsNorm, scale_of};
use crate::tensor::{f32_slice, tensor2};

/// `x / sqrt(mean(x²) + eps) * weight` over each run of columns as long as the weight.
struct Norm {
    eps: f64,
}

impl CustomOp2 for Norm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (slice(x, xl)?, slice(w, wl)?);
        let x = tensor2(x.to_vec(), x.len() / w.len(), w.len()).map_err(candle_core::Error::msg)?;
        let y = RmsNorm::new(w.to_vec(), self.eps).forward(&x).map_err(candle_core::Error::msg)?;
        let y = f32_slice(&y).map_err(candle_core::Error::msg)?.to_vec();
        Ok(like(y, xl))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (weight, eps) = (with(w, <[f32]>::to_vec)?, self.eps as f32);
        let width = weight.len();
        let mut out = with(grad, <[f32]>::to_vec)?;
        let w_grad = with(x, |x| {
            let scales: Vec<f32> = x.par_chunks(width).with_min_len(TASK_ROWS).map(|x| scale_of(x, eps)).collect();
            let w_grad = sums_over_rows(scales.len(), width, |row, sums| {
                let range = row * width..(row + 1) * width;
                let pairs = x[range.clone()].iter().zip(&out[range]);
                sums.iter_mut().zip(pairs).for_each(|(sum, (x, g))| *sum += scales[row] * x * g);
            });
            // With s the scale of a row and h = weight ⊙ grad: dx = s h - s³ x · mean(h ⊙ x).
            let rows = out.par_chunks_mut(width).zip(x.par_chunks(width)).zip(&scales).with_min_len(TASK_ROWS);
            rows.for_each(|((out, x), &scale)| {
                out.iter_mut().zip(&weight).for_each(|(g, w)| *g *= w);
                let mean = out.iter().zip(x).map(|(h, x)| h * x).sum::<f32>() / width as f32;
                let pull = scale * scale * scale * mean;
                out.iter_mut().zip(x).for_each(|(h, x)| *h = scale * *h - pull * x);
            });
            w_grad
        })?;
        Ok((Some(tensor_like(out, x)?), Some(tensor_like(w_grad, w)?)))
    }
}

/// Normalizes each run of `weight.len()` columns of `[n, columns]` by itself.
pub(in crate::tune) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    x.contiguous()?.apply_op2(weight, Norm { eps })
}
