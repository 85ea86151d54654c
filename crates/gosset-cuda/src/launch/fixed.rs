//! Plain fixed-width weights of two or four bits, a scale per row: the fastest products, and the most distortion for their bits.
//!
//! `v` stands for `(v - (2^bits - 1) / 2)` times the scale of its row. On Gaussian rows of unit variance the levels lose
//! 0.119 of the energy at two bits and 0.0115 at four.

use gosset_transform::TilePlan;
use half::{bf16, f16};

use super::checks::to_u32;
use super::quantize::UnitRows;
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{FixedEncodeParams, FixedGemvParams};
use crate::gpu::Gpu;
use crate::kernel::{Kernel, Launch};
use crate::memory::{Buffer, DevSlice, DevSliceMut};
use crate::stream::StreamRef;

/// Rows of a tile.
const TILE_ROWS: usize = 16;
/// Words of a tile and a block of columns.
const BLOCK_WORDS: usize = 128;
/// Widest batch of one launch.
const MAX_BATCH: usize = 8;
/// Columns that the kernels with activations in registers take.
const FULL_COLS: usize = 4096;

/// Bits of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FixedBits {
    /// Four levels.
    Two,
    /// Sixteen levels.
    Four,
}

impl FixedBits {
    /// The number.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// Distance of the levels that loses least of Gaussian values of unit variance.
    ///
    /// Source: J. Max, *Quantizing for minimum distortion*, IRE Trans. Inform. Theory 1960, table of equally spaced levels.
    #[must_use]
    pub fn step(self) -> f32 {
        match self {
            Self::Two => 0.9957,
            Self::Four => 0.3352,
        }
    }

    /// Columns of a block.
    fn block_cols(self) -> usize {
        256 / self.bits() as usize
    }

    fn module(self) -> Module {
        match self {
            Self::Two => Module::FixedK2,
            Self::Four => Module::FixedK4,
        }
    }
}

/// Where the code of a row and a column lies: word and lowest bit.
fn place(bits: FixedBits, k_blocks: usize, row: usize, col: usize) -> (usize, usize) {
    let (block_cols, run) = (bits.block_cols(), 32 / bits.bits() as usize);
    let (half, within) = (col % block_cols / (block_cols / 2), col % (block_cols / 2));
    let (thread, at) = (within / run, within % run);
    let lane = row % 8 * 4 + thread;
    let word = row % TILE_ROWS / 8 + 2 * half;
    let block = row / TILE_ROWS * k_blocks + col / block_cols;
    ((block * 32 + lane) * 4 + word, bits.bits() as usize * (at / 2) + 16 * (at % 2))
}

/// A matrix of fixed-width weights on a device.
#[derive(Debug)]
pub struct FixedMatrix {
    gpu: Gpu,
    bits: FixedBits,
    rows: usize,
    cols: usize,
    words: Buffer<u32>,
    scales: Buffer<f32>,
}

impl FixedMatrix {
    /// Rounds rows of unit RMS to the nearest levels.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] and what a launch can fail with.
    pub fn encode(gpu: &Gpu, stream: StreamRef<'_>, rows: &UnitRows, bits: FixedBits) -> Result<Self, CudaError> {
        Self::encode_units(gpu, stream, rows.units(), rows.scales(), rows.cols(), bits)
    }

    /// Rounds rows of unit RMS, `[scales.len(), cols]`, to the nearest levels; `scales` bring them back to size.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for lengths that do not match; those of [`FixedMatrix::encode`].
    pub fn encode_units(
        gpu: &Gpu,
        stream: StreamRef<'_>,
        units: DevSlice<'_, f32>,
        scales: &[bf16],
        cols: usize,
        bits: FixedBits,
    ) -> Result<Self, CudaError> {
        let rows = scales.len();
        if rows == 0 || cols == 0 || rows.checked_mul(cols) != Some(units.len()) {
            return Err(CudaError::shape(
                "units of a fixed-width matrix",
                format!("{rows} rows of {cols}"),
                units.len(),
            ));
        }
        let k_blocks = cols.div_ceil(bits.block_cols());
        let n_words = rows.div_ceil(TILE_ROWS).checked_mul(k_blocks).and_then(|n| n.checked_mul(BLOCK_WORDS));
        let n_words = n_words.ok_or_else(|| CudaError::shape("words of a fixed-width matrix", "countable", rows))?;
        let scales: Vec<f32> = scales.iter().map(|scale| scale.to_f32() * bits.step()).collect();
        let mut words = Buffer::<u32>::uninit(gpu, n_words)?;
        let scales = gpu.upload(&scales)?;
        let params = FixedEncodeParams {
            units: units.ptr(),
            words: words.as_mut().ptr(),
            rows: to_u32("rows", rows)?,
            cols: to_u32("columns", cols)?,
            k_blocks: k_blocks as u32,
            step: bits.step(),
        };
        let launch = Launch {
            grid: [to_u32("words of a fixed-width matrix", n_words.div_ceil(256))?, 1, 1],
            block: [256, 1, 1],
            ..Launch::default()
        };
        let kernel = gpu.kernel(bits.module(), "fixed_encode")?;
        // SAFETY: units are `[rows, cols]`, and there is a word for each that the kernel counts.
        unsafe { kernel.launch(stream, launch, &params)? };
        Ok(Self { gpu: gpu.clone(), bits, rows, cols, words, scales })
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

    /// Bits of a weight.
    #[must_use]
    pub fn bits(&self) -> FixedBits {
        self.bits
    }

    /// Bytes of device memory: words, padded to whole tiles, and scales.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.words.bytes() + self.scales.bytes()
    }

    /// The codes, `[rows, cols]`, read back from the very words that products use.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn codes(&self) -> Result<Vec<u8>, CudaError> {
        let words = self.gpu.download(self.words.as_slice())?;
        let k_blocks = self.cols.div_ceil(self.bits.block_cols());
        let mask = (1 << self.bits.bits()) - 1;
        let code = |row, col| {
            let (word, bit) = place(self.bits, k_blocks, row, col);
            (words[word] >> bit & mask) as u8
        };
        Ok((0..self.rows).flat_map(|row| (0..self.cols).map(move |col| (row, col))).map(|(r, c)| code(r, c)).collect())
    }

    /// The weights, `[rows, cols]`, in the rotated frame.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn dequantize(&self) -> Result<Vec<f32>, CudaError> {
        let (codes, scales) = (self.codes()?, self.gpu.download(self.scales.as_slice())?);
        let offset = ((1 << self.bits.bits()) - 1) as f32 / 2.0;
        let rows = codes.chunks(self.cols).zip(scales);
        Ok(rows.flat_map(|(row, scale)| row.iter().map(move |&code| (f32::from(code) - offset) * scale)).collect())
    }

    /// `y = x W^T`: `x` is `[batch, cols]`, each row to be multiplied by its `x_scale`, `y` `[batch, rows]`.
    ///
    /// Batches beyond 8 are cut. Halves multiply without error and sums are f32, so results are off by a few units of f32 of
    /// `1024 |x| |w|`.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for lengths that do not match; [`CudaError::Unsupported`] where a row of `x` does not fit the
    /// shared memory of a multiprocessor.
    pub fn gemv(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f16>,
        x_scale: Option<DevSlice<'_, f32>>,
        mut y: DevSliceMut<'_, f32>,
    ) -> Result<(), CudaError> {
        if x.is_empty() || !x.len().is_multiple_of(self.cols) {
            return Err(CudaError::shape("x of a product", format!("rows of {}", self.cols), x.len()));
        }
        let batch = x.len() / self.cols;
        if y.len() != batch * self.rows {
            return Err(CudaError::shape("y of a product", format!("{} elements", batch * self.rows), y.len()));
        }
        if let Some(scale) = x_scale
            && scale.len() != batch
        {
            return Err(CudaError::shape("scales of x", format!("{batch} elements"), scale.len()));
        }
        let cut = self.cut(batch)?;
        for first in (0..batch).step_by(cut) {
            let rows = first..batch.min(first + cut);
            self.launch(
                stream,
                x.slice(rows.start * self.cols..rows.end * self.cols)?,
                x_scale.map(|scale| scale.slice(rows.clone())).transpose()?,
                y.reborrow().slice(rows.start * self.rows..rows.end * self.rows)?,
            )?;
        }
        Ok(())
    }

    /// Whether [`FixedMatrix::gemv_rht`] serves rows of that plan: 4096 columns in tiles of 128.
    #[must_use]
    pub fn fuses(&self, plan: &TilePlan) -> bool {
        self.cols == FULL_COLS && matches!(plan.runs(), [run] if run.tile == 128 && run.columns() == FULL_COLS as u64)
    }

    /// `y = RHT(x) W^T` for one row of f32: the rotation, and the scale that takes the row to f16, are part of the launch.
    ///
    /// `signs` are the words of the transform's signs, `plan` its tiles.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for a plan that [`FixedMatrix::fuses`] denies; [`CudaError::Shape`] for lengths that do not
    /// match, or rows that do not start at a multiple of 16 bytes.
    pub fn gemv_rht(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        signs: DevSlice<'_, u32>,
        plan: &TilePlan,
        y: DevSliceMut<'_, f32>,
    ) -> Result<(), CudaError> {
        if !self.fuses(plan) {
            return Err(CudaError::Unsupported {
                op: "fixed_gemv_rht",
                what: format!("{} columns as {plan}", self.cols),
            });
        }
        if x.len() != self.cols || !x.ptr().is_multiple_of(16) {
            let found = format!("{} at {:#x}", x.len(), x.ptr());
            return Err(CudaError::shape("x of a product", format!("{} aligned elements", self.cols), found));
        }
        if signs.len() < self.cols / 32 {
            return Err(CudaError::shape("signs of a product", format!("{} words", self.cols / 32), signs.len()));
        }
        if y.len() != self.rows {
            return Err(CudaError::shape("y of a product", format!("{} elements", self.rows), y.len()));
        }
        let variant = Variant { kernel: self.gpu.kernel(self.bits.module(), "fixed_gemv1_rht")?, ..self.variant(1)? };
        let mut params = self.params(1, y)?;
        (params.x_f32, params.signs) = (x.ptr(), signs.ptr());
        // SAFETY: the lengths and the alignment were checked.
        unsafe { variant.kernel.launch(stream, self.shape(variant), &params) }
    }

    /// Rows of `x` per launch: as many as fit.
    fn cut(&self, batch: usize) -> Result<usize, CudaError> {
        for n in (1..=batch.min(MAX_BATCH)).rev() {
            let variant = self.variant(n)?;
            if variant.shared_bytes <= variant.kernel.max_dynamic_bytes() {
                return Ok(n);
            }
        }
        Err(CudaError::Unsupported { op: "fixed_gemv", what: format!("{} columns", self.cols) })
    }

    /// The kernel for a batch that is launched at once.
    fn variant(&self, batch: usize) -> Result<Variant, CudaError> {
        let block_cols = self.bits.block_cols();
        let k_blocks = self.cols.div_ceil(block_cols);
        let full = k_blocks == FULL_COLS / block_cols;
        // Warps, warps of a tile, tiles whose sums wait, columns of the products: as in `fixed.cu`.
        let (entry, warps, share, tiles, columns, at_once) = match (batch, full) {
            (1, true) => ("fixed_gemv1_full", 16, 16, 16, 1, k_blocks),
            (1, false) => ("fixed_gemv1_any", 32, 16, 16, 1, 32),
            (_, true) => ("fixed_gemv8_full", 16, 16, 8, 8, k_blocks),
            (_, false) => ("fixed_gemv8_any", 16, 16, 8, 8, 32),
        };
        let padded = k_blocks.next_multiple_of(at_once) * block_cols + 8;
        let shared = batch * padded * 2 + tiles * warps * 16 * columns * 4;
        let kernel = self.gpu.kernel(self.bits.module(), entry)?;
        Ok(Variant {
            kernel,
            warps: warps as u32,
            tiles_at_once: warps / share,
            shared_bytes: to_u32("columns", shared)?,
        })
    }

    fn launch(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f16>,
        x_scale: Option<DevSlice<'_, f32>>,
        y: DevSliceMut<'_, f32>,
    ) -> Result<(), CudaError> {
        let batch = x.len() / self.cols;
        let variant = self.variant(batch)?;
        let mut params = self.params(batch, y)?;
        params.x = x.ptr();
        params.x_scale = x_scale.map_or(0, |scale| scale.ptr());
        params.x_vectors = u32::from(self.cols.is_multiple_of(8) && x.ptr().is_multiple_of(16));
        // SAFETY: the lengths were checked; x is read 16 bytes at a time only where its rows are aligned.
        unsafe { variant.kernel.launch(stream, self.shape(variant), &params) }
    }

    /// What all kernels are told; words and scales are those of the shape, what the previous kernel writes is read after it
    /// was waited for.
    fn params(&self, batch: usize, y: DevSliceMut<'_, f32>) -> Result<FixedGemvParams, CudaError> {
        Ok(FixedGemvParams {
            words: self.words.as_slice().ptr(),
            x: 0,
            x_scale: 0,
            scales: self.scales.as_slice().ptr(),
            y: y.ptr(),
            x_f32: 0,
            signs: 0,
            rows: to_u32("rows", self.rows)?,
            cols: to_u32("columns", self.cols)?,
            k_blocks: self.cols.div_ceil(self.bits.block_cols()) as u32,
            tiles: self.rows.div_ceil(TILE_ROWS) as u32,
            batch: batch as u32,
            x_vectors: 0,
        })
    }

    fn shape(&self, variant: Variant) -> Launch {
        let groups = self.rows.div_ceil(TILE_ROWS).div_ceil(variant.tiles_at_once) as u32;
        Launch {
            grid: [groups.min(self.gpu.info().n_sms), 1, 1],
            block: [32 * variant.warps, 1, 1],
            shared_bytes: variant.shared_bytes,
            programmatic: true,
        }
    }
}

/// A kernel and its shape.
#[derive(Debug, Clone, Copy)]
struct Variant {
    kernel: Kernel,
    warps: u32,
    tiles_at_once: usize,
    shared_bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_place_of_its_own() {
        for bits in [FixedBits::Two, FixedBits::Four] {
            for (rows, cols) in [(16usize, bits.block_cols()), (32, 3 * bits.block_cols()), (5, 70)] {
                let k_blocks = cols.div_ceil(bits.block_cols());
                let n_words = rows.div_ceil(TILE_ROWS) * k_blocks * BLOCK_WORDS;
                let mut seen = vec![0u32; n_words];
                let mask = (1 << bits.bits()) - 1;
                for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
                    let (word, bit) = place(bits, k_blocks, row, col);
                    assert_eq!(seen[word] >> bit & mask, 0, "{bits:?} row {row} column {col}");
                    seen[word] |= mask << bit;
                }
                if rows.is_multiple_of(TILE_ROWS) && cols.is_multiple_of(bits.block_cols()) {
                    assert!(seen.iter().all(|&word| word == u32::MAX), "{bits:?}: whole tiles fill their words");
                }
            }
        }
    }
}
