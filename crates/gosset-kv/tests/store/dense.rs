//! A context held twice: in a store, and as plain vectors whose attention three loops compute.

use std::sync::Arc;

use gosset_kv::{
    AttendScratch, Budget, ExactType, KeyRotation, KvCodec, KvShape, KvStore, Place, Policy, Protected, Role,
};
use half::{bf16, f16};

use crate::byte_codec::ByteCodec;

pub(crate) const SHAPE: KvShape = KvShape { layers: 2, kv_heads: 2, head_dim: 12 };
pub(crate) const GROUP: usize = 3;
/// Of attention against the dense reference: f32 sums of some hundred products, outputs up to 2.
pub(crate) const TOLERANCE: f32 = 1e-5;

pub(crate) fn policy(sinks: usize, window: usize, page: usize) -> Policy {
    Policy { sinks, window, page, exact: ExactType::F32, budget: Budget::Variable }
}

/// A rotation in pairs of neighbours.
pub(crate) struct Turn;

impl KeyRotation for Turn {
    fn rotate(&self, position: u64, key: &mut [f32]) {
        for (pair, x) in key.chunks_exact_mut(2).enumerate() {
            let angle = position as f32 * 0.7f32.powi(pair as i32 + 1);
            (x[0], x[1]) = (x[0] * angle.cos() - x[1] * angle.sin(), x[1] * angle.cos() + x[0] * angle.sin());
        }
    }
}

/// How a context is set up.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) policy: Policy,
    pub(crate) block: usize,
    pub(crate) promised_bps: f64,
    pub(crate) protect: Vec<Protected>,
    pub(crate) band: Option<usize>,
    pub(crate) rope: bool,
}

impl Setup {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, block: 1, promised_bps: 10.0, protect: Vec::new(), band: None, rope: false }
    }

    pub(crate) fn codec(&self) -> ByteCodec {
        ByteCodec { block: self.block, promised_bps: self.promised_bps, ..ByteCodec::new(SHAPE.head_dim) }
    }

    pub(crate) fn store(&self) -> KvStore {
        let codec = Arc::new(self.codec());
        let mut store = KvStore::new(SHAPE, self.policy, codec.clone(), codec, &self.protect).unwrap();
        if let Some(band) = self.band {
            for layer in 0..SHAPE.layers {
                store = store.with_band(layer, band).unwrap();
            }
        }
        store
    }
}

/// Keys, values and queries of positions: `seed` tells contexts apart.
#[derive(Clone)]
pub(crate) struct Tokens {
    /// `[n, kv_heads * head_dim]`.
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
    /// `[n, kv_heads, group, head_dim]`.
    pub(crate) queries: Vec<f32>,
}

pub(crate) const WIDTH: usize = SHAPE.kv_heads * SHAPE.head_dim;

impl Tokens {
    pub(crate) fn new(n: usize, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let mut fill = |n: usize| (0..n).map(|_| 2.0 * next()).collect::<Vec<f32>>();
        Self { keys: fill(n * WIDTH), values: fill(n * WIDTH), queries: fill(n * WIDTH * GROUP) }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len() / WIDTH
    }

    pub(crate) fn vector(&self, role: Role, position: usize, head: usize) -> &[f32] {
        let x = if role == Role::Key { &self.keys } else { &self.values };
        &x[position * WIDTH + head * SHAPE.head_dim..][..SHAPE.head_dim]
    }
}

/// Feeds positions `at..at + n` to all layers and gives attention of the last layer, `[n, kv_heads, group, head_dim]`.
pub(crate) fn feed(store: &mut KvStore, setup: &Setup, tokens: &Tokens, at: usize, n: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for layer in 0..SHAPE.layers {
        let rows = at * WIDTH..(at + n) * WIDTH;
        store.append(layer, &tokens.keys[rows.clone()], &tokens.values[rows]).unwrap();
        out = attention(store, setup, tokens, layer, at, n);
        store.settle(layer);
    }
    out
}

pub(crate) fn attention(
    store: &KvStore,
    setup: &Setup,
    tokens: &Tokens,
    layer: usize,
    first: usize,
    n: usize,
) -> Vec<f32> {
    let (d, mut scratch) = (SHAPE.head_dim, AttendScratch::new(GROUP));
    let mut out = vec![0.0; n * WIDTH * GROUP];
    for head in 0..SHAPE.kv_heads {
        let span = GROUP * d;
        let of_head = |i: usize| ((first + i) * SHAPE.kv_heads + head) * span;
        let queries: Vec<f32> = (0..n).flat_map(|i| &tokens.queries[of_head(i)..][..span]).copied().collect();
        let mut sums = vec![0.0; queries.len()];
        let rope = setup.rope.then_some(&Turn as &dyn KeyRotation);
        store.attend(layer, head, first, &queries, rope, &mut scratch, &mut sums).unwrap();
        for (i, sums) in sums.chunks_exact(span).enumerate() {
            out[(i * SHAPE.kv_heads + head) * span..][..span].copy_from_slice(sums);
        }
    }
    out
}

/// Whether a query at `i` sees position `j` exact.
pub(crate) fn is_exact(setup: &Setup, role: Role, layer: usize, i: usize, j: usize) -> bool {
    let (policy, m) = (setup.policy, setup.block);
    if j < policy.sinks || setup.protect.iter().any(|protected| protected.covers(layer, role)) {
        return true;
    }
    let block_end = policy.sinks + ((j - policy.sinks) / m + 1) * m;
    block_end + policy.window > i + 1
}

pub(crate) fn rounded(exact: ExactType, x: &[f32]) -> Vec<f32> {
    let round = |x: &f32| match exact {
        ExactType::F32 => *x,
        ExactType::Bf16 => bf16::from_f32(*x).to_f32(),
        ExactType::F16 => f16::from_f32(*x).to_f32(),
    };
    x.iter().map(round).collect()
}

/// The vector that a query sees at `j`.
fn seen(setup: &Setup, tokens: &Tokens, place: Place, j: usize, is_exact: bool) -> Vec<f32> {
    let (policy, m, head) = (setup.policy, setup.block, place.head as usize);
    let exact = |j| rounded(policy.exact, tokens.vector(place.role, j, head));
    if is_exact {
        return exact(j);
    }
    let first = policy.sinks + (j - policy.sinks) / m * m;
    let rounds = policy.window + m > 1;
    let block: Vec<f32> = (first..first + m)
        .flat_map(|j| if rounds { exact(j) } else { tokens.vector(place.role, j, head).to_vec() })
        .collect();
    let codec = setup.codec();
    let (mut rows, mut coded) = (vec![0; m * codec.row_bytes()], vec![0.0; block.len()]);
    codec.quantize(place, first as u64, &block, &mut rows).unwrap();
    codec.dequantize(place, first as u64, &rows, &mut coded).unwrap();
    // Its own inverse.
    codec.mirror(place, &mut coded);
    coded[(j - first) * SHAPE.head_dim..][..SHAPE.head_dim].to_vec()
}

/// Attention of positions `at..at + n` of the last layer by three loops in f64, shaped as by [`feed`].
pub(crate) fn dense(setup: &Setup, tokens: &Tokens, at: usize, n: usize) -> Vec<f32> {
    dense_by(setup, tokens, at, n, |role, i, j| is_exact(setup, role, SHAPE.layers - 1, i, j))
}

/// The same where `exact` says whether the query at i sees position j exact.
pub(crate) fn dense_by(
    setup: &Setup,
    tokens: &Tokens,
    at: usize,
    n: usize,
    exact: impl Fn(Role, usize, usize) -> bool,
) -> Vec<f32> {
    let (d, layer) = (SHAPE.head_dim, SHAPE.layers - 1);
    let mut out = Vec::new();
    for i in at..at + n {
        let from = setup.band.map_or(0, |band| (i + 1).saturating_sub(band));
        for head in 0..SHAPE.kv_heads {
            let place = |role| Place { layer: layer as u32, role, head: head as u32 };
            let vectors: Vec<(Vec<f32>, Vec<f32>)> = (from..=i)
                .map(|j| {
                    let mut key = seen(setup, tokens, place(Role::Key), j, exact(Role::Key, i, j));
                    if setup.rope {
                        Turn.rotate(j as u64, &mut key);
                    }
                    (key, seen(setup, tokens, place(Role::Value), j, exact(Role::Value, i, j)))
                })
                .collect();
            for g in 0..GROUP {
                let query = &tokens.queries[((i * SHAPE.kv_heads + head) * GROUP + g) * d..][..d];
                let score = |key: &[f32]| -> f64 { query.iter().zip(key).map(|(q, k)| f64::from(q * k)).sum() };
                let scores: Vec<f64> = vectors.iter().map(|(key, _)| score(key)).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                for k in 0..d {
                    let sum: f64 = weights.iter().zip(&vectors).map(|(w, (_, v))| w * f64::from(v[k])).sum();
                    out.push((sum / total) as f32);
                }
            }
        }
    }
    out
}

pub(crate) fn farthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |max, x| if x > max || x.is_nan() { x } else { max })
}

/// All bytes that a store holds, in an order of their own.
pub(crate) fn stored_bytes(store: &KvStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    for layer in 0..SHAPE.layers {
        for role in [Role::Key, Role::Value] {
            for (index, page) in store.pages(layer, role).unwrap().iter().enumerate() {
                bytes.extend_from_slice(format!("{page:?}").as_bytes());
                for head in 0..SHAPE.kv_heads {
                    bytes.extend_from_slice(&store.page_bytes(layer, role, index, head).unwrap());
                }
            }
            for head in 0..SHAPE.kv_heads {
                let (positions, rows) = store.open_rows(layer, role, head).unwrap();
                bytes.extend_from_slice(format!("{positions:?}").as_bytes());
                bytes.extend_from_slice(&rows);
            }
            for position in 0..store.len(layer) {
                let exact = store.exact_vectors(layer, role, position).unwrap();
                bytes.extend(exact.iter().flatten().flat_map(|x| x.to_le_bytes()));
                bytes.push(u8::from(exact.is_some()));
            }
        }
    }
    bytes
}
