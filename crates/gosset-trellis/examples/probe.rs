#![allow(missing_docs, clippy::all)]
use gosset_trellis::shift::*;
use std::time::Instant;
fn gauss(seed: u64, n: usize) -> Vec<f32> {
    let mut s = seed;
    let mut next = move || { s = s.wrapping_add(0x9E3779B97F4A7C15); let mut z = s; z = (z ^ (z >> 30)).wrapping_mul(0xBF58476D1CE4E5B9); z = (z ^ (z >> 27)).wrapping_mul(0x94D049BB133111EB); ((z ^ (z >> 31)) >> 11) as f64 / (1u64<<53) as f64 };
    let mut v = Vec::new();
    while v.len() < n { let (a,b)=(next(),next()); let r=(-2.0*(1.0-a).ln()).sqrt(); let t=6.283185307179586*b; v.push((r*t.cos()) as f32); v.push((r*t.sin()) as f32); }
    v
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (bits, state_bits, rows, cols): (u8, u8, usize, usize) = (a[1].parse().unwrap(), a[2].parse().unwrap(), a[3].parse().unwrap(), a[4].parse().unwrap());
    let order = if a[5] == "t" { ShiftOrder::Tiles } else { ShiftOrder::Rows };
    let code = if a[6] == "p" { ShiftCode::Pairs } else { ShiftCode::Quantiles };
    let t = ShiftSpec { bits, state_bits, code, order }.check().unwrap();
    let l = t.layout(rows, cols).unwrap();
    let data = gauss(1, rows * cols);
    for b in Backend::all() {
        if b.name() == "scalar" && a.len() < 8 { continue }
        let e = ShiftEncoder::with_backend(&t, b);
        let mut words = vec![0; l.n_words()];
        let t0 = Instant::now();
        e.encode(&l, &data, 0..l.n_strings(), &mut words, &mut ShiftScratch::new()).unwrap();
        let dt = t0.elapsed().as_secs_f64();
        let d = ShiftDecoder::with_backend(&t, b);
        let mut out = vec![0f32; rows * cols];
        d.decode(&l, &words, 0..l.n_blocks(), &mut out).unwrap();
        let mut best = 9.0f64;
        for _ in 0..20 { let t1 = Instant::now(); d.decode(&l, &words, 0..l.n_blocks(), &mut out).unwrap(); best = best.min(t1.elapsed().as_secs_f64()); }
        let (mut mse, mut g0) = (0.0, 0.0);
        for (x, w) in data.chunks(cols).zip(out.chunks(cols)) {
            let xx: f64 = x.iter().map(|a| *a as f64 * *a as f64).sum(); let ww: f64 = w.iter().map(|a| *a as f64 * *a as f64).sum(); let xw: f64 = x.iter().zip(w).map(|(a, b)| *a as f64 * *b as f64).sum();
            mse += (1.0 - xw * xw / xx / ww) / rows as f64; g0 += xw / ww / rows as f64;
        }
        let h = words.iter().fold(0u64, |h, &w| h.wrapping_mul(0x100000001b3) ^ w as u64);
        println!("{} k={bits} L={state_bits} {order:?} mse {mse:.6} gain {:.4} gap {:.4} enc {:.4} Mw/s dec {:.1} Mw/s {h:x}", b.name(), g0 / t.step() as f64, bits as f64 - 0.5 * (1.0 / mse).log2(), (rows * cols) as f64 / dt / 1e6, (rows * cols) as f64 / best / 1e6);
    }
}
