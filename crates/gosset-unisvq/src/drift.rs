//! Correction of drift: what to round when inputs come from a quantized prefix and outputs should be those of the unquantized model.

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::{Llt, SolveCore};
use faer::linalg::triangular_solve::{solve_unit_lower_triangular_in_place, solve_unit_upper_triangular_in_place};
use faer::{Accum, Conj, MatMut, MatRef, Par, Side};

use crate::UniSvqError;
use crate::block_ldl::BlockLdl;
use crate::damping::{Damped, DampingMethod};
use crate::ldlq::{ROWS, check_matrix};
use crate::parallel::map_chunks_mut;

/// The target W* = W (E[x x̂ᵀ] + λI) (E[x̂ x̂ᵀ] + λI)⁻¹, with λ the damping that was used: W* x̂ is the best guess at W x.
///
/// `w` is `[rows, n]` row-major, `cross` the mean of x x̂ᵀ, `[n, n]` row-major, undamped; `h` is the damped mean of x̂ x̂ᵀ and `ldl` are its
/// factors. Without drift (`cross` equal to the mean of x̂ x̂ᵀ) the target is `w`, and so it is where damping ended in plain rounding.
/// Rounding W* with the second moments of x̂ minimizes the expected squared distance of the outputs to W x.
///
/// # Errors
/// [`UniSvqError::Shape`] if lengths do not belong together.
pub fn drift_target(
    w: &[f32],
    rows: usize,
    cross: &[f64],
    h: &Damped,
    ldl: &BlockLdl,
) -> Result<Vec<f32>, UniSvqError> {
    let n = h.n();
    check_matrix("weights", w.len(), rows, n)?;
    check_matrix("cross moments", cross.len(), n, n)?;
    check_matrix("factors", ldl.n() * ldl.n(), n, n)?;
    if h.report().method != DampingMethod::Damped {
        return Ok(w.to_vec());
    }
    // W* = W + W (M - H) H⁻¹ with everything divided by the mean diagonal: damping cancels in the difference, and where nothing
    // drifts nothing is rounded either.
    let mean = h.mean_diagonal();
    let sigma = h.report().sigma;
    let mut difference: Vec<f64> = cross.iter().zip(h.as_slice()).map(|(m, h)| m / mean - h).collect();
    difference.iter_mut().step_by(n + 1).for_each(|v| *v += sigma);
    let mut out = w.to_vec();
    map_chunks_mut(&mut out, ROWS * n, |_, out| {
        let rows = out.len() / n;
        let weights: Vec<f64> = out.iter().map(|v| f64::from(*v)).collect();
        let mut product = vec![0.0; out.len()];
        let (product_view, weights) =
            (MatMut::from_row_major_slice_mut(&mut product, rows, n), MatRef::from_row_major_slice(&weights, rows, n));
        matmul(product_view, Accum::Replace, weights, MatRef::from_row_major_slice(&difference, n, n), 1.0, Par::Seq);
        solve(&mut product, rows, ldl);
        out.iter_mut().zip(&product).for_each(|(v, p)| *v = (f64::from(*v) + p) as f32);
    });
    Ok(out)
}

/// Replaces the rows of `x` by x (L D Lᵀ)⁻¹.
fn solve(x: &mut [f64], rows: usize, ldl: &BlockLdl) {
    let n = ldl.n();
    let l = MatRef::from_column_major_slice(ldl.l_column_major(), n, n);
    // Symmetric, so that rows may be solved for as columns.
    let mut x = MatMut::from_column_major_slice_mut(x, n, rows);
    solve_unit_lower_triangular_in_place(l, x.as_mut(), Par::Seq);
    for k in 0..ldl.n_blocks() {
        let (columns, d) = (ldl.columns(k), ldl.columns(k).len());
        // Blocks of D are positive definite: they are products of a factor whose pivots were checked.
        if let Ok(llt) = Llt::new(MatRef::from_row_major_slice(ldl.metric(k), d, d), Side::Lower) {
            llt.solve_in_place_with_conj(Conj::No, x.as_mut().subrows_mut(columns.start, d));
        }
    }
    solve_unit_upper_triangular_in_place(l.transpose(), x, Par::Seq);
}
