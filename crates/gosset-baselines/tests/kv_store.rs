//! Baselines of keys and values in the store that Gosset's own codecs use: the same bytes and the same attention however tokens arrive.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which fail by panicking")]

use std::ops::Range;
use std::sync::Arc;

use gosset_baselines::{kv_baseline, lloyd::random_normals};
use gosset_kv::{AttendScratch, Budget, ExactType, KvCodec, KvShape, KvStore, Place, Policy, Role};

const SHAPE: KvShape = KvShape { layers: 1, kv_heads: 2, head_dim: 64 };
const POLICY: Policy = Policy { sinks: 3, window: 5, page: 64, exact: ExactType::F32, budget: Budget::Variable };
const TOKENS: usize = 200;
const GROUP: usize = 2;

const NAMES: [&str; 9] = [
    "turboquant@2",
    "turboquant-prod@3",
    "octopus@2",
    "octopus-joint@4/3",
    "qjl@2",
    "kivi@2",
    "kivi@4",
    "q8_0",
    "q4_0",
];

fn codecs(text: &str) -> [Arc<dyn KvCodec>; 2] {
    let (keys, values) = kv_baseline(text, SHAPE, 0).unwrap().unwrap();
    [keys, values]
}

fn gaussians(n: usize, seed: u64) -> Vec<f32> {
    random_normals::<2>(n / 2, seed).into_flattened()
}

/// Where codes end for a query at `position`: whole blocks that have left the window.
fn coded_end(position: usize, block: usize) -> usize {
    let left = (position + 1).saturating_sub(POLICY.window + POLICY.sinks);
    POLICY.sinks + left / block * block
}

/// Vectors of one head, `[TOKENS, head_dim]`, exact and as codes have them from the first coded position on.
fn read_back(codec: &dyn KvCodec, role: Role, head: usize, all: &[f32]) -> [Vec<f32>; 2] {
    let d = SHAPE.head_dim;
    let place = Place { layer: 0, role, head: head as u32 };
    let exact: Vec<f32> = all.chunks_exact(SHAPE.width()).flat_map(|t| &t[head * d..][..d]).copied().collect();
    let mut coded = exact.clone();
    let whole = (TOKENS - POLICY.sinks) / codec.block() * codec.block();
    let part = &mut coded[POLICY.sinks * d..][..whole * d];
    let mut rows = vec![0; whole * codec.row_bytes()];
    codec.quantize(place, POLICY.sinks as u64, part, &mut rows).unwrap();
    codec.dequantize(place, POLICY.sinks as u64, &rows, part).unwrap();
    part.chunks_exact_mut(d).for_each(|v| match role {
        Role::Key => codec.keys_from_frame(place, v),
        Role::Value => codec.value_from_frame(place, v),
    });
    [exact, coded]
}

/// Attention of every query over every position before it, by the definition.
fn naive(codecs: &[Arc<dyn KvCodec>; 2], head: usize, keys: &[f32], values: &[f32], queries: &[f32]) -> Vec<f32> {
    let d = SHAPE.head_dim;
    let keys = read_back(&*codecs[0], Role::Key, head, keys);
    let values = read_back(&*codecs[1], Role::Value, head, values);
    let block = codecs[0].block().max(codecs[1].block());
    let mut out = Vec::new();
    for (i, query) in queries.chunks_exact(d).enumerate() {
        let position = i / GROUP;
        let end = coded_end(position, block);
        let which = |j: usize| usize::from((POLICY.sinks..end).contains(&j));
        let score =
            |j: usize| keys[which(j)][j * d..][..d].iter().zip(query).map(|(k, q)| f64::from(k * q)).sum::<f64>();
        let weights: Vec<f64> = (0..=position).map(|j| score(j).exp()).collect();
        let total: f64 = weights.iter().sum();
        out.extend((0..d).map(|c| {
            let sum: f64 = weights.iter().enumerate().map(|(j, w)| w * f64::from(values[which(j)][j * d + c])).sum();
            (sum / total) as f32
        }));
    }
    out
}

/// Feeds tokens in chunks and attends after each; outputs `[kv_heads][TOKENS, GROUP, head_dim]`.
fn run(store: &mut KvStore, chunks: &[usize], keys: &[f32], values: &[f32], queries: &[Vec<f32>; 2]) -> [Vec<f32>; 2] {
    let (w, d) = (SHAPE.width(), SHAPE.head_dim);
    let mut scratch = AttendScratch::new(GROUP);
    let mut outs = [Vec::new(), Vec::new()];
    let mut first = 0;
    for &n in chunks {
        let tokens: Range<usize> = first * w..(first + n) * w;
        store.append(0, &keys[tokens.clone()], &values[tokens]).unwrap();
        for (head, outs) in outs.iter_mut().enumerate() {
            let queries = &queries[head][first * GROUP * d..(first + n) * GROUP * d];
            let mut out = vec![0.0; queries.len()];
            store.attend(0, head, first, queries, None, &mut scratch, &mut out).unwrap();
            outs.extend(out);
        }
        store.settle(0);
        first += n;
    }
    outs
}

#[test]
fn f04_bytes_and_attention_do_not_depend_on_how_tokens_arrive() {
    let (keys, values) = (gaussians(TOKENS * SHAPE.width(), 1), gaussians(TOKENS * SHAPE.width(), 2));
    // Queries that make the softmax neither flat nor a choice of one.
    let queries = [3, 4]
        .map(|seed| gaussians(TOKENS * GROUP * SHAPE.head_dim, seed).iter().map(|q| q * 0.2).collect::<Vec<f32>>());
    for text in NAMES {
        let codecs = codecs(text);
        let expected = [0, 1].map(|head| naive(&codecs, head, &keys, &values, &queries[head]));
        let mut pages: Option<Vec<u8>> = None;
        for chunks in [vec![TOKENS], vec![1; TOKENS], vec![7, 33, 1, 39, 120]] {
            let [k, v] = codecs.clone();
            let mut store = KvStore::new(SHAPE, POLICY, k, v, &[]).unwrap();
            let outs = run(&mut store, &chunks, &keys, &values, &queries);
            for (out, expected) in outs.iter().flatten().zip(expected.iter().flatten()) {
                assert!((out - expected).abs() < 2e-4, "{text} in {} chunks: {out} {expected}", chunks.len());
            }
            let mut bytes = Vec::new();
            for role in [Role::Key, Role::Value] {
                for head in 0..2 {
                    for page in 0..store.pages(0, role).unwrap().len() {
                        bytes.extend_from_slice(&store.page_bytes(0, role, page, head).unwrap());
                    }
                    bytes.extend(store.open_rows(0, role, head).unwrap().1);
                }
            }
            assert_eq!(*pages.get_or_insert(bytes.clone()), bytes, "{text}");
            // 192 positions have left the window: 3 pages of 64, for every codec.
            let promised = 0.5 * (codecs[0].expected_bps() + codecs[1].expected_bps());
            let memory = store.memory();
            let found = 8.0 * (memory.codes + memory.scales) as f64 / memory.page_scalars as f64;
            assert!((found - promised).abs() < 1e-9, "{text}: {found} bits, promised {promised}");
        }
    }
}

#[test]
fn a_rewound_store_goes_on() {
    let (keys, values) = (gaussians(TOKENS * SHAPE.width(), 1), gaussians(TOKENS * SHAPE.width(), 2));
    let w = SHAPE.width();
    for text in NAMES {
        let [k, v] = codecs(text);
        let mut store = KvStore::new(SHAPE, POLICY, k, v, &[]).unwrap();
        store.append(0, &keys, &values).unwrap();
        store.settle(0);
        for len in [199, 150, 90, 40, 2] {
            store.truncate(len).unwrap();
            assert_eq!(store.len(0), len, "{text}");
            store.append(0, &keys[len * w..][..w], &values[len * w..][..w]).unwrap();
            store.settle(0);
            let query = gaussians(GROUP * SHAPE.head_dim, 7);
            let mut out = vec![0.0; query.len()];
            store.attend(0, 1, len, &query, None, &mut AttendScratch::new(GROUP), &mut out).unwrap();
            assert!(out.iter().all(|v| v.is_finite() && v.abs() < 10.0), "{text}");
        }
    }
}

#[test]
fn pages_that_cut_blocks_are_refused() {
    let [k, v] = codecs("kivi@2");
    let error = KvStore::new(SHAPE, Policy { page: 48, ..POLICY }, k, v, &[]).unwrap_err();
    assert!(error.to_string().contains("32"), "{error}");
}
