//! Root-mean-square normalization.

use candle_core::Tensor;
use rayon::prelude::*;

use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::tensor::{f32_slice, tensor2};
use crate::weights::Weights;

/// `x / sqrt(mean(x²) + eps) * weight` over the last `weight.len()` columns at a time.
#[derive(Debug, Clone)]
pub(crate) struct RmsNorm {
    weight: Vec<f32>,
    eps: f32,
}

impl RmsNorm {
    pub(crate) fn new(weight: Vec<f32>, eps: f64) -> Self {
        Self { weight, eps: eps as f32 }
    }

    /// The norm of tensor `name`, whose weights some architectures store less by one.
    pub(crate) fn load(config: &ModelConfig, weights: &dyn Weights, name: &str) -> Result<Self, RuntimeError> {
        let mut weight = weights.vector(name)?;
        if config.architecture.gemma_norms {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(Self::new(weight, config.rms_norm_eps))
    }

    /// Bytes of the weights.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.weight.len() * size_of::<f32>()
    }

    /// Normalizes each run of `weight.len()` columns of `[n, columns]` by itself: the whole row for a layer norm, each
    /// head for a norm of queries or keys.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, RuntimeError> {
        let (n, cols) = x.dims2()?;
        let x = f32_slice(x)?;
        let width = self.weight.len();
        let mut out = vec![0f32; n * cols];
        out.par_chunks_mut(width).zip(x.par_chunks(width)).with_min_len(16).for_each(|(out, x)| {
            let scale = scale_of(x, self.eps);
            for ((o, v), w) in out.iter_mut().zip(x).zip(&self.weight) {
                *o = v * scale * w;
            }
        });
        tensor2(out, n, cols)
    }
}

/// `1 / sqrt(mean(x²) + eps)`.
pub(crate) fn scale_of(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt()
}

/// Sum of squares in 16 partial sums of fixed order.
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let mut chunks = x.chunks_exact(16);
    for chunk in &mut chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, v)| *lane += v * v);
    }
    lanes.iter().sum::<f32>() + chunks.remainder().iter().map(|v| v * v).sum::<f32>()
}
