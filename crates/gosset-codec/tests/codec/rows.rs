//! Rows that have no ordinary scale.

use gosset_codec::{CodecError, CodecSpec, DecodeScratch, PlaneData, RotationSpec};

use crate::{decode, encode, gaussian, snr_db, spec};

const COLS: usize = 256;

/// One matrix with rows: zero, constant, tiny of both signs, around the smallest normal number, subnormal, one-hot,
/// negative zero; Gaussian rows between them.
fn odd_rows() -> (Vec<f32>, usize) {
    let one_hot: Vec<f32> = (0..COLS).map(|i| if i == 77 { 1.0 } else { 0.0 }).collect();
    let alternating: Vec<f32> = (0..COLS).map(|i| if i % 2 == 0 { 1e-6 } else { -1e-6 }).collect();
    let rows = [
        vec![0.0; COLS],
        vec![9.0; COLS],
        alternating,
        vec![1e-38; COLS],
        vec![1e-42; COLS],
        one_hot,
        vec![-0.0; COLS],
        gaussian(COLS, 31),
        vec![3e38; COLS],
    ];
    (rows.concat(), rows.len())
}

#[test]
fn odd_rows_come_back_exactly_or_within_the_usual_error() {
    let (x, rows) = odd_rows();
    for rotation in [RotationSpec::None, RotationSpec::DEFAULT] {
        for name in ["e8-rice", "d4-rice", "a2-rice", "z-rice", "e8", "d4", "a2", "z"] {
            let spec = CodecSpec { rotation: rotation.clone(), ..spec(name, 6.0) };
            let encoded = encode(&spec.check().unwrap(), &x, rows, COLS);
            for plane in &encoded.planes {
                if let PlaneData::Bf16(scales) = &plane.data {
                    assert!(scales.iter().all(|scale| scale.is_finite()));
                }
            }
            let decoded = decode(&encoded);
            assert!(decoded.iter().all(|v| v.is_finite()));
            for (i, (row, decoded)) in x.chunks(COLS).zip(decoded.chunks(COLS)).enumerate() {
                match i {
                    0 | 6 => assert!(decoded.iter().all(|v| v.to_bits() == 0), "row {i} is not zero"),
                    // Out of the range of scales: stored exactly.
                    3 | 4 | 8 => assert_eq!(decoded, row),
                    // The exact rows take so much that the others get half of the asked rate: 3 bits, about 16 dB on
                    // Gaussian values, of which a constant row, where all errors are alike, may lack some.
                    _ => assert!(snr_db(row, decoded) > 10.0, "{name} row {i}: {}", snr_db(row, decoded)),
                }
            }
            assert_eq!(encoded.decoder().unwrap().n_exact_rows(), 3);
        }
    }
}

#[test]
fn exact_rows_are_rotated_with_the_others() {
    let (x, rows) = odd_rows();
    let encoded = encode(&spec("e8-rice", 4.0).check().unwrap(), &x, rows, COLS);
    let decoder = encoded.decoder().unwrap();
    let mut out = vec![f32::NAN; COLS];
    decoder.decode_rows_rotated(4..5, &mut out, &mut DecodeScratch::new()).unwrap();
    let mut expected = x[4 * COLS..][..COLS].to_vec();
    decoder.rotation().unwrap().forward(&mut expected);
    assert_eq!(out, expected);
}

#[test]
fn matrices_without_information_are_fine() {
    for name in ["e8-rice", "d4-rice", "a2-rice", "z-rice", "e8", "d4", "a2", "z"] {
        for value in [0.0, -0.0, 1.0, -3.25, 1e-42, 3e38] {
            for rotation in [RotationSpec::None, RotationSpec::DEFAULT] {
                let spec = CodecSpec { rotation, ..spec(name, 5.0) };
                let x = vec![value; 40 * 33];
                let decoded = decode(&encode(&spec.check().unwrap(), &x, 40, 33));
                assert!(
                    decoded.iter().all(|&v| v.is_finite() && (v - value).abs() <= 0.5 * value.abs()),
                    "{name} {value}"
                );
            }
        }
    }
}

#[test]
fn non_finite_values_are_refused_with_their_place() {
    let codec = spec("e8-rice", 3.0).check().unwrap();
    let mut x = gaussian(64 * 100, 32);
    x[20 * 100 + 7] = f32::NAN;
    x[63 * 100 + 99] = f32::INFINITY;
    let error = codec.encode_owned(x, 64, 100).unwrap_err();
    assert!(matches!(error, CodecError::NonFinite { row: 20, col: 7, n_nan: 1, n_infinite: 1, .. }), "{error}");
}

#[test]
fn a_fixed_alpha_beyond_the_range_names_the_row() {
    let mut x = vec![1e-3; 8 * 4096];
    x[3 * 4096 + 5] = 1e3;
    let error = crate::at_alpha("z-rice", 65536.0).encode_owned(vec![1.0; 8], 1, 8).map(|_| ());
    assert_eq!(error, Ok(()));
    let codec = crate::at_alpha("e8-rice", 65536.0);
    codec.encode_owned(x.clone(), 8, 4096).unwrap();
    // A row of 2^20 values of which one is not zero has a peak of 2^10 RMS.
    let mut x = vec![0.0; 1 << 20];
    x[12345] = 1.0;
    let error = codec.encode_owned(x, 1, 1 << 20).unwrap_err();
    assert!(error.to_string().starts_with("row 0: alpha-scaled value 67108864 is too large"), "{error}");
}
