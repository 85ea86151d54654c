//! Products of a matrix under the bit-shift trellis with several activations: weights are decoded once for up to 64.

use gosset_trellis::shift::{ShiftCode, ShiftOrder};

use super::rht::RhtOutput;
use super::shift::{ShiftElement, ShiftMatrix};
use super::shift_few::MAX_FEW;
use super::shift_layout::{GemmCut, TABLE_SHARED, is_wide, multipliers};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{ShiftGemmParams, ShiftPrepareParams, ShiftReduceParams};
use crate::gpu::Gpu;
use crate::kernel::Launch;
use crate::memory::{Buffer, DevSlice, DevSliceMut};
use crate::stream::StreamRef;

/// Most activations of one launch.
pub const MAX_GEMM_BATCH: usize = 64;
/// Activations of a block of B registers.
const BLOCK: usize = 8;
/// Words of a unit and block of activations.
const BLOCK_WORDS: usize = 512;
/// Bytes of both stages.
const STAGE_SHARED: u32 = 2 * 32768;
/// Threads of the kernels around the product.
const PREPARE_THREADS: u32 = 256;

/// Memory that products with several activations need, for one stream at a time; it grows with the first product that
/// needs more, which must not happen while a graph is captured: [`ShiftWorkspace::reserve`] first.
#[derive(Debug, Default)]
pub struct ShiftWorkspace {
    /// Rotated activations.
    x: Option<Buffer<u32>>,
    x_scales: Option<Buffer<f32>>,
    parts: Option<Buffer<f32>>,
    /// Activations that were rotated by a kernel of their own.
    rotated: Option<Buffer<f32>>,
}

impl ShiftWorkspace {
    /// An empty workspace.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for products of `matrix` with up to `batch` activations.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn reserve(&mut self, matrix: &ShiftMatrix, batch: usize) -> Result<(), CudaError> {
        let gpu = &matrix.gpu;
        if !matrix.fuses_rotation() {
            grow(gpu, &mut self.rotated, batch * matrix.cols)?;
        }
        if batch < 2 || matrix.gemm_module().is_none() {
            return Ok(());
        }
        let batch = batch.min(MAX_GEMM_BATCH);
        let n_blocks = batch.div_ceil(BLOCK);
        grow(gpu, &mut self.x, matrix.units.row_units as usize * n_blocks * BLOCK_WORDS)?;
        grow(gpu, &mut self.x_scales, batch)?;
        let cut = GemmCut::new(matrix.units.n_row_tiles, matrix.units.row_units, gpu.info().n_sms);
        if cut.n_splits > 1 {
            grow(gpu, &mut self.parts, cut.n_splits as usize * batch * matrix.rows)?;
        }
        Ok(())
    }

    /// Bytes of device memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let floats = [&self.x_scales, &self.parts, &self.rotated];
        self.x.as_ref().map_or(0, Buffer::bytes) + floats.into_iter().flatten().map(Buffer::bytes).sum::<usize>()
    }
}

fn grow<T: crate::memory::DeviceType>(gpu: &Gpu, buffer: &mut Option<Buffer<T>>, len: usize) -> Result<(), CudaError> {
    if buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
        // Work that uses the old one has finished before it is freed: the driver sees to that.
        *buffer = None;
        *buffer = Some(Buffer::uninit(gpu, len)?);
    }
    Ok(())
}

impl ShiftMatrix {
    /// `y = x (W R)ᵀ` for `batch` activations: `x` is `[batch, cols]` in the original basis, `y` `[batch, rows]`.
    ///
    /// Each activation is rotated and rounded to f16 under a power of two of its own; products and sums are those of tensor
    /// cores with f32 sums, added in a fixed order. One activation takes [`ShiftMatrix::gemv`]; more than 64 take several
    /// launches, where decoding once and a dense product may be faster.
    ///
    /// # Errors
    /// [`CudaError::Shape`], [`CudaError::OutOfMemory`], [`CudaError::Unsupported`] for a device with too little shared
    /// memory; what a launch can fail with.
    pub fn gemm<X: ShiftElement>(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, X>,
        batch: usize,
        y: DevSliceMut<'_, f32>,
        workspace: &mut ShiftWorkspace,
    ) -> Result<(), CudaError> {
        let counted = |n: usize| batch.saturating_mul(n);
        if x.len() != counted(self.cols) {
            return Err(CudaError::shape("x of shift_gemm", format!("{batch} x {} elements", self.cols), x.len()));
        }
        if y.len() != counted(self.rows) {
            return Err(CudaError::shape("y of shift_gemm", format!("{batch} x {} elements", self.rows), y.len()));
        }
        if batch == 0 {
            return Ok(());
        }
        workspace.reserve(self, batch)?;
        if let Some(rht) = self.rotation()
            && !self.fuses_rotation()
        {
            let rotated = workspace.rotated.as_mut().map(|buffer| buffer.as_mut().slice(0..batch * self.cols));
            let mut rotated = rotated.ok_or_else(|| CudaError::shape("workspace", "a buffer", "none"))??;
            rht.forward(stream, x, batch, RhtOutput::F32(rotated.reborrow()))?;
            // SAFETY: the buffer lives as long as the workspace, and only kernels of this stream use it.
            let rotated = unsafe { DevSlice::<f32>::from_raw(rotated.ptr(), rotated.len()) };
            return self.chunks(stream, rotated, batch, y, workspace, false);
        }
        self.chunks(stream, x, batch, y, workspace, true)
    }

    /// Products in launches of up to 64 activations.
    fn chunks<X: ShiftElement>(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, X>,
        batch: usize,
        mut y: DevSliceMut<'_, f32>,
        workspace: &mut ShiftWorkspace,
        rotate: bool,
    ) -> Result<(), CudaError> {
        // Devices with less shared memory take the activations one by one.
        let kernels = self.gemm_module().filter(|_| TABLE_SHARED + STAGE_SHARED <= self.gpu.info().max_shared_bytes);
        let each = if kernels.is_some() { MAX_GEMM_BATCH } else { 1 };
        for first in (0..batch).step_by(each) {
            let n = each.min(batch - first);
            let x = x.slice(first * self.cols..(first + n) * self.cols)?;
            let y = y.reborrow().slice(first * self.rows..(first + n) * self.rows)?;
            match kernels {
                Some(module) if n > 1 => self.gemm_launch(stream, module, x, n, y, workspace, rotate)?,
                _ => self.product(stream, x, y, rotate)?,
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "those of the public function, and what it found out")]
    fn gemm_launch<X: ShiftElement>(
        &self,
        stream: StreamRef<'_>,
        module: Module,
        x: DevSlice<'_, X>,
        batch: usize,
        mut y: DevSliceMut<'_, f32>,
        workspace: &ShiftWorkspace,
        rotate: bool,
    ) -> Result<(), CudaError> {
        let info = self.gpu.info();
        let (Some(prepared), Some(x_scales)) = (&workspace.x, &workspace.x_scales) else {
            return Err(CudaError::shape("workspace", "reserved buffers", "none"));
        };
        let n_blocks = batch.div_ceil(BLOCK) as u32;
        let row_units = self.units.row_units;
        let (signs, tile_logs, rotation) = self.fused_rotation(rotate);
        let params = ShiftPrepareParams {
            x: x.ptr(),
            signs,
            tile_logs,
            out: prepared.as_slice().ptr(),
            x_scales: x_scales.as_slice().ptr(),
            cols: self.cols as u32,
            row_units,
            batch: batch as u32,
            x_type: X::TYPE,
            x_vector: (x.ptr().is_multiple_of(16) && self.cols.is_multiple_of(4)).into(),
            rotation,
            rows_order: (self.spec().order == ShiftOrder::Rows).into(),
        };
        // Every block looks for the largest value of its activation, so that few blocks do little more work than many.
        let splits = row_units.div_ceil(PREPARE_THREADS / 32).min(4);
        let launch = Launch {
            grid: [splits, n_blocks * BLOCK as u32, 1],
            block: [PREPARE_THREADS, 1, 1],
            shared_bytes: 0,
            programmatic: true,
        };
        // SAFETY: x has the length of the batch, checked by the caller; the workspace was made for it.
        unsafe { self.gpu.kernel(Module::ShiftPrepare, "shift_prepare")?.launch(stream, launch, &params) }?;

        let values = self.exact.as_ref().map(|exact| if rotate { &exact.values } else { &exact.rotated });
        if batch <= MAX_FEW
            && let Some(few) = self.few()?
        {
            self.few_launch(stream, few, prepared, x_scales, batch, y.reborrow())?;
            return self.exact_products(stream, values, x, None, y.reborrow(), batch);
        }
        let cut = GemmCut::new(self.units.n_row_tiles, row_units, info.n_sms);
        let parts = workspace.parts.as_ref().map_or(0, |parts| parts.as_slice().ptr());
        let [m0, m1] = multipliers(&self.trellis);
        let params = ShiftGemmParams {
            words: self.words.as_slice().ptr(),
            histories: self.histories.as_slice().ptr(),
            table: self.table.as_slice().ptr(),
            x: prepared.as_slice().ptr(),
            x_scales: x_scales.as_slice().ptr(),
            scales: self.scales.as_slice().ptr(),
            y: y.ptr(),
            parts,
            rows: self.rows as u32,
            row_units,
            n_row_tiles: self.units.n_row_tiles,
            n_tiles: cut.n_tiles,
            split_units: cut.split_units,
            n_blocks,
            batch: batch as u32,
            m0,
            m1,
            step: self.step,
        };
        let kernel = self.gpu.kernel(module, self.gemm_entry(n_blocks))?;
        let shared_bytes = TABLE_SHARED + STAGE_SHARED;
        if shared_bytes > kernel.max_dynamic_bytes() {
            let what = format!("{} bytes of shared memory per block", info.max_shared_bytes);
            return Err(CudaError::Unsupported { op: "shift_gemm", what });
        }
        let launch = Launch {
            grid: [self.units.n_row_tiles.div_ceil(cut.n_tiles), cut.n_splits, 1],
            block: [32, cut.n_tiles, GemmCut::PARTS],
            shared_bytes,
            programmatic: true,
        };
        // SAFETY: y has the length of the batch, checked by the caller; parts were made for this cut.
        unsafe { kernel.launch(stream, launch, &params) }?;
        if cut.n_splits > 1 {
            let params = ShiftReduceParams {
                parts,
                x_scales: x_scales.as_slice().ptr(),
                scales: self.scales.as_slice().ptr(),
                y: y.ptr(),
                rows: self.rows as u32,
                batch: batch as u32,
                n_splits: cut.n_splits,
                step: self.step,
            };
            let blocks = (batch * self.rows).div_ceil(PREPARE_THREADS as usize).min(info.n_sms as usize * 8) as u32;
            let launch =
                Launch { grid: [blocks, 1, 1], block: [PREPARE_THREADS, 1, 1], shared_bytes: 0, programmatic: true };
            // SAFETY: as above.
            unsafe { self.gpu.kernel(Module::ShiftPrepare, "shift_reduce")?.launch(stream, launch, &params) }?;
        }
        self.exact_products(stream, values, x, None, y.reborrow(), batch)
    }

    /// The module of the products with several activations, if this trellis has one.
    pub(super) fn gemm_module(&self) -> Option<Module> {
        let spec = self.spec();
        match spec.bits {
            _ if is_wide(spec) || spec.order != ShiftOrder::Tiles || !self.has_shared() => None,
            2 => Some(Module::ShiftGemmK2),
            3 => Some(Module::ShiftGemmK3),
            4 => Some(Module::ShiftGemmK4),
            _ => None,
        }
    }

    /// The kernel of a batch of so many blocks of eight.
    fn gemm_entry(&self, n_blocks: u32) -> &'static str {
        match (self.spec().code == ShiftCode::Pairs, n_blocks) {
            (false, ..=2) => "shift_gemm_16_quantiles",
            (false, ..=4) => "shift_gemm_32_quantiles",
            (false, _) => "shift_gemm_64_quantiles",
            (true, ..=2) => "shift_gemm_16_pairs",
            (true, ..=4) => "shift_gemm_32_pairs",
            (true, _) => "shift_gemm_64_pairs",
        }
    }
}
