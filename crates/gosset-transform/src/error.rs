//! What can be wrong with a tile plan.

use core::fmt;

use crate::hadamard_order::MAX_PALEY_ORDER;
use crate::plan::{MAX_TILE, MAX_WIDTH};

/// Why a tile plan was refused.
///
/// ```
/// use gosset_transform::{TilePlan, TransformError};
///
/// let error = TilePlan::new(4096, 96).unwrap_err();
/// assert_eq!(error, TransformError::AskedTile { tile: 96 });
/// assert_eq!(error.to_string(), "asked tile is 96, expected a power of two from 1 to 65536");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransformError {
    /// The width is zero or above [`MAX_WIDTH`].
    Width {
        /// The width found, in columns.
        width: usize,
    },
    /// The asked tile is not a power of two from 1 to [`MAX_TILE`].
    AskedTile {
        /// The tile asked for, in columns.
        tile: u32,
    },
    /// The tile of a run is not a power of two from 1 to [`MAX_TILE`].
    RunTile {
        /// Index of the run in the plan.
        run: usize,
        /// The tile found, in columns.
        tile: u32,
    },
    /// A run holds no tile.
    RunCount {
        /// Index of the run in the plan.
        run: usize,
    },
    /// A run's tile is not smaller than the one before it.
    RunOrder {
        /// Index of the run in the plan.
        run: usize,
        /// The tile found, in columns.
        tile: u32,
        /// The tile of the run before, in columns.
        previous: u32,
    },
    /// No Hadamard matrix of this order is known here.
    HadamardOrder {
        /// Index of the order in the product.
        index: usize,
        /// The order found.
        order: u32,
    },
    /// The orders of a product of Hadamard matrices do not multiply to the width.
    HadamardProduct {
        /// Their product, or the first partial product beyond the width.
        product: u64,
        /// Columns to cover.
        width: usize,
    },
    /// The runs do not add up to the width.
    RunSum {
        /// Columns covered by the runs.
        covered: u64,
        /// Columns to cover.
        width: usize,
    },
}

impl fmt::Display for TransformError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Width { width } => write!(f, "width is {width}, expected 1 to {MAX_WIDTH} columns"),
            Self::AskedTile { tile } => {
                write!(f, "asked tile is {tile}, expected a power of two from 1 to {MAX_TILE}")
            }
            Self::RunTile { run, tile } => {
                write!(f, "run {run}: tile is {tile}, expected a power of two from 1 to {MAX_TILE}")
            }
            Self::RunCount { run } => write!(f, "run {run}: count is 0, expected at least 1"),
            Self::RunOrder { run, tile, previous } => {
                write!(f, "run {run}: tile is {tile}, expected less than {previous}, the tile of the run before")
            }
            Self::HadamardOrder { index, order } => {
                write!(
                    f,
                    "factor {index}: order is {order}, expected a power of two from 2 or a Paley order up to {MAX_PALEY_ORDER}"
                )
            }
            Self::HadamardProduct { product, width } => {
                write!(f, "orders multiply to {product}, expected the width, {width}")
            }
            Self::RunSum { covered, width } => {
                write!(f, "runs cover {covered} columns, expected the width, {width}")
            }
        }
    }
}

impl core::error::Error for TransformError {}
