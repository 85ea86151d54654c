//! Matrices stored by columns: what the encoder says it wrote is what a decoder finds.

use std::borrow::Cow;

use gosset_codec::{
    CodecError, ColumnEncoder, ColumnOptions, DecodeScratch, EncodedMatrix, N_CLASSES, N_EXPONENTS, PlaneData,
    RotationHeader, RotationSpec, SchemeHeader,
};
use proptest::prelude::*;

use crate::determinism::{exact_noise, fingerprint};
use crate::{gaussian, snr_db, spec};

/// Codecs with a form by columns, one of each kind of path through the code.
const CODECS: [(&str, f64); 8] = [
    ("e8", 3.0),
    ("d4", 2.0),
    ("a2", 3.5),
    ("z", 6.0),
    ("trellis-8", 2.5),
    ("trellis-256", 4.0),
    ("shift-12", 3.0),
    ("shift-13", 2.0),
];

fn options(name: &str, rows: usize, cols: usize, step: f32) -> ColumnOptions {
    let is_shift = name.starts_with("shift");
    let mut gains = [1.0; N_CLASSES];
    gains.iter_mut().enumerate().for_each(|(i, gain)| *gain = 0.8 + 0.02 * i as f32);
    ColumnOptions {
        inputs: if is_shift && cols > 1 { RotationSpec::DEFAULT.header(cols).unwrap() } else { RotationHeader::None },
        outputs: if rows > 1 { RotationSpec::DEFAULT.header(rows).unwrap() } else { RotationHeader::None },
        step: if is_shift { 1.0 / 4096.0 } else { step },
        exponents: if is_shift { Vec::new() } else { (0..cols).map(|col| (col * 7 % N_EXPONENTS) as u8).collect() },
        reach: 8.0 / step,
        gains,
        row_exponents: Vec::new(),
    }
}

/// Encodes columns of different spread, some of zeros; returns what the encoder said it wrote, column after column.
fn encoded((name, bps): (&str, f64), rows: usize, cols: usize, values: &[f32]) -> (EncodedMatrix, Vec<f32>) {
    let step = 2f32.powf(2.0 - bps as f32);
    let mut encoder = ColumnEncoder::new(&spec(name, bps), rows, cols, &options(name, rows, cols, step)).unwrap();
    let mut written = vec![f32::NAN; rows * cols];
    for col in (0..cols).rev() {
        let spread = if col % 11 == 4 { 0.0 } else { 2f32.powi((col as i32 * 5 + 4) % 7 - 3) };
        let x: Vec<f32> = values[col * rows..][..rows].iter().map(|v| spread * v).collect();
        encoder.round_column(col, &x, &mut written[col * rows..][..rows]).unwrap();
    }
    (encoder.finish().unwrap(), written)
}

#[test]
fn decoders_find_what_the_encoder_said_it_wrote() {
    for codec in CODECS {
        // Whole streams, one column in several of them, odd numbers of outputs, one column, one row.
        for (rows, cols) in [(128, 300), (40_000, 2), (37, 65), (1000, 1), (1, 40)] {
            let (encoded, written) = encoded(codec, rows, cols, &gaussian(rows * cols, 7));
            let decoder = encoded.decoder().unwrap();
            let mut columns = vec![f32::NAN; rows * cols];
            decoder.decode_columns_rotated(0..cols, &mut columns, &mut DecodeScratch::filled_with(!0)).unwrap();
            assert_eq!(columns, written, "{codec:?} {rows} x {cols}");
            // Any range of columns is a part of the whole.
            let part = cols / 3..cols;
            let mut some = vec![f32::NAN; rows * part.len()];
            decoder.decode_columns_rotated(part.clone(), &mut some, &mut DecodeScratch::new()).unwrap();
            assert_eq!(some, written[part.start * rows..]);
            // Rows are the transpose, un-rotated.
            let mut whole = vec![f32::NAN; rows * cols];
            decoder.decode_rows(0..rows, &mut whole, &mut DecodeScratch::new()).unwrap();
            let mut expected = vec![0.0; rows * cols];
            for (col, column) in written.chunks(rows).enumerate() {
                let mut column = column.to_vec();
                decoder.restore_outputs(&mut column);
                column.iter().enumerate().for_each(|(row, v)| expected[row * cols + col] = *v);
            }
            decoder.rotation().inspect(|rht| expected.chunks_mut(cols).for_each(|row| rht.inverse(row)));
            assert_eq!(whole, expected, "{codec:?} {rows} x {cols}");
            let rows_asked = rows / 2..rows;
            let mut some = vec![f32::NAN; rows_asked.len() * cols];
            decoder.decode_rows(rows_asked.clone(), &mut some, &mut DecodeScratch::new()).unwrap();
            assert_eq!(some, whole[rows_asked.start * cols..]);
            assert_eq!((decoder.row_block(), decoder.n_exact_rows()), (rows, 0));
        }
    }
}

#[test]
fn rows_get_their_factors_after_everything_else() {
    for (codec, rows) in [(CODECS[0], 37), (CODECS[5], 64), (CODECS[6], 33), (CODECS[1], 1)] {
        let (name, bps) = codec;
        let cols = 40;
        let values = gaussian(rows * cols, 3);
        let exponents: Vec<u8> = (0..rows).map(|row| (row * 5 % N_EXPONENTS) as u8).collect();
        let encode = |row_exponents: &[u8]| {
            let options = ColumnOptions { row_exponents: row_exponents.to_vec(), ..options(name, rows, cols, 0.3) };
            let mut encoder = ColumnEncoder::new(&spec(name, bps), rows, cols, &options).unwrap();
            for col in (0..cols).rev() {
                encoder.round_column(col, &values[col * rows..][..rows], &mut vec![0.0; rows]).unwrap();
            }
            encoder.finish().unwrap()
        };
        let (scaled, plain) = (encode(&exponents), encode(&[]));
        let n_more = 8 * rows.div_ceil(2) as u64;
        assert_eq!(scaled.rate().scale_bits, plain.rate().scale_bits + n_more);
        assert_eq!(scaled.rate().payload_bits, plain.rate().payload_bits);
        let mut expected = crate::decode(&plain);
        let factor = |row: usize| gosset_codec::row_factor(exponents[row]);
        if plain.decoder().unwrap().rotation().is_none() {
            expected.chunks_mut(cols).enumerate().for_each(|(row, w)| w.iter_mut().for_each(|w| *w *= factor(row)));
            assert_eq!(crate::decode(&scaled), expected, "{codec:?}");
        }
        let decoder = scaled.decoder().unwrap();
        let mut y = vec![1.0; rows];
        decoder.restore_outputs(&mut y);
        let mut rotated = vec![1.0; rows];
        plain.decoder().unwrap().restore_outputs(&mut rotated);
        let expected: Vec<f32> = rotated.iter().enumerate().map(|(row, y)| y * factor(row)).collect();
        assert_eq!(y, expected, "{codec:?}");
        let json = serde_json::to_string(&scaled.header).unwrap();
        assert_eq!(serde_json::from_str::<gosset_codec::MatrixHeader>(&json).unwrap(), scaled.header);
        assert!(!serde_json::to_string(&plain.header).unwrap().contains("row_exponents"));
    }
}

#[test]
fn factors_of_rows_are_checked() {
    let with = |row_exponents: Vec<u8>| {
        let options = ColumnOptions { row_exponents, ..options("e8", 9, 64, 0.5) };
        let mut encoder = ColumnEncoder::new(&spec("e8", 3.0), 9, 64, &options)?;
        for col in (0..64).rev() {
            encoder.round_column(col, &gaussian(9, col as u64), &mut [0.0; 9])?;
        }
        encoder.finish()
    };
    for wrong in [vec![0; 8], vec![16; 9]] {
        let error = with(wrong).unwrap_err().to_string();
        assert!(error.starts_with("header field row_exponents: found"), "{error}");
    }
    let encoded = with((0..9).collect()).unwrap();
    let message = |change: &dyn Fn(&mut EncodedMatrix)| {
        let mut encoded = encoded.clone();
        change(&mut encoded);
        encoded.decoder().map(|_| ()).unwrap_err().to_string()
    };
    let bytes = |e: &mut EncodedMatrix, data| e.planes[3].data = PlaneData::U8(Cow::Owned(data));
    assert_eq!(message(&|e| bytes(e, vec![0; 4])), "plane `row_exponents`: 4 elements, expected 5");
    assert_eq!(message(&|e| drop(e.planes.remove(3))), "plane `row_exponents` is missing, expected for this header");
    let dirty = message(&|e| bytes(e, vec![0, 0, 0, 0, 0x10]));
    assert!(dirty.starts_with("header field row_exponents: found other bits"), "{dirty}");
    let unasked = message(&|e| e.header.columns.as_mut().unwrap().row_exponents = false);
    assert!(unasked.contains("row_exponents"), "{unasked}");
}

#[test]
fn every_bit_of_the_planes_is_counted() {
    for codec in CODECS {
        let (encoded, _) = encoded(codec, 576, 120, &gaussian(576 * 120, 3));
        let bits: usize = encoded.planes.iter().map(|plane| 8 * plane.data.n_bytes()).sum();
        let rate = encoded.rate();
        assert_eq!((rate.total_bits(), rate.scale_bits, rate.n), (bits as u64, 8 * 120, 576 * 120), "{codec:?}");
    }
}

#[test]
fn columns_of_one_spread_are_as_good_as_rows() {
    // What classes cost, a quarter of an octave apart, and the starts of paths: of 512 / 8 values in a path, the first 8 are restricted
    // by the state that the column before left behind (0.25 dB as measured).
    const LOSSES_DB: [(&str, f64); 2] = [("e8", 0.1), ("trellis-256", 0.3)];
    let (rows, cols) = (512, 256);
    let x = gaussian(rows * cols, 19);
    for (name, most) in LOSSES_DB {
        let by_rows = spec(name, 3.0).check().unwrap();
        let by_rows = crate::encode(&by_rows, &x, rows, cols);
        let step = match &by_rows.header.scheme {
            SchemeHeader::Lattice(header) => header.step,
            SchemeHeader::Trellis(header) => header.step,
            other => panic!("{other:?}"),
        };
        let mut options = options(name, rows, cols, step);
        (options.exponents, options.gains) = (vec![0; cols], [1.0; N_CLASSES]);
        let mut written = vec![0.0; rows * cols];
        let mut sweep = |options: &ColumnOptions| {
            let mut encoder = ColumnEncoder::new(&spec(name, 3.0), rows, cols, options).unwrap();
            for col in (0..cols).rev() {
                encoder.round_column(col, &x[col * rows..][..rows], &mut written[col * rows..][..rows]).unwrap();
            }
            (encoder.sums().map(|sums| sums.gain()), encoder.finish().unwrap())
        };
        // Once for the gains, once with them.
        options.gains = sweep(&options).0;
        let (_, encoded) = sweep(&options);
        let bits = encoded.rate().payload_bps() - by_rows.rate().payload_bps();
        let lost = snr_db(&x, &crate::decode(&by_rows)) - snr_db(&x, &written) + 6.02 * bits;
        assert!(lost < most, "{name}: {lost} dB");
    }
}

#[test]
fn bytes_are_the_same_everywhere() {
    let fingerprints = CODECS.map(|codec| fingerprint(&encoded(codec, 200, 40, &exact_noise(200 * 40)).0));
    assert_eq!(fingerprints, EXPECTED, "{fingerprints:#x?}");
}

const EXPECTED: [u64; 8] = [
    0xeb49_8e72_eb6f_3837,
    0x200d_097f_f6a2_52d7,
    0x5c55_0fa2_b26b_08f8,
    0xecec_4cfd_1d84_892a,
    0x6376_37a6_f12c_8ca2,
    0xfc3d_eb0a_3174_6966,
    0x3bfb_2185_ff7b_750d,
    0xd228_c212_8819_c877,
];

#[test]
fn strings_may_come_in_any_order() {
    let (rows, cols) = (48, 37);
    let x = gaussian(rows * cols, 3);
    // Column 4 has no string.
    let column =
        |col: usize| x[col * rows..][..rows].iter().map(|v| if col == 4 { 0.0 } else { *v }).collect::<Vec<_>>();
    let encode = |order: &mut dyn Iterator<Item = usize>| {
        let options = options("shift-12", rows, cols, 1.0);
        let mut encoder = ColumnEncoder::new(&spec("shift-12", 3.0), rows, cols, &options).unwrap();
        order.for_each(|col| encoder.round_column(col, &column(col), &mut [0.0; 48]).unwrap());
        encoder.finish().unwrap()
    };
    let expected = encode(&mut (0..cols).rev());
    assert!(encode(&mut (0..cols)) == expected);
    assert!(encode(&mut (0..cols).map(|i| i * 10 % cols)) == expected);
}

#[test]
#[should_panic(expected = "column 7, 1 to come")]
fn no_string_comes_twice() {
    let options = options("shift-12", 32, 8, 1.0);
    let mut encoder = ColumnEncoder::new(&spec("shift-12", 3.0), 32, 8, &options).unwrap();
    (1..8).for_each(|col| encoder.round_column(col, &[1.0; 32], &mut [0.0; 32]).unwrap());
    let _ = encoder.round_column(7, &[1.0; 32], &mut [0.0; 32]);
}

#[test]
fn headers_of_rows_are_as_before() {
    let codec = spec("e8", 3.0).check().unwrap();
    let json = serde_json::to_string(&crate::encode(&codec, &gaussian(64 * 64, 1), 64, 64).header).unwrap();
    assert!(!json.contains("columns"), "{json}");
    let (by_columns, _) = encoded(CODECS[0], 64, 64, &gaussian(64 * 64, 1));
    let json = serde_json::to_string(&by_columns.header).unwrap();
    assert_eq!(serde_json::from_str::<gosset_codec::MatrixHeader>(&json).unwrap(), by_columns.header);
    assert_eq!(by_columns.header.codec_name(), "e8");
}

#[test]
fn refusals_say_what_and_where() {
    let (encoded, _) = encoded(CODECS[4], 64, 96, &gaussian(64 * 96, 1));
    let message = |change: &dyn Fn(&mut EncodedMatrix)| {
        let mut encoded = encoded.clone();
        change(&mut encoded);
        encoded.decoder().map(|_| ()).unwrap_err().to_string()
    };
    let columns = |e: &mut EncodedMatrix, data| e.planes[2].data = PlaneData::U8(Cow::Owned(data));
    assert_eq!(message(&|e| columns(e, vec![0; 95])), "plane `columns`: 95 elements, expected 96");
    assert_eq!(message(&|e| drop(e.planes.remove(2))), "plane `columns` is missing, expected for this header");
    let zeros = message(&|e| {
        e.header.rows = 1 << 31;
        columns(e, vec![255; 96]);
    });
    assert!(zeros.ends_with("expected at most 64 per bit"), "{zeros}");
    let gains = message(&|e| e.header.columns.as_mut().unwrap().gains = vec![256; 17]);
    assert_eq!(gains, "header field gains: found 17, expected 16 classes at most");
    let table = message(&|e| {
        let SchemeHeader::Trellis(header) = &mut e.header.scheme else { panic!() };
        header.table = u16::MAX;
    });
    assert!(table.starts_with("header field table: found"), "{table}");
    let step = message(&|e| {
        let SchemeHeader::Trellis(header) = &mut e.header.scheme else { panic!() };
        header.step = f32::NAN;
    });
    assert_eq!(step, "header field step: found NaN, expected 2^-100 to 2^100");
    let mut nothing = ColumnEncoder::new(&spec("e8", 3.0), 1000, 1, &options("e8", 1000, 1, 0.5)).unwrap();
    nothing.round_column(0, &[0.0; 1000], &mut [1.0; 1000]).unwrap();
    assert_eq!(nothing.finish().unwrap_err().to_string(), "1000 weights in 8 bits, expected at most 64 per bit");
    // Rows and columns do not answer for each other.
    let decoder = encoded.decoder().unwrap();
    let points = decoder.decode_points(0..64, &mut vec![0; 64 * 96], &mut DecodeScratch::new()).unwrap_err();
    assert_eq!(points.to_string(), "the matrix is stored by columns, expected one stored by rows");
    let range = decoder.decode_columns_rotated(5..97, &mut [], &mut DecodeScratch::new()).unwrap_err();
    assert_eq!(range.to_string(), "columns 5..97 asked for, expected a range within 0..96");
    for name in ["e8-rice", "shift-16-tiles"] {
        let error = ColumnEncoder::new(&spec(name, 3.0), 64, 64, &options(name, 64, 64, 0.5)).unwrap_err();
        assert!(matches!(error, CodecError::NoColumns { codec } if codec == name), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damage_never_panics(
        codec in prop::sample::select(CODECS.to_vec()),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u32..32), 1..4),
        shape in prop::option::of((any::<u64>(), any::<u64>())),
        gains in prop::collection::vec(any::<u16>(), 0..20),
        numbers in any::<[u32; 3]>(),
    ) {
        let (mut encoded, _) = encoded(codec, 40, 24, &gaussian(40 * 24, 5));
        for (plane, at, bit) in flips {
            let plane = plane.index(encoded.planes.len());
            match &mut encoded.planes[plane].data {
                PlaneData::U8(data) => data.to_mut()[at.index(24)] ^= 1 << (bit % 8),
                PlaneData::U16(data) => { let at = at.index(data.len()); data.to_mut()[at] ^= 1 << (bit % 16); }
                PlaneData::U32(data) => { let at = at.index(data.len()); data.to_mut()[at] ^= 1 << bit; }
                other => panic!("{other:?}"),
            }
        }
        if let Some((rows, cols)) = shape {
            (encoded.header.rows, encoded.header.cols) = (rows, cols);
        }
        encoded.header.columns.as_mut().unwrap().gains = gains;
        match &mut encoded.header.scheme {
            SchemeHeader::Lattice(header) if numbers[0] % 3 == 0 => header.step = f32::from_bits(numbers[1]),
            SchemeHeader::Trellis(header) if numbers[0] % 3 == 0 => header.table = numbers[1] as u16,
            SchemeHeader::Shift(header) if numbers[0] % 3 == 0 => header.step = f32::from_bits(numbers[1]),
            _ => {}
        }
        if let Ok(decoder) = encoded.decoder() {
            let n = decoder.rows() * decoder.cols();
            prop_assert!(n <= 64 * 8 * encoded.planes.iter().map(|p| p.data.n_bytes()).sum::<usize>());
            let mut scratch = DecodeScratch::new();
            let _ = decoder.decode_columns_rotated(0..decoder.cols(), &mut vec![0.0; n], &mut scratch);
            let _ = decoder.decode_rows(0..decoder.rows(), &mut vec![0.0; n], &mut scratch);
        }
    }
}
