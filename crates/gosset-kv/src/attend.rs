//! Attention over what a store holds, without bringing it back as a whole.

use std::num::NonZeroUsize;
use std::ops::Range;

use gosset_transform::Backend;

use crate::products::{self, LANES};
use crate::store::Layer;
use crate::{KvError, KvStore, Role};

/// The rotation of keys by their position, for keys that are stored before it.
pub trait KeyRotation: Sync {
    /// Rotates a key, `head_dim` elements, as the model rotates it at `position`.
    fn rotate(&self, position: u64, key: &mut [f32]);
}

/// Room that [`KvStore::attend`] works in; grows to what a page and the queries of a call need, and can serve any store.
#[derive(Debug, Clone, Default)]
pub struct AttendScratch {
    group: Option<NonZeroUsize>,
    /// Queries for keys in original coordinates, `[head_dim, lanes]`.
    plain: Vec<f32>,
    /// Queries in the stored frame of keys, `[head_dim, lanes]`.
    framed: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Scores and then weights of a tile, `[positions, lanes]`.
    scores: Vec<f32>,
    /// Weighted sums of coded values in their stored frame, `[lanes, head_dim]`.
    coded: Vec<f32>,
    /// Weighted sums of exact values, `[lanes, head_dim]`.
    exact: Vec<f32>,
    /// Largest score so far, `[lanes]`.
    max: Vec<f32>,
    /// Sum of weights so far, `[lanes]`.
    total: Vec<f32>,
    factors: Vec<f32>,
    rows: Vec<u8>,
    bytes: Vec<u8>,
}

impl AttendScratch {
    /// For models where `group` query heads share a KV head; 0 is taken as 1.
    ///
    /// With the default scratch the queries of a call are those of all positions from its first to the last that is held.
    pub fn new(group: usize) -> Self {
        Self { group: NonZeroUsize::new(group.max(1)), ..Self::default() }
    }

    /// Bytes that it has allocated: what working with a store takes beside [`KvStore::memory`].
    pub fn allocated_bytes(&self) -> usize {
        let floats = [
            &self.plain,
            &self.framed,
            &self.keys,
            &self.values,
            &self.scores,
            &self.coded,
            &self.exact,
            &self.max,
            &self.total,
            &self.factors,
        ];
        let floats: usize = floats.iter().map(|own| own.capacity()).sum();
        floats * size_of::<f32>() + self.rows.capacity() + self.bytes.capacity()
    }
}

/// Positions whose keys and values are multiplied at once: their scores stay in the cache.
const TILE: usize = 64;

/// Which positions of a tile each query sees.
#[derive(Clone, Copy)]
struct Sight<'a> {
    store: &'a KvStore,
    layer: &'a Layer,
    part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Sinks,
    Coded,
    Recent,
}

impl Sight<'_> {
    /// Positions that the query at `position` sees in this part.
    fn range(&self, position: usize) -> Range<usize> {
        let from = self.store.band_start(self.layer, position);
        let sinks = self.store.kept_end(self.layer);
        let exact = self.store.exact_boundary(self.layer, position).max(sinks).max(self.layer.exact_from());
        match self.part {
            Part::Sinks => from..sinks.min(position + 1),
            Part::Coded => from.max(sinks)..exact.min(position + 1),
            Part::Recent => from.max(exact)..position + 1,
        }
    }
}

impl KvStore {
    /// Softmax attention of queries at positions `first`, `first + 1`, … of one KV head over everything they see.
    ///
    /// `queries` is `[n, group, head_dim]`, rotated and scaled; `out` has the same shape and gets Σ softmax(⟨q, k⟩) v. With `rope`, keys
    /// were stored before their rotation and are rotated on reading. Each page is decoded once per call. The order of sums depends on
    /// positions and, in the exact window, on what the chunk holds: results are the same on any machine and for any number of threads,
    /// and but for rounding for any chunks.
    ///
    /// A query sees exact what is held exact of its window. After a rewind, or when its chunk is settled, that can be less than its window.
    ///
    /// # Errors
    ///
    /// [`KvError::Index`] for a layer or head that does not exist; [`KvError::Length`] for slices that are not whole or differ;
    /// [`KvError::Positions`] for queries at positions that are not held, or that see positions dropped behind a band; errors of codecs.
    #[expect(clippy::too_many_arguments, reason = "a query is where it is, what it is and what it works with")]
    pub fn attend(
        &self,
        layer: usize,
        kv_head: usize,
        first: usize,
        queries: &[f32],
        rope: Option<&dyn KeyRotation>,
        scratch: &mut AttendScratch,
        out: &mut [f32],
    ) -> Result<(), KvError> {
        self.check_layer(layer)?;
        let (own, d) = (&self.layers[layer], self.shape.head_dim);
        self.check_head(kv_head)?;
        if out.len() != queries.len() {
            return Err(KvError::Length { what: "out", found: out.len(), expected: queries.len() });
        }
        if queries.is_empty() {
            return Ok(());
        }
        let held = own.len as u64;
        let beyond = KvError::Positions { asked: first as u64, held, reason: "queries are at positions that are held" };
        if first >= own.len {
            return Err(beyond);
        }
        // Queries of one position; without a group those that reach to the end tell.
        let span = scratch.group.map_or(queries.len() / (own.len - first), |group| group.get().saturating_mul(d));
        if span == 0 || !span.is_multiple_of(d) || !queries.len().is_multiple_of(span) {
            let expected = queries.len().next_multiple_of(span.next_multiple_of(d).max(d));
            return Err(KvError::Length { what: "queries", found: queries.len(), expected });
        }
        let (n, group) = (queries.len() / span, span / d);
        if first + n > own.len {
            return Err(beyond);
        }
        if self.band_start(own, first) < own.kept_from {
            let reason = "positions that the queries see were dropped behind the band";
            return Err(KvError::Positions { asked: first as u64, held, reason });
        }
        Pass { store: self, own, layer, kv_head, first, n, group, rope, scratch }.run(queries, out)
    }
}

/// One call of [`KvStore::attend`], its arguments checked.
struct Pass<'a> {
    store: &'a KvStore,
    own: &'a Layer,
    layer: usize,
    kv_head: usize,
    first: usize,
    n: usize,
    group: usize,
    rope: Option<&'a dyn KeyRotation>,
    scratch: &'a mut AttendScratch,
}

impl Pass<'_> {
    fn run(mut self, queries: &[f32], out: &mut [f32]) -> Result<(), KvError> {
        let (store, own, d) = (self.store, self.own, self.store.shape.head_dim);
        let backend = Backend::detect();
        let lanes = (self.n * self.group).next_multiple_of(LANES);
        let codes_keys = !own.rows(Role::Key).protected;
        let codes_values = !own.rows(Role::Value).protected;
        let key_place = store.coding(self.layer, Role::Key).place(self.kv_head);
        let s = &mut *self.scratch;
        transpose(queries, d, lanes, &mut s.plain);
        // Keys that are rotated on reading are read in original coordinates.
        let framed = codes_keys && self.rope.is_none();
        if framed {
            out.copy_from_slice(queries);
            for query in out.chunks_exact_mut(d) {
                store.codec(Role::Key).query_to_frame(key_place, query);
            }
            transpose(out, d, lanes, &mut s.framed);
        }
        refill(&mut s.coded, lanes * d, 0.0);
        refill(&mut s.exact, lanes * d, 0.0);
        refill(&mut s.max, lanes, f32::NEG_INFINITY);
        refill(&mut s.total, lanes, 0.0);
        refill(&mut s.factors, lanes, 1.0);

        let last = self.first + self.n - 1;
        for part in [Part::Sinks, Part::Coded, Part::Recent] {
            let sight = Sight { store, layer: own, part };
            // Ranges of later queries begin and end later.
            let seen = sight.range(self.first).start..sight.range(last).end;
            for segment in self.segments(part) {
                let segment = segment.start.max(seen.start)..segment.end.min(seen.end);
                if !segment.is_empty() {
                    self.attend_segment(backend, sight, segment, framed, codes_values, lanes)?;
                }
            }
        }

        let s = &*self.scratch;
        let value_place = store.coding(self.layer, Role::Value).place(self.kv_head);
        for (lane, out) in out.chunks_exact_mut(d).enumerate() {
            out.copy_from_slice(&s.coded[lane * d..(lane + 1) * d]);
            if codes_values {
                store.codec(Role::Value).value_from_frame(value_place, out);
            }
            // Every query sees itself, so the sum of weights is at least 1.
            let total = s.total[lane];
            for (out, exact) in out.iter_mut().zip(&s.exact[lane * d..]) {
                *out = (*out + exact) / total;
            }
        }
        Ok(())
    }

    /// Positions of a part as they lie together: pages, then open rows.
    fn segments(&self, part: Part) -> Vec<Range<usize>> {
        let (store, own) = (self.store, self.own);
        let kept = store.kept_end(own).min(own.len);
        match part {
            Part::Sinks => tiles(0..kept),
            Part::Recent => tiles(own.exact_from().max(kept)..own.len),
            Part::Coded => {
                let Some(rows) = own.roles.iter().find(|rows| !rows.protected) else { return Vec::new() };
                let pages = rows.coded.pages(store.policy.page).map(|page| page.positions());
                pages.chain([rows.coded.open_positions()]).collect()
            }
        }
    }

    /// Adds positions that lie together: the part of a page that is seen, all open rows, a tile of exact rows.
    fn attend_segment(
        &mut self,
        backend: Backend,
        sight: Sight<'_>,
        segment: Range<usize>,
        framed: bool,
        codes_values: bool,
        lanes: usize,
    ) -> Result<(), KvError> {
        let d = self.store.shape.head_dim;
        let coded = sight.part == Part::Coded;
        let decoded = self.read(Role::Key, sight.part, segment.clone())?;
        let keys_at = segment.start - decoded;
        if let Some(rope) = self.rope {
            let keys = &mut self.scratch.keys[keys_at * d..][..segment.len() * d];
            for (position, key) in segment.clone().zip(keys.chunks_exact_mut(d)) {
                rope.rotate(position as u64, key);
            }
        }
        let decoded = self.read(Role::Value, sight.part, segment.clone())?;
        let values_at = segment.start - decoded;
        for tile in tiles(segment.clone()) {
            let s = &mut *self.scratch;
            let (at, m) = (tile.start - segment.start, tile.len());
            // Queries that see nothing of the tile are the first and the last ones.
            let sees = |i: &usize| {
                let range = sight.range(self.first + i);
                range.start < tile.end && tile.start < range.end
            };
            let Some(from) = (0..self.n).find(sees) else { continue };
            let to = (from..self.n).rev().find(sees).map_or(from, |i| i + 1);
            let (from, to) = (from * self.group / LANES * LANES, (to * self.group).next_multiple_of(LANES));
            let keys = &s.keys[(keys_at + at) * d..][..m * d];
            let values = &s.values[(values_at + at) * d..][..m * d];
            let queries = if coded && framed { &s.framed } else { &s.plain };
            refill(&mut s.scores, m * (to - from), 0.0);
            backend.vectorize(products::Scores {
                keys,
                queries,
                d,
                lanes: from..to,
                stride: lanes,
                scores: &mut s.scores,
            });
            for lane in from..to {
                let query = lane / self.group;
                let range = if query < self.n { sight.range(self.first + query) } else { 0..0 };
                mask(&mut s.scores, to - from, lane - from, &tile, range);
            }
            backend.vectorize(products::Softmax {
                scores: &mut s.scores,
                max: &mut s.max[from..to],
                total: &mut s.total[from..to],
                factors: &mut s.factors[from..to],
            });
            for sums in [&mut s.coded, &mut s.exact] {
                products::scale_rows(&mut sums[from * d..to * d], &s.factors[from..to]);
            }
            let sums = if coded && codes_values { &mut s.coded } else { &mut s.exact };
            backend.vectorize(products::Sums { values, weights: &s.scores, d, sums: &mut sums[from * d..to * d] });
        }
        Ok(())
    }

    /// Vectors of a segment into the scratch of their role. Returns the position of the first one there, which for a page is that of the
    /// page.
    fn read(&mut self, role: Role, part: Part, segment: Range<usize>) -> Result<usize, KvError> {
        let (store, own, head) = (self.store, self.own, self.kv_head);
        let (d, s) = (store.shape.head_dim, &mut *self.scratch);
        let out = if role == Role::Key { &mut s.keys } else { &mut s.values };
        let rows = own.rows(role);
        if part != Part::Coded || rows.protected {
            let ring = if part == Part::Sinks || rows.protected { &rows.kept } else { &rows.recent };
            out.resize(segment.len() * d, 0.0);
            for (position, out) in segment.clone().zip(out.chunks_exact_mut(d)) {
                ring.read(position, head * d, out);
            }
            return Ok(segment.start);
        }
        let (coding, codec) = (store.coding(self.layer, role), store.codec(role));
        let place = coding.place(head);
        let open = rows.coded.open_positions();
        let first = if segment.start >= open.start {
            // Whole blocks, from the first on.
            let whole = open.start..open.start + (segment.end - open.start).next_multiple_of(codec.block().max(1));
            rows.coded.open_rows(&coding, head, whole.start..whole.end.min(open.end), &mut s.rows);
            out.resize(s.rows.len() / codec.row_bytes() * d, 0.0);
            codec.dequantize(place, open.start as u64, &s.rows, out)?;
            open.start
        } else {
            let Some(page) = rows.coded.page_at(segment.start, coding.page) else {
                let reason = "no page holds them";
                return Err(KvError::Positions { asked: segment.start as u64, held: own.len as u64, reason });
            };
            out.resize(page.packed * d, 0.0);
            let body = page.body(&coding, head, &mut s.bytes)?;
            codec.decode(place, page.first as u64, body, &mut s.rows, out)?;
            page.first
        };
        if role == Role::Key && self.rope.is_some() {
            codec.keys_from_frame(place, out);
        }
        Ok(first)
    }
}

/// Takes out of the scores of a tile, `[positions, width]`, what a lane does not see.
fn mask(scores: &mut [f32], width: usize, lane: usize, tile: &Range<usize>, seen: Range<usize>) {
    if seen.start <= tile.start && tile.end <= seen.end {
        return;
    }
    for (position, row) in tile.clone().zip(scores.chunks_exact_mut(width)) {
        if !seen.contains(&position) {
            row[lane] = f32::NEG_INFINITY;
        }
    }
}

/// Cuts positions into tiles.
fn tiles(positions: Range<usize>) -> Vec<Range<usize>> {
    positions.clone().step_by(TILE).map(|from| from..positions.end.min(from + TILE)).collect()
}

fn refill(own: &mut Vec<f32>, n: usize, value: f32) {
    own.clear();
    own.resize(n, value);
}

/// `[rows, d]` to `[d, lanes]`, zero beyond the rows.
fn transpose(x: &[f32], d: usize, lanes: usize, out: &mut Vec<f32>) {
    refill(out, d * lanes, 0.0);
    for (lane, row) in x.chunks_exact(d).enumerate() {
        for (k, x) in row.iter().enumerate() {
            out[k * lanes + lane] = *x;
        }
    }
}
