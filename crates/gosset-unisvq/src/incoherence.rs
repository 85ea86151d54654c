//! The frames in which a matrix is quantized: orthonormal transforms of its input and output sides.

use gosset_transform::{Hadamard, Signs, TilePlan, TileRun, butterflies, fwht};
use serde::{Deserialize, Serialize};

use crate::UniSvqError;

/// The orthonormal map of one side of a matrix, as it is stored. Nothing is trusted before [`Frame::new`] has checked it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FrameHeader {
    /// The identity, without signs.
    None,
    /// Signs, then a Walsh-Hadamard transform of each tile.
    Rht {
        /// Seed of the signs.
        seed: u64,
        /// Tiles in order, as `[tile, count]` pairs that cover the side exactly.
        runs: Vec<[u32; 2]>,
    },
    /// Signs, then a Hadamard transform across the whole side.
    Hadamard {
        /// Seed of the signs.
        seed: u64,
        /// Orders of the Kronecker product, see [`Hadamard`].
        orders: Vec<u32>,
    },
}

/// An orthonormal matrix U and ±1 signs S of one side of a matrix.
///
/// An input vector x enters the frame as Uᵀ (S x), an output leaves it as S (U z). Signs are kept apart from U because fine-tuning
/// replaces them by real numbers.
///
/// ```
/// use gosset_unisvq::Frame;
///
/// let frame = Frame::full(12, 0)?;
/// let mut x: Vec<f32> = (0..12).map(|i| i as f32).collect();
/// frame.rotate(&mut x);
/// frame.unrotate(&mut x);
/// assert!(x.iter().enumerate().all(|(i, v)| (v - i as f32).abs() < 1e-5));
/// # Ok::<(), gosset_unisvq::UniSvqError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Frame {
    width: usize,
    map: Map,
    signs: Option<Signs>,
}

#[derive(Debug, Clone)]
enum Map {
    Identity,
    Tiles(TilePlan),
    Whole(Hadamard),
}

impl Frame {
    /// The frame of a stored header for a side of `width`.
    ///
    /// # Errors
    /// [`UniSvqError::Frame`] if the header does not cover the width.
    pub fn new(header: &FrameHeader, width: usize) -> Result<Self, UniSvqError> {
        let (map, seed) = match header {
            FrameHeader::None => (Map::Identity, None),
            FrameHeader::Rht { seed, runs } => {
                let runs: Vec<_> = runs.iter().map(|&[tile, count]| TileRun { tile, count }).collect();
                (Map::Tiles(TilePlan::from_runs(width, &runs)?), Some(*seed))
            }
            FrameHeader::Hadamard { seed, orders } => (Map::Whole(Hadamard::with_orders(width, orders)?), Some(*seed)),
        };
        Ok(Self { width, map, signs: seed.map(|seed| Signs::new(seed, width)) })
    }

    /// The identity.
    #[must_use]
    pub fn identity(width: usize) -> Self {
        Self { width, map: Map::Identity, signs: None }
    }

    /// Tiles of at most `tile`, as [`TilePlan::new`] cuts them, with the signs of `seed`.
    ///
    /// # Errors
    /// [`UniSvqError::Frame`] for a width or a tile out of range.
    pub fn tiles(width: usize, tile: u32, seed: u64) -> Result<Self, UniSvqError> {
        Ok(Self { width, map: Map::Tiles(TilePlan::new(width, tile)?), signs: Some(Signs::new(seed, width)) })
    }

    /// One transform across the whole width where there is one ([`Hadamard::new`]), tiles of 128 where there is none.
    ///
    /// # Errors
    /// [`UniSvqError::Frame`] for a width out of range.
    pub fn full(width: usize, seed: u64) -> Result<Self, UniSvqError> {
        match Hadamard::new(width) {
            Some(hadamard) => Ok(Self { width, map: Map::Whole(hadamard), signs: Some(Signs::new(seed, width)) }),
            None => Self::tiles(width, gosset_transform::DEFAULT_TILE, seed),
        }
    }

    /// What a file says of the frame.
    #[must_use]
    pub fn header(&self) -> FrameHeader {
        let seed = self.signs.as_ref().map_or(0, Signs::seed);
        match &self.map {
            Map::Identity => FrameHeader::None,
            Map::Tiles(plan) => {
                FrameHeader::Rht { seed, runs: plan.runs().iter().map(|run| [run.tile, run.count]).collect() }
            }
            Map::Whole(hadamard) => FrameHeader::Hadamard { seed, orders: hadamard.orders() },
        }
    }

    /// Length of the side.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether U is the identity and all signs are positive.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        matches!(self.map, Map::Identity)
    }

    /// The tiles of U, `None` unless it is made of tiles.
    #[must_use]
    pub fn plan(&self) -> Option<&TilePlan> {
        match &self.map {
            Map::Tiles(plan) => Some(plan),
            _ => None,
        }
    }

    /// The transform of U across the whole side, `None` unless it is one.
    #[must_use]
    pub fn hadamard(&self) -> Option<&Hadamard> {
        match &self.map {
            Map::Whole(hadamard) => Some(hadamard),
            _ => None,
        }
    }

    /// Coordinates mix only within ranges that start at multiples of this: 1, the largest tile, or the width.
    #[must_use]
    pub fn granule(&self) -> usize {
        match &self.map {
            Map::Identity => 1,
            // Each tile starts at a multiple of its length, and tiles are powers of two in descending order.
            Map::Tiles(plan) => plan.runs().first().map_or(1, |run| run.tile as usize).min(self.width),
            Map::Whole(_) => self.width,
        }
    }

    /// The ±1 diagonal S.
    #[must_use]
    pub fn signs(&self) -> Vec<f32> {
        let mut out = vec![1.0; self.width];
        if let Some(signs) = &self.signs {
            signs.apply(&mut out);
        }
        out
    }

    /// `Uᵀ x` in place, without signs.
    ///
    /// # Panics
    /// If the length of `x` is not the width.
    pub fn rotate(&self, x: &mut [f32]) {
        assert_eq!(x.len(), self.width, "length of a vector and width of its frame");
        match &self.map {
            Map::Identity => {}
            Map::Tiles(plan) => each_tile(plan.runs(), x, |run, tile| {
                fwht(tile);
                let scale = run.scale();
                tile.iter_mut().for_each(|v| *v *= scale);
            }),
            Map::Whole(hadamard) => hadamard.forward(x),
        }
    }

    /// `U x` in place, without signs.
    ///
    /// # Panics
    /// If the length of `x` is not the width.
    pub fn unrotate(&self, x: &mut [f32]) {
        match &self.map {
            // Walsh-Hadamard matrices are symmetric.
            Map::Identity | Map::Tiles(_) => self.rotate(x),
            Map::Whole(hadamard) => {
                assert_eq!(x.len(), self.width, "length of a vector and width of its frame");
                hadamard.inverse(x);
            }
        }
    }

    /// `Uᵀ S x` in place, in double precision.
    ///
    /// # Panics
    /// If the length of `x` is not the width.
    pub fn enter_f64(&self, x: &mut [f64]) {
        assert_eq!(x.len(), self.width, "length of a vector and width of its frame");
        if let Some(signs) = &self.signs {
            (0..self.width).filter(|&j| signs.is_negative(j)).for_each(|j| x[j] = -x[j]);
        }
        match &self.map {
            Map::Identity => {}
            Map::Tiles(plan) => each_tile(plan.runs(), x, |run, tile| {
                butterflies(tile, 1);
                let scale = if run.tile.ilog2().is_multiple_of(2) { 1.0 } else { std::f64::consts::FRAC_1_SQRT_2 }
                    / f64::from(1 << (run.tile.ilog2() / 2));
                tile.iter_mut().for_each(|v| *v *= scale);
            }),
            Map::Whole(hadamard) => hadamard.forward_f64(x),
        }
    }

    /// `U z` of each column of `z`, row-major with `cols` columns, whose rows are coordinates `first ..` of this side.
    ///
    /// `first` is a multiple of the [granule](Self::granule), and `z` ends at one or at the end of the side.
    pub(crate) fn unrotate_columns(&self, first: usize, z: &mut [f32], cols: usize) {
        match &self.map {
            Map::Identity => {}
            Map::Tiles(plan) => {
                let (mut at, end) = (0, first + z.len() / cols);
                for run in plan.runs() {
                    let tile = run.tile as usize;
                    for _ in 0..run.count {
                        if at >= first && at < end {
                            let block = &mut z[(at - first) * cols..(at - first + tile) * cols];
                            butterflies(block, cols);
                            let scale = run.scale();
                            block.iter_mut().for_each(|v| *v *= scale);
                        }
                        at += tile;
                    }
                }
            }
            Map::Whole(hadamard) => {
                let mut column = vec![0.0; self.width];
                for j in 0..cols {
                    column.iter_mut().zip(z[j..].iter().step_by(cols)).for_each(|(c, &v)| *c = v);
                    hadamard.inverse(&mut column);
                    column.iter().zip(z[j..].iter_mut().step_by(cols)).for_each(|(&c, v)| *v = c);
                }
            }
        }
    }

    /// `Uᵀ S w` of each column of `w`, row-major with `cols` columns and one row for each coordinate.
    pub(crate) fn enter_columns(&self, w: &mut [f32], cols: usize) {
        if let Some(signs) = &self.signs {
            for (i, row) in w.chunks_exact_mut(cols).enumerate().filter(|&(i, _)| signs.is_negative(i)) {
                debug_assert!(i < self.width);
                row.iter_mut().for_each(|v| *v = -*v);
            }
        }
        match &self.map {
            Map::Identity | Map::Tiles(_) => self.unrotate_columns(0, w, cols),
            Map::Whole(hadamard) => {
                let mut column = vec![0.0; self.width];
                for j in 0..cols {
                    column.iter_mut().zip(w[j..].iter().step_by(cols)).for_each(|(c, &v)| *c = v);
                    hadamard.forward(&mut column);
                    column.iter().zip(w[j..].iter_mut().step_by(cols)).for_each(|(&c, v)| *v = c);
                }
            }
        }
    }

    /// `Uᵀ S x` in place.
    pub(crate) fn enter(&self, x: &mut [f32]) {
        if let Some(signs) = &self.signs {
            signs.apply(x);
        }
        self.rotate(x);
    }
}

fn each_tile<T>(runs: &[TileRun], x: &mut [T], f: impl Fn(&TileRun, &mut [T])) {
    let mut rest = x;
    for run in runs {
        let (head, tail) = rest.split_at_mut(run.columns() as usize);
        head.chunks_exact_mut(run.tile as usize).for_each(|tile| f(run, tile));
        rest = tail;
    }
}
