//! How pages lie: budgets, overflows, setups that are refused.

use std::sync::Arc;

use gosset_kv::{Budget, KvError, KvShape, KvStore, Policy, Protected, Role};

use crate::byte_codec::ByteCodec;
use crate::dense::{SHAPE, Setup, Tokens, feed, policy};

#[test]
fn a_fixed_budget_holds_the_same_bytes_and_counts_what_spills() {
    let tokens = Tokens::new(200, 1);
    let stores = [(Budget::Variable, 10.0), (Budget::Fixed, 16.0), (Budget::Fixed, 13.0), (Budget::Fixed, 0.0)].map(
        |(budget, promised_bps)| {
            let setup = Setup { promised_bps, ..Setup::new(Policy { budget, ..policy(1, 3, 8) }) };
            let mut store = setup.store();
            feed(&mut store, &setup, &tokens, 0, 200);
            store
        },
    );
    let n = stores[0].pages(0, Role::Key).unwrap().len();
    assert_eq!(n, 196 / 8);
    for index in 0..n {
        for head in 0..SHAPE.kv_heads {
            let bytes = stores.each_ref().map(|store| store.page_bytes(1, Role::Key, index, head).unwrap());
            assert!(bytes.iter().all(|other| *other == bytes[0]));
        }
    }
    let memory = stores.each_ref().map(KvStore::memory);
    let slots = (n * SHAPE.layers * 2 * SHAPE.kv_heads) as u64;
    assert_eq!((memory[0].spills, memory[1].spills, memory[3].spills), (0, 0, slots));
    assert!(memory[2].spills > 0 && memory[2].spills < slots, "{} of {slots}", memory[2].spills);
    assert!(memory[1].slack > memory[0].slack);
    for other in &memory[1..] {
        assert_eq!((other.codes, other.scales), (memory[0].codes, memory[0].scales));
    }
    // A rewind takes the spills of dropped pages along.
    let mut store = stores.into_iter().nth(3).unwrap();
    store.truncate(1 + 8 * 10 + 3).unwrap();
    assert_eq!(store.memory().spills, (11 * SHAPE.layers * 2 * SHAPE.kv_heads) as u64);
}

#[test]
fn what_pages_need_beside_their_bytes_is_little() {
    for budget in [Budget::Variable, Budget::Fixed] {
        let setup = Setup { promised_bps: 0.0, ..Setup::new(Policy { budget, ..policy(0, 0, 8) }) };
        let mut store = setup.store();
        let n = 8 * 16 * 20;
        feed(&mut store, &setup, &Tokens::new(n, 1), 0, n);
        let memory = store.memory();
        let mut bytes = 0;
        for role in [Role::Key, Role::Value] {
            for index in 0..n / 8 {
                let of_head = |head| store.page_bytes(0, role, index, head).unwrap().len();
                bytes += SHAPE.layers * (0..SHAPE.kv_heads).map(of_head).sum::<usize>();
            }
        }
        // Three bytes of length per head; per 16 pages a header, a position, two counters; and once the list of layers.
        let beside = memory.sealed() - bytes as u64;
        let pages = memory.pages;
        assert_eq!(pages as usize, n / 8 * 2 * SHAPE.layers);
        assert!(beside <= pages * (3 * SHAPE.kv_heads as u64 + 6) + 1024, "{beside} bytes for {pages} pages");
    }
}

#[test]
fn spills_are_found_behind_pages_that_a_band_dropped() {
    let policy = Policy { budget: Budget::Fixed, ..policy(1, 3, 8) };
    let setup = Setup { promised_bps: 1.0, band: Some(20), ..Setup::new(policy) };
    let (mut store, tokens) = (setup.store(), Tokens::new(150, 1));
    for at in 0..150 {
        let found = feed(&mut store, &setup, &tokens, at, 1);
        let error = crate::dense::farthest(&found, &crate::dense::dense(&setup, &tokens, at, 1));
        assert!(error <= crate::dense::TOLERANCE, "{at}: {error}");
    }
    let pages = store.pages(0, Role::Key).unwrap().len() * SHAPE.layers * 2 * SHAPE.kv_heads;
    assert_eq!(store.memory().spills, pages as u64);
}

#[test]
fn setups_that_cannot_work_are_refused() {
    let codec = |head_dim| Arc::new(ByteCodec::new(head_dim));
    let new = |shape, policy, codec: Arc<ByteCodec>, protect: &[Protected]| {
        KvStore::new(shape, policy, codec.clone(), codec, protect)
    };
    let d = SHAPE.head_dim;
    assert!(new(SHAPE, policy(1, 2, 8), codec(d), &[]).is_ok());
    let spec = |e: &KvError| matches!(e, KvError::Spec { .. });
    assert!(new(SHAPE, policy(1, 2, 0), codec(d), &[]).is_err_and(|e| spec(&e)));
    assert!(new(SHAPE, policy(1, 2, Policy::MAX_PAGE + 1), codec(d), &[]).is_err_and(|e| spec(&e)));
    assert!(new(KvShape { layers: 0, ..SHAPE }, policy(1, 2, 8), codec(d), &[]).is_err_and(|e| spec(&e)));
    let protect = [Protected { layer: 2, role: None }];
    assert!(new(SHAPE, policy(1, 2, 8), codec(d), &protect).is_err_and(|e| spec(&e)));
    let other = new(SHAPE, policy(1, 2, 8), codec(d + 1), &[]);
    assert!(matches!(other, Err(KvError::HeadDim { head_dim: 12, .. })));
    let blocks = Arc::new(ByteCodec { block: 3, ..ByteCodec::new(d) });
    assert!(new(SHAPE, policy(1, 2, 8), blocks, &[]).is_err_and(|e| spec(&e)));
    let store = new(SHAPE, policy(1, 2, 8), codec(d), &[]).unwrap();
    assert!(store.clone().with_band(0, 0).is_err_and(|e| spec(&e)));
    assert!(store.with_band(2, 4).is_err_and(|e| matches!(e, KvError::Index { .. })));
}

#[test]
fn a_store_can_be_used_from_threads() {
    fn check<T: Send + Sync + Clone + std::fmt::Debug>() {}
    check::<KvStore>();
    check::<gosset_kv::AttendScratch>();
}
