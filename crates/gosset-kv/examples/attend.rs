//! Speed and memory of a store: appends, prefill and decode attention, one core.
//!
//! `cargo run --release -p gosset-kv --example attend -- 64 3 3 8192 e8@2.25,window=256,sinks=64`: the width of a head, KV heads, query
//! heads per KV head, positions, then specifications. Keys and values are Gaussian. One layer.
#![allow(clippy::print_stdout, reason = "a command-line tool talks to its terminal")]

use std::time::Instant;

use gosset_kv::{AttendScratch, KeyRotation, KvShape, KvSpec, KvStore, ProbeBuilder, RopePairs};

/// Positions of a chunk of prefill.
const CHUNK: usize = 128;

/// Cosines and sines of all positions, `[positions, head_dim / 2]`.
struct Table {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Table {
    fn new(head_dim: usize, positions: usize) -> Self {
        let half = head_dim / 2;
        let angles = (0..positions * half).map(|at| {
            let (position, pair) = (at / half, at % half);
            position as f32 * 10_000f32.powf(-(pair as f32) / half as f32)
        });
        let (sin, cos) = angles.map(f32::sin_cos).unzip();
        Self { half, cos, sin }
    }
}

impl KeyRotation for Table {
    fn rotate(&self, position: u64, key: &mut [f32]) {
        let at = position as usize * self.half;
        let (cos, sin) = (&self.cos[at..at + self.half], &self.sin[at..at + self.half]);
        let (x, y) = key.split_at_mut(self.half);
        for (((x, y), cos), sin) in x.iter_mut().zip(y).zip(cos).zip(sin) {
            (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut number =
        || -> Result<usize, Box<dyn std::error::Error>> { Ok(args.next().ok_or("expected a number")?.parse()?) };
    let (head_dim, kv_heads, group, n) = (number()?, number()?, number()?, number()?);
    let shape = KvShape { layers: 1, kv_heads, head_dim };
    let keys = gosset_codec::calibrate::gaussian(n * shape.width(), 5);
    let values = gosset_codec::calibrate::gaussian(n * shape.width(), 6);
    let queries = gosset_codec::calibrate::gaussian(CHUNK * group * head_dim, 7);
    let table = Table::new(head_dim, n);
    println!(
        "| spec | append, k vectors/s | prefill, us/position | decode attention, M coded scalars/s | us/query | bits per value | of pages | spilled slots |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for text in args {
        let spec: KvSpec = text.parse()?;
        let mut builder = ProbeBuilder::new(shape, RopePairs::Halves)?;
        builder.add(0, &keys, &keys)?;
        let (key, value) = spec.codecs(shape, Some(&builder.finish()?))?;
        let mut store = KvStore::new(shape, spec.policy, key, value, &spec.protect)?;
        let rope = spec.keys_before_rope.then_some(&table as &dyn KeyRotation);

        let (mut appending, mut attending) = (0.0, 0.0);
        let mut scratch = AttendScratch::new(group);
        let mut out = vec![0.0; queries.len()];
        for first in (0..n).step_by(CHUNK) {
            let rows = first * shape.width()..(first + CHUNK).min(n) * shape.width();
            let start = Instant::now();
            store.append(0, &keys[rows.clone()], &values[rows.clone()])?;
            appending += start.elapsed().as_secs_f64();
            let start = Instant::now();
            let elements = rows.len() / kv_heads * group;
            for head in 0..kv_heads {
                store.attend(0, head, first, &queries[..elements], rope, &mut scratch, &mut out[..elements])?;
            }
            attending += start.elapsed().as_secs_f64();
            store.settle(0);
        }
        let vectors = 2 * n * kv_heads;

        let query = &queries[..group * head_dim];
        let mut best = f64::INFINITY;
        for _ in 0..7 {
            let start = Instant::now();
            for head in 0..kv_heads {
                store.attend(0, head, n - 1, query, rope, &mut scratch, &mut out[..group * head_dim])?;
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        let coded = n.saturating_sub(spec.policy.window + spec.policy.sinks) * 2 * shape.width();
        let memory = store.memory();
        println!(
            "| {text} | {:.1} | {:.1} | {:.1} | {:.0} | {:.3} | {:.3} | {} of {} |",
            vectors as f64 / appending / 1e3,
            attending / n as f64 * 1e6,
            coded as f64 / best / 1e6,
            best * 1e6,
            memory.bits_per_value(),
            memory.page_bits_per_value(),
            memory.spills,
            memory.pages as usize * kv_heads,
        );
    }
    Ok(())
}
