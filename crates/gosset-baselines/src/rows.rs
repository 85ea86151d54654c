//! Rotated rows of unit RMS, and the way back.

use gosset_transform::{DEFAULT_TILE, Rht, TilePlan};
use half::bf16;

use crate::BaselineError;
use crate::baseline::{Plane, check_weights};

/// Name of the plane of row scales.
pub(crate) const SCALES: &str = "scales";

/// The randomized Hadamard transform of the methods that rotate: the very one of Gosset's codecs, so that a comparison is about
/// what follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// Asked tile in columns, a power of two.
    pub tile: u32,
    /// Seed of the signs.
    pub seed: u64,
}

impl Rotation {
    /// Tiles of 128, seed 0: what codecs named on the command line use.
    pub const DEFAULT: Rotation = Rotation { tile: DEFAULT_TILE, seed: 0 };

    pub(crate) fn rht(self, rows: usize, cols: usize) -> Result<Rht, BaselineError> {
        let plan = TilePlan::new(cols, self.tile);
        let plan = plan.map_err(|e| BaselineError::Shape { rows, cols, what: e.to_string() })?;
        Ok(Rht::new(plan, self.seed))
    }
}

/// The rows in the rotated frame, each divided by its RMS as bf16, and the plane of those scales.
///
/// Rows of zeros, and rows so small that their RMS is no normal bf16, have scale 0 and decode to zeros.
pub(crate) fn normalize(
    rotation: Rotation,
    rows: usize,
    cols: usize,
    weights: &[f32],
) -> Result<(Vec<f32>, Plane), BaselineError> {
    check_weights(rows, cols, weights)?;
    let rht = rotation.rht(rows, cols)?;
    let mut values = weights.to_vec();
    let mut scales = Vec::with_capacity(rows * 2);
    for (row_idx, row) in values.chunks_exact_mut(cols).enumerate() {
        rht.forward(row);
        if let Some(col) = row.iter().position(|v| !v.is_finite()) {
            return Err(BaselineError::NotFinite { row: row_idx, col, value: row[col] });
        }
        let energy: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let rms = (energy / cols as f64).sqrt();
        let scale = bf16::from_f64(rms);
        if scale.is_infinite() {
            return Err(BaselineError::Scale { row: row_idx, group: 0, scale: rms as f32 });
        }
        if scale.is_normal() {
            scales.extend(scale.to_le_bytes());
            row.iter_mut().for_each(|v| *v /= scale.to_f32());
        } else {
            scales.extend(bf16::ZERO.to_le_bytes());
            row.fill(0.0);
        }
    }
    Ok((values, Plane { name: SCALES, bytes: scales }))
}

/// Multiplies rows of unit RMS by the scales in `scales` and rotates them back.
pub(crate) fn restore(
    rotation: Rotation,
    rows: usize,
    cols: usize,
    scales: &[u8],
    values: &mut [f32],
) -> Result<(), BaselineError> {
    let rht = rotation.rht(rows, cols)?;
    for (row, scale) in values.chunks_exact_mut(cols).zip(scales.as_chunks::<2>().0) {
        let scale = bf16::from_le_bytes(*scale).to_f32();
        row.iter_mut().for_each(|v| *v *= scale);
        rht.inverse(row);
    }
    Ok(())
}
