//! Caches under the bit-shift trellis on the device: attention over pages and exact rows, sealing, and back.
//!
//! Of the positions of a sequence the first [`sinks`](KvShiftShape::sinks) are exact, then come pages of [`PAGE`] in code, as many as leave a
//! window exact, then exact rows in a ring. Exact keys are rotated, exact values as they came. Pages have the bytes of the codec `shift` of
//! gosset-kv: `[kv_heads, pages, page]` per layer. The first position is read from the device, so that one captured graph serves every step;
//! pages are sealed between steps, by [`kv_seal`] for all layers at once.

use std::ops::Range;

use half::{bf16, f16};

use super::checks::{check_len, to_u32};
use super::model::{AttentionShape, Rope, Rows, head_blocks, launch, ptr};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{
    KvCopyRowsParams, KvExactAttendParams, KvShiftDecodeParams, KvShiftEncodeParams, KvShiftStepParams,
};
use crate::gpu::Gpu;
use crate::kernel::image;
use crate::memory::{Buffer, DevSlice, DevSliceMut};
use crate::stream::StreamRef;

/// Positions of a page.
pub const PAGE: usize = 64;

/// Bytes of the replicated table, which the kernel wants at an address of its own.
const TABLE_BYTES: usize = 1024 + 128 * 1024;
/// Modules of a step with the warps of their blocks: as many as hide latency, then fewer, for pages that are too wide for that many slots.
const STEPS_64: &[(Module, usize)] = &[(Module::KvShiftStep64, 16)];
const STEPS_128: &[(Module, usize)] = &[(Module::KvShiftStep128, 16), (Module::KvShiftStep12812, 12)];
const MAX_SPLITS: usize = 64;
const MAX_STRING_BITS: usize = 1280;
const EXACT_BLOCK: u32 = 256;
const ENCODE_BLOCK: u32 = 256;

/// What a cache holds, for all layers of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShiftShape {
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Columns of a head: 64 or 128.
    pub head_dim: usize,
    /// Bits of a state: 10 or 12.
    pub state_bits: u32,
    /// Bits of the string of a key, a multiple of 8.
    pub key_bits: usize,
    /// Bits of the string of a value, a multiple of 8.
    pub value_bits: usize,
    /// First positions, which stay exact.
    pub sinks: usize,
    /// Newest positions, which are exact.
    pub window: usize,
    /// Rows of the ring of exact positions: a multiple of [`PAGE`], at least `window + PAGE`.
    pub tail: usize,
    /// Pages that there is room for.
    pub pages: usize,
    /// Whether rotary pairs are neighbouring columns; else they are half a head apart.
    pub interleaved: bool,
}

impl KvShiftShape {
    /// Pages of code before the step at `position`.
    #[must_use]
    pub fn sealed(&self, position: usize) -> usize {
        (position.saturating_sub(self.sinks + self.window) / PAGE).min(self.pages)
    }

    /// Positions that there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.sinks + PAGE * self.pages + self.tail
    }

    /// Bytes of the pages of one layer: keys and values.
    #[must_use]
    pub fn page_bytes(&self) -> [usize; 2] {
        [self.key_bits, self.value_bits].map(|bits| self.kv_heads * self.pages * PAGE * (1 + bits / 8))
    }

    /// Elements of the sinks of one layer, of keys or of values.
    #[must_use]
    pub fn sink_len(&self) -> usize {
        self.kv_heads * self.sinks * self.head_dim
    }

    /// Elements of the ring of one layer, of keys or of values.
    #[must_use]
    pub fn tail_len(&self) -> usize {
        self.kv_heads * self.tail * self.head_dim
    }

    fn attention(&self) -> AttentionShape {
        let Self { heads, kv_heads, head_dim, .. } = *self;
        AttentionShape { heads, kv_heads, head_dim, capacity: self.capacity() }
    }

    fn check(&self) -> Result<(), CudaError> {
        self.attention().check()?;
        let wrong = |what, expected: String, found: usize| Err(CudaError::shape(what, expected, found));
        if !matches!(self.head_dim, 64 | 128) {
            return wrong("columns of a head of a compressed cache", "64 or 128".into(), self.head_dim);
        }
        if !matches!(self.state_bits, 10 | 12) {
            return wrong("bits of a state", "10 or 12".into(), self.state_bits as usize);
        }
        for (what, bits) in
            [("bits of the string of a key", self.key_bits), ("bits of the string of a value", self.value_bits)]
        {
            if !(32..=MAX_STRING_BITS).contains(&bits) || !bits.is_multiple_of(8) {
                return wrong(what, format!("a multiple of 8 from 32 to {MAX_STRING_BITS}"), bits);
            }
        }
        if self.layers == 0 || self.layers > 65_535 {
            return wrong("layers", "1 to 65535".into(), self.layers);
        }
        if !self.tail.is_multiple_of(PAGE) || self.tail < self.window + PAGE {
            return wrong(
                "rows of a ring",
                format!("a multiple of {PAGE}, at least {}", self.window + PAGE),
                self.tail,
            );
        }
        let mut lens = self.page_bytes().into_iter().chain([self.tail_len(), self.sink_len()]);
        lens.try_for_each(|len| to_u32("elements of a layer's cache", len).map(|_| ()))
    }

    /// Elements of `len` per pair of all key heads.
    fn key_pairs(&self) -> usize {
        self.layers * self.kv_heads * self.head_dim / 2
    }
}

/// The numbers of a code, from the codec on the host.
#[derive(Debug, Clone, Copy)]
pub struct KvShiftTables<'a> {
    /// 1024 pairs of binary16, first coordinate lower.
    pub table: &'a [u32],
    /// A · 2^(17 − L).
    pub multiplier: u32,
    /// Inverses of the 256 scales.
    pub inverses: &'a [f32],
    /// Bits of steps, `[layers, kv_heads, head_dim / 2]`: 0 or 2 to 10.
    pub key_bits: &'a [u8],
    /// What keys, less their rotated mean, are multiplied by before their scale is taken, by pair.
    pub key_scales: &'a [f32],
    /// And after it: what makes targets.
    pub key_targets: &'a [f32],
    /// What errors of a step count.
    pub key_weights: &'a [f32],
    /// What points are multiplied by, beside the scale: the way back.
    pub key_factors: &'a [f32],
    /// One over the number of coordinates that have bits, `[layers, kv_heads]`.
    pub key_shares: &'a [f32],
    /// `[layers, kv_heads, head_dim]`, before the rotation.
    pub key_means: Option<&'a [f32]>,
    /// Cosine and sine by position and pair, `[positions, head_dim / 2, 2]`, at least 32 positions and all that pages and ring have room for.
    pub rotations: &'a [f32],
    /// Bits of steps, `[head_dim / 2]`: 2 to 10.
    pub value_bits: &'a [u8],
    /// What makes targets of scaled values, by pair.
    pub value_targets: &'a [f32],
    /// What points are multiplied by, beside the scale.
    pub value_factors: &'a [f32],
    /// One over the number of coordinates.
    pub value_share: f32,
    /// A bit per column, set where the transform of values turns it, `[layers, head_dim / 32]`.
    pub value_signs: &'a [u32],
}

/// Tables of a model's cache on the device.
#[derive(Debug)]
pub struct KvShiftModel {
    shape: KvShiftShape,
    multiplier: u32,
    value_share: f32,
    table: Buffer<u32>,
    inverses: Buffer<f32>,
    key_bits: Buffer<u8>,
    key_ends: Buffer<u16>,
    key_scales: Buffer<f32>,
    key_targets: Buffer<f32>,
    key_weights: Buffer<f32>,
    key_factors: Buffer<f32>,
    key_shares: Buffer<f32>,
    key_means: Option<Buffer<f32>>,
    rotations: Buffer<f32>,
    value_bits: Buffer<u8>,
    value_ends: Buffer<u16>,
    value_targets: Buffer<f32>,
    value_factors: Buffer<f32>,
    value_signs: Buffer<u32>,
    /// Bytes that the way back of the longest search needs.
    way_bytes: usize,
    /// Module and warps of a step.
    step: (Module, usize),
    shared_bytes: u32,
}

/// Ends of steps, checked.
fn ends(what: &'static str, bits: &[u8], total: usize, least: u8) -> Result<Vec<u16>, CudaError> {
    let mut end = 0u16;
    let ends = bits.iter().map(|&k| {
        if k < least || k == 1 || k > 10 {
            return Err(CudaError::shape(what, format!("{least} or 2 to 10 in each step"), k));
        }
        end += u16::from(k);
        Ok(end)
    });
    let ends = ends.collect::<Result<Vec<_>, _>>()?;
    if usize::from(end) != total {
        return Err(CudaError::shape(what, format!("{total} in all"), end));
    }
    Ok(ends)
}

impl KvShiftModel {
    /// Checks tables and brings them to the device.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for what does not fit the shape or the device, [`CudaError::OutOfMemory`].
    pub fn new(gpu: &Gpu, shape: KvShiftShape, tables: &KvShiftTables<'_>) -> Result<Self, CudaError> {
        shape.check()?;
        let (half, pairs, lines) = (shape.head_dim / 2, shape.key_pairs(), shape.layers * shape.kv_heads);
        check_len("table of a trellis", tables.table.len(), 1024)?;
        check_len("inverses of scales", tables.inverses.len(), 256)?;
        for (what, len) in [
            ("bits of keys", tables.key_bits.len()),
            ("scales of keys", tables.key_scales.len()),
            ("targets of keys", tables.key_targets.len()),
            ("weights of keys", tables.key_weights.len()),
            ("factors of keys", tables.key_factors.len()),
        ] {
            check_len(what, len, pairs)?;
        }
        check_len("shares of keys", tables.key_shares.len(), lines)?;
        tables.key_means.map_or(Ok(()), |means| check_len("means of keys", means.len(), lines * shape.head_dim))?;
        check_len("bits of values", tables.value_bits.len(), half)?;
        check_len("targets of values", tables.value_targets.len(), half)?;
        check_len("factors of values", tables.value_factors.len(), half)?;
        check_len("signs of values", tables.value_signs.len(), shape.layers * shape.head_dim / 32)?;
        let positions = shape.capacity().max(32);
        if tables.rotations.len() < positions * shape.head_dim {
            let found = tables.rotations.len() / shape.head_dim;
            return Err(CudaError::shape("positions of rotations", format!("at least {positions}"), found));
        }
        let mut key_ends = Vec::with_capacity(pairs);
        for bits in tables.key_bits.chunks_exact(half) {
            key_ends.extend(ends("bits of a key", bits, shape.key_bits, 0)?);
        }
        let value_ends = ends("bits of a value", tables.value_bits, shape.value_bits, 2)?;
        // Steps without bits give nothing, whatever their factor.
        let key_factors: Vec<f32> =
            tables.key_factors.iter().zip(tables.key_bits).map(|(&f, &bits)| if bits == 0 { 0.0 } else { f }).collect();
        let ways = |bits: &[u8]| -> usize {
            let of =
                |k: u8| ((1usize << (shape.state_bits - u32::from(k))) * if k > 8 { 2 } else { 1 }).next_multiple_of(4);
            let coded = || bits.iter().filter(|k| **k > 0).map(|&k| of(k));
            // The first walk is traced over 24 steps, around short rings more than once.
            if coded().count() < 24 { 24 * coded().max().unwrap_or(0) } else { coded().sum() }
        };
        let way_bytes = tables.key_bits.chunks_exact(half).chain([tables.value_bits]).map(ways).max().unwrap_or(0);

        let d = shape.head_dim;
        let slot = |bits: usize| 128 * (bits / 32 + 3);
        let slots = slot(shape.key_bits) + slot(shape.value_bits) + 4 * d;
        let shared = |warps: usize| {
            let own = 16 * d + 32 * (d + 4) + 64 * d + 4 * d + 3 * warps * 16;
            TABLE_BYTES + own + warps * slots.max(16 * d)
        };
        let most = gpu.info().max_shared_bytes as usize;
        let steps = if d == 64 { STEPS_64 } else { STEPS_128 };
        let built = steps.iter().filter(|(module, _)| image(*module, gpu.info().capability).is_some());
        let step = *built.clone().find(|(_, warps)| shared(*warps) <= most).ok_or_else(|| {
            let least = built.map(|(_, warps)| shared(*warps)).min().unwrap_or_default();
            CudaError::shape("shared memory for a compressed cache", format!("at least {least} bytes per block"), most)
        })?;
        Ok(Self {
            shape,
            multiplier: tables.multiplier,
            value_share: tables.value_share,
            table: gpu.upload(tables.table)?,
            inverses: gpu.upload(tables.inverses)?,
            key_bits: gpu.upload(tables.key_bits)?,
            key_ends: gpu.upload(&key_ends)?,
            key_scales: gpu.upload(tables.key_scales)?,
            key_targets: gpu.upload(tables.key_targets)?,
            key_weights: gpu.upload(tables.key_weights)?,
            key_factors: gpu.upload(&key_factors)?,
            key_shares: gpu.upload(tables.key_shares)?,
            key_means: tables.key_means.map(|means| gpu.upload(means)).transpose()?,
            rotations: gpu.upload(tables.rotations)?,
            value_bits: gpu.upload(tables.value_bits)?,
            value_ends: gpu.upload(&value_ends)?,
            value_targets: gpu.upload(tables.value_targets)?,
            value_factors: gpu.upload(tables.value_factors)?,
            value_signs: gpu.upload(tables.value_signs)?,
            way_bytes,
            step,
            shared_bytes: shared(step.1) as u32,
        })
    }

    /// What the cache holds.
    #[must_use]
    pub fn shape(&self) -> &KvShiftShape {
        &self.shape
    }

    /// Bytes of device memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let floats = [&self.key_scales, &self.key_targets, &self.key_weights, &self.key_factors, &self.key_shares];
        floats.iter().map(|b| b.bytes()).sum::<usize>()
            + [&self.inverses, &self.rotations, &self.value_targets, &self.value_factors]
                .iter()
                .map(|b| b.bytes())
                .sum::<usize>()
            + [&self.table, &self.value_signs].iter().map(|b| b.bytes()).sum::<usize>()
            + self.key_bits.bytes()
            + self.value_bits.bytes()
            + self.key_ends.bytes()
            + self.value_ends.bytes()
            + self.key_means.as_ref().map_or(0, Buffer::bytes)
    }

    /// A layer's part of `buffer`, of which all layers have as much.
    fn part<'a, T: crate::memory::DeviceType>(
        &self,
        buffer: &'a Buffer<T>,
        layer: usize,
    ) -> Result<DevSlice<'a, T>, CudaError> {
        let len = buffer.len() / self.shape.layers;
        buffer.as_slice().slice(layer * len..(layer + 1) * len)
    }

    fn means(&self, layer: usize) -> Result<Option<DevSlice<'_, f32>>, CudaError> {
        self.key_means.as_ref().map(|means| self.part(means, layer)).transpose()
    }

    /// 1/√head_dim, rounded to f32.
    fn value_scale(&self) -> f32 {
        (1.0 / (self.shape.head_dim as f64).sqrt()) as f32
    }
}

/// Scratch of [`kv_step`] and [`kv_exact`].
#[derive(Debug)]
pub struct KvScratch {
    parts: Buffer<f32>,
    queries: Buffer<f32>,
    counters: Buffer<u32>,
    n_splits: usize,
}

impl KvScratch {
    /// For layers with these heads, one at a time.
    ///
    /// # Errors
    /// [`CudaError::Shape`], [`CudaError::OutOfMemory`].
    pub fn new(gpu: &Gpu, shape: &AttentionShape) -> Result<Self, CudaError> {
        shape.check()?;
        let blocks = head_blocks(shape);
        // One block per multiprocessor.
        let n_splits = (gpu.info().n_sms as usize / blocks).clamp(1, MAX_SPLITS);
        let parts = gpu.alloc(shape.heads * n_splits * (2 * shape.head_dim + 4))?;
        let queries = gpu.alloc(shape.heads * (3 * shape.head_dim + 2))?;
        Ok(Self { parts, queries, counters: gpu.alloc(blocks)?, n_splits })
    }

    fn check(&self, shape: &AttentionShape) -> Result<(), CudaError> {
        let parts = shape.heads * self.n_splits * (2 * shape.head_dim + 4);
        let queries = shape.heads * (3 * shape.head_dim + 2);
        if self.parts.len() < parts || self.queries.len() < queries || self.counters.len() < head_blocks(shape) {
            return Err(CudaError::shape("scratch of attention", "that of this shape", "that of another"));
        }
        Ok(())
    }

    /// Bytes of device memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.bytes() + self.queries.bytes() + self.counters.bytes()
    }
}

/// One layer's cache; arrays are keys, then values.
#[derive(Debug)]
pub struct KvShiftLayer<'a> {
    /// Number of the layer.
    pub layer: usize,
    /// Pages, [`KvShiftShape::page_bytes`].
    pub pages: [DevSlice<'a, u8>; 2],
    /// First positions, [`KvShiftShape::sink_len`].
    pub sinks: [DevSliceMut<'a, f16>; 2],
    /// The ring, [`KvShiftShape::tail_len`].
    pub tail: [DevSliceMut<'a, f16>; 2],
}

fn check_layer(shape: &KvShiftShape, layer: usize, pages: [usize; 2]) -> Result<(), CudaError> {
    if layer >= shape.layers {
        return Err(CudaError::shape("layer", format!("below {}", shape.layers), layer));
    }
    let [keys, values] = shape.page_bytes();
    check_len("pages of keys", pages[0], keys)?;
    check_len("pages of values", pages[1], values)
}

/// Rotation, append and attention of one row, as [`attend_step`](super::model::attend_step) over a compressed cache.
///
/// `x` are queries `[heads, head_dim]`, keys and values `[kv_heads, head_dim]`. All pages that [`KvShiftShape::sealed`] counts are there.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
#[expect(clippy::too_many_arguments, reason = "the arrays of one operation")]
pub fn kv_step(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    model: &KvShiftModel,
    rope: &Rope<'_>,
    x: [Rows<'_>; 3],
    cache: KvShiftLayer<'_>,
    scratch: &mut KvScratch,
    out: DevSliceMut<'_, f32>,
) -> Result<(), CudaError> {
    let shape = &model.shape;
    let attention = shape.attention();
    rope.check(&attention)?;
    scratch.check(&attention)?;
    let KvShiftShape { heads, kv_heads, head_dim, .. } = *shape;
    if rope.interleaved != shape.interleaved {
        return Err(CudaError::shape("rotary pairs", "those of the cache", "others"));
    }
    check_layer(shape, cache.layer, [cache.pages[0].len(), cache.pages[1].len()])?;
    check_len("result of attention", out.len(), heads * head_dim)?;
    x[0].check("queries", 1, heads * head_dim)?;
    x[1].check("keys", 1, kv_heads * head_dim)?;
    x[2].check("values", 1, kv_heads * head_dim)?;
    for (sinks, tail) in cache.sinks.iter().zip(&cache.tail) {
        check_len("sinks", sinks.len(), shape.sink_len())?;
        check_len("ring of exact rows", tail.len(), shape.tail_len())?;
    }
    let layer = cache.layer;
    let params = KvShiftStepParams {
        x_q: x[0].values.ptr(),
        x_k: x[1].values.ptr(),
        x_v: x[2].values.ptr(),
        bias: ptr(rope.bias),
        q_norm: ptr(rope.q_norm),
        k_norm: ptr(rope.k_norm),
        turns: rope.turns.ptr(),
        position: rope.position.ptr(),
        key_pages: cache.pages[0].ptr(),
        value_pages: cache.pages[1].ptr(),
        sink_keys: cache.sinks[0].ptr(),
        sink_values: cache.sinks[1].ptr(),
        tail_keys: cache.tail[0].ptr(),
        tail_values: cache.tail[1].ptr(),
        table: model.table.as_slice().ptr(),
        key_ends: model.part(&model.key_ends, layer)?.ptr(),
        key_factors: model.part(&model.key_factors, layer)?.ptr(),
        key_means: ptr(model.means(layer)?),
        rotations: model.rotations.as_slice().ptr(),
        value_ends: model.value_ends.as_slice().ptr(),
        value_factors: model.value_factors.as_slice().ptr(),
        value_signs: model.part(&model.value_signs, layer)?.ptr(),
        queries: scratch.queries.as_slice().ptr(),
        parts: scratch.parts.as_slice().ptr(),
        counters: scratch.counters.as_slice().ptr(),
        out: out.ptr(),
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        sinks: to_u32("sinks", shape.sinks)?,
        window: to_u32("window", shape.window)?,
        tail: to_u32("rows of a ring", shape.tail)?,
        pages: to_u32("pages", shape.pages)?,
        key_bits: shape.key_bits as u32,
        value_bits: shape.value_bits as u32,
        multiplier: model.multiplier,
        min_span: 1,
        interleaved: shape.interleaved.into(),
        scale: 1.0 / (head_dim as f32).sqrt(),
        eps: rope.eps,
        value_scale: model.value_scale(),
    };
    let (module, warps) = model.step;
    let grid = [scratch.n_splits as u32, head_blocks(&attention) as u32, 1];
    let heads_of_all = [to_u32("heads", heads + 2 * kv_heads)?, 1, 1];
    // SAFETY: the lengths were checked; both kernels keep positions within pages and ring.
    unsafe {
        launch(gpu, stream, (module, "kv_shift_query"), (heads_of_all, 32, 0), &params)?;
        launch(gpu, stream, (module, "kv_shift_attend"), (grid, 32 * warps as u32, model.shared_bytes), &params)
    }
}

/// Codes `pages` of all layers from the ring of exact rows, which has them all: the bytes that the codec writes on the host.
///
/// `tail` and `to` are those of all layers, keys, then values.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
pub fn kv_seal(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    model: &KvShiftModel,
    pages: Range<usize>,
    tail: [DevSlice<'_, f16>; 2],
    to: [DevSliceMut<'_, u8>; 2],
) -> Result<(), CudaError> {
    let shape = &model.shape;
    let [key_bytes, value_bytes] = shape.page_bytes();
    check_len("pages of keys", to[0].len(), shape.layers * key_bytes)?;
    check_len("pages of values", to[1].len(), shape.layers * value_bytes)?;
    for tail in &tail {
        check_len("rings of exact rows", tail.len(), shape.layers * shape.tail_len())?;
    }
    if pages.start > pages.end || pages.end > shape.pages || pages.len() * PAGE > shape.tail {
        let most = shape.pages;
        return Err(CudaError::shape(
            "pages to seal",
            format!("within {most}, as many as a ring has"),
            format!("{pages:?}"),
        ));
    }
    if pages.is_empty() {
        return Ok(());
    }
    let params = KvShiftEncodeParams {
        keys: tail[0].ptr(),
        values: tail[1].ptr(),
        key_pages: to[0].ptr(),
        value_pages: to[1].ptr(),
        table: model.table.as_slice().ptr(),
        inverses: model.inverses.as_slice().ptr(),
        key_bits: model.key_bits.as_slice().ptr(),
        key_scales: model.key_scales.as_slice().ptr(),
        key_targets: model.key_targets.as_slice().ptr(),
        key_weights: model.key_weights.as_slice().ptr(),
        key_shares: model.key_shares.as_slice().ptr(),
        key_means: ptr(model.key_means.as_ref().map(Buffer::as_slice)),
        rotations: model.rotations.as_slice().ptr(),
        value_bits: model.value_bits.as_slice().ptr(),
        value_targets: model.value_targets.as_slice().ptr(),
        value_signs: model.value_signs.as_slice().ptr(),
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
        rows: shape.tail as u32,
        row_stride: shape.head_dim as u32,
        first_page: pages.start as u32,
        first_position: shape.sinks as u32,
        pages: shape.pages as u32,
        multiplier: model.multiplier,
        interleaved: shape.interleaved.into(),
        value_scale: model.value_scale(),
        value_share: model.value_share,
    };
    let states = 1usize << shape.state_bits;
    let shared = states * 4 + states + model.way_bytes;
    let module = if shape.state_bits == 10 { Module::KvShiftEncode10 } else { Module::KvShiftEncode12 };
    let grid = [to_u32("rows to seal", pages.len() * PAGE)?, 2 * shape.kv_heads as u32, shape.layers as u32];
    // SAFETY: the lengths were checked, and positions of the pages are those that rotations have.
    unsafe { launch(gpu, stream, (module, "kv_shift_encode"), (grid, ENCODE_BLOCK, shared as u32), &params) }
}

/// Rows of halves of `pages` of one layer, each in the row of its position: `keys` and `values` are `[kv_heads, capacity, head_dim]`.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
#[expect(clippy::too_many_arguments, reason = "the arrays of one operation")]
pub fn kv_decode(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    model: &KvShiftModel,
    layer: usize,
    pages: Range<usize>,
    from: [DevSlice<'_, u8>; 2],
    to: [DevSliceMut<'_, f16>; 2],
    capacity: usize,
) -> Result<(), CudaError> {
    let shape = &model.shape;
    check_layer(shape, layer, [from[0].len(), from[1].len()])?;
    for to in &to {
        check_len("rows of a cache", to.len(), shape.kv_heads * capacity * shape.head_dim)?;
    }
    if pages.start > pages.end || pages.end > shape.pages || shape.sinks + pages.end * PAGE > capacity {
        return Err(CudaError::shape("pages to decode", "those that there is room for", format!("{pages:?}")));
    }
    if pages.is_empty() {
        return Ok(());
    }
    let params = KvShiftDecodeParams {
        key_pages: from[0].ptr(),
        value_pages: from[1].ptr(),
        keys: to[0].ptr(),
        values: to[1].ptr(),
        table: model.table.as_slice().ptr(),
        key_ends: model.part(&model.key_ends, layer)?.ptr(),
        key_factors: model.part(&model.key_factors, layer)?.ptr(),
        key_means: ptr(model.means(layer)?),
        rotations: model.rotations.as_slice().ptr(),
        value_ends: model.value_ends.as_slice().ptr(),
        value_factors: model.value_factors.as_slice().ptr(),
        value_signs: model.part(&model.value_signs, layer)?.ptr(),
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
        row_stride: shape.head_dim as u32,
        capacity: to_u32("rows of a cache", capacity)?,
        first_page: pages.start as u32,
        first_position: shape.sinks as u32,
        pages: shape.pages as u32,
        key_bits: shape.key_bits as u32,
        value_bits: shape.value_bits as u32,
        multiplier: model.multiplier,
        interleaved: shape.interleaved.into(),
        value_scale: model.value_scale(),
    };
    let grid = [to_u32("rows to decode", pages.len() * 8)?, 2 * shape.kv_heads as u32, 1];
    // SAFETY: the lengths were checked.
    unsafe { launch(gpu, stream, (Module::KvShiftRows, "kv_shift_decode"), (grid, 256, 0), &params) }
}

/// Rows of the same heads: keys, then values, `[kv_heads, rows, head_dim]`; position p is in row p modulo `rows`.
#[derive(Debug, Clone, Copy)]
pub struct KvRing<S> {
    /// Keys and values.
    pub sides: [S; 2],
    /// Rows of a head.
    pub rows: usize,
}

/// Copies the rows of `positions`, all heads, from one ring to another; a flat cache is a ring that has room for all.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
pub fn kv_copy_rows(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    (kv_heads, head_dim): (usize, usize),
    positions: Range<usize>,
    from: KvRing<DevSlice<'_, f16>>,
    to: KvRing<DevSliceMut<'_, f16>>,
) -> Result<(), CudaError> {
    let row = head_dim.next_multiple_of(8);
    for side in &from.sides {
        check_len("rows to copy", side.len(), kv_heads * from.rows * row)?;
    }
    for side in &to.sides {
        check_len("copy of rows", side.len(), kv_heads * to.rows * row)?;
    }
    if positions.start > positions.end || positions.len() > from.rows.min(to.rows) {
        return Err(CudaError::shape("positions to copy", from.rows.min(to.rows), format!("{positions:?}")));
    }
    let n = positions.len() * kv_heads * 2 * row / 8;
    if n == 0 {
        return Ok(());
    }
    let params = KvCopyRowsParams {
        from_keys: from.sides[0].ptr(),
        from_values: from.sides[1].ptr(),
        to_keys: to.sides[0].ptr(),
        to_values: to.sides[1].ptr(),
        kv_heads: to_u32("heads", kv_heads)?,
        row_vectors: (row / 8) as u32,
        from_rows: to_u32("rows", from.rows)?,
        to_rows: to_u32("rows", to.rows)?,
        first: to_u32("position", positions.start)?,
        end: to_u32("position", positions.end)?,
    };
    let grid = [to_u32("elements to copy", n)?.div_ceil(256).min(8 * gpu.info().n_sms), 1, 1];
    // SAFETY: the lengths were checked.
    unsafe { launch(gpu, stream, (Module::KvShiftRows, "kv_copy_rows"), (grid, 256, 0), &params) }
}

/// Attention of one row over `length` positions of bf16, queries `[heads, 128]`: what compressed caches are compared with.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
#[expect(clippy::too_many_arguments, reason = "the arrays of one operation")]
pub fn kv_exact(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    shape: &AttentionShape,
    q: DevSlice<'_, f32>,
    [keys, values]: [DevSlice<'_, bf16>; 2],
    length: DevSlice<'_, u32>,
    scratch: &mut KvScratch,
    out: DevSliceMut<'_, f32>,
) -> Result<(), CudaError> {
    shape.check()?;
    scratch.check(shape)?;
    if shape.head_dim != 128 {
        return Err(CudaError::shape("columns of a head", 128, shape.head_dim));
    }
    check_len("queries", q.len(), shape.heads * shape.head_dim)?;
    check_len("result of attention", out.len(), shape.heads * shape.head_dim)?;
    check_len("keys", keys.len(), shape.cache_len())?;
    check_len("values", values.len(), shape.cache_len())?;
    check_len("length", length.len(), 1)?;
    let params = KvExactAttendParams {
        q: q.ptr(),
        keys: keys.ptr(),
        values: values.ptr(),
        length: length.ptr(),
        parts: scratch.parts.as_slice().ptr(),
        counters: scratch.counters.as_slice().ptr(),
        out: out.ptr(),
        heads: shape.heads as u32,
        kv_heads: shape.kv_heads as u32,
        capacity: to_u32("positions of a cache", shape.capacity)?,
        min_span: 1,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
    };
    let grid = [scratch.n_splits as u32, head_blocks(shape) as u32, 1];
    // SAFETY: the lengths were checked; the kernel keeps positions within the capacity.
    unsafe { launch(gpu, stream, (Module::KvExactAttend, "kv_exact_attend"), (grid, EXACT_BLOCK, 0), &params) }
}
