//! Decode attention over caches in code beside bf16 and f16: 32 query heads, 8 key heads of 128, one row.
//!
//! `shift` rows are whole steps: rotation, append, attention over pages and the last exact rows, all of it. They are held to attention over what the
//! pages decode to in f64. The bf16 row is attention alone, by our own kernel; the f16 row is the whole step that an uncompressed cache takes. Strings
//! are random bits: what a page holds does not change the time.

use anyhow::Result;
use gosset_codec::calibrate;
use gosset_cuda::launch::kv::{
    KvRing, KvScratch, KvShiftLayer, KvShiftModel, KvShiftShape, KvShiftTables, PAGE, kv_copy_rows, kv_decode,
    kv_exact, kv_step,
};
use gosset_cuda::launch::model::{AttentionScratch, AttentionShape, Rope, Rows, attend_step};
use gosset_cuda::{Buffer, DeviceType, StreamRef};
use half::{bf16, f16};

use super::args::{Op, Shape};
use super::bench::Bench;
use super::note;
use super::report::Row;
use super::timing::{self, Timing};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const DIM: usize = 128;
const CONTEXTS: [usize; 3] = [2048, 8192, 32_768];
/// Contexts of a run that checks only.
const CHECKED: [usize; 1] = [1024];
/// Bits of strings of keys and values, after which the spec is named: with the byte of the scale 2.0625, 2.25 and 4 bits.
const STRINGS: [usize; 3] = [256, 280, 504];
/// Most that a head of a result may be off over its size: weights, rotated means and queries are halves.
const MAX_REL_ERR: f64 = 4e-3;

/// One context.
struct Case<'a> {
    n: usize,
    qkv: &'a [f32],
    turns: Vec<f64>,
}

impl Case<'_> {
    fn attention(&self) -> AttentionShape {
        AttentionShape { heads: HEADS, kv_heads: KV_HEADS, head_dim: DIM, capacity: self.n }
    }

    /// Rows of a report: scalars of keys and values of a position.
    fn shape(&self) -> Shape {
        Shape { rows: self.n, cols: 2 * KV_HEADS * DIM }
    }

    /// The rotated queries.
    fn queries(&self) -> Vec<f64> {
        let mut q: Vec<f64> = self.qkv[..HEADS * DIM].iter().map(|&x| f64::from(x)).collect();
        for q in q.chunks_exact_mut(DIM) {
            for (t, turns) in self.turns.iter().enumerate() {
                let (s, c) = ((turns * (self.n - 1) as f64).fract() * std::f64::consts::TAU).sin_cos();
                (q[t], q[t + DIM / 2]) = (q[t] * c - q[t + DIM / 2] * s, q[t + DIM / 2] * c + q[t] * s);
            }
        }
        q
    }

    /// The largest error of a head over its size: `q` `[HEADS, DIM]`, rows `[KV_HEADS, capacity, DIM]`.
    fn error(&self, q: &[f64], [keys, values]: [&[f64]; 2], capacity: usize, found: &[f32]) -> f64 {
        let of_head = |head: usize| {
            let rows = head / (HEADS / KV_HEADS) * capacity * DIM..;
            let row = |side: &'_ [f64], p: usize| side[rows.start + p * DIM..][..DIM].to_vec();
            let q = &q[head * DIM..][..DIM];
            let scores: Vec<f64> = (0..self.n)
                .map(|p| q.iter().zip(row(keys, p)).map(|(q, k)| q * k).sum::<f64>() / (DIM as f64).sqrt())
                .collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut total = 0.0;
            let mut out = vec![0.0; DIM];
            for (p, score) in scores.iter().enumerate() {
                let w = (score - top).exp();
                total += w;
                out.iter_mut().zip(row(values, p)).for_each(|(o, v)| *o += w * v);
            }
            let pairs = out.iter().zip(&found[head * DIM..][..DIM]);
            let off: f64 = pairs.map(|(o, &f)| (o / total - f64::from(f)).powi(2)).sum();
            (off / out.iter().map(|o| (o / total).powi(2)).sum::<f64>()).sqrt()
        };
        (0..HEADS).map(of_head).fold(0.0, |worst, e| if e.is_nan() { f64::INFINITY } else { worst.max(e) })
    }
}

/// Times attention at every context.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let contexts: &[usize] = if bench.args.check { &CHECKED } else { &CONTEXTS };
    let qkv = calibrate::gaussian((HEADS + 2 * KV_HEADS) * DIM, bench.args.seed);
    for &n in contexts {
        let turns = (0..DIM / 2).map(|t| 1e4f64.powf(-(t as f64) / (DIM / 2) as f64) / std::f64::consts::TAU).collect();
        let case = Case { n, qkv: &qkv, turns };
        let bf16_us = exact(bench, &case)?;
        for bits in STRINGS {
            shift(bench, &case, bits, bf16_us)?;
        }
    }
    Ok(())
}

fn push(bench: &mut Bench<'_>, case: &Case<'_>, row: Row, bytes: usize, timing: Option<Timing>, bf16_us: Option<f64>) {
    let timing = timing.unwrap_or(Timing::NONE);
    let shape = case.shape();
    let per_us = |n: f64| if timing.us > 0.0 { n / timing.us } else { 0.0 };
    let row = Row {
        op: Op::KvAttend.name().to_owned(),
        mode: "single".to_owned(),
        shape: shape.to_string(),
        batch: 1,
        bps_all_in: Some(8.0 * bytes as f64 / shape.n_weights() as f64),
        us: timing.us,
        us_min: timing.us_min,
        gbps: per_us(bytes as f64 * 1e-3),
        floor_fraction: bench.floor_fraction(bytes, timing.us),
        mws: per_us(shape.n_weights() as f64),
        us_bf16: bf16_us,
        us_torch: bench.torch_us(shape, 1),
        speedup_vs_bf16: bf16_us.filter(|_| timing.us > 0.0).map(|us| us / timing.us),
        ..row
    };
    let error = row.rel_err.unwrap_or_default();
    note(&format!("{} {} {} {shape}: {:.2} us, error {error:.1e}", row.op, row.codec, row.variant, row.us));
    bench.report.rows.push(row);
}

/// Attention over bf16, and the step over f16; microseconds of the former.
fn exact(bench: &mut Bench<'_>, case: &Case<'_>) -> Result<Option<f64>> {
    let (gpu, shape) = (bench.gpu, case.attention());
    let bytes = 2 * shape.cache_len() * size_of::<bf16>();
    let copies = if bench.args.check { 1 } else { timing::copies(bytes) };
    let rows = |seed: u64| calibrate::gaussian(shape.cache_len(), bench.args.seed.wrapping_add(seed));
    let sides = [rows(1), rows(2)].map(|rows| rows.into_iter().map(bf16::from_f32).collect::<Vec<_>>());
    let caches = repeated(bench, &sides, copies)?;
    let q: Vec<f32> = case.queries().into_iter().map(|q| q as f32).collect();
    let (dq, length) = (gpu.upload(&q)?, gpu.upload(&[case.n as u32])?);
    let mut scratch = KvScratch::new(gpu, &shape)?;
    let mut out = gpu.upload(&vec![f32::NAN; HEADS * DIM])?;
    let mut enqueue = |stream: StreamRef<'_>, copy: usize| {
        let sides = [caches[copy][0].as_slice(), caches[copy][1].as_slice()];
        kv_exact(gpu, stream, &shape, dq.as_slice(), sides, length.as_slice(), &mut scratch, out.as_mut())
    };
    enqueue(bench.stream.as_ref(), copies - 1)?;
    bench.stream.synchronize()?;
    let time = match bench.args.check {
        true => None,
        false => Some(timing::rotated(gpu, &bench.stream, copies, bench.args.replays(), enqueue)?),
    };
    let found = gpu.download(out.as_slice())?;
    let of = |side: &[bf16]| side.iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
    let q: Vec<f64> = q.into_iter().map(f64::from).collect();
    let error = case.error(&q, [&of(&sides[0]), &of(&sides[1])], case.n, &found);
    // Weights are bf16.
    let valid = bench.judge(&format!("kv_attend bf16 {}", case.n), error, 2e-2);
    let us = time.map(|time| time.us);
    let row = Row {
        codec: "bf16".to_owned(),
        variant: "attention alone".to_owned(),
        rel_err: Some(error),
        copies,
        valid,
        ..Row::default()
    };
    push(bench, case, row, bytes, time, us);
    drop(caches);

    let sides = sides.map(|side| side.into_iter().map(|x| f16::from_f32(x.to_f32())).collect::<Vec<_>>());
    let mut caches = repeated(bench, &sides, copies)?;
    let (qkv, turns) = (gpu.upload(case.qkv)?, gpu.upload(&case.turns)?);
    let position = gpu.upload(&[case.n as u32 - 1])?;
    let rope = plain_rope(&turns, &position);
    let x = Rows::parts(qkv.as_slice(), 1, [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM])?;
    let mut scratch = AttentionScratch::new(gpu, &shape)?;
    let enqueue = |stream: StreamRef<'_>, copy: usize| {
        let [keys, values] = &mut caches[copy];
        attend_step(gpu, stream, &shape, &rope, x, keys.as_mut(), values.as_mut(), &mut scratch, out.as_mut())
    };
    if !bench.args.check {
        let time = timing::rotated(gpu, &bench.stream, copies, bench.args.replays(), enqueue)?;
        let row = Row { codec: "f16".to_owned(), variant: "step".to_owned(), copies, valid: true, ..Row::default() };
        push(bench, case, row, bytes, Some(time), us);
    }
    Ok(us)
}

/// A step over strings of `bits` bits.
fn shift(bench: &mut Bench<'_>, case: &Case<'_>, bits: usize, bf16_us: Option<f64>) -> Result<()> {
    let gpu = bench.gpu;
    let shape = KvShiftShape {
        layers: 1,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: DIM,
        state_bits: 12,
        key_bits: bits,
        value_bits: bits,
        sinks: 0,
        window: 0,
        tail: PAGE,
        pages: case.n / PAGE,
        interleaved: false,
    };
    let model = model(bench, case, shape)?;
    let page_bytes = shape.page_bytes();
    let bytes: usize = page_bytes.iter().sum();
    let copies = if bench.args.check { 1 } else { timing::copies(bytes) };
    let sides = [random_pages(page_bytes[0], bits, 3), random_pages(page_bytes[1], bits, 4)];
    let caches = repeated(bench, &sides, copies)?;
    let tail = |seed: u64| calibrate::gaussian(shape.tail_len(), bench.args.seed.wrapping_add(seed));
    let tails = [tail(5), tail(6)].map(|rows| rows.into_iter().map(f16::from_f32).collect::<Vec<_>>());
    let mut tails = [gpu.upload(&tails[0])?, gpu.upload(&tails[1])?];
    let mut sinks: [Buffer<f16>; 2] = [gpu.alloc(0)?, gpu.alloc(0)?];
    let (qkv, turns) = (gpu.upload(case.qkv)?, gpu.upload(&case.turns)?);
    let position = gpu.upload(&[case.n as u32 - 1])?;
    let rope = plain_rope(&turns, &position);
    let x = Rows::parts(qkv.as_slice(), 1, [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM])?;
    let mut scratch = KvScratch::new(gpu, &case.attention())?;
    let mut out = gpu.upload(&vec![f32::NAN; HEADS * DIM])?;
    let mut enqueue = |stream: StreamRef<'_>, copy: usize| {
        let ([s0, s1], [t0, t1]) = (&mut sinks, &mut tails);
        let cache = KvShiftLayer {
            layer: 0,
            pages: [caches[copy][0].as_slice(), caches[copy][1].as_slice()],
            sinks: [s0.as_mut(), s1.as_mut()],
            tail: [t0.as_mut(), t1.as_mut()],
        };
        kv_step(gpu, stream, &model, &rope, x, cache, &mut scratch, out.as_mut())
    };
    enqueue(bench.stream.as_ref(), copies - 1)?;
    bench.stream.synchronize()?;
    let time = match bench.args.check {
        true => None,
        false => Some(timing::rotated(gpu, &bench.stream, copies, bench.args.replays(), enqueue)?),
    };
    let found = gpu.download(out.as_slice())?;
    // The same rows by the other kernel, and exact ones.
    let none = vec![f16::NAN; KV_HEADS * case.n * DIM];
    let mut flat = [gpu.upload(&none)?, gpu.upload(&none)?];
    let from = [caches[0][0].as_slice(), caches[0][1].as_slice()];
    let sealed = shape.sealed(case.n - 1);
    let stream = bench.stream.as_ref();
    let [keys, values] = &mut flat;
    kv_decode(gpu, stream, &model, 0, 0..sealed, from, [keys.as_mut(), values.as_mut()], case.n)?;
    let from = KvRing { sides: [tails[0].as_slice(), tails[1].as_slice()], rows: shape.tail };
    let to = KvRing { sides: [keys.as_mut(), values.as_mut()], rows: case.n };
    kv_copy_rows(gpu, stream, (KV_HEADS, DIM), sealed * PAGE..case.n, from, to)?;
    stream.synchronize()?;
    let of = |side: &Buffer<f16>| -> Result<Vec<f64>> {
        Ok(gpu.download(side.as_slice())?.iter().map(|x| x.to_f64()).collect())
    };
    let error = case.error(&case.queries(), [&of(&flat[0])?, &of(&flat[1])?], case.n, &found);
    let codec = format!("shift-12@{}", (bits + 8) as f64 / DIM as f64);
    let valid = bench.judge(&format!("kv_attend {codec} {}", case.n), error, MAX_REL_ERR);
    let row = Row { codec, variant: "step".to_owned(), rel_err: Some(error), copies, valid, ..Row::default() };
    push(bench, case, row, bytes, time, bf16_us);
    Ok(())
}

fn model(bench: &Bench<'_>, case: &Case<'_>, shape: KvShiftShape) -> Result<KvShiftModel> {
    let half = DIM / 2;
    let even = |bits: usize| (0..half).map(|i| ((i + 1) * bits / half - i * bits / half) as u8).collect::<Vec<_>>();
    let key_bits = even(shape.key_bits).repeat(KV_HEADS);
    let ones = vec![1.0; key_bits.len()];
    // Any table takes as long.
    let table = calibrate::gaussian(2048, bench.args.seed).into_iter().map(|x| f16::from_f32(x).to_bits());
    let table: Vec<u16> = table.collect();
    let table: Vec<u32> = table.chunks_exact(2).map(|c| u32::from(c[0]) | u32::from(c[1]) << 16).collect();
    let angles = (0..shape.capacity().max(32))
        .flat_map(|p| case.turns.iter().map(move |t| (t * p as f64).fract() * std::f64::consts::TAU));
    let rotations: Vec<f32> = angles.flat_map(|angle| [angle.cos() as f32, angle.sin() as f32]).collect();
    let tables = KvShiftTables {
        table: &table,
        multiplier: 905 << 5,
        inverses: &[1.0; 256],
        key_bits: &key_bits,
        key_scales: &ones,
        key_targets: &ones,
        key_weights: &ones,
        key_factors: &ones,
        key_shares: &ones[..KV_HEADS],
        key_means: Some(&calibrate::gaussian(KV_HEADS * DIM, bench.args.seed)),
        rotations: &rotations,
        value_bits: &even(shape.value_bits),
        value_targets: &ones[..half],
        value_factors: &ones[..half],
        value_share: 1.0,
        value_signs: &[0x9e37_79b9; DIM / 32],
    };
    Ok(KvShiftModel::new(bench.gpu, shape, &tables)?)
}

fn plain_rope<'a>(turns: &'a Buffer<f64>, position: &'a Buffer<u32>) -> Rope<'a> {
    Rope {
        turns: turns.as_slice(),
        interleaved: false,
        bias: None,
        q_norm: None,
        k_norm: None,
        eps: 0.0,
        position: position.as_slice(),
    }
}

/// Pages of random strings, scales within an octave of 1.
fn random_pages(bytes: usize, bits: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let mut pages: Vec<u8> = (0..bytes).map(|_| next()).collect();
    for page in pages.chunks_exact_mut(PAGE * (1 + bits / 8)) {
        page[..PAGE].iter_mut().for_each(|scale| *scale = 121 + *scale % 17);
    }
    pages
}

/// Both sides of a cache at `copies` addresses.
fn repeated<T: DeviceType>(bench: &Bench<'_>, sides: &[Vec<T>; 2], copies: usize) -> Result<Vec<[Buffer<T>; 2]>> {
    (0..copies).map(|_| Ok([bench.gpu.upload(&sides[0])?, bench.gpu.upload(&sides[1])?])).collect()
}
