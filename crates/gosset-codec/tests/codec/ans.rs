//! Laws of the lattices under the ANS coder.

use std::borrow::Cow;
use std::collections::BTreeMap;

use gosset_codec::{
    CodeHeader, CodecError, CodecSpec, DecodeScratch, Decoder, EncodedMatrix, Gain, MatrixHeader, Plane, PlaneData,
    RotationSpec, SchemeHeader, SchemeSpec,
};
use gosset_lattice::LatticeKind;
use proptest::prelude::*;

use crate::{at_alpha, decode, encode, gaussian, lattice_header, snr_db, spec};

const NAMES: [&str; 4] = ["e8", "d4", "a2", "z"];

fn points(encoded: &EncodedMatrix) -> Vec<i32> {
    let decoder = encoded.decoder().unwrap();
    let mut points = vec![0; decoder.rows() * decoder.cols()];
    decoder.decode_points(0..decoder.rows(), &mut points, &mut DecodeScratch::new()).unwrap();
    points
}

/// Bits per value from the rate-distortion bound, for values of the variance that these have.
fn gap(name: &str, bps: f64, x: &[f32], cols: usize) -> f64 {
    let encoded = encode(&spec(name, bps).check().unwrap(), x, x.len() / cols, cols);
    encoded.rate().stream_bps() - snr_db(x, &decode(&encoded)) / (20.0 * 2f64.log10())
}

/// Bits per value of an ideal coder that knows coset and parity, from the points: plug-in entropies plus their bias of
/// (K − 1)/(2 ln 2) bits in all for K symbols (Miller).
fn conditional_entropy_bps(lattice: LatticeKind, points: &[i32]) -> f64 {
    let mut contexts: BTreeMap<(usize, i32), BTreeMap<i32, u64>> = BTreeMap::new();
    let mut add = |position: usize, context: i32, y: i32| {
        *contexts.entry((position, context)).or_default().entry(y).or_default() += 1;
    };
    for y in points.chunks(lattice.dim()) {
        match lattice {
            LatticeKind::Z => add(0, 0, y[0]),
            LatticeKind::A2 => (add(0, 0, y[1]), add(1, y[1] & 1, y[0])).1,
            LatticeKind::D4 => {
                y[..3].iter().for_each(|&v| add(0, 0, v));
                add(1, (y[0] + y[1] + y[2]) & 2, y[3]);
            }
            LatticeKind::E8 => {
                add(0, 0, y[0]);
                y[1..7].iter().for_each(|&v| add(1, y[0] & 1, v));
                add(2, y[..7].iter().sum::<i32>() & 3, y[7]);
            }
        }
    }
    let bits = |counts: &BTreeMap<i32, u64>| {
        let n: u64 = counts.values().sum();
        let bias = (counts.len() as f64 - 1.0) / (2.0 * 2f64.ln());
        n as f64 * gosset_entropy::entropy_bits(counts.values().copied()) + bias
    };
    contexts.values().map(bits).sum::<f64>() / points.len() as f64
}

/// Tables, ends of streams and lengths cost less than 0.01 bits beyond what the contexts leave to code.
#[test]
fn streams_are_within_a_hundredth_of_the_conditional_entropy() {
    let (rows, cols) = (64, 4096);
    let x = gaussian(rows * cols, 101);
    for lattice in LatticeKind::ALL {
        for bps in (5..=24).map(|quarter| 0.25 * f64::from(quarter)) {
            let spec = CodecSpec { rotation: RotationSpec::None, ..spec(lattice.name(), bps) };
            let encoded = encode(&spec.check().unwrap(), &x, rows, cols);
            let excess = encoded.rate().stream_bps() - conditional_entropy_bps(lattice, &points(&encoded));
            assert!((0.0..0.01).contains(&excess), "{lattice}@{bps}: {excess} bits above the entropy");
        }
    }
}

/// The shape of the cell costs 0.1458, 0.1939, 0.2269 and 0.2546 bits, everything else together less than a hundredth. Sampling
/// of the noise: 2^18 values whose squared errors vary like themselves have it within 0.3 %, 0.002 bits.
#[test]
fn the_distance_to_the_bound_is_that_of_the_cell() {
    let cols = 4096;
    let x = gaussian(64 * cols, 102);
    for bps in [2.0, 3.0, 4.0] {
        let gaps = NAMES.map(|name| gap(name, bps, &x, cols));
        assert!(gaps[0] <= 0.155 + 0.002, "e8@{bps}: {gaps:?}");
        assert!(gaps.is_sorted_by(|a, b| a + 0.01 < *b), "{bps}: {gaps:?}");
        assert!(gaps[0] + 0.07 < gap("e8-rice", bps, &x, cols), "{bps}: {gaps:?}");
    }
}

/// The Rice codes, which share nothing with ANS but the nearest points, are the oracle.
#[test]
fn points_do_not_depend_on_the_code() {
    for (rows, cols) in [(40, 1000), (1, 1), (3, 5), (513, 64), (7, 4681), (2, 32_768), (1, 32_771)] {
        let x: Vec<f32> = gaussian(rows * cols, 103).iter().map(|v| v * v * v).collect();
        for name in NAMES {
            for alpha in [0.1, 0.7, 3.0, 11.0, 12.0, 17.0, 22.5, 23.0, 100.0, 6000.0, 60_000.0] {
                let expected = points(&encode(&at_alpha(&format!("{name}-rice"), alpha), &x, rows, cols));
                let found = encode(&at_alpha(name, alpha), &x, rows, cols);
                assert!(points(&found) == expected, "{name} {rows} x {cols} alpha {alpha}");
            }
        }
    }
}

#[test]
fn outliers_of_any_size_survive() {
    let (rows, cols) = (16, 4096);
    let mut x = gaussian(rows * cols, 104);
    x.iter_mut().step_by(4099).for_each(|v| *v *= 1e6);
    for name in NAMES {
        // The RMS of a row with an outlier is that of the outlier: all others are coded as zeros or near it.
        for alpha in [0.5, 30.0, 65_536.0] {
            let found = encode(&at_alpha(name, alpha), &x, rows, cols);
            let expected = encode(&at_alpha(&format!("{name}-rice"), alpha), &x, rows, cols);
            assert!(points(&found) == points(&expected), "{name} {alpha}");
        }
    }
}

#[test]
fn the_gain_lowers_the_error_of_every_row() {
    let (rows, cols) = (32, 1024);
    let x = gaussian(rows * cols, 105);
    for name in NAMES {
        for bps in [0.75, 1.5, 2.5] {
            let with = CodecSpec { rotation: RotationSpec::None, ..spec(name, bps) };
            let SchemeSpec::Lattice { lattice, code, .. } = with.scheme else { panic!() };
            let without = CodecSpec { scheme: SchemeSpec::Lattice { lattice, code, gain: Gain::None }, ..with.clone() };
            let with = encode(&with.check().unwrap(), &x, rows, cols);
            let without = encode(&without.check().unwrap(), &x, rows, cols);
            assert_eq!(points(&with), points(&without));
            assert_eq!((with.rate(), &with.header), (without.rate(), &without.header));
            for ((x, with), without) in
                x.chunks(cols).zip(decode(&with).chunks(cols)).zip(decode(&without).chunks(cols))
            {
                // The rounding of the scale to eight bits can cost what little there is to gain.
                assert!(snr_db(x, with) > snr_db(x, without) - 1e-3, "{name}@{bps}");
            }
            assert!(bps > 2.0 || snr_db(&x, &decode(&with)) > snr_db(&x, &decode(&without)) + 0.05, "{name}@{bps}");
        }
    }
}

#[test]
fn e8_unbiased_is_e8_without_the_gain() {
    let (rows, cols) = (32, 1024);
    let x = gaussian(rows * cols, 108);
    let [fitted, unbiased] =
        ["e8", "e8-unbiased"].map(|name| encode(&spec(name, 2.0).check().unwrap(), &x, rows, cols));
    assert!(points(&fitted) == points(&unbiased));
    let slope = |encoded| {
        let decoded = decode(encoded);
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        product(&x, &decoded) / product(&x, &x)
    };
    for (name, encoded) in [("e8", &fitted), ("e8-unbiased", &unbiased)] {
        let expected = spec(name, 2.0).check().unwrap().estimate(rows, cols).snr_db;
        let found = snr_db(&x, &decode(encoded));
        assert!((found - expected).abs() < 0.1, "{name}: {found} {expected}");
    }
    assert!((slope(&unbiased) - 1.0).abs() < 0.01 && slope(&fitted) < 0.95, "{} {}", slope(&unbiased), slope(&fitted));
}

#[test]
fn small_matrices_do_not_pay_much() {
    let x = gaussian(4096, 106);
    let rate = encode(&spec("e8", 3.0).check().unwrap(), &x, 16, 256).rate();
    assert!((rate.payload_bps() - 3.0).abs() < 0.03, "{}", rate.payload_bps());
    assert_eq!((rate.length_bits, rate.header_bits), (16, 0));
}

#[cfg(feature = "rayon")]
#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let (rows, cols) = (300, 576);
    let x = gaussian(rows * cols, 107);
    for name in ["e8", "a2"] {
        let codec = spec(name, 2.75).check().unwrap();
        let results = [1, 2, 7].map(|n| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
            pool.install(|| encode(&codec, &x, rows, cols))
        });
        assert!(results.iter().all(|encoded| encoded == &results[0]), "{name}");
        let decoder = results[0].decoder().unwrap();
        let whole = decode(&results[0]);
        for block in [1, 17, decoder.row_block()] {
            let mut out = vec![f32::NAN; rows * cols];
            for (i, out) in out.chunks_mut(block * cols).enumerate() {
                let rows = i * block..i * block + out.len() / cols;
                decoder.decode_rows(rows, out, &mut DecodeScratch::new()).unwrap();
            }
            assert_eq!(out, whole, "{name} {block}");
        }
    }
}

fn sample(name: &str) -> EncodedMatrix {
    let mut x = gaussian(40 * 172, 108);
    x[5 * 172..6 * 172].fill(1e-42);
    encode(&spec(name, 3.0).check().unwrap(), &x, 40, 172)
}

fn decode_all(header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<(), CodecError> {
    let decoder = Decoder::new(header, planes)?;
    let n = decoder.rows() * decoder.cols();
    let plane_bits: usize = planes.iter().map(|plane| plane.data.n_bytes() * 8).sum();
    assert!(n <= 64 * plane_bits, "{n} values from {plane_bits} bits");
    let mut out = vec![0.0; n];
    decoder.decode_rows(0..decoder.rows(), &mut out, &mut DecodeScratch::new())?;
    decoder.decode_points(0..decoder.rows(), &mut vec![0; n], &mut DecodeScratch::new())
}

fn words(encoded: &mut EncodedMatrix) -> &mut Vec<u32> {
    let PlaneData::U32(words) = &mut encoded.planes[0].data else { panic!() };
    words.to_mut()
}

fn lengths(encoded: &mut EncodedMatrix) -> &mut Vec<u16> {
    let PlaneData::U16(lengths) = &mut encoded.planes[1].data else { panic!() };
    lengths.to_mut()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn flipped_bits_fail_or_change_the_points(name in prop::sample::select(&NAMES[..]), at: prop::sample::Index, bit in 0u32..32) {
        let mut encoded = sample(name);
        let before = points(&encoded);
        let at = at.index(words(&mut encoded).len());
        words(&mut encoded)[at] ^= 1 << bit;
        if decode_all(&encoded.header, &encoded.planes).is_ok() {
            prop_assert!(points(&encoded) != before);
        }
    }

    #[test]
    fn cut_words_are_refused(name in prop::sample::select(&NAMES[..]), at: prop::sample::Index) {
        let mut encoded = sample(name);
        let len = at.index(words(&mut encoded).len());
        words(&mut encoded).truncate(len);
        prop_assert!(decode_all(&encoded.header, &encoded.planes).is_err());
        if let Ok(len) = u16::try_from(len) {
            lengths(&mut encoded)[0] = len;
        }
        prop_assert!(decode_all(&encoded.header, &encoded.planes).is_err());
    }

    #[test]
    fn wrong_headers_never_panic(name in prop::sample::select(&NAMES[..]), table: u16, raw_bits: u8, small in any::<bool>(), rows in 1u64..10_000_000_000, swap in prop::sample::select(&NAMES[..])) {
        let encoded = sample(name);
        let mut header = encoded.header.clone();
        let SchemeHeader::Lattice(lattice) = &mut header.scheme else { panic!() };
        let (table, raw_bits) = if small { (table % 120, raw_bits % 22) } else { (table, raw_bits) };
        lattice.code = CodeHeader::Ans { table, raw_bits };
        lattice.lattice = lattice_header(&sample(swap)).lattice;
        let _ = decode_all(&header, &encoded.planes);
        header.rows = rows;
        let _ = decode_all(&header, &encoded.planes);
    }

    #[test]
    fn any_words_never_panic(name in prop::sample::select(&NAMES[..]), data in prop::collection::vec(prop_oneof![any::<u32>(), Just(0), Just(u32::MAX)], 4..400), raw_bits in 0u8..=20, table in 0u16..57) {
        let mut encoded = sample(name);
        lengths(&mut encoded)[0] = data.len() as u16;
        *words(&mut encoded) = data;
        let SchemeHeader::Lattice(lattice) = &mut encoded.header.scheme else { panic!() };
        lattice.code = CodeHeader::Ans { table, raw_bits };
        let _ = decode_all(&encoded.header, &encoded.planes);
    }
}

#[test]
fn refusals_say_what_and_where() {
    let message = |change: &dyn Fn(&mut EncodedMatrix)| {
        let mut encoded = sample("e8");
        change(&mut encoded);
        decode_all(&encoded.header, &encoded.planes).unwrap_err().to_string()
    };
    let code = |table, raw_bits| {
        move |encoded: &mut EncodedMatrix| {
            let SchemeHeader::Lattice(lattice) = &mut encoded.header.scheme else { panic!() };
            lattice.code = CodeHeader::Ans { table, raw_bits };
        }
    };
    assert_eq!(message(&code(105, 0)), "header field table: found 105, expected less than 105");
    assert_eq!(message(&code(57, 3)), "header field table: found 57, expected less than 57");
    assert_eq!(message(&code(0, 1)), "header field raw_bits: found 1, expected 0 or 2 to 20");
    let short = message(&|e| lengths(e)[0] = 3);
    assert_eq!(short, "stream table: stream: expected at least 4 words for 6880 symbols, found 3");
    let longer = message(&|e| words(e).push(0));
    assert!(longer.starts_with("plane `words`: "), "{longer}");
    let twice = message(&|e| lengths(e).push(1));
    assert_eq!(twice, "plane `lengths`: 2 elements, expected 1");
    let other = message(&code(0, 0));
    assert!(other.starts_with("row 0, stream 0, bit 0: "), "{other}");
    let bases =
        message(&|e| e.planes.push(Plane { name: Cow::Borrowed("bases"), data: PlaneData::U64(vec![0].into()) }));
    assert!(bases.starts_with("plane `bases` is unexpected"), "{bases}");
}
