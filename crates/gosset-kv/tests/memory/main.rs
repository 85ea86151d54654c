//! F08: what a store says it takes is what it has allocated. One test alone in its process: the allocator counts everything.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which fail by panicking")]

#[path = "../store/byte_codec.rs"]
mod byte_codec;

use std::sync::Arc;

use byte_codec::ByteCodec;
use gosset_kv::{AttendScratch, Budget, ExactType, KvMemory, KvNote, KvShape, KvStore, Policy, Protected, Role};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

const SHAPE: KvShape = KvShape { layers: 2, kv_heads: 2, head_dim: 64 };

/// Keys or values of a chunk: small codes mostly, some large.
fn vectors(first: usize, n: usize) -> Vec<f32> {
    let element = |i: usize| {
        let x = ((i as f32) * 0.618_034).fract() - 0.5;
        x * x * x + if i.is_multiple_of(53) { 1.0 } else { 0.0 }
    };
    (first * SHAPE.width()..(first + n) * SHAPE.width()).map(element).collect()
}

fn fill(store: &mut KvStore, from: usize, to: usize, chunk: usize) {
    for first in (from..to).step_by(chunk) {
        let x = vectors(first, chunk.min(to - first));
        for layer in 0..SHAPE.layers {
            store.append(layer, &x, &x).unwrap();
            store.settle(layer);
        }
    }
}

/// Compares the report with the bytes that came since `before`.
fn check(store: &KvStore, before: usize, what: (&str, usize, usize)) -> KvMemory {
    let allocated = ALLOCATED.current_usage() - before;
    let memory = store.memory();
    let error = (memory.total() as f64 - allocated as f64).abs() / allocated as f64;
    assert!(error <= 0.01, "{what:?}: {allocated} bytes allocated, reported {memory}");
    assert_eq!(memory.scalars, memory.positions * 2 * SHAPE.width() as u64);
    memory
}

#[test]
fn f08_reported_bytes_are_allocated_bytes() {
    let codec = |promised_bps| Arc::new(ByteCodec { promised_bps, ..ByteCodec::new(SHAPE.head_dim) });
    // The harness allocates beside the test when it starts it; from then on it waits.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let plain = Policy { sinks: 16, window: 64, page: 64, exact: ExactType::F16, budget: Budget::Variable };
    let protect = [Protected { layer: 1, role: Some(Role::Key) }];
    let cases = [
        ("window", plain, 5.0, &protect[..0], None),
        ("all coded", Policy { sinks: 0, window: 0, page: 128, ..plain }, 5.0, &protect[..0], None),
        ("fixed", Policy { budget: Budget::Fixed, ..plain }, 6.0, &protect[..0], None),
        ("spilling", Policy { budget: Budget::Fixed, ..plain }, 3.0, &protect[..0], None),
        ("f32", Policy { exact: ExactType::F32, ..plain }, 5.0, &protect[..0], None),
        ("protected", plain, 5.0, &protect[..], None),
        ("band", plain, 5.0, &protect[..], Some(200)),
    ];
    for (name, policy, promised_bps, protect, band) in cases {
        for chunk in [1, 100, 512] {
            let codec = codec(promised_bps);
            let mut per_token = Vec::with_capacity(5);
            let before = ALLOCATED.current_usage();
            let mut store = KvStore::new(SHAPE, policy, codec.clone(), codec.clone(), protect).unwrap();
            if let Some(band) = band {
                store = store.with_band(0, band).unwrap().with_band(1, band).unwrap();
            }
            let mut at = 0;
            check(&store, before, (name, at, chunk));
            for tokens in [1, 100, 101, 4096, 8192] {
                fill(&mut store, at, tokens, chunk);
                at = tokens;
                let memory = check(&store, before, (name, tokens, chunk));
                assert_eq!(memory.positions, (tokens * SHAPE.layers) as u64);
                per_token.push((tokens, memory));
            }
            let at_tokens = |n| per_token.iter().find(|(tokens, _)| *tokens == n).unwrap().1;
            if band.is_none() {
                // Half of what is allocated at one token is spare rows at most; at 4096 slack is little, unless a budget asks for it.
                let memory = at_tokens(4096);
                let most = if promised_bps > 5.5 { 0.4 } else { 0.05 };
                assert!((memory.slack as f64) < most * memory.total() as f64, "{name}: {memory}");
                assert!(memory.codes > 0 && memory.scales > 0 && memory.overhead > 0);
                assert!(memory.bits_per_value() > memory.page_bits_per_value() || name == "all coded");
                // Growth by what is reported only.
                let grown = at_tokens(8192).total() - memory.total();
                let mut expected = memory.total() - at_tokens(101).total();
                expected = expected * 4096 / 3995;
                let off = (grown as f64 - expected as f64).abs() / expected as f64;
                assert!(off < 0.05, "{name}: {grown} bytes for the second 4096 tokens, {expected} expected");
            }
            match (name, at_tokens(1).note(), at_tokens(4096).note()) {
                ("all coded", none, also) => assert_eq!((none, also), (None, None)),
                ("protected" | "band", ..) => {}
                (_, short, long) => {
                    assert!(matches!(short, Some(KvNote::ExactOutweighsSaving { .. })), "{name}");
                    assert_eq!(long, None, "{name}");
                }
            }

            // Attention allocates in its scratch alone.
            let mut scratch = AttendScratch::new(1);
            let query = vec![0.1; SHAPE.head_dim];
            let mut out = query.clone();
            let with_scratch = ALLOCATED.current_usage();
            store.attend(0, 0, at - 1, &query, None, &mut scratch, &mut out).unwrap();
            assert_eq!(ALLOCATED.current_usage() - with_scratch, scratch.allocated_bytes());
            assert!(scratch.allocated_bytes() < 1 << 17, "a page of keys, one of values, and their rows");
            drop((scratch, query, out));
            check(&store, before, (name, at, chunk));

            // A clone takes little until it writes.
            let with_one = ALLOCATED.current_usage();
            let mut clone = store.clone();
            let taken = ALLOCATED.current_usage() - with_one;
            if band.is_none() && promised_bps > 3.0 {
                assert!(taken * 10 < store.memory().total() as usize, "{name}: a clone takes {taken}");
            }
            assert!(clone.memory().shared > 0);
            fill(&mut clone, at, at + 10, 1);
            drop(clone);
            check(&store, before, (name, at, chunk));
            assert_eq!(store.memory().shared, 0);

            store.truncate(8192 - 30).unwrap();
            check(&store, before, (name, at, chunk));
            if band.is_none() {
                store.truncate(5000).unwrap();
                check(&store, before, (name, at, chunk));
            }
            store.reset();
            check(&store, before, (name, at, chunk));
            drop(store);
            assert_eq!(ALLOCATED.current_usage(), before, "{name}: nothing stays");
        }
    }
}
