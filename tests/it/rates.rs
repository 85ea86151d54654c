//! Rates on trained weights: every reachable one works, and more bits are never worse.

use std::path::{Path, PathBuf};

use gosset_codec::{CodecSpec, DecodeScratch, MatRef, RotationSpec};
use gosset_quantize::QuantizeError;
use gosset_runtime::source::open_source;

use crate::checkpoint::{Folder, e8, try_quantize};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/tiny")
}

/// A matrix of the embedded model.
fn trained(name: &str) -> (Vec<f32>, usize, usize) {
    let source = open_source(&tiny()).unwrap();
    let (i, t) = source.tensors().iter().enumerate().find(|(_, t)| t.name == name).unwrap();
    let (rows, cols) = t.rows_cols();
    let mut values = vec![0.0; rows * cols];
    source.read_rows(i, 0..rows, &mut values).unwrap();
    (values, rows, cols)
}

/// Payload rate and signal-to-noise ratio in dB.
fn measure(spec: &CodecSpec, x: &[f32], rows: usize, cols: usize) -> (f64, f64) {
    let encoded = spec.check().unwrap().encode(MatRef::new(x, rows, cols).unwrap()).unwrap();
    let mut out = vec![f32::NAN; x.len()];
    encoded.decoder().unwrap().decode_rows(0..rows, &mut out, &mut DecodeScratch::new()).unwrap();
    assert!(out.iter().all(|v| v.is_finite()));
    let signal: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
    let noise: f64 = x.iter().zip(&out).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    (encoded.rate().payload_bps(), 10.0 * (signal / noise).log10())
}

/// The promise for matrices of 2^16 weights or more.
const PAYLOAD_BOUND_BPS: f64 = 0.01;

/// Two per cent of distortion.
const SLACK_DB: f64 = 0.086;

#[test]
fn g04_more_bits_are_never_worse_on_trained_weights() {
    let (x, rows, cols) = trained("model.layers.1.mlp.down_proj.weight");
    assert_eq!(rows * cols, 1 << 16);
    for name in ["e8-rice", "d4-rice", "a2-rice", "z-rice"] {
        let mut before = f64::NEG_INFINITY;
        for bps in (5..=32).map(|quarter| 0.25 * f64::from(quarter)) {
            let (payload, snr_db) = measure(&CodecSpec::named(name, bps).unwrap(), &x, rows, cols);
            assert!((payload - bps).abs() <= PAYLOAD_BOUND_BPS, "{name}@{bps}: {payload}");
            assert!(snr_db > before - SLACK_DB, "{name}@{bps}: {snr_db} dB after {before} dB");
            // Rotated weights are nearly Gaussian: the rate-distortion bound is 6.02 dB per bit, lattice and code lose 4.5 dB of it.
            if bps >= 2.0 {
                assert!((snr_db - 6.0206 * bps + 2.2).abs() < 2.4, "{name}@{bps}: {snr_db} dB");
            }
            before = snr_db;
        }
    }
}

#[test]
fn g04_neighbouring_tiles_differ_little_on_trained_weights() {
    let (x, rows, cols) = trained("model.layers.0.self_attn.k_proj.weight");
    let at = |tile: u32| {
        let rotation = RotationSpec::Rht { tile, seed: 1 };
        measure(&CodecSpec { rotation, ..CodecSpec::named("e8-rice", 3.0).unwrap() }, &x, rows, cols).1
    };
    let snrs: Vec<f64> = (0..=16).map(|log2| at(1 << log2)).collect();
    assert!(snrs.windows(2).all(|pair| (pair[0] - pair[1]).abs() < 0.6), "{snrs:?}");
    // Tiles wider than the row are the row.
    assert!(snrs[8..].iter().all(|snr| *snr == snrs[8]), "{snrs:?}");
}

#[test]
fn g04_rates_out_of_reach_are_refused_with_the_floor_before_anything_is_written() {
    let folder = Folder::new();
    for rate in [1.0, 0.0, -3.0, f64::NAN, f64::INFINITY, 1e9] {
        let error = try_quantize(&tiny(), &e8(rate), &folder.path("x.gosset")).unwrap_err();
        assert!(matches!(error, QuantizeError::Options(_)), "{error}");
        let text = format!("{error}: {}", std::error::Error::source(&error).map_or(String::new(), |e| e.to_string()));
        assert!(text.contains("e8-rice") && text.contains("1.05"), "{text}");
    }
    assert!(folder.names().is_empty());
}
