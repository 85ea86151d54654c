//! Looks at every weight before the first one is coded: non-finite values stop a run, absurd ones are told.

use std::io::{self, Write};

use rayon::prelude::*;

use crate::error::{QuantizeError, SourceError};
use crate::observer::{Event, Observer};
use crate::plan::{Action, Plan};
use crate::policy::is_float;
use crate::run::is_stored;
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
    /// Finite F64 values that are infinite as f32; not among the infinities.
    pub(crate) n_beyond: u64,
    /// The first of them.
    pub(crate) first_beyond: Option<(usize, usize, f64)>,
    /// Values far beyond the rest: how many, and row, column and value of the largest.
    pub(crate) outliers: Option<(u64, usize, usize, f32)>,
}

impl Findings {
    /// Whether any value cannot be coded.
    pub(crate) fn is_bad(&self) -> bool {
        self.first_bad.is_some() || self.first_beyond.is_some()
    }
}

/// What was found in one row.
struct RowStats {
    rms: f64,
    max: f32,
    n_nan: u64,
    n_inf: u64,
    first_bad: Option<(usize, f32)>,
}

/// Scans every tensor that is stored and tells what the user should know.
///
/// # Errors
/// [`QuantizeError::NonFinite`] and [`QuantizeError::BeyondF32`] for values that cannot be coded, [`QuantizeError::Cancelled`].
pub(crate) fn scan_all(
    plan: &Plan,
    source: &dyn ModelSource,
    observer: &dyn Observer,
    warnings: &mut Vec<String>,
) -> Result<(), QuantizeError> {
    let total = plan.items.len();
    let mut bad = Vec::new();
    for (index, item) in plan.items.iter().enumerate() {
        if observer.cancelled() {
            return Err(QuantizeError::Cancelled { done: 0, total });
        }
        if !is_float(&item.tensor.dtype) || !is_stored(item) {
            continue;
        }
        let tensor = item.tensor.name.as_str();
        observer.event(&Event::Scanning { tensor, index, total });
        let findings = scan(source, item.index)?;
        let quantized = matches!(item.action, Action::Quantize { .. });
        let mut warn = |message: String| {
            observer.event(&Event::Warning { message: &message });
            warnings.push(message);
        };
        if let (Some((row, column, value)), false) = (findings.first_beyond, quantized) {
            warn(format!(
                "tensor {tensor:?} is kept as it is, with {} value(s) that do not fit f32, the first ({value:e}) at row {row}, column {column}",
                findings.n_beyond
            ));
        }
        match (&findings.first_bad, quantized) {
            _ if quantized && findings.is_bad() => bad.push((tensor, findings)),
            (Some((row, column, value)), false) => warn(format!(
                "tensor {tensor:?} is kept as it is, with {} NaN and {} infinite values, the first ({value}) at row {row}, column {column}",
                findings.n_nan, findings.n_inf
            )),
            (None, true) => {
                if let Some((n, row, column, value)) = findings.outliers {
                    warn(format!(
                        "tensor {tensor:?}: {n} outlier(s) beyond 1000 times the median row RMS, the largest ({value}) at row {row}, column {column}"
                    ));
                }
            }
            _ => {}
        }
    }
    match bad.first().and_then(|(tensor, findings)| non_finite(tensor, findings, bad.len())) {
        Some(error) => Err(error),
        None => Ok(()),
    }
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
    if first_bad.is_some() && source.tensors()[index].dtype == "F64" {
        return scan_f64(source, index, cols);
    }
    Ok(Findings {
        n_nan: stats.iter().map(|s| s.n_nan).sum(),
        n_inf: stats.iter().map(|s| s.n_inf).sum(),
        first_bad,
        n_beyond: 0,
        first_beyond: None,
        outliers: if first_bad.is_some() { None } else { outliers(source, index, cols, &stats)? },
    })
}

/// Scans the stored bytes of an F64 tensor, for which infinite as f32 does not mean infinite.
fn scan_f64(source: &dyn ModelSource, index: usize, cols: usize) -> Result<Findings, SourceError> {
    let mut scan = F64Scan { cols, n_values: 0, partial: Vec::new(), findings: Findings::default() };
    source.copy_raw(index, &mut scan)?;
    Ok(scan.findings)
}

/// Takes little-endian f64 values in pieces of any length.
struct F64Scan {
    cols: usize,
    n_values: usize,
    /// Fewer than 8 bytes of a value that was cut.
    partial: Vec<u8>,
    findings: Findings,
}

impl F64Scan {
    fn value(&mut self, v: f64) {
        let (row, column) = (self.n_values / self.cols, self.n_values % self.cols);
        self.n_values += 1;
        let found = &mut self.findings;
        if v.is_finite() {
            if (v as f32).is_infinite() {
                found.n_beyond += 1;
                found.first_beyond.get_or_insert((row, column, v));
            }
            return;
        }
        *(if v.is_nan() { &mut found.n_nan } else { &mut found.n_inf }) += 1;
        found.first_bad.get_or_insert((row, column, v as f32));
    }
}

impl Write for F64Scan {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let missing = if self.partial.is_empty() { 0 } else { 8 - self.partial.len() };
        let (head, rest) = bytes.split_at(missing.min(bytes.len()));
        self.partial.extend_from_slice(head);
        if let Ok(whole) = <[u8; 8]>::try_from(self.partial.as_slice()) {
            self.value(f64::from_le_bytes(whole));
            self.partial.clear();
        }
        let (values, tail) = rest.as_chunks::<8>();
        values.iter().for_each(|v| self.value(f64::from_le_bytes(*v)));
        self.partial.extend_from_slice(tail);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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

/// The error for a tensor with values that cannot be coded, `None` if there are none.
pub(crate) fn non_finite(tensor: &str, findings: &Findings, n_tensors: usize) -> Option<QuantizeError> {
    let Some((row, column, value)) = findings.first_bad else {
        let (row, column, value) = findings.first_beyond?;
        let (tensor, count) = (tensor.to_owned(), findings.n_beyond);
        return Some(QuantizeError::BeyondF32 { tensor, row, column, value, count, n_tensors });
    };
    let (n_nan, n_inf) = (findings.n_nan, findings.n_inf);
    Some(QuantizeError::NonFinite { tensor: tensor.to_owned(), row, column, value, n_nan, n_inf, n_tensors })
}
