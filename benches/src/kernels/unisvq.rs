//! Products of affine-grid matrices, both transforms and the fold of the map in the time.

use anyhow::{Context, Result, ensure};
use gosset_cuda::launch::unisvq::{DeviceUniSvq, UniSvqWorkspace};
use gosset_cuda::{CudaError, DevSlice, DevSliceMut, StreamRef};
use gosset_unisvq::{Frame, UniSvqMatrix, UniSvqSpec};
use half::f16;

use super::args::{Op, Shape};
use super::bench::Bench;
use super::block::Block;
use super::candidates::{Subject, measure, n_copies, references};
use super::product::Product;

/// Names in the table, bits, and the map: the identity, or a general one of four by four.
const CODECS: [(&str, f64, &str, &str); 4] = [
    ("unisvq@2", 2.0, "identity", "unisvq"),
    ("unisvq@2", 2.0, "4x4", "unisvq-random"),
    ("unisvq@3", 3.0, "identity", "unisvq"),
    ("unisvq@3", 3.0, "4x4", "unisvq-random"),
];

/// Rows that an output transform mixes.
const GROUP_ROWS: usize = 128;

/// Seed of the output frame of a matrix that repeats a block: its signs are those of the block, given as factors.
const OUTPUT_SEED: u64 = 1;

struct Affine {
    copies: Vec<DeviceUniSvq>,
    workspace: UniSvqWorkspace,
}

/// Measures both widths on matrices of `shape`.
pub(super) fn run(bench: &mut Bench<'_>, shape: Shape) -> Result<()> {
    for (codec, bits, variant, method) in CODECS {
        if bench.args.wants_codec(codec) {
            let name = || format!("{codec} {variant} of {shape}");
            one(bench, shape, (codec, variant), UniSvqSpec::named(method, bits)?).with_context(name)?;
        }
    }
    Ok(())
}

fn one(bench: &mut Bench<'_>, shape: Shape, (codec, variant): (&str, &str), spec: UniSvqSpec) -> Result<()> {
    let block = bench.block(shape).clone();
    let bits = f64::from(spec.bits);
    let (encoded, _) = spec.check()?.encode(&block.weights, block.rows(), block.cols, None)?;
    let mut decoded = vec![0.0; block.weights.len()];
    encoded.decoder()?.decode_rows(0..block.rows(), &mut decoded);
    let noise: f64 = block.weights.iter().zip(&decoded).map(|(&w, &d)| (f64::from(w) - f64::from(d)).powi(2)).sum();
    let signal: f64 = block.weights.iter().map(|&w| f64::from(w).powi(2)).sum();
    let matrix = repeated(&encoded, shape.rows, &block)?;
    let decoder = matrix.decoder()?;
    let n = n_copies(bench, shape, matrix.codes.len());
    let copies = (0..n).map(|_| DeviceUniSvq::new(bench.gpu, &decoder)).collect::<Result<Vec<_>, _>>()?;
    let mut workspace = UniSvqWorkspace::new();
    if let Some(&most) = bench.args.batches()?.last() {
        workspace.reserve(bench.gpu, copies[0].needs(most))?;
    }
    let references = references(bench, shape.cols, &decoded, None)?;
    let subject = Subject {
        gemv: Op::UnisvqGemv,
        gemm: Some(Op::UnisvqGemm),
        codec,
        variant,
        payload_bps: bits,
        mse: noise / signal,
        references: &references,
    };
    measure(bench, shape, &subject, &mut Affine { copies, workspace })
}

/// The matrix of `rows` rows that repeats the block.
fn repeated(block: &UniSvqMatrix, rows: usize, of: &Block) -> Result<UniSvqMatrix> {
    let times = rows / of.rows();
    if times == 1 {
        return Ok(block.clone());
    }
    ensure!(
        of.rows().is_multiple_of(GROUP_ROWS),
        "found blocks of {} rows, expected whole groups of {GROUP_ROWS}",
        of.rows()
    );
    let mut header = block.header.clone();
    header.rows = rows as u64;
    header.output = Frame::tiles(rows, GROUP_ROWS as u32, OUTPUT_SEED)?.header();
    let signs: Vec<f16> = block.decoder()?.output_scales().iter().map(|&s| f16::from_f32(s)).collect();
    Ok(UniSvqMatrix {
        header,
        codes: block.codes.repeat(times),
        input_scales: block.input_scales.clone(),
        output_scales: Some(signs.repeat(times)),
    })
}

impl Product for Affine {
    fn n_copies(&self) -> usize {
        self.copies.len()
    }

    fn bytes(&self) -> usize {
        self.copies[0].bytes()
    }

    fn max_batch(&self) -> usize {
        usize::MAX
    }

    fn enqueue(
        &mut self,
        stream: StreamRef<'_>,
        copy: usize,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        batch: usize,
    ) -> Result<(), CudaError> {
        self.copies[copy].product(stream, x, batch, y, &mut self.workspace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_blocks_decode_to_the_same_rows() {
        let shape = Shape { rows: 512, cols: 192 };
        let block = Block::new(shape, 128, 3);
        for (_, bits, _, method) in CODECS {
            let (encoded, _) = UniSvqSpec::named(method, bits)
                .unwrap()
                .check()
                .unwrap()
                .encode(&block.weights, 128, 192, None)
                .unwrap();
            let mut once = vec![0.0; 128 * 192];
            encoded.decoder().unwrap().decode_rows(0..128, &mut once);
            let all = repeated(&encoded, 512, &block).unwrap();
            let mut rows = vec![0.0; 512 * 192];
            all.decoder().unwrap().decode_rows(0..512, &mut rows);
            assert!(rows.chunks_exact(once.len()).all(|part| part == once), "{method}");
        }
    }
}
