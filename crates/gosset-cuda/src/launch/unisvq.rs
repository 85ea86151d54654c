//! Products of affine-grid matrices: the map acts on the activation, the stream of weights is bare codes of 2 to 4 bits.
//!
//! Both transforms, the fold of the map and the factors of both sides are part of a product. Activations are rounded to 16 bits
//! under one scale; codes multiply them without error, in integers. More than eight activations are rounded to halves (`unisvq_gemm.rs`).

use gosset_transform::TilePlan;
use gosset_unisvq::{Frame, FrameHeader, UniSvqDecoder, UniSvqHeader};
use half::f16;

use super::checks::{check_len, to_u32};
use super::unisvq_gemm::{self, MAX_GEMM};
use super::unisvq_layout::{TILE_ROWS, UNIT_COLS, pack_tile, tile_words, unpack_tile};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{UniSvqParams, UniSvqPrepareParams};
use crate::gpu::Gpu;
use crate::kernel::{Kernel, Launch};
use crate::memory::{Buffer, DevSlice, DevSliceMut, DeviceType};
use crate::stream::StreamRef;

/// Rows that an output transform mixes.
pub(super) const GROUP_ROWS: usize = 128;
/// Warps of a block that prepares activations.
const PREPARE_WARPS: usize = 32;
/// Warps of a block that takes activations of up to 4096 columns.
pub(super) const WARPS: usize = 16;
/// Warps of a block for wider rows: two units of each are 14336 columns.
const WIDE_WARPS: usize = 28;
/// Activations of a block of operands.
const BLOCK: usize = 4;
/// Most activations that codes multiply as integers.
const MAX_FEW: usize = 2 * BLOCK;
/// Bytes of sums that wait.
const SUM_BYTES: usize = 16 << 10;
/// Row tiles on their way in each of two blocks of a multiprocessor: more only keep the next product waiting.
const SHARED_DEPTH: usize = 3;
/// Bytes of shared memory that the driver keeps for each block.
const RESERVED_BYTES: usize = 1024;
/// Most row tiles on their way.
const MAX_DEPTH: usize = 8;
/// Floats of A and B for one parity of lanes.
const TABLE_LEN: usize = 36;
/// 16-byte vectors of prepared activations per unit and block of four.
const PREPARED_VECTORS: u64 = 128;

const VECTOR_X: u32 = 1;
pub(super) const VECTOR_Y: u32 = 2;
const ADD: u32 = 4;
const FINISH: u32 = 8;
const INPUT: u32 = 16;
pub(super) const OUTPUT: u32 = 32;
pub(super) const HALVES: u32 = 64;

/// How the map meets four columns of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fold {
    Plain = 0,
    Fours = 1,
    Eights = 2,
}

/// One side's transform.
#[derive(Debug)]
struct Side {
    /// Whether there is one.
    rotates: bool,
    /// log2 of the tile of each column, where not all are of 128.
    logs: Option<Buffer<u8>>,
}

/// An affine-grid matrix on a device.
#[derive(Debug)]
pub struct DeviceUniSvq {
    gpu: Gpu,
    bits: u8,
    rows: usize,
    cols: usize,
    row_units: usize,
    words: Buffer<u32>,
    input_scales: Buffer<f16>,
    output_scales: Buffer<f16>,
    group_scales: Buffer<f32>,
    input: Side,
    output: Side,
    fold: Fold,
    fold_table: Buffer<f32>,
}

/// What products write beside their results: for one stream at a time. It grows with the first product that needs more, which
/// must not happen while a graph is captured: [`UniSvqWorkspace::reserve`] first.
#[derive(Debug, Default)]
pub struct UniSvqWorkspace {
    /// Sums before the output transform.
    pub(super) z: Option<Buffer<f32>>,
    counters: Option<Buffer<u32>>,
    pub(super) prepared: Option<Buffer<u32>>,
    pub(super) activations: Option<Buffer<f32>>,
}

/// Elements of the buffers of a [`UniSvqWorkspace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UniSvqNeeds {
    z: usize,
    counters: usize,
    prepared: usize,
    activations: usize,
}

impl UniSvqNeeds {
    /// Of products of a matrix of that shape with up to `batch` activations.
    #[must_use]
    pub fn new(rows: usize, cols: usize, batch: usize) -> Self {
        let (groups, row_units) = (rows.div_ceil(GROUP_ROWS), cols.div_ceil(UNIT_COLS));
        let few = batch.min(MAX_FEW).div_ceil(BLOCK);
        // A rest of a batch may be few again.
        let many = Some(batch.min(MAX_GEMM)).filter(|&many| many > MAX_FEW);
        Self {
            z: (MAX_FEW * groups * GROUP_ROWS).max(many.map_or(0, |n| unisvq_gemm::parts_len(rows, row_units, n))),
            counters: groups,
            prepared: (row_units * few * 4 * PREPARED_VECTORS as usize)
                .max(many.map_or(0, |n| unisvq_gemm::prepared_len(row_units, n))),
            activations: 2 * batch.min(MAX_GEMM).next_multiple_of(MAX_FEW),
        }
    }

    /// The larger of both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            z: self.z.max(other.z),
            counters: self.counters.max(other.counters),
            prepared: self.prepared.max(other.prepared),
            activations: self.activations.max(other.activations),
        }
    }

    /// Bytes of a workspace.
    #[must_use]
    pub fn bytes(self) -> u64 {
        4 * (self.z + self.counters + self.prepared + self.activations) as u64
    }
}

impl UniSvqWorkspace {
    /// An empty workspace.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn reserve(&mut self, gpu: &Gpu, needs: UniSvqNeeds) -> Result<(), CudaError> {
        grow(gpu, &mut self.z, needs.z)?;
        // Counters are zero whenever no product runs.
        grow(gpu, &mut self.counters, needs.counters)?;
        grow(gpu, &mut self.prepared, needs.prepared)?;
        grow(gpu, &mut self.activations, needs.activations)
    }

    /// Bytes of device memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let floats = self.z.iter().chain(&self.activations).map(Buffer::bytes).sum::<usize>();
        (floats + self.counters.iter().chain(&self.prepared).map(Buffer::bytes).sum::<usize>()) as u64
    }
}

fn grow<T: DeviceType>(gpu: &Gpu, buffer: &mut Option<Buffer<T>>, len: usize) -> Result<(), CudaError> {
    if buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
        // Work that uses the old one has finished before it is freed: the driver sees to that.
        *buffer = None;
        *buffer = Some(gpu.alloc(len.max(1))?);
    }
    Ok(())
}

pub(super) fn ptr<T: DeviceType>(buffer: &Option<Buffer<T>>) -> u64 {
    buffer.as_ref().map_or(0, |buffer| buffer.as_slice().ptr())
}

/// Whether a frame is none or of tiles that fit a window of 128.
fn fits(frame: &FrameHeader) -> bool {
    match frame {
        FrameHeader::None => true,
        FrameHeader::Rht { runs, .. } => runs.iter().all(|[tile, _]| *tile as usize <= GROUP_ROWS),
        _ => false,
    }
}

/// log2 of the tile of each column.
fn logs(plan: &TilePlan) -> impl Iterator<Item = u8> {
    let log = |tile: u32| tile.max(1).ilog2() as u8;
    plan.runs().iter().flat_map(move |run| std::iter::repeat_n(log(run.tile), run.columns() as usize))
}

impl Side {
    fn new(gpu: &Gpu, frames: &[&Frame], width: usize) -> Result<Self, CudaError> {
        let plans: Vec<&TilePlan> = frames.iter().filter_map(|frame| frame.plan()).collect();
        if plans.is_empty() {
            return Ok(Self { rotates: false, logs: None });
        }
        let whole = plans.iter().all(|plan| plan.runs().iter().all(|run| run.tile as usize == GROUP_ROWS));
        let logs = (!whole).then(|| {
            let columns = plans.iter().flat_map(|plan| logs(plan));
            gpu.upload(&columns.chain(std::iter::repeat(0)).take(width).collect::<Vec<_>>())
        });
        let logs = logs.transpose()?;
        Ok(Self { rotates: true, logs })
    }

    fn logs(&self) -> u64 {
        self.logs.as_ref().map_or(0, |logs| logs.as_slice().ptr())
    }

    fn bytes(&self) -> usize {
        self.logs.as_ref().map_or(0, Buffer::bytes)
    }
}

/// What the end of a product is told of the output's side.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutputParams {
    pub(super) scales: u64,
    pub(super) group_scales: u64,
    pub(super) logs: u64,
    pub(super) rotates: bool,
}

impl DeviceUniSvq {
    /// Whether there are products for a matrix: 2 to 4 bits, and frames that are none or of tiles of up to 128.
    #[must_use]
    pub fn takes(header: &UniSvqHeader) -> bool {
        (2..=4).contains(&header.bits) && fits(&header.input) && fits(&header.output)
    }

    /// Whether matrices can lie on top of each other as one: one input, one map, whole groups of rows.
    #[must_use]
    pub fn join(parts: &[&UniSvqDecoder<'_>]) -> bool {
        let Some((first, rest)) = parts.split_first() else { return false };
        let alike = |part: &&&UniSvqDecoder<'_>| {
            let (a, b) = (first.header(), part.header());
            (a.cols, a.bits, a.dim, &a.affine, &a.input) == (b.cols, b.bits, b.dim, &b.affine, &b.input)
                && first.input_scales() == part.input_scales()
                && first.output().is_identity() == part.output().is_identity()
        };
        let whole = parts[..parts.len() - 1].iter().all(|part| part.rows().is_multiple_of(GROUP_ROWS));
        whole && rest.iter().all(|part| alike(&part)) && parts.iter().all(|part| Self::takes(part.header()))
    }

    /// Uploads a matrix.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for a matrix that [`takes`](Self::takes) denies; [`CudaError::OutOfMemory`].
    pub fn new(gpu: &Gpu, decoder: &UniSvqDecoder<'_>) -> Result<Self, CudaError> {
        Self::joined(gpu, &[decoder])
    }

    /// Uploads matrices on top of each other.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for matrices that [`join`](Self::join) denies; [`CudaError::OutOfMemory`].
    pub fn joined(gpu: &Gpu, parts: &[&UniSvqDecoder<'_>]) -> Result<Self, CudaError> {
        if !Self::join(parts) {
            let names: Vec<String> = parts.iter().map(|part| part.header().name()).collect();
            return Err(CudaError::Unsupported { op: "unisvq", what: names.join(" on top of ") });
        }
        let header = parts[0].header();
        let (bits, cols) = (usize::from(header.bits), parts[0].cols());
        let rows = parts.iter().map(|part| part.rows()).sum::<usize>();
        to_u32("rows", rows)?;
        to_u32("columns", cols)?;
        let row_units = cols.div_ceil(UNIT_COLS);
        let groups = rows.div_ceil(GROUP_ROWS);

        let mut output_scales: Vec<f16> = Vec::with_capacity(groups * GROUP_ROWS);
        let mut group_scales = Vec::with_capacity(groups);
        for part in parts {
            output_scales.extend(part.output_scales().iter().map(|&s| f16::from_f32(s)));
            group_scales.extend(std::iter::repeat_n(part.header().scale, part.rows().div_ceil(GROUP_ROWS)));
        }
        output_scales.resize(groups * GROUP_ROWS, f16::ZERO);
        let mut input_scales: Vec<f16> = parts[0].input_scales().iter().map(|&s| f16::from_f32(s)).collect();
        input_scales.resize(row_units * UNIT_COLS, f16::ZERO);
        let (fold, table) = fold_table(parts[0]);
        Ok(Self {
            gpu: gpu.clone(),
            bits: header.bits,
            rows,
            cols,
            row_units,
            words: gpu.upload(&words(parts, bits, row_units, rows)?)?,
            input_scales: gpu.upload(&input_scales)?,
            output_scales: gpu.upload(&output_scales)?,
            group_scales: gpu.upload(&group_scales)?,
            input: Side::new(gpu, &[parts[0].input()], row_units * UNIT_COLS)?,
            output: Side::new(gpu, &parts.iter().map(|part| part.output()).collect::<Vec<_>>(), groups * GROUP_ROWS)?,
            fold,
            fold_table: gpu.upload(&table)?,
        })
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bits of a code.
    #[must_use]
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Bytes of device memory: codes, padded to whole tiles and units, and factors.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.words.bytes()
            + self.input_scales.bytes()
            + self.output_scales.bytes()
            + self.group_scales.bytes()
            + self.fold_table.bytes()
            + self.input.bytes()
            + self.output.bytes()
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn row_units(&self) -> usize {
        self.row_units
    }

    pub(super) fn words_ptr(&self) -> u64 {
        self.words.as_slice().ptr()
    }

    pub(super) fn output_params(&self) -> OutputParams {
        OutputParams {
            scales: self.output_scales.as_slice().ptr(),
            group_scales: self.group_scales.as_slice().ptr(),
            logs: self.output.logs(),
            rotates: self.output.rotates,
        }
    }

    /// What products with up to `batch` activations need.
    #[must_use]
    pub fn needs(&self, batch: usize) -> UniSvqNeeds {
        UniSvqNeeds::new(self.rows, self.cols, batch)
    }

    /// The codes, `[rows, cols]`, read back from the very words that products use.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn codes(&self) -> Result<Vec<u8>, CudaError> {
        let words = self.gpu.download(self.words.as_slice())?;
        let (bits, width) = (usize::from(self.bits), self.row_units * UNIT_COLS);
        let mut tile = vec![0; TILE_ROWS * width];
        let mut codes = Vec::with_capacity(self.rows * self.cols);
        for (i, words) in words.chunks_exact(tile_words(bits, self.row_units)).enumerate() {
            unpack_tile(bits, words, &mut tile);
            let rows = tile.chunks_exact(width).take(self.rows - i * TILE_ROWS);
            rows.for_each(|row| codes.extend_from_slice(&row[..self.cols]));
        }
        Ok(codes)
    }

    /// `y = x Wᵀ`: `x` is `[batch, cols]` in the original basis, `y` `[batch, rows]`.
    ///
    /// Each of up to eight activations is rounded to 16-bit integers under a scale of its own (one per 256 columns where a launch takes it as it
    /// is), which leaves at most 2^-15.9 of its largest coordinate in the frame; sums are exact up to f32 at their ends. More activations are, at 2
    /// and 3 bits, rounded to halves, which leaves at most 2^-11 of each coordinate, and summed in f32, up to 64 per launch.
    ///
    /// # Errors
    /// [`CudaError::Shape`], [`CudaError::OutOfMemory`], [`CudaError::Unsupported`] where a row of `x` does not fit the shared memory
    /// of a multiprocessor; what a launch can fail with.
    pub fn product(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        batch: usize,
        mut y: DevSliceMut<'_, f32>,
        workspace: &mut UniSvqWorkspace,
    ) -> Result<(), CudaError> {
        check_len("x of a product", x.len(), batch.saturating_mul(self.cols))?;
        check_len("y of a product", y.len(), batch.saturating_mul(self.rows))?;
        if batch == 0 {
            return Ok(());
        }
        workspace.reserve(&self.gpu, self.needs(batch))?;
        let mut first = 0;
        while first < batch {
            let left = batch - first;
            let cut = if left > MAX_FEW { self.gemm_cut(left.min(MAX_GEMM)) } else { None };
            let n = left.min(if cut.is_some() { MAX_GEMM } else { MAX_FEW });
            let x = x.slice(first * self.cols..(first + n) * self.cols)?;
            let y = y.reborrow().slice(first * self.rows..(first + n) * self.rows)?;
            match cut {
                Some(cut) => self.gemm(stream, cut, x, y, n, workspace)?,
                None => self.few(stream, x, n, y, workspace)?,
            }
            first += n;
        }
        Ok(())
    }

    /// A product of up to eight activations.
    fn few(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        batch: usize,
        mut y: DevSliceMut<'_, f32>,
        workspace: &UniSvqWorkspace,
    ) -> Result<(), CudaError> {
        let fused = batch <= BLOCK && self.fuses() && x.ptr().is_multiple_of(16);
        let x_blocks = batch.div_ceil(BLOCK);
        if !fused {
            self.prepare(stream, x, batch, (x_blocks, 0, 0), workspace)?;
        }
        // As many activations per launch as keep their operands in registers.
        let each = if self.row_units <= WARPS { MAX_FEW } else { BLOCK };
        for first in (0..batch).step_by(each) {
            let n = each.min(batch - first);
            let y = y.reborrow().slice(first * self.rows..(first + n) * self.rows)?;
            let mut params = self.params(n, &y, workspace)?;
            params.x = if fused { x.ptr() } else { 0 };
            params.x_blocks = x_blocks as u32;
            params.prepared += 16 * PREPARED_VECTORS * (first / BLOCK) as u64;
            params.activations += 8 * first as u64;
            self.launch(stream, params, fused)?;
        }
        Ok(())
    }

    /// Whether launches of up to four activations prepare them by themselves.
    fn fuses(&self) -> bool {
        self.row_units <= WARPS && self.input.logs.is_none() && self.fold != Fold::Eights && self.cols.is_multiple_of(4)
    }

    /// Activations as operands: `x_blocks` blocks of four as integers, or, with the flag of halves, of eight.
    pub(super) fn prepare(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        batch: usize,
        (x_blocks, halves, shifts): (usize, u32, u32),
        workspace: &UniSvqWorkspace,
    ) -> Result<(), CudaError> {
        let each = if halves == 0 { BLOCK } else { 2 * BLOCK };
        let kernel = self.gpu.kernel(Module::UnisvqPrepare, "unisvq_prepare")?;
        let shared_bytes = to_u32("columns", 4 * self.row_units * UNIT_COLS)?;
        if shared_bytes > kernel.max_dynamic_bytes() {
            return Err(CudaError::Unsupported { op: "unisvq", what: format!("{} columns", self.cols) });
        }
        let vector = self.cols.is_multiple_of(4) && x.ptr().is_multiple_of(16);
        let params = UniSvqPrepareParams {
            x: x.ptr(),
            input_scales: self.input_scales.as_slice().ptr(),
            input_logs: self.input.logs(),
            fold_table: self.fold_table.as_slice().ptr(),
            prepared: ptr(&workspace.prepared),
            activations: ptr(&workspace.activations),
            cols: self.cols as u32,
            row_units: self.row_units as u32,
            batch: batch as u32,
            x_blocks: x_blocks as u32,
            fold: self.fold as u32,
            centre: self.centre(),
            shifts,
            flags: halves | if vector { VECTOR_X } else { 0 } | if self.input.rotates { INPUT } else { 0 },
        };
        let launch = Launch {
            grid: [(x_blocks * each) as u32, 1, 1],
            block: [32 * PREPARE_WARPS as u32, 1, 1],
            shared_bytes,
            programmatic: true,
        };
        // SAFETY: x has the length of the batch, checked by the caller; the workspace was made for it.
        unsafe { kernel.launch(stream, launch, &params) }
    }

    fn centre(&self) -> f32 {
        ((1u32 << self.bits) - 1) as f32 / 2.0
    }

    /// What all launches of a product of `batch` activations are told.
    fn params(
        &self,
        batch: usize,
        y: &DevSliceMut<'_, f32>,
        workspace: &UniSvqWorkspace,
    ) -> Result<UniSvqParams, CudaError> {
        let vector_y = self.rows.is_multiple_of(4) && y.ptr().is_multiple_of(16);
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        Ok(UniSvqParams {
            words: self.words.as_slice().ptr(),
            x: 0,
            prepared: ptr(&workspace.prepared),
            activations: ptr(&workspace.activations),
            input_scales: self.input_scales.as_slice().ptr(),
            output_scales: self.output_scales.as_slice().ptr(),
            group_scales: self.group_scales.as_slice().ptr(),
            output_logs: self.output.logs(),
            fold_table: self.fold_table.as_slice().ptr(),
            y: y.ptr(),
            z: ptr(&workspace.z),
            counters: ptr(&workspace.counters),
            rows: to_u32("rows", self.rows)?,
            cols: to_u32("columns", self.cols)?,
            tiles: self.rows.div_ceil(TILE_ROWS) as u32,
            row_units: self.row_units as u32,
            first_unit: 0,
            end_unit: self.row_units as u32,
            batch: batch as u32,
            x_blocks: 1,
            z_stride: self.rows.next_multiple_of(GROUP_ROWS) as u32,
            depth: 1,
            slots: 1,
            ring_at: SUM_BYTES as u32,
            fold: self.fold as u32,
            centre: self.centre(),
            flags: flag(vector_y, VECTOR_Y) | flag(self.input.rotates, INPUT) | flag(self.output.rotates, OUTPUT),
        })
    }

    /// One product of up to eight activations; several launches where the rows are wider than what a launch takes.
    fn launch(&self, stream: StreamRef<'_>, mut params: UniSvqParams, fused: bool) -> Result<(), CudaError> {
        let module = match self.bits {
            2 => Module::UnisvqK2,
            3 => Module::UnisvqK3,
            _ => Module::UnisvqK4,
        };
        let many = params.batch as usize > BLOCK;
        let (entry, warps, units) = match (fused, many, self.row_units) {
            (true, ..) => ("unisvq_4", WARPS, 1),
            (_, true, _) => ("unisvq_8", WARPS, 1),
            (_, _, ..=32) => ("unisvq_4_middle", 2 * WARPS, 1),
            _ => ("unisvq_4_wide", WIDE_WARPS, 2),
        };
        let kernel = self.gpu.kernel(module, entry)?;
        let stage = warps * units * usize::from(self.bits) * 512;
        let depth = self.depth(kernel, stage, fused);
        if depth == 0 {
            let what = format!("{} bytes of shared memory per block", self.gpu.info().max_shared_bytes);
            return Err(CudaError::Unsupported { op: "unisvq", what });
        }
        params.depth = depth as u32;
        params.slots = (SUM_BYTES / (warps * TILE_ROWS * 4 * params.batch as usize)) as u32;
        let launch = Launch {
            grid: [params.tiles.min(self.gpu.info().n_sms), 1, 1],
            block: [32 * warps as u32, 1, 1],
            shared_bytes: to_u32("shared memory", SUM_BYTES + depth * stage)?,
            programmatic: true,
        };
        let flags = params.flags;
        for first in (0..self.row_units).step_by(units * warps) {
            let end = self.row_units.min(first + units * warps);
            (params.first_unit, params.end_unit) = (first as u32, end as u32);
            params.flags = flags | if first > 0 { ADD } else { 0 } | if end == self.row_units { FINISH } else { 0 };
            // SAFETY: words, factors and tables are those of the shape; y was checked, the workspace was made for the batch.
            unsafe { kernel.launch(stream, launch, &params) }?;
        }
        Ok(())
    }

    /// Row tiles on their way.
    ///
    /// Two blocks share a multiprocessor where both have room for three: the next product starts while one ends.
    fn depth(&self, kernel: Kernel, stage: usize, fused: bool) -> usize {
        let most = kernel.max_dynamic_bytes() as usize;
        let depth = |bytes: usize| (bytes.saturating_sub(SUM_BYTES) / stage).min(MAX_DEPTH);
        let half = depth((most.saturating_sub(RESERVED_BYTES)) / 2);
        if fused && half >= SHARED_DEPTH { SHARED_DEPTH } else { depth(most) }
    }
}

/// A and B as lanes use them: for even and odd lanes eight rows of A, those of the own four columns first, and B; zero where a group has
/// fewer columns.
fn fold_table(decoder: &UniSvqDecoder<'_>) -> (Fold, Vec<f32>) {
    let mut table = vec![0.0; 2 * TABLE_LEN];
    let header = decoder.header();
    let Some(map) = &header.affine else { return (Fold::Plain, table) };
    let d = usize::from(header.dim);
    for (parity, table) in table.chunks_exact_mut(TABLE_LEN).enumerate() {
        for column in 0..4 {
            let (k, own) = (4 * parity + column, 4 * parity);
            // Column k of the group of eight columns belongs to the group of d that holds it.
            for i in (0..8).filter(|i| i / d == k / d) {
                let row = if i / 4 == parity { i - own } else { 4 + i % 4 };
                table[4 * row + column] = map.a[i % d * d + k % d];
            }
            table[32 + column] = map.b[k % d];
        }
    }
    (if d == 8 { Fold::Eights } else { Fold::Fours }, table)
}

/// All words of matrices on top of each other.
fn words(parts: &[&UniSvqDecoder<'_>], bits: usize, row_units: usize, rows: usize) -> Result<Vec<u32>, CudaError> {
    let (each, width) = (tile_words(bits, row_units), row_units * UNIT_COLS);
    let n_tiles = rows.div_ceil(TILE_ROWS);
    let n = n_tiles.checked_mul(each).ok_or_else(|| CudaError::shape("words of codes", "countable", rows))?;
    let mut words = vec![0u32; n];
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(n_tiles);
    let tiles_each = n_tiles.div_ceil(n_threads);
    std::thread::scope(|scope| {
        for (task, words) in words.chunks_mut(tiles_each * each).enumerate() {
            scope.spawn(move || {
                let mut codes = vec![0; TILE_ROWS * width];
                for (i, words) in words.chunks_exact_mut(each).enumerate() {
                    let first = (task * tiles_each + i) * TILE_ROWS;
                    for (r, codes) in codes.chunks_exact_mut(width).enumerate() {
                        codes.fill(0);
                        if let Some((part, row)) = find(parts, first + r) {
                            let cols = part.cols();
                            gosset_unisvq::unpack_row(part.row_codes(row), part.header().bits, 0, &mut codes[..cols]);
                        }
                    }
                    pack_tile(bits, &codes, words);
                }
            });
        }
    });
    Ok(words)
}

/// The matrix and the row of it that row `row` of all is.
fn find<'a, 'b>(parts: &'a [&'a UniSvqDecoder<'b>], mut row: usize) -> Option<(&'a UniSvqDecoder<'b>, usize)> {
    for part in parts {
        if row < part.rows() {
            return Some((part, row));
        }
        row -= part.rows();
    }
    None
}
