//! Into the frame of the input and out of that of the output.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use gosset_unisvq::Frame;
use rayon::prelude::*;

use super::{TASK_ROWS, like, slice, sums_over_rows, tensor_like, with};

/// `Uᵀ (S ⊙ x)` of every row.
struct Enter(Arc<Frame>);

impl CustomOp2 for Enter {
    fn name(&self) -> &'static str {
        "enter-frame"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, s: &CpuStorage, sl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (mut out, s) = (slice(x, xl)?.to_vec(), slice(s, sl)?);
        out.par_chunks_mut(s.len()).with_min_len(TASK_ROWS).for_each(|row| {
            row.iter_mut().zip(s).for_each(|(v, s)| *v *= s);
            self.0.rotate(row);
        });
        Ok(like(out, xl))
    }

    fn bwd(&self, x: &Tensor, s: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let width = self.0.width();
        let mut out = with(grad, <[f32]>::to_vec)?;
        out.par_chunks_mut(width).with_min_len(TASK_ROWS).for_each(|row| self.0.unrotate(row));
        let s_grad = with(x, |x| products(&out, x, width))?;
        with(s, |s| {
            out.par_chunks_mut(width)
                .with_min_len(TASK_ROWS)
                .for_each(|row| row.iter_mut().zip(s).for_each(|(v, s)| *v *= s));
        })?;
        Ok((Some(tensor_like(out, x)?), Some(tensor_like(s_grad, s)?)))
    }
}

/// `S ⊙ (U z)` of every row.
struct Leave(Arc<Frame>);

impl CustomOp2 for Leave {
    fn name(&self) -> &'static str {
        "leave-frame"
    }

    fn cpu_fwd(&self, z: &CpuStorage, zl: &Layout, s: &CpuStorage, sl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (mut out, s) = (slice(z, zl)?.to_vec(), slice(s, sl)?);
        out.par_chunks_mut(s.len()).with_min_len(TASK_ROWS).for_each(|row| {
            self.0.unrotate(row);
            row.iter_mut().zip(s).for_each(|(v, s)| *v *= s);
        });
        Ok(like(out, zl))
    }

    fn bwd(&self, z: &Tensor, s: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let width = self.0.width();
        // U z once more: the output divided by S is no answer where S is zero.
        let mut turned = with(z, <[f32]>::to_vec)?;
        turned.par_chunks_mut(width).with_min_len(TASK_ROWS).for_each(|row| self.0.unrotate(row));
        let s_grad = with(grad, |grad| products(&turned, grad, width))?;
        let mut out = with(grad, <[f32]>::to_vec)?;
        with(s, |s| {
            out.par_chunks_mut(width).with_min_len(TASK_ROWS).for_each(|row| {
                row.iter_mut().zip(s).for_each(|(v, s)| *v *= s);
                self.0.rotate(row);
            });
        })?;
        Ok((Some(tensor_like(out, z)?), Some(tensor_like(s_grad, s)?)))
    }
}

/// Sums over rows of `a ⊙ b`, `[width]`.
fn products(a: &[f32], b: &[f32], width: usize) -> Vec<f32> {
    sums_over_rows(a.len() / width, width, |row, sums| {
        let range = row * width..(row + 1) * width;
        sums.iter_mut().zip(&a[range.clone()]).zip(&b[range]).for_each(|((sum, a), b)| *sum += a * b);
    })
}

/// `Uᵀ (scales ⊙ x)` of every row of `[tokens, width]`.
pub(in crate::tune) fn enter(x: &Tensor, scales: &Tensor, frame: &Arc<Frame>) -> Result<Tensor> {
    x.contiguous()?.apply_op2(scales, Enter(Arc::clone(frame)))
}

/// `scales ⊙ (U z)` of every row of `[tokens, width]`.
pub(in crate::tune) fn leave(z: &Tensor, scales: &Tensor, frame: &Arc<Frame>) -> Result<Tensor> {
    z.contiguous()?.apply_op2(scales, Leave(Arc::clone(frame)))
}
