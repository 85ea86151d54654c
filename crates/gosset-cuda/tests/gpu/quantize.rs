//! Matrices encoded on the device are those of the CPU codec.

use gosset_codec::{CodecSpec, EncodedMatrix, MatRef, RateTarget, RotationSpec};
use gosset_cuda::launch::quantize::{self, QuantizeInput};
use gosset_cuda::{CudaError, Gpu};
use gosset_transform::{Domain, RandomStream};
use half::{bf16, f16};

use crate::gpu;

fn gaussian(n: usize, index: u64) -> Vec<f32> {
    let mut stream = RandomStream::new(0x9a7, Domain::Rotation, index);
    let mut uniform = || f64::from(stream.next_u32()) / f64::from(1u32 << 16) / f64::from(1u32 << 16);
    (0..n).map(|_| ((0..12).map(|_| uniform()).sum::<f64>() - 6.0) as f32 * 0.02).collect()
}

fn spec(name: &str, target: RateTarget, tile: Option<u32>) -> CodecSpec {
    let mut spec = CodecSpec::named(name, 2.0).unwrap();
    spec.target = target;
    spec.rotation = tile.map_or(RotationSpec::None, |tile| RotationSpec::Rht { tile, seed: 11 });
    spec
}

fn check<T: QuantizeInput>(gpu: &Gpu, spec: &CodecSpec, data: &[T], rows: usize, cols: usize) {
    let what = format!("{} {:?} {:?}, {rows} x {cols}, type {}", spec.name(), spec.target, spec.rotation, T::DTYPE);
    let wide: Vec<f32> = data.iter().map(|v| v.widen()).collect();
    let expected = spec.check().unwrap().encode(MatRef::new(&wide, rows, cols).unwrap()).unwrap();
    let on_device = gpu.upload(data).unwrap();
    let found: EncodedMatrix = quantize::encode(gpu, spec, on_device.as_slice(), rows, cols).unwrap();
    assert_eq!(found.header, expected.header, "{what}");
    assert_eq!(found.planes.len(), expected.planes.len(), "{what}");
    for (found, expected) in found.planes.iter().zip(&expected.planes) {
        assert_eq!(found.name, expected.name, "{what}");
        assert!(found.data == expected.data, "{what}: plane {} differs", found.name);
    }
}

#[test]
fn quantize_lattices_gives_the_planes_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let shapes = [(1, 1), (7, 65), (33, 300), (150, 210), (64, 576), (40, 4096)];
    for (i, name) in ["e8-rice", "d4-rice", "a2-rice", "z-rice"].into_iter().enumerate() {
        for (j, (rows, cols)) in shapes.into_iter().enumerate() {
            for (k, alpha) in [0.7, 3.0, 40.0, 3000.0].into_iter().enumerate() {
                let tile = [Some(128), Some(32), None, Some(1024)][(i + j + k) % 4];
                let data = gaussian(rows * cols, (i * 100 + j * 10 + k) as u64);
                let spec = spec(name, RateTarget::Alpha(alpha), tile);
                match (i + j + k) % 3 {
                    0 => check(&gpu, &spec, &data, rows, cols),
                    1 => check(&gpu, &spec, &data.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>(), rows, cols),
                    _ => check(&gpu, &spec, &data.iter().map(|v| f16::from_f32(*v)).collect::<Vec<_>>(), rows, cols),
                }
            }
        }
    }
}

#[test]
fn quantize_knows_rows_without_a_scale() {
    let Some(gpu) = gpu() else { return };
    let (rows, cols) = (12, 96);
    let mut data = gaussian(rows * cols, 5);
    let mut row = |i: usize, v: f32| data[i * cols..(i + 1) * cols].fill(v);
    row(1, 0.0);
    row(2, -0.0);
    row(4, 1e-42);
    row(6, 3e38);
    row(7, 1e-38);
    row(9, 0.5);
    for tile in [None, Some(128)] {
        check(&gpu, &spec("e8-rice", RateTarget::Alpha(4.0), tile), &data, rows, cols);
        check(&gpu, &spec("shift-12", RateTarget::PayloadBps(2.0), tile), &data, rows, cols);
    }
}

#[test]
fn quantize_decides_ties_as_the_cpu_does() {
    let Some(gpu) = gpu() else { return };
    // Few levels: every row has the same scale of a power of two, so that scaled values are dyadic.
    let (rows, cols) = (64, 256);
    let mut stream = RandomStream::new(1, Domain::Rotation, 0);
    let data: Vec<f32> = (0..rows * cols).map(|_| if stream.next_u32() & 1 == 0 { 0.5 } else { -0.5 }).collect();
    for name in ["e8-rice", "d4-rice", "a2-rice", "z-rice"] {
        for alpha in [0.5, 1.0, 1.5, 3.0, 7.0, 0.25] {
            check(&gpu, &spec(name, RateTarget::Alpha(alpha), None), &data, rows, cols);
        }
        // A rotation of tile 16 keeps them multiples of 1/8.
        check(&gpu, &spec(name, RateTarget::Alpha(4.0), Some(16)), &data, rows, cols);
    }
}

#[test]
fn quantize_rotates_with_long_and_mixed_tiles() {
    let Some(gpu) = gpu() else { return };
    for (rows, cols, tile) in
        [(3, 8192, 4096), (2, 65_536, 65_536), (5, 10_920, 128), (4, 173, 128), (3, 1000, 512), (2, 70_001, 65_536)]
    {
        check(&gpu, &spec("z-rice", RateTarget::Alpha(2.0), Some(tile)), &gaussian(rows * cols, 8), rows, cols);
    }
}

#[test]
fn quantize_large_values_take_the_wide_path() {
    let Some(gpu) = gpu() else { return };
    // One value per row is nearly all of it: a peak of 200 times the RMS, 2^23 and more at the largest alphas.
    let (rows, cols) = (4, 40_000);
    let mut data = gaussian(rows * cols, 6);
    for row in data.chunks_mut(cols) {
        row[17] = 40_000.0;
    }
    for name in ["e8-rice", "d4-rice", "a2-rice", "z-rice"] {
        check(&gpu, &spec(name, RateTarget::Alpha(60_000.0), None), &data, rows, cols);
    }
    // Wider rows, beyond 2^24.
    let (rows, cols) = (1, 90_000);
    let mut data = gaussian(rows * cols, 6);
    data[70_000] = 40_000.0;
    let on_device = gpu.upload(&data).unwrap();
    let too_large = spec("e8-rice", RateTarget::Alpha(65_000.0), None);
    let found = quantize::encode(&gpu, &too_large, on_device.as_slice(), rows, cols).unwrap_err().to_string();
    let expected = too_large.check().unwrap().encode(MatRef::new(&data, rows, cols).unwrap()).unwrap_err().to_string();
    assert!(found.contains(&expected), "{found} against {expected}");
}

#[test]
fn quantize_trellises_gives_the_planes_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (name, bits, rows, cols) in [
        ("shift-12", 2.0, 33, 300),
        ("shift-13", 3.0, 150, 210),
        ("shift-14", 4.0, 7, 65),
        ("shift-12", 5.0, 33, 130),
        ("shift-12", 6.0, 33, 130),
        ("shift-16", 3.0, 4, 576),
        ("shiftlut-17", 2.0, 5, 128),
    ] {
        let data = gaussian(rows * cols, bits as u64);
        let mut spec = spec(name, RateTarget::PayloadBps(bits), Some(128));
        check(&gpu, &spec, &data, rows, cols);
        if let gosset_codec::SchemeSpec::Shift { order, .. } = &mut spec.scheme {
            *order = gosset_codec::ShiftOrderKind::Tiles;
        }
        check(&gpu, &spec, &data, rows, cols);
    }
}

#[test]
fn quantize_refuses_what_it_cannot_encode() {
    let Some(gpu) = gpu() else { return };
    let mut data = gaussian(40 * 30, 1);
    let good = spec("e8-rice", RateTarget::Alpha(4.0), Some(128));
    let encode = |data: &[f32], spec: &CodecSpec, rows, cols| {
        let on_device = gpu.upload(data).unwrap();
        quantize::encode(&gpu, spec, on_device.as_slice(), rows, cols)
    };
    assert!(matches!(encode(&data, &good, 40, 31), Err(CudaError::Shape { .. })));
    assert!(matches!(encode(&[], &good, 0, 30), Err(CudaError::Shape { .. })));
    let payload = spec("e8-rice", RateTarget::PayloadBps(3.0), None);
    assert!(matches!(encode(&data, &payload, 40, 30), Err(CudaError::Unsupported { .. })));
    let other = spec("e8", RateTarget::Alpha(4.0), None);
    assert!(matches!(encode(&data, &other, 40, 30), Err(CudaError::Unsupported { .. })));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        (data[35 * 30], data[17 * 30 + 4]) = (bad, bad);
        let error = encode(&data, &good, 40, 30).unwrap_err().to_string();
        assert!(error.contains("row 17"), "{error}");
    }
}
