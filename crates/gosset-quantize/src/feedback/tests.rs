//! Laws of feedback on matrices whose inputs are known.

use std::sync::Arc;

use gosset_codec::{
    CodecSpec, ColumnEncoder, ColumnOptions, DecodeScratch, EncodedMatrix, MatRef, N_CLASSES, RotationHeader, calibrate,
};
use gosset_unisvq::{DampingMethod, DampingSpec, Hessian, HessianAccumulator, relative_proxy};

use super::{FeedbackOptions, FeedbackReport, encode, is_supported};
use crate::InputMoments;

/// One codec of each way through the code.
const CODECS: [&str; 5] = ["e8@3", "d4@2", "trellis-64@3", "shift-12@3", "shift-12@2"];

/// Inputs with a wide spectrum, mixed, and one that is far larger than the others.
fn inputs(tokens: usize, n: usize, seed: u64) -> Vec<f32> {
    let noise = calibrate::gaussian(tokens * n, seed);
    let mut x = vec![0.0; tokens * n];
    for (x, noise) in x.chunks_mut(n).zip(noise.chunks(n)) {
        let mut carried = 0.0f32;
        for (j, (x, noise)) in x.iter_mut().zip(noise).enumerate() {
            carried = 0.9 * carried + noise;
            *x = if j == 5 { 30.0 * noise } else { carried };
        }
    }
    x
}

fn moments(x: &[f32], n: usize) -> InputMoments {
    let mut sums = HessianAccumulator::new(n).unwrap();
    sums.add(x).unwrap();
    of_hessian(sums.finish().unwrap())
}

fn of_hessian(hessian: Hessian) -> InputMoments {
    let dead_inputs = hessian.dead_inputs() as u64;
    InputMoments { hessian: Arc::new(hessian), drift: None, dead_inputs, output_energy: None }
}

fn with_feedback(
    codec: &str,
    w: &[f32],
    (rows, cols): (usize, usize),
    moments: &InputMoments,
) -> (EncodedMatrix, FeedbackReport, Vec<f32>) {
    let spec = CodecSpec::parse(codec).unwrap();
    let (encoded, report) = encode(&spec, w, rows, cols, moments, &FeedbackOptions::default()).unwrap();
    let decoded = decode(&encoded, w.len());
    (encoded, report, decoded)
}

fn decode(encoded: &EncodedMatrix, len: usize) -> Vec<f32> {
    let decoder = encoded.decoder().unwrap();
    let mut decoded = vec![f32::NAN; len];
    decoder.decode_rows(0..decoder.rows(), &mut decoded, &mut DecodeScratch::new()).unwrap();
    decoded
}

fn alone(codec: &str, w: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    let codec = CodecSpec::parse(codec).unwrap().check().unwrap();
    decode(&codec.encode(MatRef::new(w, rows, cols).unwrap()).unwrap(), w.len())
}

#[test]
fn feedback_halves_the_error_of_outputs_at_the_same_payload() {
    let (rows, cols) = (256, 192);
    let w = calibrate::gaussian(rows * cols, 1);
    let moments = moments(&inputs(2000, cols, 2), cols);
    let h = moments.hessian.as_slice();
    for codec in CODECS.into_iter().chain(["shift-12@4"]) {
        let (encoded, report, decoded) = with_feedback(codec, &w, (rows, cols), &moments);
        let (found, before) =
            (relative_proxy(&w, &decoded, rows, h), relative_proxy(&w, &alone(codec, &w, rows, cols), rows, h));
        assert!(found < 0.5 * before, "{codec}: {found} after {before}");
        assert_eq!(report.simpler, None, "{codec}");
        // What the codec alone would have cost is known without encoding.
        assert!((report.plain / before - 1.0).abs() < 0.15, "{codec}: {} {before}", report.plain);
        let asked: f64 = codec.split_once('@').unwrap().1.parse().unwrap();
        assert!((encoded.rate().payload_bps() - asked).abs() < 0.01, "{codec}: {}", report.payload_bps);
        assert_eq!(encoded.rate().payload_bps(), report.payload_bps);
    }
}

/// The rotations that columns of `cols` inputs of the bit-shift trellis are stored with.
fn rotations(cols: usize) -> Vec<RotationHeader> {
    let rht = |runs: &[[u32; 2]]| RotationHeader::Rht { seed: 0, runs: runs.to_vec() };
    match cols {
        192 => vec![rht(&[[64, 3]]), RotationHeader::None, rht(&[[16, 12]]), rht(&[[128, 1], [64, 1]])],
        _ => panic!("{cols} inputs"),
    }
}

#[test]
fn inputs_are_rotated_as_suits_them() {
    let (rows, cols) = (64, 192);
    let w = calibrate::gaussian(rows * cols, 1);
    let rotation = |moments: &InputMoments| with_feedback("shift-12@2", &w, (rows, cols), moments).0.header.rotation;
    // Inputs that have nothing to do with each other, one half of them far stronger: only a tile across both makes them alike.
    let strong = |i: usize| if i < cols / 2 { 100.0 } else { 1.0 };
    let halves: Vec<f64> = (0..cols * cols).map(|i| if i % (cols + 1) == 0 { strong(i / cols) } else { 0.0 }).collect();
    let halves = rotation(&of_hessian(Hessian::new(cols, halves, 9).unwrap()));
    assert!(halves == rotations(cols)[3] || halves == RotationHeader::None, "{halves:?}");
    let mixed = rotation(&moments(&inputs(2000, cols, 2), cols));
    assert!(rotations(cols).contains(&mixed), "{mixed:?}");
    // Who asks for none gets none.
    let mut spec = CodecSpec::parse("shift-12@2").unwrap();
    spec.rotation = gosset_codec::RotationSpec::None;
    let moments = moments(&inputs(2000, cols, 2), cols);
    let (encoded, report) = encode(&spec, &w, rows, cols, &moments, &FeedbackOptions::default()).unwrap();
    assert_eq!((encoded.header.rotation, report.simpler), (RotationHeader::None, None));
}

#[test]
fn the_order_of_feedback_leaves_equal_shares_of_the_error() {
    // Weak inputs first, then sums of them: the given order has the strong columns explained by nothing that comes before.
    let (rows, cols, tokens) = (128, 192, 3000);
    let w = calibrate::gaussian(rows * cols, 1);
    let mut x = calibrate::gaussian(tokens * cols, 2);
    for x in x.chunks_mut(cols) {
        (0..cols / 2).for_each(|j| x[j] = 4.0 * x[cols / 2 + j] + 0.2 * x[j]);
    }
    let moments = moments(&x, cols);
    let proxy = |spec: &CodecSpec| {
        let (_, report) = encode(spec, &w, rows, cols, &moments, &FeedbackOptions::default()).unwrap();
        report.proxy
    };
    let mut spec = CodecSpec::parse("shift-12@3").unwrap();
    let chosen = proxy(&spec);
    spec.rotation = gosset_codec::RotationSpec::None;
    let (natural, ordered) = (in_given_order(&w, rows, &moments), proxy(&spec));
    assert!(ordered < 0.6 * natural && chosen < 1.02 * ordered, "{natural} {ordered} {chosen}");
}

/// The proxy of columns of `shift-12@3` without a rotation of the inputs, from the last to the first.
fn in_given_order(w: &[f32], rows: usize, moments: &InputMoments) -> f64 {
    let cols = w.len() / rows;
    let mut spec = CodecSpec::parse("shift-12@3").unwrap();
    spec.rotation = gosset_codec::RotationSpec::None;
    let options = ColumnOptions {
        inputs: RotationHeader::None,
        outputs: RotationHeader::None,
        step: 2f32.powi(-12),
        exponents: Vec::new(),
        reach: 1.0,
        gains: [1.0; N_CLASSES],
        row_exponents: Vec::new(),
    };
    let encoder = ColumnEncoder::new(&spec, rows, cols, &options).unwrap();
    let (damped, ldl) = DampingSpec::default().factor(&moments.hessian, 1).unwrap();
    let mut out = vec![0.0; w.len()];
    let mut rounder = super::entropy_coded::Columns::new(encoder, Vec::new());
    gosset_unisvq::ldlq(w, rows, &ldl, Default::default(), &mut rounder, &mut out).unwrap();
    relative_proxy(w, &out, rows, damped.as_slice())
}

#[test]
fn tiles_gain_less_but_gain() {
    let (rows, cols) = (64, 128);
    let w = calibrate::gaussian(rows * cols, 1);
    let moments = moments(&inputs(2000, cols, 2), cols);
    let mut spec = CodecSpec::parse("shift-16-tiles@2").unwrap();
    let gosset_codec::SchemeSpec::Shift { state_bits, .. } = &mut spec.scheme else { panic!() };
    *state_bits = 12;
    let (encoded, report) = encode(&spec, &w, rows, cols, &moments, &FeedbackOptions::default()).unwrap();
    assert!(encoded.header.columns.is_none(), "tiles keep their form");
    assert!(report.proxy < 0.6 * report.plain, "{report:?}");
    let codec = spec.check().unwrap().encode(MatRef::new(&w, rows, cols).unwrap()).unwrap();
    assert_eq!(encoded.rate(), codec.rate());
}

#[test]
fn without_correlations_feedback_does_nothing() {
    let (rows, cols) = (128, 40);
    let w = calibrate::gaussian(rows * cols, 3);
    let identity = of_hessian(Hessian::identity(cols).unwrap());
    for codec in ["e8@3", "d4@2", "trellis-64@3"] {
        let (_, report, decoded) = with_feedback(codec, &w, (rows, cols), &identity);
        let before = relative_proxy(&w, &alone(codec, &w, rows, cols), rows, identity.hessian.as_slice());
        let found = relative_proxy(&w, &decoded, rows, identity.hessian.as_slice());
        assert!((found / before - 1.0).abs() < 0.15, "{codec}: {found} {before} {:?}", report.simpler);
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let (rows, cols) = (192, 96);
    let w = calibrate::gaussian(rows * cols, 5);
    let moments = moments(&inputs(500, cols, 6), cols);
    for codec in CODECS {
        let of = |n| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
            pool.install(|| with_feedback(codec, &w, (rows, cols), &moments).0)
        };
        let one = of(1);
        assert!(one == of(2) && one == of(7), "{codec}");
    }
}

#[test]
fn g01_moments_that_cannot_be_factored_end_in_plain_rounding_with_a_reason() {
    let (rows, cols) = (64, 64);
    let w = calibrate::gaussian(rows * cols, 5);
    let mut twice = inputs(400, cols, 8);
    twice.chunks_mut(cols).for_each(|x| x[9] = x[8]);
    let spread: Vec<f64> = (0..cols * cols)
        .map(|i| if i % (cols + 1) == 0 { 10f64.powf(24.0 * (i / cols) as f64 / 63.0 - 12.0) } else { 0.0 })
        .collect();
    let cases = [
        ("four tokens", moments(&inputs(4, cols, 7), cols), true),
        ("no activity", of_hessian(Hessian::new(cols, vec![0.0; cols * cols], 9).unwrap()), false),
        ("two inputs alike", moments(&twice, cols), true),
        ("24 decades", of_hessian(Hessian::new(cols, spread, 9).unwrap()), true),
    ];
    for (case, moments, is_damped) in cases {
        for codec in CODECS {
            let (_, report, decoded) = with_feedback(codec, &w, (rows, cols), &moments);
            assert_eq!(report.damping.method == DampingMethod::Damped, is_damped, "{case}, {codec}");
            assert_eq!(report.simpler.is_some(), !is_damped || report.proxy == report.plain, "{case}, {codec}");
            assert!(
                decoded.iter().all(|v| v.is_finite()) && report.proxy <= report.plain,
                "{case}, {codec}: {report:?}"
            );
        }
    }
    let (_, report, _) = with_feedback(
        "e8@3",
        &calibrate::gaussian(64, 1),
        (64, 1),
        &of_hessian(Hessian::new(1, vec![2.0], 9).unwrap()),
    );
    assert!(report.proxy < 0.1, "{report:?}");
}

#[test]
fn g03_weights_of_unseen_inputs_are_rounded_as_finely_as_others() {
    let (rows, cols) = (128, 64);
    let w = calibrate::gaussian(rows * cols, 5);
    let unseen = |col: usize| col % 6 == 1;
    let mut x = inputs(1000, cols, 8);
    x.chunks_mut(cols).for_each(|x| (0..cols).filter(|&col| unseen(col)).for_each(|col| x[col] = 0.0));
    let moments = moments(&x, cols);
    assert_eq!(moments.dead_inputs, 11);
    for codec in CODECS {
        let (_, report, decoded) = with_feedback(codec, &w, (rows, cols), &moments);
        assert_eq!(report.damping.dead_inputs, 11, "{codec}");
        let plain = alone(codec, &w, rows, cols);
        let error = |decoded: &[f32]| {
            let of = |(i, (a, b)): (usize, (&f32, &f32))| if unseen(i % cols) { f64::from(a - b).powi(2) } else { 0.0 };
            w.iter().zip(decoded).enumerate().map(of).sum::<f64>()
        };
        // Twice the squared error is one step of the water filling, 3 dB.
        assert!(error(&decoded) < 2.0 * error(&plain), "{codec}: {} {}", error(&decoded), error(&plain));
    }
}

#[test]
fn drift_moves_outputs_towards_those_of_the_unquantized_model() {
    let (rows, cols, tokens) = (64, 64, 4000);
    let w = calibrate::gaussian(rows * cols, 5);
    let x = inputs(tokens, cols, 8);
    // The quantized prefix shrinks inputs and adds noise.
    let noise = calibrate::gaussian(tokens * cols, 9);
    let seen: Vec<f32> = x.iter().zip(&noise).map(|(x, noise)| 0.8 * x + 0.3 * noise).collect();
    let mut drifted = moments(&seen, cols);
    let mut cross = gosset_unisvq::CrossAccumulator::new(cols).unwrap();
    cross.add(&x, &seen).unwrap();
    let outputs = |w: &[f32], x: &[f32]| -> Vec<f32> {
        let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum();
        x.chunks(cols).flat_map(|x| w.chunks(cols).map(move |w| dot(x, w))).collect()
    };
    let expected = outputs(&w, &x);
    let error = |moments: &InputMoments| {
        let found = outputs(&with_feedback("e8@4", &w, (rows, cols), moments).2, &seen);
        expected.iter().zip(found).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
    };
    let without = error(&drifted);
    drifted.drift = Some(Arc::new(cross.finish().unwrap()));
    let with = error(&drifted);
    assert!(with < 0.5 * without, "{with} {without}");
}

#[test]
fn codecs_that_have_no_form_with_feedback_are_known() {
    for (codec, expected) in [("e8-rice@3", false), ("e8@3", true), ("shift-16-tiles@2", true), ("trellis-8@2", true)] {
        assert_eq!(is_supported(&CodecSpec::parse(codec).unwrap().scheme), expected, "{codec}");
    }
}

#[test]
fn unbiased_weights_are_as_large_as_the_originals() {
    let (rows, cols) = (256, 96);
    let w = calibrate::gaussian(rows * cols, 21);
    let mut x = inputs(4000, cols, 22);
    x.iter_mut().zip(calibrate::gaussian(4000 * cols, 23)).for_each(|(x, noise)| *x += 2.0 * noise);
    let moments = moments(&x, cols);
    let slope = |codec| {
        let (encoded, report, decoded) = with_feedback(codec, &w, (rows, cols), &moments);
        assert_eq!((encoded.header.codec_name(), report.simpler), ("e8", None), "{codec}");
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        (product(&w, &decoded) / product(&w, &w), product(&w, &decoded) / product(&decoded, &decoded))
    };
    // Least squares: the error is orthogonal to what is stored, which is smaller by its share. Without: orthogonal to the originals.
    let ((along, fitted), (unbiased, too_large)) = (slope("e8@2"), slope("e8-unbiased@2"));
    assert!((fitted - 1.0).abs() < 0.01 && (0.9..0.96).contains(&along), "{along} {fitted}");
    assert!((unbiased - 1.0).abs() < 0.01 && (0.9..0.96).contains(&too_large), "{unbiased} {too_large}");
}

#[test]
fn outputs_that_bring_more_are_kept_better() {
    let (rows, cols) = (128, 96);
    let moments = moments(&inputs(2000, cols, 4), cols);
    // What rows bring downstream is far from what they are: some are small and read with large weights.
    let size = |row: usize| 2f32.powi((row * 7 % 5) as i32 - 2);
    let gain = |row: usize| 4f64.powi((row * 3 % 7) as i32 - 3);
    let mut w = calibrate::gaussian(rows * cols, 5);
    w.chunks_exact_mut(cols).enumerate().for_each(|(row, w)| w.iter_mut().for_each(|w| *w *= size(row)));
    let damped = DampingSpec::default().factor(&moments.hessian, 1).unwrap().0;
    let of_row =
        |e: &[f32]| gosset_unisvq::proxy(&e.iter().map(|v| f64::from(*v)).collect::<Vec<_>>(), 1, damped.as_slice());
    let energy: Vec<f64> = w.chunks_exact(cols).enumerate().map(|(row, w)| gain(row) * of_row(w)).collect();
    let weighed = InputMoments { output_energy: Some(Arc::new(energy)), ..moments.clone() };
    let shift = |moments| with_feedback("shift-12@3", &w, (rows, cols), moments).0;
    assert!(shift(&moments) == shift(&weighed), "columns of a fixed rate have no factors of rows");
    for codec in ["e8@3", "trellis-8@2"] {
        let found = |moments: &InputMoments| {
            let (encoded, report, decoded) = with_feedback(codec, &w, (rows, cols), moments);
            assert_eq!(report.simpler, None, "{codec}");
            let errors: Vec<f32> = w.iter().zip(&decoded).map(|(a, b)| a - b).collect();
            let errors: Vec<f64> = errors.chunks_exact(cols).map(of_row).collect();
            let downstream: f64 = errors.iter().enumerate().map(|(row, e)| gain(row) * e).sum();
            (encoded, errors, downstream)
        };
        let (alike, even, costly) = found(&moments);
        let (scaled, uneven, cheap) = found(&weighed);
        assert!(alike.header.columns.unwrap().row_exponents.eq(&false) && scaled.header.columns.unwrap().row_exponents);
        assert!(cheap < 0.6 * costly, "{codec}: {cheap} {costly}");
        // Errors of outputs that bring 4^6 as much are 2^6 times smaller, within the halves of steps of factors.
        let mean = |errors: &[f64], wanted: f64| {
            let of: Vec<f64> = (0..rows).filter(|&r| gain(r) == wanted).map(|r| errors[r]).collect();
            of.iter().sum::<f64>() / of.len() as f64
        };
        let ratio = |errors: &[f64]| mean(errors, 1.0 / 64.0) / mean(errors, 64.0);
        assert!((40.0..100.0).contains(&ratio(&uneven)) && (0.7..1.4).contains(&ratio(&even)), "{codec}");
    }
}

#[test]
fn energies_of_outputs_that_say_nothing_change_nothing() {
    let (rows, cols) = (64, 96);
    let moments = moments(&inputs(2000, cols, 4), cols);
    let mut w = calibrate::gaussian(rows * cols, 5);
    w[3 * cols..4 * cols].fill(0.0);
    let plain = with_feedback("e8@3", &w, (rows, cols), &moments).0;
    for energy in [0.0, f64::INFINITY, f64::NAN] {
        let moments = InputMoments { output_energy: Some(Arc::new(vec![energy; rows])), ..moments.clone() };
        assert_eq!(with_feedback("e8@3", &w, (rows, cols), &moments).0, plain);
    }
    // One output that brings nothing, one of zeros, and one beyond all others have factors within the range.
    let mut energy = vec![1.0; rows];
    (energy[0], energy[1], energy[2]) = (0.0, 1e300, f64::MIN_POSITIVE);
    let moments = InputMoments { output_energy: Some(Arc::new(energy)), ..moments };
    let (encoded, report, decoded) = with_feedback("e8@3", &w, (rows, cols), &moments);
    assert!(encoded.header.columns.unwrap().row_exponents && report.simpler.is_none());
    assert!(decoded.iter().all(|v| v.is_finite()));
    let wrong = InputMoments { output_energy: Some(Arc::new(vec![1.0; rows - 1])), ..moments };
    let spec = CodecSpec::parse("e8@3").unwrap();
    let error = encode(&spec, &w, rows, cols, &wrong, &FeedbackOptions::default()).unwrap_err();
    assert!(error.to_string().contains("energy of outputs"), "{error}");
}

#[test]
fn few_tokens_are_damped_more() {
    let options = FeedbackOptions::default();
    let sigma = |inputs, tokens| options.damping_of(inputs, tokens).sigma;
    assert!((sigma(512, 32_768) - (0.31 + 1.0 / 64.0)).abs() < 1e-12);
    assert_eq!((sigma(512, 100), sigma(512, 0)), (1.31, 1.31));
    // 60 tokens of 128 unrelated inputs seem to be related: with the damping that suits many tokens, feedback costs more on others.
    let (rows, cols) = (64, 128);
    let w = calibrate::gaussian(rows * cols, 1);
    let (few, others) = (calibrate::gaussian(60 * cols, 2), moments(&calibrate::gaussian(2000 * cols, 3), cols));
    let spec = CodecSpec::parse("e8@3").unwrap();
    let error = |sampling| {
        let options = FeedbackOptions { sampling, ..FeedbackOptions::default() };
        let (encoded, report) = encode(&spec, &w, rows, cols, &moments(&few, cols), &options).unwrap();
        assert_eq!(report.simpler, None);
        relative_proxy(&w, &decode(&encoded, w.len()), rows, others.hessian.as_slice())
    };
    let (damped, published) = (error(1.0), error(0.0));
    assert!(damped < 0.8 * published, "{damped} {published}");
}
