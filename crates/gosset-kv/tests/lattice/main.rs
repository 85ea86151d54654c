//! Laws of the lattice codecs: rates, distortion, unbiasedness, bytes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bias;
mod damage;
mod frames;
mod rates;
mod rows;
mod shift;

use std::sync::Arc;

use gosset_kv::{KvCodec, KvShape, KvSpec, Place, Probe, ProbeBuilder, Role, RopePairs};
use gosset_transform::{Domain, RandomStream};

const KEY: Place = Place { layer: 0, role: Role::Key, head: 0 };
const VALUE: Place = Place { layer: 0, role: Role::Value, head: 0 };

fn shape(head_dim: usize) -> KvShape {
    KvShape { layers: 1, kv_heads: 1, head_dim }
}

/// Standard normal numbers.
fn gaussian(n: usize, seed: u64) -> Vec<f32> {
    gosset_codec::calibrate::gaussian(n, seed)
}

/// Keys whose coordinates differ in mean and spread and are mixed by a rotation of pairs, and queries that look at some pairs more.
fn keys_and_queries(n: usize, d: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut keys = gaussian(n * d, seed);
    for key in keys.chunks_exact_mut(d) {
        for (i, v) in key.iter_mut().enumerate() {
            *v *= (-6.0 * i as f32 / d as f32).exp2();
        }
        for i in 0..d - 1 {
            let (a, b) = (key[i], key[i + 1]);
            (key[i], key[i + 1]) = (0.8 * a + 0.6 * b, 0.8 * b - 0.6 * a);
        }
        key.iter_mut().enumerate().for_each(|(i, v)| *v += 3.0 * ((i * 7 % 11) as f32 - 5.0));
    }
    let mut queries = gaussian(n * d, seed + 1);
    for (i, v) in queries.iter_mut().enumerate() {
        *v *= 1.0 + (i % (d / 2)) as f32 / d as f32;
    }
    (keys, queries)
}

/// Turns per position of each rotary pair.
fn turns(d: usize) -> Vec<f64> {
    (0..d / 2).map(|t| 10_000f64.powf(-(t as f64) / (d / 2) as f64) / std::f64::consts::TAU).collect()
}

fn probe(d: usize) -> Probe {
    let (keys, queries) = keys_and_queries(2048, d, 3);
    let mut builder = ProbeBuilder::new(shape(d), RopePairs::Halves).unwrap().turns(&turns(d)).unwrap();
    builder.add(0, &keys, &queries).unwrap();
    builder.finish().unwrap()
}

fn codecs(spec: &str, d: usize) -> (Arc<dyn KvCodec>, Arc<dyn KvCodec>) {
    let spec: KvSpec = spec.parse().unwrap();
    let probe = spec.wants_probe().then(|| probe(d));
    spec.codecs(shape(d), probe.as_ref()).unwrap()
}

fn rows_of(codec: &dyn KvCodec, place: Place, first: u64, x: &[f32]) -> Vec<u8> {
    let mut rows = vec![0; x.len() / codec.head_dim() * codec.row_bytes()];
    codec.quantize(place, first, x, &mut rows).unwrap();
    rows
}

/// Vectors as they come back, in original coordinates.
fn reconstructed(codec: &dyn KvCodec, place: Place, first: u64, x: &[f32]) -> Vec<f32> {
    let rows = rows_of(codec, place, first, x);
    let mut out = vec![0.0; x.len()];
    codec.dequantize(place, first, &rows, &mut out).unwrap();
    for v in out.chunks_exact_mut(codec.head_dim()) {
        match place.role {
            Role::Key => codec.keys_from_frame(place, v),
            Role::Value => codec.value_from_frame(place, v),
        }
    }
    out
}

fn squared_error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum()
}

/// Words for tests that need no Gaussian ones.
fn words(seed: u64) -> RandomStream {
    RandomStream::new(seed, Domain::Rotation, 77)
}
