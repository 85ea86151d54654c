//! Any shape, any row range, whatever the buffers held before.

use gosset_codec::{CodecError, CodecSpec, DecodeScratch, MatRef, RotationSpec};
use proptest::prelude::*;

use crate::{at_alpha, decode, encode, gaussian, snr_db, spec};

const SHAPES: [(usize, usize); 6] = [(150, 210), (33, 300), (7, 65), (1, 1), (3, 1), (1, 4097)];

#[test]
fn off_grid_shapes_keep_shape_and_quality() {
    for (rows, cols) in SHAPES {
        for name in ["e8-rice", "d4-rice", "a2-rice", "z-rice", "e8", "d4", "a2", "z"] {
            let x = gaussian(rows * cols, 21);
            let encoded = encode(&spec(name, 6.0).check().unwrap(), &x, rows, cols);
            assert_eq!((encoded.header.rows, encoded.header.cols), (rows as u64, cols as u64));
            let decoded = decode(&encoded);
            assert_eq!(decoded.len(), rows * cols);
            // A 6-bit code of Gaussian values is beyond 34 dB; a few values may miss that by far.
            assert!(
                snr_db(&x, &decoded) > if rows * cols < 8 { 6.0 } else { 30.0 },
                "{name} {rows} x {cols}: {}",
                snr_db(&x, &decoded)
            );
        }
    }
}

/// What was in the scratch and the output before never shows: the bytes are equal whatever another matrix left there.
#[test]
fn buffers_may_hold_anything() {
    for (rows, cols) in SHAPES {
        let x = gaussian(rows * cols, 22);
        let codec = spec("e8-rice", 3.0).check().unwrap();
        let encoded = encode(&codec, &x, rows, cols);
        assert_eq!(encode(&codec, &x, rows, cols), encoded);
        let decoder = encoded.decoder().unwrap();
        let mut results = Vec::new();
        for garbage in [0, u32::MAX, 0x7f80_0001] {
            let mut scratch = DecodeScratch::filled_with(garbage);
            let mut out = vec![f32::from_bits(garbage); rows * cols];
            decoder.decode_rows(0..rows, &mut out, &mut scratch).unwrap();
            let mut points = vec![garbage as i32; rows * cols];
            let mut scratch = DecodeScratch::filled_with(garbage);
            decoder.decode_points(0..rows, &mut points, &mut scratch).unwrap();
            results.push((out.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), points));
        }
        assert!(results.iter().all(|result| result == &results[0]), "{rows} x {cols}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn row_ranges_are_slices_of_the_whole(rows in 1usize..60, cols in 1usize..600, start: prop::sample::Index, len: prop::sample::Index, name in prop::sample::select(&["e8-rice", "d4-rice", "a2-rice", "z-rice", "e8", "d4", "a2", "z"][..]), tiny in 0usize..60) {
        let mut x = gaussian(rows * cols, 23);
        if tiny < rows {
            x[tiny * cols..][..cols].fill(-1e-42);
        }
        let start = start.index(rows);
        let end = start + len.index(rows - start + 1);
        let encoded = encode(&spec(name, 2.5).check().unwrap(), &x, rows, cols);
        let decoder = encoded.decoder().unwrap();
        let mut scratch = DecodeScratch::new();
        for rotated in [false, true] {
            let mut decode = |rows: std::ops::Range<usize>| {
                let mut out = vec![f32::NAN; rows.len() * cols];
                if rotated {
                    decoder.decode_rows_rotated(rows, &mut out, &mut scratch).unwrap();
                } else {
                    decoder.decode_rows(rows, &mut out, &mut scratch).unwrap();
                }
                out
            };
            let whole = decode(0..rows);
            prop_assert_eq!(&decode(start..end)[..], &whole[start * cols..end * cols]);
        }
        let mut whole = vec![0; rows * cols];
        decoder.decode_points(0..rows, &mut whole, &mut scratch).unwrap();
        let mut part = vec![0; (end - start) * cols];
        decoder.decode_points(start..end, &mut part, &mut scratch).unwrap();
        prop_assert_eq!(&part[..], &whole[start * cols..end * cols]);
    }

    #[test]
    fn row_blocks_start_streams(rows in 1usize..2000, cols in 1usize..2000) {
        // Only the shape matters; one column keeps the matrix small where both are large.
        let (rows, cols) = if rows * cols > 20_000 { (rows, 1) } else { (rows, cols) };
        let encoded = encode(&at_alpha("z-rice", 1.0), &vec![1.0; rows * cols], rows, cols);
        let block = encoded.decoder().unwrap().row_block();
        prop_assert!(block >= 1 && block <= rows);
        prop_assert!(block == rows || (block * cols).is_multiple_of(512));
        prop_assert!((1..block).all(|smaller| !(smaller * cols).is_multiple_of(512)));
    }

    /// The rotated frame keeps products: (R x)·(R w) = x·w.
    #[test]
    fn rotated_rows_give_the_products_of_the_original_rows(cols in 1usize..400, seed in 0u64..100) {
        let rows = 4;
        let x = gaussian((rows + 1) * cols, seed);
        let (activation, weights) = x.split_at(cols);
        let codec = CodecSpec { rotation: RotationSpec::Rht { tile: 64, seed }, ..spec("e8-rice", 4.0) };
        let encoded = encode(&codec.check().unwrap(), weights, rows, cols);
        let decoder = encoded.decoder().unwrap();
        let mut rotated_activation = activation.to_vec();
        decoder.rotation().unwrap().forward(&mut rotated_activation);
        let mut rotated = vec![0.0; rows * cols];
        decoder.decode_rows_rotated(0..rows, &mut rotated, &mut DecodeScratch::new()).unwrap();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        let norm = dot(activation, activation).sqrt();
        for (row, rotated) in decode(&encoded).chunks(cols).zip(rotated.chunks(cols)) {
            let bound = 1e-5 * norm * dot(row, row).sqrt();
            prop_assert!((dot(activation, row) - dot(&rotated_activation, rotated)).abs() <= bound + 1e-12);
        }
    }
}

#[test]
fn bad_requests_name_what_is_wrong() {
    assert!(matches!(MatRef::new(&[0.0; 5], 2, 3), Err(CodecError::Shape { rows: 2, cols: 3, len: 5 })));
    let codec = at_alpha("e8-rice", 2.0);
    assert!(matches!(codec.encode_owned(vec![], 0, 7), Err(CodecError::Shape { .. })));
    let encoded = encode(&codec, &[1.0; 64], 4, 16);
    let decoder = encoded.decoder().unwrap();
    let mut scratch = DecodeScratch::new();
    let mut out = [0.0; 16];
    let error = decoder.decode_rows(3..5, &mut out, &mut scratch).unwrap_err();
    assert_eq!(error.to_string(), "rows 3..5 asked for, expected a range within 0..4");
    let error = decoder.decode_rows(2..4, &mut out, &mut scratch).unwrap_err();
    assert_eq!(error.to_string(), "output has 16 elements, expected 32");
    decoder.decode_rows(4..4, &mut [], &mut scratch).unwrap();
}
