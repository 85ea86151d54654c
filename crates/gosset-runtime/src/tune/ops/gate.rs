//! The gate of the feed-forward part.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{like, slice, tensor_like, with};
use crate::arch::{GELU_CUBE, GELU_ROOT};
use crate::models::Gate as Kind;

/// Elements per task: some microseconds of work.
const TASK_LEN: usize = 1 << 14;

/// The gate's value times `up`.
struct Gate(Kind);

/// The value of the gate at `x`, and its slope.
fn value_and_slope(kind: Kind, x: f32) -> (f32, f32) {
    match kind {
        Kind::Silu => {
            let logistic = 1.0 / (1.0 + (-x).exp());
            let silu = x * logistic;
            (silu, logistic + silu * (1.0 - logistic))
        }
        // x s(2u) with s the logistic, u = root (x + cube x³) and s' = s (1 - s).
        Kind::GeluTanh => {
            let (inner, slope) = (GELU_ROOT * (x + GELU_CUBE * x * x * x), GELU_ROOT * (1.0 + 3.0 * GELU_CUBE * x * x));
            let logistic = 1.0 / (1.0 + (-2.0 * inner).exp());
            (x * logistic, logistic + x * logistic * (1.0 - logistic) * 2.0 * slope)
        }
    }
}

impl CustomOp2 for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn cpu_fwd(&self, gate: &CpuStorage, gl: &Layout, up: &CpuStorage, ul: &Layout) -> Result<(CpuStorage, Shape)> {
        let (mut out, up) = (slice(gate, gl)?.to_vec(), slice(up, ul)?);
        out.par_chunks_mut(TASK_LEN).zip(up.par_chunks(TASK_LEN)).for_each(|(gate, up)| self.0.multiply(gate, up));
        Ok(like(out, gl))
    }

    fn bwd(&self, gate: &Tensor, up: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (mut gates, mut ups) = (with(gate, <[f32]>::to_vec)?, with(up, <[f32]>::to_vec)?);
        with(grad, |grad| {
            let parts = gates.par_chunks_mut(TASK_LEN).zip(ups.par_chunks_mut(TASK_LEN)).zip(grad.par_chunks(TASK_LEN));
            parts.for_each(|((gates, ups), grad)| {
                for ((gate, up), grad) in gates.iter_mut().zip(ups).zip(grad) {
                    let (value, slope) = value_and_slope(self.0, *gate);
                    *gate = grad * *up * slope;
                    *up = grad * value;
                }
            });
        })?;
        Ok((Some(tensor_like(gates, gate)?), Some(tensor_like(ups, up)?)))
    }
}

/// The gate's value times `up`, element by element.
pub(in crate::tune) fn gate(kind: Kind, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2(up, Gate(kind))
}
