//! The transform on a device equals that of the CPU, bit for bit, for any plan.

use gosset_cuda::Gpu;
use gosset_cuda::launch::rht::{DeviceRht, F16Scale, RhtInput, RhtOutput};
use gosset_transform::{DEFAULT_TILE, Domain, RandomStream, Rht, TilePlan, TileRun};
use half::{bf16, f16};

use crate::gpu;

/// Widths of real models (case A03), a prime, and the ends of the range.
const WIDTHS: &[usize] =
    &[1, 2, 3, 31, 127, 128, 129, 173, 576, 896, 2560, 4096, 4864, 10920, 11008, 13696, 18944, 29568];

/// Gaussian enough: sums of four uniform numbers, with a few large ones.
fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut stream = RandomStream::new(seed, Domain::Rotation, 77);
    let mut uniform = || stream.next_u32() as f32 / 4_294_967_296.0 - 0.5;
    (0..n).map(|i| (uniform() + uniform() + uniform() + uniform()) * if i % 97 == 0 { 50.0 } else { 1.0 }).collect()
}

fn plans() -> Vec<TilePlan> {
    let run = |tile, count| TileRun { tile, count };
    let mut plans: Vec<TilePlan> = WIDTHS.iter().map(|&width| TilePlan::new(width, DEFAULT_TILE).unwrap()).collect();
    for (width, tile) in [
        (173, 1),
        (4096, 2),
        (100, 16),
        (4096, 32),
        (4100, 256),
        (4864, 512),
        (5000, 1024),
        (11008, 4096),
        (16384, 16384),
        (40000, 16384),
        (70001, 65536),
        (65536, 32768),
    ] {
        plans.push(TilePlan::new(width, tile).unwrap());
    }
    if crate::reduced() {
        plans.retain(|plan| plan.width() < 20_000);
    }
    for runs in [
        // Short tiles from the first window on, and long ones that no default plan has.
        &[run(64, 1), run(32, 3), run(8, 5), run(2, 7), run(1, 9)][..],
        &[run(2048, 3), run(256, 3), run(128, 1), run(4, 31)],
        &[run(65536, 1), run(32768, 3), run(16384, 1), run(8192, 1), run(1, 3)],
    ] {
        let width = runs.iter().map(|run| run.columns() as usize).sum();
        plans.push(TilePlan::from_runs(width, runs).unwrap());
    }
    plans
}

/// The CPU's result, row by row.
fn expected(rht: &Rht, x: &[f32]) -> Vec<f32> {
    let mut rows = x.to_vec();
    rht.forward_rows(&mut rows);
    rows
}

fn check_f32<X: RhtInput>(gpu: &Gpu, rht: &Rht, device: &DeviceRht, batch: usize, x: &[X], to_f32: fn(X) -> f32) {
    let stream = gpu.stream().unwrap();
    let wide: Vec<f32> = x.iter().map(|&x| to_f32(x)).collect();
    let want = expected(rht, &wide);
    let x = gpu.upload(x).unwrap();
    let mut y = gpu.upload(&vec![f32::NAN; want.len()]).unwrap();
    device.forward(stream.as_ref(), x.as_slice(), batch, RhtOutput::F32(y.as_mut())).unwrap();
    stream.synchronize().unwrap();
    let found = gpu.download(y.as_slice()).unwrap();
    for (i, (want, found)) in want.iter().zip(&found).enumerate() {
        let (row, col) = (i / device.width(), i % device.width());
        let plan = rht.plan();
        assert_eq!(want.to_bits(), found.to_bits(), "{plan}, row {row}, column {col}: expected {want}, found {found}");
    }
}

#[test]
fn rht_equals_the_cpu_in_every_bit() {
    let Some(gpu) = gpu() else { return };
    for (i, plan) in plans().into_iter().enumerate() {
        for batch in [1, 3] {
            let n = plan.width() * batch;
            let rht = Rht::new(plan.clone(), i as u64 * 1000 + 7);
            let device = DeviceRht::new(&gpu, &rht).unwrap();
            let x = values(n, i as u64);
            check_f32(&gpu, &rht, &device, batch, &x, |x| x);
            let halves: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
            check_f32(&gpu, &rht, &device, batch, &halves, f16::to_f32);
            let halves: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
            check_f32(&gpu, &rht, &device, batch, &halves, bf16::to_f32);
        }
    }
}

#[test]
fn rht_goes_there_and_back() {
    // Case A03: norm and round trip within 1e-5. The CPU's inverse is met in every bit, too.
    let Some(gpu) = gpu() else { return };
    for plan in plans() {
        let (batch, rht) = (2, Rht::new(plan, 3));
        let device = DeviceRht::new(&gpu, &rht).unwrap();
        let x = values(device.width() * batch, 5);
        let stream = gpu.stream().unwrap();
        let mut rows = gpu.upload(&x).unwrap();
        device.forward_in_place(stream.as_ref(), rows.as_mut(), batch).unwrap();
        device.inverse_in_place(stream.as_ref(), rows.as_mut(), batch).unwrap();
        stream.synchronize().unwrap();
        let back = gpu.download(rows.as_slice()).unwrap();
        let norm = |v: &[f32]| v.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let difference: Vec<f32> = x.iter().zip(&back).map(|(a, b)| a - b).collect();
        assert!(norm(&difference) <= 1e-5 * norm(&x), "{}: {} of {}", rht.plan(), norm(&difference), norm(&x));
        let mut twin = expected(&rht, &x);
        rht.inverse_rows(&mut twin);
        assert!(twin.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", rht.plan());
    }
}

#[test]
fn rht_to_f16_is_the_rounded_f32() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    for (i, plan) in plans().into_iter().enumerate() {
        let batch = 4;
        let rht = Rht::new(plan, 11 + i as u64);
        let device = DeviceRht::new(&gpu, &rht).unwrap();
        let width = device.width();
        let mut x = values(width * batch, 9);
        // Rows of very different size: tiny, huge (far beyond f16), all zero.
        x[width..2 * width].iter_mut().for_each(|x| *x *= 1e-30);
        x[2 * width..3 * width].iter_mut().for_each(|x| *x *= 1e30);
        x[3 * width..].fill(0.0);
        let want = expected(&rht, &x);
        let buffer = gpu.upload(&x).unwrap();

        let mut y = gpu.upload(&vec![f16::NAN; want.len()]).unwrap();
        let output = RhtOutput::F16 { y: y.as_mut(), scale: F16Scale::Factor(0.25) };
        device.forward(stream.as_ref(), buffer.as_slice(), batch, output).unwrap();
        stream.synchronize().unwrap();
        let found = gpu.download(y.as_slice()).unwrap();
        for (i, (want, found)) in want.iter().zip(&found).enumerate() {
            let want = f16::from_f32(want * 0.25);
            assert_eq!(want.to_bits(), found.to_bits(), "{}, value {i}: expected {want}, found {found}", rht.plan());
        }

        let mut y = gpu.upload(&vec![f16::NAN; want.len()]).unwrap();
        let mut scales = gpu.upload(&vec![f32::NAN; batch]).unwrap();
        let output = RhtOutput::F16 { y: y.as_mut(), scale: F16Scale::PerRow(scales.as_mut()) };
        device.forward(stream.as_ref(), buffer.as_slice(), batch, output).unwrap();
        stream.synchronize().unwrap();
        let (found, scales) = (gpu.download(y.as_slice()).unwrap(), gpu.download(scales.as_slice()).unwrap());
        for (row, &scale) in scales.iter().enumerate() {
            assert!(scale > 0.0 && scale.to_bits() & 0x7f_ffff == 0, "{}, row {row}: {scale}", rht.plan());
            for col in 0..width {
                let (want, found) = (want[row * width + col], found[row * width + col]);
                let want = f16::from_f32(want * (1.0 / scale));
                assert!(found.is_finite(), "{}, row {row}, column {col}", rht.plan());
                assert_eq!(want.to_bits(), found.to_bits(), "{}, row {row}, column {col}", rht.plan());
            }
        }
        // The scale uses the room: the largest value is not far below what the bound allows.
        let longest = f64::from(rht.plan().runs()[0].tile);
        for row in [0, 1, 2] {
            let most = found[row * width..][..width].iter().map(|y| f64::from(y.to_f32().abs())).fold(0.0, f64::max);
            let least = 2f64.powi(14) / longest / 2.0;
            assert!(most >= least, "{}, row {row}: expected at least {least}, found {most}", rht.plan());
        }
    }
}

#[test]
fn rht_reads_at_any_place() {
    // Rows that start at an odd element take the scalar path.
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let rht = Rht::new(TilePlan::new(4864, 128).unwrap(), 1);
    let device = DeviceRht::new(&gpu, &rht).unwrap();
    let x = values(4864 * 2 + 3, 2);
    let buffer = gpu.upload(&x).unwrap();
    for offset in 0..=3 {
        let mut y = gpu.upload(&vec![f32::NAN; 4864 * 2 + 3]).unwrap();
        let to = y.as_mut().slice(3 - offset..3 - offset + 4864 * 2).unwrap();
        let from = buffer.as_slice().slice(offset..offset + 4864 * 2).unwrap();
        device.forward(stream.as_ref(), from, 2, RhtOutput::F32(to)).unwrap();
        stream.synchronize().unwrap();
        let found = gpu.download(y.as_slice()).unwrap();
        assert!(found[3 - offset..][..4864 * 2] == expected(&rht, &x[offset..][..4864 * 2]));
        // Nothing beside the rows was written.
        assert_eq!(found.iter().filter(|y| y.is_nan()).count(), 3);
    }
}

#[test]
fn rht_refuses_wrong_shapes() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let device = DeviceRht::new(&gpu, &Rht::new(TilePlan::new(576, 128).unwrap(), 0)).unwrap();
    let x = gpu.alloc::<f32>(576 * 2).unwrap();
    let mut y = gpu.alloc::<f32>(576).unwrap();
    for batch in [0, 1, 2, 3, usize::MAX, usize::MAX / 576 + 1] {
        let error = device.forward(stream.as_ref(), x.as_slice(), batch, RhtOutput::F32(y.as_mut())).unwrap_err();
        assert!(error.to_string().starts_with("rht "), "{error}");
    }
}

#[test]
fn rht_of_many_rows() {
    // More rows than the grid is high.
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let rht = Rht::new(TilePlan::new(5, 4).unwrap(), 8);
    let device = DeviceRht::new(&gpu, &rht).unwrap();
    let batch = 65535 + 300;
    let x = values(5 * batch, 4);
    let mut rows = gpu.upload(&x).unwrap();
    device.forward_in_place(stream.as_ref(), rows.as_mut(), batch).unwrap();
    stream.synchronize().unwrap();
    assert!(gpu.download(rows.as_slice()).unwrap() == expected(&rht, &x));
}
