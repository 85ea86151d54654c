//! Headers and planes that no encoder made.

use std::borrow::Cow;

use gosset_codec::{
    CodeHeader, CodecError, DecodeScratch, Decoder, EncodedMatrix, MatrixHeader, Plane, PlaneData, RotationHeader,
    SchemeHeader,
};
use proptest::prelude::*;

use crate::{encode, gaussian, spec};

fn sample(name: &str) -> EncodedMatrix {
    let mut x = gaussian(40 * 172, 61);
    x[5 * 172..6 * 172].fill(1e-42);
    encode(&spec(name, 3.0).check().unwrap(), &x, 40, 172)
}

/// Decodes all that the decoder offers; the result does not matter.
fn decode_all(header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<(), CodecError> {
    let decoder = Decoder::new(header, planes)?;
    let n = decoder.rows() * decoder.cols();
    // The planes vouch for the size: a claim of gigabytes must have failed by now.
    assert!(n <= 40 * 172 * 600, "{n} values from {} planes", planes.len());
    let mut scratch = DecodeScratch::new();
    let mut out = vec![0.0; n];
    decoder.decode_rows(0..decoder.rows(), &mut out, &mut scratch)?;
    decoder.decode_rows_rotated(0..decoder.rows(), &mut out, &mut scratch)?;
    decoder.decode_points(0..decoder.rows(), &mut vec![0; n], &mut scratch)
}

fn flip(data: &mut PlaneData<'_>, at: usize, bit: u32) {
    fn pick<T: Clone>(data: &mut Cow<'_, [T]>, at: usize, change: impl FnOnce(&mut T)) {
        let len = data.len();
        if len > 0 {
            change(&mut data.to_mut()[at % len]);
        }
    }
    match data {
        PlaneData::U8(data) => pick(data, at, |v| *v ^= 1 << (bit % 8)),
        PlaneData::U16(data) => pick(data, at, |v| *v ^= 1 << (bit % 16)),
        PlaneData::U32(data) => pick(data, at, |v| *v ^= 1 << (bit % 32)),
        PlaneData::U64(data) => pick(data, at, |v| *v ^= 1 << (bit % 64)),
        PlaneData::Bf16(data) => pick(data, at, |v| *v = half::bf16::from_bits(v.to_bits() ^ 1 << (bit % 16))),
        PlaneData::F32(data) => pick(data, at, |v| *v = f32::from_bits(v.to_bits() ^ 1 << (bit % 32))),
    }
}

fn cut(data: &mut PlaneData<'_>, len: usize) {
    match data {
        PlaneData::U8(data) => data.to_mut().truncate(len),
        PlaneData::U16(data) => data.to_mut().truncate(len),
        PlaneData::U32(data) => data.to_mut().truncate(len),
        PlaneData::U64(data) => data.to_mut().truncate(len),
        PlaneData::Bf16(data) => data.to_mut().truncate(len),
        PlaneData::F32(data) => data.to_mut().truncate(len),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn flipped_plane_bits_never_panic(name in prop::sample::select(&["e8-rice", "d4-rice", "a2-rice", "z-rice"][..]), flips in proptest::collection::vec((0usize..6, any::<u16>(), any::<u32>()), 1..4)) {
        let mut encoded = sample(name);
        for (plane, at, bit) in flips {
            flip(&mut encoded.planes[plane].data, usize::from(at), bit);
        }
        let _ = decode_all(&encoded.header, &encoded.planes);
    }

    #[test]
    fn cut_planes_are_refused(plane in 0usize..6, at: prop::sample::Index) {
        let mut encoded = sample("e8-rice");
        let data = &mut encoded.planes[plane].data;
        let len = at.index(data.len());
        cut(data, len);
        prop_assert!(decode_all(&encoded.header, &encoded.planes).is_err());
    }

    #[test]
    fn wrong_headers_never_panic(rows: u64, cols: u64, bit in 0u32..64, which in 0usize..8, value: u32) {
        let encoded = sample("d4-rice");
        let mut header = encoded.header.clone();
        let SchemeHeader::Lattice(lattice) = &mut header.scheme else { panic!() };
        match which {
            0 => header.rows = rows,
            1 => header.cols = cols,
            2 => header.rows ^= 1 << bit,
            3 => header.cols ^= 1 << bit,
            4 => lattice.step = f32::from_bits(value),
            5 => lattice.alpha = f32::from_bits(value),
            6 => lattice.code = CodeHeader::Rice { ks: value.to_le_bytes()[..bit as usize % 5].to_vec() },
            _ => {
                let RotationHeader::Rht { runs, .. } = &mut header.rotation else { panic!() };
                let run = bit as usize % runs.len();
                runs[run][(value & 1) as usize] ^= 1 << (value >> 27);
            }
        }
        let _ = decode_all(&header, &encoded.planes);
    }

    #[test]
    fn shapes_that_do_not_fit_the_planes_are_refused(rows in 1u64..=u64::MAX, cols in 1u64..=u64::MAX) {
        let encoded = sample("a2-rice");
        let header = MatrixHeader { rows, cols, rotation: RotationHeader::None, ..encoded.header.clone() };
        prop_assert!((rows, cols) == (40, 172) || decode_all(&header, &encoded.planes).is_err());
    }
}

#[test]
fn refusals_say_what_and_where() {
    let encoded = sample("e8-rice");
    let message = |change: &dyn Fn(&mut EncodedMatrix)| {
        let mut encoded = encoded.clone();
        change(&mut encoded);
        decode_all(&encoded.header, &encoded.planes).unwrap_err().to_string()
    };
    let missing = message(&|e| drop(e.planes.remove(3)));
    assert_eq!(missing, "plane `scales` is missing, expected for this header");
    let named = message(&|e| e.planes[0].name = Cow::Borrowed("wrods"));
    assert_eq!(
        named,
        "plane `wrods` is unexpected, expected each of words, lengths, bases, scales, exact_rows, exact_values once at most"
    );
    let twice = message(&|e| e.planes[1] = e.planes[0].clone());
    assert!(twice.starts_with("plane `words` is unexpected"), "{twice}");
    let typed = message(&|e| e.planes[1].data = PlaneData::U8(Cow::Owned(vec![0; 14])));
    assert_eq!(typed, "plane `lengths`: elements are U8, expected U16");
    let long = message(&|e| e.planes[3].data = PlaneData::Bf16(Cow::Owned(vec![half::bf16::ONE; 41])));
    assert_eq!(long, "plane `scales`: 41 elements, expected 40");
    let order = message(&|e| e.planes[4].data = PlaneData::U32(Cow::Owned(vec![40])));
    assert_eq!(order, "plane `exact_rows`, element 0: row 40, expected ascending rows below 40");
    let wide = message(&|e| e.header.cols = u64::MAX);
    assert!(wide.starts_with("header field cols: found 18446744073709551615"), "{wide}");
    let tall = message(&|e| e.header.rows = 1 << 32);
    assert_eq!(tall, "header field rows: found 4294967296, expected less than 2^32");
    let step = message(&|e| {
        let SchemeHeader::Lattice(lattice) = &mut e.header.scheme else { panic!() };
        lattice.step = f32::NAN;
    });
    assert_eq!(step, "header field step: found NaN, expected a positive normal number");
    let ks = message(&|e| {
        let SchemeHeader::Lattice(lattice) = &mut e.header.scheme else { panic!() };
        lattice.code = CodeHeader::Rice { ks: vec![16] };
    });
    assert_eq!(ks, "header field ks: found [16], expected 1 parameters of at most 15");
    // The second row of 172 starts in stream 0, the fourth stream in row 8.
    let shorter = message(&|e| {
        let PlaneData::U16(lengths) = &mut e.planes[1].data else { panic!() };
        lengths.to_mut()[3] -= 1;
    });
    assert!(shorter.starts_with("row 8, stream 3, bit "), "{shorter}");
}

#[test]
fn symbols_too_large_for_any_encoder_are_refused() {
    // An escape of 24 zeros and 32 bits: 2^26, in the second symbol of one block of Z.
    let planes = [
        ("words", PlaneData::U32(Cow::Owned(vec![0b1 << 31 | 0b10, 0]))),
        ("lengths", PlaneData::U16(Cow::Owned(vec![57]))),
        ("bases", PlaneData::U64(Cow::Owned(vec![0]))),
        ("scales", PlaneData::Bf16(Cow::Owned(vec![half::bf16::ONE]))),
    ]
    .map(|(name, data)| Plane { name: Cow::Borrowed(name), data });
    let mut header = encode(&spec("z-rice", 2.0).check().unwrap(), &[1.0, 2.0], 1, 2).header;
    header.rotation = RotationHeader::None;
    let SchemeHeader::Lattice(lattice) = &mut header.scheme else { panic!() };
    lattice.code = CodeHeader::Rice { ks: vec![0] };
    let error = decode_all(&header, &planes).unwrap_err();
    assert_eq!(error.to_string(), "row 0, stream 0, bit 1: symbol is 67108864, expected less than 2^26");
}
