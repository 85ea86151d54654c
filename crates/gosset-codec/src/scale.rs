//! From a matrix to rows of unit RMS in the frame of the code: rotation, row scales and rows that are stored exactly.

use gosset_transform::Rht;
use half::bf16;

use crate::parallel;

/// Scales below this are not used. They are far from subnormal, so that a scale times the smallest step is a normal
/// number.
const MIN_SCALE: f32 = f32::from_bits((127 - 100) << 23);
/// Scales above this are not used, so that a scale times the largest point divided by the smallest alpha is finite.
const MAX_SCALE: f32 = f32::from_bits((127 + 100) << 23);

/// Values of one task of the row loop, in whole rows.
const TASK_VALUES: usize = 1 << 16;

/// What is known of a matrix besides its normalized values.
#[derive(Debug, Default)]
pub(crate) struct RowScales {
    /// Scale of each row: its RMS after rotation. Zero for all-zero rows and for rows stored exactly.
    pub scales: Vec<bf16>,
    /// Rows stored exactly, ascending.
    pub exact_rows: Vec<u32>,
    /// Original values of those rows, one after the other.
    pub exact_values: Vec<f32>,
    /// Largest magnitude among the normalized values.
    pub peak: f32,
    /// A row that holds it.
    pub peak_row: usize,
}

/// Rotates the rows of `data` in place, divides each by its scale and returns the scales.
///
/// The scale of a row is its RMS after rotation, rounded to bf16. A row whose scale is not in 2^-100..=2^100 (or that
/// leaves the range of f32 in the rotation) is set aside in its original basis and zeroed here. The first row of `data`
/// is row 0; all values are finite; `data` holds whole rows of `cols` values, at most 2^32 − 1 of them.
pub(crate) fn normalize_rows(data: &mut [f32], cols: usize, rht: Option<&Rht>) -> RowScales {
    let rows_per_task = (TASK_VALUES / cols).max(1);
    let tasks = parallel::map_chunks_mut(data, rows_per_task * cols, |task_idx, chunk| {
        let mut out = RowScales::default();
        let mut original = Vec::with_capacity(cols);
        for (i, row) in chunk.chunks_exact_mut(cols).enumerate() {
            original.clear();
            original.extend_from_slice(row);
            let row_idx = task_idx * rows_per_task + i;
            let (scale, peak) = normalize_row(row, rht);
            if scale == bf16::ZERO && original.iter().any(|&v| v != 0.0) {
                out.exact_rows.push(row_idx as u32);
                out.exact_values.extend_from_slice(&original);
            }
            out.scales.push(scale);
            if peak > out.peak {
                (out.peak, out.peak_row) = (peak, row_idx);
            }
        }
        out
    });
    let mut all = RowScales::default();
    for mut task in tasks {
        all.scales.append(&mut task.scales);
        all.exact_rows.append(&mut task.exact_rows);
        all.exact_values.append(&mut task.exact_values);
        if task.peak > all.peak {
            (all.peak, all.peak_row) = (task.peak, task.peak_row);
        }
    }
    all
}

/// Scales with a gain per row made part of them. Rows without a scale keep none; a gain that is no positive number, or
/// that would lead out of the range of scales, is left out.
pub(crate) fn fold_gains(mut scales: Vec<bf16>, gains: &[f32]) -> Vec<bf16> {
    for (scale, &gain) in scales.iter_mut().zip(gains) {
        let folded = bf16::from_f32(scale.to_f32() * gain);
        if *scale != bf16::ZERO && (MIN_SCALE..=MAX_SCALE).contains(&folded.to_f32()) {
            *scale = folded;
        }
    }
    scales
}

/// Rotates and normalizes one row; returns its scale and the largest magnitude left in it. A row without a usable scale
/// is zeroed and has scale 0.
fn normalize_row(row: &mut [f32], rht: Option<&Rht>) -> (bf16, f32) {
    if let Some(rht) = rht {
        rht.forward(row);
    }
    let scale = bf16::from_f64((sum_of_squares(row) / row.len() as f64).sqrt());
    let divisor = scale.to_f32();
    if !(MIN_SCALE..=MAX_SCALE).contains(&divisor) {
        row.fill(0.0);
        return (bf16::ZERO, 0.0);
    }
    let mut peak = [0.0f32; 8];
    let (blocks, rest) = row.as_chunks_mut::<8>();
    for block in blocks {
        for (v, peak) in block.iter_mut().zip(&mut peak) {
            *v /= divisor;
            *peak = if v.abs() > *peak { v.abs() } else { *peak };
        }
    }
    for v in rest {
        *v /= divisor;
        peak[0] = peak[0].max(v.abs());
    }
    (scale, peak.into_iter().fold(0.0, f32::max))
}

/// Sum of squares in double precision: eight running sums over the columns modulo 8, then a fixed tree, so that the
/// result is the same whatever vector instructions are used.
fn sum_of_squares(row: &[f32]) -> f64 {
    let mut sums = [0.0f64; 8];
    let (blocks, rest) = row.as_chunks::<8>();
    for block in blocks {
        for (sum, &v) in sums.iter_mut().zip(block) {
            *sum += f64::from(v) * f64::from(v);
        }
    }
    for (sum, &v) in sums.iter_mut().zip(rest) {
        *sum += f64::from(v) * f64::from(v);
    }
    ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_unit_rms_up_to_the_rounding_of_the_scale() {
        let cols = 37;
        let mut data: Vec<f32> = (0..5 * cols).map(|i| ((i * 7919 % 101) as f32 - 50.0) * 1e-3).collect();
        let scales = normalize_rows(&mut data, cols, None);
        assert_eq!(scales.scales.len(), 5);
        for row in data.chunks(cols) {
            let rms = (sum_of_squares(row) / cols as f64).sqrt();
            // Half a unit in the last of eight mantissa bits.
            assert!((rms - 1.0).abs() < 1.0 / 256.0, "{rms}");
        }
        let peak = data.iter().fold(0.0f32, |a, v| a.max(v.abs()));
        assert_eq!(scales.peak, peak);
        assert!(data[scales.peak_row * cols..][..cols].iter().any(|v| v.abs() == peak));
    }

    #[test]
    fn rows_out_of_range_are_set_aside() {
        let cols = 8;
        let rows = [[0.0; 8], [-0.0; 8], [1e-42; 8], [3e38; 8], [1e-45; 8], [1.0; 8], [1e-38; 8]];
        let mut data = rows.concat();
        let rht = Rht::new(gosset_transform::TilePlan::new(cols, 8).unwrap(), 3);
        let scales = normalize_rows(&mut data, cols, Some(&rht));
        assert_eq!(scales.exact_rows, [2, 3, 4, 6]);
        assert_eq!(scales.exact_values, [rows[2], rows[3], rows[4], rows[6]].concat());
        assert!(scales.scales.iter().enumerate().all(|(i, s)| (*s == bf16::ZERO) == (i != 5)));
        assert!(data.iter().all(|v| v.is_finite()));
        assert!(data[..40].iter().all(|&v| v.to_bits() == 0));
    }
}
