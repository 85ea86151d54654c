//! The bf16 arm: the fastest dense product that cuBLAS and cublasLt have, per shape and batch.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use gosset_cuda::blas::{Blas, GemmShape, Lt, LtPlan};
use gosset_cuda::{Buffer, CudaError, DevSliceMut, Gpu, Stream, StreamRef};
use half::bf16;

use super::args::Shape;
use super::block::Block;
use super::reference::{MAX_REL_ERR, Reference};
use super::timing::{self, LAYERS, Timing};

/// Replays of the first look at each kernel.
const FIRST_REPLAYS: usize = 5;
/// Kernels that are timed again with all replays.
const FINALISTS: usize = 3;

/// A dense product that was timed.
#[derive(Debug, Clone)]
pub(super) struct Arm {
    /// Products one after the other.
    pub(super) single: Timing,
    /// Eight successive layers, where that was asked for.
    pub(super) layers: Option<Timing>,
    /// Name of the kernel.
    pub(super) kernel: String,
    /// Largest error of an output.
    pub(super) rel_err: f64,
    /// Bytes that must move.
    pub(super) bytes: usize,
    /// Copies that were rotated.
    pub(super) copies: usize,
}

/// The libraries, and what they took so far.
pub(super) struct Dense {
    blas: Blas,
    lt: Lt,
    found: HashMap<(Shape, usize), Arm>,
}

/// One way to multiply.
enum Kernel {
    GemmEx,
    Lt(LtPlan),
}

/// The weights of one shape on the device.
pub(super) struct DenseWeights {
    shape: Shape,
    copies: Vec<Buffer<bf16>>,
    /// The rows that repeat, as bf16 holds them.
    rows: Vec<f32>,
}

impl DenseWeights {
    /// Copies of the matrix that repeats the block.
    pub(super) fn new(gpu: &Gpu, stream: &Stream, shape: Shape, block: &Block) -> Result<Self> {
        let rows: Vec<bf16> = block.weights.iter().map(|&w| bf16::from_f32(w)).collect();
        let n = timing::copies(2 * shape.n_weights()).next_multiple_of(LAYERS.min(shape_layers(shape)));
        let mut copies = vec![gpu.upload(&rows.repeat(shape.rows / block.rows()))?];
        for _ in 1..n {
            let mut copy = gpu.alloc::<bf16>(shape.n_weights())?;
            copy.copy_on(stream.as_ref(), copies[0].as_slice())?;
            copies.push(copy);
        }
        stream.synchronize()?;
        Ok(DenseWeights { shape, copies, rows: rows.iter().map(|w| w.to_f32()).collect() })
    }
}

/// Layers of a graph of successive layers of this shape; 1 where none is asked for.
pub(super) fn shape_layers(shape: Shape) -> usize {
    let layered = [Shape { rows: 4096, cols: 4096 }, Shape { rows: 6144, cols: 4096 }];
    if layered.contains(&shape) { LAYERS } else { 1 }
}

impl Dense {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Dense { blas: Blas::new(gpu)?, lt: Lt::new(gpu)?, found: HashMap::new() })
    }

    /// Version of cuBLAS.
    pub(super) fn version(&self) -> Result<i32> {
        Ok(self.blas.version()?)
    }

    /// What was measured for a shape and batch.
    pub(super) fn arm(&self, shape: Shape, batch: usize) -> Option<&Arm> {
        self.found.get(&(shape, batch))
    }

    /// Times every kernel on cold weights and keeps the fastest; its outputs are checked first.
    pub(super) fn measure(
        &mut self,
        gpu: &Gpu,
        stream: &Stream,
        weights: &DenseWeights,
        x: &[f32],
        replays: usize,
    ) -> Result<&Arm> {
        let shape = weights.shape;
        let batch = x.len() / shape.cols;
        let gemm = GemmShape { n: shape.rows, k: shape.cols, batch };
        let x_bf16: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
        let x = gpu.upload(&x_bf16)?;
        let mut y = gpu.upload(&vec![bf16::NAN; batch * shape.rows])?;
        let n_copies = weights.copies.len();

        let mut kernels = vec![(Kernel::GemmEx, "cublasGemmEx".to_owned())];
        let plans = self.lt.plans::<bf16, bf16>(gemm)?;
        kernels.extend(plans.into_iter().enumerate().map(|(i, plan)| (Kernel::Lt(plan), format!("cublasLt {i}"))));
        let time = |kernel: &Kernel, y: &mut Buffer<bf16>, replays| {
            timing::rotated(gpu, stream, n_copies, replays, |stream, copy| {
                self.launch(kernel, gemm, stream, &weights.copies[copy], &x, y.as_mut())
            })
        };
        let mut timed = Vec::new();
        for (kernel, name) in kernels {
            // A heuristic may offer what the library then refuses.
            match time(&kernel, &mut y, FIRST_REPLAYS) {
                Ok(first) => timed.push((first, kernel, name)),
                Err(CudaError::Driver { .. }) if matches!(kernel, Kernel::Lt(_)) => {}
                Err(error) => return Err(error).context(name),
            }
        }
        timed.sort_by(|a, b| a.0.us.total_cmp(&b.0.us));
        timed.truncate(FINALISTS);
        let x_f32: Vec<f32> = x_bf16.iter().map(|x| x.to_f32()).collect();
        let reference = Reference::new(&weights.rows, shape.cols, &x_f32);
        let mut best: Option<(Timing, Kernel, String, f64)> = None;
        for (_, kernel, name) in timed {
            y.write(&vec![bf16::NAN; batch * shape.rows])?;
            self.launch(&kernel, gemm, stream.as_ref(), &weights.copies[n_copies - 1], &x, y.as_mut())?;
            stream.synchronize()?;
            let found: Vec<f32> = gpu.download(y.as_slice())?.iter().map(|y| y.to_f32()).collect();
            let rel_err = reference.max_rel_err(&found, shape.rows);
            if rel_err > MAX_REL_ERR {
                continue;
            }
            let timing = time(&kernel, &mut y, replays)?;
            if best.as_ref().is_none_or(|(best, ..)| timing.us < best.us) {
                best = Some((timing, kernel, name, rel_err));
            }
        }
        let Some((single, kernel, name, rel_err)) = best else {
            bail!("{shape}, batch {batch}: no dense kernel is right");
        };
        let layers = if batch == 1 && shape_layers(shape) == LAYERS {
            Some(timing::layered(gpu, stream, n_copies, replays, |stream, copy, _| {
                self.launch(&kernel, gemm, stream, &weights.copies[copy], &x, y.as_mut())
            })?)
        } else {
            None
        };
        let bytes = 2 * (shape.n_weights() + batch * (shape.rows + shape.cols));
        let arm = Arm { single, layers, kernel: name, rel_err, bytes, copies: n_copies };
        Ok(self.found.entry((shape, batch)).insert_entry(arm).into_mut())
    }

    fn launch(
        &self,
        kernel: &Kernel,
        gemm: GemmShape,
        stream: StreamRef<'_>,
        w: &Buffer<bf16>,
        x: &Buffer<bf16>,
        y: DevSliceMut<'_, bf16>,
    ) -> Result<(), CudaError> {
        match kernel {
            Kernel::GemmEx => self.blas.gemm(stream, gemm, w.as_slice(), x.as_slice(), y),
            Kernel::Lt(plan) => self.lt.gemm(stream, plan, w.as_slice(), x.as_slice(), y),
        }
    }
}

/// Bytes read and written per second by a copy of 256 MiB on the device.
pub(super) fn copy_bandwidth(gpu: &Gpu, stream: &Stream, replays: usize) -> Result<f64> {
    const WORDS: usize = 1 << 26;
    // Zeros may move faster than data do.
    let noise: Vec<u32> = (0..1 << 20).map(|i: u32| i.wrapping_mul(0x9E37_79B9) ^ (i >> 7)).collect();
    let source = gpu.upload(&noise.repeat(WORDS / noise.len()))?;
    let mut target = gpu.alloc::<u32>(WORDS)?;
    let copy = timing::rotated(gpu, stream, 1, replays, |stream, _| target.copy_on(stream, source.as_slice()))?;
    Ok(8.0 * WORDS as f64 / (copy.us * 1e-6))
}
