//! Differentiable operations of a block, each with its own way back.
//!
//! Candle's operations would do, but slowly: a product takes the gradient of its constant operand too, small groups are multiplied as
//! a matrix of two or four columns, and attention keeps all scores. Here each step of a block is one operation that keeps its
//! input and output alone. Every sum has an order that depends on shapes only, so gradients are the same bits for any number of
//! threads.

mod attention;
mod codes;
mod frame;
mod gate;
mod loss;
mod norm;

use candle_core::{CpuStorage, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

pub(super) use attention::{Attention, attention};
pub(super) use codes::{Codes, codes_product, constant_product};
pub(super) use frame::{enter, leave};
pub(super) use gate::gate;
pub(super) use loss::{Target, weighted_error};
pub(super) use norm::rms_norm;

use crate::tensor::f32_slice;

/// Rows whose sums are f32 before they go on in f64.
const SUM_ROWS: usize = 64;

/// Rows that one task transforms at least.
const TASK_ROWS: usize = 16;

/// Sums over rows, `[width]`: `add(row, sums)` adds a row. The same bits for any number of threads.
fn sums_over_rows(rows: usize, width: usize, add: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let parts: Vec<Vec<f32>> = (0..rows.div_ceil(SUM_ROWS))
        .into_par_iter()
        .map(|part| {
            let mut sums = vec![0f32; width];
            (part * SUM_ROWS..((part + 1) * SUM_ROWS).min(rows)).for_each(|row| add(row, &mut sums));
            sums
        })
        .collect();
    let mut total = vec![0f64; width];
    for part in parts {
        total.iter_mut().zip(part).for_each(|(total, v)| *total += f64::from(v));
    }
    total.into_iter().map(|v| v as f32).collect()
}

/// The elements of an operand.
fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let values = storage.as_slice::<f32>()?;
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&values[start..end]),
        None => Err(candle_core::Error::RequiresContiguous { op: "tune" }),
    }
}

/// Calls `f` with the elements of a contiguous tensor.
fn with<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let values = f32_slice(tensor).map_err(candle_core::Error::msg)?;
    Ok(f(&values))
}

/// The result of an operation that keeps the shape of its operand.
fn like(values: Vec<f32>, layout: &Layout) -> (CpuStorage, Shape) {
    (CpuStorage::F32(values), layout.shape().clone())
}

/// Elements as a tensor of the shape of another.
fn tensor_like(values: Vec<f32>, other: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(values, other.shape(), other.device())
}
