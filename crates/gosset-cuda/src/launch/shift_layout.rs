//! How the words of a bit-shift trellis lie on a device, and how a product is cut into blocks and warps.
//!
//! The order is that of `kernels/include/shift.cuh`: units of 16 rows and 128 columns, two runs of k words per lane.

use gosset_trellis::shift::{Code, ShiftLayout, ShiftOrder, ShiftSpec, ShiftTrellis};

use crate::error::CudaError;

/// Rows of a unit.
pub(crate) const UNIT_ROWS: usize = 16;
/// Columns of a unit.
pub(crate) const UNIT_COLS: usize = 128;
/// Bytes from the start of dynamic shared memory to the end of the table.
pub(crate) const TABLE_SHARED: u32 = 1024 + 1024 * 128;
/// Most units of one launch: what their activation takes leaves room for the sums.
const MAX_LAUNCH_UNITS: u32 = 256;
/// Bytes of shared memory that are kept for sums.
const SUMS_SHARED: u32 = 24 << 10;
/// Least shared memory of a block that the products with kernels of their own need.
pub(crate) const MIN_SHARED: u32 = TABLE_SHARED + SUMS_SHARED + (8 << 10);
/// Warps of a block.
const MAX_WARPS: u32 = 32;
/// Warps below which a multiprocessor is not busy.
const BUSY_WARPS: u32 = 20;

/// Sizes of a matrix on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Units {
    /// Units of a row of tiles.
    pub(crate) row_units: u32,
    /// Rows of tiles.
    pub(crate) n_row_tiles: u32,
    /// Words of all units.
    pub(crate) n_words: usize,
    /// Words of all histories: those of rows.
    pub(crate) n_histories: usize,
}

impl Units {
    /// The units of a layout.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for more than the kernels can count.
    pub(crate) fn new(layout: &ShiftLayout) -> Result<Self, CudaError> {
        let too_many =
            || CudaError::shape("shift matrix", "fewer than 2^31 rows and columns", layout.rows().max(layout.cols()));
        let fits = |n: usize| u32::try_from(n).ok().filter(|&n| n < 1 << 31).ok_or_else(too_many);
        let (_, _, _) = (fits(layout.rows())?, fits(layout.cols())?, fits(layout.words_per_string())?);
        let row_units = layout.cols().div_ceil(UNIT_COLS);
        let n_row_tiles = layout.rows().div_ceil(UNIT_ROWS);
        let n_units = row_units.checked_mul(n_row_tiles).ok_or_else(too_many)?;
        let n_words = n_units.checked_mul(64 * usize::from(layout.spec().bits)).ok_or_else(too_many)?;
        let n_histories = if layout.spec().order == ShiftOrder::Rows { 8 * n_units } else { 0 };
        Ok(Self { row_units: fits(row_units)?, n_row_tiles: fits(n_row_tiles)?, n_words, n_histories })
    }
}

/// The multipliers as the kernels take them: shifted so that the index is in bits 7 to 16 of a product, or 8 to 17 of one
/// with a state of 18 bits.
pub(crate) fn multipliers(trellis: &ShiftTrellis) -> [u32; 2] {
    let up = 17u32.saturating_sub(trellis.spec().state_bits.into());
    match trellis.code() {
        Code::Quantiles { multipliers, .. } if trellis.spec().weights_per_step() == 2 => multipliers.map(|m| m << up),
        Code::Quantiles { multipliers, .. } => [multipliers[0] << up; 2],
        Code::Pairs { multiplier, .. } => [multiplier << up; 2],
    }
}

/// Word `index` of a random matrix of that seed: what the kernel `shift_random` writes.
#[must_use]
pub fn random_word(seed: u32, index: usize) -> u32 {
    let mut v = (index as u32).wrapping_mul(0x9e37_79b9).wrapping_add(seed);
    v = (v ^ v >> 16).wrapping_mul(0x85eb_ca6b);
    v = (v ^ v >> 13).wrapping_mul(0xc2b2_ae35);
    v ^ v >> 16
}

/// How a product with one activation is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GemvCut {
    /// Blocks.
    pub(crate) grid: u32,
    /// Parts of the columns.
    pub(crate) n_parts: u32,
    /// Row tiles at a time.
    pub(crate) n_slots: u32,
    /// Units of a part, rounded up.
    pub(crate) part_units: u32,
    /// Row tiles of a block, rounded down.
    pub(crate) min_tiles: u32,
    /// Blocks with one more.
    pub(crate) extra_tiles: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared_bytes: u32,
}

impl GemvCut {
    /// Row tiles of a block, rounded up.
    pub(crate) fn max_tiles(&self) -> u32 {
        self.min_tiles + u32::from(self.extra_tiles > 0)
    }

    /// The cut for `n_units` columns of units, `None` if shared memory does not suffice.
    ///
    /// With the warps of a block sharing one pipe, the time is that of the steps of a warp, each as long as there are warps.
    pub(crate) fn new(n_row_tiles: u32, n_units: u32, n_sms: u32, max_shared: u32) -> Option<Self> {
        for waves in 1..=64 {
            let grid = n_row_tiles.min(n_sms.saturating_mul(waves));
            let (min_tiles, extra_tiles) = (n_row_tiles / grid, n_row_tiles % grid);
            let max_tiles = min_tiles + u32::from(extra_tiles > 0);
            let cut = |n_parts: u32| {
                let n_slots = (MAX_WARPS / n_parts).min(max_tiles);
                let part_units = n_units.div_ceil(n_parts);
                // A thread per row loads the scales.
                if u64::from(max_tiles) * UNIT_ROWS as u64 > u64::from(n_parts * n_slots) * 32 {
                    return None;
                }
                let shared = u64::from(TABLE_SHARED)
                    + u64::from(n_units) * 256
                    + u64::from(n_units.div_ceil(4)) * 16
                    + u64::from(max_tiles) * 64
                    + u64::from(max_tiles.next_multiple_of(n_slots)) * 64 * u64::from(n_parts);
                let steps = u64::from(part_units) * u64::from(max_tiles.div_ceil(n_slots));
                let cost = steps * u64::from((n_parts * n_slots).max(BUSY_WARPS));
                let shared_bytes = u32::try_from(shared).ok().filter(|&bytes| bytes <= max_shared)?;
                Some((cost, Self { grid, n_parts, n_slots, part_units, min_tiles, extra_tiles, shared_bytes }))
            };
            // Of equals the one with the most parts, whose warps change units least.
            let best = (1..=MAX_WARPS.min(n_units)).rev().filter_map(cut).min_by_key(|(cost, _)| *cost);
            if let Some((_, cut)) = best {
                return Some(cut);
            }
            if grid == n_row_tiles {
                break;
            }
        }
        None
    }
}

/// How a product with several activations is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GemmCut {
    /// Row tiles of a block, one per warp and half of the columns.
    pub(crate) n_tiles: u32,
    /// Splits of the columns.
    pub(crate) n_splits: u32,
    /// Units of a split, rounded up.
    pub(crate) split_units: u32,
}

impl GemmCut {
    /// Parts of the columns of a split, a warp each per row tile.
    pub(crate) const PARTS: u32 = 4;
    /// Row tiles that a block has warps for.
    const MAX_TILES: u32 = 7;
    /// Most splits: their sums are read again.
    const MAX_SPLITS: u32 = 8;
    /// What a block costs before and after its units, and a second kernel, in units of one warp.
    const BLOCK_COST: u32 = 20;
    const REDUCE_COST: u32 = 40;

    /// The cut that is expected to take least.
    pub(crate) fn new(n_row_tiles: u32, row_units: u32, n_sms: u32) -> Self {
        let cut = |n_tiles: u32, splits: u32| {
            let split_units = row_units.div_ceil(splits);
            // None of them is empty.
            let n_splits = row_units.div_ceil(split_units);
            let waves = (n_row_tiles.div_ceil(n_tiles) * n_splits).div_ceil(n_sms);
            let warps = (Self::PARTS * n_tiles).max(BUSY_WARPS);
            let cost = u64::from(waves) * u64::from(split_units.div_ceil(Self::PARTS) * warps + Self::BLOCK_COST)
                + u64::from(if n_splits > 1 { Self::REDUCE_COST } else { 0 });
            (cost, Self { n_tiles, n_splits, split_units })
        };
        let cuts = (1..=Self::MAX_TILES).flat_map(|n| (1..=Self::MAX_SPLITS.min(row_units)).map(move |s| cut(n, s)));
        cuts.min_by_key(|(cost, _)| *cost)
            .map_or(Self { n_tiles: 1, n_splits: 1, split_units: row_units }, |(_, cut)| cut)
    }
}

/// Units of the launches that a product with one activation takes, with so much shared memory.
pub(crate) fn unit_ranges(row_units: u32, max_shared: u32) -> impl Iterator<Item = (u32, u32)> {
    let room = max_shared.saturating_sub(TABLE_SHARED + SUMS_SHARED) / 260;
    let n = row_units.div_ceil(room.clamp(1, MAX_LAUNCH_UNITS));
    let each = row_units.div_ceil(n.max(1));
    (0..n).map(move |i| (i * each, each.min(row_units - i * each)))
}

/// Whether a state is too wide for the kernels of at most 17 bits.
pub(crate) fn is_wide(spec: ShiftSpec) -> bool {
    spec.state_bits > 17
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200_SHARED: u32 = 227 * 1024;

    #[test]
    fn wide_layers_have_a_warp_per_unit() {
        let cut = GemvCut::new(14336 / 16, 32, 132, H200_SHARED).unwrap();
        assert_eq!((cut.grid, cut.n_parts, cut.n_slots, cut.part_units), (132, 32, 1, 1));
        assert_eq!((cut.min_tiles, cut.extra_tiles, cut.max_tiles()), (6, 104, 7));
        let cut = GemvCut::new(4096 / 16, 112, 132, H200_SHARED).unwrap();
        assert_eq!((cut.grid, cut.n_parts, cut.n_slots, cut.part_units), (132, 28, 1, 4));
    }

    #[test]
    fn every_cut_covers_the_matrix_and_fits() {
        for n_row_tiles in [1, 2, 7, 131, 132, 133, 896, 8016, 100_000] {
            for n_units in [1, 2, 5, 7, 20, 38, 112, 224, 256] {
                for (n_sms, shared) in [(132, H200_SHARED), (108, 163 * 1024), (1, H200_SHARED)] {
                    let Some(cut) = GemvCut::new(n_row_tiles, n_units, n_sms, shared) else {
                        assert!(shared < H200_SHARED && n_units > 100 || n_row_tiles / n_sms > 500);
                        continue;
                    };
                    assert_eq!(cut.grid * cut.min_tiles + cut.extra_tiles, n_row_tiles);
                    assert!(cut.n_parts * cut.n_slots <= MAX_WARPS && cut.n_parts * cut.part_units >= n_units);
                    assert!(cut.n_parts <= n_units && cut.n_slots >= 1 && cut.shared_bytes <= shared);
                }
            }
        }
        assert_eq!(GemvCut::new(10, 10, 132, 99 * 1024), None);
    }

    #[test]
    fn a_product_of_many_fills_the_device() {
        let cut = |n_tiles, n_splits, split_units| GemmCut { n_tiles, n_splits, split_units };
        assert_eq!(GemmCut::new(14336 / 16, 32, 132), cut(7, 1, 32));
        assert_eq!(GemmCut::new(1, 1, 132), cut(1, 1, 1));
        let narrow = GemmCut::new(4096 / 16, 112, 132);
        assert!(narrow.n_splits > 1 && 256u32.div_ceil(narrow.n_tiles) * narrow.n_splits <= 132, "{narrow:?}");
        for (n_row_tiles, row_units) in [(1, 40), (256, 112), (1792, 32), (36, 5), (8016, 32)] {
            let cut = GemmCut::new(n_row_tiles, row_units, 132);
            assert!(cut.split_units * cut.n_splits >= row_units && cut.split_units * (cut.n_splits - 1) < row_units);
        }
    }

    #[test]
    fn launches_cover_all_units() {
        for row_units in [1, 32, 256, 257, 1000] {
            let ranges: Vec<_> = unit_ranges(row_units, H200_SHARED).collect();
            assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
            let (first, n) = *ranges.last().unwrap();
            assert_eq!((ranges[0].0, first + n), (0, row_units));
            assert!(ranges.iter().all(|&(_, n)| n > 0 && n <= MAX_LAUNCH_UNITS));
        }
    }
}
