//! Rounding with error feedback: blocks of columns from last to first, each corrected by the errors of those behind it.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use crate::block_ldl::{BlockLdl, check_block};
use crate::parallel::{map_chunks_mut, map_items};
use crate::{Round, UniSvqError};

/// Rows of one task. Fixed, so that the number of threads does not show.
pub(crate) const ROWS: usize = 64;

/// Rows of a share that a forked rule takes through all blocks by itself: whole tasks, so that sums are those of one sweep over all rows.
pub(crate) const SHARE_ROWS: usize = 2 * ROWS;

/// Products of a step below which it stays on one thread.
const PARALLEL_FROM: usize = 1 << 18;

/// How the sweep goes about its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LdlqOptions {
    /// Whether rounding rules are told D_k, the metric of their block. Without it they round in the Euclidean sense.
    pub metric: bool,
    /// Columns whose feedback is computed at once, in one matrix product; rounded down to whole blocks, at least one. It changes the
    /// time and, in the last bits, the order of sums.
    pub panel: usize,
}

impl Default for LdlqOptions {
    /// Metric on, panels of 128 columns.
    fn default() -> Self {
        Self { metric: true, panel: 128 }
    }
}

impl LdlqOptions {
    /// Columns of a panel for blocks of `block` columns.
    pub(crate) fn panel_for(&self, block: usize) -> usize {
        (self.panel / block).max(1) * block
    }
}

/// Rounds `w` block by block with error feedback; `out` becomes what the rounder reconstructed.
///
/// `w` and `out` are `[rows, n]`, row-major. For k from the last block to the first, the rounder is given
/// `x_k = W_k + Σ_{j > k} (W_j - Ŵ_j) L_jk` of all rows and returns Ŵ_k. Then tr((W - Ŵ) H (W - Ŵ)ᵀ) = Σ_k tr(η_k D_k η_kᵀ) with
/// η_k = x_k - Ŵ_k: each rounding error counts once, in the metric D_k. Feedback is computed in f64. The bytes do not depend on the
/// number of threads.
///
/// Source: Chee et al., *QuIP*, arXiv 2307.13304, theorem 1, in blocks (*QuIP#*, arXiv 2402.04396, section 4.1).
///
/// # Errors
/// [`UniSvqError::Shape`] if lengths do not belong together.
pub fn ldlq(
    w: &[f32],
    rows: usize,
    ldl: &BlockLdl,
    options: LdlqOptions,
    rounder: &mut dyn Round,
    out: &mut [f32],
) -> Result<(), UniSvqError> {
    let n = ldl.n();
    check_matrix("weights", w.len(), rows, n)?;
    check_matrix("reconstruction", out.len(), rows, n)?;
    let forks = forks(rows, rounder);
    if forks.is_empty() {
        sweep(w, ldl, options, rounder, out);
    } else {
        let parts = w.chunks(SHARE_ROWS * n).zip(out.chunks_mut(SHARE_ROWS * n)).zip(forks);
        map_items(parts.collect(), |((w, out), mut rounder)| sweep(w, ldl, options, &mut *rounder, out));
    }
    Ok(())
}

/// A fork of the rule for each share of the rows; none if there is one share only, or the rule wants all rows.
pub(crate) fn forks(rows: usize, rounder: &dyn Round) -> Vec<Box<dyn Round + Send>> {
    let n = if rows > SHARE_ROWS { rows.div_ceil(SHARE_ROWS) } else { 0 };
    (0..n).map_while(|_| rounder.fork()).collect()
}

/// [`ldlq`] of matrices whose sizes fit.
fn sweep(w: &[f32], ldl: &BlockLdl, options: LdlqOptions, rounder: &mut dyn Round, out: &mut [f32]) {
    let n = ldl.n();
    let rows = w.len() / n;
    let panel = options.panel_for(ldl.block());
    let mut errors = vec![0.0f64; rows * n];
    let mut x = Vec::new();
    let mut scratch = Scratch::default();
    for from in (0..n).step_by(panel).rev() {
        let to = n.min(from + panel);
        enter_panel(w, &errors, ldl, from..to, &mut x);
        if rounder.wants_panels() {
            let seen: Vec<f32> = x.iter().map(|v| *v as f32).collect();
            rounder.enter(from, rows, &seen);
        }
        // L inside the panel by rows: what an error in a column adds to the columns before it.
        let width = to - from;
        let l: Vec<f64> = (0..width * width).map(|i| ldl.l(from + i / width, from + i % width)).collect();
        for block in (from / ldl.block()..to.div_ceil(ldl.block())).rev() {
            let columns = ldl.columns(block);
            let (first, d) = (columns.start - from, columns.len());
            scratch.resize(rows * d);
            for (row, values) in x.chunks_exact(width).enumerate() {
                let place = &mut scratch.x[row * d..][..d];
                place.iter_mut().zip(&values[first..]).for_each(|(p, v)| *p = *v as f32);
            }
            let metric = options.metric.then(|| ldl.metric(block));
            rounder.round(block, rows, &scratch.x, metric, &mut scratch.rounded);
            for row in 0..rows {
                let (rounded, here) = (&scratch.rounded[row * d..][..d], row * n + columns.start);
                out[here..here + d].copy_from_slice(rounded);
                for j in 0..d {
                    errors[here + j] = f64::from(w[here + j]) - f64::from(rounded[j]);
                }
            }
            feed_back(&mut x, width, first..first + d, |row, j| errors[row * n + columns.start + j], &l);
        }
    }
}

/// Rounds `w` block by block without feedback, in the Euclidean sense, and in the order of [`ldlq`].
///
/// `w` and `out` are `[rows, n]`, row-major; blocks have `block` columns.
///
/// # Errors
/// [`UniSvqError::Shape`] if lengths do not belong together, [`UniSvqError::Parameter`] for blocks of no columns.
pub fn round_plain(
    w: &[f32],
    rows: usize,
    n: usize,
    block: usize,
    panel: usize,
    rounder: &mut dyn Round,
    out: &mut [f32],
) -> Result<(), UniSvqError> {
    check_block(block)?;
    check_matrix("weights", w.len(), rows, n)?;
    check_matrix("reconstruction", out.len(), rows, n)?;
    let panel = LdlqOptions { metric: false, panel }.panel_for(block);
    let mut scratch = Scratch::default();
    for from in (0..n).step_by(panel).rev() {
        let to = n.min(from + panel);
        if rounder.wants_panels() {
            let seen: Vec<f32> = w.chunks_exact(n).flat_map(|row| &row[from..to]).copied().collect();
            rounder.enter(from, rows, &seen);
        }
        for k in (from / block..to.div_ceil(block)).rev() {
            let columns = k * block..n.min((k + 1) * block);
            let d = columns.len();
            scratch.resize(rows * d);
            for (x, row) in scratch.x.chunks_exact_mut(d).zip(w.chunks_exact(n)) {
                x.copy_from_slice(&row[columns.clone()]);
            }
            rounder.round(k, rows, &scratch.x, None, &mut scratch.rounded);
            for (row, rounded) in out.chunks_exact_mut(n).zip(scratch.rounded.chunks_exact(d)) {
                row[columns.clone()].copy_from_slice(rounded);
            }
        }
    }
    Ok(())
}

/// What a rounder is given and gives back.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) x: Vec<f32>,
    pub(crate) rounded: Vec<f32>,
}

impl Scratch {
    pub(crate) fn resize(&mut self, len: usize) {
        self.x.resize(len, 0.0);
        self.rounded.resize(len, 0.0);
    }
}

/// Sets `x`, `[rows, panel]`, to the weights of a panel plus the feedback of all columns behind it.
fn enter_panel(w: &[f32], errors: &[f64], ldl: &BlockLdl, columns: std::ops::Range<usize>, x: &mut Vec<f64>) {
    let (n, width) = (ldl.n(), columns.len());
    let rows = w.len() / n;
    x.clear();
    x.resize(rows * width, 0.0);
    let behind = n - columns.end;
    let l = MatRef::from_column_major_slice(ldl.l_column_major(), n, n).submatrix(
        columns.end,
        columns.start,
        behind,
        width,
    );
    map_chunks_mut(x, ROWS * width, |i, x| {
        let (first, rows) = (i * ROWS, x.len() / width);
        for (row, values) in x.chunks_exact_mut(width).enumerate() {
            let weights = &w[(first + row) * n..][columns.clone()];
            values.iter_mut().zip(weights).for_each(|(v, w)| *v = f64::from(*w));
        }
        if behind > 0 {
            let errors = MatRef::from_row_major_slice(&errors[first * n..(first + rows) * n], rows, n);
            let x = MatMut::from_row_major_slice_mut(x, rows, width);
            matmul(x, Accum::Add, errors.subcols(columns.end, behind), l, 1.0, Par::Seq);
        }
    });
}

/// Adds `value(row, j)` times row `columns.start + j` of `l`, `[width, width]`, to the columns of `x` before `columns`.
pub(crate) fn feed_back(
    x: &mut [f64],
    width: usize,
    columns: std::ops::Range<usize>,
    value: impl Fn(usize, usize) -> f64 + Sync + Send,
    l: &[f64],
) {
    let before = columns.start;
    if before == 0 {
        return;
    }
    let chunk_rows = if x.len() * columns.len() >= PARALLEL_FROM { ROWS } else { x.len() / width };
    map_chunks_mut(x, chunk_rows * width, |i, x| {
        for (row, values) in x.chunks_exact_mut(width).enumerate() {
            let values = &mut values[..before];
            for j in 0..columns.len() {
                let factor = value(i * chunk_rows + row, j);
                let l = &l[(columns.start + j) * width..][..before];
                values.iter_mut().zip(l).for_each(|(v, l)| *v += factor * l);
            }
        }
    });
}

/// Refuses a matrix whose length is not `rows` x `n`, or that has no rows.
pub(crate) fn check_matrix(what: &'static str, len: usize, rows: usize, n: usize) -> Result<(), UniSvqError> {
    if rows == 0 || rows.checked_mul(n) != Some(len) {
        return Err(UniSvqError::Shape { what, expected: format!("{rows} x {n} values"), found: len.to_string() });
    }
    Ok(())
}
