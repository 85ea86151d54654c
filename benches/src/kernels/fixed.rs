//! Products with weights of fixed width: as fast as products get, at the most distortion for their bits.

use anyhow::{Context, Result};
use gosset_cuda::launch::fixed::{FixedBits, FixedMatrix};
use gosset_cuda::launch::quantize::unit_rows;
use gosset_cuda::launch::rht::{DeviceRht, F16Scale, RhtOutput};
use gosset_cuda::{Buffer, CudaError, DevSlice, DevSliceMut, StreamRef};
use gosset_transform::{DEFAULT_TILE, Rht, TilePlan};
use half::f16;

use super::args::{Op, Shape};
use super::bench::Bench;
use super::candidates::{Subject, measure, n_copies, references};
use super::product::Product;

/// Most activations of one product.
const MAX_BATCH: usize = 8;

/// Names in the table, and bits.
const CODECS: [(&str, FixedBits); 2] = [("int2@2", FixedBits::Two), ("int4@4", FixedBits::Four)];

struct Fixed {
    copies: Vec<FixedMatrix>,
    rht: DeviceRht,
    plan: TilePlan,
    rotated: Buffer<f16>,
    x_scales: Buffer<f32>,
}

/// Measures both widths on matrices of `shape`.
pub(super) fn run(bench: &mut Bench<'_>, shape: Shape) -> Result<()> {
    for (codec, bits) in CODECS {
        if bench.args.wants_codec(codec) {
            one(bench, shape, codec, bits).with_context(|| format!("{codec} of {shape}"))?;
        }
    }
    Ok(())
}

fn one(bench: &mut Bench<'_>, shape: Shape, codec: &str, bits: FixedBits) -> Result<()> {
    let block = bench.block(shape).clone();
    let rht = Rht::new(TilePlan::new(shape.cols, DEFAULT_TILE)?, 0);
    let (gpu, stream) = (bench.gpu, bench.gpu.stream()?);
    let n = n_copies(bench, shape, shape.n_weights() * bits.bits() as usize / 8);
    let encode = |weights: &[f32], n: usize| -> Result<Vec<FixedMatrix>> {
        let data = gpu.upload(weights)?;
        let n_rows = weights.len() / shape.cols;
        let rows = unit_rows(gpu, stream.as_ref(), data.as_slice(), n_rows, shape.cols, Some(&rht))?;
        let copies = (0..n).map(|_| FixedMatrix::encode(gpu, stream.as_ref(), &rows, bits));
        let copies = copies.collect::<Result<Vec<_>, CudaError>>()?;
        stream.synchronize()?;
        Ok(copies)
    };
    // Rows are encoded one by one, so that the block's are those of the matrix.
    let weights = encode(&block.weights, 1)?[0].dequantize()?;
    let copies = encode(&block.weights.repeat(shape.rows / block.rows()), n)?;
    let mut rotated = block.weights.clone();
    rht.forward_rows(&mut rotated);
    let noise: f64 = rotated.iter().zip(&weights).map(|(&w, &d)| (f64::from(w) - f64::from(d)).powi(2)).sum();
    let signal: f64 = rotated.iter().map(|&w| f64::from(w).powi(2)).sum();
    let mut product = Fixed {
        copies,
        rht: DeviceRht::new(gpu, &rht)?,
        plan: rht.plan().clone(),
        rotated: gpu.alloc(MAX_BATCH * shape.cols)?,
        x_scales: gpu.alloc(MAX_BATCH)?,
    };
    let references = references(bench, shape.cols, &weights, Some(&rht))?;
    let subject = Subject {
        gemv: Op::FixedGemv,
        gemm: Some(Op::FixedGemv),
        codec,
        variant: "",
        payload_bps: bits.bits().into(),
        mse: noise / signal,
        references: &references,
    };
    measure(bench, shape, &subject, &mut product)
}

impl Product for Fixed {
    fn n_copies(&self) -> usize {
        self.copies.len()
    }

    fn bytes(&self) -> usize {
        self.copies[0].bytes() + self.rht.words().len() * 4
    }

    fn max_batch(&self) -> usize {
        MAX_BATCH
    }

    fn enqueue(
        &mut self,
        stream: StreamRef<'_>,
        copy: usize,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        batch: usize,
    ) -> Result<(), CudaError> {
        let (n, matrix) = (x.len(), &self.copies[copy]);
        if batch == 1 && matrix.fuses(&self.plan) {
            return matrix.gemv_rht(stream, x, self.rht.words(), &self.plan, y);
        }
        let rotated = RhtOutput::F16 {
            y: self.rotated.as_mut().slice(0..n)?,
            scale: F16Scale::PerRow(self.x_scales.as_mut().slice(0..batch)?),
        };
        self.rht.forward(stream, x, batch, rotated)?;
        let scales = self.x_scales.as_slice().slice(0..batch)?;
        matrix.gemv(stream, self.rotated.as_slice().slice(0..n)?, Some(scales), y)
    }
}
