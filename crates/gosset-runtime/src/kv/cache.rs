//! A cache whose keys and values are coded, as the layers of a pass use it.

use candle_core::Tensor;
use gosset_kv::{AttendScratch, KeyRotation, KvMemory, KvStore};
use rayon::prelude::*;

use super::rotation::PositionRotation;
use crate::attention::AttentionShape;
use crate::error::RuntimeError;
use crate::rope::{RopeTable, Ropes};
use crate::tensor::{f32_slice, tensor2};

/// Query positions of one task: the pages before them are decoded once for all of them.
const QUERY_BLOCK: usize = 128;

/// Keys and values of all layers in a [`KvStore`], and what is needed to read keys that are stored before their rotation.
#[derive(Debug, Clone)]
pub(crate) struct CodedCache {
    store: KvStore,
    /// Where keys are handed over before they are rotated.
    rotations: Option<Rotations>,
    /// Positions up to here hold what a cache without rewinds would hold; what came after them has seen more of them coded.
    fresh_to: usize,
}

/// Rotations of the layers of a model.
#[derive(Debug, Clone)]
struct Rotations {
    all: PositionRotation,
    /// Of local layers, where they have their own.
    local: Option<PositionRotation>,
}

impl Rotations {
    fn new(ropes: &Ropes) -> Self {
        let local = ropes.single().is_none().then(|| PositionRotation::new(ropes.of_layer(true)));
        Self { all: PositionRotation::new(ropes.of_layer(false)), local }
    }

    fn of_layer(&mut self, local: bool) -> &mut PositionRotation {
        self.local.as_mut().filter(|_| local).unwrap_or(&mut self.all)
    }

    fn allocated_bytes(&self) -> usize {
        let local = self.local.as_ref().map_or(0, PositionRotation::allocated_bytes);
        self.all.allocated_bytes() + local
    }
}

impl CodedCache {
    /// Over an empty store that takes keys before their rotation or after it.
    pub(crate) fn new(store: KvStore, keys_before_rope: bool, ropes: &Ropes) -> Self {
        let rotations = keys_before_rope.then(|| Rotations::new(ropes));
        Self { store, rotations, fresh_to: usize::MAX }
    }

    /// One without positions and the same settings.
    pub(crate) fn emptied(&self) -> Self {
        let mut cache = self.clone();
        cache.reset();
        cache
    }

    /// Bytes of the store by cause.
    pub(crate) fn memory(&self) -> KvMemory {
        self.store.memory()
    }

    /// Bytes of keys and values, without the tables of rotations.
    pub(crate) fn store_bytes(&self) -> usize {
        self.store.memory().total() as usize
    }

    /// Bytes of everything.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.store_bytes() + self.rotations.as_ref().map_or(0, Rotations::allocated_bytes)
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        self.store.reset();
        self.fresh_to = usize::MAX;
    }

    /// Forgets every position from `len` on. What was coded stays so, even where a cache that never held more would be exact.
    ///
    /// Returns how many positions are held: none if the store could not be cut.
    pub(crate) fn truncate(&mut self, len: usize) -> usize {
        if !self.store.is_exact_after(len) {
            self.fresh_to = self.fresh_to.min(len);
        } else if len <= self.fresh_to {
            // All that is left is as if it had never held more.
            self.fresh_to = usize::MAX;
        }
        if len == 0 || self.store.truncate(len).is_err() {
            self.reset();
            return 0;
        }
        len
    }

    /// Whether the cache can be cut to `len` positions.
    pub(crate) fn can_cut(&self, len: usize) -> bool {
        len == 0 || self.store.clone().truncate(len).is_ok()
    }

    /// The most positions, at most `len`, that can be kept such that nothing tells the cache from one that never held more.
    pub(crate) fn reusable(&self, len: usize) -> usize {
        // Sinks are exact for ever, and see nothing but sinks.
        let fresh = len <= self.fresh_to && self.store.is_exact_after(len);
        if fresh { len } else { len.min(self.store.policy().sinks) }
    }

    /// Takes the next positions of `layer`, which is local or not, and gives their attention over all that the layer holds, `[n, heads * head_dim]`.
    ///
    /// `q`, `k` and `v` have one row per position, not rotated yet; `rope` covers these positions, of which `start` is the first.
    /// Tasks are a KV head and a block of queries each, cut the same way for any number of threads.
    pub(crate) fn attend(
        &mut self,
        (layer, local): (usize, bool),
        start: usize,
        [q, k, v]: [&Tensor; 3],
        rope: &RopeTable,
        shape: AttentionShape,
    ) -> Result<Tensor, RuntimeError> {
        let (n, q_row) = q.dims2()?;
        let (q, k, v) = (f32_slice(q)?, f32_slice(k)?, f32_slice(v)?);
        let rotation = match &mut self.rotations {
            Some(rotations) => {
                let rotation = rotations.of_layer(local);
                rotation.cover(start + n);
                self.store.append(layer, &k, &v)?;
                Some(&*rotation as &dyn KeyRotation)
            }
            None => {
                self.store.append(layer, &rotated(&k, start, rope, shape), &v)?;
                None
            }
        };
        let (group, head_dim) = (shape.heads / shape.kv_heads, shape.head_dim);
        let span = group * head_dim;
        // One KV head after the other: [kv_heads, n, group, head_dim].
        let mut sums = vec![0f32; n * q_row];
        let tasks: Vec<(usize, usize, &mut [f32])> = sums
            .chunks_mut(n * span)
            .enumerate()
            .flat_map(|(kv_head, of_head)| {
                let blocks = of_head.chunks_mut(QUERY_BLOCK * span).enumerate();
                blocks.map(move |(block, out)| (kv_head, block * QUERY_BLOCK, out))
            })
            .collect();
        let (store, q) = (&self.store, &*q);
        let scale = shape.scale;
        tasks.into_par_iter().try_for_each_init(
            || (AttendScratch::new(group), Vec::new()),
            |(scratch, queries), (kv_head, first, out)| {
                queries.resize(out.len(), 0.0);
                for (i, to) in queries.chunks_exact_mut(span).enumerate() {
                    let from = &q[(first + i) * q_row + kv_head * span..][..span];
                    for (from, to) in from.chunks_exact(head_dim).zip(to.chunks_exact_mut(head_dim)) {
                        rope.rotate(start + first + i, from, scale, to);
                    }
                }
                store.attend(layer, kv_head, start + first, queries, rotation, scratch, out)
            },
        )?;
        self.store.settle(layer);
        if shape.kv_heads == 1 {
            return tensor2(sums, n, q_row);
        }
        let mut out = vec![0f32; n * q_row];
        for (i, row) in out.chunks_exact_mut(q_row).enumerate() {
            for (kv_head, to) in row.chunks_exact_mut(span).enumerate() {
                to.copy_from_slice(&sums[(kv_head * n + i) * span..][..span]);
            }
        }
        tensor2(out, n, q_row)
    }
}

/// Rows of keys, rotated by their positions from `start` on.
fn rotated(keys: &[f32], start: usize, rope: &RopeTable, shape: AttentionShape) -> Vec<f32> {
    let mut out = vec![0f32; keys.len()];
    let row = shape.kv_heads * shape.head_dim;
    for (i, (from, to)) in keys.chunks_exact(row).zip(out.chunks_exact_mut(row)).enumerate() {
        for (from, to) in from.chunks_exact(shape.head_dim).zip(to.chunks_exact_mut(shape.head_dim)) {
            rope.rotate(start + i, from, 1.0, to);
        }
    }
    out
}
