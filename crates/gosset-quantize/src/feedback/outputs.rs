//! Outputs that count differently: factors of rows.
//!
//! Feedback makes the errors of all outputs of a matrix alike. What an error costs is another matter where outputs are multiplied by
//! something before they come together again: the scale of a row of gate or up is arbitrary, since the column of down that it meets
//! can undo it. An error e of output i brings about c_i e² downstream, c_i being the energy that the output brings there per unit of its own.
//! Squared errors in proportion to 1/√c_i are between those that are all alike and those that cost the same everywhere.

use gosset_codec::{N_EXPONENTS, row_factor};
use gosset_unisvq::Damped;
use rayon::prelude::*;

/// Exponents of the factors that rows are divided by, in quarters of octaves; none where all are the same.
///
/// `energy` is what each output brings downstream. A row of zeros, and one that brings nothing, gets a factor from the others.
pub(super) fn exponents(w: &[f32], rows: usize, h: &Damped, energy: &[f64]) -> Vec<u8> {
    let own = own_energy(w, rows, h);
    // 4 log2 of (own energy / energy downstream)^(1/4).
    let asked: Vec<Option<f64>> = own
        .iter()
        .zip(energy)
        .map(|(own, downstream)| Some((own / downstream).log2()).filter(|octaves| octaves.is_finite()))
        .collect();
    let mut sorted: Vec<f64> = asked.iter().flatten().copied().collect();
    if sorted.is_empty() {
        return Vec::new();
    }
    sorted.sort_unstable_by(f64::total_cmp);
    let top = (N_EXPONENTS - 1) as f64;
    let (least, middle, most) = (sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    // All of them if they fit, else as many above the middle as below.
    let from = if most - least <= top { least } else { (middle - 0.5 * top).clamp(least, most - top) }.round();
    let of = |asked: &Option<f64>| (asked.unwrap_or(middle) - from).round().clamp(0.0, top) as u8;
    let exponents: Vec<u8> = asked.iter().map(of).collect();
    if exponents.iter().all(|e| *e == exponents[0]) { Vec::new() } else { exponents }
}

/// w_i H w_iᵀ of each row.
fn own_energy(w: &[f32], rows: usize, h: &Damped) -> Vec<f64> {
    let n = w.len() / rows;
    w.par_chunks_exact(n)
        .with_min_len(8)
        .map(|row| {
            let at = |(k, v): (usize, &f32)| {
                let h = &h.as_slice()[k * n..][..n];
                f64::from(*v) * row.iter().zip(h).map(|(w, h)| f64::from(*w) * h).sum::<f64>()
            };
            row.iter().enumerate().map(at).sum()
        })
        .collect()
}

/// Divides rows by their factors, in place; nothing for no exponents.
pub(super) fn divide(w: &mut [f32], exponents: &[u8]) {
    scale(w, exponents, |factor| 1.0 / factor);
}

/// Multiplies rows by their factors, in place; nothing for no exponents.
pub(super) fn multiply(w: &mut [f32], exponents: &[u8]) {
    scale(w, exponents, |factor| factor);
}

fn scale(w: &mut [f32], exponents: &[u8], by: impl Fn(f32) -> f32) {
    if !exponents.is_empty() {
        let cols = w.len() / exponents.len();
        for (row, exponent) in w.chunks_exact_mut(cols).zip(exponents) {
            let factor = by(row_factor(*exponent));
            row.iter_mut().for_each(|v| *v *= factor);
        }
    }
}
