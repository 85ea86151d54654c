//! Laws of the search, against exhaustive enumeration and between backends.

use proptest::prelude::*;

use super::arch::Backend;
use super::viterbi::encode_with;
use super::{LANES, MAX_VALUE, Quantizer, Scratch, TrellisCode, encode, encode_from, point};

/// A quantizer with a rate term, for points up to 2 * reach, made of simple exact numbers.
fn sample_quantizer(shift: u32, reach: i32) -> Quantizer {
    let table = |f: &dyn Fn(i32) -> f32| (-reach..reach).map(f).collect::<Vec<f32>>();
    let even = table(&|i| -0.0625 * i.signum() as f32);
    let odd = table(&|i| if i < 0 { 0.125 } else { -0.125 });
    let even_costs = table(&|i| 0.25 + 0.5 * i.abs() as f32);
    let odd_costs = table(&|i| 0.375 + 0.5 * (2 * i + 1).abs() as f32);
    Quantizer::new(shift, [&even, &odd], [&even_costs, &odd_costs]).unwrap()
}

/// Cost of the best path of one lane, by trying all of them.
fn exhaustive(code: TrellisCode, quantizer: &Quantizer, values: &[f32]) -> f32 {
    let mut least = f32::INFINITY;
    for path in 0..1u32 << values.len() {
        let (mut state, mut cost) = (0, 0.0);
        for (at, &x) in values.iter().enumerate() {
            let z1 = (path >> at) & 1;
            cost += quantizer.best(x, code.union(state), z1).0;
            state = code.next(state, z1 as i32);
        }
        least = least.min(cost);
    }
    least
}

/// Cost of the path that the points of one lane take; `None` if the code does not have it.
fn path_cost(code: TrellisCode, quantizer: &Quantizer, values: &[f32], points: &[i32]) -> Option<f32> {
    let (mut state, mut cost) = (0, 0.0);
    for (&x, &y) in values.iter().zip(points) {
        let (union, index) = ((y & 1) as u32, y >> 1);
        if union != code.union(state) || point(union, index) != y {
            return None;
        }
        let (least, best) = quantizer.best(x, union, (index & 1) as u32);
        if best != index {
            return None;
        }
        cost += least;
        state = code.next(state, index);
    }
    Some(cost)
}

fn encoded(backend: Backend, code: TrellisCode, quantizer: &Quantizer, values: &[f32]) -> Vec<i32> {
    let mut points = vec![0; values.len()];
    // Dirty buffers, to show that they do not matter.
    let mut scratch = Scratch::default();
    encode(code, quantizer, &[1e6; 100], &mut [0; 100], &mut scratch).unwrap();
    encode_with(backend, code, quantizer, values, &mut points, &mut [0; LANES], &mut scratch).unwrap();
    points
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_search_is_as_good_as_trying_all_paths(
        values in prop::collection::vec(-9.0f32..9.0, 0..74),
        n_states in prop::sample::select(TrellisCode::STATES.to_vec()),
        shift in 0u32..2,
    ) {
        let code = TrellisCode::with_states(n_states).unwrap();
        let quantizer = sample_quantizer(shift, 3);
        let points = encoded(Backend::Scalar, code, &quantizer, &values);
        for lane in 0..LANES {
            let values: Vec<f32> = values.iter().copied().skip(lane).step_by(LANES).collect();
            let points: Vec<i32> = points.iter().copied().skip(lane).step_by(LANES).collect();
            let cost = path_cost(code, &quantizer, &values, &points);
            prop_assert_eq!(cost, Some(exhaustive(code, &quantizer, &values)));
        }
    }

    #[test]
    fn all_backends_find_the_same_points(
        values in prop::collection::vec(prop_oneof![8 => -9.0f32..9.0, 1 => -MAX_VALUE..MAX_VALUE, 1 => Just(0.0)], 0..500),
        n_states in prop::sample::select(TrellisCode::STATES.to_vec()),
        shift in 0u32..3,
    ) {
        let code = TrellisCode::with_states(n_states).unwrap();
        let quantizer = sample_quantizer(shift, 4);
        let points = encoded(Backend::Scalar, code, &quantizer, &values);
        prop_assert_eq!(points, encoded(Backend::detect(), code, &quantizer, &values));
    }

    #[test]
    fn pieces_that_start_where_the_last_ended_are_one_path(
        pieces in prop::collection::vec(prop::collection::vec(-9.0f32..9.0, 0..40), 1..5),
        n_states in prop::sample::select(TrellisCode::STATES.to_vec()),
    ) {
        let code = TrellisCode::with_states(n_states).unwrap();
        let quantizer = sample_quantizer(0, 3);
        let mut states = [0; LANES];
        let mut lanes = vec![(Vec::new(), Vec::new()); LANES];
        for values in &pieces {
            let mut points = vec![0; values.len()];
            encode_from(code, &quantizer, values, &mut points, &mut states, &mut Scratch::default()).unwrap();
            for (i, (x, y)) in values.iter().zip(&points).enumerate() {
                lanes[i % LANES].0.push(*x);
                lanes[i % LANES].1.push(*y);
            }
        }
        for ((values, points), end) in lanes.iter().zip(states) {
            prop_assert!(path_cost(code, &quantizer, values, points).is_some());
            prop_assert_eq!(points.iter().fold(0, |state, y| code.next(state, y >> 1)), end);
        }
    }

    #[test]
    fn no_value_is_farther_from_its_point_than_the_trellis_makes_necessary(
        values in prop::collection::vec(-MAX_VALUE..MAX_VALUE, 1..60),
    ) {
        // Within a subset points are 4 apart, so 2 is the farthest if nothing but distance counts, offsets being 0.
        let flat = [0.0; 2];
        let quantizer = Quantizer::new(0, [&flat, &flat], [&flat, &flat]).unwrap();
        for n_states in TrellisCode::STATES {
            let code = TrellisCode::with_states(n_states).unwrap();
            for (x, y) in values.iter().zip(encoded(Backend::detect(), code, &quantizer, &values)) {
                prop_assert!((x - y as f32).abs() <= 2.0, "{} {}", x, y);
            }
        }
    }
}

#[test]
fn values_that_are_no_numbers_or_too_large_are_refused() {
    let code = TrellisCode::with_states(8).unwrap();
    let quantizer = sample_quantizer(0, 3);
    for bad in [f32::NAN, f32::INFINITY, -f32::INFINITY, 2.0 * MAX_VALUE] {
        let values = [0.0, bad];
        let error = encode(code, &quantizer, &values, &mut [0; 2], &mut Scratch::default()).unwrap_err();
        assert!(error.to_string().starts_with("value in grid steps: expected -2^22 to 2^22"), "{error}");
    }
    let error = encode_from(code, &quantizer, &[0.0], &mut [0], &mut [8; LANES], &mut Scratch::default()).unwrap_err();
    assert_eq!(error.to_string(), "state: expected a state of the code, found 8");
    let error = encode(code, &quantizer, &[0.0; 3], &mut [0; 2], &mut Scratch::default()).unwrap_err();
    assert_eq!(error.to_string(), "points: expected 3 elements, found 2");
}

#[test]
fn bad_tables_are_refused() {
    let (zero, one) = ([0.0; 2], [0.0; 1]);
    assert!(Quantizer::new(0, [&zero, &one], [&zero, &zero]).is_err());
    assert!(Quantizer::new(0, [&one, &one], [&one, &one]).is_err());
    assert!(Quantizer::new(17, [&zero, &zero], [&zero, &zero]).is_err());
    assert!(Quantizer::new(0, [&zero, &[0.0, f32::NAN]], [&zero, &zero]).is_err());
    assert!(Quantizer::new(0, [&zero, &zero], [&zero, &[0.0, -1.0]]).is_err());
    assert!(Quantizer::new(0, [&[], &[]], [&[], &[]]).is_err());
}
