//! Products with codes, whose affine map is folded into the activation, and with constant weights.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{TASK_ROWS, slice, sums_over_rows, tensor_like, with};
use crate::arch::{Mat, MatMut, Threads, matmul};

/// Codes of a matrix as numbers, with what of it is not trained.
#[derive(Debug)]
pub(in crate::tune) struct Codes {
    /// `[rows, cols]`.
    pub(in crate::tune) values: Vec<f32>,
    pub(in crate::tune) rows: usize,
    pub(in crate::tune) cols: usize,
    /// Columns of a group.
    pub(in crate::tune) dim: usize,
    /// Factor of all weights.
    pub(in crate::tune) scale: f32,
}

/// `W~ t` of every row t, with W~ = scale · (A q + B) for every group of columns.
struct CodesProduct(Arc<Codes>);

impl Codes {
    /// t' = scale · Aᵀ t of every group, for one row.
    fn fold(&self, a: &[f32], t: &[f32], out: &mut [f32]) {
        let d = self.dim;
        for (t, out) in t.chunks(d).zip(out.chunks_mut(d)) {
            for (j, out) in out.iter_mut().enumerate() {
                *out = self.scale * t.iter().zip(a[j..].iter().step_by(d)).map(|(t, a)| a * t).sum::<f32>();
            }
        }
    }

    /// `out = grad · q`, `[n, cols]`.
    fn back(&self, grad: &[f32]) -> Vec<f32> {
        let (rows, cols) = (self.rows, self.cols);
        let n = grad.len() / rows;
        let mut out = vec![0f32; n * cols];
        let (grad, codes) = (Mat::new(grad, n, rows, rows), Mat::new(&self.values, rows, cols, cols));
        matmul(MatMut::new(&mut out, n, cols, cols), grad, codes, Threads::Pool);
        out
    }
}

impl CustomOp3 for CodesProduct {
    fn name(&self) -> &'static str {
        "codes-product"
    }

    fn cpu_fwd(
        &self,
        t: &CpuStorage,
        tl: &Layout,
        a: &CpuStorage,
        al: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Codes { ref values, rows, cols, dim, scale } = *self.0;
        let (t, a, b) = (slice(t, tl)?, slice(a, al)?, slice(b, bl)?);
        let n = t.len() / cols;
        let mut folded = vec![0f32; n * cols];
        folded
            .par_chunks_mut(cols)
            .zip(t.par_chunks(cols))
            .with_min_len(TASK_ROWS)
            .for_each(|(out, t)| self.0.fold(a, t, out));
        let mut z = vec![0f32; n * rows];
        let codes = Mat::new(values, rows, cols, cols);
        matmul(MatMut::new(&mut z, n, rows, rows), Mat::new(&folded, n, cols, cols), codes.t(), Threads::Pool);
        z.par_chunks_mut(rows).zip(t.par_chunks(cols)).with_min_len(TASK_ROWS).for_each(|(z, t)| {
            let dots = t.chunks(dim).map(|t| t.iter().zip(b).map(|(t, b)| t * b).sum::<f32>());
            let beta = (dots.map(f64::from).sum::<f64>() * f64::from(scale)) as f32;
            z.iter_mut().for_each(|z| *z += beta);
        });
        Ok((CpuStorage::F32(z), (n, rows).into()))
    }

    fn bwd(
        &self,
        t: &Tensor,
        a: &Tensor,
        b: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Codes { rows, cols, dim: d, scale, .. } = *self.0;
        // With g = grad · q and r the sum of a row of grad: dt = scale (A g + r B), dA = scale Σ t gᵀ, dB = scale Σ r t.
        let (back, totals) = with(grad, |grad| {
            let totals: Vec<f32> = grad.par_chunks(rows).map(|row| row.iter().sum()).collect();
            (self.0.back(grad), totals)
        })?;
        let map_grad = with(t, |t| {
            sums_over_rows(totals.len(), d * d + d, |row, sums| {
                let range = row * cols..(row + 1) * cols;
                let (mut outer, mut inner) = ([0f32; 64], [0f32; 8]);
                for (t, g) in t[range.clone()].chunks(d).zip(back[range].chunks(d)) {
                    for (i, &t) in t.iter().enumerate() {
                        outer[i * d..].iter_mut().zip(g).for_each(|(sum, g)| *sum += t * g);
                        inner[i] += t;
                    }
                }
                let (map, offset) = sums.split_at_mut(d * d);
                map.iter_mut().zip(outer).for_each(|(sum, v)| *sum += scale * v);
                offset.iter_mut().zip(inner).for_each(|(sum, v)| *sum += scale * totals[row] * v);
            })
        })?;
        let mut t_grad = vec![0f32; back.len()];
        with(a, |a| {
            with(b, |b| {
                t_grad.par_chunks_mut(cols).zip(back.par_chunks(cols)).zip(&totals).with_min_len(TASK_ROWS).for_each(
                    |((out, g), total)| {
                        for (out, g) in out.chunks_mut(d).zip(g.chunks(d)) {
                            for (i, out) in out.iter_mut().enumerate() {
                                let dot: f32 = g.iter().zip(&a[i * d..]).map(|(g, a)| g * a).sum();
                                *out = scale * (dot + total * b[i]);
                            }
                        }
                    },
                );
            })
        })??;
        let (map, offset) = map_grad.split_at(d * d);
        Ok((Some(tensor_like(t_grad, t)?), Some(tensor_like(map.to_vec(), a)?), Some(tensor_like(offset.to_vec(), b)?)))
    }
}

/// `x Wᵀ` for constant weights.
struct ConstantProduct(Arc<Codes>);

impl CustomOp1 for ConstantProduct {
    fn name(&self) -> &'static str {
        "constant-product"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout) -> Result<(CpuStorage, Shape)> {
        let Codes { ref values, rows, cols, .. } = *self.0;
        let x = slice(x, xl)?;
        let n = x.len() / cols;
        let mut y = vec![0f32; n * rows];
        let weights = Mat::new(values, rows, cols, cols);
        matmul(MatMut::new(&mut y, n, rows, rows), Mat::new(x, n, cols, cols), weights.t(), Threads::Pool);
        Ok((CpuStorage::F32(y), (n, rows).into()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        tensor_like(with(grad, |grad| self.0.back(grad))?, x).map(Some)
    }
}

/// `W~ t` of every row of `[tokens, cols]`, A being `[d, d]` and B `[d]`.
pub(in crate::tune) fn codes_product(t: &Tensor, a: &Tensor, b: &Tensor, codes: &Arc<Codes>) -> Result<Tensor> {
    t.contiguous()?.apply_op3(a, b, CodesProduct(Arc::clone(codes)))
}

/// `x Wᵀ` of every row of `[tokens, cols]`; what the weights are scaled by is in their values.
pub(in crate::tune) fn constant_product(x: &Tensor, weights: &Arc<Codes>) -> Result<Tensor> {
    x.contiguous()?.apply_op1(ConstantProduct(Arc::clone(weights)))
}
