//! The bit-shift trellis against the decoder of the CPU: weights `==`, products within the bound of every row.

use gosset_codec::{CodecSpec, DecodeScratch, MatRef, SchemeSpec, ShiftOrderKind, calibrate};
use gosset_cuda::launch::shift::{ShiftElement, ShiftMatrix, ShiftWorkspace, random_word};
use gosset_cuda::{CudaError, Gpu, OpenOptions, Stream};
use gosset_transform::{Rht, TilePlan};
use gosset_trellis::shift::{ShiftCode, ShiftDecoder, ShiftOrder, ShiftSpec};
use half::{bf16, f16};

use crate::{gpu, reduced};

/// Largest error of a product over |x| |row|. Rounding x to f16 alone gives at most 2^-12 of that; 4 to 6 parts in 10^5 are
/// usual.
const BOUND: f64 = 1e-3;

/// Which trellises a shape is tried with.
type Wanted = fn(ShiftSpec) -> bool;

/// Every trellis that there is.
fn specs() -> impl Iterator<Item = ShiftSpec> {
    let codes = [ShiftCode::Quantiles, ShiftCode::Pairs];
    let orders = [ShiftOrder::Rows, ShiftOrder::Tiles];
    let all = codes.into_iter().flat_map(move |code| orders.map(|order| (code, order)));
    all.flat_map(|(code, order)| {
        ShiftSpec::BITS
            .into_iter()
            .flat_map(move |bits| (12..=18).map(move |state_bits| ShiftSpec { bits, state_bits, code, order }))
    })
    .filter(|spec| spec.check().is_ok())
}

/// The weights of a random matrix as the CPU decodes them, dequantized, in the rotated frame.
fn weights(spec: ShiftSpec, rows: usize, cols: usize, scale: bf16, seed: u32) -> Vec<f32> {
    let trellis = spec.check().unwrap();
    let layout = trellis.layout(rows, cols).unwrap();
    let words: Vec<u32> = (0..layout.n_words()).map(|i| random_word(seed, i)).collect();
    let mut out = vec![0.0; rows * cols];
    ShiftDecoder::new(&trellis).decode(&layout, &words, 0..layout.n_blocks(), &mut out).unwrap();
    let factor = scale.to_f32() * trellis.step();
    out.iter_mut().for_each(|w| *w *= factor);
    out
}

fn decoded<T: ShiftElement>(gpu: &Gpu, stream: &Stream, matrix: &ShiftMatrix, poison: T) -> Vec<T> {
    let mut out = gpu.upload(&vec![poison; matrix.rows() * matrix.cols()]).unwrap();
    matrix.decode(stream.as_ref(), 0..matrix.rows(), out.as_mut()).unwrap();
    stream.synchronize().unwrap();
    gpu.download(out.as_slice()).unwrap()
}

/// Errors of `y` against the products of `weights` with each activation, over |x| |row|: the largest.
fn worst(y: &[f32], weights: &[f32], x: &[f32], cols: usize) -> f64 {
    let rows = weights.len() / cols;
    let mut worst = 0.0f64;
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact(rows)) {
        let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        for (row, &y) in weights.chunks_exact(cols).zip(y) {
            let (mut dot, mut squares) = (0.0, 0.0);
            for (&w, &x) in row.iter().zip(x) {
                dot += f64::from(w) * f64::from(x);
                squares += f64::from(w).powi(2);
            }
            let error = (f64::from(y) - dot).abs() / (norm * squares).sqrt().max(f64::MIN_POSITIVE);
            // A NaN must not pass.
            worst = if error <= worst { worst } else { error };
        }
    }
    worst
}

#[test]
fn shift_weights_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let scale = bf16::from_f32(0.037);
    let shapes: [(usize, usize, Wanted); 6] = [
        (1, 1, |_| true),
        (7, 65, |_| true),
        (33, 300, |_| true),
        (150, 210, |spec| spec.state_bits.is_multiple_of(2)),
        (40, 4864, |spec| spec.state_bits == 16),
        (4096, 576, |spec| spec.state_bits == 17 && spec.bits == 3),
    ];
    let mut n = 0;
    for spec in specs() {
        for (rows, cols, wanted) in shapes {
            if !wanted(spec) || (reduced() && (rows * cols > 20_000 || !spec.state_bits.is_multiple_of(4))) {
                continue;
            }
            let matrix = ShiftMatrix::random(&gpu, spec, rows, cols, None, scale, 17).unwrap();
            let expected = weights(spec, rows, cols, scale, 17);
            assert!(decoded(&gpu, &stream, &matrix, f32::NAN) == expected, "{spec:?}, {rows} x {cols}");
            n += 1;
        }
    }
    assert!(reduced() || n > 300, "{n}");
}

#[test]
fn shift_weights_are_rounded_once() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    for (spec, cols) in specs().filter(|spec| spec.state_bits == 16).zip([128, 77, 300, 96].into_iter().cycle()) {
        let matrix = ShiftMatrix::random(&gpu, spec, 35, cols, None, bf16::from_f32(0.37), 5).unwrap();
        let expected = weights(spec, 35, cols, bf16::from_f32(0.37), 5);
        let halves: Vec<f16> = expected.iter().map(|&w| f16::from_f32(w)).collect();
        assert!(decoded(&gpu, &stream, &matrix, f16::NAN) == halves, "{spec:?}, {cols} columns, f16");
        let brains: Vec<bf16> = expected.iter().map(|&w| bf16::from_f32(w)).collect();
        assert!(decoded(&gpu, &stream, &matrix, bf16::NAN) == brains, "{spec:?}, {cols} columns, bf16");
        let mut rows = gpu.upload(&vec![f32::NAN; 19 * cols]).unwrap();
        matrix.decode(stream.as_ref(), 16..35, rows.as_mut()).unwrap();
        stream.synchronize().unwrap();
        assert!(gpu.download(rows.as_slice()).unwrap() == expected[16 * cols..], "{spec:?}, rows 16 to 35");
    }
}

/// A random matrix, its weights, and activations with what the rotation makes of them.
struct Case {
    matrix: ShiftMatrix,
    weights: Vec<f32>,
    x: Vec<f32>,
    rotated: Vec<f32>,
}

impl Case {
    fn new(gpu: &Gpu, spec: ShiftSpec, rows: usize, cols: usize, batch: usize, tile: u32) -> Self {
        let rht = Rht::new(TilePlan::new(cols, tile).unwrap(), 3);
        let scale = bf16::from_f32(0.02);
        let matrix = ShiftMatrix::random(gpu, spec, rows, cols, Some(&rht), scale, 9).unwrap();
        let mut x: Vec<f32> = calibrate::gaussian(batch * cols, 1).iter().map(|x| x * 3e-3).collect();
        // Activations of very different size share a launch.
        x.chunks_exact_mut(cols)
            .enumerate()
            .for_each(|(n, x)| x.iter_mut().for_each(|x| *x *= 10f32.powi(n as i32 % 7 - 3)));
        let mut rotated = x.clone();
        rht.forward_rows(&mut rotated);
        Self { matrix, weights: weights(spec, rows, cols, scale, 9), x, rotated }
    }

    /// The largest error of a product that fills `y`.
    fn check(&self, gpu: &Gpu, stream: &Stream, run: impl FnOnce(&mut gosset_cuda::Buffer<f32>)) -> f64 {
        let (rows, cols) = (self.matrix.rows(), self.matrix.cols());
        let mut y = gpu.upload(&vec![f32::NAN; rows * self.x.len() / cols]).unwrap();
        run(&mut y);
        stream.synchronize().unwrap();
        worst(&gpu.download(y.as_slice()).unwrap(), &self.weights, &self.rotated, cols)
    }
}

#[test]
fn shift_products_are_within_the_bound_of_every_row() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let mut most = 0.0f64;
    for spec in specs().filter(|spec| [12, 16, 17, 18].contains(&spec.state_bits)) {
        let small = [(1, 1), (7, 65), (33, 300), (150, 576), (64, 896), (130, 2560), (100, 4864)];
        let large = [(2300, 576), (272, 4096), (48, 14336), (4096, 576), (32, 40_000)];
        let shapes = small.into_iter().chain(large.into_iter().filter(|_| spec.state_bits == 16));
        for (rows, cols) in shapes {
            if reduced() && rows * cols > 100_000 {
                continue;
            }
            let case = Case::new(&gpu, spec, rows, cols, 1, 128);
            let (x, rotated) = (gpu.upload(&case.x).unwrap(), gpu.upload(&case.rotated).unwrap());
            let mut workspace = ShiftWorkspace::new();
            let found = case.check(&gpu, &stream, |y| {
                if case.matrix.fuses_rotation() {
                    case.matrix.gemv(stream.as_ref(), x.as_slice(), y.as_mut()).unwrap();
                } else {
                    case.matrix.gemm(stream.as_ref(), x.as_slice(), 1, y.as_mut(), &mut workspace).unwrap();
                }
            });
            assert!(found <= BOUND, "{spec:?}, {rows} x {cols}: {found:e}");
            let before = case.check(&gpu, &stream, |y| {
                case.matrix.gemv_rotated(stream.as_ref(), rotated.as_slice(), y.as_mut()).unwrap();
            });
            assert!(before <= BOUND, "{spec:?}, {rows} x {cols}, rotated before: {before:e}");
            most = most.max(found).max(before);
        }
    }
    eprintln!("largest error of a shift product over |x| |row|: {most:e}");
}

#[test]
fn shift_products_of_many_are_within_the_bound_of_every_row() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let mut workspace = ShiftWorkspace::new();
    let mut most = 0.0f64;
    for spec in specs().filter(|spec| [12, 16, 18].contains(&spec.state_bits)) {
        let shapes =
            [(1, 1), (7, 65), (33, 300), (150, 576), (64, 896), (130, 2560), (100, 4864), (272, 4096), (2100, 512)];
        for (i, (rows, cols)) in shapes.into_iter().enumerate() {
            let batches: &[usize] = if spec.state_bits == 16 { &[2, 8, 9, 17, 33, 64, 70] } else { &[3, 16, 64] };
            if reduced() && rows * cols > 100_000 {
                continue;
            }
            // Each shape has some of the batches.
            for &batch in batches.iter().skip(i % 3).step_by(if cols > 1000 { 3 } else { 1 }) {
                let case = Case::new(&gpu, spec, rows, cols, batch, 128);
                let x = gpu.upload(&case.x).unwrap();
                let found = case.check(&gpu, &stream, |y| {
                    case.matrix.gemm(stream.as_ref(), x.as_slice(), batch, y.as_mut(), &mut workspace).unwrap();
                });
                assert!(found <= BOUND, "{spec:?}, {rows} x {cols}, batch {batch}: {found:e}");
                most = most.max(found);
            }
        }
    }
    eprintln!("largest error of a shift product of many over |x| |row|: {most:e}");
}

#[test]
fn shift_products_take_rotations_of_long_tiles() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let mut workspace = ShiftWorkspace::new();
    for spec in specs().filter(|spec| spec.state_bits == 16) {
        for batch in [1, 5] {
            let case = Case::new(&gpu, spec, 40, 1024, batch, 512);
            assert!(!case.matrix.fuses_rotation());
            let x = gpu.upload(&case.x).unwrap();
            let found = case.check(&gpu, &stream, |y| {
                case.matrix.gemm(stream.as_ref(), x.as_slice(), batch, y.as_mut(), &mut workspace).unwrap();
            });
            assert!(found <= BOUND, "{spec:?}, batch {batch}: {found:e}");
        }
    }
}

#[test]
fn shift_products_run_with_less_shared_memory() {
    if gpu().is_none() {
        return;
    }
    // What a block of compute capability 8.6 and 8.9 can have, and one of 8.0.
    for bytes in [99 << 10, 163 << 10] {
        let gpu = Gpu::open(0, &OpenOptions::default().pretend_shared_bytes(bytes)).unwrap();
        let stream = gpu.stream().unwrap();
        let mut workspace = ShiftWorkspace::new();
        for spec in specs().filter(|spec| spec.state_bits == 16 && spec.bits == 3) {
            for (rows, cols, batch) in [(40, 300, 1), (70, 4096, 3), (20, 40_000, 1)] {
                let case = Case::new(&gpu, spec, rows, cols, batch, 128);
                let x = gpu.upload(&case.x).unwrap();
                let found = case.check(&gpu, &stream, |y| {
                    case.matrix.gemm(stream.as_ref(), x.as_slice(), batch, y.as_mut(), &mut workspace).unwrap();
                });
                assert!(found <= BOUND, "{bytes} bytes, {spec:?}, {rows} x {cols}, batch {batch}: {found:e}");
            }
        }
    }
}

#[test]
fn shift_products_take_and_give_every_type() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let spec = ShiftSpec { bits: 3, state_bits: 16, code: ShiftCode::Quantiles, order: ShiftOrder::Tiles };
    let (rows, cols) = (97, 400);
    let matrix = ShiftMatrix::random(&gpu, spec, rows, cols, None, bf16::from_f32(0.02), 2).unwrap();
    let expected = weights(spec, rows, cols, bf16::from_f32(0.02), 2);
    let x: Vec<bf16> = calibrate::gaussian(cols, 4).iter().map(|&x| bf16::from_f32(x)).collect();
    let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    let device_x = gpu.upload(&x).unwrap();
    // An address that allows no loads of four.
    let offset = gpu.upload(&[&[0.0], &wide[..]].concat()).unwrap();
    let mut y = gpu.upload(&vec![f16::NAN; rows]).unwrap();
    matrix.gemv(stream.as_ref(), device_x.as_slice(), y.as_mut()).unwrap();
    stream.synchronize().unwrap();
    let halves: Vec<f32> = gpu.download(y.as_slice()).unwrap().iter().map(|y| y.to_f32()).collect();
    assert!(worst(&halves, &expected, &wide, cols) <= BOUND);
    let mut z = gpu.upload(&vec![f32::NAN; rows]).unwrap();
    matrix.gemv(stream.as_ref(), offset.as_slice().slice(1..cols + 1).unwrap(), z.as_mut()).unwrap();
    stream.synchronize().unwrap();
    let singles = gpu.download(z.as_slice()).unwrap();
    assert!(worst(&singles, &expected, &wide, cols) <= BOUND);
    assert!(halves.iter().zip(&singles).all(|(&a, &b)| a == f16::from_f32(b).to_f32()), "the same sums");
}

#[test]
fn shift_containers_decode_and_multiply_as_on_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    for (label, order, rows, cols, exact) in [
        ("shift-12@2", ShiftOrderKind::Tiles, 40, 256, false),
        ("shift-12@3", ShiftOrderKind::Rows, 37, 300, true),
        ("shift-13@4", ShiftOrderKind::Tiles, 33, 576, true),
        ("shift-12@5", ShiftOrderKind::Rows, 20, 130, false),
    ] {
        let mut w = calibrate::gaussian(rows * cols, 11);
        if exact {
            // Too large for a row scale, and all zero.
            w[5 * cols..6 * cols].iter_mut().for_each(|w| *w *= 1e32);
            w[7 * cols..8 * cols].fill(0.0);
        }
        let mut spec = CodecSpec::parse(label).unwrap();
        if let SchemeSpec::Shift { order: asked, .. } = &mut spec.scheme {
            *asked = order;
        }
        let encoded = spec.check().unwrap().encode(MatRef::new(&w, rows, cols).unwrap()).unwrap();
        let decoder = encoded.decoder().unwrap();
        assert_eq!(decoder.n_exact_rows() > 0, exact, "{label}");
        let matrix = ShiftMatrix::new(&gpu, &encoded.header, &encoded.planes).unwrap();
        let mut expected = vec![0.0; rows * cols];
        decoder.decode_rows_rotated(0..rows, &mut expected, &mut DecodeScratch::new()).unwrap();
        assert!(decoded(&gpu, &stream, &matrix, f32::NAN) == expected, "{label}");
        decoder.decode_rows(0..rows, &mut expected, &mut DecodeScratch::new()).unwrap();
        let x = calibrate::gaussian(cols, 12);
        let device_x = gpu.upload(&x).unwrap();
        let mut y = gpu.upload(&vec![f32::NAN; rows]).unwrap();
        matrix.gemm(stream.as_ref(), device_x.as_slice(), 1, y.as_mut(), &mut ShiftWorkspace::new()).unwrap();
        stream.synchronize().unwrap();
        let mut y = gpu.download(y.as_slice()).unwrap();
        if exact {
            // The product with the row of zeros is zero, its norm nothing to divide by.
            assert_eq!(y[7], 0.0, "{label}");
            y[7] = 0.0;
        }
        let found = worst(&y, &expected, &x, cols);
        assert!(found <= BOUND, "{label}: {found:e}");
        assert!(matrix.device_bytes() >= encoded.planes[0].data.len() * 4);
    }
}

#[test]
fn shift_refuses_what_does_not_fit() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let spec = ShiftSpec { bits: 2, state_bits: 12, code: ShiftCode::Quantiles, order: ShiftOrder::Tiles };
    let matrix = ShiftMatrix::random(&gpu, spec, 20, 40, None, bf16::ONE, 0).unwrap();
    let mut buffer = gpu.alloc::<f32>(40).unwrap();
    let x = gpu.alloc::<f32>(40).unwrap();
    let shape = |result: Result<(), CudaError>| assert!(matches!(result, Err(CudaError::Shape { .. })), "{result:?}");
    shape(matrix.gemv(stream.as_ref(), x.as_slice().slice(0..39).unwrap(), buffer.as_mut().slice(0..20).unwrap()));
    shape(matrix.gemv(stream.as_ref(), x.as_slice(), buffer.as_mut()));
    shape(matrix.decode(stream.as_ref(), 0..1, buffer.as_mut()));
    shape(matrix.decode(stream.as_ref(), 16..20, buffer.as_mut()));
    let rht = Rht::new(TilePlan::new(40, 8).unwrap(), 0);
    shape(ShiftMatrix::random(&gpu, spec, 20, 41, Some(&rht), bf16::ONE, 0).map(|_| ()));
    let long = Rht::new(TilePlan::new(512, 256).unwrap(), 0);
    let matrix = ShiftMatrix::random(&gpu, spec, 20, 512, Some(&long), bf16::ONE, 0).unwrap();
    assert!(!matrix.fuses_rotation());
    let x = gpu.alloc::<f32>(512).unwrap();
    let refused = matrix.gemv(stream.as_ref(), x.as_slice(), buffer.as_mut().slice(0..20).unwrap());
    assert!(matches!(refused, Err(CudaError::Unsupported { .. })), "{refused:?}");
}
