//! Encoder of the bit-shift trellis: the words of the CPU's [`ShiftEncoder`](gosset_trellis::shift::ShiftEncoder), bit for bit.
//!
//! The arithmetic is the CPU's, on integers, with its order of ties. A block of threads searches up to eight strings at
//! once, so that what is read of the table of 2^L states is shared; the ways of every step go to device memory, which the
//! launch takes from a [`ViterbiScratch`].

use std::sync::Arc;

use gosset_trellis::shift::{Code, ShiftLayout, ShiftOrder, ShiftSpec, ShiftTrellis, TILE_SIDE};

use super::checks::to_u32;
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{ViterbiGainsParams, ViterbiParams};
use crate::gpu::Gpu;
use crate::kernel::{Kernel, Launch};
use crate::memory::{Buffer, DevSlice, DevSliceMut};
use crate::stream::StreamRef;

/// Fractional bits of weights, as on the CPU.
const FRACTION_BITS: u32 = 12;
/// Largest magnitude of a weight or target, as on the CPU.
const LIMIT: f32 = 4.5;
/// Bits searched on either side of the seam of a ring, in multiples of L, as on the CPU.
const SEAM_BITS: u32 = 16;
/// Suffixes of one thread.
const SUFFIXES: u32 = 4;
/// Registers that the kernels are bounded to.
const REGISTERS: u32 = 128;

/// Memory for the ways that were taken, grown when a launch needs more and kept for the next one.
#[derive(Debug, Default)]
pub struct ViterbiScratch {
    ways: Option<Buffer<u8>>,
    limit: Option<u64>,
}

impl ViterbiScratch {
    /// Scratch of at most half of what is free when it is first used.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Scratch of at most so many bytes, which costs speed where it leaves multiprocessors without work.
    #[must_use]
    pub fn with_limit(bytes: u64) -> Self {
        Self { ways: None, limit: Some(bytes) }
    }

    /// Bytes of device memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ways.as_ref().map_or(0, Buffer::bytes)
    }
}

/// Encoder of one trellis on one device: a table of four bytes per state.
#[derive(Debug, Clone)]
pub struct ViterbiEncoder {
    gpu: Gpu,
    trellis: ShiftTrellis,
    table: Arc<Buffer<u32>>,
    code: Arc<Buffer<u32>>,
}

/// Strings whose regions are alike, and where the first of them lies.
#[derive(Debug, Clone, Copy)]
struct Class {
    first_row: usize,
    n_rows: usize,
    first_col: usize,
    n_cols: usize,
    region_rows: usize,
    region_cols: usize,
}

/// How a launch is cut.
#[derive(Debug, Clone, Copy)]
struct Cut {
    kernel: Kernel,
    set_threads: u32,
    block: u32,
    /// Strings of a block.
    strings: u32,
    shared_bytes: u32,
    /// Blocks that a multiprocessor holds.
    resident: u32,
}

/// The modules of one number of bits per step.
#[derive(Debug, Clone, Copy)]
struct Variant {
    module: Module,
    /// Strings of a set, and the kernel.
    sets: &'static [(u32, &'static str)],
    max_threads: u32,
    in_place: bool,
}

const R8: (u32, &str) = (8, "viterbi_r8");
const R4: (u32, &str) = (4, "viterbi_r4");
const R2: (u32, &str) = (2, "viterbi_r2");

fn variant(step_bits: u32) -> Variant {
    match step_bits {
        4 => Variant { module: Module::ViterbiS4, sets: &[R8, R4, R2], max_threads: 512, in_place: true },
        5 => Variant { module: Module::ViterbiS5, sets: &[R8, R4], max_threads: 512, in_place: true },
        6 => Variant { module: Module::ViterbiS6, sets: &[R8, R4], max_threads: 256, in_place: true },
        _ => Variant { module: Module::ViterbiS8, sets: &[R8, R4], max_threads: 256, in_place: false },
    }
}

/// `x` as a multiple of 2^(low_bits - FRACTION_BITS), nearest, in units of 2^-FRACTION_BITS: that of the CPU.
fn to_fixed(x: f32, low_bits: u32) -> i32 {
    const OFFSET: i32 = 1 << 15;
    let scale = (1u32 << (FRACTION_BITS - low_bits)) as f32;
    (((x.clamp(-LIMIT, LIMIT) * scale + (OFFSET as f32 + 0.5)) as i32) - OFFSET) << low_bits
}

/// Weights of all states in the order in which threads read them: block of 32 tasks, way, task, suffix of the task.
fn table(trellis: &ShiftTrellis) -> Vec<u32> {
    let spec = trellis.spec();
    let (state_bits, step_bits) = (u32::from(spec.state_bits), spec.step_bits());
    let (suffix_bits, ways) = (state_bits - step_bits, 1usize << step_bits);
    let n_tasks = (1usize << suffix_bits) / SUFFIXES as usize;
    let per_block = n_tasks.min(32);
    let mut table = vec![0; 1 << state_bits];
    for state in 0..1u32 << state_bits {
        let (way, suffix) = ((state >> suffix_bits) as usize, (state & ((1 << suffix_bits) - 1)) as usize);
        let (task, place) = (suffix / SUFFIXES as usize, suffix % SUFFIXES as usize);
        let values = trellis.code().values(state, state_bits);
        let mut c = values.map(|value| to_fixed(value * trellis.step(), step_bits.div_ceil(2)));
        if spec.weights_per_step() == 1 {
            c[1] = 0;
        }
        let at = ((task / per_block) * ways + way) * per_block + task % per_block;
        table[at * SUFFIXES as usize + place] = u32::from(c[0] as i16 as u16) | u32::from(c[1] as i16 as u16) << 16;
    }
    table
}

impl ViterbiEncoder {
    /// The encoder of a trellis.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] and [`CudaError::Driver`].
    pub fn new(gpu: &Gpu, trellis: &ShiftTrellis) -> Result<Self, CudaError> {
        let (table, code) = (gpu.table(table(trellis))?, gpu.table(trellis.code().device_table())?);
        Ok(Self { gpu: gpu.clone(), trellis: trellis.clone(), table, code })
    }

    /// The trellis.
    #[must_use]
    pub fn trellis(&self) -> &ShiftTrellis {
        &self.trellis
    }

    fn check(&self, layout: &ShiftLayout, values: usize, words: usize) -> Result<(), CudaError> {
        if layout.spec() != self.trellis.spec() {
            let expected = format!("{:?}", self.trellis.spec());
            return Err(CudaError::shape("layout of strings", expected, format!("{:?}", layout.spec())));
        }
        let n = layout.rows() * layout.cols();
        if values != n {
            return Err(CudaError::shape("values of a trellis", format!("{n} elements"), values));
        }
        if words != layout.n_words() {
            return Err(CudaError::shape("words of a trellis", format!("{} elements", layout.n_words()), words));
        }
        Ok(())
    }

    /// Writes the words of all strings of a row-major matrix of unit variance.
    ///
    /// The words are those of the CPU's encoder. `scratch` must outlive the work in the stream.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for another layout or lengths that are not its; [`CudaError::Unsupported`] where the shared
    /// memory of the device cannot hold the metrics of two strings; [`CudaError::OutOfMemory`] where the ways of one block
    /// do not fit.
    pub fn encode(
        &self,
        stream: StreamRef<'_>,
        layout: &ShiftLayout,
        values: DevSlice<'_, f32>,
        words: DevSliceMut<'_, u32>,
        scratch: &mut ViterbiScratch,
    ) -> Result<(), CudaError> {
        self.check(layout, values.len(), words.len())?;
        let spec = self.trellis.spec();
        let step_bits = spec.step_bits();
        let suffixes = 1u64 << (u32::from(spec.state_bits) - step_bits);
        let n_steps = to_u32("steps of a string", layout.n_steps())?;
        let seam = (SEAM_BITS * u32::from(spec.state_bits)).div_ceil(step_bits).min(n_steps);
        let bytes_per_step = if step_bits <= 4 { suffixes / 2 } else { suffixes };
        let ways_stride = u64::from((2 * seam).max(n_steps - 1)) * bytes_per_step;

        let classes = classes(layout);
        let largest = classes.iter().map(|class| class.n_rows * class.n_cols).max().unwrap_or(0);
        let cut = self.cut(spec, to_u32("strings", largest)?)?;
        let per_block = ways_stride * u64::from(cut.strings);
        let wanted = (largest as u64).div_ceil(cut.strings.into()).min(u64::from(cut.resident * self.gpu.info().n_sms));
        let grid = self.grow(scratch, per_block, wanted)?;
        let ways = scratch.ways.as_mut().map_or(0, |ways| ways.as_mut().ptr());

        for class in classes {
            let n_strings = to_u32("strings", class.n_rows * class.n_cols)?;
            let params = ViterbiParams {
                table: self.table.as_slice().ptr(),
                values: values.ptr(),
                words: words.ptr(),
                ways,
                ways_stride,
                n_strings,
                cols: to_u32("columns", layout.cols())?,
                state_bits: spec.state_bits.into(),
                v: spec.weights_per_step() as u32,
                n_steps,
                seam,
                words_per_string: to_u32("words of a string", layout.words_per_string())?,
                tiles: u32::from(spec.order == ShiftOrder::Tiles),
                tiles_per_row: to_u32("strings of a block of rows", layout.strings_per_block())?,
                class_cols: to_u32("strings of a block of rows", class.n_cols)?,
                first_row: to_u32("blocks of rows", class.first_row)?,
                first_col: to_u32("strings of a block of rows", class.first_col)?,
                region_rows: class.region_rows as u32,
                region_cols: to_u32("columns", class.region_cols)?,
                set_threads: cut.set_threads,
            };
            let launch = Launch {
                grid: [grid.min(n_strings.div_ceil(cut.strings)), 1, 1],
                block: [cut.block, 1, 1],
                shared_bytes: cut.shared_bytes,
                ..Launch::default()
            };
            // SAFETY: values and words are those of the layout, whose strings the classes cover within its bounds; there are
            // ways for every string of every block, and launches of one stream follow each other.
            unsafe { cut.kernel.launch(stream, launch, &params)? };
        }
        Ok(())
    }

    /// The sets of strings that suit `n_strings`: large ones share the table, small ones occupy more multiprocessors.
    fn cut(&self, spec: ShiftSpec, n_strings: u32) -> Result<Cut, CudaError> {
        let step_bits = spec.step_bits();
        let variant = variant(step_bits);
        let suffixes = 1u32 << (u32::from(spec.state_bits) - step_bits);
        let info = self.gpu.info();
        let mut chosen: Option<Cut> = None;
        for &(set, entry) in variant.sets {
            let kernel = self.gpu.kernel(variant.module, entry)?;
            let set_threads = (suffixes / SUFFIXES).min(variant.max_threads);
            let block = set_threads.max(32);
            let n_sets = block / set_threads;
            let strings = n_sets * set;
            let metrics = n_sets * suffixes * set * 4 * if variant.in_place { 1 } else { 2 };
            let shared_bytes = metrics + strings * 48 + (8 << step_bits) + 8;
            // Each string has a thread of its own.
            if strings > block || shared_bytes > kernel.max_dynamic_bytes() {
                continue;
            }
            // What a multiprocessor has beyond one block's limit is what the system takes per block, 1 KB.
            let by_memory = (info.max_shared_bytes + 1024) / (shared_bytes + 1024);
            let resident = by_memory.min(65536 / (REGISTERS * block)).clamp(1, 32);
            let halves_idle =
                chosen.is_some_and(|cut| n_strings.div_ceil(cut.strings) * 2 <= cut.resident * info.n_sms);
            if chosen.is_none() || halves_idle {
                chosen = Some(Cut { kernel, set_threads, block, strings, shared_bytes, resident });
            }
        }
        chosen.ok_or_else(|| CudaError::Unsupported {
            op: "viterbi",
            what: format!("{} state bits in {} bytes of shared memory", spec.state_bits, info.max_shared_bytes),
        })
    }

    /// Makes room for the ways of up to `wanted` blocks; gives the number of blocks that there is room for.
    fn grow(&self, scratch: &mut ViterbiScratch, per_block: u64, wanted: u64) -> Result<u32, CudaError> {
        let have = scratch.bytes() as u64;
        if have < per_block * wanted {
            let limit = match scratch.limit {
                Some(limit) => limit,
                None => (self.gpu.free_bytes()? + have) / 2,
            };
            let n_blocks = (limit / per_block).clamp(1, wanted);
            if have < n_blocks * per_block {
                scratch.ways = None;
                self.gpu.check_memory("the ways of a trellis search", n_blocks * per_block)?;
                let len = usize::try_from(n_blocks * per_block)
                    .map_err(|_| CudaError::shape("ways of a trellis", "a size that can be counted", per_block))?;
                scratch.ways = Some(Buffer::uninit(&self.gpu, len)?);
            }
        }
        // Within the strings of a launch, which are below 2^31.
        Ok((scratch.bytes() as u64 / per_block).min(wanted) as u32)
    }

    /// Writes for each row the factor that brings what its words decode to, times the step, nearest to it.
    ///
    /// As on the CPU, sums are in double precision in the order of the columns. A row that decodes to zeros has NaN.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for another layout or lengths that are not its.
    pub fn gains(
        &self,
        stream: StreamRef<'_>,
        layout: &ShiftLayout,
        values: DevSlice<'_, f32>,
        words: DevSlice<'_, u32>,
        gains: DevSliceMut<'_, f32>,
    ) -> Result<(), CudaError> {
        self.check(layout, values.len(), words.len())?;
        if gains.len() != layout.rows() {
            return Err(CudaError::shape("gains of rows", format!("{} elements", layout.rows()), gains.len()));
        }
        let spec = self.trellis.spec();
        let (pairs, multipliers) = match self.trellis.code() {
            Code::Quantiles { multipliers, .. } => (0, *multipliers),
            Code::Pairs { multiplier, .. } => (1, [*multiplier; 2]),
        };
        let rows = to_u32("rows", layout.rows())?;
        let params = ViterbiGainsParams {
            values: values.ptr(),
            words: words.ptr(),
            table: self.code.as_slice().ptr(),
            gains: gains.ptr(),
            rows,
            cols: to_u32("columns", layout.cols())?,
            state_bits: spec.state_bits.into(),
            step_bits: spec.step_bits(),
            v: spec.weights_per_step() as u32,
            words_per_string: to_u32("words of a string", layout.words_per_string())?,
            tiles: u32::from(spec.order == ShiftOrder::Tiles),
            tiles_per_row: to_u32("strings of a block of rows", layout.strings_per_block())?,
            pairs,
            multipliers,
            step: self.trellis.step(),
        };
        let kernel = self.gpu.kernel(Module::ViterbiGains, "viterbi_gains")?;
        let launch = Launch { grid: [rows.div_ceil(64), 1, 1], block: [64, 1, 1], ..Launch::default() };
        // SAFETY: the lengths are those of the layout; the table of a code has 1024 words.
        unsafe { kernel.launch(stream, launch, &params) }
    }
}

/// The strings of a layout by the shape of their regions: one class for rows, up to four for tiles.
fn classes(layout: &ShiftLayout) -> Vec<Class> {
    let (rows, cols) = (layout.rows(), layout.cols());
    if layout.spec().order == ShiftOrder::Rows {
        return vec![Class { first_row: 0, n_rows: rows, first_col: 0, n_cols: 1, region_rows: 1, region_cols: cols }];
    }
    let parts = |n: usize| {
        [(0, n / TILE_SIDE, TILE_SIDE), (n / TILE_SIDE, usize::from(!n.is_multiple_of(TILE_SIDE)), n % TILE_SIDE)]
    };
    let mut classes = Vec::with_capacity(4);
    for (first_row, n_rows, region_rows) in parts(rows) {
        for (first_col, n_cols, region_cols) in parts(cols) {
            if n_rows > 0 && n_cols > 0 {
                classes.push(Class { first_row, n_rows, first_col, n_cols, region_rows, region_cols });
            }
        }
    }
    classes
}

/// The words of a row-major matrix of unit variance, ready when this returns.
///
/// # Errors
/// Those of [`ViterbiEncoder::encode`], and what the kernels did wrong.
pub fn encode(
    gpu: &Gpu,
    trellis: &ShiftTrellis,
    layout: &ShiftLayout,
    values: DevSlice<'_, f32>,
) -> Result<Buffer<u32>, CudaError> {
    let encoder = ViterbiEncoder::new(gpu, trellis)?;
    let stream = gpu.stream()?;
    let mut words = Buffer::uninit(gpu, layout.n_words())?;
    let mut scratch = ViterbiScratch::new();
    encoder.encode(stream.as_ref(), layout, values, words.as_mut(), &mut scratch)?;
    stream.synchronize()?;
    Ok(words)
}
