//! What dither makes unbiased, and that it is not without.

use crate::{KEY, codecs, gaussian};
use gosset_kv::{KvCodec, KvShape, KvSpec};

const SEEDS: u64 = 20_000;
/// Largest deviation from the exact score, in standard errors of the mean.
const STANDARD_ERRORS: f64 = 4.0;

/// Mean and standard error of ⟨q, x_hat⟩ over positions, each of which has a dither of its own.
fn mean_score(codec: &dyn KvCodec, q: &[f32], x: &[f32]) -> (f64, f64) {
    let d = codec.head_dim();
    let mut q = q.to_vec();
    codec.query_to_frame(KEY, &mut q);
    let n = 500;
    let many: Vec<f32> = x.iter().copied().cycle().take(n * d).collect();
    let (mut rows, mut out) = (vec![0; n * codec.row_bytes()], vec![0.0; n * d]);
    let (mut sum, mut squares) = (0.0, 0.0);
    for first in (0..SEEDS).step_by(n) {
        codec.quantize(KEY, first, &many, &mut rows).unwrap();
        codec.dequantize(KEY, first, &rows, &mut out).unwrap();
        for v in out.chunks_exact(d) {
            let score: f64 = v.iter().zip(&q).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            sum += score;
            squares += score * score;
        }
    }
    let n = SEEDS as f64;
    let mean = sum / n;
    (mean, ((squares / n - mean * mean).max(0.0) / n).sqrt())
}

fn exact_score(q: &[f32], x: &[f32]) -> f64 {
    q.iter().zip(x).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

#[test]
fn scores_are_unbiased_with_dither_under_every_lattice_norm_and_code() {
    let d = 16;
    for (i, options) in ["", "norm=log8", "norm=f16", "coder=rice", "rot=none", "rot=haar"].into_iter().enumerate() {
        for lattice in ["z", "a2", "d4", "e8"] {
            if i > 0 && lattice != "a2" {
                // One of them for what does not depend on the lattice: the one whose dither is easy to get wrong.
                continue;
            }
            let spec = format!("{lattice}@3,frame=none,dither=on,page=256,{options}");
            let (codec, _) = codecs(spec.trim_end_matches(','), d);
            for seed in 0..3 {
                let (x, q) = (gaussian(d, 10 + seed), gaussian(d, 20 + seed));
                let exact = exact_score(&q, &x);
                let (mean, error) = mean_score(&*codec, &q, &x);
                assert!(
                    (mean - exact).abs() < STANDARD_ERRORS * error,
                    "{spec}: mean {mean}, expected {exact}, standard error {error}"
                );
            }
        }
    }
}

#[test]
fn scores_are_unbiased_with_dither_in_the_frame_of_a_probe() {
    let d = 16;
    for lattice in ["z", "a2", "d4", "e8"] {
        let (codec, _) = codecs(&format!("{lattice}@3,dither=on,page=256"), d);
        let (keys, queries) = crate::keys_and_queries(2, d, 50);
        for (x, q) in keys.chunks_exact(d).zip(queries.chunks_exact(d)) {
            let exact = exact_score(q, x);
            let (mean, error) = mean_score(&*codec, q, x);
            // The mean of the keys, up to 15, is added in f32: rounding of 16 terms of up to about 30.
            let rounding = 1e-5;
            assert!(
                (mean - exact).abs() < STANDARD_ERRORS * error + rounding,
                "{lattice}: mean {mean}, expected {exact}, standard error {error}"
            );
        }
    }
}

/// The same test has the power to fail: without dither the error of a vector is what it is, whatever the position.
#[test]
fn scores_of_some_vectors_are_biased_without_dither() {
    let d = 16;
    for lattice in ["z", "a2", "d4", "e8"] {
        let (codec, _) = codecs(&format!("{lattice}@3,frame=none,page=256"), d);
        let (x, q) = (gaussian(d, 10), gaussian(d, 20));
        let (mean, error) = mean_score(&*codec, &q, &x);
        let off = (mean - exact_score(&q, &x)).abs();
        assert!(off > STANDARD_ERRORS * error && off > 1e-3, "{lattice}: off by {off}, standard error {error}");
    }
}

/// Over rotations instead of dither: unbiased on average is not unbiased for each vector of one model, whose rotation is fixed.
#[test]
fn a_random_rotation_alone_leaves_each_vector_biased() {
    let d = 16;
    let shape = KvShape { layers: 1, kv_heads: 1, head_dim: d };
    let (x, q) = (gaussian(d, 10), gaussian(d, 20));
    let exact = exact_score(&q, &x);
    let mut worst = 0.0f64;
    for seed in 0..8 {
        let spec: KvSpec = format!("e8@2,frame=none,rot=haar,page=256,seed={seed}").parse().unwrap();
        let (codec, _) = spec.codecs(shape, None).unwrap();
        let (mean, error) = mean_score(&*codec, &q, &x);
        // Every position gives the same score: what is left is rounding.
        assert!(error < 1e-5, "standard error {error}");
        worst = worst.max((mean - exact).abs());
    }
    assert!(worst > 0.05, "{worst}");
}
