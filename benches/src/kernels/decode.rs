//! From streams to bf16 weights in the rotated frame: what loading does, and what large batches multiply with.

use anyhow::{Context, Result};
use gosset_codec::{DecodeScratch, EncodedMatrix, MatrixHeader, Plane, ShiftOrderKind};
use gosset_cuda::launch::ans::AnsMatrix;
use gosset_cuda::launch::rice::RiceMatrix;
use gosset_cuda::launch::shift::ShiftMatrix;
use gosset_cuda::{CudaError, DevSliceMut, Gpu, StreamRef};
use half::bf16;

use super::args::{Op, Shape};
use super::bench::{Bench, Entry};
use super::block::Encoded;
use super::timing;

/// A matrix on the device that decodes itself.
pub(super) trait Decode {
    /// Bytes on the device.
    fn bytes(&self) -> usize;
    /// Enqueues all values in the rotated frame, row-major.
    fn enqueue(&self, gpu: &Gpu, stream: StreamRef<'_>, out: DevSliceMut<'_, bf16>) -> Result<(), CudaError>;
}

type Upload = fn(&Gpu, &MatrixHeader, &[Plane<'_>]) -> Result<Box<dyn Decode>, CudaError>;

/// Codecs, orders and who decodes them.
fn targets() -> Vec<(&'static str, &'static str, ShiftOrderKind, Upload)> {
    let rows = ShiftOrderKind::Rows;
    vec![
        ("shift-16@2", "rows", rows, shift),
        ("shift-16@4", "rows", rows, shift),
        ("shift-16@4", "tiles", ShiftOrderKind::Tiles, shift),
        ("e8-rice@2", "", rows, |gpu, header, planes| Ok(Box::new(RiceMatrix::upload(gpu, header, planes)?))),
        ("e8-rice@4", "", rows, |gpu, header, planes| Ok(Box::new(RiceMatrix::upload(gpu, header, planes)?))),
        ("e8@2", "", rows, |gpu, header, planes| Ok(Box::new(AnsMatrix::upload(gpu, header, planes)?))),
        ("e8@4", "", rows, |gpu, header, planes| Ok(Box::new(AnsMatrix::upload(gpu, header, planes)?))),
        ("trellis-8@3", "", rows, |gpu, header, planes| Ok(Box::new(AnsMatrix::upload(gpu, header, planes)?))),
    ]
}

fn shift(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Box<dyn Decode>, CudaError> {
    Ok(Box::new(ShiftMatrix::new(gpu, header, planes)?))
}

impl Decode for ShiftMatrix {
    fn bytes(&self) -> usize {
        self.device_bytes()
    }

    fn enqueue(&self, _: &Gpu, stream: StreamRef<'_>, out: DevSliceMut<'_, bf16>) -> Result<(), CudaError> {
        self.decode(stream, 0..self.rows(), out)
    }
}

impl Decode for RiceMatrix {
    fn bytes(&self) -> usize {
        self.device_bytes() as usize
    }

    fn enqueue(&self, gpu: &Gpu, stream: StreamRef<'_>, out: DevSliceMut<'_, bf16>) -> Result<(), CudaError> {
        self.decode(gpu, stream, out)
    }
}

impl Decode for AnsMatrix {
    fn bytes(&self) -> usize {
        self.device_bytes() as usize
    }

    fn enqueue(&self, gpu: &Gpu, stream: StreamRef<'_>, out: DevSliceMut<'_, bf16>) -> Result<(), CudaError> {
        self.decode(gpu, stream, out)
    }
}

/// Decodes a matrix of `shape` under each codec that was asked for; values equal the CPU's in every bit.
pub(super) fn run(bench: &mut Bench<'_>, shape: Shape) -> Result<()> {
    for (codec, variant, order, upload) in targets() {
        if bench.args.wants_codec(codec) {
            one(bench, shape, codec, variant, order, upload).with_context(|| format!("decode {codec} of {shape}"))?;
        }
    }
    Ok(())
}

fn one(
    bench: &mut Bench<'_>,
    shape: Shape,
    codec: &'static str,
    variant: &'static str,
    order: ShiftOrderKind,
    upload: Upload,
) -> Result<()> {
    let mut block = bench.block(shape).clone();
    if codec.starts_with("trellis") {
        // A path through the entropy-coded trellis crosses rows, so that repeated rows are no repeated points.
        block.weights = block.weights.repeat(shape.rows / block.rows());
    }
    let encoded: Encoded = bench.encode(codec, order, &block)?;
    let matrix = encoded.repeated(shape.rows, &block)?;
    let expected = rotated(&encoded.matrix)?;
    let n_bytes: usize = matrix.planes.iter().map(|plane| plane.data.n_bytes()).sum();
    // The output is written as well, and is larger than what is read: copies need not fill the L2 alone.
    // Streams of ANS are long and few, so that a matrix takes milliseconds: its weights are out of the cache by then.
    let is_slow = !codec.starts_with("shift") && !codec.contains("rice");
    let n_copies = if bench.args.check || is_slow { 2 } else { timing::copies(n_bytes).min(16) };
    let copies = (0..n_copies)
        .map(|_| upload(bench.gpu, &matrix.header, &matrix.planes))
        .collect::<Result<Vec<_>, CudaError>>()?;
    let mut out = bench.gpu.upload(&vec![bf16::NAN; shape.n_weights()])?;
    copies[n_copies - 1].enqueue(bench.gpu, bench.stream.as_ref(), out.as_mut())?;
    bench.stream.synchronize().context("the kernel failed")?;
    let found = bench.gpu.download(out.as_slice())?;
    let wrong = found.chunks(expected.len()).flat_map(|part| part.iter().zip(&expected));
    let n_wrong = wrong.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let rel_err = n_wrong as f64 / found.len() as f64;
    let valid = bench.judge(&format!("decode {codec} {variant} {shape}: share of wrong values"), rel_err, 0.0);
    let timing = if bench.args.check {
        None
    } else {
        let (gpu, replays) = (bench.gpu, bench.args.replays().min(if is_slow { 3 } else { 10 }));
        Some(timing::rotated_few(gpu, &bench.stream, n_copies, replays, |stream, copy| {
            copies[copy].enqueue(gpu, stream, out.as_mut())
        })?)
    };
    let entry = Entry {
        op: Op::Decode,
        codec,
        variant,
        shape,
        batch: 1,
        payload_bps: Some(encoded.payload_bps),
        mse: Some(encoded.mse),
        matrix_bytes: copies[0].bytes(),
        other_bytes: 2 * shape.n_weights(),
        copies: n_copies,
        rel_err: Some(rel_err),
        valid,
        is_product: false,
        note: "to bf16 in the rotated frame; rel_err is the share of values that differ from the CPU's",
    };
    bench.push(&entry, timing, "single");
    Ok(())
}

/// All values in the rotated frame, rounded to bf16.
fn rotated(matrix: &EncodedMatrix) -> Result<Vec<bf16>> {
    let decoder = matrix.decoder()?;
    let (rows, cols) = (decoder.rows(), decoder.cols());
    let mut out = vec![0.0; rows * cols];
    decoder.decode_rows_rotated(0..rows, &mut out, &mut DecodeScratch::new())?;
    Ok(out.iter().map(|&v| bf16::from_f32(v)).collect())
}
