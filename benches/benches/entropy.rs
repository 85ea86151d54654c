//! The Rice code on symbols of Gaussian E8 points, in symbols per second.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use gosset_entropy::{BitWriter, RiceFit, STREAM_LEN, rice};
use gosset_lattice::{BitStrip, E8, Lattice};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rand_distr::StandardNormal;

/// Streams per iteration, each of 512 symbols.
const N_STREAMS: usize = 256;
const N_SYMBOLS: usize = N_STREAMS * STREAM_LEN;

/// Rice parameters and the scales at which each is the best one: 2, 3, 4 and 5 bits per symbol.
const ALPHA_OF_K: [f32; 4] = [1.634, 3.590, 7.308, 14.66];

fn symbols(k: u32) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(2);
    let alpha = ALPHA_OF_K[k as usize];
    let mut block = || std::array::from_fn(|_| alpha * rng.sample::<f32, _>(StandardNormal));
    (0..N_SYMBOLS / 8).flat_map(|_| E8::strip(E8::nearest_point(&block()))).collect()
}

/// The words of all streams and where each of them lies.
fn encoded(k: u32) -> (Vec<u32>, Vec<(u64, u64)>) {
    let mut writer = BitWriter::new();
    let spans = symbols(k)
        .chunks(STREAM_LEN)
        .map(|stream| {
            let start = writer.len_bits();
            rice::encode(&mut writer, stream, &[k]);
            (start, writer.len_bits() - start)
        })
        .collect();
    (writer.into_words(), spans)
}

#[divan::bench(args = [0, 1, 2, 3])]
fn rice_encode(bencher: Bencher, k: u32) {
    let symbols = symbols(k);
    bencher.counter(ItemsCount::new(N_SYMBOLS)).bench_local(|| {
        let mut writer = BitWriter::with_capacity_bits(8 * N_SYMBOLS as u64);
        rice::encode(&mut writer, black_box(&symbols), black_box(&[k; 8]));
        writer.into_words()
    });
}

#[divan::bench(args = [0, 1, 2, 3])]
fn rice_decode(bencher: Bencher, k: u32) {
    let (words, spans) = encoded(k);
    let mut out = vec![0; N_SYMBOLS];
    bencher.counter(ItemsCount::new(N_SYMBOLS)).bench_local(|| {
        for (&(start_bit, len_bits), out) in spans.iter().zip(out.chunks_mut(STREAM_LEN)) {
            rice::decode(black_box(&words), start_bit, len_bits, black_box(&[k; 8]), out)
                .expect("what was just encoded decodes");
        }
        black_box(&mut out);
    });
}

#[divan::bench(args = [0, 1, 2, 3])]
fn rice_decode_pair(bencher: Bencher, k: u32) {
    let (words, spans) = encoded(k);
    let mut out = vec![0; N_SYMBOLS];
    bencher.counter(ItemsCount::new(N_SYMBOLS)).bench_local(|| {
        for (&spans, out) in spans.as_chunks::<2>().0.iter().zip(out.chunks_mut(2 * STREAM_LEN)) {
            let (first, second) = out.split_at_mut(STREAM_LEN);
            rice::decode_pair(black_box(&words), spans, black_box(&[k; 8]), [first, second])
                .expect("what was just encoded decodes");
        }
        black_box(&mut out);
    });
}

/// Two parameters in turn, as D4 uses them.
#[divan::bench]
fn rice_decode_two_classes(bencher: Bencher) {
    let ks = [1, 1, 1, 0];
    let mut writer = BitWriter::new();
    rice::encode(&mut writer, &symbols(1), &ks);
    let len_bits = writer.len_bits();
    let words = writer.into_words();
    let mut out = vec![0; N_SYMBOLS];
    bencher.counter(ItemsCount::new(N_SYMBOLS)).bench_local(|| {
        rice::decode(black_box(&words), 0, len_bits, black_box(&ks), &mut out).expect("what was just encoded decodes");
        black_box(&mut out);
    });
}

#[divan::bench]
fn rice_fit(bencher: Bencher) {
    let symbols = symbols(1);
    bencher.counter(ItemsCount::new(N_SYMBOLS)).bench_local(|| {
        let mut fit = RiceFit::new();
        fit.extend(black_box(&symbols));
        fit.best_k()
    });
}
