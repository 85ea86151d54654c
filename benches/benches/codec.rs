//! Codecs on a 256 x 4096 Gaussian matrix, in weights per second, on one thread.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use gosset_codec::{
    CodecSpec, DecodeScratch, EncodedMatrix, LatticeHeader, MatRef, RateTarget, SchemeHeader, calibrate, codecs,
};
use rayon::{ThreadPool, ThreadPoolBuilder};

const ROWS: usize = 256;
const COLS: usize = 4096;
/// Seed of the matrix.
const SEED: u64 = 5;

/// Every codec at 3 bits, and E8 at 2 and 4.
fn specs() -> Vec<String> {
    let at_3 = codecs().iter().map(|codec| format!("{}@3", codec.name));
    at_3.chain(["e8-rice@2".to_owned(), "e8-rice@4".to_owned()]).collect()
}

fn encoded(spec: &CodecSpec, weights: &[f32]) -> EncodedMatrix {
    let weights = MatRef::new(weights, ROWS, COLS).expect("the shape is the one that was generated");
    spec.check().expect("the rate is in range").encode(weights).expect("Gaussian values are finite")
}

fn one_thread() -> ThreadPool {
    ThreadPoolBuilder::new().num_threads(1).build().expect("one thread can be had")
}

/// Encodes with the alpha that targeting found, or with the search for it.
fn encode(bencher: Bencher<'_, '_>, text: &str, with_search: bool) {
    let weights = calibrate::gaussian(ROWS * COLS, SEED);
    let mut spec = CodecSpec::parse(text).expect("names and rates of the table parse");
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

#[divan::bench(args = specs())]
fn encode_fixed_alpha(bencher: Bencher<'_, '_>, text: &str) {
    encode(bencher, text, false);
}

#[divan::bench(args = specs())]
fn encode_to_target(bencher: Bencher<'_, '_>, text: &str) {
    encode(bencher, text, true);
}

fn decode(bencher: Bencher<'_, '_>, text: &str, rotated: bool) {
    let weights = calibrate::gaussian(ROWS * COLS, SEED);
    let encoded = encoded(&CodecSpec::parse(text).expect("names and rates of the table parse"), &weights);
    let decoder = encoded.decoder().expect("what was just encoded is well-formed");
    let mut scratch = DecodeScratch::new();
    let mut out = vec![0.0; ROWS * COLS];
    bencher.counter(ItemsCount::new(out.len())).bench_local(|| {
        if rotated {
            decoder.decode_rows_rotated(0..ROWS, black_box(&mut out), &mut scratch)
        } else {
            decoder.decode_rows(0..ROWS, black_box(&mut out), &mut scratch)
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
