//! Attention equals that of three loops over the vectors that each query should see.

use gosset_kv::{AttendScratch, Budget, ExactType, KvError, Protected, Role};

use crate::dense::{GROUP, SHAPE, Setup, TOLERANCE, Tokens, WIDTH, dense, farthest, feed, policy};

fn splits(n: usize) -> Vec<Vec<usize>> {
    vec![vec![n], vec![1; n], vec![7, n - 7], vec![n / 2, 1, 1, n - n / 2 - 2]]
}

fn compare(setup: &Setup, n: usize) {
    let tokens = Tokens::new(n, 11);
    let expected = dense(setup, &tokens, 0, n);
    for split in splits(n) {
        let mut store = setup.store();
        let (mut at, mut found) = (0, Vec::new());
        for chunk in &split {
            found.extend(feed(&mut store, setup, &tokens, at, *chunk));
            at += chunk;
        }
        let error = farthest(&found, &expected);
        let Setup { policy, block, protect, band, rope, .. } = setup;
        assert!(
            error <= TOLERANCE,
            "{policy:?} block {block} protect {protect:?} band {band:?} rope {rope} split {split:?}: {error}"
        );
    }
}

#[test]
fn attention_is_that_of_three_loops_for_every_policy() {
    for (sinks, window, page) in [(0, 0, 8), (4, 8, 8), (0, 8, 5), (3, 0, 1), (2, 100, 4), (50, 3, 16), (5, 1, 3)] {
        for rope in [false, true] {
            compare(&Setup { rope, ..Setup::new(policy(sinks, window, page)) }, 45);
        }
    }
}

#[test]
fn attention_is_that_of_three_loops_for_every_exact_type_and_budget() {
    for exact in [ExactType::F32, ExactType::Bf16, ExactType::F16] {
        for budget in [Budget::Variable, Budget::Fixed] {
            // The last slots are too small for every page, the second ones for some.
            for promised_bps in [14.0, 9.0, 1.0] {
                let policy = gosset_kv::Policy { exact, budget, ..policy(2, 6, 8) };
                compare(&Setup { promised_bps, ..Setup::new(policy) }, 40);
            }
        }
    }
}

#[test]
fn attention_is_that_of_three_loops_with_protected_layers() {
    for role in [None, Some(Role::Key), Some(Role::Value)] {
        for layer in 0..SHAPE.layers {
            for (sinks, window) in [(0, 0), (3, 5)] {
                for rope in [false, true] {
                    let protect = vec![Protected { layer, role }];
                    compare(&Setup { protect, rope, ..Setup::new(policy(sinks, window, 8)) }, 40);
                }
            }
        }
    }
}

#[test]
fn attention_is_that_of_three_loops_with_blocks() {
    for (sinks, window) in [(0, 0), (3, 5), (0, 16), (1, 1)] {
        compare(&Setup { block: 4, ..Setup::new(policy(sinks, window, 8)) }, 45);
    }
}

#[test]
fn attention_is_that_of_three_loops_behind_a_band() {
    for band in [1, 5, 8, 1000] {
        for (sinks, window, page) in [(0, 0, 4), (3, 5, 4), (4, 20, 8), (0, 1, 1)] {
            compare(&Setup { band: Some(band), ..Setup::new(policy(sinks, window, page)) }, 60);
            let protect = vec![Protected { layer: SHAPE.layers - 1, role: Some(Role::Key) }];
            compare(&Setup { band: Some(band), protect, ..Setup::new(policy(sinks, window, page)) }, 60);
        }
    }
}

#[test]
fn a_band_bounds_what_is_held() {
    let setup = Setup { band: Some(16), ..Setup::new(policy(2, 4, 8)) };
    let (mut store, tokens) = (setup.store(), Tokens::new(400, 3));
    let mut most = 0;
    for at in 0..400 {
        feed(&mut store, &setup, &tokens, at, 1);
        if at >= 40 {
            most = most.max(store.memory().total());
        }
        if at == 60 {
            assert!(store.memory().total() <= most);
        }
    }
    // The band, a page before it, a page that it begins in, open rows and the window.
    let pages = store.pages(0, Role::Key).unwrap();
    assert!(pages.len() <= 16 / 8 + 2, "{pages:?}");
    assert_eq!(store.len(0), 400);
}

#[test]
fn a_query_far_away_wins_and_nothing_overflows() {
    // Scores of thousands: the running maximum has to move, and sums before it vanish.
    let setup = Setup::new(policy(1, 4, 8));
    let mut tokens = Tokens::new(40, 5);
    for (i, key) in tokens.keys.chunks_exact_mut(WIDTH).enumerate() {
        key.iter_mut().for_each(|x| *x *= 1.0 + i as f32);
    }
    tokens.queries.iter_mut().for_each(|q| *q *= 30.0);
    let mut store = setup.store();
    let found = feed(&mut store, &setup, &tokens, 0, 40);
    assert!(found.iter().all(|x| x.is_finite()));
    // Errors of scores of 1e5 are 1e-2: the winner is clear where the gap is wide, which is nearly always.
    let expected = dense(&setup, &tokens, 0, 40);
    let close = found.iter().zip(&expected).filter(|(a, b)| (*a - *b).abs() < 1e-3).count();
    assert!(close * 100 >= 95 * found.len(), "{close} of {}", found.len());
}

#[test]
fn arguments_that_do_not_fit_are_errors() {
    let setup = Setup::new(policy(1, 4, 8));
    let (mut store, tokens) = (setup.store(), Tokens::new(10, 5));
    let (mut scratch, d) = (AttendScratch::new(GROUP), SHAPE.head_dim);
    let mut out = vec![0.0; GROUP * d];
    let queries = out.clone();
    let attend =
        |store: &gosset_kv::KvStore, layer, head, first, q: &[f32], scratch: &mut AttendScratch, out: &mut [f32]| {
            store.attend(layer, head, first, q, None, scratch, out)
        };
    let empty = attend(&store, 0, 0, 0, &queries, &mut scratch, &mut out);
    assert!(matches!(empty, Err(KvError::Positions { .. })));
    feed(&mut store, &setup, &tokens, 0, 10);
    assert!(attend(&store, 0, 0, 9, &queries, &mut scratch, &mut out).is_ok());
    let index = |what| move |e: &KvError| matches!(e, KvError::Index { what: found, .. } if *found == what);
    assert!(attend(&store, 2, 0, 9, &queries, &mut scratch, &mut out).is_err_and(|e| index("layer")(&e)));
    assert!(attend(&store, 0, 2, 9, &queries, &mut scratch, &mut out).is_err_and(|e| index("kv head")(&e)));
    let length = |e: &KvError| matches!(e, KvError::Length { .. });
    assert!(attend(&store, 0, 0, 9, &queries[1..], &mut scratch, &mut out).is_err_and(|e| length(&e)));
    assert!(attend(&store, 0, 0, 9, &queries[1..], &mut scratch, &mut out[1..]).is_err_and(|e| length(&e)));
    let beyond = |e: &KvError| matches!(e, KvError::Positions { .. });
    assert!(attend(&store, 0, 0, 10, &queries, &mut scratch, &mut out).is_err_and(|e| beyond(&e)));
    let two = vec![0.0; 2 * GROUP * d];
    assert!(attend(&store, 0, 0, 9, &two, &mut scratch, &mut two.clone()).is_err_and(|e| beyond(&e)));
    // Without a group, queries reach to the end.
    let mut any = AttendScratch::default();
    assert!(attend(&store, 0, 0, 8, &two, &mut any, &mut two.clone()).is_ok());
    let odd = vec![0.0; 3 * d];
    assert!(attend(&store, 0, 0, 8, &odd, &mut any, &mut odd.clone()).is_err_and(|e| length(&e)));

    let before = crate::dense::stored_bytes(&store);
    assert!(store.append(0, &[0.0; 5], &[0.0; 5]).is_err_and(|e| length(&e)));
    assert!(store.append(0, &[0.0; WIDTH], &[]).is_err_and(|e| length(&e)));
    assert!(store.append(9, &[0.0; WIDTH], &[0.0; WIDTH]).is_err_and(|e| index("layer")(&e)));
    let mut bad = [0.0; WIDTH];
    bad[WIDTH - 1] = f32::NAN;
    let expected = KvError::NonFinite { role: "value", layer: 1, head: 1, position: 10 };
    assert_eq!(store.append(1, &[0.0; WIDTH], &bad), Err(expected));
    assert_eq!(before, crate::dense::stored_bytes(&store));
}

#[test]
fn elements_beyond_f16_are_refused_and_nothing_changes() {
    let policy = gosset_kv::Policy { exact: ExactType::F16, ..policy(1, 4, 8) };
    let mut store = Setup::new(policy).store();
    let mut keys = [1.0; WIDTH];
    keys[3] = 1e5;
    let found = store.append(0, &keys, &[0.0; WIDTH]);
    assert!(matches!(found, Err(KvError::Range { role: "key", position: 0, exact: "f16", .. })), "{found:?}");
    assert_eq!(store.len(0), 0);
    // Where nothing is ever stored exact, there is nothing to refuse.
    let mut store = Setup::new(gosset_kv::Policy { sinks: 0, window: 0, ..policy }).store();
    assert_eq!(store.append(0, &keys, &[0.0; WIDTH]), Ok(()));
}
