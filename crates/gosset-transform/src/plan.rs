//! How a row is cut into tiles.

use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};

use crate::error::TransformError;

/// Tile of the RHT where nothing else is asked, in columns: the tile of HyperQuant (arXiv 2606.23406, section 7.2).
pub const DEFAULT_TILE: u32 = 128;

/// Largest tile, in columns.
pub const MAX_TILE: u32 = 1 << 16;

/// Largest width of a row, in columns. It bounds what a claimed width can make a reader allocate: 32 MiB of signs.
pub const MAX_WIDTH: usize = 1 << 28;

/// Smallest tile for which one size for the whole row is preferred to a mix. Below it, a tile is too short to make
/// its coordinates look Gaussian, and a few short tiles at the end of the row harm less than short tiles throughout.
const MIN_UNIFORM_TILE: u32 = 32;

/// `count` tiles of `tile` columns each, side by side.
///
/// ```
/// let run = gosset_transform::TileRun { tile: 128, count: 7 };
/// assert_eq!(run.columns(), 896);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileRun {
    /// Columns of one tile, a power of two.
    pub tile: u32,
    /// Number of tiles.
    pub count: u32,
}

impl TileRun {
    /// Columns of the whole run.
    ///
    /// ```
    /// assert_eq!(gosset_transform::TileRun { tile: 65536, count: u32::MAX }.columns(), 281474976645120);
    /// ```
    #[must_use]
    pub fn columns(self) -> u64 {
        u64::from(self.tile) * u64::from(self.count)
    }

    /// `1 / sqrt(tile)`, correctly rounded to f32: what makes a transformed tile keep its norm.
    ///
    /// ```
    /// use gosset_transform::TileRun;
    ///
    /// assert_eq!(TileRun { tile: 64, count: 1 }.scale(), 0.125);
    /// assert_eq!(TileRun { tile: 128, count: 1 }.scale(), 0.088388346);
    /// ```
    #[must_use]
    pub fn scale(self) -> f32 {
        // For 2^k this is 2^-(k/2), times 1/sqrt(2) where k is odd; multiplying by a power of two rounds nothing.
        let log2 = self.tile.max(1).ilog2();
        let power = f32::from_bits((127 - log2 / 2) << 23);
        if log2.is_multiple_of(2) { power } else { power * core::f32::consts::FRAC_1_SQRT_2 }
    }
}

/// How a row of some width is cut into tiles: runs of power-of-two tiles, longest first, that cover it exactly.
///
/// Nothing is padded and no dense matrix is needed: any width has a plan. Each tile starts at a multiple of its own
/// length. Two plans are equal when their widths and runs are.
///
/// ```
/// use gosset_transform::{DEFAULT_TILE, TilePlan};
///
/// for (width, plan) in [
///     (1024, "8 x 128"),
///     (576, "9 x 64"),                                        // 64 is the largest tile that divides 576.
///     (10920, "85 x 128 + 1 x 32 + 1 x 8"),                   // 8 is, but it is too short to use throughout.
///     (173, "1 x 128 + 1 x 32 + 1 x 8 + 1 x 4 + 1 x 1"),      // The last column only has its sign changed.
/// ] {
///     assert_eq!(TilePlan::new(width, DEFAULT_TILE)?.to_string(), plan);
/// }
/// # Ok::<(), gosset_transform::TransformError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TilePlan {
    width: usize,
    asked_tile: u32,
    runs: Vec<TileRun>,
}

impl TilePlan {
    /// The plan of a row of `width` columns for an asked tile of `asked_tile` columns.
    ///
    /// If the largest power of two `<= asked_tile` that divides the width is at least 32, every tile has that length.
    /// Otherwise as many tiles of `asked_tile` columns as fit, then one tile for each power of two in the binary
    /// expansion of the rest, in descending order.
    ///
    /// # Errors
    ///
    /// [`TransformError::Width`] if the width is not in `1..=MAX_WIDTH` ([`MAX_WIDTH`]);
    /// [`TransformError::AskedTile`] if the asked tile is not a power of two in `1..=MAX_TILE` ([`MAX_TILE`]).
    ///
    /// ```
    /// use gosset_transform::{TilePlan, TileRun};
    ///
    /// let plan = TilePlan::new(48, 128)?;
    /// assert_eq!(plan.runs(), [TileRun { tile: 32, count: 1 }, TileRun { tile: 16, count: 1 }]);
    /// # Ok::<(), gosset_transform::TransformError>(())
    /// ```
    pub fn new(width: usize, asked_tile: u32) -> Result<Self, TransformError> {
        let columns = checked_width(width)?;
        if !is_tile(asked_tile) {
            return Err(TransformError::AskedTile { tile: asked_tile });
        }
        let divisor = asked_tile.min(1 << columns.trailing_zeros());
        let mut runs = Vec::new();
        if divisor >= MIN_UNIFORM_TILE {
            runs.push(TileRun { tile: divisor, count: columns / divisor });
        } else {
            if columns >= asked_tile {
                runs.push(TileRun { tile: asked_tile, count: columns / asked_tile });
            }
            let rest = columns % asked_tile;
            let tiles = (0..asked_tile.ilog2()).rev().map(|k| 1 << k).filter(|tile| rest & tile != 0);
            runs.extend(tiles.map(|tile| TileRun { tile, count: 1 }));
        }
        Ok(Self { width, asked_tile, runs })
    }

    /// The plan with these runs, as read from an untrusted file.
    ///
    /// The asked tile of the result is the tile of the first run.
    ///
    /// # Errors
    ///
    /// [`TransformError::Width`] as for [`new`](Self::new); [`TransformError::RunTile`] for a tile that is not a power
    /// of two in `1..=MAX_TILE` ([`MAX_TILE`]); [`TransformError::RunCount`] for an empty run;
    /// [`TransformError::RunOrder`] unless each run's tile is smaller than the one before, which also limits the number
    /// of runs; [`TransformError::RunSum`] if the runs do not add up to the width.
    ///
    /// ```
    /// use gosset_transform::{TilePlan, TileRun, TransformError};
    ///
    /// let runs = [TileRun { tile: 128, count: 1 }, TileRun { tile: 8, count: 1 }];
    /// assert_eq!(TilePlan::from_runs(136, &runs)?, TilePlan::new(136, 128)?);
    /// assert_eq!(TilePlan::from_runs(140, &runs), Err(TransformError::RunSum { covered: 136, width: 140 }));
    /// # Ok::<(), TransformError>(())
    /// ```
    pub fn from_runs(width: usize, runs: &[TileRun]) -> Result<Self, TransformError> {
        checked_width(width)?;
        let mut covered = 0_u64; // At most 17 descending runs of fewer than 2^48 columns each: cannot overflow.
        let mut previous = None;
        for (run_idx, &run) in runs.iter().enumerate() {
            if !is_tile(run.tile) {
                return Err(TransformError::RunTile { run: run_idx, tile: run.tile });
            }
            if run.count == 0 {
                return Err(TransformError::RunCount { run: run_idx });
            }
            if let Some(previous) = previous
                && run.tile >= previous
            {
                return Err(TransformError::RunOrder { run: run_idx, tile: run.tile, previous });
            }
            previous = Some(run.tile);
            covered += run.columns();
        }
        match runs.first() {
            Some(first) if covered == width as u64 => Ok(Self { width, asked_tile: first.tile, runs: runs.to_vec() }),
            _ => Err(TransformError::RunSum { covered, width }),
        }
    }

    /// Columns of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The tile that was asked for, in columns.
    ///
    /// ```
    /// assert_eq!(gosset_transform::TilePlan::new(576, 128)?.asked_tile(), 128);
    /// # Ok::<(), gosset_transform::TransformError>(())
    /// ```
    #[must_use]
    pub fn asked_tile(&self) -> u32 {
        self.asked_tile
    }

    /// The runs, in column order: tiles strictly descending, counts at least one.
    #[must_use]
    pub fn runs(&self) -> &[TileRun] {
        &self.runs
    }
}

impl PartialEq for TilePlan {
    fn eq(&self, other: &Self) -> bool {
        (self.width, &self.runs) == (other.width, &other.runs)
    }
}

impl Eq for TilePlan {}

impl Hash for TilePlan {
    fn hash<S: Hasher>(&self, state: &mut S) {
        (self.width, &self.runs).hash(state);
    }
}

/// `count x tile` for each run, joined by ` + `.
impl fmt::Display for TilePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, run) in self.runs.iter().enumerate() {
            let plus = if i == 0 { "" } else { " + " };
            write!(f, "{plus}{} x {}", run.count, run.tile)?;
        }
        Ok(())
    }
}

fn is_tile(tile: u32) -> bool {
    tile.is_power_of_two() && tile <= MAX_TILE
}

fn checked_width(width: usize) -> Result<u32, TransformError> {
    match u32::try_from(width) {
        Ok(columns) if (1..=MAX_WIDTH).contains(&width) => Ok(columns),
        _ => Err(TransformError::Width { width }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_is_the_correctly_rounded_inverse_root() {
        for log2 in 0..=16 {
            let run = TileRun { tile: 1 << log2, count: 1 };
            assert_eq!(run.scale(), (1.0 / f64::from(run.tile).sqrt()) as f32, "tile {}", run.tile);
        }
    }

    #[test]
    fn untrusted_plans_are_checked() {
        let run = |tile, count| TileRun { tile, count };
        use TransformError::*;
        for (width, runs, error) in [
            (0, &[][..], Width { width: 0 }),
            (MAX_WIDTH + 1, &[], Width { width: MAX_WIDTH + 1 }),
            (usize::MAX, &[], Width { width: usize::MAX }),
            (128, &[], RunSum { covered: 0, width: 128 }),
            (128, &[run(0, 128)], RunTile { run: 0, tile: 0 }),
            (96, &[run(96, 1)], RunTile { run: 0, tile: 96 }),
            (1 << 17, &[run(1 << 17, 1)], RunTile { run: 0, tile: 1 << 17 }),
            (128, &[run(128, 1), run(64, 0)], RunCount { run: 1 }),
            (192, &[run(64, 1), run(128, 1)], RunOrder { run: 1, tile: 128, previous: 64 }),
            (256, &[run(128, 1), run(128, 1)], RunOrder { run: 1, tile: 128, previous: 128 }),
            (128, &[run(1 << 16, u32::MAX)], RunSum { covered: 281_474_976_645_120, width: 128 }),
            (129, &[run(128, 1)], RunSum { covered: 128, width: 129 }),
        ] {
            assert_eq!(TilePlan::from_runs(width, runs), Err(error), "{error}");
        }
    }

    #[test]
    fn bad_requests_are_refused() {
        for tile in [0, 3, 96, MAX_TILE + 1, 1 << 17, u32::MAX] {
            assert_eq!(TilePlan::new(128, tile), Err(TransformError::AskedTile { tile }));
        }
        for width in [0, MAX_WIDTH + 1, 1 << 32, usize::MAX] {
            assert_eq!(TilePlan::new(width, 128), Err(TransformError::Width { width }));
        }
    }

    #[test]
    fn equal_runs_make_equal_plans() {
        let (narrow, wide) = (TilePlan::new(172, 128).unwrap(), TilePlan::new(172, 1024).unwrap());
        assert_eq!(narrow, wide);
        assert_ne!((narrow.asked_tile(), 1), (wide.asked_tile(), 1));
    }
}
