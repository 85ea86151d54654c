//! The gate of the feed-forward part.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{like, slice, tensor_like, with};
use crate::arch::silu_mul;

/// Elements per task: some microseconds of work.
const TASK_LEN: usize = 1 << 14;

/// `silu(gate) * up`.
struct Gate;

impl CustomOp2 for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn cpu_fwd(&self, gate: &CpuStorage, gl: &Layout, up: &CpuStorage, ul: &Layout) -> Result<(CpuStorage, Shape)> {
        let (mut out, up) = (slice(gate, gl)?.to_vec(), slice(up, ul)?);
        out.par_chunks_mut(TASK_LEN).zip(up.par_chunks(TASK_LEN)).for_each(|(gate, up)| silu_mul(gate, up));
        Ok(like(out, gl))
    }

    fn bwd(&self, gate: &Tensor, up: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (mut gates, mut ups) = (with(gate, <[f32]>::to_vec)?, with(up, <[f32]>::to_vec)?);
        with(grad, |grad| {
            let parts = gates.par_chunks_mut(TASK_LEN).zip(ups.par_chunks_mut(TASK_LEN)).zip(grad.par_chunks(TASK_LEN));
            parts.for_each(|((gates, ups), grad)| {
                for ((gate, up), grad) in gates.iter_mut().zip(ups).zip(grad) {
                    let logistic = 1.0 / (1.0 + (-*gate).exp());
                    let silu = *gate * logistic;
                    *gate = grad * *up * (logistic + silu * (1.0 - logistic));
                    *up = grad * silu;
                }
            });
        })?;
        Ok((Some(tensor_like(gates, gate)?), Some(tensor_like(ups, up)?)))
    }
}

/// `silu(gate) * up`, element by element.
pub(in crate::tune) fn gate(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2(up, Gate)
}
