//! Second moments from activations, and their stored form.

use gosset_unisvq::{CrossAccumulator, DampingSpec, Hessian, HessianAccumulator, UniSvqError, drift_target};

use crate::support::{Lcg, damping, power_law};

/// What an entry may be off by, as a share of √(h_ii h_jj), by the bound of the accumulator.
const BOUND: f64 = 128.0 / (1u64 << 24) as f64;
/// What it is off by at most on random tokens: the roundings of 128 growing sums, √(128 / 3) · 2^-24 = 4e-7, less over several blocks.
const USUAL: f64 = 5e-7;

/// The largest difference of an entry from the definition as a share of √(h_ii h_jj), the sums in f64.
fn largest_error(found: &[f64], x: &[f32], x_hat: &[f32], n: usize) -> f64 {
    let tokens = (x.len() / n) as f64;
    let mut expected = vec![0.0; n * n];
    let (mut power, mut power_hat) = (vec![0.0; n], vec![0.0; n]);
    for (x, x_hat) in x.chunks_exact(n).zip(x_hat.chunks_exact(n)) {
        for i in 0..n {
            let (v, v_hat) = (f64::from(x[i]), f64::from(x_hat[i]));
            (power[i], power_hat[i]) = (power[i] + v * v / tokens, power_hat[i] + v_hat * v_hat / tokens);
            (0..n).for_each(|j| expected[i * n + j] += v * f64::from(x_hat[j]) / tokens);
        }
    }
    let error = |i: usize| {
        let scale = (power[i / n] * power_hat[i % n]).sqrt();
        if scale == 0.0 { (found[i] - expected[i]).abs() } else { (found[i] - expected[i]).abs() / scale }
    };
    (0..n * n).map(error).fold(0.0, f64::max)
}

fn collect(x: &[f32], n: usize, calls: &[usize]) -> Hessian {
    let mut accumulator = HessianAccumulator::new(n).unwrap();
    let mut rest = x;
    for tokens in calls.iter().cycle() {
        let (now, later) = rest.split_at(rest.len().min(tokens * n));
        accumulator.add(now).unwrap();
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    accumulator.finish().unwrap()
}

fn in_pool<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}

#[test]
fn moments_are_those_of_the_definition() {
    for (n, tokens) in [(1, 1), (3, 7), (64, 5), (65, 513), (130, 1100)] {
        let x = Lcg(n as u64).matrix(n * tokens);
        let h = collect(&x, n, &[tokens]);
        assert_eq!((h.n(), h.n_tokens()), (n, tokens as u64));
        let error = largest_error(h.as_slice(), &x, &x, n);
        assert!(error <= USUAL, "{n} x {tokens}: {error:e}");
        for i in 0..n {
            assert!((0..i).all(|j| h.as_slice()[i * n + j] == h.as_slice()[j * n + i]));
        }
    }
}

#[test]
fn moments_keep_to_their_bound_whatever_the_inputs() {
    let (n, tokens) = (70, 900);
    /// The value of a token and an input, of a random number.
    type Of = fn(usize, usize, f32) -> f32;
    let cases: [(&str, Of); 5] = [
        // The mean of an input is most of it: all terms of a sum have one sign, and rounding always loses.
        ("one sign", |_, _, v| 1.0 + 1e-3 * v),
        ("sixty decades", |_, j, v| v * 10f32.powi(j as i32 - 32)),
        ("one large input", |_, j, v| if j == 5 { 3000.0 * v } else { v }),
        ("one large token", |t, _, v| if t % 300 == 7 { 1e6 * v } else { v }),
        ("subnormal", |_, j, v| if j % 2 == 0 { v * f32::MIN_POSITIVE } else { v }),
    ];
    for (case, of) in cases {
        let make = |seed| -> Vec<f32> {
            let x = Lcg(seed).matrix(n * tokens);
            x.iter().enumerate().map(|(i, v)| of(i / n, i % n, *v)).collect()
        };
        let (x, x_hat) = (make(11), make(12));
        let error = largest_error(collect(&x, n, &[tokens]).as_slice(), &x, &x, n);
        let mut cross = CrossAccumulator::new(n).unwrap();
        cross.add(&x, &x_hat).unwrap();
        let error_hat = largest_error(&cross.finish().unwrap(), &x, &x_hat, n);
        assert!(error.max(error_hat) <= BOUND, "{case}: {error:e}, {error_hat:e}");
        eprintln!("{case}: {error:e}, {error_hat:e} of at most {BOUND:e}");
    }
}

#[test]
fn moments_depend_neither_on_calls_nor_on_threads() {
    let (n, tokens) = (150, 1100);
    let x = Lcg(3).matrix(n * tokens);
    let expected = in_pool(1, || collect(&x, n, &[tokens]));
    for (threads, calls) in [(1, &[1][..]), (2, &[511, 1, 2]), (7, &[700])] {
        assert_eq!(in_pool(threads, || collect(&x, n, calls)), expected, "{threads} threads, calls of {calls:?}");
    }
    let cross = || {
        let mut accumulator = CrossAccumulator::new(n).unwrap();
        accumulator.add(&x, &x[..].iter().rev().copied().collect::<Vec<_>>()).unwrap();
        accumulator.finish().unwrap()
    };
    assert_eq!(in_pool(7, cross), in_pool(1, cross));
}

#[test]
fn cross_moments_of_equal_inputs_are_moments() {
    let (n, tokens) = (70, 600);
    let (x, x_hat) = (Lcg(5).matrix(n * tokens), Lcg(6).matrix(n * tokens));
    let cross = |a: &[f32], b: &[f32]| {
        let mut accumulator = CrossAccumulator::new(n).unwrap();
        for (a, b) in a.chunks(n * 77).zip(b.chunks(n * 77)) {
            accumulator.add(a, b).unwrap();
        }
        accumulator.finish().unwrap()
    };
    let (same, other) = (cross(&x, &x), cross(&x, &x_hat));
    assert!(largest_error(&same, &x, &x, n) <= USUAL);
    assert!(largest_error(&other, &x, &x_hat, n) <= USUAL);
    assert_eq!(in_pool(7, || cross(&x, &x_hat)), other);
    assert!(CrossAccumulator::new(n).unwrap().add(&x[..n], &x_hat[..2 * n]).is_err());
}

#[test]
fn activations_that_are_not_finite_are_refused_with_their_place() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut accumulator = HessianAccumulator::new(3).unwrap();
        accumulator.add(&[1.0; 12]).unwrap();
        let mut x = [f32::MAX; 9];
        x[7] = bad;
        match accumulator.add(&x) {
            Err(UniSvqError::NonFinite { row: 6, col: 1, .. }) => {}
            other => panic!("{other:?}"),
        }
        // Nothing of them is in the sums.
        let h = accumulator.finish().unwrap();
        assert_eq!((h.as_slice(), h.n_tokens()), (&[1.0; 9][..], 4));
    }
    assert!(HessianAccumulator::new(3).unwrap().add(&[0.0; 4]).is_err());
    assert!(HessianAccumulator::new(0).is_err() && HessianAccumulator::new(usize::MAX).is_err());
    assert!(Hessian::identity(0).is_err() && Hessian::identity(usize::MAX).is_err());
}

#[test]
fn the_largest_activations_do_not_overflow() {
    let mut accumulator = HessianAccumulator::new(2).unwrap();
    accumulator.add(&[f32::MAX, f32::MIN_POSITIVE, f32::MAX, 0.0]).unwrap();
    let h = accumulator.finish().unwrap();
    assert!((h.as_slice()[0] / f64::from(f32::MAX).powi(2) - 1.0).abs() <= USUAL);
    assert_eq!(h.as_slice()[3], f64::from(f32::MIN_POSITIVE).powi(2) / 2.0);
    let (damped, _) = damping().factor(&h, 1).unwrap();
    assert!(damped.as_slice().iter().all(|v| v.is_finite()));
}

#[test]
fn dead_inputs_are_counted() {
    let n = 6;
    let mut x = Lcg(9).matrix(n * 40);
    x.chunks_exact_mut(n).for_each(|token| (token[1], token[4]) = (0.0, -0.0));
    // One token is enough to live, however small it is there.
    x[3 * n] = 0.0;
    let mut h = collect(&x, n, &[40]);
    assert_eq!(h.dead_inputs(), 2);
    x[7 * n + 4] = f32::from_bits(1);
    h = collect(&x, n, &[40]);
    assert_eq!(h.dead_inputs(), 1);
    assert_eq!(HessianAccumulator::new(5).unwrap().finish().unwrap().dead_inputs(), 5);
}

#[test]
fn stored_moments_come_back_and_damaged_ones_do_not() {
    let h = power_law(9, 1.0, &mut Lcg(2));
    let bytes = h.to_bytes();
    assert_eq!(bytes.len(), 24 + 45 * 8);
    assert_eq!(Hessian::from_bytes(&bytes).unwrap(), h);
    for len in 0..bytes.len() {
        assert!(Hessian::from_bytes(&bytes[..len]).is_err(), "{len}");
    }
    let with = |at: usize, value: u64| {
        let mut bytes = bytes.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        Hessian::from_bytes(&bytes)
    };
    // Orders that claim far more than there is, or that overflow.
    for n in [0, 8, 10, 1 << 31, 1 << 33, 1 << 63, u64::MAX] {
        assert!(with(8, n).is_err(), "{n}");
    }
    assert!(with(0, 7).is_err());
    assert!(matches!(with(24 + 8, f64::NAN.to_bits()), Err(UniSvqError::NonFinite { row: 1, col: 0, .. })));
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(Hessian::from_bytes(&longer).is_err());
}

#[test]
fn inputs_in_another_order_have_the_same_moments() {
    let h = power_law(5, 1.0, &mut Lcg(2));
    let order = [3, 0, 4, 2, 1];
    let permuted = h.permuted(&order).unwrap();
    for i in 0..5 {
        for j in 0..5 {
            assert_eq!(permuted.as_slice()[i * 5 + j], h.as_slice()[order[i] * 5 + order[j]]);
        }
    }
    for wrong in [&[0, 1, 2, 3][..], &[0, 1, 2, 3, 3], &[0, 1, 2, 3, 5]] {
        assert!(h.permuted(wrong).is_err());
    }
}

#[test]
fn drift_is_corrected_by_the_best_linear_guess() {
    let (n, rows, tokens) = (24, 5, 4000);
    let mut rng = Lcg(77);
    let w = rng.matrix(rows * n);
    let x = rng.matrix(n * tokens);
    // A prefix that shrinks, mixes and disturbs its outputs.
    let x_hat: Vec<f32> =
        (0..n * tokens).map(|i| 0.7 * x[i] + 0.3 * x[i / n * n + (i + 1) % n] + 0.2 * rng.gaussian() as f32).collect();
    let h_hat = collect(&x_hat, n, &[tokens]);
    let mut cross = CrossAccumulator::new(n).unwrap();
    cross.add(&x, &x_hat).unwrap();
    let cross = cross.finish().unwrap();
    let loss = |target: &[f32]| -> f64 {
        let out = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let token = |(x, x_hat): (&[f32], &[f32])| -> f64 {
            let rows = w.chunks_exact(n).zip(target.chunks_exact(n));
            rows.map(|(w, t)| (out(x, w) - out(x_hat, t)).powi(2)).sum()
        };
        x.chunks_exact(n).zip(x_hat.chunks_exact(n)).map(token).sum()
    };
    let spec = DampingSpec { sigma: 1e-9, ..damping() };
    for block in [1, 5, 8] {
        let (damped, ldl) = spec.factor(&h_hat, block).unwrap();
        let target = drift_target(&w, rows, &cross, &damped, &ldl).unwrap();
        let best = loss(&target);
        assert!(best < 0.5 * loss(&w), "{best} of {}", loss(&w));
        // Every step away from a minimum costs.
        for i in (0..rows * n).step_by(7) {
            for step in [-0.01, 0.01] {
                let mut moved = target.clone();
                moved[i] += step;
                assert!(loss(&moved) > best, "{i}");
            }
        }
        // Where nothing drifts the weights stay as they are, whatever the damping.
        let (damped, ldl) = damping().factor(&h_hat, block).unwrap();
        let same = drift_target(&w, rows, h_hat.as_slice(), &damped, &ldl).unwrap();
        assert!(same.iter().zip(&w).all(|(a, b)| (a - b).abs() <= 1e-6 * (1.0 + b.abs())));
    }
}
