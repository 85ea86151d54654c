//! Laws of the transform that hold for every width, tile, seed and instruction set.

use gosset_transform::{
    Backend, DEFAULT_TILE, Domain, RandomStream, Rht, Signs, TilePlan, TileRun, TransformError, fwht, fwht_scalar,
};
use proptest::prelude::*;

/// f32 rounding: each of at most 16 stages and the scale err by at most 2^-24 relative to the norm of their tile, twice
/// for a round trip: 34 * 2^-24 = 2e-6. The bound asked for is looser.
const TOLERANCE: f64 = 1e-5;

/// Widths of real models whose odd factor is large, and a prime.
const WIDTHS: [usize; 10] = [576, 896, 2560, 4864, 10920, 11008, 13696, 18944, 29568, 173];

/// Values in [-1, 1), seeded.
fn row(width: usize, seed: u64) -> Vec<f32> {
    let mut stream = RandomStream::new(seed, Domain::Rotation, 0);
    (0..width).map(|_| (stream.next_u32() as i32) as f32 / 2f32.powi(31)).collect()
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

fn distance(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>().sqrt()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn case_a03_every_width_has_an_orthonormal_plan() {
    for width in WIDTHS {
        for asked in [DEFAULT_TILE, 1, 8, 64, 1024, 65536] {
            let rht = Rht::new(TilePlan::new(width, asked).unwrap(), 11);
            let x = row(width, width as u64);
            let mut y = x.clone();
            rht.forward(&mut y);
            let here = format!("width {width}, asked {asked}, plan {}", rht.plan());
            assert!((norm(&y) / norm(&x) - 1.0).abs() < TOLERANCE, "norm: {here}");
            rht.inverse(&mut y);
            assert!(distance(&x, &y) < TOLERANCE * norm(&x), "round trip: {here}");
        }
    }
}

#[test]
fn plans_of_real_widths_are_golden() {
    for (width, plan) in [
        (32, "1 x 32"),
        (172, "1 x 128 + 1 x 32 + 1 x 8 + 1 x 4"),
        (173, "1 x 128 + 1 x 32 + 1 x 8 + 1 x 4 + 1 x 1"),
        (576, "9 x 64"),
        (896, "7 x 128"),
        (1536, "12 x 128"),
        (2560, "20 x 128"),
        (4864, "38 x 128"),
        (10920, "85 x 128 + 1 x 32 + 1 x 8"),
        (11008, "86 x 128"),
        (13696, "107 x 128"),
        (18944, "148 x 128"),
        (29568, "231 x 128"),
        (1, "1 x 1"),
    ] {
        assert_eq!(TilePlan::new(width, DEFAULT_TILE).unwrap().to_string(), plan, "width {width}");
    }
}

#[test]
fn the_transform_is_the_dense_product() {
    let (width, seed) = (172, 3);
    let plan = TilePlan::new(width, DEFAULT_TILE).unwrap();
    let signs = Signs::new(seed, width);
    let x = row(width, 1);
    let mut expected = vec![0.0_f64; width];
    let mut start = 0;
    for run in plan.runs() {
        for _ in 0..run.count {
            let h = run.tile as usize;
            for i in 0..h {
                for j in 0..h {
                    let negative = ((i & j).count_ones() % 2 == 1) ^ signs.is_negative(start + j);
                    let entry = if negative { -1.0 } else { 1.0 } / (h as f64).sqrt();
                    expected[start + i] += entry * f64::from(x[start + j]);
                }
            }
            start += h;
        }
    }
    let mut y = x.clone();
    Rht::new(plan, seed).forward(&mut y);
    let error: f64 = y.iter().zip(&expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>().sqrt();
    assert!(error < TOLERANCE * norm(&x), "{error}");
}

#[test]
fn products_survive_the_transform() {
    let rht = Rht::new(TilePlan::new(896, DEFAULT_TILE).unwrap(), 8);
    let (mut x, mut w) = (row(896, 1), row(896, 2));
    let scale = norm(&x) * norm(&w);
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let before = dot(&x, &w);
    rht.forward(&mut x);
    rht.forward(&mut w);
    assert!((dot(&x, &w) - before).abs() < TOLERANCE * scale);
}

#[test]
fn a_spike_spreads_over_its_tile() {
    let rht = Rht::new(TilePlan::new(1024, DEFAULT_TILE).unwrap(), 0);
    let mut x = vec![0.0; 1024];
    x[300] = 1.0;
    rht.forward(&mut x);
    let scale = TileRun { tile: 128, count: 1 }.scale();
    for (j, v) in x.iter().enumerate() {
        assert_eq!(v.abs(), if (256..384).contains(&j) { scale } else { 0.0 }, "column {j}");
    }
}

#[test]
fn special_values_take_the_same_path_everywhere() {
    for value in [f32::INFINITY, f32::MAX, f32::MIN_POSITIVE / 8.0, -0.0] {
        let mut x = vec![0.0; 256];
        x[9] = value;
        let mut y = x.clone();
        fwht(&mut x);
        fwht_scalar(&mut y);
        assert_eq!(x.iter().map(|v| v.is_nan()).collect::<Vec<_>>(), y.iter().map(|v| v.is_nan()).collect::<Vec<_>>());
        assert!(x.iter().zip(&y).all(|(a, b)| a.is_nan() || a.to_bits() == b.to_bits()), "{value}");
    }
}

#[test]
#[should_panic(expected = "row length and width of the plan")]
fn a_row_of_another_width_is_refused() {
    Rht::new(TilePlan::new(128, 128).unwrap(), 0).forward(&mut [0.0; 127]);
}

#[test]
#[should_panic(expected = "200 values are no whole number of rows of 128")]
fn a_part_of_a_row_is_refused() {
    Rht::new(TilePlan::new(128, 128).unwrap(), 0).inverse_rows(&mut [0.0; 200]);
}

#[test]
fn all_lengths_agree_with_the_scalar_path() {
    for log2 in 0..=16 {
        let mut x = row(1 << log2, 77 + log2);
        let mut y = x.clone();
        fwht(&mut x);
        fwht_scalar(&mut y);
        assert_eq!(bits(&x), bits(&y), "length {}, backend {}", 1 << log2, Backend::detect().name());
    }
}

fn asked_tile() -> impl Strategy<Value = u32> {
    (0..=16_u32).prop_map(|k| 1 << k)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn backends_and_groupings_agree_bit_for_bit(
        width in 1..3000_usize, asked in asked_tile(), seed: u64, n_rows in 1..4_usize,
    ) {
        let plan = TilePlan::new(width, asked).unwrap();
        let (detected, scalar) =
            (Rht::new(plan.clone(), seed), Rht::with_backend(plan, seed, Backend::scalar()));
        let x = row(width * n_rows, seed ^ 1);
        let (mut together, mut apart) = (x.clone(), x);
        detected.forward_rows(&mut together);
        apart.chunks_exact_mut(width).rev().for_each(|row| scalar.forward(row));
        prop_assert_eq!(bits(&together), bits(&apart));
        detected.inverse_rows(&mut together);
        apart.chunks_exact_mut(width).rev().for_each(|row| scalar.inverse(row));
        prop_assert_eq!(bits(&together), bits(&apart));
    }

    #[test]
    fn forward_is_signs_then_butterflies_then_scale(width in 1..3000_usize, asked in asked_tile(), seed: u64) {
        let rht = Rht::new(TilePlan::new(width, asked).unwrap(), seed);
        let mut fused = row(width, seed);
        let mut steps = fused.clone();
        rht.forward(&mut fused);
        Signs::new(seed, width).apply(&mut steps);
        let mut rest = &mut steps[..];
        for run in rht.plan().runs() {
            let (part, tail) = rest.split_at_mut(run.columns() as usize);
            for tile in part.chunks_exact_mut(run.tile as usize) {
                fwht_scalar(tile);
                tile.iter_mut().for_each(|x| *x *= run.scale());
            }
            rest = tail;
        }
        prop_assert_eq!(bits(&fused), bits(&steps));
    }

    #[test]
    fn plans_cover_the_row_exactly(width in 1..200_000_usize, asked in asked_tile()) {
        let plan = TilePlan::new(width, asked).unwrap();
        let runs = plan.runs();
        prop_assert_eq!(runs.iter().map(|run| run.columns()).sum::<u64>(), width as u64);
        prop_assert!(runs.iter().all(|run| run.tile.is_power_of_two() && run.tile <= asked && run.count >= 1));
        prop_assert!(runs.windows(2).all(|pair| pair[0].tile > pair[1].tile));
        let divisor = asked.min(1 << width.trailing_zeros());
        if divisor >= 32 {
            prop_assert_eq!(runs, &[TileRun { tile: divisor, count: width as u32 / divisor }]);
        } else {
            prop_assert!(runs.iter().all(|run| run.tile == asked || run.count == 1));
        }
        prop_assert_eq!((plan.width(), plan.asked_tile()), (width, asked));
        prop_assert_eq!(TilePlan::from_runs(width, runs), Ok(plan.clone()));
    }

    #[test]
    fn untrusted_plans_never_panic(
        width: usize, runs in prop::collection::vec((any::<u32>(), any::<u32>()), 0..20),
    ) {
        let runs: Vec<_> = runs.iter().map(|&(tile, count)| TileRun { tile, count }).collect();
        let _ = TilePlan::from_runs(width, &runs);
    }

    #[test]
    fn a_changed_plan_is_caught(width in 1..5000_usize, asked in asked_tile(), which: prop::sample::Index, delta in 1..9_u32) {
        let mut runs = TilePlan::new(width, asked).unwrap().runs().to_vec();
        let run = which.index(runs.len());
        runs[run].count += delta;
        let caught = matches!(TilePlan::from_runs(width, &runs), Err(TransformError::RunSum { .. }));
        prop_assert!(caught);
    }

    #[test]
    fn signs_do_not_depend_on_the_width(seed: u64, a in 1..5000_usize, b in 1..5000_usize) {
        let (short, long) = (a.min(b), a.max(b));
        let (short, long) = (Signs::new(seed, short), Signs::new(seed, long));
        prop_assert!(long.words().starts_with(short.words()));
    }

    #[test]
    fn the_transform_inverts_itself_on_random_widths(width in 1..3000_usize, asked in asked_tile(), seed: u64) {
        let rht = Rht::new(TilePlan::new(width, asked).unwrap(), seed);
        let x = row(width, seed);
        let mut y = x.clone();
        rht.forward(&mut y);
        prop_assert!((norm(&y) - norm(&x)).abs() <= TOLERANCE * norm(&x));
        rht.inverse(&mut y);
        prop_assert!(distance(&x, &y) <= TOLERANCE * norm(&x));
    }
}
