//! The small operations of a decoder. Products with dense matrices are in [`dense`](super::dense).
//!
//! Everything is row-major; activations are f32. The position of the first row is read from the device, so that one captured
//! graph serves every step of a generation.

use half::{bf16, f16};

use super::checks::to_u32;
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{
    ModelArgmaxParams, ModelAttendParams, ModelCacheCopyParams, ModelEmbedParams, ModelNormParams, ModelRopeParams,
    ModelSiluParams, ModelStepParams,
};
use crate::gpu::Gpu;
use crate::kernel::{Launch, Params};
use crate::memory::{Buffer, DevSlice, DevSliceMut, DeviceType};
use crate::stream::StreamRef;

pub use super::dense::{dense, dense_strided};
pub use super::random::{random_normal, random_shift};

/// Widest head that attention takes.
pub const MAX_HEAD_DIM: usize = 256;

/// Columns of a tile of the rotation that norms and gates can do as they write.
pub const ROTATED_TILE: usize = 128;

/// Most spans that the positions of one row are cut into.
const MAX_SPLITS: usize = 64;

/// Least positions of a span: below, merging costs more than it saves.
const MIN_SPAN: u32 = 256;

/// Query heads that a block of the splitting kernels takes.
const BLOCK_HEADS: usize = 4;

/// Widest batch of the products that read each weight once per warp.
pub const GEMV_BATCH: usize = 8;

/// Element types of dense weights.
pub trait DenseElement: DeviceType {
    /// Products with these weights.
    #[doc(hidden)]
    const MODULE: DenseModule;
    /// The value nearest to `v`.
    fn from_f32(v: f32) -> Self;
    /// The value.
    fn to_f32(self) -> f32;
}

/// Which module serves a type.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct DenseModule {
    /// One activation.
    pub(super) module: Module,
    /// Up to [`GEMV_BATCH`].
    pub(super) batch: Module,
    embed: &'static str,
    /// As kernels count types.
    pub(super) number: u32,
}

impl DenseElement for f32 {
    const MODULE: DenseModule = DenseModule {
        module: Module::ModelDenseF32,
        batch: Module::ModelBatchF32,
        embed: "model_embed_f32",
        number: 0,
    };
    fn from_f32(v: f32) -> Self {
        v
    }
    fn to_f32(self) -> f32 {
        self
    }
}

impl DenseElement for f16 {
    const MODULE: DenseModule = DenseModule {
        module: Module::ModelDenseF16,
        batch: Module::ModelBatchF16,
        embed: "model_embed_f16",
        number: 1,
    };
    fn from_f32(v: f32) -> Self {
        f16::from_f32(v)
    }
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
}

impl DenseElement for bf16 {
    const MODULE: DenseModule = DenseModule {
        module: Module::ModelDenseBf16,
        batch: Module::ModelBatchBf16,
        embed: "model_embed_bf16",
        number: 2,
    };
    fn from_f32(v: f32) -> Self {
        bf16::from_f32(v)
    }
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
}

/// Element types of keys and values.
pub trait CacheElement: DeviceType {
    /// Attention over this type.
    #[doc(hidden)]
    const MODULE: CacheModule;
}

/// Which module serves a type.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct CacheModule {
    /// Steps of attention.
    module: Module,
    is_f32: bool,
}

impl CacheElement for f32 {
    const MODULE: CacheModule = CacheModule { module: Module::ModelAttendF32, is_f32: true };
}

impl CacheElement for f16 {
    const MODULE: CacheModule = CacheModule { module: Module::ModelAttendF16, is_f32: false };
}

/// Heads of an attention layer and room of its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Columns of a head: even, at most [`MAX_HEAD_DIM`].
    pub head_dim: usize,
    /// Positions that the cache has room for.
    pub capacity: usize,
}

impl AttentionShape {
    /// Elements from one position of a head to the next in the cache.
    #[must_use]
    pub fn head_stride(&self) -> usize {
        self.head_dim.next_multiple_of(8)
    }

    /// Elements of the keys (or the values) of one layer.
    #[must_use]
    pub fn cache_len(&self) -> usize {
        self.kv_heads * self.capacity * self.head_stride()
    }

    /// Columns of queries, keys and values of one position.
    #[must_use]
    pub fn qkv_len(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    pub(super) fn check(&self) -> Result<(), CudaError> {
        let Self { heads, kv_heads, head_dim, capacity } = *self;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) || heads == 0 || heads + 2 * kv_heads > 65_535 {
            return Err(CudaError::shape(
                "heads of attention",
                "a multiple of the key heads, at most 65535 in all",
                heads,
            ));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
            return Err(CudaError::shape(
                "columns of a head",
                format!("an even number up to {MAX_HEAD_DIM}"),
                head_dim,
            ));
        }
        if capacity == 0 || capacity > i32::MAX as usize {
            return Err(CudaError::shape("positions of a cache", "1 to 2^31 - 1", capacity));
        }
        Ok(())
    }
}

/// Scratch of [`attend_step`], which cuts the positions into spans.
#[derive(Debug)]
pub struct AttentionScratch {
    parts: Buffer<f32>,
    counters: Buffer<u32>,
    n_splits: usize,
}

impl AttentionScratch {
    /// For layers of this shape, one at a time.
    ///
    /// # Errors
    /// [`CudaError::Shape`], [`CudaError::OutOfMemory`].
    pub fn new(gpu: &Gpu, shape: &AttentionShape) -> Result<Self, CudaError> {
        shape.check()?;
        // About two blocks per multiprocessor.
        let n_splits = (2 * gpu.info().n_sms as usize).div_ceil(head_blocks(shape)).clamp(1, MAX_SPLITS);
        Ok(Self {
            parts: gpu.alloc(shape.heads * n_splits * (shape.head_stride() + 2))?,
            counters: gpu.alloc(head_blocks(shape))?,
            n_splits,
        })
    }

    fn check(&self, shape: &AttentionShape) -> Result<(), CudaError> {
        let parts = shape.heads * self.n_splits * (shape.head_stride() + 2);
        if self.parts.len() < parts || self.counters.len() < head_blocks(shape) {
            return Err(CudaError::shape("scratch of attention", "that of this shape", "that of another"));
        }
        Ok(())
    }

    /// Bytes of device memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.bytes() + self.counters.bytes()
    }
}

/// Blocks that the query heads of one row are cut into.
pub(super) fn head_blocks(shape: &AttentionShape) -> usize {
    shape.kv_heads * (shape.heads / shape.kv_heads).div_ceil(BLOCK_HEADS)
}

pub(super) fn expect(what: &'static str, found: usize, expected: Option<usize>) -> Result<(), CudaError> {
    match expected {
        Some(expected) if expected == found => Ok(()),
        Some(expected) => Err(CudaError::shape(what, format!("{expected} elements"), found)),
        None => Err(CudaError::shape(what, "a size that can be counted", found)),
    }
}

pub(super) fn ptr<T: DeviceType>(slice: Option<DevSlice<'_, T>>) -> u64 {
    slice.map_or(0, |s| s.ptr())
}

/// Whether the kernels of a module wait for their predecessor by themselves, where the device can do that: those that have a text
/// for such devices.
fn waits(module: Module) -> bool {
    use Module as M;
    matches!(module, M::ModelOps | M::ModelAttendF16 | M::ModelDenseF16 | M::ModelDenseBf16 | M::KvShiftStep128)
}

/// Launches `entry`.
///
/// # Safety
/// That of [`Kernel::launch`](crate::kernel::Kernel::launch).
pub(super) unsafe fn launch<P: Params>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    (module, entry): (Module, &'static str),
    (grid, block, shared_bytes): ([u32; 3], u32, u32),
    params: &P,
) -> Result<(), CudaError> {
    let launch = Launch { grid, block: [block, 1, 1], shared_bytes, programmatic: waits(module) };
    // SAFETY: by the contract of this function.
    unsafe { gpu.kernel(module, entry)?.launch(stream, launch, params) }
}

/// `x[i] = table[tokens[i]]`: `table` is `[vocab, cols]`, `x` `[tokens.len(), cols]`.
///
/// An id beyond the table reads its last row; the caller checks ids.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
pub fn embed<T: DenseElement>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    table: DevSlice<'_, T>,
    tokens: DevSlice<'_, u32>,
    cols: usize,
    x: DevSliceMut<'_, f32>,
) -> Result<(), CudaError> {
    expect("x of an embedding", x.len(), tokens.len().checked_mul(cols))?;
    let vocab = table.len().checked_div(cols).unwrap_or(0);
    expect("table of an embedding", table.len(), Some(vocab * cols))?;
    if vocab == 0 {
        return Err(CudaError::shape("table of an embedding", "at least one row", 0));
    }
    let params = ModelEmbedParams {
        table: table.ptr(),
        tokens: tokens.ptr(),
        x: x.ptr(),
        cols: to_u32("columns", cols)?,
        vocab: to_u32("rows of a table", vocab)?,
    };
    let grid = [to_u32("tokens", tokens.len())?, 1, 1];
    // SAFETY: the lengths were checked; the kernel keeps ids within the table.
    unsafe { launch(gpu, stream, (Module::ModelOps, T::MODULE.embed), (grid, 256, 0), &params) }
}

/// Rows of activations that may lie further apart than they are wide.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// All rows; the last one may end early.
    pub values: DevSlice<'a, f32>,
    /// Elements from one row to the next.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// Three (or any number of) neighbouring parts of rows of `[n, sum of widths]`.
    ///
    /// # Errors
    /// [`CudaError::Shape`] if `values` is shorter.
    pub fn parts<const N: usize>(
        values: DevSlice<'a, f32>,
        n: usize,
        widths: [usize; N],
    ) -> Result<[Rows<'a>; N], CudaError> {
        let stride = widths.iter().sum::<usize>();
        expect("rows of activations", values.len(), n.checked_mul(stride))?;
        let mut parts = [Rows { values, stride }; N];
        let mut at = 0;
        for (part, width) in parts.iter_mut().zip(widths) {
            part.values = values.slice(at.min(values.len())..values.len())?;
            at += width;
        }
        Ok(parts)
    }

    pub(super) fn check(&self, what: &'static str, n: usize, cols: usize) -> Result<u32, CudaError> {
        let needed = n.checked_sub(1).map_or(Some(0), |n| n.checked_mul(self.stride)?.checked_add(cols));
        if self.stride < cols || needed.is_none_or(|needed| self.values.len() < needed) {
            return Err(CudaError::shape(what, format!("{n} rows of {cols}"), self.values.len()));
        }
        to_u32("distance of rows", self.stride)
    }
}

/// What a normalization adds to the residual stream first.
#[derive(Debug, Clone, Copy)]
pub struct Delta<'a> {
    /// `[n, cols]`.
    pub values: DevSlice<'a, f32>,
    /// `[cols]`.
    pub bias: Option<DevSlice<'a, f32>>,
}

/// Signs of a rotation by tiles of 128 columns, for rows of `cols` columns.
fn check_signs(signs: Option<DevSlice<'_, u32>>, cols: usize) -> Result<(), CudaError> {
    match signs {
        Some(signs) if !cols.is_multiple_of(ROTATED_TILE) || signs.len() * 32 < cols => {
            let expected = format!("a bit for each of {cols} columns, in whole tiles of {ROTATED_TILE}");
            Err(CudaError::shape("signs of a rotation", expected, signs.len()))
        }
        _ => Ok(()),
    }
}

/// `x += delta`, then `out = x / sqrt(mean(x²) + eps) * weight`; `x` and `out` are `[n, weight.len()]`.
///
/// With `signs`, `out` is rotated by tiles of [`ROTATED_TILE`] columns as [`DeviceRht`](super::rht::DeviceRht) does, bit for bit.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
#[expect(clippy::too_many_arguments, reason = "one pass over the residual stream")]
pub fn rmsnorm(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    x: DevSliceMut<'_, f32>,
    delta: Option<Delta<'_>>,
    weight: DevSlice<'_, f32>,
    eps: f32,
    signs: Option<DevSlice<'_, u32>>,
    out: DevSliceMut<'_, f32>,
) -> Result<(), CudaError> {
    let cols = weight.len();
    check_signs(signs, cols)?;
    if cols == 0 || !x.len().is_multiple_of(cols) {
        return Err(CudaError::shape("x of a norm", format!("rows of {cols}"), x.len()));
    }
    expect("result of a norm", out.len(), Some(x.len()))?;
    if let Some(delta) = &delta {
        expect("delta of a norm", delta.values.len(), Some(x.len()))?;
        delta.bias.map_or(Ok(()), |b| expect("bias of a norm", b.len(), Some(cols)))?;
    }
    let params = ModelNormParams {
        x: x.ptr(),
        delta: ptr(delta.map(|d| d.values)),
        delta_bias: ptr(delta.and_then(|d| d.bias)),
        weight: weight.ptr(),
        signs: ptr(signs),
        out: out.ptr(),
        cols: to_u32("columns", cols)?,
        eps,
    };
    let block = (cols.div_ceil(4).next_multiple_of(32) as u32).clamp(32, 1024);
    let grid = [to_u32("rows", x.len() / cols)?, 1, 1];
    // SAFETY: the lengths were checked.
    unsafe { launch(gpu, stream, (Module::ModelOps, "model_rmsnorm"), (grid, block, 0), &params) }
}

/// What [`rope_append`] reads beside the activations.
#[derive(Debug, Clone, Copy)]
pub struct Rope<'a> {
    /// Turns per position of each pair, `[head_dim / 2]`: the angular frequency over 2π.
    pub turns: DevSlice<'a, f64>,
    /// Whether pairs are neighbouring columns; else they are half a head apart.
    pub interleaved: bool,
    /// `[qkv_len]`, added first.
    pub bias: Option<DevSlice<'a, f32>>,
    /// Weight of the norm of each query head, `[head_dim]`.
    pub q_norm: Option<DevSlice<'a, f32>>,
    /// Weight of the norm of each key head, `[head_dim]`.
    pub k_norm: Option<DevSlice<'a, f32>>,
    /// Added to the mean square in both norms.
    pub eps: f32,
    /// Position of the first row, one element.
    pub position: DevSlice<'a, u32>,
}

impl Rope<'_> {
    pub(super) fn check(&self, shape: &AttentionShape) -> Result<(), CudaError> {
        expect("turns of a rotation", self.turns.len(), Some(shape.head_dim / 2))?;
        expect("position", self.position.len(), Some(1))?;
        for (norm, what) in [(self.q_norm, "norm of queries"), (self.k_norm, "norm of keys")] {
            norm.map_or(Ok(()), |norm| expect(what, norm.len(), Some(shape.head_dim)))?;
        }
        self.bias.map_or(Ok(()), |bias| expect("bias of qkv", bias.len(), Some(shape.qkv_len())))
    }
}

/// Rotates queries and keys, and puts keys and values into the cache.
///
/// `x` are queries, keys and values: `[n, heads, head_dim]` and twice `[n, kv_heads, head_dim]`. `q` gets the rotated queries times `1 / sqrt(head_dim)`, `[n, heads, head_dim]`.
/// `keys` and `values` are one layer's, [`AttentionShape::cache_len`] each; positions beyond the capacity are not written.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
#[expect(clippy::too_many_arguments, reason = "five arrays of one operation")]
pub fn rope_append<C: CacheElement>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    shape: &AttentionShape,
    rope: &Rope<'_>,
    x: [Rows<'_>; 3],
    q: DevSliceMut<'_, f32>,
    keys: DevSliceMut<'_, C>,
    values: DevSliceMut<'_, C>,
) -> Result<(), CudaError> {
    shape.check()?;
    let AttentionShape { heads, kv_heads, head_dim, capacity } = *shape;
    let n = q.len() / (heads * head_dim);
    expect("rotated queries", q.len(), Some(n * heads * head_dim))?;
    let strides = [
        x[0].check("queries", n, heads * head_dim)?,
        x[1].check("keys", n, kv_heads * head_dim)?,
        x[2].check("values", n, kv_heads * head_dim)?,
    ];
    expect("keys", keys.len(), Some(shape.cache_len()))?;
    expect("values", values.len(), Some(shape.cache_len()))?;
    rope.check(shape)?;
    let params = ModelRopeParams {
        x_q: x[0].values.ptr(),
        x_k: x[1].values.ptr(),
        x_v: x[2].values.ptr(),
        bias: ptr(rope.bias),
        q_norm: ptr(rope.q_norm),
        k_norm: ptr(rope.k_norm),
        turns: rope.turns.ptr(),
        position: rope.position.ptr(),
        q: q.ptr(),
        keys: keys.ptr(),
        values: values.ptr(),
        q_stride: strides[0],
        k_stride: strides[1],
        v_stride: strides[2],
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        head_stride: shape.head_stride() as u32,
        capacity: capacity as u32,
        interleaved: rope.interleaved.into(),
        cache_f32: C::MODULE.is_f32.into(),
        scale: 1.0 / (head_dim as f32).sqrt(),
        eps: rope.eps,
    };
    let n_heads = (heads + 2 * kv_heads) as u32;
    for_rows(n, |n| {
        let grid = [n_heads.div_ceil(4), n, 1];
        // SAFETY: the lengths were checked; the kernel keeps positions within the capacity.
        unsafe { launch(gpu, stream, (Module::ModelOps, "model_rope"), (grid, 128, 0), &params) }
    })
}

/// Calls `f` with the number of rows; refuses more than the second dimension of a grid has.
fn for_rows(n: usize, f: impl FnOnce(u32) -> Result<(), CudaError>) -> Result<(), CudaError> {
    if n > 65_535 {
        return Err(CudaError::shape("rows of activations", "at most 65535", n));
    }
    f(n as u32)
}

/// Causal attention of `n` rows, of which the first is at `position`, over everything up to each of them.
///
/// `q` as [`rope_append`] leaves it; keys and values of the rows are in the cache. `out` is `[n, heads, head_dim]`.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
#[expect(clippy::too_many_arguments, reason = "four arrays of one operation")]
pub fn attend<C: CacheElement>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    shape: &AttentionShape,
    position: DevSlice<'_, u32>,
    q: DevSlice<'_, f32>,
    keys: DevSlice<'_, C>,
    values: DevSlice<'_, C>,
    out: DevSliceMut<'_, f32>,
) -> Result<(), CudaError> {
    shape.check()?;
    let AttentionShape { heads, kv_heads, head_dim, capacity } = *shape;
    let n = q.len() / (heads * head_dim);
    expect("q", q.len(), Some(n * heads * head_dim))?;
    expect("result of attention", out.len(), Some(q.len()))?;
    expect("keys", keys.len(), Some(shape.cache_len()))?;
    expect("values", values.len(), Some(shape.cache_len()))?;
    expect("position", position.len(), Some(1))?;
    let params = ModelAttendParams {
        q: q.ptr(),
        keys: keys.ptr(),
        values: values.ptr(),
        out: out.ptr(),
        position: position.ptr(),
        n: to_u32("rows", n)?,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        head_stride: shape.head_stride() as u32,
        capacity: capacity as u32,
        cache_f32: C::MODULE.is_f32.into(),
    };
    // Entry, padded columns, rows of a tile.
    let (entry, width, tile) = match head_dim {
        0..=64 => ("model_tile_64", 64, 64u32),
        65..=128 => ("model_tile_128", 128, 64),
        _ => ("model_tile_256", 256, 32),
    };
    let shared = (2 * tile * (width + 4) + tile * (tile + 4)) * 4;
    let grid = [params.n.div_ceil(tile), heads as u32, 1];
    // SAFETY: the lengths were checked; the kernel keeps positions within the capacity.
    unsafe { launch(gpu, stream, (Module::ModelTile, entry), (grid, 256, shared), &params) }
}

/// [`rope_append`] and [`attend`] of one row in one launch: `x` are its queries, keys and values, `out` is `[heads, head_dim]`.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
#[expect(clippy::too_many_arguments, reason = "five arrays of one operation")]
pub fn attend_step<C: CacheElement>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    shape: &AttentionShape,
    rope: &Rope<'_>,
    x: [Rows<'_>; 3],
    keys: DevSliceMut<'_, C>,
    values: DevSliceMut<'_, C>,
    scratch: &mut AttentionScratch,
    out: DevSliceMut<'_, f32>,
) -> Result<(), CudaError> {
    shape.check()?;
    rope.check(shape)?;
    let AttentionShape { heads, kv_heads, head_dim, capacity } = *shape;
    expect("result of attention", out.len(), Some(heads * head_dim))?;
    expect("keys", keys.len(), Some(shape.cache_len()))?;
    expect("values", values.len(), Some(shape.cache_len()))?;
    x[0].check("queries", 1, heads * head_dim)?;
    x[1].check("keys", 1, kv_heads * head_dim)?;
    x[2].check("values", 1, kv_heads * head_dim)?;
    scratch.check(shape)?;
    let params = ModelStepParams {
        x_q: x[0].values.ptr(),
        x_k: x[1].values.ptr(),
        x_v: x[2].values.ptr(),
        bias: ptr(rope.bias),
        q_norm: ptr(rope.q_norm),
        k_norm: ptr(rope.k_norm),
        turns: rope.turns.ptr(),
        position: rope.position.ptr(),
        keys: keys.ptr(),
        values: values.ptr(),
        new_keys: keys.ptr(),
        new_values: values.ptr(),
        out: out.ptr(),
        parts: scratch.parts.as_slice().ptr(),
        counters: scratch.counters.as_slice().ptr(),
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        head_stride: shape.head_stride() as u32,
        capacity: capacity as u32,
        interleaved: rope.interleaved.into(),
        min_span: MIN_SPAN,
        part_len: shape.head_stride() as u32 + 2,
        scale: 1.0 / (head_dim as f32).sqrt(),
        eps: rope.eps,
    };
    let wide = head_dim > 128 || C::MODULE.is_f32;
    let (entry, block) = if wide { ("model_step_256", 256) } else { ("model_step_128", 512) };
    let grid = [scratch.n_splits as u32, head_blocks(shape) as u32, 1];
    // SAFETY: the lengths were checked; the kernel keeps positions within the capacity.
    unsafe { launch(gpu, stream, (C::MODULE.module, entry), (grid, block, 0), &params) }
}

/// `out = silu(gate + bias) * (up + bias)`: `gate`, `up` and `out` are `[n, cols]`, `bias` `[2, cols]`.
///
/// With `signs`, `out` is rotated as by [`rmsnorm`].
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
pub fn silu_mul(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    [gate, up]: [Rows<'_>; 2],
    bias: Option<DevSlice<'_, f32>>,
    cols: usize,
    signs: Option<DevSlice<'_, u32>>,
    out: DevSliceMut<'_, f32>,
) -> Result<(), CudaError> {
    check_signs(signs, cols)?;
    if cols == 0 || !out.len().is_multiple_of(cols) {
        return Err(CudaError::shape("result of a gate", format!("rows of {cols}"), out.len()));
    }
    let n = out.len() / cols;
    let aligned = |rows: &Rows<'_>| rows.stride.is_multiple_of(4) && rows.values.ptr().is_multiple_of(16);
    let four = cols.is_multiple_of(4) && aligned(&gate) && aligned(&up);
    if signs.is_some() && !four {
        return Err(CudaError::shape("gate and up", "rows at multiples of 16 bytes", "others"));
    }
    bias.map_or(Ok(()), |bias| expect("bias of gate and up", bias.len(), cols.checked_mul(2)))?;
    let params = ModelSiluParams {
        gate: gate.values.ptr(),
        up: up.values.ptr(),
        bias: ptr(bias),
        signs: ptr(signs),
        out: out.ptr(),
        gate_stride: gate.check("gate", n, cols)?,
        up_stride: up.check("up", n, cols)?,
        cols: to_u32("columns", cols)?,
        width: if four { 4 } else { 1 },
    };
    for_rows(n, |n| {
        let grid = [params.cols.div_ceil(128 * params.width), n, 1];
        // SAFETY: the lengths were checked.
        unsafe { launch(gpu, stream, (Module::ModelOps, "model_silu_mul"), (grid, 128, 0), &params) }
    })
}

/// The likeliest next token, and the step to the next position.
#[derive(Debug)]
pub struct Argmax {
    best: Buffer<u64>,
    n_done: Buffer<u32>,
}

impl Argmax {
    /// Scratch for one stream.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self { best: gpu.alloc(1)?, n_done: gpu.alloc(1)? })
    }

    /// `token` becomes the index of the largest of `logits`, the first of equals; `position` grows by one.
    ///
    /// # Errors
    /// [`CudaError::Shape`], and what a launch can fail with.
    pub fn launch(
        &mut self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        logits: DevSlice<'_, f32>,
        token: DevSliceMut<'_, u32>,
        position: DevSliceMut<'_, u32>,
    ) -> Result<(), CudaError> {
        expect("token", token.len(), Some(1))?;
        expect("position", position.len(), Some(1))?;
        let vocab = to_u32("logits", logits.len())?;
        if vocab == 0 {
            return Err(CudaError::shape("logits", "at least one", 0));
        }
        let params = ModelArgmaxParams {
            logits: logits.ptr(),
            best: self.best.as_slice().ptr(),
            n_done: self.n_done.as_slice().ptr(),
            token: token.ptr(),
            position: position.ptr(),
            vocab,
        };
        let grid = [vocab.div_ceil(1024).clamp(1, gpu.info().n_sms), 1, 1];
        // SAFETY: the lengths were checked.
        unsafe { launch(gpu, stream, (Module::ModelOps, "model_argmax"), (grid, 256, 0), &params) }
    }
}

/// Copies the first `len` positions of every head of a layer's keys (or values) to a cache of another capacity.
///
/// # Errors
/// [`CudaError::Shape`], and what a launch can fail with.
pub fn copy_cache<C: CacheElement>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    (from_shape, from): (&AttentionShape, DevSlice<'_, C>),
    (to_shape, to): (&AttentionShape, DevSliceMut<'_, C>),
    len: usize,
) -> Result<(), CudaError> {
    from_shape.check()?;
    to_shape.check()?;
    expect("cache to copy", from.len(), Some(from_shape.cache_len()))?;
    expect("copy of a cache", to.len(), Some(to_shape.cache_len()))?;
    if (to_shape.kv_heads, to_shape.head_dim) != (from_shape.kv_heads, from_shape.head_dim) {
        return Err(CudaError::shape("copy of a cache", "the same heads", "others"));
    }
    if len > from_shape.capacity.min(to_shape.capacity) {
        return Err(CudaError::shape("positions to copy", from_shape.capacity.min(to_shape.capacity), len));
    }
    // Rows of a head are multiples of 8 elements of 2 or 4 bytes.
    let units = |positions: usize| (positions * to_shape.head_stride() * size_of::<C>() / 16) as u64;
    let params = ModelCacheCopyParams {
        from: from.ptr(),
        to: to.ptr(),
        from_units: units(from_shape.capacity),
        to_units: units(to_shape.capacity),
        n_units: units(len),
    };
    let grid = [params.n_units.div_ceil(256).min(64) as u32, to_shape.kv_heads as u32, 1];
    // SAFETY: the lengths were checked.
    unsafe { launch(gpu, stream, (Module::ModelOps, "model_cache_copy"), (grid, 256, 0), &params) }
}

/// Reads device memory in the order of the stream, and waits for it alone.
///
/// # Errors
/// [`CudaError::Shape`] if `out` has another length, [`CudaError::Driver`], also for what earlier kernels did wrong.
pub fn read<T: DeviceType>(
    gpu: &Gpu,
    stream: StreamRef<'_>,
    from: DevSlice<'_, T>,
    out: &mut [T],
) -> Result<(), CudaError> {
    expect("copy to the host", out.len(), Some(from.len()))?;
    gpu.bind()?;
    if !out.is_empty() {
        // SAFETY: both have the same length, and `out` lives until the stream has been waited for below.
        unsafe { cudarc::driver::result::memcpy_dtoh_async(out, from.ptr(), stream.cu()) }
            .map_err(|error| CudaError::driver("cuMemcpyDtoHAsync", error))?;
    }
    stream.synchronize()
}
