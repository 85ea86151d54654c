//! The search for trellis strings finds the words of the CPU's.

use gosset_cuda::launch::viterbi::{self, ViterbiEncoder, ViterbiScratch};
use gosset_cuda::{Buffer, Gpu};
use gosset_transform::{Domain, RandomStream};
use gosset_trellis::shift::{
    ShiftCode, ShiftDecoder, ShiftEncoder, ShiftLayout, ShiftOrder, ShiftScratch, ShiftSpec, ShiftTrellis,
};

use crate::gpu;

/// Sums of twelve uniform numbers: as good as Gaussian, variance 1.
fn gaussian(n: usize, index: u64) -> Vec<f32> {
    let mut stream = RandomStream::new(0x7e57, Domain::Rotation, index);
    let mut uniform = || f64::from(stream.next_u32()) / f64::from(1u32 << 16) / f64::from(1u32 << 16);
    (0..n).map(|_| ((0..12).map(|_| uniform()).sum::<f64>() - 6.0) as f32).collect()
}

fn spec(bits: u8, state_bits: u8, code: ShiftCode, order: ShiftOrder) -> ShiftSpec {
    ShiftSpec { bits, state_bits, code, order }
}

fn cpu(trellis: &ShiftTrellis, layout: &ShiftLayout, values: &[f32]) -> Vec<u32> {
    let mut words = vec![0; layout.n_words()];
    let strings = 0..layout.n_strings();
    ShiftEncoder::new(trellis).encode(layout, values, strings, &mut words, &mut ShiftScratch::new()).unwrap();
    words
}

/// Encodes into poisoned words, so that one that is not written shows.
fn device(
    gpu: &Gpu,
    trellis: &ShiftTrellis,
    layout: &ShiftLayout,
    values: &[f32],
    scratch: &mut ViterbiScratch,
) -> Vec<u32> {
    let stream = gpu.stream().unwrap();
    let values = gpu.upload(values).unwrap();
    let mut words = gpu.upload(&vec![0xa5a5_a5a5u32; layout.n_words()]).unwrap();
    let encoder = ViterbiEncoder::new(gpu, trellis).unwrap();
    encoder.encode(stream.as_ref(), layout, values.as_slice(), words.as_mut(), scratch).unwrap();
    gpu.download(words.as_slice()).unwrap()
}

fn check(gpu: &Gpu, spec: ShiftSpec, rows: usize, cols: usize) {
    let trellis = spec.check().unwrap();
    let layout = trellis.layout(rows, cols).unwrap();
    let mut values = gaussian(rows * cols, u64::from(spec.bits) << 8 | u64::from(spec.state_bits));
    if rows > 4 && cols > 1 {
        // A row of zeros, numbers beyond the code, and NaN.
        values[cols..2 * cols].fill(0.0);
        (values[0], values[2 * cols], values[3 * cols + 1]) = (9.0, f32::NAN, -7.5);
    }
    let found = device(gpu, &trellis, &layout, &values, &mut ViterbiScratch::new());
    let expected = cpu(&trellis, &layout, &values);
    let wrong = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
    assert_eq!(wrong, 0, "{spec:?}, {rows} x {cols}: of {} words", expected.len());
}

#[test]
fn viterbi_words_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    use ShiftCode::{Pairs, Quantiles};
    let shapes = [(1, 1), (7, 65), (33, 300), (150, 210), (40, 576)];
    let mut n = 0;
    for state_bits in 12..=16 {
        for bits in ShiftSpec::BITS {
            for code in [Quantiles, Pairs] {
                if code == Pairs && bits > 4 {
                    continue;
                }
                for order in [ShiftOrder::Rows, ShiftOrder::Tiles] {
                    // The CPU takes longer the more states there are.
                    let (rows, cols) = if state_bits < 14 { shapes[n % 5] } else { shapes[n % 3] };
                    check(&gpu, spec(bits, state_bits, code, order), rows, cols);
                    n += 1;
                }
            }
        }
    }
    // Blocks full of strings.
    for (bits, state_bits, order) in
        [(4, 12, ShiftOrder::Rows), (4, 12, ShiftOrder::Tiles), (4, 13, ShiftOrder::Rows), (3, 12, ShiftOrder::Tiles)]
    {
        check(&gpu, spec(bits, state_bits, Quantiles, order), 300, 150);
    }
    for (bits, state_bits, code, order) in [
        (2, 17, Pairs, ShiftOrder::Rows),
        (3, 17, Pairs, ShiftOrder::Tiles),
        (4, 17, Pairs, ShiftOrder::Rows),
        (2, 18, Quantiles, ShiftOrder::Tiles),
        (3, 18, Quantiles, ShiftOrder::Rows),
        (4, 18, Quantiles, ShiftOrder::Tiles),
        (5, 18, Quantiles, ShiftOrder::Rows),
        (6, 17, Quantiles, ShiftOrder::Rows),
    ] {
        check(&gpu, spec(bits, state_bits, code, order), 7, 65);
    }
}

#[test]
fn viterbi_words_do_not_depend_on_the_room_for_ways() {
    let Some(gpu) = gpu() else { return };
    let trellis = spec(2, 12, ShiftCode::Quantiles, ShiftOrder::Rows).check().unwrap();
    let layout = trellis.layout(200, 100).unwrap();
    let values = gaussian(200 * 100, 1);
    let expected = cpu(&trellis, &layout, &values);
    for bytes in [0, 300_000, 1 << 30] {
        let mut scratch = ViterbiScratch::with_limit(bytes);
        // Twice: scratch that was used is as good.
        for _ in 0..2 {
            assert_eq!(device(&gpu, &trellis, &layout, &values, &mut scratch), expected, "{bytes}");
        }
    }
}

#[test]
fn viterbi_gains_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (bits, code, order) in [
        (2, ShiftCode::Quantiles, ShiftOrder::Rows),
        (3, ShiftCode::Pairs, ShiftOrder::Tiles),
        (4, ShiftCode::Quantiles, ShiftOrder::Tiles),
        (5, ShiftCode::Quantiles, ShiftOrder::Rows),
    ] {
        let trellis = spec(bits, 12, code, order).check().unwrap();
        for (rows, cols) in [(1, 1), (33, 301), (65, 576)] {
            let layout = trellis.layout(rows, cols).unwrap();
            let values = gaussian(rows * cols, 9);
            let words = cpu(&trellis, &layout, &values);
            let mut decoded = vec![0.0; rows * cols];
            ShiftDecoder::new(&trellis).decode(&layout, &words, 0..layout.n_blocks(), &mut decoded).unwrap();
            let expected: Vec<u32> = values
                .chunks(cols)
                .zip(decoded.chunks(cols))
                .map(|(x, y)| {
                    let (mut xy, mut yy) = (0.0f64, 0.0f64);
                    for (&x, &y) in x.iter().zip(y) {
                        xy += f64::from(x) * f64::from(y);
                        yy += f64::from(y) * f64::from(y);
                    }
                    ((xy / (yy * f64::from(trellis.step()))) as f32).to_bits()
                })
                .collect();
            let stream = gpu.stream().unwrap();
            let (values, words) = (gpu.upload(&values).unwrap(), gpu.upload(&words).unwrap());
            let mut gains = gpu.upload(&vec![f32::NAN; rows]).unwrap();
            let encoder = ViterbiEncoder::new(&gpu, &trellis).unwrap();
            encoder.gains(stream.as_ref(), &layout, values.as_slice(), words.as_slice(), gains.as_mut()).unwrap();
            let found: Vec<u32> = gpu.download(gains.as_slice()).unwrap().into_iter().map(f32::to_bits).collect();
            assert_eq!(found, expected, "{bits} {code:?} {order:?} {rows} x {cols}");
        }
    }
}

#[test]
fn viterbi_reaches_the_distortion_of_the_constants() {
    let Some(gpu) = gpu() else { return };
    let (rows, cols) = (32, 4096);
    let values = gaussian(rows * cols, 3);
    for (bits, state_bits, code) in [
        (2, 16, ShiftCode::Quantiles),
        (3, 16, ShiftCode::Quantiles),
        (4, 16, ShiftCode::Quantiles),
        (2, 17, ShiftCode::Pairs),
        (3, 17, ShiftCode::Pairs),
    ] {
        let trellis = spec(bits, state_bits, code, ShiftOrder::Rows).check().unwrap();
        let layout = trellis.layout(rows, cols).unwrap();
        let on_device = gpu.upload(&values).unwrap();
        let words: Buffer<u32> = viterbi::encode(&gpu, &trellis, &layout, on_device.as_slice()).unwrap();
        let words = gpu.download(words.as_slice()).unwrap();
        let mut decoded = vec![0.0; rows * cols];
        ShiftDecoder::new(&trellis).decode(&layout, &words, 0..layout.n_blocks(), &mut decoded).unwrap();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let error: f64 = values
            .chunks(cols)
            .zip(decoded.chunks(cols))
            .map(|(x, y)| dot(x, x) - dot(x, y).powi(2) / dot(y, y))
            .sum::<f64>()
            / (rows * cols) as f64;
        // 131072 values: one standard deviation of a mean of squares is 0.4 %; sums of twelve have a kurtosis below 3.
        let constant = trellis.gaussian_mse();
        assert!((error / constant - 1.0).abs() < 0.03, "{bits} bits, {state_bits}: {error} against {constant}");
    }
}

#[test]
fn viterbi_refuses_wrong_shapes() {
    let Some(gpu) = gpu() else { return };
    let trellis = spec(2, 12, ShiftCode::Quantiles, ShiftOrder::Rows).check().unwrap();
    let other = spec(3, 12, ShiftCode::Quantiles, ShiftOrder::Rows).check().unwrap();
    let values = gpu.alloc::<f32>(100).unwrap();
    let encode = |layout: ShiftLayout| viterbi::encode(&gpu, &trellis, &layout, values.as_slice());
    assert!(encode(trellis.layout(10, 10).unwrap()).is_ok());
    let error = encode(trellis.layout(10, 11).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "values of a trellis: expected 110 elements, found 100");
    assert!(encode(other.layout(10, 10).unwrap()).is_err());
}
