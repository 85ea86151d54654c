//! Looks at every weight before the first one is coded: non-finite values stop a run, absurd ones are told.

use rayon::prelude::*;

use crate::error::{QuantizeError, SourceError};
use crate::source::ModelSource;

/// Values read at a time, in whole rows.
pub(crate) const BLOCK_VALUES: usize = 1 << 16;

/// A weight is an outlier if it exceeds this many times the median RMS of the rows of its tensor. A Gaussian weight exceeds 8 about
/// once in 10^15; trained weights stay below a few hundred.
const OUTLIER_FACTOR: f64 = 1000.0;

/// What was found in one tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Findings {
    pub(crate) n_nan: u64,
    pub(crate) n_inf: u64,
    /// First non-finite value in row-major order.
    pub(crate) first_bad: Option<(usize, usize, f32)>,
    /// Values far beyond the rest: how many, and row, column and value of the largest.
    pub(crate) outliers: Option<(u64, usize, usize, f32)>,
}

/// What was found in one row.
struct RowStats {
    rms: f64,
    max: f32,
    n_nan: u64,
    n_inf: u64,
    first_bad: Option<(usize, f32)>,
}

/// Scans one tensor, several row blocks at a time.
pub(crate) fn scan(source: &dyn ModelSource, index: usize) -> Result<Findings, SourceError> {
    let (rows, cols) = source.tensors()[index].rows_cols();
    if rows == 0 || cols == 0 {
        return Ok(Findings::default());
    }
    let step = (BLOCK_VALUES / cols).max(1);
    let blocks: Vec<Vec<RowStats>> = (0..rows.div_ceil(step))
        .into_par_iter()
        .map(|b| {
            let block = b * step..((b + 1) * step).min(rows);
            let mut values = vec![0f32; block.len() * cols];
            source.read_rows(index, block, &mut values)?;
            Ok(values.chunks_exact(cols).map(row_stats).collect())
        })
        .collect::<Result<_, SourceError>>()?;
    let stats: Vec<RowStats> = blocks.into_iter().flatten().collect();
    let first_bad = stats.iter().enumerate().find_map(|(r, s)| s.first_bad.map(|(c, v)| (r, c, v)));
    Ok(Findings {
        n_nan: stats.iter().map(|s| s.n_nan).sum(),
        n_inf: stats.iter().map(|s| s.n_inf).sum(),
        first_bad,
        outliers: if first_bad.is_some() { None } else { outliers(source, index, cols, &stats)? },
    })
}

fn row_stats(row: &[f32]) -> RowStats {
    // Eight lanes each, so that the loop vectorizes; the order is fixed.
    let mut sums = [0f64; 8];
    let mut maxima = [0f32; 8];
    let (blocks, rest) = row.as_chunks::<8>();
    for block in blocks {
        for i in 0..8 {
            sums[i] += f64::from(block[i]) * f64::from(block[i]);
            maxima[i] = maxima[i].max(block[i].abs());
        }
    }
    for (i, &v) in rest.iter().enumerate() {
        sums[i] += f64::from(v) * f64::from(v);
        maxima[i] = maxima[i].max(v.abs());
    }
    let sum: f64 = sums.iter().sum();
    let mut stats = RowStats {
        rms: (sum / row.len() as f64).sqrt(),
        max: maxima.iter().fold(0.0, |a, &b| a.max(b)),
        n_nan: 0,
        n_inf: 0,
        first_bad: None,
    };
    // The sum of squares of finite f32 values is finite in f64.
    if !sum.is_finite() {
        stats.n_nan = row.iter().filter(|v| v.is_nan()).count() as u64;
        stats.n_inf = row.iter().filter(|v| v.is_infinite()).count() as u64;
        stats.first_bad = row.iter().position(|v| !v.is_finite()).map(|c| (c, row[c]));
    }
    stats
}

/// Counts the values beyond the threshold; only rows that hold one are read again.
fn outliers(
    source: &dyn ModelSource,
    index: usize,
    cols: usize,
    stats: &[RowStats],
) -> Result<Option<(u64, usize, usize, f32)>, SourceError> {
    let mut rms: Vec<f64> = stats.iter().map(|s| s.rms).filter(|&r| r > 0.0).collect();
    if rms.is_empty() {
        return Ok(None);
    }
    // The median: neither a few absurd rows nor many zero rows move it.
    let middle = rms.len() / 2;
    let (_, median, _) = rms.select_nth_unstable_by(middle, f64::total_cmp);
    let threshold = *median * OUTLIER_FACTOR;
    let mut found: Option<(u64, usize, usize, f32)> = None;
    let mut row = vec![0f32; cols];
    for (r, _) in stats.iter().enumerate().filter(|(_, s)| f64::from(s.max) > threshold) {
        source.read_rows(index, r..r + 1, &mut row)?;
        for (c, &v) in row.iter().enumerate().filter(|(_, v)| f64::from(v.abs()) > threshold) {
            found = Some(match found {
                None => (1, r, c, v),
                Some((n, _, _, old)) if v.abs() > old.abs() => (n + 1, r, c, v),
                Some((n, r, c, old)) => (n + 1, r, c, old),
            });
        }
    }
    Ok(found)
}

/// The error for a tensor with non-finite values, `None` if there are none.
pub(crate) fn non_finite(tensor: &str, findings: &Findings, n_tensors: usize) -> Option<QuantizeError> {
    let (row, column, value) = findings.first_bad?;
    let (n_nan, n_inf) = (findings.n_nan, findings.n_inf);
    Some(QuantizeError::NonFinite { tensor: tensor.to_owned(), row, column, value, n_nan, n_inf, n_tensors })
}
