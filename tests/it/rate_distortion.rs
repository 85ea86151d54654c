//! Orders and limits that hold across codecs and baselines, on one small seeded Gaussian matrix.
//!
//! The same figures on a larger matrix are `docs/results/rd.json`, made by `cargo xtask rd`.

use std::sync::LazyLock;

use gosset_baselines::{Rotation, named};
use gosset_codec::{CodecSpec, DecodeScratch, MatRef, Rate, calibrate};

const SEED: u64 = 31;
const COLS: usize = 1024;

/// Rows for codecs that encode fast, 2^17 weights in all.
const ROWS: usize = 128;

/// Rows where an error is held to one percent, 2^19 weights: the error of 256 pairs varies by 0.2 % from sample to sample then.
const MANY_ROWS: usize = 512;

/// Rows for the codecs whose search takes its time, 2^14 weights.
const FEW_ROWS: usize = 16;

/// What a sample may differ from the limit of large ones, in bits per weight, by number of rows: the mean of n squared errors, each
/// about as large as its standard deviation, is off by 1/√n of itself, three of those are 0.8 % or 0.006 bits of 2^17 weights and
/// 2.3 % or 0.017 bits of 2^14.
fn sampling_bits(rows: usize) -> f64 {
    0.5 * (1.0 + 3.0 / ((rows * COLS) as f64).sqrt()).log2()
}

/// What a codec made of the first `rows` rows.
#[derive(Debug, Clone, Copy)]
struct Point {
    snr_db: f64,
    mse: f64,
    stream_bps: f64,
    gap_bits: f64,
}

static SAMPLE: LazyLock<Vec<f32>> = LazyLock::new(|| calibrate::gaussian(MANY_ROWS * COLS, SEED));

/// A codec or baseline at a payload of `bps`, on the first `rows` rows of the sample.
fn measure(name: &str, bps: f64, rows: usize) -> Point {
    let x = &SAMPLE[..rows * COLS];
    let (rate, decoded) = match CodecSpec::named(name, bps) {
        Ok(spec) => {
            let encoded = spec.check().unwrap().encode(MatRef::new(x, rows, COLS).unwrap()).unwrap();
            let mut out = vec![f32::NAN; x.len()];
            encoded.decoder().unwrap().decode_rows(0..rows, &mut out, &mut DecodeScratch::new()).unwrap();
            (encoded.rate(), out)
        }
        Err(error) => {
            let baseline = named(name, bps, Rotation::DEFAULT).unwrap_or_else(|_| panic!("{error}"));
            let encoded = baseline.encode(rows, COLS, x).unwrap();
            (encoded.rate, baseline.decode(rows, COLS, &encoded).unwrap())
        }
    };
    point(x, &decoded, &rate, rows)
}

fn point(x: &[f32], decoded: &[f32], rate: &Rate, rows: usize) -> Point {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let mse = x.iter().zip(decoded).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>() / n;
    // One scale of 16 bits per row is free, no more.
    let free = (rate.scale_bits + rate.norm_bits).min(16 * rows as u64);
    let stream_bps = (rate.total_bits() - free) as f64 / n;
    let bound = 0.5 * (variance / mse).log2();
    Point { snr_db: 10.0 * (variance / mse).log10(), mse, stream_bps, gap_bits: stream_bps - bound }
}

/// Holds if the first method has the smaller error at one payload, and the smaller distance to the bound, every bit counted.
fn assert_beats(a: &str, b: &str, bps: f64) {
    let (first, second) = (measure(a, bps, ROWS), measure(b, bps, ROWS));
    let beats = first.gap_bits < second.gap_bits && first.snr_db > second.snr_db;
    assert!(beats, "{a} against {b} at {bps} bits: {first:?}, {second:?}");
}

fn assert_gap(name: &str, bps: f64, rows: usize, limit: f64) {
    let point = measure(name, bps, rows);
    assert!(point.gap_bits <= limit + sampling_bits(rows), "{name}@{bps}: expected a gap of {limit}, found {point:?}");
}

#[test]
fn better_lattices_are_closer_to_the_bound() {
    for bps in [2.0, 3.0, 4.0, 5.0] {
        for (a, b) in [("e8", "d4"), ("d4", "a2"), ("a2", "z"), ("e8", "e8-rice")] {
            assert_beats(a, b, bps);
        }
    }
}

#[test]
fn e8_beats_higgs_from_2_to_5_bits() {
    for bps in [2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0] {
        assert_beats("e8", "higgs2", bps);
    }
    for (name, rates) in [("higgs1", &[2.0, 3.0, 4.0, 5.0][..]), ("higgs4", &[2.0, 2.5, 3.0])] {
        rates.iter().for_each(|&bps| assert_beats("e8", name, bps));
    }
}

#[test]
fn trellis_64_beats_e8_from_2_to_5_bits() {
    for bps in [2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0] {
        assert_beats("trellis-64", "e8", bps);
    }
}

#[test]
fn shift_16_beats_e8_at_2_and_3_bits() {
    for bps in [2.0, 3.0] {
        let (shift, e8) = (measure("shift-16", bps, FEW_ROWS), measure("e8", bps, FEW_ROWS));
        // Both on the same few rows, so that most of the sampling error is common to them.
        assert!(shift.snr_db > e8.snr_db && shift.stream_bps <= e8.stream_bps, "{bps}: {shift:?}, {e8:?}");
    }
}

#[test]
fn lattices_and_trellises_keep_their_distance_to_the_bound() {
    for bps in [2.0, 3.0, 4.0] {
        for (name, limit) in [("e8", 0.155), ("trellis-8", 0.10), ("trellis-64", 0.075)] {
            assert_gap(name, bps, ROWS, limit);
        }
        assert_gap("trellis-256", bps, FEW_ROWS, 0.06);
    }
    let point = measure("trellis-8", 1.5, ROWS);
    assert!(point.mse <= 0.145 * (1.0 + 3.0 / ((ROWS * COLS) as f64).sqrt()), "{point:?}");
}

#[test]
fn shift_trellises_keep_their_distance_to_the_bound() {
    for (name, limits) in
        [("shift-14", [0.105, 0.15, 0.245]), ("shift-16", [0.085, 0.115, 0.17]), ("shift-18", [0.065, 0.09, 0.125])]
    {
        for (bps, limit) in [2.0, 3.0, 4.0].into_iter().zip(limits) {
            assert_gap(name, bps, FEW_ROWS, limit);
        }
    }
}

#[test]
fn known_errors_of_the_baselines_are_reached() {
    for (name, bps, known) in
        [("higgs2", 2.0, 0.1074), ("higgs2", 3.0, 0.0297), ("higgs2", 4.0, 0.00773), ("e8p-rtn", 2.0, 0.0914)]
    {
        let point = measure(name, bps, MANY_ROWS);
        let found = 10f64.powf(-point.snr_db / 10.0);
        assert!((found / known - 1.0).abs() < 0.01, "{name}@{bps}: expected {known}, found {found}");
    }
}
