//! Attention over a compressed cache against f64 over what its pages decode to, and pages against what was sealed.

use gosset_cuda::launch::kv::{
    KvRing, KvScratch, KvShiftLayer, KvShiftModel, KvShiftShape, KvShiftTables, PAGE, kv_copy_rows, kv_decode, kv_seal,
    kv_step,
};
use gosset_cuda::launch::model::{AttentionShape, Rope, Rows};
use gosset_cuda::{Buffer, Gpu};
use half::f16;

use crate::gpu;

/// Seeded numbers, about Gaussian.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32
    };
    (0..n).map(|_| ((0..12).map(|_| uniform()).sum::<f32>() - 6.0).clamp(-4.0, 4.0)).collect()
}

fn halves(n: usize, seed: u64) -> Vec<f16> {
    numbers(n, seed).into_iter().map(f16::from_f32).collect()
}

/// Columns of rotary pair `t`.
fn pair(shape: &KvShiftShape, t: usize) -> [usize; 2] {
    if shape.interleaved { [2 * t, 2 * t + 1] } else { [t, t + shape.head_dim / 2] }
}

struct Case {
    shape: KvShiftShape,
    key_bits: Vec<u8>,
    value_bits: Vec<u8>,
    turns: Vec<f64>,
    rotations: Vec<f32>,
    means: Vec<f32>,
    signs: Vec<u32>,
}

impl Case {
    fn new(shape: KvShiftShape) -> Self {
        let half = shape.head_dim / 2;
        let even = |bits: usize| (0..half).map(|i| ((i + 1) * bits / half - i * bits / half) as u8).collect::<Vec<_>>();
        // A quarter of the steps of keys has none, the others have more: every way of reading a set of steps.
        let mut keys = even(shape.key_bits);
        for i in (0..half - 1).step_by(4) {
            if keys[i] + keys[i + 1] <= 10 {
                keys[i + 1] += keys[i];
                keys[i] = 0;
            }
        }
        let turns: Vec<f64> =
            (0..half).map(|t| 1e4f64.powf(-(t as f64) / half as f64) / std::f64::consts::TAU).collect();
        let positions = shape.capacity().max(32);
        let rotations = (0..positions)
            .flat_map(|p| turns.iter().map(move |t| (t * p as f64).fract() * std::f64::consts::TAU))
            .flat_map(|angle| [angle.cos() as f32, angle.sin() as f32])
            .collect();
        let lines = shape.layers * shape.kv_heads;
        Self {
            key_bits: keys.repeat(lines),
            value_bits: even(shape.value_bits),
            turns,
            rotations,
            means: numbers(lines * shape.head_dim, 9),
            signs: (0..shape.layers * shape.head_dim / 32).map(|i| 0x9e37_79b9u32.rotate_left(i as u32)).collect(),
            shape,
        }
    }

    fn model(&self, gpu: &Gpu) -> KvShiftModel {
        let (shape, half) = (self.shape, self.shape.head_dim / 2);
        let ones = vec![1.0; self.key_bits.len()];
        let shares: Vec<f32> = self
            .key_bits
            .chunks_exact(half)
            .map(|bits| 1.0 / (2 * bits.iter().filter(|k| **k > 0).count()) as f32)
            .collect();
        // Any table does: pairs of two halves of one Gaussian each.
        let table: Vec<u32> = halves(2048, 3)
            .chunks_exact(2)
            .map(|c| u32::from(c[0].to_bits()) | u32::from(c[1].to_bits()) << 16)
            .collect();
        let inverses: Vec<f32> =
            (0..256).map(|b| if b == 0 { 0.0 } else { ((129.0 - f64::from(b)) / 8.0).exp2() as f32 }).collect();
        let tables = KvShiftTables {
            table: &table,
            multiplier: if shape.state_bits == 10 { 1 << 7 } else { 905 << 5 },
            inverses: &inverses,
            key_bits: &self.key_bits,
            key_scales: &ones,
            key_targets: &ones,
            key_weights: &ones,
            key_factors: &ones,
            key_shares: &shares,
            key_means: Some(&self.means),
            rotations: &self.rotations,
            value_bits: &self.value_bits,
            value_targets: &ones[..half],
            value_factors: &ones[..half],
            value_share: 1.0 / shape.head_dim as f32,
            value_signs: &self.signs,
        };
        KvShiftModel::new(gpu, shape, &tables).unwrap()
    }
}

fn shapes() -> [KvShiftShape; 3] {
    let shape = KvShiftShape {
        layers: 2,
        heads: 8,
        kv_heads: 2,
        head_dim: 128,
        state_bits: 12,
        key_bits: 280,
        value_bits: 280,
        sinks: 5,
        window: 70,
        tail: 192,
        pages: 6,
        interleaved: false,
    };
    [
        shape,
        KvShiftShape { heads: 14, key_bits: 504, value_bits: 328, interleaved: true, sinks: 0, window: 0, ..shape },
        KvShiftShape { head_dim: 64, heads: 3, kv_heads: 3, state_bits: 10, key_bits: 136, value_bits: 152, ..shape },
    ]
}

#[test]
fn kv_steps_attend_to_what_pages_decode_to() {
    let Some(gpu) = gpu() else { return };
    for shape in shapes() {
        let case = Case::new(shape);
        let model = case.model(&gpu);
        let KvShiftShape { layers, heads, kv_heads, head_dim: d, .. } = shape;
        let attention = AttentionShape { heads, kv_heads, head_dim: d, capacity: shape.capacity() };
        let mut scratch = KvScratch::new(&gpu, &attention).unwrap();
        let stream = gpu.stream().unwrap();
        let side = |seed| gpu.upload(&halves(layers * shape.tail_len(), seed)).unwrap();
        let mut tails = [side(1), side(2)];
        let sinks: [Vec<f16>; 2] = [halves(shape.sink_len(), 4), halves(shape.sink_len(), 5)];
        let mut sinks = sinks.map(|rows| gpu.upload(&rows).unwrap());
        let [key_bytes, value_bytes] = shape.page_bytes();
        let mut pages: [Buffer<u8>; 2] = [
            gpu.upload(&vec![0xa5; layers * key_bytes]).unwrap(),
            gpu.upload(&vec![0x5a; layers * value_bytes]).unwrap(),
        ];
        for first in 0..shape.pages {
            let [keys, values] = &mut pages;
            let tail = [tails[0].as_slice(), tails[1].as_slice()];
            kv_seal(&gpu, stream.as_ref(), &model, first..first + 1, tail, [keys.as_mut(), values.as_mut()]).unwrap();
        }
        stream.synchronize().unwrap();

        let (layer, capacity) = (1, shape.capacity());
        let of_layer = |i: usize| {
            let len = pages[i].len() / layers;
            pages[i].as_slice().slice(layer * len..(layer + 1) * len).unwrap()
        };
        let nan = vec![f16::NAN; kv_heads * capacity * d];
        let mut flat = [gpu.upload(&nan).unwrap(), gpu.upload(&nan).unwrap()];
        let x = numbers((heads + 2 * kv_heads) * d, 7);
        let dx = gpu.upload(&x).unwrap();
        let turns = gpu.upload(&case.turns).unwrap();
        for position in [0, 3, shape.sinks + shape.window + PAGE, shape.sinks + shape.window + 5 * PAGE + 17] {
            let at = gpu.upload(&[position as u32]).unwrap();
            let rope = Rope {
                turns: turns.as_slice(),
                interleaved: shape.interleaved,
                bias: None,
                q_norm: None,
                k_norm: None,
                eps: 0.0,
                position: at.as_slice(),
            };
            let parts = Rows::parts(dx.as_slice(), 1, [heads * d, kv_heads * d, kv_heads * d]).unwrap();
            let mut out = gpu.upload(&vec![f32::NAN; heads * d]).unwrap();
            let len = shape.tail_len();
            let [t0, t1] = &mut tails;
            let part = layer * len..(layer + 1) * len;
            let tail = [t0.as_mut().slice(part.clone()).unwrap(), t1.as_mut().slice(part).unwrap()];
            let [s0, s1] = &mut sinks;
            let cache =
                KvShiftLayer { layer, pages: [of_layer(0), of_layer(1)], sinks: [s0.as_mut(), s1.as_mut()], tail };
            kv_step(&gpu, stream.as_ref(), &model, &rope, parts, cache, &mut scratch, out.as_mut()).unwrap();
            stream.synchronize().unwrap();

            // Decoded rows, then exact ones over them, in one flat cache.
            let [keys, values] = &mut flat;
            let to = [keys.as_mut(), values.as_mut()];
            kv_decode(&gpu, stream.as_ref(), &model, layer, 0..shape.pages, [of_layer(0), of_layer(1)], to, capacity)
                .unwrap();
            stream.synchronize().unwrap();
            let sealed = shape.sealed(position);
            let from_tail = shape.sinks + sealed * PAGE;
            let [f0, f1] = &mut flat;
            let to = KvRing { sides: [f0.as_mut(), f1.as_mut()], rows: capacity };
            if position >= from_tail {
                let range = layer * len..(layer + 1) * len;
                let sides = [&tails[0], &tails[1]].map(|tail| tail.as_slice().slice(range.clone()).unwrap());
                let from = KvRing { sides, rows: shape.tail };
                kv_copy_rows(&gpu, stream.as_ref(), (kv_heads, d), from_tail..position + 1, from, to).unwrap();
            }
            if shape.sinks > 0 {
                let [f0, f1] = &mut flat;
                let to = KvRing { sides: [f0.as_mut(), f1.as_mut()], rows: capacity };
                let from = KvRing { sides: [sinks[0].as_slice(), sinks[1].as_slice()], rows: shape.sinks };
                kv_copy_rows(&gpu, stream.as_ref(), (kv_heads, d), 0..shape.sinks.min(position + 1), from, to).unwrap();
            }
            stream.synchronize().unwrap();
            let keys = gpu.download(flat[0].as_slice()).unwrap();
            let values = gpu.download(flat[1].as_slice()).unwrap();
            let found = gpu.download(out.as_slice()).unwrap();
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let row = |rows: &[f16], p: usize, c: usize| rows[(kv_head * capacity + p) * d + c].to_f64();
                let mut q = vec![0.0; d];
                for (t, turns) in case.turns.iter().enumerate() {
                    let [i, j] = pair(&shape, t);
                    let (s, c) = (turns * position as f64 * std::f64::consts::TAU).sin_cos();
                    let (a, b) = (f64::from(x[head * d + i]), f64::from(x[head * d + j]));
                    (q[i], q[j]) = (a * c - b * s, b * c + a * s);
                }
                let scores: Vec<f64> = (0..=position)
                    .map(|p| (0..d).map(|c| q[c] * row(&keys, p, c)).sum::<f64>() / (d as f64).sqrt())
                    .collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                let total: f64 = weights.iter().sum();
                let (mut off, mut size) = (0.0, 0.0);
                for c in 0..d {
                    let expected = (0..=position).map(|p| weights[p] * row(&values, p, c)).sum::<f64>() / total;
                    off += (f64::from(found[head * d + c]) - expected).powi(2);
                    size += expected.powi(2);
                }
                // Rows of the flat cache are rounded to halves, and so are weights and rotated means.
                let error = (off / size).sqrt();
                assert!(error < 4e-3, "{shape:?}, position {position}, head {head}: {error}");
            }
        }
    }
}
