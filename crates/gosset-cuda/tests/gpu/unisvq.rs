//! Affine-grid matrices: the codes as they were, products within the bound of 16-bit activations.

use gosset_cuda::launch::unisvq::{DeviceUniSvq, UniSvqWorkspace};
use gosset_cuda::{CudaError, Gpu, Graph, OpenOptions};
use gosset_transform::{Domain, RandomStream};
use gosset_unisvq::{AffineMap, Frame, UniSvqDecoder, UniSvqHeader, UniSvqMatrix, pack_row, row_bytes};
use half::f16;

use crate::{gpu, reduced};

/// Over |t'| |q - centre|, t' being the folded activation: coordinates are off by up to half of 1/32512 of the largest one, evenly, so
/// that the error has a standard deviation of at most 8.9e-6 of that product. Eleven of those, no outlier of 10^7 rows.
const BOUND: f64 = 1e-4;

/// The same where activations are halves: coordinates are off by up to 2^-11 of themselves, sums in f32 by less than what is left.
const BOUND_HALVES: f64 = 5e-4;

#[derive(Debug, Clone, Copy)]
struct Case {
    bits: u8,
    dim: u8,
    rows: usize,
    cols: usize,
    affine: bool,
    tuned: bool,
    /// Tile that was asked for, 0 for no transform.
    tile: u32,
}

struct Random(RandomStream);

impl Random {
    fn new(index: u64) -> Self {
        Self(RandomStream::new(0x5_1f, Domain::Rotation, index))
    }

    fn gaussian(&mut self) -> f32 {
        let mut uniform = || (f64::from(self.0.next_u32()) + 0.5) / 2f64.powi(32);
        ((-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32
    }

    fn gaussians(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.gaussian()).collect()
    }
}

fn codes(case: Case, row: usize) -> Vec<u8> {
    let mut random = Random::new(1 + row as u64);
    (0..case.cols).map(|_| (random.0.next_u32() >> 7) as u8 & ((1 << case.bits) - 1)).collect()
}

fn matrix(case: Case) -> UniSvqMatrix {
    let mut random = Random::new(1 << 40);
    let frame = |width, seed| match case.tile {
        0 => Frame::identity(width).header(),
        tile => Frame::tiles(width, tile, seed).unwrap().header(),
    };
    let d = usize::from(case.dim);
    let affine = case.affine.then(|| AffineMap { a: random.gaussians(d * d), b: random.gaussians(d) });
    let header = UniSvqHeader {
        rows: case.rows as u64,
        cols: case.cols as u64,
        bits: case.bits,
        dim: case.dim,
        scale: 0.037,
        affine,
        input: frame(case.cols, 5),
        output: frame(case.rows, 6),
    };
    let mut packed = Vec::new();
    for row in 0..case.rows {
        let at = packed.len();
        packed.resize(at + row_bytes(case.cols, case.bits), 0);
        pack_row(&codes(case, row), case.bits, &mut packed[at..]);
    }
    let mut scales =
        |n: usize| case.tuned.then(|| random.gaussians(n).into_iter().map(f16::from_f32).collect::<Vec<_>>());
    let (input_scales, output_scales) = (scales(case.cols), scales(case.rows));
    UniSvqMatrix { header, codes: packed, input_scales, output_scales }
}

/// What the CPU makes of an activation, and the size that errors are measured by.
fn expected(decoder: &UniSvqDecoder<'_>, x: &[f32]) -> (Vec<f32>, f64) {
    let header = decoder.header();
    let mut t = x.to_vec();
    decoder.rotate_input(&mut t);
    let map = header.affine_map();
    let d = usize::from(header.dim);
    let (mut folded, mut beta) = (vec![0f64; t.len()], 0f64);
    for (out, t) in folded.chunks_mut(d).zip(t.chunks(d)) {
        for (k, out) in out.iter_mut().enumerate() {
            *out = t.iter().enumerate().map(|(i, &t)| f64::from(map.a[i * d + k]) * f64::from(t)).sum();
        }
        beta += t.iter().zip(&map.b).map(|(&t, &b)| f64::from(t) * f64::from(b)).sum::<f64>();
    }
    let norm = folded.iter().map(|t| t * t).sum::<f64>().sqrt();
    let centre = f64::from((1u32 << header.bits) - 1) / 2.0;
    let (mut z, mut size) = (Vec::with_capacity(decoder.rows()), 0f64);
    let mut row_codes = vec![0.0; decoder.cols()];
    for row in 0..decoder.rows() {
        decoder.codes_as_f32(row..row + 1, &mut row_codes);
        let (mut sum, mut square) = (beta, 0.0);
        for (&q, t) in row_codes.iter().zip(&folded) {
            sum += f64::from(q) * t;
            square += (f64::from(q) - centre).powi(2);
        }
        z.push((f64::from(header.scale) * sum) as f32);
        size = size.max(f64::from(header.scale) * square.sqrt() * norm);
    }
    decoder.finish_output(&mut z);
    (z, size)
}

fn check(name: &str, decoder: &UniSvqDecoder<'_>, x: &[f32], y: &[f32]) {
    let halves = x.len() / decoder.cols() > 8 && decoder.header().bits <= 3;
    let bound = if halves { BOUND_HALVES } else { BOUND };
    let mut worst = 0f64;
    for (b, (x, y)) in x.chunks_exact(decoder.cols()).zip(y.chunks_exact(decoder.rows())).enumerate() {
        let (expected, size) = expected(decoder, x);
        for (row, ((&y, e), s)) in y.iter().zip(expected).zip(decoder.output_scales()).enumerate() {
            let (error, bound) = (f64::from((y - e).abs()), bound * size * f64::from(s.abs()));
            worst = worst.max(error / bound);
            assert!(
                error <= bound,
                "{name}: row {row} of activation {b}: {y}, expected {e}, off by {error:e} of {bound:e}"
            );
        }
    }
    eprintln!("{name}: at most {worst:.3} of the bound");
}

fn activations(case: Case, batch: usize) -> Vec<f32> {
    let mut x = Random::new(2 << 40).gaussians(batch * case.cols);
    // One coordinate far beyond the others, as residual streams have them.
    x.iter_mut().step_by(1021).for_each(|x| *x *= 100.0);
    x
}

fn run(gpu: &Gpu, case: Case, batches: &[usize], workspace: &mut UniSvqWorkspace) {
    let stream = gpu.stream().unwrap();
    let matrix = matrix(case);
    let decoder = matrix.decoder().unwrap();
    let device = DeviceUniSvq::new(gpu, &decoder).unwrap();
    assert!(device.bytes() >= matrix.codes.len());
    for &batch in batches {
        let x = activations(case, batch);
        let on_device = gpu.upload(&x).unwrap();
        let mut y = gpu.upload(&vec![f32::NAN; batch * case.rows]).unwrap();
        // Twice without a pause: counters are as they were.
        for _ in 0..2 {
            device.product(stream.as_ref(), on_device.as_slice(), batch, y.as_mut(), workspace).unwrap();
        }
        stream.synchronize().unwrap();
        check(&format!("{case:?}, batch {batch}"), &decoder, &x, &gpu.download(y.as_slice()).unwrap());
    }
}

const SHAPES: [(usize, usize); 14] = [
    (1, 1),
    (7, 65),
    (33, 300),
    (150, 210),
    (576, 576),
    (192, 1536),
    (136, 896),
    (896, 4864),
    (4100, 4096),
    (300, 4090),
    (128, 14_336),
    (70, 17_408),
    (3000, 64),
    (260, 4096),
];

#[test]
fn unisvq_codes_on_the_device_are_those_of_the_file() {
    let Some(gpu) = gpu() else { return };
    for bits in 2..=4 {
        for (rows, cols) in SHAPES {
            let case = Case { bits, dim: 4, rows, cols, affine: false, tuned: false, tile: 128 };
            let matrix = matrix(case);
            let device = DeviceUniSvq::new(&gpu, &matrix.decoder().unwrap()).unwrap();
            let expected: Vec<u8> = (0..rows).flat_map(|row| codes(case, row)).collect();
            assert!(device.codes().unwrap() == expected, "{case:?}");
        }
    }
}

#[test]
fn unisvq_products_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let mut workspace = UniSvqWorkspace::new();
    // Every shape and width meets every kind of map, with and without tuned factors.
    for (i, (rows, cols)) in SHAPES.into_iter().enumerate() {
        for bits in 2..=4 {
            let large = rows * cols > 1 << 20;
            let kinds = if large || reduced() { 2 } else { 8 };
            for kind in (0..kinds).map(|kind| kind + i + usize::from(bits)) {
                let (dim, affine) = ([4, 1, 2, 8][kind / 2 % 4], kind % 2 == 0);
                let case = Case { bits, dim, rows, cols, affine, tuned: kind % 3 == 0, tile: 128 };
                let batches: &[usize] = if large { &[1, 6] } else { &[1, 2, 3, 4, 5, 8, 9] };
                run(&gpu, case, batches, &mut workspace);
            }
        }
    }
}

#[test]
fn unisvq_products_of_many_activations_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let mut workspace = UniSvqWorkspace::new();
    for (i, (rows, cols)) in SHAPES.into_iter().enumerate() {
        for bits in [2, 3] {
            let (dim, affine) = ([4, 2, 8, 1][i % 4], i % 2 == 0);
            let case = Case { bits, dim, rows, cols, affine, tuned: i % 3 == 1, tile: 128 };
            let large = rows * cols > 1 << 20;
            let batches: &[usize] = if large || reduced() { &[16, 33] } else { &[9, 16, 17, 32, 48, 64, 65, 130] };
            run(&gpu, case, batches, &mut workspace);
        }
    }
    // No kernels for many at four bits.
    let case = Case { bits: 4, dim: 4, rows: 150, cols: 210, affine: true, tuned: false, tile: 128 };
    run(&gpu, case, &[7, 16, 17], &mut workspace);
}

#[test]
fn unisvq_products_of_many_activations_take_any_device() {
    if gpu().is_none() {
        return;
    }
    for (bytes, n_sms) in [(99 << 10, 5), (163 << 10, 1), (227 << 10, 400), (64 << 10, 132)] {
        let options = OpenOptions::default().pretend_shared_bytes(bytes).pretend_multiprocessors(n_sms);
        let gpu = Gpu::open(0, &options).unwrap();
        for (bits, rows, cols) in [(2, 520, 4096), (3, 1100, 1024), (3, 90, 8192), (2, 2000, 250)] {
            let case = Case { bits, dim: 4, rows, cols, affine: true, tuned: true, tile: 128 };
            run(&gpu, case, &[11, 31, 64], &mut UniSvqWorkspace::new());
        }
    }
}

#[test]
fn unisvq_products_take_other_frames_and_sizes() {
    let Some(gpu) = gpu() else { return };
    let mut workspace = UniSvqWorkspace::new();
    for tile in [0, 64, 32] {
        for (rows, cols, bits) in [(200, 640, 2), (96, 4096, 3), (77, 333, 3)] {
            run(&gpu, Case { bits, dim: 4, rows, cols, affine: true, tuned: false, tile }, &[1, 6, 20], &mut workspace);
        }
    }
    // Activations of any size, and of none.
    let case = Case { bits: 2, dim: 4, rows: 300, cols: 512, affine: true, tuned: false, tile: 128 };
    let matrix = matrix(case);
    let decoder = matrix.decoder().unwrap();
    let device = DeviceUniSvq::new(&gpu, &decoder).unwrap();
    let stream = gpu.stream().unwrap();
    for batch in [1, 7, 12] {
        for factor in [1e-20, 1e20, 0.0] {
            let x: Vec<f32> = activations(case, batch).into_iter().map(|x| x * factor).collect();
            let on_device = gpu.upload(&x).unwrap();
            let mut y = gpu.upload(&vec![f32::NAN; batch * case.rows]).unwrap();
            device.product(stream.as_ref(), on_device.as_slice(), batch, y.as_mut(), &mut workspace).unwrap();
            stream.synchronize().unwrap();
            check(&format!("{case:?}, size {factor}"), &decoder, &x, &gpu.download(y.as_slice()).unwrap());
        }
    }
}

#[test]
fn unisvq_products_run_in_graphs_and_with_less_shared_memory() {
    if gpu().is_none() {
        return;
    }
    for bytes in [99 << 10, 163 << 10] {
        let gpu = Gpu::open(0, &OpenOptions::default().pretend_shared_bytes(bytes)).unwrap();
        for (bits, cols, batch) in [(2, 4096, 1), (3, 4096, 1), (3, 1024, 7), (2, 8192, 1)] {
            let case = Case { bits, dim: 4, rows: 520, cols, affine: true, tuned: true, tile: 128 };
            run(&gpu, case, &[batch], &mut UniSvqWorkspace::new());
        }
    }
    let gpu = gpu().unwrap();
    let case = Case { bits: 2, dim: 4, rows: 2176, cols: 2176, affine: true, tuned: false, tile: 128 };
    let matrix = matrix(case);
    let decoder = matrix.decoder().unwrap();
    let device = DeviceUniSvq::new(&gpu, &decoder).unwrap();
    let stream = gpu.stream().unwrap();
    let mut workspace = UniSvqWorkspace::new();
    for batch in [1, 24] {
        workspace.reserve(&gpu, device.needs(batch)).unwrap();
        // Each product takes what the one before gave.
        let x = activations(case, batch);
        let first = gpu.upload(&x).unwrap();
        let mut chain: Vec<_> = (0..6).map(|_| gpu.upload(&vec![f32::NAN; batch * case.rows]).unwrap()).collect();
        let graph = Graph::capture(&stream, |stream| {
            for i in 0..chain.len() {
                let (before, after) = chain.split_at_mut(i);
                let from = before.last().unwrap_or(&first).as_slice();
                device.product(stream, from, batch, after[0].as_mut(), &mut workspace)?;
            }
            Ok(())
        })
        .unwrap();
        for _ in 0..3 {
            graph.launch(stream.as_ref()).unwrap();
        }
        stream.synchronize().unwrap();
        let mut from = x;
        for y in chain {
            let y = gpu.download(y.as_slice()).unwrap();
            check("a chain", &decoder, &from, &y);
            from = y;
        }
    }
}

#[test]
fn unisvq_matrices_on_top_of_each_other_are_one() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let case = Case { bits: 3, dim: 4, rows: 256, cols: 1024, affine: false, tuned: false, tile: 128 };
    let mut parts = [matrix(case), matrix(Case { rows: 384, ..case }), matrix(Case { rows: 100, ..case })];
    parts[1].header.scale = 0.01;
    let decoders: Vec<_> = parts.iter().map(|part| part.decoder().unwrap()).collect();
    let all: Vec<&UniSvqDecoder<'_>> = decoders.iter().collect();
    let device = DeviceUniSvq::joined(&gpu, &all).unwrap();
    assert_eq!(device.rows(), 740);
    let mut workspace = UniSvqWorkspace::new();
    for batch in [1, 20] {
        let x = activations(case, batch);
        let on_device = gpu.upload(&x).unwrap();
        let mut y = gpu.upload(&vec![f32::NAN; batch * 740]).unwrap();
        device.product(stream.as_ref(), on_device.as_slice(), batch, y.as_mut(), &mut workspace).unwrap();
        stream.synchronize().unwrap();
        let y = gpu.download(y.as_slice()).unwrap();
        for (decoder, range) in decoders.iter().zip([0..256, 256..640, 640..740]) {
            let y: Vec<f32> = y.chunks_exact(740).flat_map(|y| &y[range.clone()]).copied().collect();
            check("joined", decoder, &x, &y);
        }
    }
    // A matrix whose groups of rows do not end with it has nothing below it; another map is another matrix.
    assert!(!DeviceUniSvq::join(&[all[2], all[0]]));
    let other = matrix(Case { affine: true, ..case });
    assert!(!DeviceUniSvq::join(&[all[0], &other.decoder().unwrap()]));
}

#[test]
fn unisvq_refuses_what_does_not_fit() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let case = Case { bits: 2, dim: 4, rows: 40, cols: 256, affine: false, tuned: false, tile: 128 };
    let mut matrix = matrix(case);
    let device = DeviceUniSvq::new(&gpu, &matrix.decoder().unwrap()).unwrap();
    let mut workspace = UniSvqWorkspace::new();
    for (n_x, n_y, batch) in [(255, 40, 1), (256, 41, 1), (256, 40, 2), (256, 40, 0)] {
        let (x, mut y) = (gpu.alloc::<f32>(n_x).unwrap(), gpu.alloc::<f32>(n_y).unwrap());
        let found = device.product(stream.as_ref(), x.as_slice(), batch, y.as_mut(), &mut workspace);
        assert!(matches!(found, Err(CudaError::Shape { .. })), "{n_x}, {n_y}, {batch}");
    }
    matrix.header.input = Frame::full(256, 1).unwrap().header();
    let error = DeviceUniSvq::new(&gpu, &matrix.decoder().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "unisvq is not built for unisvq-full");
}
