//! Any sequence of calls leaves what a list of positions says it should.

use gosset_kv::{Budget, KvStore, Protected, Role};

use crate::dense::{GROUP, SHAPE, Setup, TOLERANCE, Tokens, WIDTH, attention, dense_by, farthest, policy};

/// A store, and what is known about it.
#[derive(Clone)]
struct Walk {
    store: KvStore,
    /// Vectors of all positions that were ever held; those beyond `len` are old.
    tokens: Tokens,
    len: usize,
    chunk: usize,
    /// Positions before this one are seen coded by whoever comes.
    exact_from: usize,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

const MOST: usize = 120;

impl Walk {
    fn append(&mut self, setup: &Setup, n: usize, seed: u64) {
        let new = Tokens::new(n, seed);
        let at = self.len;
        for (old, new, per) in [
            (&mut self.tokens.keys, &new.keys, WIDTH),
            (&mut self.tokens.values, &new.values, WIDTH),
            (&mut self.tokens.queries, &new.queries, WIDTH * GROUP),
        ] {
            old[at * per..(at + n) * per].copy_from_slice(new);
        }
        for layer in 0..SHAPE.layers {
            self.store.append(layer, &new.keys, &new.values).unwrap();
        }
        self.len += n;
        self.exact_from = match setup.policy.window {
            0 => self.len,
            window => self.exact_from.max((self.chunk + 1).saturating_sub(window)),
        };
    }

    fn settle(&mut self, setup: &Setup) {
        (0..SHAPE.layers).for_each(|layer| self.store.settle(layer));
        self.chunk = self.len;
        self.exact_from = self.exact_from.max(self.len.saturating_sub(setup.policy.window));
    }

    fn truncate(&mut self, len: usize) {
        self.store.truncate(len).unwrap();
        self.len = len;
        self.chunk = self.chunk.min(len);
        self.exact_from = self.exact_from.min(len);
    }

    fn compare(&self, setup: &Setup, first: usize, n: usize) {
        let exact = |role, i: usize, j| {
            let protected = setup.protect.iter().any(|protected| protected.covers(SHAPE.layers - 1, role));
            let in_window = j >= self.exact_from && j + setup.policy.window > i;
            protected || j < setup.policy.sinks || in_window
        };
        let found = attention(&self.store, setup, &self.tokens, SHAPE.layers - 1, first, n);
        let error = farthest(&found, &dense_by(setup, &self.tokens, first, n, exact));
        assert!(error <= TOLERANCE, "{:?}: {error} at {first}, {n} of {}", setup.policy, self.len);
    }
}

#[test]
fn any_sequence_of_calls_is_attended_as_it_was_held() {
    for seed in 0..24 {
        let mut random = Random(seed);
        let mut one_of = |choices: &[usize]| choices[random.below(choices.len())];
        let (sinks, window, page) = (one_of(&[0, 1, 5]), one_of(&[0, 1, 6, 20, 200]), one_of(&[1, 3, 8]));
        let budget = if one_of(&[0, 1]) == 0 { Budget::Variable } else { Budget::Fixed };
        let role = [None, Some(Role::Key), Some(Role::Value)][one_of(&[0, 1, 2])];
        let protect = if one_of(&[0, 0, 1]) == 0 { Vec::new() } else { vec![Protected { layer: 1, role }] };
        let policy = gosset_kv::Policy { budget, ..policy(sinks, window, page) };
        let setup = Setup { promised_bps: 13.0, protect, rope: one_of(&[0, 1]) == 1, ..Setup::new(policy) };
        let tokens = Tokens::new(MOST, seed + 1000);
        let mut walk = Walk { store: setup.store(), tokens, len: 0, chunk: 0, exact_from: 0 };
        let mut other = walk.clone();
        for step in 0..60 {
            match random.below(12) {
                0..=4 if walk.len < MOST - 20 => walk.append(&setup, 1 + random.below(20), seed * 100 + step),
                5..=6 => walk.settle(&setup),
                7 if walk.len > 0 => walk.truncate(random.below(walk.len + 1)),
                8 if walk.len > 4 => walk.truncate(walk.len - 1 - random.below(4)),
                9 => std::mem::swap(&mut walk, &mut other),
                10 => other = walk.clone(),
                _ if walk.len > 0 => {
                    let first = random.below(walk.len);
                    walk.compare(&setup, first, 1 + random.below((walk.len - first).min(9)));
                }
                _ => {}
            }
            assert_eq!(walk.store.len(1), walk.len);
            let memory = walk.store.memory();
            assert_eq!(memory.scalars, (2 * SHAPE.layers * walk.len * WIDTH) as u64);
        }
        if walk.len > 0 {
            walk.compare(&setup, 0, walk.len);
        }
    }
}
