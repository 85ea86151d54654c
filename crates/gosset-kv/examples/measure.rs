//! Rate, distortion and speed of codecs on Gaussian vectors, one core.
//!
//! `cargo run --release -p gosset-kv --example measure -- 64 e8@2.25,frame=none d4@3,frame=none`: the width of a head, then
//! specifications. Keys in the frame `probe` get Gaussian vectors whose variances fall off by 2^-8 over the coordinates, and their exact
//! statistics.
#![allow(clippy::print_stdout, reason = "a command-line tool talks to its terminal")]

use std::time::Instant;

use gosset_kv::{KvCodec, KvShape, KvSpec, Place, ProbeBuilder, Role, RopePairs};

const N_VECTORS: usize = 1 << 14;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let head_dim: usize = args.next().ok_or("expected a width")?.parse()?;
    println!(
        "| spec | role | page bps | expected | off % | MSE | dB | codes | scales | overhead | quantize + pack, k vectors/s | decode, M scalars/s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for text in args {
        let spec: KvSpec = text.parse()?;
        let shape = KvShape { layers: 1, kv_heads: 1, head_dim };
        let plain = gosset_codec::calibrate::gaussian(N_VECTORS * head_dim, 5);
        let slope = |i: usize| (-8.0 * i as f32 / head_dim as f32).exp2();
        let sloped: Vec<f32> = plain.iter().enumerate().map(|(at, v)| v * slope(at % head_dim).sqrt() + 3.0).collect();
        let keys: &[f32] = if spec.wants_probe() { &sloped } else { &plain };
        let mut builder = ProbeBuilder::new(shape, RopePairs::Halves)?;
        builder.add(0, keys, &vec![1.0; keys.len()])?;
        let (key, value) = spec.codecs(shape, Some(&builder.finish()?))?;
        for (role, codec, x) in [(Role::Key, key, keys), (Role::Value, value, &plain[..])] {
            measure(&text, role, &*codec, x, spec.policy.page)?;
        }
    }
    Ok(())
}

fn measure(text: &str, role: Role, codec: &dyn KvCodec, x: &[f32], page_len: usize) -> Result<(), gosset_kv::KvError> {
    let (d, row_bytes) = (codec.head_dim(), codec.row_bytes());
    let place = Place { layer: 0, role, head: 0 };
    let mut rows = vec![0; page_len * row_bytes];
    let mut pages: Vec<Vec<u8>> = Vec::new();
    let [mut codes, mut scales, mut overhead] = [0.0; 3];
    let start = Instant::now();
    for (p, x) in x.chunks_exact(page_len * d).enumerate() {
        codec.quantize(place, (p * page_len) as u64, x, &mut rows)?;
        let mut page = Vec::new();
        let bits = codec.pack(place, &rows, &mut page)?;
        codes += bits.codes as f64;
        scales += bits.scales as f64;
        overhead += bits.overhead as f64;
        pages.push(page);
    }
    let write_seconds = start.elapsed().as_secs_f64();
    let n = (pages.len() * page_len) as f64;
    let bps = pages.iter().map(|page| 8.0 * page.len() as f64).sum::<f64>() / (n * d as f64);
    let (mut scratch, mut out) = (Vec::new(), vec![0.0; page_len * d]);
    let rounds = 5;
    let start = Instant::now();
    for _ in 0..rounds {
        for (p, page) in pages.iter().enumerate() {
            codec.decode(place, (p * page_len) as u64, page, &mut scratch, &mut out)?;
        }
    }
    let read_seconds = start.elapsed().as_secs_f64() / f64::from(rounds);
    let (mut error, mut energy) = (0.0f64, 0.0f64);
    for (p, (page, x)) in pages.iter().zip(x.chunks_exact(page_len * d)).enumerate() {
        codec.decode(place, (p * page_len) as u64, page, &mut scratch, &mut out)?;
        for (x, v) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
            match role {
                Role::Value => codec.value_from_frame(place, v),
                Role::Key => codec.keys_from_frame(place, v),
            }
            error += x.iter().zip(&*v).map(|(&a, &b)| f64::from(a - b).powi(2)).sum::<f64>();
            energy += x.iter().map(|&a| f64::from(a).powi(2)).sum::<f64>();
        }
    }
    let per_scalar = |bits: f64| bits / (n * d as f64);
    println!(
        "| {text} | {} | {bps:.4} | {:.4} | {:+.2} | {:.5} | {:.2} | {:.4} | {:.4} | {:.4} | {:.1} | {:.1} |",
        role.name(),
        codec.expected_bps(),
        100.0 * (bps / codec.expected_bps() - 1.0),
        error / (n * d as f64),
        10.0 * (energy / error).log10(),
        per_scalar(codes),
        per_scalar(scales),
        per_scalar(overhead),
        n / write_seconds / 1e3,
        n * d as f64 / read_seconds / 1e6,
    );
    Ok(())
}
