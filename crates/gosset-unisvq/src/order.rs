//! The order of inputs for feedback between columns of equal rate.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use crate::UniSvqError;
use crate::ldlq::check_matrix;
use crate::parallel::map_chunks_mut;

/// Pivots between two updates of what is left.
const PANEL: usize = 64;
/// Rows of one task. Fixed, so that the number of threads does not show.
const ROWS: usize = 32;

/// An order of inputs and what feedback costs in it.
#[derive(Debug, Clone, PartialEq)]
pub struct InputOrder {
    /// Input `order[k]` is the k-th; feedback runs from the last to the first.
    pub order: Vec<usize>,
    /// Σ_k D_k s_k: what errors of power s_k cost, D being that of the reordered moments.
    pub cost: f64,
}

/// The order of inputs whose D_k s_k are as equal as a greedy choice makes them, for moments `h`, `[n, n]` row-major and symmetric,
/// and powers `s` of the columns of weights.
///
/// The product of the D_k is det H in any order, so their weighted sum is the smaller the flatter they are. D_k is what is left of
/// input k once those before it are known: the input with the least D s comes first, while it is still small for lack of others, and
/// the strong ones come last, where all others explain them. Nothing has to be stored: columns are decoded one by one.
///
/// `None` if a pivot is not positive and finite. n³/3 products; the result does not depend on the number of threads.
///
/// # Errors
/// [`UniSvqError::Shape`] if lengths do not belong together.
///
/// ```
/// // Two inputs that are nearly the same, the second one with noise of its own.
/// let best = gosset_unisvq::flattest_order(vec![4.0, 4.0, 4.0, 5.0], &[1.0, 1.0])?.unwrap();
/// assert_eq!((best.order, best.cost), (vec![0, 1], 4.0 + 1.0)); // The other way: 5 + 0.8.
/// # Ok::<(), gosset_unisvq::UniSvqError>(())
/// ```
pub fn flattest_order(mut h: Vec<f64>, s: &[f64]) -> Result<Option<InputOrder>, UniSvqError> {
    let n = s.len();
    check_matrix("second moments to order", h.len(), n, n)?;
    let mut found = InputOrder { order: Vec::with_capacity(n), cost: 0.0 };
    // Of what is left: inputs, their D, and in the lower triangle of `h` their moments given the inputs before the panel.
    let mut left: Vec<usize> = (0..n).collect();
    let mut d: Vec<f64> = h.iter().step_by(n + 1).copied().collect();
    while !left.is_empty() {
        let m = left.len();
        let pivots = PANEL.min(m);
        let mut is_taken = vec![false; m];
        // Columns of the Cholesky factor, one after the other.
        let mut panel = vec![0.0; pivots * m];
        for i in 0..pivots {
            let cost = |k: &usize| d[*k] * s[left[*k]];
            let pivot = (0..m).filter(|&k| !is_taken[k]).min_by(|a, b| cost(a).total_cmp(&cost(b)));
            let Some(k) = pivot.filter(|&k| d[k] > 0.0 && d[k].is_finite()) else { return Ok(None) };
            is_taken[k] = true;
            found.cost += cost(&k);
            found.order.push(left[k]);
            let (done, column) = panel.split_at_mut(i * m);
            let column = &mut column[..m];
            column[..=k].copy_from_slice(&h[k * m..][..=k]);
            column[k + 1..].iter_mut().zip(h[k..].chunks(m).skip(k + 1)).for_each(|(v, row)| *v = row[0]);
            for done in done.chunks_exact(m) {
                let factor = done[k];
                column.iter_mut().zip(done).for_each(|(v, done)| *v -= factor * done);
            }
            let scale = 1.0 / d[k].sqrt();
            column.iter_mut().for_each(|v| *v *= scale);
            d.iter_mut().zip(&*column).for_each(|(d, v)| *d -= v * v);
        }
        let rest: Vec<usize> = (0..m).filter(|&k| !is_taken[k]).collect();
        // Places only move towards the start, so that nothing is overwritten before it is read.
        for (to, &from) in rest.iter().enumerate() {
            for (to_col, &col) in rest[..=to].iter().enumerate() {
                h[to * rest.len() + to_col] = h[from * m + col];
            }
        }
        h.truncate(rest.len() * rest.len());
        let known: Vec<f64> = rest.iter().flat_map(|&k| panel[k..].iter().step_by(m)).copied().collect();
        condition(&mut h, rest.len(), &known, pivots);
        d = rest.iter().map(|&k| d[k]).collect();
        left = rest.iter().map(|&k| left[k]).collect();
    }
    Ok(Some(found))
}

/// Takes `known` `known`ᵀ from the lower triangle of `h`; `known` is `[m, pivots]`, row-major.
fn condition(h: &mut [f64], m: usize, known: &[f64], pivots: usize) {
    if m == 0 {
        return;
    }
    let all = MatRef::from_row_major_slice(known, m, pivots);
    map_chunks_mut(h, ROWS * m, |i, h| {
        let (first, rows) = (i * ROWS, h.len() / m);
        let width = first + rows;
        let out = MatMut::from_row_major_slice_mut(h, rows, m).subcols_mut(0, width);
        matmul(out, Accum::Add, all.subrows(first, rows), all.subrows(0, width).transpose(), -1.0, Par::Seq);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hessian;
    use crate::block_ldl::block_ldl;

    /// Moments of inputs that carry on from one to the next, with one far larger than the others.
    fn moments(n: usize) -> Vec<f64> {
        let scale = |i: usize| if i == n / 3 { 20.0 } else { 1.0 + (i * 7 % 5) as f64 };
        let of = |i: usize, j: usize| {
            let noise = if i == j { 0.2 } else { 0.0 };
            scale(i) * scale(j) * (0.9f64.powi(i.abs_diff(j) as i32) + noise)
        };
        (0..n * n).map(|at| of(at / n, at % n)).collect()
    }

    /// Σ D_k s_k of an order.
    fn cost(h: &[f64], s: &[f64], order: &[usize]) -> f64 {
        let n = s.len();
        let h = Hessian::new(n, h.to_vec(), 9).unwrap().permuted(order).unwrap();
        let ldl = block_ldl(h.as_slice(), n, 1).unwrap();
        (0..n).map(|k| ldl.metric(k)[0] * s[order[k]]).sum()
    }

    #[test]
    fn the_cost_is_that_of_the_factors_in_that_order() {
        // One input, part of a panel, one panel, several with a rest.
        for n in [1, 5, PANEL, PANEL + 1, 3 * PANEL + 17] {
            let (h, s) = (moments(n), (0..n).map(|i| 1.0 + (i * 3 % 4) as f64).collect::<Vec<_>>());
            let found = flattest_order(h.clone(), &s).unwrap().unwrap();
            let expected = cost(&h, &s, &found.order);
            assert!((found.cost / expected - 1.0).abs() < 1e-9, "{n}: {} {expected}", found.cost);
            let given: Vec<usize> = (0..n).collect();
            assert!(n == 1 || found.cost < cost(&h, &s, &given), "{n}");
        }
    }

    #[test]
    fn choices_are_greedy() {
        let n = 2 * PANEL + 9;
        let (h, s) = (moments(n), vec![1.0; n]);
        let order = flattest_order(h.clone(), &s).unwrap().unwrap().order;
        // D of each candidate for a place, all places before being taken, from a factorization of its own.
        for place in [0, 1, PANEL - 1, PANEL, n - 2] {
            let d = |k: usize| {
                let inputs: Vec<usize> = order[..place].iter().copied().chain([k]).collect();
                let part = inputs.iter().flat_map(|&i| inputs.iter().map(move |&j| (i, j))).map(|(i, j)| h[i * n + j]);
                let ldl = block_ldl(&part.collect::<Vec<_>>(), inputs.len(), 1).unwrap();
                ldl.metric(place)[0]
            };
            let least = order[place..].iter().map(|&k| d(k)).fold(f64::INFINITY, f64::min);
            assert!(d(order[place]) <= least * (1.0 + 1e-9), "place {place}");
        }
    }

    #[cfg(feature = "rayon")]
    #[test]
    fn any_number_of_threads_finds_the_same() {
        let n = 200;
        let of = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| flattest_order(moments(n), &vec![1.0; n]).unwrap().unwrap())
        };
        let one = of(1);
        assert_eq!((one.cost.to_bits(), &one), (of(3).cost.to_bits(), &of(5)));
    }

    #[test]
    fn what_has_no_factors_has_no_order() {
        assert_eq!(flattest_order(vec![1.0, 2.0, 2.0, 1.0], &[1.0; 2]).unwrap(), None);
        assert_eq!(flattest_order(vec![0.0; 4], &[1.0; 2]).unwrap(), None);
        assert_eq!(flattest_order(vec![f64::NAN; 4], &[1.0; 2]).unwrap(), None);
        assert!(flattest_order(vec![1.0; 3], &[1.0; 2]).is_err());
        assert!(flattest_order(Vec::new(), &[]).is_err());
        // Columns of nothing cost nothing, wherever they come.
        assert_eq!(flattest_order(moments(3), &[0.0; 3]).unwrap().unwrap().cost, 0.0);
    }
}
