//! Matrices of grid codes: encoding, folding, original basis, hostile headers.

use gosset_unisvq::{
    AffineMap, DampingSpec, FrameHeader, GridInit, Hessian, Incoherence, UniSvqError, UniSvqHeader, UniSvqMatrix,
    UniSvqSpec, relative_proxy,
};
use half::f16;
use proptest::prelude::*;

use crate::grid::reference_problem;
use crate::support::{Lcg, power_law};

const NAMES: [&str; 10] = [
    "unisvq",
    "unisvq-d1",
    "unisvq-d2",
    "unisvq-d8",
    "unisvq-random",
    "unisvq-d8-random",
    "unisvq-d4gen",
    "unisvq-norht",
    "unisvq-full",
    "unisvq-d2-random-full",
];

/// Shapes with full tiles, products of Hadamard matrices, ends of groups, of bytes and of tiles.
const SHAPES: [(usize, usize); 6] = [(64, 128), (48, 96), (36, 144), (20, 43), (13, 172), (1, 1)];

fn encode(name: &str, bits: f64, w: &[f32], rows: usize, cols: usize, h: Option<&Hessian>) -> UniSvqMatrix {
    UniSvqSpec::named(name, bits).unwrap().check().unwrap().encode(w, rows, cols, h).unwrap().0
}

fn dense(m: &UniSvqMatrix) -> Vec<f32> {
    let decoder = m.decoder().unwrap();
    let mut out = vec![0f32; decoder.rows() * decoder.cols()];
    decoder.decode_rows(0..decoder.rows(), &mut out);
    out
}

/// The product with `x` through the folded map.
fn folded(m: &UniSvqMatrix, x: &[f32]) -> Vec<f32> {
    let decoder = m.decoder().unwrap();
    let (mut t, mut folded) = (x.to_vec(), vec![0f32; x.len()]);
    decoder.rotate_input(&mut t);
    let beta = decoder.fold(&t, &mut folded);
    let mut codes = vec![0f32; decoder.rows() * decoder.cols()];
    decoder.codes_as_f32(0..decoder.rows(), &mut codes);
    let dot = |row: &[f32]| row.iter().zip(&folded).map(|(q, t)| f64::from(*q) * f64::from(*t)).sum::<f64>();
    let mut z: Vec<f32> = codes.chunks_exact(x.len()).map(|row| (dot(row) + f64::from(beta)) as f32).collect();
    decoder.finish_output(&mut z);
    z
}

fn assert_folds(m: &UniSvqMatrix, what: &str) {
    let (rows, cols) = (m.header.rows as usize, m.header.cols as usize);
    let w = dense(m);
    let x = Lcg(9).matrix(cols);
    let exact: Vec<f64> =
        w.chunks_exact(cols).map(|row| row.iter().zip(&x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()).collect();
    let norm = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    // Every operation rounds to 2^-24; some tens of them follow each other.
    let bound = 1e-5 * norm(&w) * norm(&x) / (rows as f64).sqrt();
    for (row, (a, b)) in folded(m, &x).iter().zip(&exact).enumerate() {
        assert!((f64::from(*a) - b).abs() <= bound, "{what}, row {row}: {a}, dense {b}, bound {bound}");
    }
}

#[test]
fn the_folded_product_is_that_of_the_dense_matrix() {
    let mut rng = Lcg(1);
    for (rows, cols) in SHAPES {
        let w = rng.matrix(rows * cols);
        for name in NAMES {
            for bits in [2.0, 3.0, 4.0] {
                let what = format!("{name}@{bits}, {rows} x {cols}");
                let mut m = encode(name, bits, &w, rows, cols, None);
                assert_folds(&m, &what);
                // After fine-tuning: any map, any scales.
                let d = usize::from(m.header.dim);
                let noise = |n: usize, rng: &mut Lcg| (0..n).map(|_| rng.gaussian() as f32 * 0.05).collect::<Vec<_>>();
                let mut map = m.header.affine_map();
                map.a.iter_mut().zip(noise(d * d, &mut rng)).for_each(|(a, e)| *a += e);
                map.b.iter_mut().zip(noise(d, &mut rng)).for_each(|(b, e)| *b += e);
                let decoder = m.decoder().unwrap();
                let tuned = |scales: &[f32], rng: &mut Lcg| -> Vec<f16> {
                    scales.iter().map(|s| f16::from_f32(s * (1.0 + rng.gaussian() as f32 * 0.1))).collect()
                };
                let (su, sv) = (tuned(decoder.input_scales(), &mut rng), tuned(decoder.output_scales(), &mut rng));
                (m.header.affine, m.input_scales, m.output_scales) = (Some(map), Some(su), Some(sv));
                assert_folds(&m, &format!("{what}, tuned"));
            }
        }
    }
}

#[test]
fn rows_decode_in_any_range() {
    let mut rng = Lcg(2);
    for (rows, cols) in [(172, 24), (64, 40), (48, 8)] {
        let w = rng.matrix(rows * cols);
        for name in ["unisvq", "unisvq-norht", "unisvq-full", "unisvq-random"] {
            let m = encode(name, 2.0, &w, rows, cols, None);
            let (whole, decoder) = (dense(&m), m.decoder().unwrap());
            for range in [0..1, 0..rows, 5..6, 31..33, 17..rows, rows - 1..rows, 7..7, rows..rows] {
                let mut part = vec![f32::NAN; range.len() * cols];
                decoder.decode_rows(range.clone(), &mut part);
                assert_eq!(part, whole[range.start * cols..range.end * cols], "{name}, {range:?}");
            }
        }
    }
}

/// The proxy of a matrix in its original basis under the damped second moments: their damping and their trace are the same in all frames.
fn original_proxy(w: &[f32], m: &UniSvqMatrix, h: &Hessian) -> f64 {
    let (damped, _) = DampingSpec::default().factor(h, 1).unwrap();
    relative_proxy(w, &dense(m), m.header.rows as usize, damped.as_slice())
}

#[test]
fn the_proxy_is_the_same_in_every_frame_and_never_above_plain_rounding() {
    let mut rng = Lcg(3);
    for (rows, cols) in [(64, 128), (36, 144), (20, 43)] {
        for p in [0.7, 1.8] {
            let (w, h) = (rng.matrix(rows * cols), power_law(cols, p, &mut rng));
            for name in NAMES {
                let encoder = UniSvqSpec::named(name, 2.0).unwrap().check().unwrap();
                let (m, report) = encoder.encode(&w, rows, cols, Some(&h)).unwrap();
                let found = original_proxy(&w, &m, &h);
                let what = format!("{name}, {rows} x {cols}, p {p}: {report:?}");
                assert!((found / report.proxy - 1.0).abs() < 1e-3, "{what}, original basis {found}");
                assert!(report.proxy <= report.plain && !report.is_plain, "{what}");
                // Feedback is worth half the proxy where second moments are far from the identity.
                assert!(p < 1.0 || report.proxy < 0.5 * report.plain, "{what}");
            }
        }
    }
}

#[test]
fn identity_moments_give_plain_rounding_exactly() {
    let mut rng = Lcg(4);
    let (rows, cols) = (48, 96);
    let w = rng.matrix(rows * cols);
    for name in NAMES {
        let mut spec = UniSvqSpec::named(name, 2.0).unwrap();
        spec.scales = vec![0.9];
        let encoder = spec.check().unwrap();
        let (with, _) = encoder.encode(&w, rows, cols, Some(&Hessian::identity(cols).unwrap())).unwrap();
        let (without, _) = encoder.encode(&w, rows, cols, None).unwrap();
        // Where the frame of the input is not the identity, its second moments are that up to 1e-16: not enough to move a code.
        assert_eq!(with.codes, without.codes, "{name}");
    }
}

#[test]
fn the_expected_proxy_is_the_distortion_times_the_trace_of_d() {
    let mut rng = Lcg(6);
    let (rows, cols) = (256, 128);
    let (w, h) = (rng.matrix(rows * cols), power_law(cols, 0.7, &mut rng));
    let mut spec = UniSvqSpec::named("unisvq-norht", 2.0).unwrap();
    (spec.scales, spec.passes) = (vec![0.9], 0);
    let (_, report) = spec.check().unwrap().encode(&w, rows, cols, Some(&h)).unwrap();
    let (damped, ldl) = DampingSpec::default().factor(&h, 4).unwrap();
    let trace: f64 = damped.as_slice().iter().step_by(cols + 1).sum();
    let expected = 0.1188 * ldl.trace_d() / trace;
    // Feedback inflates the variance of what is rounded, the metric lowers the error: a few percent either way.
    assert!((report.proxy / expected - 1.0).abs() < 0.1, "{report:?}, expected {expected}");
}

#[test]
fn matrices_of_one_input_share_its_frame() {
    let mut rng = Lcg(7);
    let (q, k) = (rng.matrix(64 * 128), rng.matrix(32 * 128));
    let (q, k) = (encode("unisvq", 2.0, &q, 64, 128, None), encode("unisvq", 2.0, &k, 32, 128, None));
    assert_eq!(q.header.input, k.header.input);
    assert!(q.decoder().unwrap().input_is_shared());
    // Different signs on both sides, so that a square matrix such as the identity is not left as it is.
    let FrameHeader::Rht { seed: input, .. } = q.header.input else { panic!("no tiles") };
    let FrameHeader::Rht { seed: output, .. } = q.header.output else { panic!("no tiles") };
    assert_ne!(input, output);
}

#[test]
fn outliers_need_a_frame() {
    let mut w = Lcg(8).matrix(128 * 128);
    w.iter_mut().step_by(131).for_each(|v| *v *= 40.0);
    let error = |name| {
        let m = encode(name, 2.0, &w, 128, 128, None);
        let sum = |v: &mut dyn Iterator<Item = f32>| v.map(|v| f64::from(v).powi(2)).sum::<f64>();
        sum(&mut w.iter().zip(dense(&m)).map(|(a, b)| a - b)) / sum(&mut w.iter().copied())
    };
    let (tiles, full, none) = (error("unisvq"), error("unisvq-full"), error("unisvq-norht"));
    assert!(tiles < 0.125 && full < 0.125 && none > 2.0 * tiles, "{tiles}, {full}, {none}");
}

#[test]
fn zeros_and_bad_numbers_end_well() {
    let encoder = UniSvqSpec::named("unisvq-random", 2.0).unwrap().check().unwrap();
    let (m, report) = encoder.encode(&[0.0; 96], 4, 24, None).unwrap();
    assert!(dense(&m).iter().all(|v| *v == 0.0) && report.proxy == 0.0);
    let (m, _) = encoder.encode(&[f32::from_bits(1); 96], 4, 24, None).unwrap();
    assert!(dense(&m).iter().all(|v| v.abs() < 1e-40));
    let (m, _) = encoder.encode(&[1e30; 96], 4, 24, None).unwrap();
    assert!(dense(&m).iter().all(|v| v.is_finite()));
    let mut w = vec![1.0; 96];
    for bad in [f32::NAN, f32::INFINITY] {
        w[29] = bad;
        let error = encoder.encode(&w, 4, 24, None).unwrap_err();
        assert!(matches!(error, UniSvqError::NonFinite { row: 1, col: 5, .. }), "{error}");
    }
    let error = encoder.encode(&[f32::MAX; 96], 4, 24, None).unwrap_err();
    assert!(matches!(error, UniSvqError::NonFinite { what: "rotated weights", .. }), "{error}");
    let (w, h) = reference_problem();
    for (rows, cols) in [(0, 16), (4, 15), (5, 16), (64, 1), (usize::MAX, 2)] {
        let error = encoder.encode(&w, rows, cols, Some(&h)).unwrap_err();
        assert!(matches!(error, UniSvqError::Shape { .. }), "{rows} x {cols}: {error}");
    }
    // Constant rows become one coordinate per tile: everything else of them is zero, and the error is still small.
    let ones = vec![1.0; 128 * 128];
    assert!(encoder.encode(&ones, 128, 128, None).unwrap().1.proxy < 0.9);
}

#[test]
fn g01_degenerate_second_moments_end_in_a_recorded_damping() {
    let mut rng = Lcg(10);
    let (rows, cols) = (16, 64);
    let w = rng.matrix(rows * cols);
    let few = {
        let x = rng.matrix(4 * cols);
        let mut acc = gosset_unisvq::HessianAccumulator::new(cols).unwrap();
        acc.add(&x).unwrap();
        acc.finish().unwrap()
    };
    let twins: Vec<f64> = (0..cols * cols).map(|i| f64::from(u8::from(i / cols / 2 == i % cols / 2))).collect();
    let spread: Vec<f64> = (0..cols * cols)
        .map(|i| if i % (cols + 1) == 0 { 10f64.powi(-12 + (i / cols) as i32 * 24 / 63) } else { 0.0 })
        .collect();
    let cases = [
        few,
        Hessian::new(cols, vec![0.0; cols * cols], 100).unwrap(),
        Hessian::new(cols, twins, 100).unwrap(),
        Hessian::new(cols, spread, 100).unwrap(),
    ];
    for (i, h) in cases.iter().enumerate() {
        for name in NAMES {
            let encoder = UniSvqSpec::named(name, 2.0).unwrap().check().unwrap();
            let (m, report) = encoder.encode(&w, rows, cols, Some(h)).unwrap();
            assert!(report.damping.is_some() && report.proxy <= report.plain, "case {i}, {name}: {report:?}");
            assert!(dense(&m).iter().all(|v| v.is_finite()));
        }
    }
    let one = Hessian::new(1, vec![4.0], 1).unwrap();
    let (m, _) = UniSvqSpec::named("unisvq", 2.0).unwrap().check().unwrap().encode(&[3.0], 1, 1, Some(&one)).unwrap();
    assert!((dense(&m)[0] - 3.0).abs() < 1e-3);
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let mut rng = Lcg(11);
    let (rows, cols) = (192, 160);
    let (w, h) = (rng.matrix(rows * cols), power_law(cols, 1.2, &mut rng));
    for name in ["unisvq", "unisvq-d8-random-full"] {
        let encoder = UniSvqSpec::named(name, 2.0).unwrap().check().unwrap();
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| encoder.encode(&w, rows, cols, Some(&h)).unwrap())
        };
        let one = on(1);
        for threads in [2, 7] {
            assert!(on(threads) == one, "{name} on {threads}");
        }
    }
}

#[test]
fn hostile_headers_are_typed_errors_without_allocations() {
    let (w, _) = reference_problem();
    let good = encode("unisvq-random", 2.0, &w, 4, 16, None);
    let broken = |change: &dyn Fn(&mut UniSvqMatrix)| {
        let mut m = good.clone();
        change(&mut m);
        m.decoder().err()
    };
    let header = |change: &'static dyn Fn(&mut UniSvqHeader)| broken(&|m| change(&mut m.header));
    use UniSvqError::{Frame, NonFinite, Parameter, Shape};
    assert!(broken(&|_| ()).is_none());
    for (found, name) in [
        (header(&|h| h.bits = 1), "bits"),
        (header(&|h| h.bits = 255), "bits"),
        (header(&|h| h.dim = 3), "dim"),
        (header(&|h| h.dim = 0), "dim"),
        (header(&|h| h.rows = 0), "rows"),
        (header(&|h| h.rows = u64::MAX), "rows"),
        (header(&|h| h.cols = 0), "cols"),
        (header(&|h| h.cols = u64::MAX), "cols"),
        (header(&|h| h.scale = f32::NAN), "scale"),
        (header(&|h| h.scale = f32::INFINITY), "scale"),
    ] {
        assert!(matches!(&found, Some(Parameter { name: n, .. }) if *n == name), "{name}: {found:?}");
    }
    for found in [
        header(&|h| h.rows = u64::from(u32::MAX)),
        header(&|h| h.cols = 1 << 28),
        header(&|h| h.bits = 3),
        header(&|h| h.affine = Some(AffineMap { a: vec![], b: vec![] })),
        header(&|h| h.affine = Some(AffineMap { a: vec![0.0; 16], b: vec![0.0; 5] })),
        broken(&|m| m.codes.truncate(m.codes.len() - 1)),
        broken(&|m| m.codes.push(0)),
        broken(&|m| m.input_scales = Some(vec![f16::ONE; 15])),
        broken(&|m| m.output_scales = Some(vec![])),
    ] {
        assert!(matches!(found, Some(Shape { .. })), "{found:?}");
    }
    for found in [
        header(&|h| h.affine = Some(AffineMap { a: vec![f32::NAN; 16], b: vec![0.0; 4] })),
        header(&|h| h.affine = Some(AffineMap { a: vec![0.0; 16], b: vec![f32::INFINITY; 4] })),
        broken(&|m| m.input_scales = Some(vec![f16::NAN; 16])),
        broken(&|m| m.output_scales = Some(vec![f16::INFINITY; 4])),
    ] {
        assert!(matches!(found, Some(NonFinite { .. })), "{found:?}");
    }
    for found in [
        header(&|h| h.input = FrameHeader::Rht { seed: 0, runs: vec![] }),
        header(&|h| h.input = FrameHeader::Rht { seed: 0, runs: vec![[8, u32::MAX]] }),
        header(&|h| h.input = FrameHeader::Hadamard { seed: 0, orders: vec![8] }),
        header(&|h| h.output = FrameHeader::Hadamard { seed: 0, orders: vec![1; 1000] }),
        header(&|h| h.output = FrameHeader::Hadamard { seed: 0, orders: vec![u32::MAX] }),
    ] {
        assert!(matches!(found, Some(Frame(_))), "{found:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_spec_encodes_any_shape(
        name in proptest::sample::select(&NAMES[..]),
        bits in 2u8..=4,
        rows in 1usize..40,
        cols in 1usize..150,
        seed in any::<u64>(),
    ) {
        let mut spec = UniSvqSpec::named(name, f64::from(bits)).unwrap();
        (spec.seed, spec.passes) = (seed, 1);
        let mut rng = Lcg(seed % 1_000_003);
        let w = rng.matrix(rows * cols);
        let x = rng.matrix(2 * cols);
        let mut acc = gosset_unisvq::HessianAccumulator::new(cols).unwrap();
        acc.add(&x).unwrap();
        let h = acc.finish().unwrap();
        let (m, report) = spec.check().unwrap().encode(&w, rows, cols, Some(&h)).unwrap();
        prop_assert!(report.proxy.is_finite() && report.proxy <= report.plain);
        prop_assert_eq!(m.codes.len(), rows * gosset_unisvq::row_bytes(cols, bits));
        prop_assert!((original_proxy(&w, &m, &h) - report.proxy).abs() < 1e-3 * report.proxy.max(1e-3));
        // A header survives its text.
        let text = serde_json::to_string(&m.header).unwrap();
        prop_assert_eq!(serde_json::from_str::<UniSvqHeader>(&text).unwrap(), m.header);
    }
}

#[test]
fn specs_are_checked() {
    let good = UniSvqSpec::named("unisvq", 2.0).unwrap();
    let broken = |change: &dyn Fn(&mut UniSvqSpec)| {
        let mut spec = good.clone();
        change(&mut spec);
        spec.check().err()
    };
    assert!(broken(&|_| ()).is_none());
    assert!(broken(&|s| s.incoherence = Incoherence::Tiles { tile: 96 }).is_some());
    assert!(broken(&|s| s.scales.clear()).is_some());
    assert!(broken(&|s| s.scales = vec![0.0]).is_some());
    assert!(broken(&|s| s.scales = vec![f64::NAN]).is_some());
    assert!(broken(&|s| s.passes = 101).is_some());
    assert!(broken(&|s| (s.init, s.dim) = (GridInit::D4, 8)).is_some());
}
