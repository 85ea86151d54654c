//! Products under test, whatever their codec: checked, then timed.

use anyhow::{Context, Result};
use gosset_cuda::{Buffer, CudaError, DevSlice, DevSliceMut, Gpu, Stream, StreamRef};

use super::args::Shape;
use super::reference::Reference;
use super::timing::{self, Timing};

/// Factor of the activation's largest coordinates in the second check: what one coordinate of a residual stream may be
/// over the others.
const OUTLIER: f32 = 300.0;
/// Distance of those coordinates.
const OUTLIER_STRIDE: usize = 1021;

/// Copies of one compressed matrix on the device.
pub(super) trait Product {
    /// How many copies there are.
    fn n_copies(&self) -> usize;

    /// Bytes that one copy has on the device: all that a product reads, tables included.
    fn bytes(&self) -> usize;

    /// Most activations of one product.
    fn max_batch(&self) -> usize;

    /// Enqueues y = x · wᵀ with one copy, rotation and scaling of the activations included.
    fn enqueue(
        &mut self,
        stream: StreamRef<'_>,
        copy: usize,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        batch: usize,
    ) -> Result<(), CudaError>;
}

/// Activations with outliers, for the second check.
pub(super) fn with_outliers(x: &[f32]) -> Vec<f32> {
    x.iter().enumerate().map(|(i, &x)| if i % OUTLIER_STRIDE == 17 { OUTLIER * x } else { x }).collect()
}

/// Outputs of the first and the last copy against the reference: the largest error.
pub(super) fn check(
    gpu: &Gpu,
    stream: &Stream,
    product: &mut dyn Product,
    shape: Shape,
    x: &[f32],
    reference: &Reference,
) -> Result<f64> {
    let batch = x.len() / shape.cols;
    let x = gpu.upload(x)?;
    let poison = vec![f32::NAN; batch * shape.rows];
    let mut y = gpu.upload(&poison)?;
    let mut worst = 0.0f64;
    for copy in [0, product.n_copies() - 1] {
        y.write(&poison)?;
        product.enqueue(stream.as_ref(), copy, x.as_slice(), y.as_mut(), batch)?;
        stream.synchronize().context("the kernel failed")?;
        worst = worst.max(reference.max_rel_err(&gpu.download(y.as_slice())?, shape.rows));
    }
    Ok(worst)
}

/// Times of a product, with the rotation of its activations: one after the other and, if asked for, in layers.
pub(super) fn time(
    gpu: &Gpu,
    stream: &Stream,
    product: &mut dyn Product,
    shape: Shape,
    x: &[f32],
    replays: usize,
    in_layers: bool,
) -> Result<(Timing, Option<Timing>)> {
    let batch = x.len() / shape.cols;
    let copies = product.n_copies();
    let x = gpu.upload(x)?;
    let mut y = gpu.alloc::<f32>(batch * shape.rows)?;
    let single = timing::rotated(gpu, stream, copies, replays, |stream, copy| {
        product.enqueue(stream, copy, x.as_slice(), y.as_mut(), batch)
    })?;
    if !in_layers {
        return Ok((single, None));
    }
    // The output of a square layer is the input of the next; others have the same input again.
    let mut hidden: [Buffer<f32>; 2] = [gpu.alloc(batch * shape.rows)?, gpu.alloc(batch * shape.rows)?];
    let layers = timing::layered(gpu, stream, copies, replays, |stream, copy, layer| {
        let (even, odd) = hidden.split_at_mut(1);
        let (from, to) = if layer % 2 == 0 { (&odd[0], &mut even[0]) } else { (&even[0], &mut odd[0]) };
        let x = if layer == 0 || shape.rows != shape.cols { x.as_slice() } else { from.as_slice() };
        product.enqueue(stream, copy, x, to.as_mut(), batch)
    })?;
    Ok((single, Some(layers)))
}
