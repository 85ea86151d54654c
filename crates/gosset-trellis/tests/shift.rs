//! Laws of the bit-shift trellis.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which fail by panicking")]

use gosset_trellis::TrellisError;
use gosset_trellis::shift::{
    Backend, MAX_STATE_BITS, MIN_STATE_BITS, ShiftCode, ShiftDecoder, ShiftEncoder, ShiftLayout, ShiftOrder,
    ShiftScratch, ShiftSpec, ShiftTrellis,
};
use proptest::prelude::*;

fn spec(bits: u8, state_bits: u8, code: ShiftCode, order: ShiftOrder) -> ShiftSpec {
    ShiftSpec { bits, state_bits, code, order }
}

fn all_specs() -> impl Iterator<Item = ShiftSpec> {
    let codes = [ShiftCode::Quantiles, ShiftCode::Pairs];
    let bits = codes.into_iter().flat_map(|code| ShiftSpec::BITS.map(|bits| (code, bits)));
    let states = bits.flat_map(|(code, bits)| (MIN_STATE_BITS..=MAX_STATE_BITS).map(move |l| (code, bits, l)));
    states
        .flat_map(|(code, bits, l)| [ShiftOrder::Rows, ShiftOrder::Tiles].map(|order| spec(bits, l, code, order)))
        .filter(|spec| spec.code == ShiftCode::Quantiles || spec.bits <= 4)
}

/// Close to Gaussian, of unit variance, without any library function.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 48) as i32
    };
    (0..n).map(|_| ((0..12).map(|_| next()).sum::<i32>() - 6 * 65_536) as f32 / 65_536.0).collect()
}

fn encode(trellis: &ShiftTrellis, backend: Backend, layout: &ShiftLayout, x: &[f32]) -> Vec<u32> {
    let mut words = vec![0xdead_beef; layout.n_words()];
    let encoder = ShiftEncoder::with_backend(trellis, backend);
    encoder.encode(layout, x, 0..layout.n_strings(), &mut words, &mut ShiftScratch::new()).unwrap();
    words
}

fn decode(trellis: &ShiftTrellis, backend: Backend, layout: &ShiftLayout, words: &[u32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; layout.rows() * layout.cols()];
    ShiftDecoder::with_backend(trellis, backend).decode(layout, words, 0..layout.n_blocks(), &mut out).unwrap();
    out
}

/// Bit by bit, by the definition: the state is the last L bits of the ring up to and with a step.
fn decode_naively(trellis: &ShiftTrellis, layout: &ShiftLayout, words: &[u32]) -> Vec<f32> {
    let spec = trellis.spec();
    let (l, b, v) = (usize::from(spec.state_bits), spec.step_bits() as usize, spec.weights_per_step());
    let mut out = vec![f32::NAN; layout.rows() * layout.cols()];
    for (string, words) in words.chunks(layout.words_per_string()).enumerate() {
        let bit = |i: usize| words[i / 32] >> (31 - i % 32) & 1;
        let n_bits = words.len() * 32;
        let (rows, cols) = layout.region(string);
        for step in 0..layout.n_steps() {
            let end = (step + 1) * b + n_bits;
            let state = (end - l..end).fold(0, |state, i| state << 1 | bit(i % n_bits));
            let values = trellis.code().values(state, l as u32);
            for (i, value) in values[..v].iter().enumerate() {
                let (row, col) = layout.place(step * v + i);
                if row < rows.len() && col < cols.len() {
                    out[(rows.start + row) * layout.cols() + cols.start + col] = *value;
                }
            }
        }
    }
    out
}

fn squared_error(trellis: &ShiftTrellis, x: &[f32], decoded: &[f32]) -> f64 {
    x.iter().zip(decoded).map(|(x, y)| f64::from(x - trellis.step() * y).powi(2)).sum()
}

#[test]
fn every_backend_finds_the_same_words_and_decodes_them_alike() {
    for spec in all_specs() {
        // Rows that need padding, and enough of them for one group and a rest; short, since debug builds are slow.
        let (rows, cols) = match (spec.order, spec.state_bits) {
            (ShiftOrder::Rows, ..=14) => (5, 13),
            (ShiftOrder::Rows, 18) => (1, 5),
            (_, 13..) => continue,
            _ => (17, 19),
        };
        let trellis = spec.check().unwrap();
        let layout = trellis.layout(rows, cols).unwrap();
        let x = noise(7, rows * cols);
        let expected = encode(&trellis, Backend::scalar(), &layout, &x);
        let decoded = decode_naively(&trellis, &layout, &expected);
        for backend in Backend::all() {
            assert_eq!(encode(&trellis, backend, &layout, &x), expected, "{} with {spec:?}", backend.name());
            assert_eq!(decode(&trellis, backend, &layout, &expected), decoded, "{} with {spec:?}", backend.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_words_decode_as_the_definition_says(
        which in 0..112usize, rows in 1..40usize, cols in 1..90usize, seed: u32,
    ) {
        let spec = all_specs().nth(which).unwrap();
        let trellis = spec.check().unwrap();
        let layout = trellis.layout(rows, cols).unwrap();
        let words: Vec<u32> = (0..layout.n_words() as u32).map(|i| (i ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(i % 32)).collect();
        let expected = decode_naively(&trellis, &layout, &words);
        prop_assert!(expected.iter().all(|y| y.is_finite()));
        for backend in Backend::all() {
            prop_assert_eq!(&decode(&trellis, backend, &layout, &words), &expected);
        }
        // Blocks of rows on their own are the same rows.
        let per_block = layout.words_per_string() * layout.strings_per_block();
        let decoder = ShiftDecoder::new(&trellis);
        for block in 0..layout.n_blocks() {
            let first = block * layout.rows_per_block();
            let end = rows.min(first + layout.rows_per_block());
            let mut out = vec![f32::NAN; (end - first) * cols];
            decoder.decode(&layout, &words[block * per_block..][..per_block], block..block + 1, &mut out).unwrap();
            prop_assert_eq!(&out, &expected[first * cols..end * cols]);
        }
    }
}

/// Least squared error of rings through one state at the seam, by Viterbi's algorithm in plain f64.
fn least_error(trellis: &ShiftTrellis, x: &[f32], seam: u32) -> f64 {
    let spec = trellis.spec();
    let (l, b, v) = (u32::from(spec.state_bits), spec.step_bits(), spec.weights_per_step());
    let mut metrics = vec![f64::INFINITY; 1 << l];
    metrics[seam as usize] = 0.0;
    for x in x.chunks(v) {
        let next = (0..1u32 << l).map(|state| {
            let before = (0..1u32 << b).map(|way| metrics[(way << (l - b) | state >> b) as usize]);
            let cost: f64 = squared_error(trellis, x, &trellis.code().values(state, l));
            cost + before.fold(f64::INFINITY, f64::min)
        });
        metrics = next.collect();
    }
    metrics[seam as usize]
}

#[test]
fn no_ring_through_the_same_seam_is_better() {
    for (bits, code) in
        [(2, ShiftCode::Quantiles), (3, ShiftCode::Pairs), (4, ShiftCode::Quantiles), (5, ShiftCode::Quantiles)]
    {
        let trellis = spec(bits, 12, code, ShiftOrder::Rows).check().unwrap();
        let layout = trellis.layout(1, 32).unwrap();
        let x = noise(u64::from(bits), 32);
        let words = encode(&trellis, Backend::detect(), &layout, &x);
        let found = squared_error(&trellis, &x, &decode(&trellis, Backend::detect(), &layout, &words));
        let mut states = vec![0; layout.n_steps()];
        ShiftDecoder::new(&trellis).states(&layout, &words, &mut states).unwrap();
        let least = least_error(&trellis, &x, *states.last().unwrap());
        assert!(found >= least * (1.0 - 1e-9), "{bits} bits: the oracle has {least}, found {found}");
        // Numbers are rounded to 2^-8 at four bits: that much of the error, which is two orders larger, may be lost.
        assert!(found <= least * 1.005, "{bits} bits: the oracle has {least}, found {found}");
    }
}

#[test]
fn gaussian_rows_have_the_stated_error() {
    for (bits, state_bits, code) in [
        (2, 12, ShiftCode::Quantiles),
        (3, 12, ShiftCode::Quantiles),
        (4, 12, ShiftCode::Quantiles),
        (5, 12, ShiftCode::Quantiles),
        (6, 12, ShiftCode::Quantiles),
        (2, 12, ShiftCode::Pairs),
        (4, 13, ShiftCode::Pairs),
    ] {
        let trellis = spec(bits, state_bits, code, ShiftOrder::Rows).check().unwrap();
        let (rows, cols) = (4, 512);
        let layout = trellis.layout(rows, cols).unwrap();
        let x = noise(3, rows * cols);
        let decoded = decode(&trellis, Backend::detect(), &layout, &encode(&trellis, Backend::detect(), &layout, &x));
        let energy: f64 = x.iter().map(|x| f64::from(x * x)).sum();
        let ratio = squared_error(&trellis, &x, &decoded) / energy / trellis.gaussian_mse();
        // A sum of twelve uniform numbers has lighter tails than a Gaussian, and 2048 of them are few.
        assert!((0.85..1.12).contains(&ratio), "{bits} bits, L = {state_bits}, {code:?}: {ratio}");
    }
}

#[test]
fn words_of_a_string_do_not_depend_on_the_strings_around_it() {
    for order in [ShiftOrder::Rows, ShiftOrder::Tiles] {
        let trellis = spec(3, 12, ShiftCode::Quantiles, order).check().unwrap();
        let layout = trellis.layout(18, 40).unwrap();
        let mut x = noise(11, 18 * 40);
        x[3 * 40..4 * 40].fill(0.0);
        let together = encode(&trellis, Backend::detect(), &layout, &x);
        let encoder = ShiftEncoder::new(&trellis);
        let mut scratch = ShiftScratch::new();
        for (string, expected) in together.chunks(layout.words_per_string()).enumerate() {
            let mut words = vec![1; layout.words_per_string()];
            encoder.encode(&layout, &x, string..string + 1, &mut words, &mut scratch).unwrap();
            assert_eq!(words, expected, "string {string}");
        }
    }
}

#[test]
fn zeros_are_zero_bits_and_no_number_is_too_strange() {
    let trellis = spec(2, 12, ShiftCode::Quantiles, ShiftOrder::Rows).check().unwrap();
    let layout = trellis.layout(2, 16).unwrap();
    assert_eq!(encode(&trellis, Backend::detect(), &layout, &[0.0; 32]), [0, 0]);
    let strange = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX, 1e-45, 5.0, -5.0];
    let x: Vec<f32> = strange.into_iter().cycle().take(32).collect();
    for backend in Backend::all() {
        let words = encode(&trellis, backend, &layout, &x);
        assert_eq!(words, encode(&trellis, Backend::scalar(), &layout, &x));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let good = spec(3, 12, ShiftCode::Quantiles, ShiftOrder::Rows);
    for (bad, message) in [
        (ShiftSpec { bits: 7, ..good }, "bits per weight: expected 2, 3, 4, 5 or 6, found 7"),
        (ShiftSpec { state_bits: 19, ..good }, "state bits: expected 12 to 18, found 19"),
        (ShiftSpec { state_bits: 11, ..good }, "state bits: expected 12 to 18, found 11"),
        (
            ShiftSpec { bits: 5, code: ShiftCode::Pairs, ..good },
            "bits per weight of a code of pairs: expected 2, 3 or 4, found 5",
        ),
    ] {
        assert_eq!(bad.check().unwrap_err().to_string(), message);
    }
    let trellis = good.check().unwrap();
    let layout = trellis.layout(2, 32).unwrap();
    let (encoder, decoder) = (ShiftEncoder::new(&trellis), ShiftDecoder::new(&trellis));
    let mut scratch = ShiftScratch::new();
    let mut words = [0; 6];
    let is_length = |result: Result<(), TrellisError>| assert!(matches!(result, Err(TrellisError::Length { .. })));
    let is_parameter =
        |result: Result<(), TrellisError>| assert!(matches!(result, Err(TrellisError::Parameter { .. })));
    is_length(encoder.encode(&layout, &[0.0; 63], 0..2, &mut words, &mut scratch));
    is_length(encoder.encode(&layout, &[0.0; 64], 0..1, &mut words, &mut scratch));
    is_parameter(encoder.encode(&layout, &[0.0; 64], 1..3, &mut words, &mut scratch));
    is_length(decoder.decode(&layout, &words[..5], 0..2, &mut [0.0; 64]));
    is_length(decoder.decode(&layout, &words, 0..2, &mut [0.0; 65]));
    is_parameter(decoder.decode(&layout, &words, 0..usize::MAX, &mut [0.0; 64]));
    is_length(decoder.states(&layout, &words[..2], &mut [0; 16]));
    is_length(decoder.states(&layout, &words[..3], &mut [0; 15]));
    let other = spec(2, 12, ShiftCode::Quantiles, ShiftOrder::Rows).check().unwrap().layout(2, 32).unwrap();
    is_parameter(decoder.decode(&other, &[0; 4], 0..2, &mut [0.0; 64]));
}
