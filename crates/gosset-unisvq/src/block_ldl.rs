//! H = L D Lᵀ in blocks: what feeds errors back, and what they then cost.

use std::ops::Range;

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{LltRegularization, cholesky_in_place, cholesky_in_place_scratch};
use faer::{MatMut, Par};

use crate::UniSvqError;

/// H = L D Lᵀ with L unit lower block-triangular and D block-diagonal.
///
/// Blocks are consecutive columns, the first ones of width `block`, the last one perhaps narrower. From the Cholesky factor C of
/// H: `L_{:,k} = C_{:,k} C_kk⁻¹` and `D_k = C_kk C_kkᵀ`.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockLdl {
    n: usize,
    block: usize,
    /// L, column-major; its diagonal blocks are exact identities, what is above them is zero.
    l: Vec<f64>,
    /// The blocks of D, each row-major, one after the other.
    d: Vec<f64>,
}

impl BlockLdl {
    /// Of a multiple of the identity: nothing is fed back.
    pub(crate) fn identity(n: usize, block: usize, scale: f64) -> Self {
        let mut l = vec![0.0; n * n];
        (0..n).for_each(|i| l[i * n + i] = 1.0);
        let mut d = Vec::new();
        for columns in blocks(n, block) {
            let width = columns.len();
            d.extend((0..width * width).map(|i| if i.is_multiple_of(width + 1) { scale } else { 0.0 }));
        }
        Self { n, block, l, d }
    }

    /// Order of the matrix.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns of a block, all but perhaps the last.
    #[must_use]
    pub fn block(&self) -> usize {
        self.block
    }

    /// Number of blocks.
    #[must_use]
    pub fn n_blocks(&self) -> usize {
        self.n.div_ceil(self.block)
    }

    /// The columns of block `k`.
    #[must_use]
    pub fn columns(&self, k: usize) -> Range<usize> {
        k * self.block..self.n.min((k + 1) * self.block)
    }

    /// L at row `i`, column `j`.
    #[must_use]
    pub fn l(&self, i: usize, j: usize) -> f64 {
        self.l[j * self.n + i]
    }

    /// L, column-major.
    #[must_use]
    pub fn l_column_major(&self) -> &[f64] {
        &self.l
    }

    /// D_k, row-major: the metric in which the rounding error of block `k` counts.
    #[must_use]
    pub fn metric(&self, k: usize) -> &[f64] {
        let width = self.columns(k).len();
        &self.d[k * self.block * self.block..][..width * width]
    }

    /// tr(D): the expected cost of errors of unit variance; at least n det(H)^(1/n), and the smaller the smaller blocks are.
    #[must_use]
    pub fn trace_d(&self) -> f64 {
        let of_block = |k: usize| -> f64 {
            let width = self.columns(k).len();
            self.metric(k).iter().step_by(width + 1).sum()
        };
        (0..self.n_blocks()).map(of_block).sum()
    }

    /// L D Lᵀ, row-major.
    #[must_use]
    pub fn product(&self) -> Vec<f64> {
        let n = self.n;
        let mut out = vec![0.0; n * n];
        for k in 0..self.n_blocks() {
            let columns = self.columns(k);
            let d = self.metric(k);
            for i in columns.start..n {
                for (a, p) in columns.clone().enumerate() {
                    // Entry (i, p) of L D.
                    let ld: f64 =
                        columns.clone().enumerate().map(|(b, q)| self.l(i, q) * d[b * columns.len() + a]).sum();
                    for j in columns.start..n {
                        out[i * n + j] += ld * self.l(j, p);
                    }
                }
            }
        }
        out
    }
}

/// The ranges of columns of blocks.
fn blocks(n: usize, block: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    (0..n.div_ceil(block)).map(move |k| k * block..n.min((k + 1) * block))
}

/// The block LDL factors of `h`, `n` x `n` and symmetric, of which the lower triangle is read, in blocks of `block` columns.
///
/// # Errors
/// [`UniSvqError::Shape`] for another length or `n` = 0, [`UniSvqError::Parameter`] for blocks of no columns,
/// [`UniSvqError::NotPositiveDefinite`] if a pivot is not positive and finite.
///
/// ```
/// let ldl = gosset_unisvq::block_ldl(&[4.0, 2.0, 2.0, 10.0], 2, 1)?;
/// assert_eq!((ldl.l(1, 0), ldl.metric(0), ldl.metric(1)), (0.5, &[4.0][..], &[9.0][..]));
/// # Ok::<(), gosset_unisvq::UniSvqError>(())
/// ```
pub fn block_ldl(h: &[f64], n: usize, block: usize) -> Result<BlockLdl, UniSvqError> {
    if n == 0 || n.checked_mul(n) != Some(h.len()) {
        let (expected, found) = (format!("{n} x {n} values"), h.len().to_string());
        return Err(UniSvqError::Shape { what: "second moments to factor", expected, found });
    }
    check_block(block)?;
    factor(h, n, block).ok_or(UniSvqError::NotPositiveDefinite { n, tried: 0, sigma: 0.0 })
}

/// Refuses blocks of no columns.
pub(crate) fn check_block(block: usize) -> Result<(), UniSvqError> {
    if block == 0 {
        let (expected, found) = ("at least one column".into(), block.to_string());
        return Err(UniSvqError::Parameter { name: "block", expected, found });
    }
    Ok(())
}

/// The factors; `None` if a pivot is not positive and finite.
pub(crate) fn factor(h: &[f64], n: usize, block: usize) -> Option<BlockLdl> {
    // A symmetric matrix read by columns is itself.
    let mut c = h.to_vec();
    let mut memory = MemBuffer::new(cholesky_in_place_scratch::<f64>(n, Par::Seq, Default::default()));
    let stack = MemStack::new(&mut memory);
    let view = MatMut::from_column_major_slice_mut(&mut c, n, n);
    // What is above the diagonal is left as it was.
    cholesky_in_place(view, LltRegularization::default(), Par::Seq, stack, Default::default()).ok()?;
    if (0..n).any(|i| !(c[i * n + i] > 0.0 && c[i * n + i].is_finite())) {
        return None;
    }
    let mut d = Vec::with_capacity(n * block.min(n));
    for columns in blocks(n, block) {
        divide_block(&mut c, n, columns, &mut d);
    }
    let ldl = BlockLdl { n, block, l: c, d };
    // Tiny pivots may still overflow what is divided by them.
    ldl.l.iter().chain(&ldl.d).all(|v| v.is_finite()).then_some(ldl)
}

/// Turns columns of C into columns of L and appends their block of D.
fn divide_block(c: &mut [f64], n: usize, columns: Range<usize>, d: &mut Vec<f64>) {
    let (from, width) = (columns.start, columns.len());
    // C_kk, row-major lower triangle.
    let diagonal: Vec<f64> = (0..width * width)
        .map(|i| (i / width, i % width))
        .map(|(a, b)| if b <= a { c[(from + b) * n + from + a] } else { 0.0 })
        .collect();
    for a in 0..width {
        for b in 0..width {
            d.push((0..=a.min(b)).map(|i| diagonal[a * width + i] * diagonal[b * width + i]).sum());
        }
    }
    let block = &mut c[from * n..columns.end * n];
    // x C_kk = c for all rows below at once, last column first.
    for b in (0..width).rev() {
        let (left, right) = block.split_at_mut((b + 1) * n);
        let column = &mut left[b * n + columns.end..];
        for (i, other) in right.chunks_exact(n).enumerate() {
            let factor = diagonal[(b + 1 + i) * width + b];
            column.iter_mut().zip(&other[columns.end..]).for_each(|(v, o)| *v -= factor * o);
        }
        let pivot = diagonal[b * width + b];
        column.iter_mut().for_each(|v| *v /= pivot);
        let above = &mut left[b * n..b * n + columns.end];
        above.fill(0.0);
        above[from + b] = 1.0;
    }
}
