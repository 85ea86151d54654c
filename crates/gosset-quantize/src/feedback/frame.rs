//! Matrices and second moments in the frame in which they are rounded.

use gosset_transform::{Rht, butterflies};
use gosset_unisvq::{Hessian, UniSvqError};
use rayon::prelude::*;

/// Rotates the columns of `w`, `[rows, cols]` row-major, in place.
pub(super) fn rotate_outputs(w: &mut [f32], rows: usize, rht: &Rht) {
    let cols = w.len() / rows;
    let mut columns = transposed(w, cols);
    columns.par_chunks_exact_mut(rows).with_min_len(16).for_each(|column| rht.forward(column));
    w.copy_from_slice(&transposed(&columns, rows));
}

/// Rotates the rows of `w`, of `cols` values each, in place.
pub(super) fn rotate_inputs(w: &mut [f32], cols: usize, rht: &Rht) {
    w.par_chunks_exact_mut(cols).with_min_len(16).for_each(|row| rht.forward(row));
}

/// The transpose of a row-major matrix with `cols` columns.
pub(super) fn transposed(w: &[f32], cols: usize) -> Vec<f32> {
    let rows = w.len() / cols;
    let mut out = vec![0.0; w.len()];
    // In blocks of columns, so that what is read stays in the cache.
    out.par_chunks_mut(16 * rows).enumerate().for_each(|(block, out)| {
        let first = 16 * block;
        for (row, values) in w.chunks_exact(cols).enumerate() {
            for (out, value) in out[row..].iter_mut().step_by(rows).zip(&values[first..]) {
                *out = *value;
            }
        }
    });
    out
}

/// The second moments of rotated inputs: R H Rᵀ.
///
/// # Errors
/// Those of [`Hessian::transformed`].
pub(super) fn rotated_moments(hessian: &Hessian, rht: &Rht) -> Result<Hessian, UniSvqError> {
    hessian.transformed(|row| rotate(row, rht))
}

/// The rotation in double precision.
fn rotate(row: &mut [f64], rht: &Rht) {
    for (j, v) in row.iter_mut().enumerate() {
        if rht.signs().is_negative(j) {
            *v = -*v;
        }
    }
    let mut rest = row;
    for run in rht.plan().runs() {
        let tile = run.tile as usize;
        let (here, after) = rest.split_at_mut(tile * run.count as usize);
        for x in here.chunks_exact_mut(tile) {
            butterflies(x, 1);
            let scale = 1.0 / (tile as f64).sqrt();
            x.iter_mut().for_each(|v| *v *= scale);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_transform::TilePlan;

    #[test]
    fn both_precisions_rotate_alike() {
        let rht = Rht::new(TilePlan::new(172, 128).unwrap(), 3);
        let row: Vec<f32> = (0..172).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
        let (mut single, mut double) = (row.clone(), row.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        rht.forward(&mut single);
        rotate(&mut double, &rht);
        assert!(single.iter().zip(&double).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4));
    }

    #[test]
    fn the_error_of_outputs_does_not_depend_on_the_frame() {
        let (rows, n) = (5, 48);
        let rht = Rht::new(TilePlan::new(n, 16).unwrap(), 1);
        let x: Vec<f64> = (0..n * n).map(|i| ((i * i + 7 * i) % 23) as f64 - 11.0).collect();
        let h: Vec<f64> =
            (0..n * n).map(|i| (0..n).map(|k| x[k * n + i / n] * x[k * n + i % n]).sum::<f64>()).collect();
        let h = Hessian::new(n, h, 9).unwrap();
        let mut w: Vec<f32> = (0..rows * n).map(|i| ((i * 31 % 17) as f32) - 8.0).collect();
        let as_f64 = |w: &[f32]| w.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        let before = gosset_unisvq::proxy(&as_f64(&w), rows, h.as_slice());
        rotate_inputs(&mut w, n, &rht);
        let after = gosset_unisvq::proxy(&as_f64(&w), rows, rotated_moments(&h, &rht).unwrap().as_slice());
        assert!((after / before - 1.0).abs() < 1e-5, "{before} {after}");
    }

    #[test]
    fn transposing_twice_changes_nothing() {
        let w: Vec<f32> = (0..37 * 19).map(|i| i as f32).collect();
        let t = transposed(&w, 19);
        assert_eq!((t[1], t[37]), (19.0, 1.0));
        assert_eq!(transposed(&t, 37), w);
    }
}
