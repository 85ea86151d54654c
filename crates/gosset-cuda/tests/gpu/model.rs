//! The small operations of a decoder against their definitions in f64.

use gosset_cuda::launch::model::{
    Argmax, AttentionScratch, AttentionShape, CacheElement, Delta, DenseElement, Rope, Rows, attend, attend_step,
    copy_cache, dense, embed, read, rmsnorm, rope_append, silu_mul,
};
use gosset_cuda::{Buffer, DeviceType, Gpu, Stream};
use gosset_transform::{Rht, TilePlan};
use half::{bf16, f16};

use crate::{gpu, reduced};

/// Rounding of one f32 operation.
const EPS: f64 = 6e-8;

/// Seeded numbers in (-1, 1), about uniform.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}

/// A result buffer full of NaN: what a kernel leaves out shows.
fn poisoned(gpu: &Gpu, n: usize) -> Buffer<f32> {
    gpu.upload(&vec![f32::NAN; n]).unwrap()
}

fn close(what: &str, found: &[f32], expected: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*f) - e).abs() <= bound(i), "{what}: element {i}: {f}, expected {e} within {}", bound(i));
    }
}

fn fetch<T: DeviceType>(gpu: &Gpu, stream: &Stream, buffer: &Buffer<T>) -> Vec<T> {
    let mut out = vec![T::zeroed(); buffer.len()];
    read(gpu, stream.as_ref(), buffer.as_slice(), &mut out).unwrap();
    out
}

fn embed_rows<T: DenseElement>(gpu: &Gpu, name: &str) {
    let stream = gpu.stream().unwrap();
    for (vocab, cols) in [(5, 7), (1000, 576), (33, 4096)] {
        let table: Vec<T> = numbers(vocab * cols, 1).into_iter().map(T::from_f32).collect();
        let ids: Vec<u32> = (0..9).map(|i| (i * 7919 + 3) % vocab as u32).collect();
        let mut x = poisoned(gpu, ids.len() * cols);
        let (device_table, device_ids) = (gpu.upload(&table).unwrap(), gpu.upload(&ids).unwrap());
        embed(gpu, stream.as_ref(), device_table.as_slice(), device_ids.as_slice(), cols, x.as_mut()).unwrap();
        let expected: Vec<f32> =
            ids.iter().flat_map(|&id| &table[id as usize * cols..][..cols]).map(|v| v.to_f32()).collect();
        assert_eq!(fetch(gpu, &stream, &x), expected, "{name} {vocab} x {cols}");
    }
}

#[test]
fn model_embedding_rows_are_those_of_the_table() {
    let Some(gpu) = gpu() else { return };
    embed_rows::<f32>(&gpu, "f32");
    embed_rows::<f16>(&gpu, "f16");
    embed_rows::<bf16>(&gpu, "bf16");
}

#[test]
fn model_norm_adds_and_normalizes() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    for (n, cols) in [(1, 2), (3, 40), (2, 576), (5, 896), (1, 4096), (7, 5120), (2, 20_000)] {
        for with in [0, 1, 2] {
            let (x, d, b, w) = (numbers(n * cols, 1), numbers(n * cols, 2), numbers(cols, 3), numbers(cols, 4));
            let (mut dx, mut out) = (gpu.upload(&x).unwrap(), poisoned(&gpu, n * cols));
            let (dd, db, dw) = (gpu.upload(&d).unwrap(), gpu.upload(&b).unwrap(), gpu.upload(&w).unwrap());
            let bias = (with == 2).then(|| db.as_slice());
            let delta = (with > 0).then(|| Delta { values: dd.as_slice(), bias });
            rmsnorm(&gpu, stream.as_ref(), dx.as_mut(), delta, dw.as_slice(), 1e-5, None, out.as_mut()).unwrap();
            let sums: Vec<f32> = (0..n * cols)
                .map(|i| match with {
                    0 => x[i],
                    1 => x[i] + d[i],
                    _ => x[i] + (d[i] + b[i % cols]),
                })
                .collect();
            assert_eq!(fetch(&gpu, &stream, &dx), sums, "{n} x {cols}, {with}");
            let expected: Vec<f64> = sums
                .chunks(cols)
                .flat_map(|row| {
                    let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / cols as f64;
                    let scale = 1.0 / (mean + f64::from(1e-5f32)).sqrt();
                    row.iter().zip(&w).map(move |(v, w)| f64::from(*v) * scale * f64::from(*w))
                })
                .collect();
            // The sum of squares has relative error below (20 adds in a thread + 10 levels) roundings, halved by the root.
            close("norm", &fetch(&gpu, &stream, &out), &expected, |i| 24.0 * EPS * expected[i].abs() + 1e-30);
        }
    }
}

/// The cache and queries that [`rope_append`] should leave, in f64: `(q, keys, values)` of one call.
fn rope_reference(
    shape: &AttentionShape,
    start: usize,
    interleaved: bool,
    [qkv, bias, q_norm, k_norm]: [&[f32]; 4],
    turns: &[f64],
    eps: f64,
) -> [Vec<f64>; 3] {
    let AttentionShape { heads, kv_heads, head_dim, .. } = *shape;
    let half = head_dim / 2;
    let mut out = [Vec::new(), Vec::new(), Vec::new()];
    for (row, x) in qkv.chunks(shape.qkv_len()).enumerate() {
        for h in 0..heads + 2 * kv_heads {
            let kind = if h < heads { 0 } else { 1 + usize::from(h >= heads + kv_heads) };
            let at = |d: usize| {
                let d = h * head_dim + d;
                f64::from(x[d]) + bias.get(d).map_or(0.0, |b| f64::from(*b))
            };
            let mut head: Vec<f64> = (0..head_dim).map(at).collect();
            let norm = [q_norm, k_norm, &[]][kind];
            if !norm.is_empty() {
                let mean = head.iter().map(|v| v * v).sum::<f64>() / head_dim as f64;
                head.iter_mut().zip(norm).for_each(|(v, w)| *v *= f64::from(*w) / (mean + eps).sqrt());
            }
            if kind < 2 {
                for (i, turns) in turns.iter().enumerate() {
                    let (i0, i1) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
                    let angle = (start + row) as f64 * turns * std::f64::consts::TAU;
                    let (a, b) = (head[i0], head[i1]);
                    head[i0] = a * angle.cos() - b * angle.sin();
                    head[i1] = b * angle.cos() + a * angle.sin();
                }
            }
            if kind == 0 {
                head.iter_mut().for_each(|v| *v /= (head_dim as f64).sqrt());
            }
            out[kind].extend(head);
        }
    }
    out
}

fn rope_case<C: CacheElement>(gpu: &Gpu, to_f32: fn(C) -> f32, rounding: f64) {
    let stream = gpu.stream().unwrap();
    let cases = [(1, 1, 2, 0), (3, 1, 6, 5), (9, 3, 64, 1000), (14, 2, 64, 3), (4, 2, 128, 70_000), (2, 1, 256, 9)];
    for (heads, kv_heads, head_dim, start) in cases {
        for options in 0..4 {
            let (n, interleaved, with) = (3, options & 1 != 0, options & 2 != 0);
            let shape = AttentionShape { heads, kv_heads, head_dim, capacity: start + n + 1 };
            let qkv = numbers(n * shape.qkv_len(), 1);
            let extra = |len: usize, seed| if with { numbers(len, seed) } else { Vec::new() };
            let (bias, q_norm, k_norm) = (extra(shape.qkv_len(), 2), extra(head_dim, 3), extra(head_dim, 4));
            let turns: Vec<f64> = (0..head_dim / 2)
                .map(|i| 1e4f64.powf(-((2 * i) as f64) / head_dim as f64) / std::f64::consts::TAU)
                .collect();
            let up = |v: &[f32]| (!v.is_empty()).then(|| gpu.upload(v).unwrap());
            let (dbias, dq, dk) = (up(&bias), up(&q_norm), up(&k_norm));
            let (dturns, position) = (gpu.upload(&turns).unwrap(), gpu.upload(&[start as u32]).unwrap());
            let rope = Rope {
                turns: dturns.as_slice(),
                interleaved,
                bias: dbias.as_ref().map(Buffer::as_slice),
                q_norm: dq.as_ref().map(Buffer::as_slice),
                k_norm: dk.as_ref().map(Buffer::as_slice),
                eps: 1e-6,
                position: position.as_slice(),
            };
            let (dqkv, mut q) = (gpu.upload(&qkv).unwrap(), poisoned(gpu, n * heads * head_dim));
            let mut keys = gpu.alloc::<C>(shape.cache_len()).unwrap();
            let mut values = gpu.alloc::<C>(shape.cache_len()).unwrap();
            let widths = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim];
            let x = Rows::parts(dqkv.as_slice(), n, widths).unwrap();
            rope_append(gpu, stream.as_ref(), &shape, &rope, x, q.as_mut(), keys.as_mut(), values.as_mut()).unwrap();
            let [eq, ek, ev] =
                rope_reference(&shape, start, interleaved, [&qkv, &bias, &q_norm, &k_norm], &turns, f64::from(1e-6f32));
            let what = format!("{heads}/{kv_heads} x {head_dim} at {start}, {options}");
            // A few roundings of numbers up to `2 * 2 * sqrt(head_dim)` after the norm.
            let bound = 16.0 * EPS * if with { (head_dim as f64).sqrt() * 2.0 } else { 2.0 };
            close(&what, &fetch(gpu, &stream, &q), &eq, |_| bound);
            for (name, buffer, expected) in [("keys", &keys, ek), ("values", &values, ev)] {
                let cache = fetch(gpu, &stream, buffer);
                let at = |row: usize, h: usize, d: usize| (h * shape.capacity + start + row) * shape.head_stride() + d;
                let found: Vec<f32> = (0..n)
                    .flat_map(|row| (0..kv_heads).flat_map(move |h| (0..head_dim).map(move |d| (row, h, d))))
                    .map(|(row, h, d)| to_f32(cache[at(row, h, d)]))
                    .collect();
                close(&format!("{what} {name}"), &found, &expected, |i| bound + rounding * expected[i].abs());
                let written = cache.iter().filter(|&&v| to_f32(v) != 0.0).count();
                assert!(written <= n * kv_heads * head_dim, "{what} {name}: wrote beside the rows");
            }
        }
    }
}

#[test]
fn model_rope_rotates_and_appends() {
    let Some(gpu) = gpu() else { return };
    rope_case::<f32>(&gpu, |v| v, 0.0);
    // Halves have 11 bits.
    rope_case::<f16>(&gpu, f16::to_f32, 4.9e-4);
}

fn attend_case<C: CacheElement>(gpu: &Gpu, from_f32: fn(f32) -> C, to_f32: fn(C) -> f32) {
    let stream = gpu.stream().unwrap();
    let cases = [
        (1, 1, 2),
        (3, 1, 6),
        (9, 3, 64),
        (14, 2, 64),
        (4, 4, 80),
        (8, 2, 128),
        (32, 8, 128),
        (10, 1, 128),
        (4, 2, 192),
        (3, 1, 256),
    ];
    for (heads, kv_heads, head_dim) in cases {
        for (n, start) in
            [(1, 0), (1, 1), (1, 63), (1, 64), (1, 777), (1, 5000), (2, 300), (8, 90), (9, 0), (70, 0), (33, 130)]
        {
            if reduced() && n * start * heads > 3000 {
                continue;
            }
            let shape = AttentionShape { heads, kv_heads, head_dim, capacity: start + n + 3 };
            let stride = shape.head_stride();
            let q: Vec<f32> =
                numbers(n * heads * head_dim, 1).iter().map(|v| v * 3.0 / (head_dim as f32).sqrt()).collect();
            let fill = |seed| -> Vec<C> {
                let mut cache: Vec<C> =
                    numbers(shape.cache_len(), seed).into_iter().map(|v| from_f32(v * 2.0)).collect();
                for (i, v) in cache.iter_mut().enumerate() {
                    // Padding is zero; positions not yet written hold NaN, which must not matter.
                    if i % stride >= head_dim {
                        *v = from_f32(0.0);
                    } else if i / stride % shape.capacity >= start + n {
                        *v = from_f32(f32::NAN);
                    }
                }
                cache
            };
            let (keys, values) = (fill(2), fill(3));
            let (dq, dk, dv) = (gpu.upload(&q).unwrap(), gpu.upload(&keys).unwrap(), gpu.upload(&values).unwrap());
            let position = gpu.upload(&[start as u32]).unwrap();
            let what = format!("{heads}/{kv_heads} x {head_dim}, {n} rows at {start}");
            {
                let mut out = poisoned(gpu, q.len());
                attend(
                    gpu,
                    stream.as_ref(),
                    &shape,
                    position.as_slice(),
                    dq.as_slice(),
                    dk.as_slice(),
                    dv.as_slice(),
                    out.as_mut(),
                )
                .unwrap();
                let found = fetch(gpu, &stream, &out);
                let at = |h: usize, t: usize| (h * shape.capacity + t) * stride;
                for (r, (found, q)) in found.chunks(head_dim).zip(q.chunks(head_dim)).enumerate() {
                    let (row, h) = (r / heads, r % heads / (heads / kv_heads));
                    let seen = start + row + 1;
                    let scores: Vec<f64> = (0..seen)
                        .map(|t| {
                            let k = &keys[at(h, t)..][..head_dim];
                            q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(to_f32(*k))).sum()
                        })
                        .collect();
                    let top = scores.iter().copied().fold(f64::MIN, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    let mut expected = vec![0.0; head_dim];
                    for (t, w) in weights.iter().enumerate() {
                        let v = &values[at(h, t)..][..head_dim];
                        expected.iter_mut().zip(v).for_each(|(e, v)| *e += w / total * f64::from(to_f32(*v)));
                    }
                    // Scores up to 50 times log2(e) are rounded in f32 before the exponential, values are up to 2.
                    close(&format!("{what}, row {row} head {}", r % heads), found, &expected, |_| 2e-5);
                }
            }
        }
    }
}

#[test]
fn model_attention_is_softmax_over_what_was_seen() {
    let Some(gpu) = gpu() else { return };
    attend_case::<f32>(&gpu, |v| v, |v| v);
    attend_case::<f16>(&gpu, f16::from_f32, f16::to_f32);
}

fn step_case<C: CacheElement + PartialEq + std::fmt::Debug>(gpu: &Gpu, from_f32: fn(f32) -> C) {
    let stream = gpu.stream().unwrap();
    let cases = [(1, 1, 2), (3, 1, 6), (9, 3, 64), (14, 2, 64), (4, 4, 80), (32, 8, 128), (4, 2, 192), (3, 1, 256)];
    for (heads, kv_heads, head_dim) in cases {
        if reduced() && heads > 9 {
            continue;
        }
        for (start, options) in [(0, 0), (1, 1), (127, 2), (128, 3), (255, 0), (256, 2), (777, 3), (5000, 2)] {
            let (interleaved, with) = (options & 1 != 0, options & 2 != 0);
            let shape = AttentionShape { heads, kv_heads, head_dim, capacity: start + 3 };
            let extra = |len: usize, seed| with.then(|| gpu.upload(&numbers(len, seed)).unwrap());
            let (bias, q_norm, k_norm) = (extra(shape.qkv_len(), 2), extra(head_dim, 3), extra(head_dim, 4));
            let turns: Vec<f64> = (0..head_dim / 2).map(|i| 0.1f64.powi(i as i32)).collect();
            let (turns, position) = (gpu.upload(&turns).unwrap(), gpu.upload(&[start as u32]).unwrap());
            let rope = Rope {
                turns: turns.as_slice(),
                interleaved,
                bias: bias.as_ref().map(Buffer::as_slice),
                q_norm: q_norm.as_ref().map(Buffer::as_slice),
                k_norm: k_norm.as_ref().map(Buffer::as_slice),
                eps: 1e-6,
                position: position.as_slice(),
            };
            let cache = |seed| {
                let mut cache: Vec<C> = numbers(shape.cache_len(), seed).into_iter().map(from_f32).collect();
                let stride = shape.head_stride();
                cache
                    .iter_mut()
                    .enumerate()
                    .filter(|(i, _)| i % stride >= head_dim)
                    .for_each(|(_, v)| *v = from_f32(0.0));
                gpu.upload(&cache).unwrap()
            };
            let qkv = gpu.upload(&numbers(shape.qkv_len(), 1)).unwrap();
            let x =
                Rows::parts(qkv.as_slice(), 1, [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]).unwrap();
            let mut scratch = AttentionScratch::new(gpu, &shape).unwrap();
            let mut results = Vec::new();
            // The fused one twice: the counters must be as before.
            for fused in [false, true, true] {
                let (mut keys, mut values) = (cache(5), cache(6));
                let (mut q, mut out) = (poisoned(gpu, heads * head_dim), poisoned(gpu, heads * head_dim));
                let on = stream.as_ref();
                if fused {
                    attend_step(gpu, on, &shape, &rope, x, keys.as_mut(), values.as_mut(), &mut scratch, out.as_mut())
                        .unwrap();
                } else {
                    rope_append(gpu, on, &shape, &rope, x, q.as_mut(), keys.as_mut(), values.as_mut()).unwrap();
                    let (k, v) = (keys.as_slice(), values.as_slice());
                    attend(gpu, on, &shape, position.as_slice(), q.as_slice(), k, v, out.as_mut()).unwrap();
                }
                results.push((fetch(gpu, &stream, &keys), fetch(gpu, &stream, &values), fetch(gpu, &stream, &out)));
            }
            let what = format!("{heads}/{kv_heads} x {head_dim} at {start}, {options}");
            let (two, one) = (&results[0], &results[2]);
            assert!(results[1] == results[2], "{what}: the same again");
            assert!(two.0 == one.0 && two.1 == one.1, "{what}: the cache");
            let expected: Vec<f64> = two.2.iter().map(|v| f64::from(*v)).collect();
            // Scaled by 1/sqrt(d) and log2(e) in another order.
            close(&what, &one.2, &expected, |_| 1e-5);
        }
    }
}

#[test]
fn model_a_step_of_attention_is_rotation_and_attention() {
    let Some(gpu) = gpu() else { return };
    step_case::<f32>(&gpu, |v| v);
    step_case::<f16>(&gpu, f16::from_f32);
}

#[test]
fn model_gate_is_silu_times_up() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    for (n, cols) in [(1, 1), (2, 1536), (3, 4864), (1, 14_336)] {
        for with in [false, true] {
            let x: Vec<f32> = numbers(2 * n * cols, 1).iter().map(|v| v * 20.0).collect();
            let bias = numbers(2 * cols, 2);
            let (dx, db, mut out) = (gpu.upload(&x).unwrap(), gpu.upload(&bias).unwrap(), poisoned(&gpu, n * cols));
            let parts = Rows::parts(dx.as_slice(), n, [cols, cols]).unwrap();
            silu_mul(&gpu, stream.as_ref(), parts, with.then(|| db.as_slice()), cols, None, out.as_mut()).unwrap();
            let expected: Vec<f64> = (0..n * cols)
                .map(|i| {
                    let (row, c) = (i / cols, i % cols);
                    let at = |part: usize| {
                        let v = x[(2 * row + part) * cols + c] + if with { bias[part * cols + c] } else { 0.0 };
                        f64::from(v)
                    };
                    at(0) / (1.0 + (-at(0)).exp()) * at(1)
                })
                .collect();
            close("gate", &fetch(&gpu, &stream, &out), &expected, |i| 8.0 * EPS * expected[i].abs() + 1e-9);
        }
    }
}

#[test]
fn model_norm_and_gate_rotate_as_the_rotation_does() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    for (n, cols) in [(1, 128), (3, 640), (2, 4096), (1, 14_336)] {
        let rht = Rht::new(TilePlan::new(cols, 128).unwrap(), 7);
        let signs = gpu.upload(rht.signs().words()).unwrap();
        let rotated = |plain: Vec<f32>| {
            let mut rows = plain;
            rht.forward_rows(&mut rows);
            rows
        };
        let (x, w) = (gpu.upload(&numbers(n * cols, 1)).unwrap(), gpu.upload(&numbers(cols, 2)).unwrap());
        let parts = gpu.upload(&numbers(2 * n * cols, 3)).unwrap();
        let run = |signs| {
            let (mut x, mut normed) = (gpu.upload(&fetch(&gpu, &stream, &x)).unwrap(), poisoned(&gpu, n * cols));
            rmsnorm(&gpu, stream.as_ref(), x.as_mut(), None, w.as_slice(), 1e-5, signs, normed.as_mut()).unwrap();
            let (rows, mut gated) = (Rows::parts(parts.as_slice(), n, [cols, cols]).unwrap(), poisoned(&gpu, n * cols));
            silu_mul(&gpu, stream.as_ref(), rows, None, cols, signs, gated.as_mut()).unwrap();
            (fetch(&gpu, &stream, &normed), fetch(&gpu, &stream, &gated))
        };
        let (normed, gated) = run(None);
        assert_eq!(run(Some(signs.as_slice())), (rotated(normed), rotated(gated)), "{n} x {cols}");
    }
    let (mut x, w) = (gpu.alloc::<f32>(200).unwrap(), gpu.alloc::<f32>(200).unwrap());
    let (signs, mut out) = (gpu.alloc::<u32>(7).unwrap(), gpu.alloc::<f32>(200).unwrap());
    let signs = Some(signs.as_slice());
    assert!(rmsnorm(&gpu, stream.as_ref(), x.as_mut(), None, w.as_slice(), 1e-5, signs, out.as_mut()).is_err());
}

#[test]
fn model_argmax_is_the_first_largest() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let mut argmax = Argmax::new(&gpu).unwrap();
    let (mut token, mut position) = (gpu.upload(&[0u32]).unwrap(), gpu.upload(&[41u32]).unwrap());
    let mut n_calls = 41;
    for vocab in [1, 2, 31, 49_152, 128_256] {
        for seed in 0..3 {
            let mut logits = numbers(vocab, seed + 1);
            let top = logits.iter().copied().fold(f32::MIN, f32::max);
            if seed == 2 {
                // All negative, and two equal ones.
                logits.iter_mut().for_each(|v| *v -= 3.0);
                logits[vocab - 1] = top - 3.0;
            }
            let best = logits.iter().copied().fold(f32::MIN, f32::max);
            let expected = logits.iter().position(|v| *v == best).unwrap() as u32;
            let dl = gpu.upload(&logits).unwrap();
            argmax.launch(&gpu, stream.as_ref(), dl.as_slice(), token.as_mut(), position.as_mut()).unwrap();
            n_calls += 1;
            assert_eq!(fetch(&gpu, &stream, &token), [expected], "{vocab}, {seed}");
            assert_eq!(fetch(&gpu, &stream, &position), [n_calls]);
        }
    }
}

#[test]
fn model_cache_moves_to_a_larger_one() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let small = AttentionShape { heads: 6, kv_heads: 3, head_dim: 20, capacity: 37 };
    let large = AttentionShape { capacity: 100, ..small };
    let from: Vec<f16> = numbers(small.cache_len(), 5).into_iter().map(f16::from_f32).collect();
    let (df, mut dt) = (gpu.upload(&from).unwrap(), gpu.alloc::<f16>(large.cache_len()).unwrap());
    copy_cache(&gpu, stream.as_ref(), (&small, df.as_slice()), (&large, dt.as_mut()), 29).unwrap();
    let to = fetch(&gpu, &stream, &dt);
    let stride = small.head_stride();
    for (i, v) in to.iter().enumerate() {
        let (head, t, d) = (i / stride / 100, i / stride % 100, i % stride);
        let expected = if t < 29 { from[(head * 37 + t) * stride + d] } else { f16::ZERO };
        assert_eq!(*v, expected, "head {head} position {t} column {d}");
    }
    assert!(copy_cache(&gpu, stream.as_ref(), (&small, df.as_slice()), (&large, dt.as_mut()), 38).is_err());
}

fn dense_case<T: DenseElement>(gpu: &Gpu, name: &str) {
    let stream = gpu.stream().unwrap();
    let shapes =
        [(1, 1), (3, 7), (130, 100), (576, 576), (1536, 576), (96, 4864), (257, 2560), (13, 14_336), (12_289, 40)];
    for (rows, cols) in shapes {
        let w: Vec<T> = numbers(rows * cols, 1).into_iter().map(T::from_f32).collect();
        let dw = gpu.upload(&w).unwrap();
        if reduced() && rows * cols > 1 << 16 {
            continue;
        }
        for batch in [1, 2, 3, 4, 5, 8, 9, 17, 64, 65, 130] {
            if batch > 2 && rows * cols > 1 << 19 {
                continue;
            }
            let x = numbers(batch * cols, 2 + batch as u64);
            let (dx, mut y) = (gpu.upload(&x).unwrap(), poisoned(gpu, batch * rows));
            dense(gpu, stream.as_ref(), dw.as_slice(), (rows, cols), dx.as_slice(), batch, y.as_mut()).unwrap();
            let mut expected = Vec::with_capacity(batch * rows);
            let mut norms = Vec::with_capacity(batch * rows);
            for x in x.chunks(cols) {
                for w in w.chunks(cols) {
                    let terms = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(w.to_f32()));
                    expected.push(terms().sum());
                    norms.push(terms().map(f64::abs).sum::<f64>());
                }
            }
            // Sums of `cols / 32` terms in a lane, or of `cols` in a tile; errors add up like a random walk at worst times 8.
            let bound = |i: usize| 8.0 * EPS * norms[i] * (cols as f64 / 32.0).sqrt().max(2.0);
            close(&format!("{name} {rows} x {cols}, batch {batch}"), &fetch(gpu, &stream, &y), &expected, bound);
        }
    }
}

#[test]
fn model_dense_products() {
    let Some(gpu) = gpu() else { return };
    dense_case::<f32>(&gpu, "f32");
    dense_case::<f16>(&gpu, "f16");
    dense_case::<bf16>(&gpu, "bf16");
}

#[test]
fn model_wrong_shapes_are_refused() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let x = gpu.alloc::<f32>(10).unwrap();
    let mut none = gpu.alloc::<f32>(0).unwrap();
    let error = dense(&gpu, stream.as_ref(), x.as_slice(), (2, 5), x.as_slice(), 2, none.as_mut()).unwrap_err();
    assert_eq!(error.to_string(), "y of a dense product: expected 4 elements, found 0");
    let row = Rows { values: x.as_slice(), stride: 10 };
    let mut out = gpu.alloc::<f32>(12).unwrap();
    assert!(
        silu_mul(&gpu, stream.as_ref(), [row, row], None, 6, None, out.as_mut()).is_err(),
        "two rows are not there"
    );
    assert!(silu_mul(&gpu, stream.as_ref(), [row, row], None, 12, None, out.as_mut()).is_err(), "rows are shorter");
    assert!(Rows::parts(x.as_slice(), 2, [3, 3]).is_err());
    for (heads, kv_heads, head_dim, capacity) in
        [(3, 2, 4, 1), (2, 1, 5, 1), (2, 1, 258, 1), (2, 1, 4, 0), (0, 0, 4, 1)]
    {
        let shape = AttentionShape { heads, kv_heads, head_dim, capacity };
        assert!(AttentionScratch::new(&gpu, &shape).is_err(), "{shape:?}");
    }
}
