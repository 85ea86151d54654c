//! F04: what is held and what attention gives does not depend on the chunks that tokens arrive in.

use gosset_kv::{Budget, ExactType, Held, Policy, Role};

use crate::dense::{SHAPE, Setup, TOLERANCE, Tokens, farthest, feed, policy, stored_bytes};

const N: usize = 40;

fn splits() -> [Vec<usize>; 5] {
    [vec![N], vec![1; N], vec![7, 33], vec![1, 39], vec![16, 16, 8]]
}

fn check(setup: &Setup) {
    let tokens = Tokens::new(N, 1);
    let mut first = None;
    for split in splits() {
        let (mut store, mut at, mut out) = (setup.store(), 0, Vec::new());
        for chunk in &split {
            out.extend(feed(&mut store, setup, &tokens, at, *chunk));
            at += chunk;
        }
        let bytes = stored_bytes(&store);
        let (bytes_of_one, out_of_one) = first.get_or_insert((bytes.clone(), out.clone()));
        assert!(*bytes_of_one == bytes, "{:?}: other bytes for {split:?}", setup.policy);
        let error = farthest(out_of_one, &out);
        assert!(error <= TOLERANCE, "{:?}: {error} for {split:?}", setup.policy);

        let coded = |position| {
            let held = store.held(0, Role::Key, position).unwrap();
            matches!(held, Held::Open | Held::Sealed)
        };
        let Policy { sinks, window, .. } = setup.policy;
        let expected = N.saturating_sub(window).saturating_sub(sinks) / setup.block * setup.block;
        assert_eq!((0..N).filter(|position| coded(*position)).count(), expected, "{:?}", setup.policy);
        let pages = store.pages(0, Role::Value).unwrap();
        assert_eq!(pages.len(), expected / setup.policy.page);
        assert_eq!(store.memory().page_scalars as usize, {
            2 * SHAPE.layers * pages.len() * setup.policy.page * SHAPE.width()
        });
    }
}

#[test]
fn f04_every_split_gives_the_same_bytes_and_outputs() {
    for (sinks, window, page) in [(0, 0, 8), (4, 8, 8), (0, 16, 4), (2, 3, 1), (1, 100, 8), (100, 1, 8)] {
        for (exact, budget) in [(ExactType::F32, Budget::Variable), (ExactType::Bf16, Budget::Fixed)] {
            for rope in [false, true] {
                let policy = Policy { exact, budget, ..policy(sinks, window, page) };
                check(&Setup { rope, ..Setup::new(policy) });
            }
        }
    }
}

#[test]
fn f04_blocks_are_coded_whole_in_every_split() {
    for (sinks, window) in [(0, 0), (3, 5), (2, 8)] {
        check(&Setup { block: 4, ..Setup::new(policy(sinks, window, 8)) });
    }
}
