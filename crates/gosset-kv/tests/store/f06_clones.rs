//! F06: clones are independent, and nothing of a context outlives a reset.

use gosset_kv::KvStore;

use crate::dense::{Setup, Tokens, feed, policy, stored_bytes};

fn run(store: &mut KvStore, setup: &Setup, tokens: &Tokens, from: usize) -> Vec<f32> {
    (from..tokens.len()).flat_map(|at| feed(store, setup, tokens, at, 1)).collect()
}

/// `a` followed by the rest of `b`.
fn joined(a: &Tokens, n: usize, b: &Tokens) -> Tokens {
    let join = |a: &[f32], b: &[f32], per: usize| [&a[..n * per], &b[n * per..]].concat();
    let width = crate::dense::WIDTH;
    Tokens {
        keys: join(&a.keys, &b.keys, width),
        values: join(&a.values, &b.values, width),
        queries: join(&a.queries, &b.queries, width * crate::dense::GROUP),
    }
}

#[test]
fn f06_clones_go_their_own_ways() {
    let setup = Setup::new(policy(2, 6, 8));
    let (a, b, c) = (Tokens::new(30, 1), Tokens::new(70, 2), Tokens::new(70, 3));
    let (b, c) = (joined(&a, 30, &b), joined(&a, 30, &c));
    let mut one = setup.store();
    feed(&mut one, &setup, &a, 0, 30);
    let mut two = one.clone();
    // Alternating, so that each could spoil the other.
    let (mut out_b, mut out_c) = (Vec::new(), Vec::new());
    for at in 30..70 {
        out_b.extend(feed(&mut two, &setup, &b, at, 1));
        out_c.extend(feed(&mut one, &setup, &c, at, 1));
    }
    for (tokens, found, store) in [(&b, out_b, &two), (&c, out_c, &one)] {
        let mut fresh = setup.store();
        feed(&mut fresh, &setup, tokens, 0, 30);
        assert_eq!(run(&mut fresh, &setup, tokens, 30), found);
        assert_eq!(stored_bytes(&fresh), stored_bytes(store));
    }
}

#[test]
fn f06_clones_share_until_they_write() {
    let setup = Setup::new(policy(2, 6, 8));
    let tokens = Tokens::new(120, 1);
    let mut one = setup.store();
    feed(&mut one, &setup, &tokens, 0, 100);
    assert_eq!(one.memory().shared, 0);
    let mut two = one.clone();
    let before = one.memory();
    assert!(before.shared as f64 > 0.7 * before.total() as f64, "{before}: {} shared", before.shared);
    for at in 100..120 {
        feed(&mut two, &setup, &tokens, at, 1);
    }
    // Pages stay shared, the window was written to.
    let after = two.memory();
    assert!(after.shared > 0 && after.shared < before.shared);
    assert_eq!(one.memory().codes, before.codes);
    drop(two);
    assert_eq!(one.memory().shared, 0);
}

#[test]
fn f06_a_reset_leaves_nothing_behind() {
    let setup = Setup::new(policy(2, 6, 8));
    let (a, d) = (Tokens::new(60, 1), Tokens::new(50, 4));
    let mut used = setup.store();
    feed(&mut used, &setup, &a, 0, 60);
    used.reset();
    assert!(used.is_empty());
    assert_eq!(used.memory(), setup.store().memory());
    let mut fresh = setup.store();
    assert_eq!(run(&mut used, &setup, &d, 0), run(&mut fresh, &setup, &d, 0));
    assert_eq!(stored_bytes(&used), stored_bytes(&fresh));
    // Its own prefix, reused as far as that is exact.
    assert!(used.is_exact_after(50) && used.is_exact_after(49));
    assert!(!used.is_exact_after(30));
}

#[test]
fn f06_two_stores_in_two_threads_do_not_meet() {
    let setup = Setup::new(policy(2, 6, 8));
    let contexts = [Tokens::new(50, 1), Tokens::new(50, 2)];
    let alone = contexts.each_ref().map(|tokens| run(&mut setup.store(), &setup, tokens, 0));
    let together = std::thread::scope(|scope| {
        let threads = contexts.each_ref().map(|tokens| scope.spawn(|| run(&mut setup.store(), &setup, tokens, 0)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(alone, together);
}
