//! Randomized Hadamard transform of activations: any plan of gosset-transform, bit for bit.
//!
//! The signs are a device buffer of one bit per column, made once per transform: a load of a word per eight lanes, where
//! Philox on the device would be sixty instructions per window of 128 columns.

use cudarc::driver::result;
use gosset_transform::{Rht, TileRun};
use half::{bf16, f16};

use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::RhtParams;
use crate::gpu::Gpu;
use crate::kernel::Launch;
use crate::memory::{Buffer, DevSlice, DevSliceMut, DeviceType};
use crate::stream::StreamRef;

/// Most runs of a plan: powers of two up to 2^16, each at most once.
const MAX_RUNS: usize = 17;

/// Columns of one warp.
const WINDOW: u32 = 128;

/// Columns of a block where every tile ends in a window and few rows are to be had: as many blocks as the latency of one
/// row can use.
const FEW_ROWS_CHUNK: u32 = 512;

/// Columns of a block where the rows fill the device.
const MANY_ROWS_CHUNK: u32 = 2048;

/// Columns that a block joins in shared memory (`LONG` of `rht.cu`); longer tiles take a second kernel.
const LONG: u32 = 1 << 14;

const MAX_GRID_ROWS: usize = 65535;

// Flags of `RhtParams`.
const INVERSE: u32 = 1;
const VECTOR_X: u32 = 2;
const VECTOR_Y: u32 = 4;
const F16_X: u32 = 8;
const BF16_X: u32 = 16;
const F16_Y: u32 = 32;

/// Element types of the rows that are transformed.
pub trait RhtInput: DeviceType + sealed::Input {}

impl RhtInput for f32 {}
impl RhtInput for f16 {}
impl RhtInput for bf16 {}

mod sealed {
    use half::{bf16, f16};

    pub trait Input {
        /// What tells the kernel the type.
        const FLAG: u32;
    }

    impl Input for f32 {
        const FLAG: u32 = 0;
    }

    impl Input for f16 {
        const FLAG: u32 = super::F16_X;
    }

    impl Input for bf16 {
        const FLAG: u32 = super::BF16_X;
    }
}

/// How transformed values fit into f16.
#[derive(Debug)]
pub enum F16Scale<'a> {
    /// All are multiplied by this before they are rounded; what exceeds 65504 becomes infinite.
    Factor(f32),
    /// Each row is multiplied by a power of two that keeps it below 2^15, and the inverse of that is written here, one value
    /// per row: `u` is `y` times it. A row of zeros, or one that is not finite, has 1.
    PerRow(DevSliceMut<'a, f32>),
}

/// Where transformed rows go.
#[derive(Debug)]
pub enum RhtOutput<'a> {
    /// As they are.
    F32(DevSliceMut<'a, f32>),
    /// Scaled, and rounded to nearest even.
    F16 {
        /// `batch * width` values.
        y: DevSliceMut<'a, f16>,
        /// The scale.
        scale: F16Scale<'a>,
    },
}

/// A transform whose signs lie on a device.
///
/// The same plan and seed as the [`Rht`] of the CPU; f32 results are equal in every bit.
#[derive(Debug)]
pub struct DeviceRht {
    gpu: Gpu,
    words: Buffer<u32>,
    width: usize,
    /// Everything but pointers, batch and flags.
    template: RhtParams,
    longest: u32,
}

impl DeviceRht {
    /// The transform on a device. Takes `width / 8` bytes there.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or [`CudaError::Driver`].
    pub fn new(gpu: &Gpu, rht: &Rht) -> Result<Self, CudaError> {
        let (plan, signs) = (rht.plan(), rht.signs());
        let runs = plan.runs();
        let longest = runs.first().map_or(1, |run| run.tile);
        if runs.len() > MAX_RUNS || longest > LONG << 2 {
            return Err(CudaError::Unsupported { op: "rht", what: format!("the plan {plan}") });
        }
        let mut template = RhtParams {
            x: 0,
            y: 0,
            words: 0,
            row_scale: 0,
            width: u32::try_from(plan.width()).map_err(|_| CudaError::shape("rht width", "a u32", plan.width()))?,
            batch: 0,
            chunk: 0,
            flags: 0,
            factor: 1.0,
            bound: bound(longest),
            n_runs: runs.len() as u32,
            run_end: [u32::MAX; MAX_RUNS],
            run_log: [0; MAX_RUNS],
            run_scale: [1.0; MAX_RUNS],
        };
        let mut end = 0;
        for (i, run) in runs.iter().enumerate() {
            end += run.tile * run.count;
            template.run_end[i] = end;
            template.run_log[i] = run.tile.ilog2();
            template.run_scale[i] = run.scale();
        }
        let words = gpu.upload(signs.words())?;
        Ok(Self { gpu: gpu.clone(), words, width: plan.width(), template, longest })
    }

    /// Columns of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The packed signs on the device, as [`gosset_transform::Signs::words`] has them.
    #[must_use]
    pub fn words(&self) -> DevSlice<'_, u32> {
        self.words.as_slice()
    }

    /// Puts the transform of `batch` rows of `x` into the stream.
    ///
    /// # Errors
    /// [`CudaError::Shape`] unless `x` and `y` hold `batch * width` values, and the row scales `batch`.
    pub fn forward<X: RhtInput>(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, X>,
        batch: usize,
        y: RhtOutput<'_>,
    ) -> Result<(), CudaError> {
        let n = self.check(batch, x.len())?;
        match y {
            RhtOutput::F32(y) => {
                check_len("rht output", n, y.len())?;
                self.to_f32(stream, x.ptr(), y.ptr(), batch, X::FLAG)
            }
            RhtOutput::F16 { y, scale } => {
                check_len("rht output", n, y.len())?;
                let (factor, row_scale) = match scale {
                    F16Scale::Factor(factor) => (factor, 0),
                    F16Scale::PerRow(rows) => {
                        check_len("rht row scales", batch, rows.len())?;
                        (1.0, rows.ptr())
                    }
                };
                let params = RhtParams { x: x.ptr(), y: y.ptr(), row_scale, factor, flags: X::FLAG, ..self.template };
                if self.longest <= LONG {
                    return self.chunks(stream, RhtParams { flags: X::FLAG | F16_Y, ..params }, batch);
                }
                self.f16_by_way_of_f32(stream, params, batch, n)
            }
        }
    }

    /// Puts the transform of `batch` rows into the stream, in place.
    ///
    /// # Errors
    /// [`CudaError::Shape`] unless `rows` holds `batch * width` values.
    pub fn forward_in_place(
        &self,
        stream: StreamRef<'_>,
        rows: DevSliceMut<'_, f32>,
        batch: usize,
    ) -> Result<(), CudaError> {
        self.check(batch, rows.len())?;
        self.to_f32(stream, rows.ptr(), rows.ptr(), batch, 0)
    }

    /// Puts the inverse transform of `batch` rows into the stream, in place.
    ///
    /// # Errors
    /// [`CudaError::Shape`] unless `rows` holds `batch * width` values.
    pub fn inverse_in_place(
        &self,
        stream: StreamRef<'_>,
        rows: DevSliceMut<'_, f32>,
        batch: usize,
    ) -> Result<(), CudaError> {
        self.check(batch, rows.len())?;
        self.to_f32(stream, rows.ptr(), rows.ptr(), batch, INVERSE)
    }

    /// Number of values of `batch` rows, which `found` must be.
    fn check(&self, batch: usize, found: usize) -> Result<usize, CudaError> {
        let n = batch.checked_mul(self.width).filter(|_| u32::try_from(batch).is_ok());
        let n = n.ok_or_else(|| CudaError::shape("rht batch", "a u32", batch))?;
        check_len("rht input", n, found)?;
        Ok(n)
    }

    fn to_f32(&self, stream: StreamRef<'_>, x: u64, y: u64, batch: usize, flags: u32) -> Result<(), CudaError> {
        let params = RhtParams { x, y, flags, ..self.template };
        self.chunks(stream, params, batch)?;
        if self.longest > LONG {
            self.long(stream, RhtParams { x: y, ..params }, batch)?;
        }
        Ok(())
    }

    /// Tiles that no block's shared memory holds pass through f32 rows of device memory, which the stream allocates.
    fn f16_by_way_of_f32(
        &self,
        stream: StreamRef<'_>,
        params: RhtParams,
        batch: usize,
        n: usize,
    ) -> Result<(), CudaError> {
        if n == 0 {
            return Ok(());
        }
        let bytes = n.checked_mul(4).ok_or_else(|| CudaError::shape("rht batch", "a size in bytes", batch))?;
        self.gpu.bind()?;
        // SAFETY: freed below in the order of the same stream, after the kernels that use it.
        let rows = unsafe { result::malloc_async(stream.cu(), bytes) }
            .map_err(|error| CudaError::driver("cuMemAllocAsync", error))?;
        let done = self
            .chunks(stream, RhtParams { y: rows, ..params }, batch)
            .and_then(|()| self.long(stream, RhtParams { x: rows, flags: F16_Y, ..params }, batch));
        // SAFETY: allocated above, used by nothing after this point of the stream.
        let freed = unsafe { result::free_async(rows, stream.cu()) };
        done?;
        freed.map_err(|error| CudaError::driver("cuMemFreeAsync", error))
    }

    fn chunks(&self, stream: StreamRef<'_>, mut params: RhtParams, batch: usize) -> Result<(), CudaError> {
        let whole = |ptr: u64, bytes: u64| self.width.is_multiple_of(4) && ptr.is_multiple_of(4 * bytes);
        let flag = |flags: u32| params.flags & flags != 0;
        let (x_bytes, y_bytes) = (if flag(F16_X | BF16_X) { 2 } else { 4 }, if flag(F16_Y) { 2 } else { 4 });
        params.flags |= if whole(params.x, x_bytes) { VECTOR_X } else { 0 };
        params.flags |= if whole(params.y, y_bytes) { VECTOR_Y } else { 0 };
        let shape = Shape::new(self.longest, params.width, batch, self.gpu.info().n_sms, params.row_scale != 0);
        params.chunk = shape.chunk;
        let launch = Launch {
            grid: [params.width.div_ceil(shape.chunk), batch.min(MAX_GRID_ROWS) as u32, 1],
            block: [shape.threads, 1, 1],
            shared_bytes: if self.longest > WINDOW { shape.chunk * 4 } else { 0 },
            programmatic: true,
        };
        self.launch(stream, "rht", launch, params, batch)
    }

    fn long(&self, stream: StreamRef<'_>, params: RhtParams, batch: usize) -> Result<(), CudaError> {
        let launch = Launch {
            grid: [params.width.div_ceil(256), batch.min(MAX_GRID_ROWS) as u32, 1],
            block: [256, 1, 1],
            ..Launch::default()
        };
        self.launch(stream, "rht_long", launch, params, batch)
    }

    fn launch(
        &self,
        stream: StreamRef<'_>,
        entry: &'static str,
        launch: Launch,
        mut params: RhtParams,
        batch: usize,
    ) -> Result<(), CudaError> {
        params.words = self.words.as_slice().ptr();
        params.batch = batch as u32;
        let kernel = self.gpu.kernel(Module::Rht, entry)?;
        // SAFETY: every entry of the module takes `RhtParams`; `check` held the slices to batch * width, the words cover the
        // width, and `DevSlice` promises that its memory lives until the stream has done the work.
        unsafe { kernel.launch(stream, launch, &params) }
    }
}

/// Columns and threads of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    chunk: u32,
    threads: u32,
}

impl Shape {
    /// Chosen by measurement on an H200 (docs/kernels/rht.md); any choice gives the same bits.
    fn new(longest: u32, width: u32, batch: usize, n_sms: u32, row_scale: bool) -> Self {
        if longest > WINDOW {
            let chunk = longest.clamp(1024, LONG);
            return Self { chunk, threads: (chunk / 8).clamp(256, 1024) };
        }
        // Blocks of 1024 columns, four for each multiprocessor: from there on blocks wait for others.
        let many = u64::from(width.div_ceil(1024)) * batch as u64 >= 4 * u64::from(n_sms);
        match (row_scale, many) {
            (false, false) => Self { chunk: FEW_ROWS_CHUNK, threads: 128 },
            (false, true) => Self { chunk: MANY_ROWS_CHUNK, threads: 128 },
            // A block that looks for the largest value of its row transforms as much of it as it can.
            (true, true) => Self {
                chunk: width.next_multiple_of(WINDOW).min(16384),
                threads: match (batch >= 2 * n_sms as usize, width <= 8192) {
                    (true, true) => 256,
                    (true, false) => 512,
                    (false, _) => 1024,
                },
            },
            (true, false) => Self { chunk: 1024, threads: 512 },
        }
    }
}

/// An f32 that is at least the square root of the tile: no transformed value exceeds it times the largest input.
fn bound(longest: u32) -> f32 {
    // Butterflies round each sum once per stage; two parts in a million cover seventeen stages.
    1.000_002 / TileRun { tile: longest, count: 1 }.scale()
}

fn check_len(what: &'static str, expected: usize, found: usize) -> Result<(), CudaError> {
    if expected == found { Ok(()) } else { Err(CudaError::shape(what, expected, found)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_tiles_fill_a_chunk() {
        for (log, batch, row_scale) in
            (0..=16).flat_map(|log| [(log, 1, true), (log, 5000, true), (log, 1, false), (log, 5000, false)])
        {
            let Shape { chunk, threads } = Shape::new(1 << log, 29568, batch, 132, row_scale);
            assert!(chunk.is_multiple_of(WINDOW) && chunk.is_multiple_of((1 << log).min(LONG)), "tile 2^{log}");
            assert!(threads.is_multiple_of(32) && threads <= 1024, "tile 2^{log}");
            assert!(bound(1 << log) >= f32::powf(2.0, log as f32 / 2.0));
        }
    }
}
