//! Re-tuning: every block once more, with all others fixed.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use crate::block_ldl::check_block;
use crate::damping::Damped;
use crate::ldlq::{LdlqOptions, ROWS, SHARE_ROWS, Scratch, check_matrix, feed_back, forks};
use crate::parallel::{map_chunks_mut, map_items};
use crate::proxy::proxy;
use crate::{Round, UniSvqError};

/// How re-tuning goes about its work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RefineOptions {
    /// Passes over all blocks at most.
    pub passes: u32,
    /// The pass that lowers the error by less than this part of it is the last one, if no pass can do harm; 0 goes on until nothing
    /// changes.
    pub min_gain: f64,
    /// Whether rounding rules are told H_kk, the metric in which the error of a block counts while all others are fixed.
    pub metric: bool,
    /// Whether a row takes a new block only where that lowers its error, so that no pass can do harm. A rule without a metric needs
    /// this: the nearest point in the Euclidean sense may well be the worse one.
    pub only_better: bool,
    /// As in [`LdlqOptions`].
    pub panel: usize,
}

impl RefineOptions {
    /// `passes` passes in the metric of the block, taking only what is better.
    #[must_use]
    pub fn new(passes: u32) -> Self {
        Self { passes, min_gain: 0.0, metric: true, only_better: true, panel: 128 }
    }
}

/// The error tr((W - Ŵ) H (W - Ŵ)ᵀ) on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct RefineReport {
    /// Before the first pass.
    pub start: f64,
    /// After each pass that was done.
    pub passes: Vec<f64>,
    /// Of what was kept: the least of the above.
    pub best: f64,
}

/// Re-tunes the reconstruction `out` of `w`: block coordinate descent on tr((W - Ŵ) H (W - Ŵ)ᵀ), blocks from last to first.
///
/// `w` and `out` are `[rows, n]`, row-major. With the other blocks fixed, the error of a block is least at
/// `x_k = Ŵ_k + (W - Ŵ) H_{:,k} H_kk⁻¹` and grows from there as (x_k - Ŵ_k) H_kk (x_k - Ŵ_k)ᵀ; the rounder is given x_k of all rows.
/// Of all iterates the best is kept. All sums are in f64 and in an order that does not depend on the number of threads.
///
/// Reconstructions are kept by value, and not every answer of the rounder is: take codes from `out` at the end, not from what the
/// rounder said last. Rules whose answers hang together across blocks, such as trellises, cannot be re-tuned this way.
///
/// # Errors
/// [`UniSvqError::Shape`] if lengths do not belong together, [`UniSvqError::Parameter`] for blocks of no columns.
pub fn refine(
    w: &[f32],
    rows: usize,
    h: &Damped,
    block: usize,
    options: RefineOptions,
    rounder: &mut dyn Round,
    out: &mut [f32],
) -> Result<RefineReport, UniSvqError> {
    let n = h.n();
    check_block(block)?;
    check_matrix("weights", w.len(), rows, n)?;
    check_matrix("reconstruction", out.len(), rows, n)?;
    let mut errors: Vec<f64> = w.iter().zip(out.iter()).map(|(a, b)| f64::from(*a) - f64::from(*b)).collect();
    let start = proxy(&errors, rows, h.as_slice());
    let mut report = RefineReport { start, passes: Vec::new(), best: start };
    let mut kept: Option<Vec<f32>> = (!options.only_better).then(|| out.to_vec());
    let mut now = start;
    let pass = Pass { h, block, options };
    for _ in 0..options.passes {
        let (change, n_changed) = pass.over_all(w, rounder, out, &mut errors);
        now += change;
        report.passes.push(now);
        if now < report.best {
            report.best = now;
            if let Some(kept) = &mut kept {
                kept.copy_from_slice(out);
            }
        }
        // Where a pass may do harm, a bad one may be followed by a good one.
        let is_small = options.only_better && -change < options.min_gain * (now - change);
        if n_changed == 0 || is_small {
            break;
        }
    }
    if let Some(kept) = kept {
        out.copy_from_slice(&kept);
    }
    Ok(report)
}

/// What a pass goes by.
struct Pass<'a> {
    h: &'a Damped,
    block: usize,
    options: RefineOptions,
}

impl Pass<'_> {
    /// One pass over all rows, in shares where the rule can be forked; gives what [`over`](Self::over) gives.
    fn over_all(&self, w: &[f32], rounder: &mut dyn Round, out: &mut [f32], errors: &mut [f64]) -> (f64, usize) {
        let len = SHARE_ROWS * self.h.n();
        let forks = forks(w.len() / self.h.n(), rounder);
        if forks.is_empty() {
            return self.over(w, rounder, out, errors);
        }
        let parts = w.chunks(len).zip(out.chunks_mut(len)).zip(errors.chunks_mut(len)).zip(forks);
        let changes =
            map_items(parts.collect(), |(((w, out), errors), mut rounder)| self.over(w, &mut *rounder, out, errors));
        changes.into_iter().fold((0.0, 0), |(change, n), (by, changed)| (change + by, n + changed))
    }

    /// One pass; returns what it changed the error by, and the number of blocks of rows that changed.
    fn over(&self, w: &[f32], rounder: &mut dyn Round, out: &mut [f32], errors: &mut [f64]) -> (f64, usize) {
        let Self { h, block, options } = *self;
        let (n, hessian) = (h.n(), h.as_slice());
        let rows = w.len() / n;
        let panel = LdlqOptions { metric: options.metric, panel: options.panel }.panel_for(block);
        let (mut change, mut n_changed) = (0.0, 0);
        let mut gradient = Vec::new();
        let mut targets: Vec<f64> = Vec::new();
        let mut scratch = Scratch::default();
        for from in (0..n).step_by(panel).rev() {
            let to = n.min(from + panel);
            let width = to - from;
            enter_panel(errors, hessian, n, from..to, &mut gradient);
            let inside: Vec<f64> = (from..to).flat_map(|i| &hessian[i * n + from..i * n + to]).copied().collect();
            for k in (from / block..to.div_ceil(block)).rev() {
                let columns = k * block..n.min((k + 1) * block);
                let (first, d) = (columns.start - from, columns.len());
                let metric: Vec<f64> =
                    (0..d).flat_map(|i| &inside[(first + i) * width + first..][..d]).copied().collect();
                // The damped matrix is positive definite, so its diagonal blocks can be inverted.
                let Some(inverse) = invert(&metric, d) else { continue };
                scratch.resize(rows * d);
                targets.resize(rows * d, 0.0);
                for row in 0..rows {
                    let (g, here) = (&gradient[row * width + first..][..d], row * n + columns.start);
                    for j in 0..d {
                        let step: f64 = (0..d).map(|i| g[i] * inverse[i * d + j]).sum();
                        targets[row * d + j] = f64::from(out[here + j]) + step;
                        scratch.x[row * d + j] = targets[row * d + j] as f32;
                    }
                }
                rounder.round(k, rows, &scratch.x, options.metric.then_some(&metric[..]), &mut scratch.rounded);
                for row in 0..rows {
                    let here = row * n + columns.start;
                    let (target, rounded) = (&targets[row * d..][..d], &scratch.rounded[row * d..][..d]);
                    let old = &mut out[here..here + d];
                    if old == rounded {
                        continue;
                    }
                    let difference = distance(target, rounded, &metric) - distance(target, old, &metric);
                    if !options.only_better || difference < 0.0 {
                        change += difference;
                        n_changed += 1;
                        old.copy_from_slice(rounded);
                    }
                }
                // What the errors changed by goes into the gradient of the columns before.
                let delta: Vec<f64> = (0..rows * d)
                    .map(|i| {
                        let here = i / d * n + columns.start + i % d;
                        let error = f64::from(w[here]) - f64::from(out[here]);
                        error - std::mem::replace(&mut errors[here], error)
                    })
                    .collect();
                feed_back(&mut gradient, width, first..first + d, |row, j| delta[row * d + j], &inside);
            }
        }
        (change, n_changed)
    }
}

/// Sets `gradient`, `[rows, panel]`, to the columns of (W - Ŵ) H.
fn enter_panel(errors: &[f64], h: &[f64], n: usize, columns: std::ops::Range<usize>, gradient: &mut Vec<f64>) {
    let (width, rows) = (columns.len(), errors.len() / n);
    gradient.clear();
    gradient.resize(rows * width, 0.0);
    let h = MatRef::from_column_major_slice(h, n, n).subcols(columns.start, width);
    map_chunks_mut(gradient, ROWS * width, |i, gradient| {
        let (first, rows) = (i * ROWS, gradient.len() / width);
        let errors = MatRef::from_row_major_slice(&errors[first * n..(first + rows) * n], rows, n);
        matmul(MatMut::from_row_major_slice_mut(gradient, rows, width), Accum::Replace, errors, h, 1.0, Par::Seq);
    });
}

/// (x - q) M (x - q)ᵀ.
fn distance(x: &[f64], q: &[f32], metric: &[f64]) -> f64 {
    let d = x.len();
    let e = |i: usize| x[i] - f64::from(q[i]);
    (0..d).map(|i| e(i) * (0..d).map(|j| metric[i * d + j] * e(j)).sum::<f64>()).sum()
}

/// The inverse of a small positive definite matrix by elimination; `None` if a pivot is not positive and finite.
fn invert(m: &[f64], d: usize) -> Option<Vec<f64>> {
    let mut a = m.to_vec();
    let mut inverse = vec![0.0; d * d];
    inverse.iter_mut().step_by(d + 1).for_each(|v| *v = 1.0);
    for k in 0..d {
        let pivot = a[k * d + k];
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        for j in 0..d {
            a[k * d + j] /= pivot;
            inverse[k * d + j] /= pivot;
        }
        for i in (0..d).filter(|i| *i != k) {
            let factor = a[i * d + k];
            for j in 0..d {
                a[i * d + j] -= factor * a[k * d + j];
                inverse[i * d + j] -= factor * inverse[k * d + j];
            }
        }
    }
    Some(inverse)
}
