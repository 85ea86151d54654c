//! Tiled randomized Hadamard transform.

use crate::arch::{self, Backend};
use crate::plan::TilePlan;
use crate::signs::Signs;

/// The orthonormal map `u = H (d * x) / sqrt(h)` on each tile of a row, and its inverse `x = d * (H u) / sqrt(h)`.
///
/// `h` is the length of the tile, `H` the Sylvester-Hadamard matrix of [`fwht`](crate::fwht), `d` the tile's columns of
/// [`Signs`]. Norms and inner products are kept up to f32 rounding. Rows lie along the contraction (input) dimension:
/// with both the activation and the rows of the weight transformed, their products are those of the originals.
///
/// In this order of operations, which fixes every bit of the result: sign bits, butterflies from stride 1 up, one
/// multiplication by the f32 constant `1/sqrt(h)` ([`TileRun::scale`](crate::TileRun::scale)); in the inverse the signs
/// come last.
///
/// Source: HyperQuant, arXiv 2606.23406; Tseng et al., *QuIP#*, arXiv 2402.04396, for why it helps.
///
/// ```
/// use gosset_transform::{Rht, TilePlan};
///
/// let rht = Rht::new(TilePlan::new(4, 4)?, 0); // Signs of seed 0: -1, 1, -1, 1.
/// let mut row = [1.0, 2.0, 3.0, 4.0];
/// rht.forward(&mut row);
/// assert_eq!(row, [1.0, -5.0, 0.0, 2.0]);
/// rht.inverse(&mut row);
/// assert_eq!(row, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), gosset_transform::TransformError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rht {
    plan: TilePlan,
    signs: Signs,
    backend: Backend,
}

impl Rht {
    /// The transform of `plan` with the signs of `seed`, on the fastest path of this machine.
    ///
    /// ```
    /// use gosset_transform::{Rht, TilePlan};
    ///
    /// let rht = Rht::new(TilePlan::new(4096, 128)?, 7);
    /// assert_eq!((rht.plan().to_string().as_str(), rht.seed()), ("32 x 128", 7));
    /// # Ok::<(), gosset_transform::TransformError>(())
    /// ```
    #[must_use]
    pub fn new(plan: TilePlan, seed: u64) -> Self {
        Self::with_backend(plan, seed, Backend::detect())
    }

    /// [`new`](Self::new) on a chosen path; all paths give the same bits.
    ///
    /// ```
    /// use gosset_transform::{Backend, Rht, TilePlan};
    ///
    /// let rht = Rht::with_backend(TilePlan::new(2, 2)?, 0, Backend::scalar());
    /// let mut row = [3.0, 4.0];
    /// rht.forward(&mut row);
    /// assert_eq!(row, [0.70710677, -4.9497476]); // (-3 + 4) / sqrt(2), (-3 - 4) / sqrt(2)
    /// # Ok::<(), gosset_transform::TransformError>(())
    /// ```
    #[must_use]
    pub fn with_backend(plan: TilePlan, seed: u64, backend: Backend) -> Self {
        let signs = Signs::new(seed, plan.width());
        Self { plan, signs, backend }
    }

    /// The tile plan.
    #[must_use]
    pub fn plan(&self) -> &TilePlan {
        &self.plan
    }

    /// The seed of the signs.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.signs.seed()
    }

    /// The signs of the columns.
    #[must_use]
    pub fn signs(&self) -> &Signs {
        &self.signs
    }

    /// Transforms one row in place.
    ///
    /// # Panics
    ///
    /// If the length of `row` is not the plan's width.
    ///
    /// ```
    /// # use gosset_transform::{Rht, TilePlan};
    /// let rht = Rht::new(TilePlan::new(5, 4)?, 0);
    /// let mut row = [1.0, 0.0, 0.0, 0.0, 1.0];
    /// rht.forward(&mut row);
    /// assert_eq!(row, [-0.5, -0.5, -0.5, -0.5, -1.0]); // A tile of 4, and one of 1 that only changes sign.
    /// # Ok::<(), gosset_transform::TransformError>(())
    /// ```
    pub fn forward(&self, row: &mut [f32]) {
        self.check_row(row);
        arch::rht_forward(self.backend, self.plan.runs(), self.signs.words(), row);
    }

    /// Undoes [`forward`](Self::forward) on one row, in place, up to f32 rounding.
    ///
    /// # Panics
    ///
    /// If the length of `row` is not the plan's width.
    ///
    /// ```
    /// # use gosset_transform::{Rht, TilePlan};
    /// let rht = Rht::new(TilePlan::new(5, 4)?, 0);
    /// let mut row = [-0.5, -0.5, -0.5, -0.5, -1.0];
    /// rht.inverse(&mut row);
    /// assert_eq!(row, [1.0, 0.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), gosset_transform::TransformError>(())
    /// ```
    pub fn inverse(&self, row: &mut [f32]) {
        self.check_row(row);
        arch::rht_inverse(self.backend, self.plan.runs(), self.signs.words(), row);
    }

    /// Transforms each of several rows in place; `rows` holds them one after the other.
    ///
    /// # Panics
    ///
    /// If the length of `rows` is not a multiple of the plan's width.
    ///
    /// ```
    /// # use gosset_transform::{Rht, TilePlan};
    /// let rht = Rht::new(TilePlan::new(1, 1)?, 0); // One column, whose sign is negative.
    /// let mut rows = [1.0, 2.0, 3.0];
    /// rht.forward_rows(&mut rows);
    /// assert_eq!(rows, [-1.0, -2.0, -3.0]);
    /// # Ok::<(), gosset_transform::TransformError>(())
    /// ```
    pub fn forward_rows(&self, rows: &mut [f32]) {
        self.rows(rows).for_each(|row| self.forward(row));
    }

    /// Undoes [`forward_rows`](Self::forward_rows), up to f32 rounding.
    ///
    /// # Panics
    ///
    /// If the length of `rows` is not a multiple of the plan's width.
    ///
    /// ```
    /// # use gosset_transform::{Rht, TilePlan};
    /// let rht = Rht::new(TilePlan::new(2, 2)?, 0);
    /// let mut rows = [1.0, 1.0, 2.0, 0.0];
    /// rht.inverse_rows(&mut rows);
    /// assert_eq!(rows, [-1.4142135, 0.0, -1.4142135, 1.4142135]);
    /// # Ok::<(), gosset_transform::TransformError>(())
    /// ```
    pub fn inverse_rows(&self, rows: &mut [f32]) {
        self.rows(rows).for_each(|row| self.inverse(row));
    }

    fn rows<'a>(&self, rows: &'a mut [f32]) -> core::slice::ChunksExactMut<'a, f32> {
        let width = self.plan.width();
        assert!(rows.len().is_multiple_of(width), "{} values are no whole number of rows of {width}", rows.len());
        rows.chunks_exact_mut(width)
    }

    fn check_row(&self, row: &[f32]) {
        assert_eq!(row.len(), self.plan.width(), "row length and width of the plan");
    }
}
