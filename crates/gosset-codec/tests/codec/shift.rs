//! The bit-shift trellis: fixed rate, rows and tiles.

use std::borrow::Cow;

use gosset_codec::{
    Codec, CodecError, CodecSpec, DecodeScratch, Decoder, EncodedMatrix, PlaneData, RateTarget, RotationSpec,
    SchemeHeader, SchemeSpec, ShiftHeader, ShiftOrderKind,
};
use proptest::prelude::*;

use crate::determinism::{exact_noise, fingerprint};
use crate::{decode, encode, gaussian, snr_db, spec};

const SHAPES: [(usize, usize); 7] = [(150, 210), (33, 300), (7, 65), (1, 1), (3, 1), (16, 16), (1, 4097)];
const ORDERS: [ShiftOrderKind; 2] = [ShiftOrderKind::Rows, ShiftOrderKind::Tiles];

fn codec(name: &str, bits: f64, asked: ShiftOrderKind) -> Codec {
    let mut spec = spec(name, bits);
    let SchemeSpec::Shift { order, .. } = &mut spec.scheme else { panic!("{name}") };
    *order = asked;
    spec.check().unwrap()
}

fn header(encoded: &mut EncodedMatrix) -> &mut ShiftHeader {
    match &mut encoded.header.scheme {
        SchemeHeader::Shift(header) => header,
        other => panic!("unexpected scheme {other:?}"),
    }
}

#[test]
fn off_grid_shapes_keep_shape_quality_and_rate() {
    for order in ORDERS {
        for (rows, cols) in SHAPES {
            for (bits, floor_db) in [(2.0, 9.0), (4.0, 20.0), (5.0, 25.0)] {
                let x = gaussian(rows * cols, 21);
                let codec = codec("shift-12", bits, order);
                let encoded = encode(&codec, &x, rows, cols);
                assert_eq!((encoded.header.codec_name(), encoded.planes.len()), ("shift-12", 2));
                let snr_db = snr_db(&x, &decode(&encoded));
                let floor_db = if rows * cols < 8 { 3.0 } else { floor_db };
                assert!(snr_db > floor_db, "{rows} x {cols}, {bits} bits, {order:?}: {snr_db}");
                // The rate is known beforehand, and what is beyond the bits of the weights is padding.
                let (rate, estimate) = (encoded.rate(), codec.estimate(rows, cols));
                assert_eq!(rate, estimate.rate);
                assert_eq!(rate.payload_bits, bits as u64 * (rows * cols) as u64);
                assert_eq!((rate.scale_bits, rate.length_bits, rate.table_bits), (16 * rows as u64, 0, 0));
                if rows * cols > 10_000 {
                    assert!((snr_db - estimate.snr_db).abs() < 0.3, "{bits} bits: {snr_db}, {}", estimate.snr_db);
                }
            }
        }
    }
}

#[test]
fn widths_of_whole_words_have_no_padding() {
    for (bits, cols) in [(2.0, 576), (3.0, 576), (3.0, 1536), (4.0, 4864), (4.0, 8), (6.0, 16)] {
        let encoded = encode(&spec("shift-12", bits).check().unwrap(), &gaussian(2 * cols, 4), 2, cols);
        assert_eq!(encoded.rate().stream_bps(), bits, "{cols} columns");
    }
}

#[test]
fn rows_of_zeros_stay_zero_and_tiny_rows_stay_exact() {
    for order in ORDERS {
        let (rows, cols) = (20, 40);
        let mut x = gaussian(rows * cols, 5);
        x[..cols].fill(0.0);
        x[7 * cols..8 * cols].fill(-1e-42);
        let decoded = decode(&encode(&codec("shift-12", 3.0, order), &x, rows, cols));
        assert!(decoded.iter().all(|y| y.is_finite()));
        assert_eq!(decoded[..cols], x[..cols]);
        assert_eq!(decoded[7 * cols..8 * cols], x[7 * cols..8 * cols]);
        let zeros = vec![0.0; rows * cols];
        assert_eq!(decode(&encode(&codec("shift-12", 3.0, order), &zeros, rows, cols)), zeros);
    }
}

#[test]
fn points_are_the_states_that_the_weights_come_from() {
    for (order, name) in [(ORDERS[0], "shift-12"), (ORDERS[1], "shift-13"), (ORDERS[1], "shiftlut-17")] {
        let (rows, cols) = (18, 37);
        let x = gaussian(rows * cols, 6);
        let encoded = encode(&codec(name, 3.0, order), &x, rows, cols);
        let decoder = encoded.decoder().unwrap();
        let mut states = vec![-1; rows * cols];
        decoder.decode_points(0..rows, &mut states, &mut DecodeScratch::new()).unwrap();
        let state_bits = name.rsplit_once('-').unwrap().1.parse::<u32>().unwrap();
        assert!(states.iter().all(|&state| (0..1 << state_bits).contains(&state)));
        // Both weights of a step come from one state, and the first column starts one.
        for row in states.chunks(cols) {
            assert!(row.as_chunks::<2>().0.iter().all(|[a, b]| a == b));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn row_ranges_are_slices_of_the_whole(
        rows in 1usize..50, cols in 1usize..90, start: prop::sample::Index, len: prop::sample::Index, tiles: bool,
    ) {
        let x = gaussian(rows * cols, 23);
        let start = start.index(rows);
        let end = start + len.index(rows - start + 1);
        let encoded = encode(&codec("shift-12", 2.0, ORDERS[usize::from(tiles)]), &x, rows, cols);
        let decoder = encoded.decoder().unwrap();
        let mut scratch = DecodeScratch::filled_with(u32::MAX);
        let whole = decode(&encoded);
        let mut part = vec![f32::NAN; (end - start) * cols];
        decoder.decode_rows(start..end, &mut part, &mut scratch).unwrap();
        prop_assert_eq!(&part[..], &whole[start * cols..end * cols]);
        let mut whole = vec![0; rows * cols];
        decoder.decode_points(0..rows, &mut whole, &mut scratch).unwrap();
        let mut part = vec![0; (end - start) * cols];
        decoder.decode_points(start..end, &mut part, &mut scratch).unwrap();
        prop_assert_eq!(&part[..], &whole[start * cols..end * cols]);
        prop_assert_eq!(decoder.row_block(), if tiles { rows.min(16) } else { 1 });
    }

    #[test]
    fn flipped_bits_decode_and_cut_planes_are_refused(flips in proptest::collection::vec((any::<u16>(), 0u32..32), 1..4), cut: prop::sample::Index, tiles: bool) {
        let (rows, cols) = (19, 45);
        let order = ORDERS[usize::from(tiles)];
        let mut encoded = encode(&codec("shift-12", 3.0, order), &gaussian(rows * cols, 61), rows, cols);
        let PlaneData::U32(words) = &mut encoded.planes[0].data else { panic!() };
        for (at, bit) in flips {
            let n = words.len();
            words.to_mut()[usize::from(at) % n] ^= 1 << bit;
        }
        prop_assert!(decode(&encoded).iter().all(|y| y.is_finite()));
        let PlaneData::U32(words) = &mut encoded.planes[0].data else { panic!() };
        let len = cut.index(words.len());
        words.to_mut().truncate(len);
        let refused = matches!(encoded.decoder(), Err(CodecError::PlaneLength { plane: "words", .. }));
        prop_assert!(refused);
    }

    #[test]
    fn wrong_headers_never_panic(rows: u64, cols: u64, bits: u8, state_bits: u8, step: u32, which in 0..6u32) {
        let mut encoded = encode(&codec("shift-12", 3.0, ORDERS[0]), &gaussian(19 * 45, 61), 19, 45);
        match which {
            0 => encoded.header.rows = rows,
            1 => encoded.header.cols = cols,
            2 => (encoded.header.rows, encoded.header.cols) = (rows, cols),
            3 => header(&mut encoded).bits = bits,
            4 => header(&mut encoded).state_bits = state_bits,
            _ => header(&mut encoded).step = f32::from_bits(step),
        }
        if let Ok(decoder) = Decoder::new(&encoded.header, &encoded.planes) {
            let n = decoder.rows() * decoder.cols();
            prop_assert!(n < 1 << 20, "{n} values from few words");
            decoder.decode_rows(0..decoder.rows(), &mut vec![0.0; n], &mut DecodeScratch::new()).unwrap();
        }
    }
}

#[test]
fn refusals_say_what_and_where() {
    let encoded = encode(&codec("shift-12", 3.0, ORDERS[0]), &gaussian(64, 1), 2, 32);
    let message = |change: &dyn Fn(&mut EncodedMatrix)| {
        let mut encoded = encoded.clone();
        change(&mut encoded);
        encoded.decoder().unwrap_err().to_string()
    };
    let bits = message(&|e| header(e).bits = 7);
    assert_eq!(bits, "header field bits per weight: found 7, expected 2, 3, 4, 5 or 6");
    let states = message(&|e| header(e).state_bits = 40);
    assert_eq!(states, "header field state bits: found 40, expected 12 to 18");
    let step = message(&|e| header(e).step = f32::INFINITY);
    assert_eq!(step, "header field step: found inf, expected a positive normal number");
    let long = message(&|e| e.planes[0].data = PlaneData::U32(Cow::Owned(vec![0; 7])));
    assert_eq!(long, "plane `words`: 7 elements, expected 6");

    let fraction = CodecSpec::parse("shift-14@3.5").unwrap_err().to_string();
    assert_eq!(fraction, "shift-14 cannot take 3.5 bits per weight, expected a payload of 2, 3, 4, 5 or 6");
    let alpha = CodecSpec { target: RateTarget::Alpha(2.0), ..spec("shift-14", 3.0) };
    assert_eq!(alpha.check().unwrap_err().to_string(), "shift-14 has no alpha, expected a payload in bits per weight");
}

#[cfg(feature = "rayon")]
#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    for order in ORDERS {
        let (rows, cols) = (90, 96);
        let x = gaussian(rows * cols, 41);
        let codec = codec("shift-12", 3.0, order);
        let results = [1, 2, 7].map(|n| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
            pool.install(|| encode(&codec, &x, rows, cols))
        });
        assert!(results.iter().all(|encoded| encoded == &results[0]));
    }
}

/// Another machine, another build profile and any number of threads must give these bytes. Only a change of the encoder
/// itself may change them, and a change of the constants, which decoders do care about.
#[test]
fn bytes_are_the_same_everywhere() {
    let (rows, cols) = (20, 172);
    let x = exact_noise(rows * cols);
    let mut found = Vec::new();
    for (name, bits, order) in [
        ("shift-12", 2.0, ORDERS[0]),
        ("shift-14", 3.0, ORDERS[1]),
        ("shift-16", 4.0, ORDERS[0]),
        ("shift-13", 5.0, ORDERS[1]),
        ("shiftlut-17", 2.0, ORDERS[0]),
    ] {
        let encoded = encode(&codec(name, bits, order), &x, rows, cols);
        found.push(fingerprint(&encoded));
        let decoded = decode(&encoded);
        let bytes = decoded.iter().flat_map(|y| y.to_bits().to_le_bytes());
        found.push(
            bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)),
        );
    }
    let expected = [
        0xadb8_b770_d23d_9c5d,
        0x3ade_6a9f_929e_4ae6,
        0xc82b_7c4b_c360_e6b5,
        0x0e0d_f8f7_cbe9_e19d,
        0x1170_8b86_2416_f3ca,
        0x04ad_065f_cbd2_2427,
        0xe11e_50aa_845f_1892,
        0xc25a_4b09_8871_b687,
        0x20a8_8cee_730c_3f1d,
        0x8a8d_6f3f_0d2f_9d9c,
    ];
    assert_eq!(found, expected, "{found:#x?}");
}

#[test]
fn rotation_is_not_part_of_the_scheme() {
    let x = gaussian(6 * 48, 9);
    let spec = CodecSpec { rotation: RotationSpec::None, ..spec("shift-12", 4.0) };
    assert!(snr_db(&x, &decode(&encode(&spec.check().unwrap(), &x, 6, 48))) > 20.0);
}
