//! The seam between error feedback and whatever rounds: grids, lattices, trellises.

/// A rounding rule for blocks of columns of a matrix.
///
/// Error feedback asks for one block of columns at a time, all rows at once, in the order in which it walks through the
/// blocks; the rule may keep what it chose (points, states) and hand it out at the end.
pub trait Round {
    /// Writes to `out` the reconstruction that is chosen for `x`.
    ///
    /// Both are `[rows, d]`, row-major, `d` being the number of columns of block `block` (the last one may be narrower). `metric`,
    /// `[d, d]` row-major and positive definite, weighs errors e as e M eᵀ; a rule that cannot use it ignores it, and without it
    /// errors are Euclidean.
    fn round(&mut self, block: usize, rows: usize, x: &[f32], metric: Option<&[f64]>, out: &mut [f32]);

    /// Sees a panel of columns before its blocks are rounded: `x` is `[rows, width]`, row-major, its first column is
    /// `first_column`, and it holds the feedback of all columns behind the panel.
    ///
    /// A rule that adapts scales to what it is about to round, as GPTQ does for its groups, sets them here.
    fn enter(&mut self, first_column: usize, rows: usize, x: &[f32]) {
        let _ = (first_column, rows, x);
    }

    /// Whether [`enter`](Round::enter) does anything; panels are not prepared for rules that ignore them.
    fn wants_panels(&self) -> bool {
        false
    }

    /// The same rule for a share of the rows, for rules that round every row by itself and remember nothing: the shares then go through
    /// all blocks side by side, and the rule itself is not asked. `None`, the default, gives it all rows, block by block.
    fn fork(&self) -> Option<Box<dyn Round + Send>> {
        None
    }
}
