//! Fixed-width weights: codes as the CPU rounds them, products within the bound of their arithmetic.

use gosset_cuda::launch::fixed::{FixedBits, FixedMatrix};
use gosset_cuda::launch::quantize;
use gosset_cuda::{CudaError, Gpu};
use gosset_transform::{Domain, RandomStream, Rht, TilePlan};
use half::{bf16, f16};

use crate::gpu;

/// Two bits: sums of up to 1024 x, in f32, less what the 1024 adds; 16 additions per place and warp, then 16 sums. Half of a
/// unit each would be 1024 * 32 * 2^-24 of |x| |w| / 1.1 at worst; real sums stay far below.
const RELATIVE_BOUND: f64 = 2e-4;

fn gaussian(n: usize, index: u64) -> Vec<f32> {
    let mut stream = RandomStream::new(0xf1, Domain::Rotation, index);
    let mut uniform = || (f64::from(stream.next_u32()) + 0.5) / 2f64.powi(32);
    (0..n).map(|_| ((-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32).collect()
}

fn matrix(gpu: &Gpu, units: &[f32], scales: &[bf16], cols: usize, bits: FixedBits) -> FixedMatrix {
    let stream = gpu.stream().unwrap();
    let units = gpu.upload(units).unwrap();
    let matrix = FixedMatrix::encode_units(gpu, stream.as_ref(), units.as_slice(), scales, cols, bits).unwrap();
    stream.synchronize().unwrap();
    matrix
}

#[test]
fn fixed_codes_are_the_nearest_levels() {
    let Some(gpu) = gpu() else { return };
    for bits in [FixedBits::Two, FixedBits::Four] {
        for (rows, cols) in [(1, 1), (7, 65), (33, 300), (150, 210), (16, 576), (20, 4096)] {
            let mut units = gaussian(rows * cols, 1);
            units[0] = 100.0;
            units[rows * cols - 1] = -100.0;
            let matrix = matrix(&gpu, &units, &vec![bf16::from_f32(0.5); rows], cols, bits);
            let half = 1 << (bits.bits() - 1);
            let expected: Vec<u8> = units
                .iter()
                .map(|u| ((u / bits.step()).floor() + half as f32).clamp(0.0, (2 * half - 1) as f32) as u8)
                .collect();
            assert_eq!(matrix.codes().unwrap(), expected, "{bits:?} {rows} x {cols}");
        }
    }
}

#[test]
fn fixed_products_are_those_of_the_dequantized_weights() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let shapes = [
        (1, 1),
        (7, 65),
        (33, 300),
        (150, 210),
        (200, 576),
        (4100, 4096),
        (300, 4090),
        (96, 14_336),
        (3000, 64),
        (64, 28_672),
    ];
    for bits in [FixedBits::Two, FixedBits::Four] {
        for (rows, cols) in shapes {
            let units = gaussian(rows * cols, 2);
            let scales: Vec<bf16> = (0..rows).map(|i| bf16::from_f32(0.01 + (i % 17) as f32 * 0.003)).collect();
            let matrix = matrix(&gpu, &units, &scales, cols, bits);
            let weights = matrix.dequantize().unwrap();
            for batch in [1, 2, 3, 5, 8, 11] {
                if batch > 3 && rows * cols > 1 << 21 {
                    continue;
                }
                let x: Vec<f16> = gaussian(batch * cols, 3 + batch as u64).into_iter().map(f16::from_f32).collect();
                let x_scale: Vec<f32> = (0..batch).map(|b| 0.5 + b as f32).collect();
                let on_device = (gpu.upload(&x).unwrap(), gpu.upload(&x_scale).unwrap());
                let mut y = gpu.upload(&vec![f32::NAN; batch * rows]).unwrap();
                let scale = (batch != 2).then(|| on_device.1.as_slice());
                matrix.gemv(stream.as_ref(), on_device.0.as_slice(), scale, y.as_mut()).unwrap();
                let y = gpu.download(y.as_slice()).unwrap();
                for b in 0..batch {
                    let x: Vec<f64> = x[b * cols..][..cols].iter().map(|x| f64::from(x.to_f32())).collect();
                    let factor = if batch == 2 { 1.0 } else { f64::from(x_scale[b]) };
                    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
                    for row in 0..rows {
                        let w = &weights[row * cols..][..cols];
                        let exact: f64 = w.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() * factor;
                        let size = w.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt() * norm * factor;
                        let error = (f64::from(y[b * rows + row]) - exact).abs();
                        assert!(
                            error <= RELATIVE_BOUND * size,
                            "{bits:?} {rows} x {cols} batch {batch}: row {row} of {b}: {error} of {size}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn fixed_products_with_the_rotation_are_those_of_rotated_rows() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let cols = 4096;
    let rht = Rht::new(TilePlan::new(cols, 128).unwrap(), 77);
    let signs = gpu.upload(rht.signs().words()).unwrap();
    for (bits, rows) in [(FixedBits::Two, 1), (FixedBits::Two, 4100), (FixedBits::Four, 33), (FixedBits::Four, 2500)] {
        let matrix = matrix(&gpu, &gaussian(rows * cols, 6), &vec![bf16::from_f32(0.02); rows], cols, bits);
        let weights = matrix.dequantize().unwrap();
        for size in [1.0, 1e-20, 1e20, 0.0] {
            let mut x: Vec<f32> = gaussian(cols, 7).into_iter().map(|x| x * size).collect();
            x[5] *= 50.0;
            let on_device = gpu.upload(&x).unwrap();
            let mut y = gpu.upload(&vec![f32::NAN; rows]).unwrap();
            matrix.gemv_rht(stream.as_ref(), on_device.as_slice(), signs.as_slice(), rht.plan(), y.as_mut()).unwrap();
            let y = gpu.download(y.as_slice()).unwrap();
            rht.forward(&mut x);
            let norm = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            for (row, (w, y)) in weights.chunks(cols).zip(y).enumerate() {
                let exact: f64 = w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let bound = RELATIVE_BOUND * norm * w.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt();
                assert!(
                    (f64::from(y) - exact).abs() <= bound,
                    "{bits:?} row {row} of {rows}, size {size}: {y}, {exact}"
                );
            }
        }
        let other = TilePlan::new(cols, 64).unwrap();
        let (x, mut y) = (gpu.alloc::<f32>(cols).unwrap(), gpu.alloc::<f32>(rows).unwrap());
        let error = matrix.gemv_rht(stream.as_ref(), x.as_slice(), signs.as_slice(), &other, y.as_mut()).unwrap_err();
        assert_eq!(error.to_string(), "fixed_gemv_rht is not built for 4096 columns as 64 x 64");
    }
}

#[test]
fn fixed_levels_lose_what_the_table_says() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let (rows, cols) = (64, 4096);
    let values = gaussian(rows * cols, 5);
    let on_device = gpu.upload(&values).unwrap();
    let units = quantize::unit_rows(&gpu, stream.as_ref(), on_device.as_slice(), rows, cols, None).unwrap();
    for (bits, expected) in [(FixedBits::Two, 0.1188), (FixedBits::Four, 0.01154)] {
        let matrix = FixedMatrix::encode(&gpu, stream.as_ref(), &units, bits).unwrap();
        let weights = matrix.dequantize().unwrap();
        let error: f64 = values.iter().zip(&weights).map(|(v, w)| f64::from(v - w).powi(2)).sum::<f64>();
        let energy: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
        // 262144 values: the standard deviation of the mean is 0.4 % at four bits, whose tails are rare and large.
        assert!((error / energy / expected - 1.0).abs() < 0.03, "{bits:?}: {}", error / energy);
    }
}

#[test]
fn fixed_refuses_wrong_shapes() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let matrix = matrix(&gpu, &gaussian(50, 1), &[bf16::ONE; 5], 10, FixedBits::Two);
    let (x, mut y) = (gpu.alloc::<f16>(21).unwrap(), gpu.alloc::<f32>(10).unwrap());
    let x_of = |n| x.as_slice().slice(0..n).unwrap();
    assert!(matches!(matrix.gemv(stream.as_ref(), x_of(21), None, y.as_mut()), Err(CudaError::Shape { .. })));
    assert!(matches!(matrix.gemv(stream.as_ref(), x_of(10), None, y.as_mut()), Err(CudaError::Shape { .. })));
    assert!(matrix.gemv(stream.as_ref(), x_of(20), None, y.as_mut()).is_ok());
    let wide = 200_000;
    let units = gpu.alloc::<f32>(wide).unwrap();
    let wide_matrix =
        FixedMatrix::encode_units(&gpu, stream.as_ref(), units.as_slice(), &[bf16::ONE], wide, FixedBits::Four)
            .unwrap();
    let (x, mut y) = (gpu.alloc::<f16>(wide).unwrap(), gpu.alloc::<f32>(1).unwrap());
    let error = wide_matrix.gemv(stream.as_ref(), x.as_slice(), None, y.as_mut()).unwrap_err();
    assert_eq!(error.to_string(), "fixed_gemv is not built for 200000 columns");
}
