//! The reference problem: 16 inputs, 4 outputs, 48 tokens, two bits in blocks of four, by an independent implementation.

use gosset_unisvq::{
    BlockLdl, Damped, HessianAccumulator, LdlqOptions, RefineOptions, block_ldl, ldlq, proxy, refine, relative_proxy,
    round_plain,
};
use serde_json::Value;

use crate::support::{ExhaustiveGrid, Lcg, damping};

/// Weights and activations pass through f32, of relative precision 6e-8; sums of a few hundred terms lose little more.
const TOLERANCE: f64 = 1e-6;

struct Problem {
    golden: Value,
    /// Weights of RMS c.
    w: Vec<f32>,
    h: Damped,
    ldl: BlockLdl,
    raw: gosset_unisvq::Hessian,
}

impl Problem {
    fn number(&self, name: &str) -> f64 {
        self.golden[name].as_f64().unwrap_or_else(|| panic!("no number {name}"))
    }

    fn case(&self, name: &str) -> (Vec<u8>, f64) {
        let case = self.golden["cases"].as_array().unwrap().iter().find(|c| c["name"] == name).unwrap();
        let rows = case["indices"].as_array().unwrap().iter();
        let bytes = rows.flat_map(|r| r.as_array().unwrap()).map(|v| v.as_u64().unwrap() as u8).collect();
        (bytes, case["relative_proxy"].as_f64().unwrap())
    }

    fn holds(&self, name: &str, out: &[f32]) {
        let (indices, expected) = self.case(name);
        let grid = self.grid();
        let found: Vec<u8> = out.chunks_exact(4).map(|x| grid.index(x, None) as u8).collect();
        assert_eq!(found, indices, "{name}");
        self.near(name, relative_proxy(&self.w, out, 4, self.h.as_slice()), expected);
    }

    fn near(&self, what: &str, found: f64, expected: f64) {
        assert!((found - expected).abs() <= TOLERANCE * expected.abs(), "{what}: found {found}, expected {expected}");
    }

    fn grid(&self) -> ExhaustiveGrid {
        ExhaustiveGrid::new(2, 4, self.number("s"))
    }
}

fn problem() -> Problem {
    let golden: Value = serde_json::from_str(include_str!("../golden/small_problem.json")).unwrap();
    let (n, tokens) = (16, 48);
    let mut rng = Lcg(20_260_610);
    let x: Vec<f64> = (0..tokens * n).map(|i| rng.gaussian() / (1 + i % n % 5) as f64).collect();
    let mixed = |i: usize| {
        let (row, col) = (i / n, i % n);
        x[i] + 0.7 * x[row * n + (col + n - 1) % n] + 0.4 * x[row * n + (col + n - 3) % n]
    };
    let mixed: Vec<f32> = (0..tokens * n).map(|i| mixed(i) as f32).collect();
    let weights: Vec<f64> = (0..4 * n).map(|_| rng.gaussian()).collect();
    let rms = (weights.iter().map(|w| w * w).sum::<f64>() / weights.len() as f64).sqrt();
    let c = golden["c"].as_f64().unwrap();
    let w = weights.iter().map(|w| (w / rms * c) as f32).collect();
    let mut moments = HessianAccumulator::new(n).unwrap();
    moments.add(&mixed).unwrap();
    let raw = moments.finish().unwrap();
    let (h, ldl) = damping().factor(&raw, 4).unwrap();
    let problem = Problem { golden, w, h, ldl, raw };
    problem.near("rms", rms, problem.number("rms"));
    problem.near("X00", f64::from(mixed[0]), problem.number("X00"));
    problem
}

#[test]
fn second_moments_and_their_factors_are_those_of_the_reference() {
    let p = problem();
    let n = 16;
    p.near("H00", p.raw.as_slice()[0], p.number("H00"));
    p.near("H01", p.raw.as_slice()[1], p.number("H01"));
    p.near("mean diagonal", p.h.mean_diagonal(), p.number("mean_diag"));
    p.near("trace of D", p.ldl.trace_d(), p.number("trD"));
    p.near("trace of H", p.h.as_slice().iter().step_by(n + 1).sum(), p.number("trH"));
    // With blocks of one column D is the diagonal of pivots.
    let pivots = block_ldl(p.h.as_slice(), n, 1).unwrap();
    p.near("log det", (0..n).map(|k| pivots.metric(k)[0].ln()).sum(), p.number("logdet"));
}

#[test]
fn plain_rounding_gives_the_bytes_of_the_reference() {
    let p = problem();
    let mut out = vec![0.0; 64];
    round_plain(&p.w, 4, 16, 4, 128, &mut p.grid(), &mut out).unwrap();
    p.holds("rtn", &out);
}

#[test]
fn sweeps_give_the_bytes_of_the_reference() {
    let p = problem();
    for (name, metric) in [("euclid_tune0", false), ("metric_tune0", true)] {
        // Panels change the order of work and nothing else.
        for panel in [1, 4, 8, 12, 128] {
            let (mut out, mut grid) = (vec![0.0; 64], p.grid());
            ldlq(&p.w, 4, &p.ldl, LdlqOptions { metric, panel }, &mut grid, &mut out).unwrap();
            assert_eq!(grid.visited, [3, 2, 1, 0]);
            p.holds(name, &out);
        }
    }
}

#[test]
fn the_error_is_that_of_the_blocks_in_their_metric() {
    let p = problem();
    let mut out = vec![0.0; 64];
    ldlq(&p.w, 4, &p.ldl, LdlqOptions { metric: false, panel: 128 }, &mut p.grid(), &mut out).unwrap();
    let e: Vec<f64> = p.w.iter().zip(&out).map(|(a, b)| f64::from(*a) - f64::from(*b)).collect();
    // The number is for weights of RMS c.
    p.near("tr(E H E')", proxy(&e, 4, p.h.as_slice()), p.number("identity_lhs"));
    let mut sum = 0.0;
    for row in e.chunks_exact(16) {
        let eta: Vec<f64> = (0..16).map(|j| (0..16).map(|i| row[i] * p.ldl.l(i, j)).sum()).collect();
        for (k, eta) in eta.chunks_exact(4).enumerate() {
            sum += p.ldl.metric(k).iter().enumerate().map(|(i, d)| eta[i / 4] * d * eta[i % 4]).sum::<f64>();
        }
    }
    p.near("sum over blocks", sum, p.number("identity_lhs"));
}

#[test]
fn passes_give_the_bytes_of_the_reference() {
    let p = problem();
    for metric in [false, true] {
        let kind = if metric { "metric" } else { "euclid" };
        for n_passes in [1, 2, 10] {
            let (mut out, mut grid) = (vec![0.0; 64], p.grid());
            ldlq(&p.w, 4, &p.ldl, LdlqOptions { metric, panel: 128 }, &mut grid, &mut out).unwrap();
            let swept = out.clone();
            let options = RefineOptions { metric, only_better: false, ..RefineOptions::new(n_passes) };
            let report = refine(&p.w, 4, &p.h, 4, options, &mut grid, &mut out).unwrap();
            let name = format!("{kind}_tune{n_passes}");
            let energy = report.start / p.case(&format!("{kind}_tune0")).1;
            // A pass that changes nothing ends the work.
            let last = *report.passes.last().unwrap();
            assert!(report.passes.len() <= n_passes as usize);
            p.near(&name, last / energy, p.case(&name).1);
            let best = report.passes.iter().copied().fold(report.start, f64::min);
            assert_eq!(report.best, best);
            p.near("what was kept", relative_proxy(&p.w, &out, 4, p.h.as_slice()), best / energy);
            if best == last {
                p.holds(&name, &out);
            } else {
                // Two Euclidean passes are worse than one: the iterate of the first is kept.
                assert_eq!(name, "euclid_tune2");
                p.holds("euclid_tune1", &out);
            }
            // Rows that take only what is better never lose.
            let mut guarded = swept;
            let options = RefineOptions { only_better: true, ..options };
            let report = refine(&p.w, 4, &p.h, 4, options, &mut grid, &mut guarded).unwrap();
            assert!(report.passes.windows(2).all(|pair| pair[1] <= pair[0]) && report.passes[0] <= report.start);
            if metric {
                p.holds(&name, &guarded);
            }
        }
    }
}
