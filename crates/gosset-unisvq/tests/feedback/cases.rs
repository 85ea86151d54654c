//! Second moments that cannot be factored, and inputs that calibration never saw.

use gosset_unisvq::{
    DampingMethod, DampingSpec, Feedback, FeedbackReport, Hessian, HessianAccumulator, LdlqOptions, RefineOptions,
    relative_proxy,
};

use crate::support::{ExhaustiveGrid, FastGrid, Lcg, damping, two_bit_step};

fn of_tokens(x: &[f32], n: usize) -> Hessian {
    let mut moments = HessianAccumulator::new(n).unwrap();
    moments.add(x).unwrap();
    moments.finish().unwrap()
}

/// Rounds and holds what must hold for any second moments: an end, finite values of the grid, nothing worse than plain rounding.
fn round(h: &Hessian, rows: usize, metric: bool, seed: u64) -> (Vec<f32>, Vec<f32>, FeedbackReport) {
    let n = h.n();
    let w = Lcg(seed).matrix(rows * n);
    let block = n.min(4);
    let feedback = Feedback::new(h, damping(), block).unwrap();
    assert!(feedback.damped().as_slice().iter().all(|v| v.is_finite()));
    let mut out = vec![f32::NAN; w.len()];
    let mut grid = ExhaustiveGrid::new(2, block as u32, two_bit_step(0.9));
    let sweep = LdlqOptions { metric, ..LdlqOptions::default() };
    let tuning = RefineOptions { metric, ..RefineOptions::new(3) };
    let report = feedback.round(&w, rows, sweep, tuning, &mut grid, &mut out).unwrap();
    assert!(out.iter().all(|v| v.is_finite()));
    assert!(report.kept <= report.plain, "{report:?}");
    assert!(report.kept.is_finite() && report.plain.is_finite());
    let kept = relative_proxy(&w, &out, rows, feedback.damped().as_slice());
    // Re-tuning adds up what each step gains.
    assert!((kept - report.kept).abs() <= 1e-9 * report.plain);
    (w, out, report)
}

#[test]
fn g01_too_few_tokens_end_in_damping() {
    let (h, n) = (of_tokens(&Lcg(1).matrix(4 * 64), 64), 64);
    for metric in [false, true] {
        let (_, _, report) = round(&h, 16, metric, 8);
        assert_eq!((report.damping.method, report.damping.raises), (DampingMethod::Damped, 0));
        assert!(report.damping.too_few_tokens && report.damping.tokens == 4 && report.damping.sigma == 0.01);
        // Sixty directions are free, so that feedback gains a lot.
        assert!(report.kept < 0.5 * report.plain, "{report:?}");
    }
    let enough = of_tokens(&Lcg(1).matrix(64 * 64), n);
    assert!(!round(&enough, 4, true, 8).2.damping.too_few_tokens);
}

#[test]
fn g01_repeated_inputs_and_samples_end_in_damping() {
    let n = 24;
    let mut x = Lcg(2).matrix(n * 100);
    x.chunks_exact_mut(n).for_each(|token| {
        token[5] = token[17];
        token[6] = token[17];
    });
    round(&of_tokens(&x, n), 8, true, 3);
    let sample = Lcg(4).matrix(n);
    let repeated: Vec<f32> = std::iter::repeat_n(sample, 200).flatten().collect();
    round(&of_tokens(&repeated, n), 8, true, 3);
}

#[test]
fn g01_nothing_to_go_by_is_plain_rounding() {
    for n in [1, 7, 64] {
        let h = Hessian::new(n, vec![0.0; n * n], 100).unwrap();
        let (w, out, report) = round(&h, 5, true, 3);
        assert_eq!((report.damping.method, report.is_plain), (DampingMethod::PlainRounding, true));
        assert_eq!(report.damping.dead_inputs, n as u64);
        let grid = FastGrid { step: two_bit_step(0.9), levels: 4 };
        let mut expected = vec![0.0; w.len()];
        gosset_unisvq::Round::round(&mut { grid }, 0, 5, &w, None, &mut expected);
        assert_eq!(out, expected);
    }
}

#[test]
fn g01_entries_of_any_size_end_in_damping() {
    let n = 25;
    // A diagonal from 1e-12 to 1e12, then with everything correlated, then at the ends of f64.
    let size = |i: usize| 10f64.powi(i as i32 - 12);
    let diagonal = |f: &dyn Fn(usize) -> f64| -> Vec<f64> {
        (0..n * n).map(|i| if i / n == i % n { f(i / n) } else { 0.0 }).collect()
    };
    let correlated = (0..n * n).map(|i| (size(i / n) * size(i % n)).sqrt() * if i / n == i % n { 1.0 } else { 0.999 });
    round(&Hessian::new(n, diagonal(&size), 1000).unwrap(), 8, true, 3);
    round(&Hessian::new(n, correlated.collect(), 1000).unwrap(), 8, true, 3);
    round(&Hessian::new(n, diagonal(&|_| f64::MAX), 1000).unwrap(), 8, true, 3);
    round(&Hessian::new(n, diagonal(&|_| f64::MIN_POSITIVE), 1000).unwrap(), 8, true, 3);
    // Smaller still: nothing that could be divided by.
    let report = round(&Hessian::new(n, diagonal(&|_| 5e-324), 1000).unwrap(), 8, true, 3).2;
    assert!(report.is_plain && report.damping.method == DampingMethod::PlainRounding);
}

#[test]
fn g01_one_input() {
    for h in [1e-300, 1e-12, 1.0, 1e12, 1e300] {
        let report = round(&Hessian::new(1, vec![h], 3).unwrap(), 6, true, 3).2;
        assert_eq!((report.damping.method, report.kept), (DampingMethod::Damped, report.plain));
    }
}

#[test]
fn g01_damping_is_raised_in_recorded_steps_up_to_a_cap() {
    // No second moments have such off-diagonals; the smallest eigenvalue is 1 - v.
    for (v, raises, method) in [
        (1.005, 0, DampingMethod::Damped),
        (1.05, 1, DampingMethod::Damped),
        (1.5, 2, DampingMethod::Damped),
        (5.0, 3, DampingMethod::Damped),
        (12.0, 3, DampingMethod::PlainRounding),
        (-12.0, 3, DampingMethod::PlainRounding),
    ] {
        let h = Hessian::new(2, vec![1.0, v, v, 1.0], 9).unwrap();
        let (damped, ldl) = damping().factor(&h, 1).unwrap();
        let report = damped.report();
        assert_eq!((report.raises, report.method), (raises, method), "{v}");
        assert!((report.sigma / (0.01 * 10f64.powi(raises as i32)) - 1.0).abs() < 1e-12);
        // What follows uses the matrix that was factored.
        for (a, b) in ldl.product().iter().zip(damped.as_slice()) {
            assert!((a - b).abs() < 1e-12, "{v}");
        }
        round(&h, 3, true, 3);
    }
    let negative = Hessian::new(2, vec![-1.0, 0.0, 0.0, -1.0], 9).unwrap();
    assert_eq!(damping().factor(&negative, 1).unwrap().0.report().method, DampingMethod::PlainRounding);
    for wrong in [
        DampingSpec { sigma: 0.0, ..damping() },
        DampingSpec { sigma: f64::NAN, ..damping() },
        DampingSpec { factor: 1.0, ..damping() },
        DampingSpec { factor: f64::INFINITY, ..damping() },
    ] {
        assert!(wrong.factor(&negative, 1).is_err());
    }
    assert!(damping().factor(&negative, 0).is_err());
    // A cap beyond all numbers ends too.
    let spec = DampingSpec { max_raises: u32::MAX, ..damping() };
    let report = spec.factor(&Hessian::new(2, vec![1.0, 1e308, 1e308, 1.0], 9).unwrap(), 1).unwrap().0.report();
    assert_eq!((report.method, report.raises), (DampingMethod::PlainRounding, 308));
    assert!(report.sigma.is_finite());
}

#[test]
fn g03_inputs_that_were_never_seen_keep_ordinary_accuracy() {
    let (n, rows) = (64, 64);
    let unseen = |j: usize| j % 6 == 3 && j < 60;
    let mut x = Lcg(12).matrix(n * 500);
    for token in x.chunks_exact_mut(n) {
        let shared = token[0];
        token.iter_mut().enumerate().for_each(|(j, v)| *v = if unseen(j) { 0.0 } else { *v + shared });
    }
    let h = of_tokens(&x, n);
    for metric in [false, true] {
        let (w, out, report) = round(&h, rows, metric, 8);
        assert_eq!(report.damping.dead_inputs, 10);
        assert!(!report.is_plain);
        let mse = |select: &dyn Fn(usize) -> bool| -> f64 {
            let errors = w
                .iter()
                .zip(&out)
                .enumerate()
                .filter(|(i, _)| select(i % n))
                .map(|(_, (a, b))| f64::from(a - b).powi(2));
            errors.clone().sum::<f64>() / errors.count() as f64
        };
        // Plain rounding of a Gaussian at two bits: 0.119.
        let (dead, live) = (mse(&unseen), mse(&|j| !unseen(j)));
        assert!((0.08..0.15).contains(&dead), "unseen {dead}, seen {live}");
        // Codes are those of the values themselves, not all the same.
        let zeros = out.iter().enumerate().filter(|(i, v)| unseen(i % n) && **v == 0.0).count();
        assert_eq!(zeros, 0);
    }
}

#[test]
fn g03_inputs_that_were_never_seen_keep_ordinary_accuracy_in_another_frame() {
    let (n, rows) = (64, 64);
    let unseen = |j: usize| j % 6 == 3 && j < 60;
    let mut x = Lcg(12).matrix(n * 500);
    for token in x.chunks_exact_mut(n) {
        let shared = token[0];
        token.iter_mut().enumerate().for_each(|(j, v)| *v = if unseen(j) { 0.0 } else { *v + shared });
    }
    let frame = gosset_unisvq::Frame::full(n, 5).unwrap();
    let h = of_tokens(&x, n).transformed(|x| frame.enter_f64(x)).unwrap();
    for metric in [false, true] {
        let (w, out, report) = round(&h, rows, metric, 8);
        assert_eq!(report.damping.dead_inputs, 10);
        assert!(!report.is_plain);
        // Back in the frame of the inputs.
        let mut errors: Vec<f32> = w.iter().zip(&out).map(|(a, b)| a - b).collect();
        let signs = frame.signs();
        for row in errors.chunks_exact_mut(n) {
            frame.unrotate(row);
            row.iter_mut().zip(&signs).for_each(|(v, s)| *v *= s);
        }
        let dead = errors.iter().enumerate().filter(|(i, _)| unseen(i % n)).map(|(_, e)| f64::from(*e).powi(2));
        let dead = dead.clone().sum::<f64>() / dead.count() as f64;
        // Plain rounding of a Gaussian at two bits: 0.119. Without care for such inputs: 0.5.
        assert!(dead < 0.2, "{dead}");
    }
}
