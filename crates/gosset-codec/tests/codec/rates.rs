//! Realised rates: on target, and equal to the bytes of the planes.

use gosset_codec::{CodeHeader, CodecSpec, PlaneData, RateTarget, RotationSpec};
use proptest::prelude::*;

use crate::{at_alpha, decode, encode, gaussian, lattice_header, snr_db, spec};

/// What a matrix of 2^16 weights or more promises.
const BOUND_BPS: f64 = 0.01;
const NAMES: [&str; 4] = ["e8-rice", "d4-rice", "a2-rice", "z-rice"];

#[test]
fn payload_is_on_target_for_every_lattice_on_gaussian_data() {
    let (rows, cols) = (384, 512);
    let x = gaussian(rows * cols, 11);
    for name in NAMES.iter().chain(&["e8", "d4", "a2", "z"]) {
        for bps in (3..=12).map(|half| 0.5 * f64::from(half)).chain([1.05, 1.1, 7.25, 10.0]) {
            let encoded = encode(&spec(name, bps).check().unwrap(), &x, rows, cols);
            let payload = encoded.rate().payload_bps();
            assert!((payload - bps).abs() <= BOUND_BPS, "{name}@{bps}: {payload}");
        }
    }
}

/// Rows of very different size and heavy tails, without rotation: the Gaussian curve is a poor guess there.
#[test]
fn payload_is_on_target_for_unlike_data() {
    let (rows, cols) = (300, 250);
    let x: Vec<f32> = gaussian(rows * cols, 12)
        .iter()
        .enumerate()
        .map(|(i, v)| v * v * v * if i % 97 == 0 { 30.0 } else { 1.0 } * ((i / cols) as f32 + 1e-3))
        .collect();
    for rotation in [RotationSpec::None, RotationSpec::DEFAULT] {
        for bps in [1.05, 1.3, 2.0, 3.0, 5.0, 9.0] {
            let spec = CodecSpec { rotation: rotation.clone(), ..spec("e8-rice", bps) };
            let payload = encode(&spec.check().unwrap(), &x, rows, cols).rate().payload_bps();
            assert!((payload - bps).abs() <= BOUND_BPS, "{rotation:?} {bps}: {payload}");
        }
    }
}

/// A matrix large enough for the search to work on a sample, whose sampled part is unlike the rest.
#[test]
fn a_misleading_sample_is_corrected() {
    let (rows, cols) = (512, 1024);
    let x: Vec<f32> = gaussian(rows * cols, 13)
        .iter()
        .enumerate()
        .map(|(i, v)| if (i / (32 * 512)) % 4 == 0 { v.powi(5) } else { *v })
        .collect();
    let spec = CodecSpec { rotation: RotationSpec::None, ..spec("e8-rice", 3.0) };
    let payload = encode(&spec.check().unwrap(), &x, rows, cols).rate().payload_bps();
    assert!((payload - 3.0).abs() <= BOUND_BPS, "{payload}");
}

#[test]
fn payload_does_not_depend_on_how_alpha_was_found() {
    let x = gaussian(64 * 512, 14);
    let targeted = encode(&spec("d4-rice", 2.5).check().unwrap(), &x, 64, 512);
    let alpha = f64::from(lattice_header(&targeted).alpha);
    let fixed = CodecSpec { target: RateTarget::Alpha(alpha), ..spec("d4-rice", 2.5) };
    assert_eq!(encode(&fixed.check().unwrap(), &x, 64, 512), targeted);
}

#[test]
fn parameters_are_the_best_of_the_matrix() {
    let x = gaussian(64 * 1024, 15);
    for (name, alpha, ks) in
        [("e8-rice", 3.59, vec![1]), ("a2-rice", 6.747, vec![1, 3]), ("d4-rice", 8.554, vec![2, 1])]
    {
        let encoded = encode(&at_alpha(name, alpha), &x, 64, 1024);
        assert_eq!(lattice_header(&encoded).code, CodeHeader::Rice { ks }, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// All causes together are all bytes of all planes, and the decoder counts as the encoder does.
    #[test]
    fn rate_is_the_size_of_the_planes(rows in 1usize..40, cols in 1usize..700, name in prop::sample::select(&NAMES), alpha in 0.3f64..30.0, seed in 0u64..1000, tiny in prop::bool::ANY) {
        let mut x = gaussian(rows * cols, seed);
        if tiny {
            x[..cols].fill(1e-41);
        }
        let encoded = encode(&at_alpha(name, alpha), &x, rows, cols);
        let rate = encoded.rate();
        let bytes: usize = encoded.planes.iter().map(|plane| plane.data.n_bytes()).sum();
        prop_assert_eq!(rate.total_bits(), bytes as u64 * 8);
        prop_assert_eq!(rate.n, (rows * cols) as u64);
        let PlaneData::U16(lengths) = &encoded.planes[1].data else { panic!() };
        let code_bits: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
        let exact_bits = if tiny { 32 * (1 + cols as u64) } else { 0 };
        prop_assert_eq!(rate.payload_bits, code_bits + exact_bits);
        prop_assert_eq!(rate.scale_bits, 16 * rows as u64);
        prop_assert!(rate.header_bits < 32 * (lengths.len() as u64).div_ceil(64));
        prop_assert_eq!(encoded.decoder().unwrap().rate(), rate);
    }
}

#[test]
fn values_far_beyond_8_bits_survive() {
    // Absurd but finite values among ordinary ones, with and without a rotation that spreads them.
    let (rows, cols) = (64, 1024);
    let mut x: Vec<f32> = gaussian(rows * cols, 16).iter().map(|v| v * 0.02).collect();
    for (i, outlier) in (0..18).map(|i| (3001 * i + 5, [1e3, -5e3, 5e4][i % 3])) {
        x[i] = outlier;
    }
    for rotation in [RotationSpec::None, RotationSpec::DEFAULT] {
        let spec = CodecSpec { rotation, ..spec("e8-rice", 4.0) };
        let encoded = encode(&spec.check().unwrap(), &x, rows, cols);
        let decoded = decode(&encoded);
        assert!(decoded.iter().all(|v| v.is_finite()));
        assert!((encoded.rate().payload_bps() - 4.0).abs() <= BOUND_BPS);
        assert!(snr_db(&x, &decoded) > 20.0);
    }
    let one = encode(&at_alpha("z-rice", 1000.0), &x, rows, cols);
    let mut points = vec![0; rows * cols];
    let decoder = one.decoder().unwrap();
    decoder.decode_points(0..rows, &mut points, &mut gosset_codec::DecodeScratch::new()).unwrap();
    assert!(points.iter().any(|y| y.abs() > 30_000));
    assert!(snr_db(&x, &decode(&one)) > 60.0);
}
