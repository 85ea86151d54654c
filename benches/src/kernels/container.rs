//! Products with the matrices of a compressed model: correctness on real weights.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use gosset_codec::{DecodeScratch, Decoder, MatrixHeader, SchemeHeader};
use gosset_container::Container;
use gosset_cuda::CudaError;

use super::args::Shape;
use super::bench::Bench;
use super::candidates::{Candidate, candidates};
use super::note;
use super::product;
use super::reference::{MAX_REL_ERR, Reference};
use super::report::ContainerRow;

/// Activations at once.
const BATCHES: [usize; 2] = [1, 5];

/// Checks the products of at most `most` matrices of each codec and shape.
pub(super) fn run(bench: &mut Bench<'_>, path: &Path, most: usize) -> Result<()> {
    let container = Container::open(path).with_context(|| format!("--container {}", path.display()))?;
    let mut seen: HashMap<(&'static str, Shape), usize> = HashMap::new();
    let names: Vec<String> =
        container.entries().iter().filter(|entry| entry.is_coded()).map(|entry| entry.name.clone()).collect();
    for name in names {
        let tensor = container.coded(&name)?;
        let header = tensor.header();
        let shape = Shape { rows: header.rows as usize, cols: header.cols as usize };
        let n_seen = seen.entry((header.codec_name(), shape)).or_default();
        if *n_seen >= most {
            continue;
        }
        *n_seen += 1;
        let planes = tensor.planes();
        let decoder = tensor.decoder()?;
        let weights = decode(&decoder)?;
        let mut kernels: Vec<Candidate> = Vec::new();
        for candidate in candidates() {
            let known = kernels.iter().any(|k| (k.gemv, k.variant) == (candidate.gemv, candidate.variant));
            if fits(&candidate, header) && !known {
                kernels.push(candidate);
            }
        }
        for candidate in kernels {
            let mut product = match (candidate.build)(bench.gpu, header, &planes, 1) {
                Ok(product) => product,
                Err(CudaError::Unsupported { op, what }) => {
                    note(&format!("{name}: {op} is not built for {what}"));
                    continue;
                }
                Err(error) => return Err(error).with_context(|| name.clone()),
            };
            let most = product.max_batch();
            for batch in BATCHES.into_iter().filter(|&batch| batch <= most) {
                let Some(op) = (if batch == 1 { Some(candidate.gemv) } else { candidate.gemm }) else { continue };
                let x = product::with_outliers(&bench.activations(shape.cols, batch));
                let reference = Reference::new(&weights, shape.cols, &x);
                let rel_err = product::check(bench.gpu, &bench.stream, &mut *product, shape, &x, &reference)?;
                let what =
                    format!("{} {} {} of {name}, batch {batch}", op.name(), header.codec_name(), candidate.variant);
                let valid = bench.judge(&what, rel_err, MAX_REL_ERR);
                bench.report.container.push(ContainerRow {
                    op: op.name().to_owned(),
                    codec: format!("{} {}", header.codec_name(), candidate.variant).trim_end().to_owned(),
                    tensor: name.clone(),
                    shape: shape.to_string(),
                    batch,
                    rel_err,
                    valid,
                });
            }
        }
    }
    Ok(())
}

/// Whether a candidate multiplies with matrices of that header: same codec, same order.
fn fits(candidate: &Candidate, header: &MatrixHeader) -> bool {
    let name = candidate.codec.split('@').next().unwrap_or(candidate.codec);
    let same_order = match &header.scheme {
        SchemeHeader::Shift(shift) => shift.order == candidate.order,
        _ => true,
    };
    name == header.codec_name() && same_order
}

fn decode(decoder: &Decoder<'_>) -> Result<Vec<f32>> {
    let mut out = vec![0.0; decoder.rows() * decoder.cols()];
    decoder.decode_rows(0..decoder.rows(), &mut out, &mut DecodeScratch::new())?;
    Ok(out)
}
