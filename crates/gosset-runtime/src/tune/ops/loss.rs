//! What is minimized.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{slice, tensor_like, with};

/// Outputs that a block should give, and what the error of each row counts.
#[derive(Debug)]
pub(in crate::tune) struct Target {
    /// `[rows, width]`.
    pub(in crate::tune) values: Vec<f32>,
    /// `[rows]`.
    pub(in crate::tune) weights: Vec<f32>,
}

impl Target {
    fn width(&self) -> usize {
        self.values.len() / self.weights.len().max(1)
    }

    /// Sum over rows of weight times squared error, the rows being those from `first` on.
    pub(in crate::tune) fn error(&self, y: &[f32], first: usize) -> f64 {
        let width = self.width();
        let rows = y.par_chunks(width).zip(self.values[first * width..].par_chunks(width)).zip(&self.weights[first..]);
        let rows: Vec<f64> = rows
            .map(|((y, t), w)| f64::from(*w) * y.iter().zip(t).map(|(y, t)| f64::from(y - t).powi(2)).sum::<f64>())
            .collect();
        rows.iter().sum()
    }
}

/// `factor` times [`Target::error`].
struct Error {
    target: Arc<Target>,
    first: usize,
    factor: f64,
}

impl CustomOp1 for Error {
    fn name(&self) -> &'static str {
        "weighted-error"
    }

    fn cpu_fwd(&self, y: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let error = self.target.error(slice(y, layout)?, self.first) * self.factor;
        Ok((CpuStorage::F32(vec![error as f32]), Shape::from(())))
    }

    fn bwd(&self, y: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let factor = 2.0 * self.factor * f64::from(grad.to_scalar::<f32>()?);
        let width = self.target.width();
        let mut out = with(y, <[f32]>::to_vec)?;
        let (values, weights) = (&self.target.values[self.first * width..], &self.target.weights[self.first..]);
        let rows = out.par_chunks_mut(width).zip(values.par_chunks(width)).zip(weights);
        rows.for_each(|((y, t), w)| {
            let weight = (factor * f64::from(*w)) as f32;
            y.iter_mut().zip(t).for_each(|(y, t)| *y = weight * (*y - t));
        });
        tensor_like(out, y).map(Some)
    }
}

/// `factor` times the weighted sum of squared errors of `[rows, width]`, the rows from `first` on, a scalar.
pub(in crate::tune) fn weighted_error(y: &Tensor, target: &Arc<Target>, first: usize, factor: f64) -> Result<Tensor> {
    y.contiguous()?.apply_op1(Error { target: Arc::clone(target), first, factor })
}
