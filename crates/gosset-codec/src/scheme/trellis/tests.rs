//! Laws of the scheme; what all codecs share is tested with the others in `tests/codec`.

use std::borrow::Cow;

use gosset_trellis::entropy_coded::{Quantizer, Scratch, TrellisCode, encode};
use proptest::prelude::*;

use super::family::{N_MEMBERS, N_TABLES, Table, join};
use super::{STREAM_LEN, family_table};
use crate::calibrate::gaussian;
use crate::{
    CodecError, CodecSpec, DecodeScratch, Decoder, EncodedMatrix, MatRef, MatrixHeader, Plane, PlaneData, RateTarget,
    RotationSpec, SchemeHeader, TrellisHeader,
};

const NAMES: [&str; 3] = ["trellis-8", "trellis-64", "trellis-256"];

fn encoded(spec: &CodecSpec, x: &[f32], cols: usize) -> EncodedMatrix {
    spec.check().unwrap().encode(MatRef::new(x, x.len() / cols, cols).unwrap()).unwrap()
}

fn encoded_as(name: &str, bps: f64, x: &[f32], cols: usize) -> EncodedMatrix {
    encoded(&CodecSpec::named(name, bps).unwrap(), x, cols)
}

fn decoded(matrix: &EncodedMatrix) -> Vec<f32> {
    let decoder = matrix.decoder().unwrap();
    let mut out = vec![f32::NAN; decoder.rows() * decoder.cols()];
    decoder.decode_rows(0..decoder.rows(), &mut out, &mut DecodeScratch::new()).unwrap();
    out
}

/// Mean squared error over mean square.
fn relative_error(x: &[f32], y: &[f32]) -> f64 {
    let noise: f64 = x.iter().zip(y).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum();
    noise / x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>()
}

/// Distance to the rate-distortion function of a Gaussian source, everything but row scales counted.
fn gap_bits(matrix: &EncodedMatrix, x: &[f32]) -> f64 {
    matrix.rate().stream_bps() + 0.5 * relative_error(x, &decoded(matrix)).log2()
}

fn header(matrix: &EncodedMatrix) -> TrellisHeader {
    match &matrix.header.scheme {
        SchemeHeader::Trellis(header) => header.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_table_of_the_family_is_valid() {
    for index in 0..N_TABLES as u16 {
        let table = Table::get(index).unwrap();
        let _: Quantizer = table.quantizer();
        for (union, freqs) in table.freqs().iter().enumerate() {
            assert_eq!(freqs.first().rem_euclid(2), union as i32);
            // Symmetric in the sign, as it is stored.
            assert_eq!(&freqs.mirrored(), freqs);
        }
    }
    assert!(Table::get(N_TABLES as u16).is_none() && Table::get(u16::MAX).is_none());
}

#[test]
fn the_published_family_is_the_one_in_use() {
    let json: serde_json::Value = serde_json::from_str(include_str!("../../../tables/trellis-family.json")).unwrap();
    let members = json["members"].as_array().unwrap();
    assert_eq!(members.len(), N_MEMBERS);
    let numbers = |value: &serde_json::Value| -> Vec<i64> {
        value.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
    };
    for (i, member) in members.iter().enumerate() {
        let stored = family_table::MEMBERS[i];
        assert_eq!(numbers(&member["even"]), stored.even.iter().map(|&f| i64::from(f)).collect::<Vec<_>>());
        assert_eq!(numbers(&member["odd"]), stored.odd.iter().map(|&f| i64::from(f)).collect::<Vec<_>>());
        assert_eq!(numbers(&member["offsets"]), stored.offsets.iter().map(|&o| i64::from(o)).collect::<Vec<_>>());
        assert_eq!(numbers(&member["escape_orders"]), family_table::ESCAPE_ORDERS[i].map(i64::from));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn joining_undoes_splitting(y in -(1i32 << 23)..1 << 23, index in 0..N_TABLES as u16) {
        let table = Table::get(index).unwrap();
        let (value, raw) = table.split(y);
        prop_assert_eq!((value - y) % 2, 0);
        prop_assert!(raw >> table.raw_bits() == 0);
        prop_assert_eq!(join(value, raw, table.raw_bits()), y);
    }
}

#[test]
fn decoding_gives_the_points_of_the_search() {
    // Shapes of one value, of less than a step, of partial steps, and of more than one stream.
    for (rows, cols) in [(1, 1), (1, 3), (7, 65), (33, 300), (5, 7001)] {
        let mut x = gaussian(rows * cols, 7);
        // An outlier in every codec's tail, so that escapes occur.
        x[rows * cols / 2] = 300.0;
        for (name, bps) in [("trellis-8", 1.0), ("trellis-64", 3.5), ("trellis-256", 7.5)] {
            let spec = CodecSpec { rotation: RotationSpec::None, ..CodecSpec::named(name, bps).unwrap() };
            let matrix = encoded(&spec, &x, cols);
            let TrellisHeader { states, step, table } = header(&matrix);
            let quantizer = Table::get(table).unwrap().quantizer();
            let code = TrellisCode::with_states(states).unwrap();
            let scaled: Vec<f32> = x
                .chunks(cols)
                .flat_map(|row| {
                    let rms = (row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / cols as f64).sqrt();
                    let scale = half::bf16::from_f64(rms).to_f32();
                    row.iter().map(move |v| v / scale)
                })
                .collect();
            // The header has the inverse of alpha, rounded: recover alpha from both neighbours.
            let alpha = [-1, 0, 1].map(|d| f32::from_bits((1.0 / step).to_bits().wrapping_add_signed(d)));
            let mut found = vec![0; x.len()];
            matrix.decoder().unwrap().decode_points(0..rows, &mut found, &mut DecodeScratch::new()).unwrap();
            let same = alpha.into_iter().filter(|alpha| 1.0 / alpha == step).any(|alpha| {
                scaled.chunks(STREAM_LEN).zip(found.chunks(STREAM_LEN)).all(|(stream, found)| {
                    let stream: Vec<f32> = stream.iter().map(|v| v * alpha).collect();
                    let mut points = vec![0; stream.len()];
                    encode(code, &quantizer, &stream, &mut points, &mut Scratch::default()).unwrap();
                    points == found
                })
            });
            assert!(same, "{name}@{bps}, {rows} x {cols}");
        }
    }
}

#[test]
fn outliers_survive() {
    let cols = 700;
    let mut x = gaussian(5 * cols, 8);
    for (i, outlier) in [(3, 1e4), (3500 - 1, -1e4), (1234, 500.0), (2000, -30.0)] {
        x[i] = outlier;
    }
    for name in NAMES {
        for bps in [1.25, 3.0, 8.0] {
            let spec = CodecSpec { rotation: RotationSpec::None, ..CodecSpec::named(name, bps).unwrap() };
            let matrix = encoded(&spec, &x, cols);
            let scales = matrix.planes.iter().find(|plane| plane.name == "scales").unwrap();
            let PlaneData::Bf16(scales) = &scales.data else { panic!("{scales:?}") };
            for (i, (x, y)) in x.iter().zip(decoded(&matrix)).enumerate() {
                let scale = scales[i / cols].to_f32();
                // Points of a subset are 4 steps apart; offsets and the rate term may add one more. The gain of a row with an
                // outlier is rounded to 8 bits.
                let bound = 3.0 * header(&matrix).step * scale + x.abs() / 128.0;
                assert!((x - y).abs() <= bound, "{name}@{bps}, value {i}: {x} {y}");
            }
        }
    }
}

#[test]
fn gaussian_values_are_within_hundredths_of_a_bit_of_the_bound() {
    let (cols, x) = (1024, gaussian(1 << 17, 9));
    for (name, limit) in [("trellis-8", 0.10), ("trellis-64", 0.075), ("trellis-256", 0.06)] {
        for bps in [2.0, 3.0, 4.0] {
            let gap = gap_bits(&encoded_as(name, bps, &x, cols), &x);
            assert!(gap < limit, "{name}@{bps}: {gap:.4} bits");
        }
    }
    // E8 with an ideal coder is 0.145 bits from the bound.
    for bps in [2.0, 3.0, 4.0, 5.0] {
        let gap = gap_bits(&encoded_as("trellis-64", bps, &x, cols), &x);
        assert!(gap < 0.10, "trellis-64@{bps}: {gap:.4} bits");
    }
    let matrix = encoded_as("trellis-8", 1.5, &x, cols);
    assert!(relative_error(&x, &decoded(&matrix)) < 0.145);
}

#[test]
fn payload_is_on_target_and_distortion_falls_with_it() {
    let (cols, x) = (512, gaussian(1 << 16, 10));
    for name in NAMES {
        let mut last = f64::INFINITY;
        for bps in [0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 5.5, 6.0, 7.0, 8.0, 10.0] {
            let matrix = encoded_as(name, bps, &x, cols);
            let found = matrix.rate().payload_bps();
            assert!((found - bps).abs() < 0.01, "{name}@{bps}: {found}");
            let error = relative_error(&x, &decoded(&matrix));
            assert!(error < last, "{name}@{bps}: {error} after {last}");
            last = error;
        }
    }
}

#[test]
fn payload_is_on_target_for_unlike_data() {
    let n = 1 << 16;
    let normal = gaussian(n, 11);
    // Heavy tails, half of the rows zero, few levels per row, rows of unlike size.
    let cubed: Vec<f32> = normal.iter().map(|x| x * x * x).collect();
    let halved: Vec<f32> = normal.iter().enumerate().map(|(i, x)| if i / 256 % 2 == 0 { *x } else { 0.0 }).collect();
    let scaled: Vec<f32> = normal.iter().enumerate().map(|(i, x)| x * (1.0 + (i / 256) as f32)).collect();
    for (what, x) in [("cubed", cubed), ("halved", halved), ("scaled", scaled)] {
        for rotation in [RotationSpec::None, RotationSpec::DEFAULT] {
            for bps in [1.25, 3.0] {
                let spec = CodecSpec { rotation: rotation.clone(), ..CodecSpec::named("trellis-8", bps).unwrap() };
                let found = encoded(&spec, &x, 256).rate().payload_bps();
                assert!((found - bps).abs() < 0.01, "{what}, {rotation:?}, {bps}: {found}");
            }
        }
    }
}

#[test]
fn matrices_without_information_are_fine() {
    for name in NAMES {
        let matrix = encoded_as(name, 2.0, &[0.0; 900], 30);
        assert!(decoded(&matrix).iter().all(|v| v.to_bits() == 0));
        let mut x = gaussian(900, 12);
        x[30..60].fill(0.0);
        x[60..90].fill(1e-42);
        let back = decoded(&encoded_as(name, 3.0, &x, 30));
        assert!(back[30..60].iter().all(|v| v.to_bits() == 0));
        assert_eq!(back[60..90], x[60..90]);
    }
    let back = decoded(&encoded_as("trellis-8", 3.0, &[-2.5], 1));
    assert!((back[0] + 2.5).abs() < 0.05, "{back:?}");
}

#[test]
fn a_fixed_alpha_is_kept_or_refused() {
    let x = gaussian(600, 13);
    let mut spec = CodecSpec::named("trellis-64", 2.0).unwrap();
    spec.target = RateTarget::Alpha(8.0);
    assert_eq!(header(&encoded(&spec, &x, 60)).step, 0.125);
    let mut spike = vec![0.0; 1 << 16];
    spike[77] = 1.0;
    spec.target = RateTarget::Alpha(65_536.0);
    spec.rotation = RotationSpec::None;
    let error = spec.check().unwrap().encode(MatRef::new(&spike, 1, 1 << 16).unwrap()).unwrap_err();
    assert!(matches!(error, CodecError::Magnitude { row: 0, .. }), "{error}");
    // The row is divided by 2^-8, so that its largest value is 2^8: with this alpha just below 2^22.
    spec.target = RateTarget::Alpha(16_360.0);
    assert_eq!(decoded(&encoded(&spec, &spike, 1 << 16))[77], 1.0);
}

/// Gains are the least-squares ones, up to the rounding of the scale that they are part of.
#[test]
fn gains_minimize_the_error_of_each_row() {
    let cols = 4096;
    // A scaled sum of few levels, which the centroids of Gaussian data do not fit.
    let x: Vec<f32> =
        gaussian(3 * cols, 14).iter().map(|x| x.signum() * (1.0 + (x.abs() > 1.0) as u8 as f32)).collect();
    let spec = CodecSpec { rotation: RotationSpec::None, ..CodecSpec::named("trellis-8", 1.25).unwrap() };
    let back = decoded(&encoded(&spec, &x, cols));
    for (x, y) in x.chunks(cols).zip(back.chunks(cols)) {
        let product: f64 = x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
        let square: f64 = y.iter().map(|&y| f64::from(y).powi(2)).sum();
        assert!((product / square - 1.0).abs() < 1.0 / 256.0, "{}", product / square);
    }
}

#[cfg(feature = "rayon")]
#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let x = gaussian(200 * 576, 15);
    for name in NAMES {
        let by_threads = [1, 2, 7].map(|n| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
            pool.install(|| encoded_as(name, 2.75, &x, 576))
        });
        assert!(by_threads.iter().all(|matrix| matrix == &by_threads[0]));
    }
}

/// Values without any library function: sums of uniform integers, times a dyadic number.
fn exact_noise(n: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 48) as i32
    };
    (0..n).map(|_| (next() + next() + next() + next() - 131_072) as f32 / 65_536.0).collect()
}

/// FNV-1a of the planes that the scheme makes.
fn fingerprint(matrix: &EncodedMatrix) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut feed =
        |bytes: &[u8]| bytes.iter().for_each(|&b| hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    for plane in &matrix.planes {
        match &plane.data {
            PlaneData::U16(data) => data.iter().for_each(|v| feed(&v.to_le_bytes())),
            PlaneData::U32(data) => data.iter().for_each(|v| feed(&v.to_le_bytes())),
            PlaneData::Bf16(data) => data.iter().for_each(|v| feed(&v.to_le_bytes())),
            other => panic!("{other:?}"),
        }
    }
    hash
}

/// Another machine, another build profile and any number of threads must give these bytes. A change of the encoder may
/// change them; decoders do not care.
#[test]
fn bytes_are_the_same_everywhere() {
    let x = exact_noise(96 * 172);
    let found = [("trellis-8", 3.0), ("trellis-64", 1.25), ("trellis-256", 2.0), ("trellis-8", 7.0)]
        .map(|(name, bps)| fingerprint(&encoded_as(name, bps, &x, 172)));
    assert_eq!(
        found,
        [0x9f4d_f7b6_95c0_60e3, 0x3a49_1127_a858_b544, 0x055a_0565_0711_6f22, 0x9bb1_f3c0_c32d_1999],
        "{found:#x?}"
    );
}

/// Decodes all that the decoder offers; the result does not matter.
fn decode_all(header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<(), CodecError> {
    let decoder = Decoder::new(header, planes)?;
    let n = decoder.rows() * decoder.cols();
    assert!(n <= 1 << 20, "{n} values from so small planes");
    let mut out = vec![0.0; n];
    decoder.decode_rows(0..decoder.rows(), &mut out, &mut DecodeScratch::new())?;
    decoder.decode_points(0..decoder.rows(), &mut vec![0; n], &mut DecodeScratch::new())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn damaged_planes_never_panic(
        bps in prop::sample::select(&[0.5, 2.0, 7.0][..]),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0u32..32), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let x = gaussian(40 * 172, 16);
        let matrix = encoded_as("trellis-8", bps, &x, 172);
        let (header, mut planes) = (matrix.header, matrix.planes);
        let PlaneData::U32(words) = &mut planes[0].data else { panic!("words come first") };
        for (at, bit) in &flips {
            let at = at.index(words.len());
            words.to_mut()[at] ^= 1 << bit;
        }
        let _ = decode_all(&header, &planes);
        // Truncated words with lengths to match.
        let PlaneData::U32(words) = &mut planes[0].data else { panic!("words come first") };
        let len = cut.index(words.len());
        words.to_mut().truncate(len);
        prop_assert!(decode_all(&header, &planes).is_err());
        planes[1].data = PlaneData::U16(Cow::Owned(vec![len as u16]));
        prop_assert!(decode_all(&header, &planes).is_err());
    }

    #[test]
    fn wrong_headers_never_panic(states: u32, step: f32, table: u16, rows in 1u64..100_000, cols in 1u64..100_000) {
        let matrix = encoded_as("trellis-8", 2.0, &gaussian(7 * 65, 17), 65);
        for scheme in [
            TrellisHeader { states, ..header(&matrix) },
            TrellisHeader { step, ..header(&matrix) },
            TrellisHeader { table, ..header(&matrix) },
            TrellisHeader { table: table % N_TABLES as u16, states: 64, ..header(&matrix) },
        ] {
            let header = MatrixHeader { scheme: SchemeHeader::Trellis(scheme), ..matrix.header.clone() };
            let _ = decode_all(&header, &matrix.planes);
        }
        let header = MatrixHeader { rows, cols, ..matrix.header.clone() };
        let right = (rows, cols) == (7, 65);
        prop_assert!(right || decode_all(&header, &matrix.planes).is_err());
    }
}

#[test]
fn refusals_say_what_and_where() {
    let matrix = encoded_as("trellis-8", 2.0, &gaussian(7 * 65, 17), 65);
    let with = |scheme| MatrixHeader { scheme: SchemeHeader::Trellis(scheme), ..matrix.header.clone() };
    let message = |header: &MatrixHeader, planes: &[Plane<'_>]| decode_all(header, planes).unwrap_err().to_string();
    assert_eq!(
        message(&with(TrellisHeader { states: 16, ..header(&matrix) }), &matrix.planes),
        "header field states: found 16, expected 8, 64 or 256"
    );
    assert_eq!(
        message(&with(TrellisHeader { table: 122, ..header(&matrix) }), &matrix.planes),
        "header field table: found 122, expected a table of the family, below 122"
    );
    assert_eq!(
        message(&with(TrellisHeader { step: f32::NAN, ..header(&matrix) }), &matrix.planes),
        "header field step: found NaN, expected a positive normal number"
    );
    let mut planes = matrix.planes.clone();
    planes[1].data = PlaneData::U16(Cow::Owned(vec![1, 2]));
    assert_eq!(message(&matrix.header, &planes), "plane `lengths`: 2 elements, expected 1");
}
