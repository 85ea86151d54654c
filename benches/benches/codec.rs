//! Codecs on Gaussian matrices of 4096 columns, in weights per second, on one thread: 256 rows for lattices, 8 for trellises.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use gosset_codec::{
    CodecSpec, DecodeScratch, EncodedMatrix, LatticeHeader, MatRef, RateTarget, SchemeHeader, SchemeSpec, calibrate,
    codecs,
};
use rayon::{ThreadPool, ThreadPoolBuilder};

const ROWS: usize = 256;
/// Rows for encoders that search a trellis, which take a second for each hundred thousand weights or so.
const FEW_ROWS: usize = 8;
const COLS: usize = 4096;
/// Seed of the matrix.
const SEED: u64 = 5;

/// Every codec at 3 bits, or at the nearest rate it has, and E8 at 2 and 4.
fn specs() -> Vec<String> {
    let at_3 = codecs().iter().map(|codec| {
        let nearest = |rates: &[f64]| rates.iter().copied().min_by(|a, b| (a - 3.0).abs().total_cmp(&(b - 3.0).abs()));
        format!("{}@{}", codec.name, codec.rates.and_then(nearest).unwrap_or(3.0))
    });
    at_3.chain(["e8-rice@2".to_owned(), "e8-rice@4".to_owned()]).collect()
}

/// Those of [`specs`] that have an alpha to fix.
fn lattice_specs() -> Vec<String> {
    let is_lattice = |text: &String| {
        let spec = CodecSpec::parse(text).expect("names and rates of the table parse");
        matches!(spec.scheme, SchemeSpec::Lattice { .. })
    };
    specs().into_iter().filter(is_lattice).collect()
}

/// Rows on which encoding is measured.
fn encode_rows(spec: &CodecSpec) -> usize {
    if matches!(spec.scheme, SchemeSpec::Lattice { .. }) { ROWS } else { FEW_ROWS }
}

fn encoded(spec: &CodecSpec, weights: &[f32]) -> EncodedMatrix {
    let weights = MatRef::new(weights, weights.len() / COLS, COLS).expect("the rows are whole");
    spec.check().expect("the rate is in range").encode(weights).expect("Gaussian values are finite")
}

fn one_thread() -> ThreadPool {
    ThreadPoolBuilder::new().num_threads(1).build().expect("one thread can be had")
}

/// Encodes with the alpha that targeting found, or with the search for it.
fn encode(bencher: Bencher<'_, '_>, text: &str, with_search: bool) {
    let mut spec = CodecSpec::parse(text).expect("names and rates of the table parse");
    let weights = calibrate::gaussian(encode_rows(&spec) * COLS, SEED);
    if !with_search {
        let encoded = encoded(&spec, &weights);
        let SchemeHeader::Lattice(LatticeHeader { alpha, .. }) = encoded.header.scheme else { return };
        spec.target = RateTarget::Alpha(f64::from(alpha));
    }
    let pool = one_thread();
    bencher
        .counter(ItemsCount::new(weights.len()))
        .bench_local(|| pool.install(|| encoded(black_box(&spec), black_box(&weights))));
}

#[divan::bench(args = lattice_specs(), max_time = 3)]
fn encode_fixed_alpha(bencher: Bencher<'_, '_>, text: &str) {
    encode(bencher, text, false);
}

#[divan::bench(args = specs(), max_time = 3)]
fn encode_to_target(bencher: Bencher<'_, '_>, text: &str) {
    encode(bencher, text, true);
}

fn decode(bencher: Bencher<'_, '_>, text: &str, rotated: bool) {
    let spec = CodecSpec::parse(text).expect("names and rates of the table parse");
    let rows = encode_rows(&spec);
    let encoded = encoded(&spec, &calibrate::gaussian(rows * COLS, SEED));
    let decoder = encoded.decoder().expect("what was just encoded is well-formed");
    let mut scratch = DecodeScratch::new();
    let mut out = vec![0.0; rows * COLS];
    bencher.counter(ItemsCount::new(out.len())).bench_local(|| {
        if rotated {
            decoder.decode_rows_rotated(0..rows, black_box(&mut out), &mut scratch)
        } else {
            decoder.decode_rows(0..rows, black_box(&mut out), &mut scratch)
        }
    });
}

#[divan::bench(args = specs())]
fn decode_rotated(bencher: Bencher<'_, '_>, text: &str) {
    decode(bencher, text, true);
}

#[divan::bench(args = specs())]
fn decode_original(bencher: Bencher<'_, '_>, text: &str) {
    decode(bencher, text, false);
}
