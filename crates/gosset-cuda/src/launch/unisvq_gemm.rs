//! Products of affine-grid matrices with many activations: codes are read once for up to 64.
//!
//! Codes of 2 and 3 bits are operands of products of halves as they are; activations are rounded to halves. Units of row blocks are dealt out evenly to
//! the multiprocessors (`kernels/include/unisvq_items.cuh`); a second kernel adds up what several of them have of one row block.

use super::checks::to_u32;
use super::unisvq::{DeviceUniSvq, GROUP_ROWS, HALVES, OUTPUT, UniSvqWorkspace, VECTOR_Y, WARPS, ptr};
use super::unisvq_layout::{TILE_ROWS, UNIT_COLS, half_shifts};
use crate::error::CudaError;
use crate::generated::modules::Module;
use crate::generated::params::{UniSvqFinishParams, UniSvqGemmParams};
use crate::kernel::Launch;
use crate::memory::{DevSlice, DevSliceMut};
use crate::stream::StreamRef;

/// Most activations of one launch.
pub(super) const MAX_GEMM: usize = 64;
/// Activations of a block of operands.
const BLOCK: usize = 8;
/// Row tiles of a warp.
const WARP_TILES: usize = 2;
/// Tiles of a group of rows.
const GROUP_TILES: usize = GROUP_ROWS / TILE_ROWS;
/// Bytes of the activations of a unit and block.
const X_BYTES: usize = 2 * BLOCK * UNIT_COLS;
/// Most blocks of a launch, one per multiprocessor: what sums take is bounded by it.
const MAX_BLOCKS: usize = 160;
/// Fewest and most stages of shared memory.
const DEPTHS: std::ops::RangeInclusive<usize> = 2..=8;
/// Threads of the kernel that adds up segments.
const FINISH_THREADS: u32 = 256;

/// Blocks of eight that a kernel for `batch` activations has room for.
fn x_blocks(batch: usize) -> usize {
    match batch {
        ..=16 => 2,
        17..=32 => 4,
        _ => 8,
    }
}

/// Floats of segments of a matrix, at most.
///
/// A row block has at most `G / R + 2` segments, R row blocks and G blocks; no row block has more than 2 WARPS tiles, no block less than an item.
pub(super) fn parts_len(rows: usize, row_units: usize, batch: usize) -> usize {
    let tiles = rows.div_ceil(GROUP_ROWS) * GROUP_TILES;
    let segments = (row_units + 2).saturating_mul(tiles).min(WARP_TILES * WARPS * MAX_BLOCKS + 2 * tiles);
    segments.saturating_mul(x_blocks(batch) * BLOCK * TILE_ROWS)
}

/// Words of prepared activations.
pub(super) fn prepared_len(row_units: usize, batch: usize) -> usize {
    row_units.saturating_mul(x_blocks(batch) * X_BYTES / 4)
}

/// How a product is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GemmCut {
    x_blocks: usize,
    warps: usize,
    row_blocks: usize,
    n_items: usize,
    n_blocks: usize,
    depth: usize,
}

impl GemmCut {
    /// For up to [`MAX_GEMM`] activations; `None` where two stages do not fit `shared_bytes`.
    pub(super) fn new(
        bits: usize,
        (rows, row_units): (usize, usize),
        batch: usize,
        n_sms: usize,
        shared_bytes: usize,
    ) -> Option<Self> {
        let x_blocks = x_blocks(batch);
        let tiles = rows.div_ceil(TILE_ROWS);
        let stage = |warps: usize| x_blocks * X_BYTES + warps * WARP_TILES * bits * 512;
        // Whole groups of rows, and no more warps than have something to do.
        let most = tiles.div_ceil(WARP_TILES).next_multiple_of(4).min(WARPS);
        let warps = (1..=most / 4).rev().map(|n| 4 * n).find(|&warps| DEPTHS.start() * stage(warps) <= shared_bytes)?;
        let row_blocks = tiles.div_ceil(WARP_TILES * warps);
        let n_items = row_blocks * row_units;
        Some(Self {
            x_blocks,
            warps,
            row_blocks,
            n_items,
            n_blocks: n_items.min(n_sms).min(MAX_BLOCKS),
            depth: (shared_bytes / stage(warps)).min(*DEPTHS.end()),
        })
    }

    fn block_rows(&self) -> usize {
        self.warps * WARP_TILES * TILE_ROWS
    }

    fn shared_bytes(&self, bits: usize) -> usize {
        self.depth * (self.x_blocks * X_BYTES + self.warps * WARP_TILES * bits * 512)
    }

    /// Most segments of a row block.
    fn segments(&self) -> usize {
        self.n_blocks.div_ceil(self.row_blocks) + 1
    }
}

impl DeviceUniSvq {
    /// The kernels for many activations, if the width has some.
    fn gemm_module(&self) -> Option<Module> {
        match self.bits() {
            2 => Some(Module::UnisvqGemmK2),
            3 => Some(Module::UnisvqGemmK3),
            _ => None,
        }
    }

    /// How a product with so many activations is cut, if it is for these kernels.
    pub(super) fn gemm_cut(&self, batch: usize) -> Option<GemmCut> {
        self.gemm_module()?;
        let info = self.gpu().info();
        let shape = (self.rows(), self.row_units());
        GemmCut::new(self.bits().into(), shape, batch, info.n_sms as usize, info.max_shared_bytes as usize)
    }

    /// `y = x Wᵀ` for up to [`MAX_GEMM`] activations; lengths were checked, the workspace was made for the batch.
    pub(super) fn gemm(
        &self,
        stream: StreamRef<'_>,
        cut: GemmCut,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        batch: usize,
        workspace: &UniSvqWorkspace,
    ) -> Result<(), CudaError> {
        let Some(module) = self.gemm_module() else {
            return Err(CudaError::Unsupported { op: "unisvq", what: format!("{} bits", self.bits()) });
        };
        let bits = usize::from(self.bits());
        self.prepare(stream, x, batch, (cut.x_blocks, HALVES, half_shifts(bits)), workspace)?;
        let part_tiles = self.rows().div_ceil(GROUP_ROWS) * GROUP_TILES;
        debug_assert!(
            cut.segments() * part_tiles * cut.x_blocks * BLOCK * TILE_ROWS
                <= parts_len(self.rows(), self.row_units(), batch)
        );
        let (n_items, parts) = (to_u32("units of all row blocks", cut.n_items)?, ptr(&workspace.z));
        let params = UniSvqGemmParams {
            words: self.words_ptr(),
            x: ptr(&workspace.prepared),
            parts,
            tiles: self.rows().div_ceil(TILE_ROWS) as u32,
            part_tiles: part_tiles as u32,
            row_units: self.row_units() as u32,
            n_items,
            depth: cut.depth as u32,
        };
        let entry = match cut.x_blocks {
            2 => "unisvq_gemm_16",
            4 => "unisvq_gemm_32",
            _ => "unisvq_gemm_64",
        };
        let launch = Launch {
            grid: [cut.n_blocks as u32, 1, 1],
            block: [32 * cut.warps as u32, 1, 1],
            shared_bytes: to_u32("shared memory", cut.shared_bytes(bits))?,
            programmatic: true,
        };
        // SAFETY: words and prepared activations are those of the shape; segments lie in what the workspace has for the batch.
        unsafe { self.gpu().kernel(module, entry)?.launch(stream, launch, &params) }?;

        let vector_y = self.rows().is_multiple_of(4) && y.ptr().is_multiple_of(16);
        let output = self.output_params();
        let params = UniSvqFinishParams {
            parts,
            activations: ptr(&workspace.activations),
            output_scales: output.scales,
            group_scales: output.group_scales,
            output_logs: output.logs,
            y: y.ptr(),
            rows: self.rows() as u32,
            part_tiles: part_tiles as u32,
            batch: batch as u32,
            x_blocks: cut.x_blocks as u32,
            row_units: self.row_units() as u32,
            n_items,
            n_blocks: cut.n_blocks as u32,
            block_rows: cut.block_rows() as u32,
            flags: if vector_y { VECTOR_Y } else { 0 } | if output.rotates { OUTPUT } else { 0 },
        };
        let launch = Launch {
            grid: [(part_tiles / GROUP_TILES) as u32, batch.div_ceil(BLOCK) as u32, 1],
            block: [FINISH_THREADS, 1, 1],
            shared_bytes: 0,
            programmatic: true,
        };
        // SAFETY: as above; y has the length of the batch.
        unsafe { self.gpu().kernel(Module::UnisvqPrepare, "unisvq_finish")?.launch(stream, launch, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First item of a block, and the block that has an item, as the kernels count them.
    fn first(cut: &GemmCut, block: usize) -> usize {
        cut.n_items * block / cut.n_blocks
    }

    fn owner(cut: &GemmCut, item: usize) -> usize {
        ((item + 1) * cut.n_blocks - 1) / cut.n_items
    }

    #[test]
    fn every_item_has_one_block_and_segments_fit_the_workspace() {
        let shapes: [(usize, usize); 8] =
            [(1, 1), (7, 65), (576, 576), (4096, 14_336), (28_672, 4096), (49_152, 576), (130, 70_000), (2000, 256)];
        for (rows, cols) in shapes {
            for (bits, batch, n_sms, shared) in [
                (2, 9, 132, 232_448),
                (3, 64, 132, 232_448),
                (2, 40, 108, 163 << 10),
                (3, 64, 84, 99 << 10),
                (3, 32, 3, 99 << 10),
                (2, 64, 500, 232_448),
            ] {
                let units = cols.div_ceil(UNIT_COLS);
                let cut = GemmCut::new(bits, (rows, units), batch, n_sms, shared).unwrap();
                assert!(cut.shared_bytes(bits) <= shared && DEPTHS.contains(&cut.depth), "{cut:?}");
                assert!(cut.block_rows().is_multiple_of(GROUP_ROWS) && cut.row_blocks * cut.block_rows() >= rows);
                for block in 0..cut.n_blocks {
                    let (first, end) = (first(&cut, block), first(&cut, block + 1));
                    assert!(first < end && owner(&cut, first) == block && owner(&cut, end - 1) == block, "{cut:?}");
                }
                assert_eq!(first(&cut, cut.n_blocks), cut.n_items);
                let segments = |block: usize| owner(&cut, (block + 1) * units - 1) - owner(&cut, block * units) + 1;
                let most = (0..cut.row_blocks).map(segments).max().unwrap();
                assert!(most <= cut.segments(), "{cut:?}: {most}");
                let tiles = rows.div_ceil(GROUP_ROWS) * GROUP_TILES;
                let len = cut.segments() * tiles * cut.x_blocks * BLOCK * TILE_ROWS;
                assert!(len <= parts_len(rows, units, batch), "{cut:?}: {len}");
            }
        }
        assert_eq!(GemmCut::new(3, (4096, 16), 64, 132, 48 << 10), None);
    }
}
