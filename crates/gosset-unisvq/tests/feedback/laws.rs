//! What holds for every problem.

use gosset_unisvq::{
    Feedback, Hessian, LdlqOptions, RefineOptions, Round, block_ldl, ldlq, proxy, refine, relative_proxy, round_plain,
};
use proptest::prelude::*;

use crate::support::{ExhaustiveGrid, FastGrid, Lcg, damping, power_law, random_orthogonal, two_bit_step};

/// f64 sums of at most a few hundred terms of size 1.
const F64_SUMS: f64 = 1e-10;

fn differences(w: &[f32], out: &[f32]) -> Vec<f64> {
    w.iter().zip(out).map(|(a, b)| f64::from(*a) - f64::from(*b)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_product_of_the_factors_is_the_matrix(n in 1usize..40, block in 1usize..12, p in 0.0f64..2.0, seed in 1u64..1000) {
        let (h, ldl) = damping().factor(&power_law(n, p, &mut Lcg(seed)), block).unwrap();
        for (a, b) in ldl.product().iter().zip(h.as_slice()) {
            prop_assert!((a - b).abs() < F64_SUMS * n as f64);
        }
        for i in 0..n {
            prop_assert!((0..n).all(|j| (j / block < i / block) || ldl.l(i, j) == f64::from(u8::from(i == j))));
        }
        prop_assert_eq!(block_ldl(h.as_slice(), n, block).unwrap(), ldl);
    }

    #[test]
    fn the_error_is_the_sum_over_blocks(n in 1usize..40, block in 1usize..12, panel in 1usize..50, metric: bool, seed in 1u64..1000) {
        let rows = 3;
        let mut rng = Lcg(seed);
        let (h, ldl) = damping().factor(&power_law(n, 1.2, &mut rng), block).unwrap();
        let w = rng.matrix(rows * n);
        let (mut out, mut grid) = (vec![0.0; rows * n], FastGrid { step: 0.9, levels: 4 });
        ldlq(&w, rows, &ldl, LdlqOptions { metric, panel }, &mut grid, &mut out).unwrap();
        let e = differences(&w, &out);
        let mut sum = 0.0;
        for (e, out) in e.chunks_exact(n).zip(out.chunks_exact(n)) {
            for k in 0..ldl.n_blocks() {
                let columns = ldl.columns(k);
                let eta: Vec<f64> = columns.clone().map(|j| (0..n).map(|i| e[i] * ldl.l(i, j)).sum()).collect();
                // What was rounded is the weight plus the feedback, so rounding it again gives the same.
                for (j, eta) in columns.clone().zip(&eta) {
                    let mut again = [0.0];
                    let x = f64::from(out[j]) + eta;
                    grid.round(k, 1, &[x as f32], None, &mut again);
                    let is_tie = (x / 0.9 - (x / 0.9).round()).abs() < 1e-5;
                    prop_assert!(again[0] == out[j] || is_tie, "{x} became {}, not {}", out[j], again[0]);
                }
                let d = columns.len();
                sum += ldl.metric(k).iter().enumerate().map(|(i, m)| eta[i / d] * m * eta[i % d]).sum::<f64>();
            }
        }
        let total = proxy(&e, rows, h.as_slice());
        prop_assert!((sum - total).abs() <= 1e-9 * total, "{sum}, {total}");
    }

    #[test]
    fn without_correlations_feedback_is_plain_rounding(n in 1usize..200, block in 1usize..9, seed in 1u64..1000) {
        let rows = 4;
        let (_, ldl) = damping().factor(&Hessian::identity(n).unwrap(), block).unwrap();
        let w = Lcg(seed).matrix(rows * n);
        let mut grid = FastGrid { step: 0.9, levels: 4 };
        let (mut swept, mut plain) = (vec![0.0; rows * n], vec![0.0; rows * n]);
        ldlq(&w, rows, &ldl, LdlqOptions::default(), &mut grid, &mut swept).unwrap();
        round_plain(&w, rows, n, block, 128, &mut grid, &mut plain).unwrap();
        prop_assert_eq!(swept, plain);
    }

    #[test]
    fn the_error_is_the_same_in_every_frame(n in 2usize..24, seed in 1u64..1000) {
        let rows = 3;
        let mut rng = Lcg(seed);
        let q = random_orthogonal(n, &mut rng);
        let h = power_law(n, 1.2, &mut rng);
        let e: Vec<f64> = (0..rows * n).map(|_| rng.gaussian()).collect();
        // E Q and Qᵀ H Q.
        let times = |a: &[f64], b: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
            a.chunks_exact(n).flat_map(|row| (0..n).map(|j| (0..n).map(|k| row[k] * b(k, j)).sum()).collect::<Vec<f64>>()).collect()
        };
        let rotated_e = times(&e, &|k, j| q[k * n + j]);
        let hq = times(h.as_slice(), &|k, j| q[k * n + j]);
        let transposed: Vec<f64> = (0..n * n).map(|i| q[i % n * n + i / n]).collect();
        let rotated_h = times(&transposed, &|k, j| hq[k * n + j]);
        let (before, after) = (proxy(&e, rows, h.as_slice()), proxy(&rotated_e, rows, &rotated_h));
        prop_assert!((before - after).abs() <= 1e-10 * before);
    }

    #[test]
    fn passes_never_do_harm(n in 1usize..60, block in 1usize..5, p in 0.5f64..2.0, metric: bool, panel in 1usize..70, seed in 1u64..1000) {
        let rows = 5;
        let mut rng = Lcg(seed);
        let (h, ldl) = damping().factor(&power_law(n, p, &mut rng), block).unwrap();
        let w = rng.matrix(rows * n);
        let mut grid = ExhaustiveGrid::new(2, block as u32, two_bit_step(0.9));
        let mut out = vec![0.0; rows * n];
        ldlq(&w, rows, &ldl, LdlqOptions { metric, panel }, &mut grid, &mut out).unwrap();
        let swept = proxy(&differences(&w, &out), rows, h.as_slice());
        let report = refine(&w, rows, &h, block, RefineOptions { metric, panel, ..RefineOptions::new(4) }, &mut grid, &mut out).unwrap();
        prop_assert!((report.start - swept).abs() <= 1e-12 * swept);
        let mut before = report.start;
        for now in &report.passes {
            prop_assert!(*now <= before);
            before = *now;
        }
        // What was kept has the error that was reported.
        let kept = proxy(&differences(&w, &out), rows, h.as_slice());
        prop_assert!((kept - report.best).abs() <= 1e-9 * swept, "{kept}, {}", report.best);
    }
}

/// Records what it is given.
struct Recorder {
    inner: FastGrid,
    calls: Vec<(usize, usize)>,
    panels: Vec<(usize, Vec<f32>)>,
}

impl Round for Recorder {
    fn round(&mut self, block: usize, rows: usize, x: &[f32], metric: Option<&[f64]>, out: &mut [f32]) {
        self.calls.push((block, x.len() / rows));
        self.inner.round(block, rows, x, metric, out);
    }

    fn enter(&mut self, first_column: usize, _: usize, x: &[f32]) {
        self.panels.push((first_column, x.to_vec()));
    }

    fn wants_panels(&self) -> bool {
        true
    }
}

#[test]
fn blocks_come_from_last_to_first_and_panels_before_them() {
    let (rows, n) = (2, 22);
    let mut rng = Lcg(4);
    let (_, ldl) = damping().factor(&power_law(n, 1.0, &mut rng), 4).unwrap();
    let w = rng.matrix(rows * n);
    let mut recorder = Recorder { inner: FastGrid { step: 0.9, levels: 4 }, calls: vec![], panels: vec![] };
    let mut out = vec![0.0; rows * n];
    ldlq(&w, rows, &ldl, LdlqOptions { metric: true, panel: 10 }, &mut recorder, &mut out).unwrap();
    assert_eq!(recorder.calls, [(5, 2), (4, 4), (3, 4), (2, 4), (1, 4), (0, 4)]);
    assert_eq!(recorder.panels.iter().map(|p| p.0).collect::<Vec<_>>(), [16, 8, 0]);
    // The panel at the end holds the weights, those before it hold feedback as well.
    let columns =
        |from: usize, to: usize| -> Vec<f32> { w.chunks_exact(n).flat_map(|row| row[from..to].to_vec()).collect() };
    assert_eq!(recorder.panels[0].1, columns(16, 22));
    let e = differences(&w, &out);
    for (i, x) in recorder.panels[1].1.iter().enumerate() {
        let (row, j) = (i / 8, 8 + i % 8);
        let expected = f64::from(w[row * n + j]) + (16..n).map(|i| e[row * n + i] * ldl.l(i, j)).sum::<f64>();
        assert!((f64::from(*x) - expected).abs() < 1e-6);
    }
}

#[test]
fn threads_do_not_show() {
    let (rows, n) = (150, 300);
    let mut rng = Lcg(21);
    let h = power_law(n, 1.2, &mut rng);
    let w = rng.matrix(rows * n);
    for block in [1, 4, 7] {
        let work = || {
            let feedback = Feedback::new(&h, damping(), block).unwrap();
            let (mut out, mut grid) = (vec![0.0; rows * n], FastGrid { step: 0.99, levels: 4 });
            let tuning = RefineOptions { metric: false, ..RefineOptions::new(2) };
            let report = feedback.round(&w, rows, LdlqOptions::default(), tuning, &mut grid, &mut out).unwrap();
            assert!(!report.is_plain);
            (out, report)
        };
        let in_pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work);
        let expected = in_pool(1);
        for threads in [2, 7] {
            assert_eq!(in_pool(threads), expected, "blocks of {block}, {threads} threads");
        }
    }
}

/// A rule that does not share its rows.
struct Whole(FastGrid);

impl Round for Whole {
    fn round(&mut self, block: usize, rows: usize, x: &[f32], metric: Option<&[f64]>, out: &mut [f32]) {
        self.0.round(block, rows, x, metric, out);
    }
}

#[test]
fn shares_of_the_rows_give_what_all_rows_give() {
    let (rows, n, grid) = (300, 37, FastGrid { step: 0.9, levels: 4 });
    let mut rng = Lcg(5);
    let (h, ldl) = damping().factor(&power_law(n, 1.2, &mut rng), 4).unwrap();
    let w = rng.matrix(rows * n);
    let run = |rounder: &mut dyn Round| {
        let (mut out, options) = (vec![0.0; w.len()], RefineOptions::new(3));
        ldlq(&w, rows, &ldl, LdlqOptions { metric: true, panel: 16 }, rounder, &mut out).unwrap();
        let report = refine(&w, rows, &h, 4, options, rounder, &mut out).unwrap();
        (out, report)
    };
    let ((shared, a), (whole, b)) = (run(&mut grid.clone()), run(&mut Whole(grid)));
    assert_eq!(shared, whole);
    assert_eq!(a.passes.len(), b.passes.len());
    assert!((a.best - b.best).abs() <= F64_SUMS * b.start && a.best < a.start);
}

#[test]
fn lengths_that_do_not_belong_together_are_refused() {
    let (h, ldl) = damping().factor(&Hessian::identity(4).unwrap(), 2).unwrap();
    let mut grid = FastGrid { step: 1.0, levels: 4 };
    let mut out = [0.0; 8];
    for (w, rows, len) in [(7, 2, 8), (8, 2, 7), (8, 0, 8), (8, 3, 8), (8, usize::MAX, 8)] {
        let w = vec![0.0; w];
        assert!(ldlq(&w, rows, &ldl, LdlqOptions::default(), &mut grid, &mut out[..len]).is_err());
        assert!(refine(&w, rows, &h, 2, RefineOptions::new(1), &mut grid, &mut out[..len]).is_err());
        assert!(round_plain(&w, rows, 4, 2, 128, &mut grid, &mut out[..len]).is_err());
    }
    assert!(refine(&[0.0; 8], 2, &h, 0, RefineOptions::new(1), &mut grid, &mut out).is_err());
    assert!(
        block_ldl(&[1.0; 3], 2, 1).is_err() && block_ldl(&[1.0; 4], 2, 0).is_err() && block_ldl(&[], 0, 1).is_err()
    );
    assert!(block_ldl(&[1.0, 2.0, 2.0, 1.0], 2, 1).is_err());
}

/// The published table of the specification: relative errors of rounding, of sweeps and of re-tuning at two bits.
#[test]
fn feedback_in_the_metric_gains_what_it_should() {
    let (rows, n, d) = (256, 256, 4);
    // p; plain, Euclidean sweep, sweep in the metric, three passes after each of the two sweeps.
    let table = [
        (0.7, 0.08647, 0.08599, 0.07868, 0.07857),
        (1.2, 0.03789, 0.03705, 0.03362, 0.03335),
        (1.8, 0.01132, 0.00995, 0.00887, 0.00860),
    ];
    for (p, euclid, metric, euclid_tuned, metric_tuned) in table {
        let mut rng = Lcg(5);
        let (h, ldl) = damping().factor(&power_law(n, p, &mut rng), d).unwrap();
        let w: Vec<f32> = (0..rows * n).map(|_| rng.normal() as f32).collect();
        let mut grid = ExhaustiveGrid::new(2, d as u32, two_bit_step(0.9));
        let mut out = vec![0.0; rows * n];
        let relative = |out: &[f32]| relative_proxy(&w, out, rows, h.as_slice());
        let mut found = Vec::new();
        for metric in [false, true] {
            ldlq(&w, rows, &ldl, LdlqOptions { metric, panel: 128 }, &mut grid, &mut out).unwrap();
            found.push(relative(&out));
            refine(&w, rows, &h, d, RefineOptions::new(3), &mut grid, &mut out).unwrap();
            found.push(relative(&out));
        }
        round_plain(&w, rows, n, d, 128, &mut grid, &mut out).unwrap();
        let plain = relative(&out);
        println!("p {p}: plain {plain:.5}, {found:.5?}");
        for (found, expected) in found.iter().zip([euclid, euclid_tuned, metric, metric_tuned]) {
            // Other bases and weights than those of the table.
            assert!((found / expected - 1.0).abs() < 0.07, "p {p}: {found}, expected {expected}");
        }
        let [euclid, euclid_tuned, metric, metric_tuned] = found[..] else { unreachable!() };
        assert!(
            euclid < plain
                && metric < euclid
                && euclid_tuned < euclid
                && metric_tuned < metric
                && metric_tuned <= euclid_tuned
        );
    }
}
