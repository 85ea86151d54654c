//! What is multiplied how: the table of codecs and orders, and the loop over it.

use anyhow::{Context, Result};
use gosset_codec::{MatrixHeader, Plane, Rht, ShiftOrderKind};
use gosset_cuda::{CudaError, Gpu};

use super::args::{Op, Shape};
use super::bench::{Bench, Entry};
use super::block::{Block, Encoded};
use super::dense;
use super::product::{self, Product};
use super::reference::{MAX_REL_ERR, Reference};
use super::timing::{self, LAYERS};
use super::{note, rice, shift};

/// Puts copies of an encoded matrix on the device.
pub(super) type Build = fn(&Gpu, &MatrixHeader, &[Plane<'_>], usize) -> Result<Box<dyn Product>, CudaError>;

/// One codec in one order under one kernel.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    /// Operation at batch 1.
    pub(super) gemv: Op,
    /// Operation at larger batches.
    pub(super) gemm: Option<Op>,
    /// Codec and payload.
    pub(super) codec: &'static str,
    /// What tells kernels of one codec apart.
    pub(super) variant: &'static str,
    /// Whether batches above 1 are measured.
    pub(super) with_batches: bool,
    /// Order of the weights in the streams, for bit-shift trellises.
    pub(super) order: ShiftOrderKind,
    pub(super) build: Build,
}

/// Everything that is compared.
pub(super) fn candidates() -> Vec<Candidate> {
    let rice = |codec, variant, build| Candidate {
        gemv: Op::RiceGemv,
        gemm: Some(Op::RiceGemm),
        codec,
        variant,
        with_batches: variant == "planes",
        order: ShiftOrderKind::Rows,
        build,
    };
    let shift = |codec, variant, order| Candidate {
        gemv: Op::ShiftGemv,
        gemm: Some(Op::ShiftGemm),
        codec,
        variant,
        with_batches: order == ShiftOrderKind::Tiles,
        order,
        build: shift::build,
    };
    let mut all = Vec::new();
    for codec in ["shift-16@2", "shift-16@3", "shift-16@4", "shiftlut-17@2", "shiftlut-17@3", "shiftlut-17@4"] {
        all.push(shift(codec, "rows", ShiftOrderKind::Rows));
        all.push(shift(codec, "tiles", ShiftOrderKind::Tiles));
    }
    for codec in ["shift-18@2", "shift-18@3", "shift-18@4"] {
        all.push(shift(codec, "tiles", ShiftOrderKind::Tiles));
    }
    for codec in ["e8-rice@2", "e8-rice@3", "e8-rice@4"] {
        all.push(rice(codec, "streams", rice::streams as Build));
        all.push(rice(codec, "lanes", rice::lanes));
        all.push(rice(codec, "planes", rice::planes));
    }
    all
}

/// A block that was encoded, and its products with the activations that every shape of its width has.
pub(super) struct Prepared {
    encoded: Encoded,
    references: [Reference; 2],
}

/// Blocks that were encoded, by codec, order and shape of the block.
pub(super) type Cache = Vec<((&'static str, ShiftOrderKind, Shape), Prepared)>;

/// Measures every candidate that was asked for on matrices of `shape`.
pub(super) fn run(bench: &mut Bench<'_>, shape: Shape, cache: &mut Cache) -> Result<()> {
    for candidate in candidates() {
        let wanted = [Some(candidate.gemv), candidate.gemm].into_iter().flatten().any(|op| bench.args.wants(op));
        if wanted && bench.args.wants_codec(candidate.codec) {
            one(bench, shape, &candidate, cache)
                .with_context(|| format!("{} {} of {shape}", candidate.codec, candidate.variant))?;
        }
    }
    Ok(())
}

/// Copies of a matrix of so many bytes: whole graphs of layers where the shape has them.
pub(super) fn n_copies(bench: &Bench<'_>, shape: Shape, n_bytes: usize) -> usize {
    if bench.args.check { 2 } else { timing::copies(n_bytes).next_multiple_of(dense::shape_layers(shape)) }
}

fn one(bench: &mut Bench<'_>, shape: Shape, candidate: &Candidate, cache: &mut Cache) -> Result<()> {
    let Candidate { codec, variant, .. } = *candidate;
    let block: Block = bench.block(shape).clone();
    // Whole matrices that differ in their rows may repeat one block.
    let key = Shape { rows: block.rows(), cols: block.cols };
    let prepared = match cache.iter().position(|(known, _)| *known == (codec, candidate.order, key)) {
        Some(at) => &cache[at].1,
        None => {
            let encoded = bench.encode(codec, candidate.order, &block)?;
            let references = references(bench, shape.cols, &encoded.decoded, None)?;
            cache.push(((codec, candidate.order, key), Prepared { encoded, references }));
            &cache[cache.len() - 1].1
        }
    };
    let Prepared { encoded, references } = prepared;
    let matrix = encoded.repeated(shape.rows, &block)?;
    let n_bytes: usize = matrix.planes.iter().map(|plane| plane.data.n_bytes()).sum();
    let n_copies = n_copies(bench, shape, n_bytes);
    let mut product = match (candidate.build)(bench.gpu, &matrix.header, &matrix.planes, n_copies) {
        Ok(product) => product,
        Err(CudaError::Unsupported { op, what }) => {
            note(&format!("{codec} {variant} {shape}: {op} is not built for {what}"));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let subject = Subject {
        gemv: candidate.gemv,
        gemm: candidate.gemm.filter(|_| candidate.with_batches || bench.args.check),
        codec,
        variant,
        payload_bps: encoded.payload_bps,
        mse: encoded.mse,
        references,
    };
    measure(bench, shape, &subject, &mut *product)
}

/// What a product is of.
pub(super) struct Subject<'a> {
    /// Operation at batch 1.
    pub(super) gemv: Op,
    /// Operation at larger batches.
    pub(super) gemm: Option<Op>,
    /// Codec and payload.
    pub(super) codec: &'a str,
    pub(super) variant: &'a str,
    pub(super) payload_bps: f64,
    pub(super) mse: f64,
    /// What [`references`] found.
    pub(super) references: &'a [Reference; 2],
}

/// Products of the activations, plain and with outliers, with the dequantized rows that a matrix repeats; `rht` is the rotation
/// of activations if those rows are in the rotated frame.
pub(super) fn references(bench: &Bench<'_>, cols: usize, weights: &[f32], rht: Option<&Rht>) -> Result<[Reference; 2]> {
    let most = bench.args.batches()?.last().copied().unwrap_or(1);
    let x = bench.activations(cols, most);
    let outliers = product::with_outliers(&x);
    Ok([x, outliers].map(|mut x| {
        if let Some(rht) = rht {
            rht.forward_rows(&mut x);
        }
        Reference::new(weights, cols, &x)
    }))
}

/// Checks and times a product at every batch that was asked for.
pub(super) fn measure(
    bench: &mut Bench<'_>,
    shape: Shape,
    subject: &Subject<'_>,
    product: &mut dyn Product,
) -> Result<()> {
    let Subject { codec, variant, .. } = *subject;
    let most = product.max_batch();
    let batches: Vec<usize> = bench.args.batches()?.into_iter().filter(|&batch| batch <= most).collect();
    let Some(&most) = batches.last() else { return Ok(()) };
    let x = bench.activations(shape.cols, most);
    let outliers = product::with_outliers(&x);
    let [reference, hard] = subject.references;
    for batch in batches {
        let Some(op) = (if batch == 1 { Some(subject.gemv) } else { subject.gemm }) else { continue };
        if !bench.args.wants(op) {
            continue;
        }
        let (x, outliers) = (&x[..batch * shape.cols], &outliers[..batch * shape.cols]);
        let mut rel_err = product::check(bench.gpu, &bench.stream, product, shape, x, reference)?;
        rel_err = rel_err.max(product::check(bench.gpu, &bench.stream, product, shape, outliers, hard)?);
        let valid =
            bench.judge(&format!("{} {codec} {variant} {shape} batch {batch}", op.name()), rel_err, MAX_REL_ERR);
        let entry = Entry {
            op,
            codec,
            variant,
            shape,
            batch,
            payload_bps: Some(subject.payload_bps),
            mse: Some(subject.mse),
            matrix_bytes: product.bytes(),
            other_bytes: 4 * batch * (shape.rows + shape.cols),
            copies: product.n_copies(),
            rel_err: Some(rel_err),
            valid,
            is_product: true,
            note: "",
        };
        if bench.args.check {
            bench.push(&entry, None, "check");
            continue;
        }
        let in_layers = batch == 1 && dense::shape_layers(shape) == LAYERS;
        let replays = bench.args.replays();
        let (single, layers) = product::time(bench.gpu, &bench.stream, product, shape, x, replays, in_layers)?;
        bench.push(&entry, Some(single), "single");
        if layers.is_some() {
            bench.push(&entry, layers, "layers");
        }
    }
    Ok(())
}
