//! Matrices of E8 points in the plane layout of Rice codes: products with 1 to 8 columns.
//!
//! The layout holds the same points as the streams of a file, bit by bit the same code, see `rice_layout`;
//! [`RicePlanes::device_bytes`] says what it takes. Activations are in the rotated frame.

use std::sync::Arc;

use gosset_codec::{Decoder, LatticeHeader, MatrixHeader, Plane, SchemeHeader};
use gosset_lattice::LatticeKind;

use super::checks::{check_len, to_u32};
use super::decoded::{ExactRows, scale_bits};
use super::rice::MAX_BATCH;
use super::rice_layout::{GROUP_ROWS, MAX_K, PlaneLayout, table};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::RiceGemvParams;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, Launch};
use crate::memory::{Buffer, DevSlice, DevSliceMut};
use crate::stream::StreamRef;

/// Bytes of the table of quads.
const TABLE_BYTES: usize = 1 << 16;
/// Bytes of an unary row.
const ROW_BYTES: usize = 128;
/// Bytes per warp and column of x where patches are added up.
const PATCH_BYTES: usize = 8 * GROUP_ROWS;
/// Bytes of x per block of 8 columns: two digits.
const BLOCK_BYTES: usize = 16;
/// Bytes between columns of x, so that two of them lie on different banks.
const GAP_BYTES: usize = 64;
/// Most warps of a block.
const MAX_WARPS: usize = 28;
/// Fewest warps that another column of x at the same time is worth.
const MIN_WARPS: usize = 8;

/// A matrix of E8 points in the plane layout.
#[derive(Debug)]
pub struct RicePlanes {
    rows: u32,
    cols: u32,
    step: f32,
    k: usize,
    n_groups: u32,
    n_segments: u32,
    n_halves: u32,
    stage_rows: u32,
    planes: Buffer<u32>,
    unary: Buffer<u32>,
    row0: Buffer<u32>,
    patches: Buffer<u32>,
    patch0: Buffer<u32>,
    n_patches: usize,
    table: Arc<Buffer<u32>>,
    scales: Buffer<u16>,
    exact: Option<ExactRows>,
}

/// What products write beside their results. One for each stream, or with events between its uses.
#[derive(Debug)]
pub struct RiceScratch {
    partial: Buffer<f32>,
    counters: Buffer<u32>,
}

impl RiceScratch {
    /// Scratch for products of up to `n_batch` columns with any of `matrices`.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn new<'a>(
        gpu: &Gpu,
        matrices: impl IntoIterator<Item = &'a RicePlanes>,
        n_batch: usize,
    ) -> Result<Self, CudaError> {
        let (mut n_partial, mut n_counters) = (1, 1);
        for matrix in matrices {
            n_partial = n_partial.max(matrix.n_partial(n_batch));
            n_counters = n_counters.max(matrix.n_groups as usize);
        }
        Self::of_len(gpu, n_partial, n_counters)
    }

    /// Scratch of so many sums and counters, as [`RicePlanes::scratch_len`] counts them.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn of_len(gpu: &Gpu, n_partial: usize, n_counters: usize) -> Result<Self, CudaError> {
        // Counters begin at zero, and every launch leaves them so.
        Ok(Self { partial: gpu.alloc(n_partial.max(1))?, counters: gpu.alloc(n_counters.max(1))? })
    }

    /// The device's addresses of at least so many sums and counters.
    pub(super) fn pointers(&mut self, n_partial: usize, n_counters: usize) -> Result<(u64, u64), CudaError> {
        let found = (self.partial.len(), self.counters.len());
        if n_partial > found.0 || n_counters > found.1 {
            let expected = format!("{n_partial} sums and {n_counters} counters, or more");
            return Err(CudaError::shape("scratch of a product", expected, format!("{} and {}", found.0, found.1)));
        }
        Ok((self.partial.as_mut().ptr(), self.counters.as_mut().ptr()))
    }

    /// Bytes on the device.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        (self.partial.bytes() + self.counters.bytes()) as u64
    }
}

impl RicePlanes {
    /// Checks header and planes of a matrix of E8 points (under either code), lays them out and brings them to the device.
    ///
    /// # Errors
    /// [`CudaError::Codec`] for planes that no decoder accepts; [`CudaError::Unsupported`] for other lattices, columns
    /// that are no multiple of 8, and points too large for the layout; [`CudaError::OutOfMemory`].
    pub fn upload(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Self, CudaError> {
        let decoder = Decoder::new(header, planes)?;
        let step = match &header.scheme {
            SchemeHeader::Lattice(LatticeHeader { lattice, step, .. }) if lattice.0 == LatticeKind::E8 => *step,
            _ => {
                let what = header.codec_name().to_owned();
                return Err(CudaError::Unsupported { op: "the plane layout of Rice codes", what });
            }
        };
        let mut layout = PlaneLayout::new(&decoder)?;
        // Kernels read one half ahead.
        layout.planes.resize(layout.planes.len() + 32 * layout.k, 0);
        let n_groups = to_u32("groups of rows", layout.n_groups)?;
        let n_patches = layout.patches.len();
        // No buffer is empty, so that every pointer is one.
        let patches = if n_patches == 0 { vec![0] } else { layout.patches };
        let matrix = Self {
            rows: to_u32("rows", decoder.rows())?,
            cols: to_u32("columns", decoder.cols())?,
            step,
            k: layout.k,
            n_groups,
            n_segments: layout.n_segments as u32,
            n_halves: layout.n_halves as u32,
            stage_rows: layout.max_rows as u32 + 1,
            planes: gpu.upload(&layout.planes)?,
            unary: gpu.upload(&layout.unary)?,
            row0: gpu.upload(&layout.row0)?,
            patches: gpu.upload(&patches)?,
            patch0: gpu.upload(&layout.patch0)?,
            n_patches,
            table: gpu.table(table())?,
            scales: gpu.upload(&scale_bits(planes))?,
            exact: ExactRows::upload(gpu, &decoder, planes)?,
        };
        // One column must fit at least.
        matrix.fit(gpu, 1)?;
        Ok(matrix)
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols as usize
    }

    /// Parameter of the code in this layout.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of corrections of single weights.
    #[must_use]
    pub fn n_patches(&self) -> usize {
        self.n_patches
    }

    /// Bytes of the weights on the device: layout, row scales and exact rows. Times 8 and divided by the weights, this is
    /// the rate of the layout.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let tables = self.row0.bytes() + self.patches.bytes() + self.patch0.bytes() + self.scales.bytes();
        let exact = self.exact.as_ref().map_or(0, ExactRows::device_bytes);
        (self.planes.bytes() + self.unary.bytes() + tables) as u64 + exact
    }

    /// `y = W x`: `x` is `[n_batch, cols]` in the rotated frame, `y` is `[n_batch, rows]`, `n_batch` from 1 to [`MAX_BATCH`].
    ///
    /// x is rounded to 1/32600 of the largest magnitude of its column; sums are integers within segments of 1024 columns and
    /// added in a fixed order beyond. Where shared memory holds fewer columns of x, the weights are decoded more than once.
    ///
    /// # Errors
    /// [`CudaError::Shape`], for scratch that is too small too, and what a launch can fail with.
    pub fn gemm(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        mut y: DevSliceMut<'_, f32>,
        scratch: &mut RiceScratch,
    ) -> Result<(), CudaError> {
        let n_batch = x.len() / self.cols();
        if !(1..=MAX_BATCH).contains(&n_batch) {
            return Err(CudaError::shape("x of a product", format!("1 to {MAX_BATCH} columns"), n_batch));
        }
        check_len("x of a product", x.len(), n_batch * self.cols())?;
        check_len("y of a product", y.len(), n_batch * self.rows())?;
        let mut done = 0;
        while done < n_batch {
            let (kernel, now, n_warps) = self.fit(gpu, n_batch - done)?;
            let x = x.slice(done * self.cols()..(done + now) * self.cols())?;
            let y = y.reborrow().slice(done * self.rows()..(done + now) * self.rows())?;
            // SAFETY: lengths were checked; the layout was made on the host and indexes itself only.
            unsafe { self.launch(gpu, stream, kernel, (now, n_warps), x, y, scratch)? };
            done += now;
        }
        // SAFETY: the lengths of x and y were checked.
        self.exact.as_ref().map_or(Ok(()), |exact| unsafe { exact.dot(gpu, stream, x, &mut y, n_batch as u32) })
    }

    /// [`RicePlanes::gemm`] of one column.
    ///
    /// # Errors
    /// [`CudaError::Shape`], and what a launch can fail with.
    pub fn gemv(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        scratch: &mut RiceScratch,
    ) -> Result<(), CudaError> {
        check_len("x of a product", x.len(), self.cols())?;
        self.gemm(gpu, stream, x, y, scratch)
    }

    /// Sums and counters that products of up to `n_batch` columns need of a [`RiceScratch`].
    #[must_use]
    pub fn scratch_len(&self, n_batch: usize) -> (usize, usize) {
        (self.n_partial(n_batch), self.n_groups as usize)
    }

    /// Partial sums of a launch of `n_batch` columns.
    fn n_partial(&self, n_batch: usize) -> usize {
        if self.n_segments == 1 { 0 } else { n_batch * self.n_segments as usize * self.n_groups as usize * GROUP_ROWS }
    }

    /// Dynamic shared memory of a block.
    fn shared_bytes(&self, n_batch: usize, n_warps: usize) -> usize {
        let n_blocks = self.cols().div_ceil(64) * 8;
        let per_warp = n_batch * PATCH_BYTES + self.stage_rows as usize * ROW_BYTES;
        TABLE_BYTES + n_batch * (n_blocks * BLOCK_BYTES + GAP_BYTES) + n_warps * per_warp
    }

    /// The kernel, how many of `n_batch` columns it takes at once, and the warps of its blocks.
    fn fit(&self, gpu: &Gpu, n_batch: usize) -> Result<(Kernel, usize, usize), CudaError> {
        let one = gpu.kernel(module(self.k), "rice_gemv")?;
        let several = gpu.kernel(module(self.k), "rice_gemm")?;
        let n_tasks = self.n_groups as usize * self.n_segments as usize;
        let busy = n_tasks.div_ceil(gpu.info().n_sms as usize).min(MAX_WARPS);
        for now in (1..=n_batch).rev() {
            let kernel = if now == 1 { one } else { several };
            let limit = kernel.max_dynamic_bytes() as usize;
            let Some(left) = limit.checked_sub(self.shared_bytes(now, 0)) else { continue };
            let per_warp = self.shared_bytes(now, 1) - self.shared_bytes(now, 0);
            let n_warps = (left / per_warp).min(busy);
            if n_warps >= MIN_WARPS.min(busy) || (now == 1 && n_warps > 0) {
                return Ok((kernel, now, n_warps));
            }
        }
        let what = format!("{} columns on a device with so little shared memory", self.cols);
        Err(CudaError::Unsupported { op: "the plane layout of Rice codes", what })
    }

    /// Launches a product of `n_batch` columns.
    ///
    /// # Safety
    /// `x` has `n_batch * cols` elements and `y` has `n_batch * rows`.
    #[expect(clippy::too_many_arguments, reason = "one launch and its variant")]
    unsafe fn launch(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        kernel: Kernel,
        (n_batch, n_warps): (usize, usize),
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        scratch: &mut RiceScratch,
    ) -> Result<(), CudaError> {
        let (partial, counters) = scratch.pointers(self.n_partial(n_batch), self.n_groups as usize)?;
        let params = RiceGemvParams {
            planes: self.planes.as_slice().ptr(),
            unary: self.unary.as_slice().ptr(),
            row0: self.row0.as_slice().ptr(),
            patches: self.patches.as_slice().ptr(),
            patch0: self.patch0.as_slice().ptr(),
            table: self.table.as_slice().ptr(),
            x: x.ptr(),
            scales: self.scales.as_slice().ptr(),
            y: y.ptr(),
            partial,
            counters,
            rows: self.rows,
            cols: self.cols,
            n_groups: self.n_groups,
            n_segments: self.n_segments,
            n_halves: self.n_halves,
            stage_rows: self.stage_rows,
            n_batch: n_batch as u32,
            step: self.step,
        };
        let n_tasks = self.n_groups as usize * self.n_segments as usize;
        let launch = Launch {
            grid: [n_tasks.min(gpu.info().n_sms as usize) as u32, 1, 1],
            block: [32 * n_warps as u32, 1, 1],
            shared_bytes: self.shared_bytes(n_batch, n_warps) as u32,
            ..Launch::default()
        };
        // SAFETY: by the contract of this function; shared memory is what the kernel lays out for these numbers.
        unsafe { kernel.launch(stream, launch, &params) }
    }
}

fn module(k: usize) -> Module {
    const MODULES: [Module; MAX_K] = [Module::RiceGemvK1, Module::RiceGemvK2, Module::RiceGemvK3, Module::RiceGemvK4];
    MODULES[k - 1]
}
