//! Rice codes on a device: points equal those of the CPU, values to the bit, products within their bounds.

use gosset_codec::{CodecSpec, DecodeScratch, EncodedMatrix, Plane, PlaneData, RotationSpec};
use gosset_cuda::launch::ans::AnsMatrix;
use gosset_cuda::launch::rice::RiceMatrix;
use gosset_cuda::launch::rice_lanes::RiceLanes;
use gosset_cuda::launch::rice_planes::{RicePlanes, RiceScratch};
use gosset_cuda::launch::{PointType, ValueType};
use gosset_cuda::{CudaError, DevSliceMut, Event, Gpu, Graph, StreamRef};
use gosset_transform::{Domain, RandomStream};
use half::{bf16, f16};

use crate::{gpu, reduced};

/// Rows and columns: below, at and beyond the ends of blocks, streams, pages, groups and segments.
const SHAPES: &[(usize, usize)] = &[
    (1, 1),
    (7, 65),
    (33, 300),
    (150, 210),
    (1, 8),
    (32, 64),
    (70, 576),
    (65, 896),
    (40, 1224),
    (37, 4864),
    (9, 4096),
    (3, 16_384),
];

/// The shapes, or those that a checker of memory has patience for.
pub(crate) fn shapes(all: &'static [(usize, usize)]) -> impl Iterator<Item = (usize, usize)> {
    all.iter().copied().filter(|&(rows, cols)| !reduced() || rows * cols < 50_000)
}

/// Sums of uniform numbers; rows differ in size, some values are far outliers.
pub(crate) fn weights(rows: usize, cols: usize, seed: u64, outliers: bool) -> Vec<f32> {
    let mut stream = RandomStream::new(seed, Domain::Rotation, 9);
    let mut uniform = || stream.next_u32() as f32 / 4_294_967_296.0 - 0.5;
    let value = |i: usize| {
        let v = uniform() + uniform() + uniform() + uniform();
        let row = 0.01 * (1 + i / cols % 5) as f32;
        row * if outliers && i % 997 == 5 { 300.0 * v } else { v }
    };
    (0..rows * cols).map(value).collect()
}

/// A matrix under a codec; without rotation, outliers stay what they are and their symbols take escapes.
pub(crate) fn encoded(codec: &str, rate: f64, rows: usize, cols: usize, outliers: bool) -> EncodedMatrix {
    let mut spec = CodecSpec::named(codec, rate).unwrap();
    if outliers {
        spec.rotation = RotationSpec::None;
    }
    let mut values = weights(rows, cols, rows as u64, outliers);
    if rows > 5 {
        values[4 * cols..5 * cols].fill(0.0);
        // A row without a usable scale is stored exactly.
        values[3 * cols..4 * cols].iter_mut().for_each(|v| *v *= 1e-36);
    }
    spec.check().unwrap().encode_owned(values, rows, cols).unwrap()
}

/// Points and rotated values of the CPU.
fn decoded(encoded: &EncodedMatrix) -> (Vec<i32>, Vec<f32>) {
    let decoder = encoded.decoder().unwrap();
    let (rows, n) = (decoder.rows(), decoder.rows() * decoder.cols());
    let (mut points, mut values) = (vec![0; n], vec![0.0; n]);
    decoder.decode_points(0..rows, &mut points, &mut DecodeScratch::new()).unwrap();
    decoder.decode_rows_rotated(0..rows, &mut values, &mut DecodeScratch::new()).unwrap();
    (points, values)
}

/// Products within `bound * ||x|| ||w||` of those in f64, every row of every column.
pub(crate) fn check_products(values: &[f32], cols: usize, x: &[f32], y: &[f32], bound: f64, what: &str) -> f64 {
    let mut worst = 0.0f64;
    let rows = values.len() / cols;
    for (x, y) in x.chunks(cols).zip(y.chunks(rows)) {
        let norm_x = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        for (row, (w, &y)) in values.chunks(cols).zip(y).enumerate() {
            let exact: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            let norm_w = w.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            let error = (f64::from(y) - exact).abs();
            assert!(error <= bound * norm_x * norm_w, "{what}, row {row}: {y} for {exact}, norms {norm_x} {norm_w}");
            if norm_x * norm_w > 0.0 {
                worst = worst.max(error / (norm_x * norm_w));
            }
        }
    }
    worst
}

/// Matrices that decode on the device.
pub(crate) trait Decodes {
    fn points<T: PointType>(&self, gpu: &Gpu, stream: StreamRef<'_>, out: DevSliceMut<'_, T>) -> Result<(), CudaError>;
    fn values<T: ValueType>(&self, gpu: &Gpu, stream: StreamRef<'_>, out: DevSliceMut<'_, T>) -> Result<(), CudaError>;
    fn damaged(&self, gpu: &Gpu) -> Result<Option<usize>, CudaError>;
}

macro_rules! decodes {
    ($($matrix:ty),*) => {
        $(impl Decodes for $matrix {
            fn points<T: PointType>(
                &self,
                gpu: &Gpu,
                stream: StreamRef<'_>,
                out: DevSliceMut<'_, T>,
            ) -> Result<(), CudaError> {
                self.decode_points(gpu, stream, out)
            }

            fn values<T: ValueType>(
                &self,
                gpu: &Gpu,
                stream: StreamRef<'_>,
                out: DevSliceMut<'_, T>,
            ) -> Result<(), CudaError> {
                self.decode(gpu, stream, out)
            }

            fn damaged(&self, gpu: &Gpu) -> Result<Option<usize>, CudaError> {
                self.damaged_stream(gpu)
            }
        })*
    };
}

decodes!(AnsMatrix, RiceMatrix);

fn check_points<T: PointType + TryFrom<i32> + PartialEq>(gpu: &Gpu, matrix: &impl Decodes, points: &[i32], what: &str) {
    let stream = gpu.stream().unwrap();
    let mut out = gpu.alloc::<T>(points.len()).unwrap();
    matrix.points(gpu, stream.as_ref(), out.as_mut()).unwrap();
    stream.synchronize().unwrap();
    let found = gpu.download(out.as_slice()).unwrap();
    let bad = found.iter().zip(points).position(|(&found, &point)| T::try_from(point).ok() != Some(found));
    assert_eq!(bad, None, "{what}: first wrong point");
    assert_eq!(matrix.damaged(gpu).unwrap(), None, "{what}");
}

fn check_values<T: ValueType>(
    gpu: &Gpu,
    matrix: &impl Decodes,
    values: &[f32],
    to_bits: fn(T) -> u32,
    round: fn(f32) -> T,
    what: &str,
) {
    let stream = gpu.stream().unwrap();
    let mut out = gpu.alloc::<T>(values.len()).unwrap();
    matrix.values(gpu, stream.as_ref(), out.as_mut()).unwrap();
    stream.synchronize().unwrap();
    let found = gpu.download(out.as_slice()).unwrap();
    let bad = found.iter().zip(values).position(|(&found, &value)| to_bits(found) != to_bits(round(value)));
    assert_eq!(bad, None, "{what}: first wrong value");
}

/// Points in every type that they fit, and values in every type, equal those of the CPU.
pub(crate) fn check_decoding(gpu: &Gpu, matrix: &impl Decodes, encoded: &EncodedMatrix, what: &str) {
    let (points, values) = decoded(encoded);
    check_points::<i32>(gpu, matrix, &points, what);
    if points.iter().all(|&y| i16::try_from(y).is_ok()) {
        check_points::<i16>(gpu, matrix, &points, what);
    }
    if points.iter().all(|&y| i8::try_from(y).is_ok()) {
        check_points::<i8>(gpu, matrix, &points, what);
    }
    check_values::<f32>(gpu, matrix, &values, |v| (v + 0.0).to_bits(), |v| v, what);
    check_values::<f16>(
        gpu,
        matrix,
        &values,
        |v| f16::from_f32(v.to_f32() + 0.0).to_bits().into(),
        f16::from_f32,
        what,
    );
    check_values::<bf16>(
        gpu,
        matrix,
        &values,
        |v| bf16::from_f32(v.to_f32() + 0.0).to_bits().into(),
        bf16::from_f32,
        what,
    );
}

#[test]
fn streams_decode_to_the_points_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for codec in ["z-rice", "a2-rice", "d4-rice", "e8-rice"] {
        for (rows, cols) in shapes(SHAPES) {
            for (rate, outliers) in [(1.5, false), (4.0, true)] {
                let what = format!("{codec}@{rate} {rows} x {cols} outliers {outliers}");
                let encoded = encoded(codec, rate, rows, cols, outliers);
                let matrix = RiceMatrix::upload(&gpu, &encoded.header, &encoded.planes).unwrap();
                check_decoding(&gpu, &matrix, &encoded, &what);
            }
        }
    }
}

#[test]
fn products_from_streams_are_those_of_the_values() {
    let Some(gpu) = gpu() else { return };
    let mut worst = 0.0f64;
    for codec in ["z-rice", "a2-rice", "d4-rice", "e8-rice"] {
        for (rows, cols) in shapes(SHAPES) {
            for (rate, outliers) in [(2.0, false), (4.0, true)] {
                let what = format!("{codec}@{rate} {rows} x {cols}");
                let encoded = encoded(codec, rate, rows, cols, outliers);
                let (_, values) = decoded(&encoded);
                let matrix = RiceMatrix::upload(&gpu, &encoded.header, &encoded.planes).unwrap();
                let stream = gpu.stream().unwrap();
                for n_batch in [1, 2, 5, 8] {
                    let x = weights(n_batch, cols, 3, false);
                    let device_x = gpu.upload(&x).unwrap();
                    let mut y = gpu.upload(&vec![f32::NAN; n_batch * rows]).unwrap();
                    matrix.gemm(&gpu, stream.as_ref(), device_x.as_slice(), y.as_mut()).unwrap();
                    stream.synchronize().unwrap();
                    let y = gpu.download(y.as_slice()).unwrap();
                    // f32 sums of up to 16384 products in 32 parts: far below one part in 10^4 of the norms.
                    worst = worst.max(check_products(&values, cols, &x, &y, 1e-4, &what));
                }
            }
        }
    }
    eprintln!("products from streams: worst error {worst:.1e} of the norms");
}

#[test]
fn products_from_planes_are_those_of_the_values() {
    let Some(gpu) = gpu() else { return };
    let mut worst = 0.0f64;
    let mut seen = [0; 5];
    for (rows, cols) in shapes(SHAPES) {
        for (codec, rate, outliers) in [
            ("e8-rice", 1.5, false),
            ("e8-rice", 2.0, true),
            ("e8-rice", 3.0, false),
            ("e8-rice", 4.0, false),
            ("e8-rice", 4.0, true),
            ("e8-rice", 5.0, false),
            ("e8-rice", 6.0, false),
            ("e8", 4.0, false),
        ] {
            let what = format!("{codec}@{rate} {rows} x {cols} outliers {outliers}");
            let encoded = encoded(codec, rate, rows, cols, outliers);
            let (_, values) = decoded(&encoded);
            let matrix = match RicePlanes::upload(&gpu, &encoded.header, &encoded.planes) {
                Ok(matrix) => matrix,
                Err(CudaError::Unsupported { .. }) if cols % 8 != 0 => continue,
                Err(error) => panic!("{what}: {error}"),
            };
            assert_eq!(cols % 8, 0);
            seen[matrix.k()] += 1;
            let stream = gpu.stream().unwrap();
            let mut scratch = RiceScratch::new(&gpu, [&matrix], 8).unwrap();
            let mut first: Option<Vec<f32>> = None;
            for n_batch in [1, 1, 2, 3, 5, 8] {
                let x = weights(n_batch, cols, 3, false);
                let device_x = gpu.upload(&x).unwrap();
                let mut y = gpu.upload(&vec![f32::NAN; n_batch * rows]).unwrap();
                matrix.gemm(&gpu, stream.as_ref(), device_x.as_slice(), y.as_mut(), &mut scratch).unwrap();
                stream.synchronize().unwrap();
                let y = gpu.download(y.as_slice()).unwrap();
                // x is off by 1/65200 of its peak at most: sqrt(16384) / 65200 times the norms, and far less in fact.
                worst = worst.max(check_products(&values, cols, &x, &y, 1e-3, &format!("{what} batch {n_batch}")));
                // The first column does not depend on the batch, nor on the launch.
                let column = y[..rows].to_vec();
                assert!(first.get_or_insert_with(|| column.clone()) == &column, "{what} batch {n_batch}");
            }
        }
    }
    eprintln!("products from planes: worst error {worst:.1e} of the norms; matrices by k: {seen:?}");
    assert!(reduced() || seen[1..].iter().all(|&n| n > 0), "{seen:?}");
}

#[test]
fn products_from_interleaved_streams_are_those_of_the_values() {
    let Some(gpu) = gpu() else { return };
    let mut worst = 0.0f64;
    let mut refused = 0;
    for (rows, cols) in shapes(&[(1, 512), (33, 512), (40, 1024), (65, 4096), (20, 14_336)]) {
        for (rate, outliers) in [(1.5, false), (2.0, false), (3.0, false), (4.0, false), (4.0, true), (5.0, false)] {
            let what = format!("e8-rice@{rate} {rows} x {cols} outliers {outliers}");
            let encoded = encoded("e8-rice", rate, rows, cols, outliers);
            let (_, values) = decoded(&encoded);
            let matrix = match RiceLanes::upload(&gpu, &encoded.header, &encoded.planes) {
                Ok(matrix) => matrix,
                // Rows of outliers under the parameter of the others.
                Err(CudaError::Unsupported { .. }) if outliers => {
                    refused += 1;
                    continue;
                }
                Err(error) => panic!("{what}: {error}"),
            };
            let stream = gpu.stream().unwrap();
            let mut scratch = matrix.scratch(&gpu).unwrap();
            let x = weights(1, cols, 3, false);
            let device_x = gpu.upload(&x).unwrap();
            let mut y = gpu.upload(&vec![f32::NAN; rows]).unwrap();
            for _ in 0..2 {
                matrix.gemv(&gpu, stream.as_ref(), device_x.as_slice(), y.as_mut(), &mut scratch).unwrap();
                stream.synchronize().unwrap();
                let y = gpu.download(y.as_slice()).unwrap();
                // x is off by 1/65200 of its peak at most: sqrt(14336) / 65200 times the norms, and far less in fact.
                worst = worst.max(check_products(&values, cols, &x, &y, 1e-3, &what));
            }
        }
    }
    eprintln!("products from interleaved streams: worst error {worst:.1e} of the norms, {refused} refused");
}

#[test]
fn damaged_streams_are_found_and_stay_within_bounds() {
    let Some(gpu) = gpu() else { return };
    for codec in ["z-rice", "a2-rice", "d4-rice", "e8-rice"] {
        let whole = encoded(codec, 3.0, 40, 900, false);
        let n_words = match &whole.planes[0].data {
            PlaneData::U32(words) => words.len(),
            _ => panic!("words are u32"),
        };
        for at in [0, n_words / 2, n_words - 2] {
            for mask in [u32::MAX, 1 << 7, 0xFFFF_0000] {
                let mut damaged = whole.clone();
                if let PlaneData::U32(words) = &mut damaged.planes[0].data {
                    words.to_mut()[at] ^= mask;
                }
                let matrix = RiceMatrix::upload(&gpu, &damaged.header, &damaged.planes).unwrap();
                let stream = gpu.stream().unwrap();
                let mut out = gpu.alloc::<i32>(40 * 900).unwrap();
                matrix.decode_points(&gpu, stream.as_ref(), out.as_mut()).unwrap();
                stream.synchronize().unwrap();
                let decoder = damaged.decoder().unwrap();
                let mut points = vec![0; 40 * 900];
                let on_cpu = decoder.decode_points(0..40, &mut points, &mut DecodeScratch::new());
                assert_eq!(
                    matrix.damaged_stream(&gpu).unwrap().is_some(),
                    on_cpu.is_err(),
                    "{codec} word {at} {mask:x}"
                );
            }
        }
    }
}

/// The matrix of `times` copies of the rows of `encoded`, which fill whole pages.
fn repeated(encoded: &EncodedMatrix, times: usize) -> EncodedMatrix {
    let mut header = encoded.header.clone();
    header.rows *= times as u64;
    let words_of = |planes: &[Plane<'_>]| match &planes[0].data {
        PlaneData::U32(words) => words.len() as u64,
        _ => panic!("words are u32"),
    };
    let page_bits = 32 * words_of(&encoded.planes);
    let planes = encoded.planes.iter().map(|plane| {
        let data = match &plane.data {
            PlaneData::U64(bases) => {
                let copies = (0..times as u64).flat_map(|i| bases.iter().map(move |base| base + i * page_bits));
                PlaneData::U64(copies.collect::<Vec<_>>().into())
            }
            PlaneData::U32(data) => PlaneData::U32(data.repeat(times).into()),
            PlaneData::U16(data) => PlaneData::U16(data.repeat(times).into()),
            PlaneData::Bf16(data) => PlaneData::Bf16(data.repeat(times).into()),
            other => panic!("a plane of {}", other.dtype()),
        };
        Plane { name: plane.name.clone(), data }
    });
    EncodedMatrix { header, planes: planes.collect() }
}

/// Microseconds of one of `n` launches, by a graph of all of them, the least of several runs.
fn time(
    gpu: &Gpu,
    n: usize,
    mut launch: impl FnMut(gosset_cuda::StreamRef<'_>, usize) -> Result<(), CudaError>,
) -> f64 {
    let stream = gpu.stream().unwrap();
    let graph = Graph::capture(&stream, |stream| (0..n).try_for_each(|i| launch(stream, i))).unwrap();
    let (start, end) = (Event::new(gpu).unwrap(), Event::new(gpu).unwrap());
    let mut times: Vec<f64> = (0..15)
        .map(|_| {
            start.record(stream.as_ref()).unwrap();
            graph.launch(stream.as_ref()).unwrap();
            end.record(stream.as_ref()).unwrap();
            stream.synchronize().unwrap();
            end.elapsed_us(&start).unwrap() / n as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Times at 14336 x 4096, weights cold by rotating copies; printed, not judged.
#[test]
fn times() {
    let Some(gpu) = gpu() else { return };
    let Ok(rates) = std::env::var("GOSSET_GPU_TIMES") else {
        return eprintln!("set GOSSET_GPU_TIMES to rates, such as 2,3,4, for times");
    };
    let (rows, cols, copies) = (14 * 1024, 4096, 5);
    for rate in rates.split(',').filter_map(|rate| rate.parse::<f64>().ok()) {
        let small = CodecSpec::named("e8-rice", rate).unwrap().check().unwrap();
        let small = small.encode_owned(weights(1024, cols, 1, false), 1024, cols).unwrap();
        let encoded = repeated(&small, 14);
        let file_bps = encoded.rate().total_bits() as f64 / (rows * cols) as f64;
        let planes: Vec<_> =
            (0..copies).map(|_| RicePlanes::upload(&gpu, &encoded.header, &encoded.planes).unwrap()).collect();
        let mut scratch = RiceScratch::new(&gpu, &planes, 8).unwrap();
        let bps = planes[0].device_bytes() as f64 * 8.0 / (rows * cols) as f64;
        for n_batch in [1, 2, 4, 8] {
            let x = gpu.upload(&weights(n_batch, cols, 3, false)).unwrap();
            let mut y = gpu.alloc::<f32>(n_batch * rows).unwrap();
            let us =
                time(&gpu, copies, |stream, i| planes[i].gemm(&gpu, stream, x.as_slice(), y.as_mut(), &mut scratch));
            eprintln!(
                "e8-rice-planes@{rate} k {} batch {n_batch}: {us:.2} us, {bps:.3} bps (file {file_bps:.3}), patches {:.5}",
                planes[0].k(),
                planes[0].n_patches() as f64 / (rows * cols) as f64
            );
        }
        drop(planes);
        let lanes: Vec<_> =
            (0..copies).map(|_| RiceLanes::upload(&gpu, &encoded.header, &encoded.planes).unwrap()).collect();
        let mut scratch = lanes[0].scratch(&gpu).unwrap();
        let bps = lanes[0].device_bytes() as f64 * 8.0 / (rows * cols) as f64;
        let x = gpu.upload(&weights(1, cols, 3, false)).unwrap();
        let mut y = gpu.alloc::<f32>(rows).unwrap();
        let us = time(&gpu, copies, |stream, i| lanes[i].gemv(&gpu, stream, x.as_slice(), y.as_mut(), &mut scratch));
        eprintln!("e8-rice@{rate} batch 1 from interleaved streams: {us:.2} us, {bps:.3} bps");
        drop(lanes);
        let streams: Vec<_> =
            (0..copies).map(|_| RiceMatrix::upload(&gpu, &encoded.header, &encoded.planes).unwrap()).collect();
        let bps = streams[0].device_bytes() as f64 * 8.0 / (rows * cols) as f64;
        let mut out = gpu.alloc::<bf16>(rows * cols).unwrap();
        let us = time(&gpu, copies, |stream, i| streams[i].decode(&gpu, stream, out.as_mut()));
        eprintln!("e8-rice@{rate} decode to bf16: {us:.2} us, {bps:.3} bps");
        for n_batch in [1, 8] {
            let x = gpu.upload(&weights(n_batch, cols, 3, false)).unwrap();
            let mut y = gpu.alloc::<f32>(n_batch * rows).unwrap();
            let us = time(&gpu, copies, |stream, i| streams[i].gemm(&gpu, stream, x.as_slice(), y.as_mut()));
            eprintln!("e8-rice@{rate} batch {n_batch} from streams: {us:.2} us");
        }
    }
}
