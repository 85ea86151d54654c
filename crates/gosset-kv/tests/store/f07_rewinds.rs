//! F07: rewinds by a few positions and by many, into pages and past the window.

use gosset_kv::{Held, KvError, Protected, Role};

use crate::dense::{SHAPE, Setup, TOLERANCE, Tokens, attention, dense, farthest, feed, policy, stored_bytes};

#[test]
fn f07_a_rewind_inside_the_window_is_as_if_nothing_had_been() {
    for prompt in [5, 8, 9, 30] {
        for by in [1, 4, 7] {
            let setup = Setup::new(policy(0, 8, 4));
            let tokens = Tokens::new(prompt + 20, 1);
            let len = prompt + 20 - by;
            let mut store = setup.store();
            feed(&mut store, &setup, &tokens, 0, prompt);
            for at in prompt..prompt + 20 {
                feed(&mut store, &setup, &tokens, at, 1);
            }
            // The next query sees the same number of exact positions, its own included.
            assert_eq!(store.is_exact_after(len), by == 1);
            store.truncate(len).unwrap();
            assert_eq!(store.len(0), len);
            let found: Vec<f32> = (len..len + by).flat_map(|at| feed(&mut store, &setup, &tokens, at, 1)).collect();
            if by == 1 {
                let error = farthest(&found, &dense(&setup, &tokens, len, by));
                assert!(error <= TOLERANCE, "prompt {prompt} by {by}: {error}");
            }
        }
    }
}

/// What a query at the end of `tokens` sees after `len` positions out of `coded_to` that were coded: coded before `coded_to`.
fn rewound(setup: &Setup, tokens: &Tokens, coded_to: usize, at: usize) -> Vec<f32> {
    // The reference codes what has left the window: a window that begins at `coded_to` for this query.
    let window = (at + 1).saturating_sub(coded_to).min(setup.policy.window);
    let policy = gosset_kv::Policy { window, ..setup.policy };
    dense(&Setup { policy, ..setup.clone() }, tokens, at, 1)
}

#[test]
fn f07_a_rewind_past_the_window_goes_on_from_what_is_coded() {
    for window in [8, 0] {
        for (sinks, page) in [(0, 4), (3, 8), (0, 16), (20, 4)] {
            for by in [1, 12, 27] {
                let setup = Setup::new(policy(sinks, window, page));
                let (tokens, other) = (Tokens::new(50, 1), Tokens::new(90, 2));
                let mut store = setup.store();
                feed(&mut store, &setup, &tokens, 0, 30);
                for at in 30..50 {
                    feed(&mut store, &setup, &tokens, at, 1);
                }
                let len = 50 - by;
                store.truncate(len).unwrap();
                let coded_to = (50 - window).min(len);
                // Other tokens follow.
                let mut mixed = other.clone();
                let width = crate::dense::WIDTH;
                mixed.keys[..len * width].copy_from_slice(&tokens.keys[..len * width]);
                mixed.values[..len * width].copy_from_slice(&tokens.values[..len * width]);
                for at in len..90 {
                    let found = feed(&mut store, &setup, &mixed, at, 1);
                    let error = farthest(&found, &rewound(&setup, &mixed, coded_to, at));
                    assert!(error <= TOLERANCE, "sinks {sinks} page {page} by {by} at {at}: {error}");
                }
                assert_eq!(store.len(0), 90);
                // Every position is held exactly once, in order.
                let pages = store.pages(0, Role::Key).unwrap();
                let mut next = sinks;
                for page in &pages {
                    assert_eq!(page.positions.start, next);
                    assert!(page.positions.len() <= page.packed);
                    next = page.positions.end;
                }
                assert_eq!(store.open_rows(0, Role::Key, 0).unwrap().0.start, next);
            }
        }
    }
}

#[test]
fn f07_a_cut_page_holds_what_still_counts() {
    let setup = Setup::new(policy(0, 0, 16));
    let tokens = Tokens::new(40, 1);
    let mut store = setup.store();
    feed(&mut store, &setup, &tokens, 0, 40);
    let whole = store.clone();
    store.truncate(21).unwrap();
    let pages = store.pages(0, Role::Key).unwrap();
    assert_eq!((pages[1].positions.clone(), pages[1].packed), (16..21, 16));
    assert_eq!(store.held(0, Role::Key, 20), Ok(Held::Sealed));
    let gone = store.held(0, Role::Key, 21);
    assert!(matches!(gone, Err(KvError::Positions { .. })));
    let found = attention(&store, &setup, &tokens, SHAPE.layers - 1, 20, 1);
    assert!(farthest(&found, &dense(&setup, &tokens, 20, 1)) <= TOLERANCE);
    // Its clone knows nothing of the cut.
    assert_eq!(whole.pages(0, Role::Key).unwrap()[1].positions, 16..32);
    // A second cut, a page further down, and one at the end of a page.
    store.truncate(16).unwrap();
    assert_eq!(store.pages(0, Role::Key).unwrap().len(), 1);
    store.truncate(3).unwrap();
    assert_eq!(store.pages(0, Role::Key).unwrap()[0].positions, 0..3);
    feed(&mut store, &setup, &tokens, 3, 20);
    let found = attention(&store, &setup, &tokens, SHAPE.layers - 1, 22, 1);
    assert!(farthest(&found, &dense(&setup, &tokens, 22, 1)) <= TOLERANCE);
}

#[test]
fn f07_blocks_can_be_cut_anywhere() {
    for by in 1..30 {
        let setup = Setup { block: 4, ..Setup::new(policy(2, 3, 8)) };
        let tokens = Tokens::new(60, 1);
        let mut store = setup.store();
        feed(&mut store, &setup, &tokens, 0, 41);
        store.truncate(41 - by).unwrap();
        for at in 41 - by..60 {
            feed(&mut store, &setup, &tokens, at, 1);
        }
        // Values that were coded came from the same vectors, in blocks of their own: close, not equal.
        let found = attention(&store, &setup, &tokens, SHAPE.layers - 1, 59, 1);
        let error = farthest(&found, &dense(&setup, &tokens, 59, 1));
        assert!(error <= 0.05, "{by}: {error}");
        let mut next = 2;
        for page in store.pages(0, Role::Value).unwrap() {
            assert_eq!(page.positions.start, next);
            next = page.positions.end;
        }
    }
}

#[test]
fn f07_what_is_not_held_cannot_be_rewound_to() {
    let setup = Setup { band: Some(8), ..Setup::new(policy(0, 4, 4)) };
    let tokens = Tokens::new(60, 1);
    let mut store = setup.store();
    assert!(matches!(store.truncate(1), Err(KvError::Positions { asked: 1, held: 0, .. })));
    for at in 0..50 {
        feed(&mut store, &setup, &tokens, at, 1);
    }
    assert!(matches!(store.truncate(51), Err(KvError::Positions { asked: 51, held: 50, .. })));
    let before = stored_bytes(&store);
    assert!(matches!(store.truncate(20), Err(KvError::Positions { asked: 20, .. })));
    assert_eq!(before, stored_bytes(&store));
    // By one it always works: the page before the band is kept.
    store.truncate(49).unwrap();
    let found = feed(&mut store, &setup, &tokens, 49, 1);
    assert!(farthest(&found, &dense(&setup, &tokens, 49, 1)) <= TOLERANCE);
    store.truncate(0).unwrap();
    assert!(store.is_empty());
}

#[test]
fn f07_layers_may_have_come_different_ways() {
    // A pass that fails in a later layer leaves layers of different lengths.
    let setup = Setup { protect: vec![Protected { layer: 0, role: None }], ..Setup::new(policy(1, 4, 4)) };
    let tokens = Tokens::new(30, 1);
    let mut store = setup.store();
    feed(&mut store, &setup, &tokens, 0, 20);
    let before = stored_bytes(&store);
    let width = crate::dense::WIDTH;
    store.append(0, &tokens.keys[20 * width..25 * width], &tokens.values[20 * width..25 * width]).unwrap();
    assert_eq!((store.len(0), store.len(1)), (25, 20));
    store.truncate(20).unwrap();
    assert_eq!(before, stored_bytes(&store));
    let found = feed(&mut store, &setup, &tokens, 20, 10);
    assert!(farthest(&found, &dense(&setup, &tokens, 20, 10)) <= TOLERANCE);
}
