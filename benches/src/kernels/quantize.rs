//! From weights on the device to the planes of a file.

use std::time::Instant;

use anyhow::{Context, Result};
use gosset_codec::{CodecSpec, RateTarget, SchemeHeader, ShiftOrderKind};
use gosset_cuda::CudaError;
use gosset_cuda::launch::quantize;

use super::args::{Op, Shape};
use super::bench::{Bench, Entry};
use super::block::Encoded;
use super::note;
use super::timing::Timing;

/// Codecs, and the largest number of rows that is timed: a search takes a second per ten million weights and more.
const TARGETS: [(&str, usize); 6] = [
    ("e8-rice@2", usize::MAX),
    ("e8-rice@4", usize::MAX),
    ("shift-16@2", 2048),
    ("shift-16@3", 2048),
    ("shift-16@4", 2048),
    ("shiftlut-17@2", 2048),
];
/// Runs of each, after one on the block of rows.
const RUNS: usize = 3;

/// Encodes a matrix of `shape` under each codec that was asked for; planes equal the CPU's byte for byte.
pub(super) fn run(bench: &mut Bench<'_>, shape: Shape) -> Result<()> {
    for (codec, most) in TARGETS {
        if bench.args.wants_codec(codec) {
            one(bench, shape, codec, most).with_context(|| format!("quantize {codec} of {shape}"))?;
        }
    }
    Ok(())
}

fn one(bench: &mut Bench<'_>, shape: Shape, codec: &'static str, most: usize) -> Result<()> {
    let block = bench.block(shape).clone();
    let encoded = Encoded::new(codec, ShiftOrderKind::Rows, &block)?;
    let mut spec = CodecSpec::parse(codec)?;
    if let SchemeHeader::Lattice(lattice) = &encoded.matrix.header.scheme {
        spec.target = RateTarget::Alpha(f64::from(lattice.alpha));
    }
    let gpu = bench.gpu;
    let data = gpu.upload(&block.weights)?;
    let found = match quantize::encode(gpu, &spec, data.as_slice(), block.rows(), block.cols) {
        Err(CudaError::Unsupported { op, what }) => {
            note(&format!("{codec}: {op} is not built for {what}"));
            return Ok(());
        }
        found => found?,
    };
    let n_wrong = found.planes.iter().zip(&encoded.matrix.planes).filter(|(a, b)| a != b).count();
    let n_wrong = if found.header == encoded.matrix.header { n_wrong } else { n_wrong + 1 };
    let valid = bench.judge(&format!("quantize {codec}: planes that differ from the CPU's"), n_wrong as f64, 0.0);
    let shape = Shape { rows: shape.rows.min(most / block.rows() * block.rows()).max(block.rows()), ..shape };
    let timing = if bench.args.check {
        None
    } else {
        let data = gpu.upload(&block.weights.repeat(shape.rows / block.rows()))?;
        let mut us = Vec::new();
        for _ in 0..RUNS {
            gpu.synchronize()?;
            let start = Instant::now();
            quantize::encode(gpu, &spec, data.as_slice(), shape.rows, shape.cols)?;
            us.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Some(Timing::of(us, 1))
    };
    let entry = Entry {
        op: Op::Quantize,
        codec,
        variant: "",
        shape,
        batch: 1,
        payload_bps: Some(encoded.payload_bps),
        mse: Some(encoded.mse),
        matrix_bytes: found.planes.iter().map(|plane| plane.data.n_bytes()).sum::<usize>() * shape.rows / block.rows(),
        other_bytes: 4 * shape.n_weights(),
        copies: 1,
        rel_err: Some(n_wrong as f64),
        valid,
        is_product: false,
        note: "from f32 on the device to planes on the host, wall clock; rel_err is the number of planes that differ from the CPU's",
    };
    bench.push(&entry, timing, "single");
    Ok(())
}
