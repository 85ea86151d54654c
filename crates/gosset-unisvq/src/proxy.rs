//! What an error costs: tr(E H Eᵀ), the expected squared error of the outputs of a layer.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use crate::parallel::map_indexed;

/// Rows of one task. Fixed, so that sums are in the same order for any number of threads.
const ROWS: usize = 64;

/// tr(E H Eᵀ) for errors `e`, `[rows, n]`, and `h`, `[n, n]`, both row-major.
///
/// # Panics
/// If the lengths do not belong together.
#[must_use]
pub fn proxy(e: &[f64], rows: usize, h: &[f64]) -> f64 {
    let n = width(e.len(), rows, h.len());
    sum_over_chunks(rows, |from, to| quadratic(&e[from * n..to * n], n, h))
}

/// tr((W - Ŵ) H (W - Ŵ)ᵀ) / tr(W H Wᵀ) for `w` and `w_hat`, `[rows, n]`, and `h`, `[n, n]`, all row-major.
///
/// 0 where nothing is wrong, even if the denominator is 0; infinite where only the denominator is.
///
/// ```
/// let h = [2.0, 0.0, 0.0, 1.0];
/// assert_eq!(gosset_unisvq::relative_proxy(&[1.0, 1.0], &[1.5, 1.0], 1, &h), 0.5 / 3.0);
/// ```
///
/// # Panics
/// If the lengths do not belong together.
#[must_use]
pub fn relative_proxy(w: &[f32], w_hat: &[f32], rows: usize, h: &[f64]) -> f64 {
    ratio(difference_proxy(w, w_hat, rows, h), weights_proxy(w, rows, h))
}

/// 0 where there is no error.
pub(crate) fn ratio(error: f64, energy: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / energy }
}

/// tr((W - Ŵ) H (W - Ŵ)ᵀ).
pub(crate) fn difference_proxy(w: &[f32], w_hat: &[f32], rows: usize, h: &[f64]) -> f64 {
    let n = width(w.len(), rows, h.len());
    assert_eq!(w.len(), w_hat.len(), "both matrices have the same shape");
    sum_over_chunks(rows, |from, to| {
        let part = from * n..to * n;
        let e: Vec<f64> =
            w[part.clone()].iter().zip(&w_hat[part]).map(|(a, b)| f64::from(*a) - f64::from(*b)).collect();
        quadratic(&e, n, h)
    })
}

/// tr(W H Wᵀ).
pub(crate) fn weights_proxy(w: &[f32], rows: usize, h: &[f64]) -> f64 {
    let n = width(w.len(), rows, h.len());
    sum_over_chunks(rows, |from, to| {
        let part: Vec<f64> = w[from * n..to * n].iter().map(|v| f64::from(*v)).collect();
        quadratic(&part, n, h)
    })
}

/// Number of columns.
fn width(len: usize, rows: usize, h_len: usize) -> usize {
    assert!(rows > 0 && len.is_multiple_of(rows), "{len} values are not {rows} rows");
    let n = len / rows;
    assert_eq!(n * n, h_len, "the second moments are those of {n} inputs");
    n
}

/// The sum of `f` over chunks of rows, first to last.
fn sum_over_chunks(rows: usize, f: impl Fn(usize, usize) -> f64 + Sync + Send) -> f64 {
    map_indexed(rows.div_ceil(ROWS), |i| f(i * ROWS, rows.min((i + 1) * ROWS))).iter().sum()
}

/// tr(E H Eᵀ) of a few rows.
fn quadratic(e: &[f64], n: usize, h: &[f64]) -> f64 {
    let rows = e.len() / n;
    let mut product = vec![0.0; e.len()];
    matmul(
        MatMut::from_row_major_slice_mut(&mut product, rows, n),
        Accum::Replace,
        MatRef::from_row_major_slice(e, rows, n),
        MatRef::from_row_major_slice(h, n, n),
        1.0,
        Par::Seq,
    );
    product.iter().zip(e).map(|(a, b)| a * b).sum()
}
