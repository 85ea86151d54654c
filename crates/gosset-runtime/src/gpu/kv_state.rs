//! A compressed cache on a device: pages in code, exact positions beside them.

use std::sync::Arc;

use gosset_cuda::launch::copy::copy_blocks;
use gosset_cuda::launch::kv::{
    KvRing, KvScratch, KvShiftLayer, KvShiftModel, PAGE, kv_copy_rows, kv_decode, kv_seal, kv_step,
};
use gosset_cuda::launch::model::{AttentionShape, Rope, Rows, attend, rope_append};
use gosset_cuda::{Buffer, DevSlice, DevSliceMut, DeviceType, Gpu, StreamRef};
use gosset_kv::{KvMemory, KvShape};
use half::f16;

use super::kv_plan::KvPlan;
use super::ledger::Ledger;
use crate::error::RuntimeError;

/// Keys and values of all layers, keys first in each pair of buffers.
///
/// A step reads pages as they are. A prompt is attended to in a copy of one layer at a time in f16, which all layers share.
#[derive(Debug)]
pub(crate) struct KvState {
    plan: Arc<KvPlan>,
    tables: Arc<KvShiftModel>,
    ledger: Ledger,
    /// `[layers, kv_heads, pages, page]`.
    pages: [Buffer<u8>; 2],
    /// `[layers, kv_heads, sinks, head_dim]`.
    sinks: [Buffer<f16>; 2],
    /// `[layers, kv_heads, ring, head_dim]`.
    ring: [Buffer<f16>; 2],
    scratch: KvScratch,
    flat: Option<Flat>,
    /// Position of the first row of the pass that is under way.
    at: usize,
}

/// One layer in f16, `[kv_heads, capacity, head_dim]`.
#[derive(Debug)]
struct Flat {
    shape: AttentionShape,
    sides: [Buffer<f16>; 2],
}

/// The part of a layer in buffers of all layers.
fn layer_of<T: DeviceType>(buffer: &Buffer<T>, layer: usize, layers: usize) -> Result<DevSlice<'_, T>, RuntimeError> {
    let len = buffer.len() / layers;
    Ok(buffer.as_slice().slice(layer * len..(layer + 1) * len)?)
}

/// The part of a layer in buffers of all layers, to write.
fn layer_of_mut<T: DeviceType>(
    buffer: &mut Buffer<T>,
    layer: usize,
    layers: usize,
) -> Result<DevSliceMut<'_, T>, RuntimeError> {
    let len = buffer.len() / layers;
    Ok(buffer.as_mut().slice(layer * len..(layer + 1) * len)?)
}

fn both<T>(mut make: impl FnMut(usize) -> Result<T, RuntimeError>) -> Result<[T; 2], RuntimeError> {
    Ok([make(0)?, make(1)?])
}

impl KvState {
    /// Without positions, with room for `shape.capacity` of them.
    pub(super) fn new(gpu: &Gpu, plan: &Arc<KvPlan>, shape: &AttentionShape) -> Result<Self, RuntimeError> {
        let tables = plan.tables(gpu, shape.capacity)?;
        let sizes = *tables.shape();
        Ok(Self {
            ledger: plan.ledger(),
            pages: both(|side| Ok(gpu.alloc(sizes.layers * sizes.page_bytes()[side])?))?,
            sinks: both(|_| Ok(gpu.alloc(sizes.layers * sizes.sink_len())?))?,
            ring: both(|_| Ok(gpu.alloc(sizes.layers * sizes.tail_len())?))?,
            scratch: KvScratch::new(gpu, shape)?,
            flat: None,
            at: 0,
            plan: Arc::clone(plan),
            tables,
        })
    }

    /// Makes room for more positions.
    pub(super) fn grow(&mut self, gpu: &Gpu, stream: StreamRef<'_>, capacity: usize) -> Result<(), RuntimeError> {
        let tables = self.plan.tables(gpu, capacity)?;
        let sizes = *tables.shape();
        let blocks = sizes.layers * sizes.kv_heads;
        let held = self.plan.string_bytes().map(|bytes| self.ledger.sealed() * PAGE * (1 + bytes));
        let pages = both(|side| {
            let mut grown = gpu.alloc(sizes.layers * sizes.page_bytes()[side])?;
            copy_blocks(gpu, stream, blocks, self.pages[side].as_slice(), grown.as_mut(), held[side])?;
            Ok(grown)
        })?;
        stream.synchronize()?;
        (self.tables, self.pages, self.flat) = (tables, pages, None);
        Ok(())
    }

    /// Prepares for `rows` rows from `position` on: seals what they see in code.
    pub(super) fn begin(
        &mut self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        shape: &AttentionShape,
        position: usize,
        rows: usize,
    ) -> Result<(), RuntimeError> {
        let due = self.ledger.due(position);
        let [keys, values] = &mut self.pages;
        let ring = [self.ring[0].as_slice(), self.ring[1].as_slice()];
        kv_seal(gpu, stream, &self.tables, due.clone(), ring, [keys.as_mut(), values.as_mut()])?;
        self.ledger.pass(due.end, position + rows);
        self.at = position;
        if rows > 1 && self.flat.as_ref().is_none_or(|flat| flat.shape != *shape) {
            self.flat = None;
            let sides = both(|_| Ok(gpu.alloc(shape.cache_len())?))?;
            self.flat = Some(Flat { shape: *shape, sides });
        }
        Ok(())
    }

    /// Rotation, append and attention of the only row in layer `layer`.
    pub(super) fn step(
        &mut self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        layer: usize,
        rope: &Rope<'_>,
        qkv: [Rows<'_>; 3],
        out: DevSliceMut<'_, f32>,
    ) -> Result<(), RuntimeError> {
        let layers = self.tables.shape().layers;
        let pages = [layer_of(&self.pages[0], layer, layers)?, layer_of(&self.pages[1], layer, layers)?];
        let [sink_keys, sink_values] = &mut self.sinks;
        let [ring_keys, ring_values] = &mut self.ring;
        let sinks = [layer_of_mut(sink_keys, layer, layers)?, layer_of_mut(sink_values, layer, layers)?];
        let tail = [layer_of_mut(ring_keys, layer, layers)?, layer_of_mut(ring_values, layer, layers)?];
        let cache = KvShiftLayer { layer, pages, sinks, tail };
        Ok(kv_step(gpu, stream, &self.tables, rope, qkv, cache, &mut self.scratch, out)?)
    }

    /// Rotation, append and attention of several rows in layer `layer`, of which `q` gets the rotated queries.
    #[expect(clippy::too_many_arguments, reason = "the arrays of one operation")]
    pub(super) fn prompt(
        &mut self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        layer: usize,
        rope: &Rope<'_>,
        qkv: [Rows<'_>; 3],
        mut q: DevSliceMut<'_, f32>,
        out: DevSliceMut<'_, f32>,
    ) -> Result<(), RuntimeError> {
        let sizes = *self.tables.shape();
        let (layers, heads) = (sizes.layers, (sizes.kv_heads, sizes.head_dim));
        let Some(Flat { shape, sides: [keys, values] }) = &mut self.flat else {
            unreachable!("made before the pass began")
        };
        let capacity = shape.capacity;
        macro_rules! ring_of {
            ($buffers:expr, $rows:expr) => {
                KvRing {
                    sides: [layer_of(&$buffers[0], layer, layers)?, layer_of(&$buffers[1], layer, layers)?],
                    rows: $rows,
                }
            };
        }
        macro_rules! flat_mut {
            () => {
                KvRing { sides: [keys.as_mut(), values.as_mut()], rows: capacity }
            };
        }
        // What is held.
        let sinks = 0..self.at.min(sizes.sinks);
        if !sinks.is_empty() {
            kv_copy_rows(gpu, stream, heads, sinks, ring_of!(self.sinks, sizes.sinks), flat_mut!())?;
        }
        let coded = [layer_of(&self.pages[0], layer, layers)?, layer_of(&self.pages[1], layer, layers)?];
        let sealed = 0..self.ledger.sealed();
        kv_decode(gpu, stream, &self.tables, layer, sealed, coded, [keys.as_mut(), values.as_mut()], capacity)?;
        let exact = self.ledger.exact(self.at);
        kv_copy_rows(gpu, stream, heads, exact, ring_of!(self.ring, sizes.tail), flat_mut!())?;
        // The pass.
        rope_append(gpu, stream, shape, rope, qkv, q.reborrow(), keys.as_mut(), values.as_mut())?;
        attend(gpu, stream, shape, rope.position, q.as_slice(), keys.as_slice(), values.as_slice(), out)?;
        // What it adds.
        let n = q.len() / (shape.heads * shape.head_dim);
        let end = self.at + n;
        let from = KvRing { sides: [keys.as_slice(), values.as_slice()], rows: capacity };
        let new_sinks = self.at.min(sizes.sinks)..end.min(sizes.sinks);
        for (positions, buffers, rows) in [
            (new_sinks, &mut self.sinks, sizes.sinks),
            (self.at.max(sizes.sinks)..end.max(sizes.sinks), &mut self.ring, sizes.tail),
        ] {
            if positions.is_empty() {
                continue;
            }
            let [k, v] = buffers;
            let to = KvRing { sides: [layer_of_mut(k, layer, layers)?, layer_of_mut(v, layer, layers)?], rows };
            kv_copy_rows(gpu, stream, heads, positions, from, to)?;
        }
        Ok(())
    }

    /// Goes back to at most `len` positions; returns how many are held then.
    pub(super) fn rewind(&mut self, len: usize) -> usize {
        self.ledger.rewind(len)
    }

    /// Bytes of pages and exact positions, whether they hold something or not.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = self.pages.iter().map(Buffer::bytes).sum::<usize>()
            + self.sinks.iter().chain(&self.ring).map(Buffer::bytes).sum::<usize>();
        bytes as u64
    }

    /// Bytes of everything else.
    pub(super) fn workspace_bytes(&self) -> u64 {
        let flat = self.flat.as_ref().map_or(0, |flat| flat.sides.iter().map(Buffer::bytes).sum());
        (flat + self.scratch.bytes() + self.tables.bytes()) as u64
    }

    /// What `held` positions take, by cause.
    pub(super) fn memory(&self, held: usize) -> KvMemory {
        let KvShape { layers, kv_heads, head_dim } = self.plan.shape();
        let (layers, vectors) = (layers as u64, (layers * kv_heads) as u64);
        let sealed = self.ledger.sealed() as u64;
        let coded = sealed * PAGE as u64;
        let position = 4 * vectors * head_dim as u64;
        let sinks = held.min(self.tables.shape().sinks) as u64;
        let exact = (held as u64).saturating_sub(sinks + coded);
        let mut memory = KvMemory {
            codes: coded * vectors * self.plan.string_bytes().iter().sum::<usize>() as u64,
            scales: coded * vectors * 2,
            sinks: sinks * position,
            window: exact * position,
            positions: held as u64 * layers,
            scalars: held as u64 * 2 * vectors * head_dim as u64,
            page_scalars: coded * 2 * vectors * head_dim as u64,
            pages: sealed * layers,
            ..KvMemory::default()
        };
        memory.slack = self.bytes().saturating_sub(memory.total());
        memory
    }

    /// Rows of a head in the ring, exact positions `[rows, head_dim]`, for tests.
    #[cfg(test)]
    pub(crate) fn exact_rows(&self, gpu: &Gpu, place: gosset_kv::Place, positions: std::ops::Range<usize>) -> Vec<f32> {
        let sizes = self.tables.shape();
        let ring = gpu.download(self.ring[usize::from(place.role == gosset_kv::Role::Value)].as_slice()).unwrap();
        let head = (place.layer as usize * sizes.kv_heads + place.head as usize) * sizes.tail;
        let row = |p: usize| (head + p % sizes.tail) * sizes.head_dim;
        positions.flat_map(|p| ring[row(p)..][..sizes.head_dim].iter().map(|v| v.to_f32())).collect()
    }

    /// A sealed page of a head, and what the processor makes of the same vectors, for tests.
    #[cfg(test)]
    pub(crate) fn page(&self, gpu: &Gpu, place: gosset_kv::Place, page: usize, vectors: &[f32]) -> [Vec<u8>; 2] {
        let sizes = self.tables.shape();
        let side = usize::from(place.role == gosset_kv::Role::Value);
        let bytes = PAGE * (1 + self.plan.string_bytes()[side]);
        let all = gpu.download(self.pages[side].as_slice()).unwrap();
        let head = place.layer as usize * sizes.kv_heads + place.head as usize;
        let found = all[(head * sizes.pages + page) * bytes..][..bytes].to_vec();
        [found, self.plan.page(place, (sizes.sinks + page * PAGE) as u64, vectors)]
    }
}
