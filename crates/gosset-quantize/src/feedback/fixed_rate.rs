//! The bit-shift trellis, whose rate is given: columns by their spread, or tiles by blocks of 16 columns.
//!
//! At a fixed rate the error of a column is in proportion to its spread, and nothing can be moved to where it costs less. A rotation of
//! the inputs makes D_k nearly the same everywhere, which is the best that equal rates can be given.

use gosset_codec::{CodecError, CodecSpec, ColumnEncoder, ColumnOptions, N_CLASSES, Rht, TileEncoder};
use gosset_unisvq::{Hessian, LdlqOptions, Round, ldlq};

use super::entropy_coded::Columns;
use super::frame::{rotate_inputs, rotate_outputs, rotated_moments};
use super::{FeedbackError, FeedbackOptions, Outcome};

/// Octaves from the smallest scale to the spread of the widest column, of the 16 that scales span.
const OCTAVES_BELOW: i32 = 13;

/// Encodes the target `w`, `[rows, cols]` row-major, column by column.
pub(super) fn columns(
    spec: &CodecSpec,
    w: &[f32],
    rows: usize,
    hessian: &Hessian,
    options: &FeedbackOptions,
) -> Outcome {
    let cols = hessian.n();
    let mut columns = ColumnOptions {
        inputs: spec.rotation.clone(),
        outputs: spec.rotation.clone(),
        step: 1.0,
        exponents: Vec::new(),
        reach: 1.0,
        gains: [1.0; N_CLASSES],
    };
    let frame = ColumnEncoder::new(spec, rows, cols, &columns)?;
    let mut target = w.to_vec();
    frame.inputs().into_iter().for_each(|rht| rotate_inputs(&mut target, cols, rht));
    frame.outputs().into_iter().for_each(|rht| rotate_outputs(&mut target, rows, rht));
    columns.step = (2.0 * largest_spread(&target, rows, cols)).max(f32::MIN_POSITIVE) * 2f32.powi(-OCTAVES_BELOW);
    let (_, ldl) = options.damping.factor(&in_frame(hessian, frame.inputs())?, 1)?;
    let mut out = vec![0.0; w.len()];
    let mut rounder = Columns::new(ColumnEncoder::new(spec, rows, cols, &columns)?);
    ldlq(&target, rows, &ldl, LdlqOptions::default(), &mut rounder, &mut out)?;
    // Re-tuning passes were tried: against all other columns fixed, a new search gains 0.1 to 0.4 %, in the time of the first.
    Ok((rounder.finish()?.0, 1))
}

/// The largest spread of a column.
fn largest_spread(w: &[f32], rows: usize, cols: usize) -> f32 {
    let mut powers = vec![0.0f64; cols];
    for row in w.chunks_exact(cols) {
        powers.iter_mut().zip(row).for_each(|(power, v)| *power += f64::from(*v) * f64::from(*v));
    }
    (powers.into_iter().fold(0.0, f64::max) / rows as f64).sqrt() as f32
}

fn in_frame(hessian: &Hessian, rht: Option<&Rht>) -> Result<Hessian, FeedbackError> {
    Ok(match rht {
        Some(rht) => rotated_moments(hessian, rht)?,
        None => hessian.clone(),
    })
}

/// Encodes the target `w`, `[rows, cols]` row-major, in blocks of 16 columns.
pub(super) fn tiles(spec: &CodecSpec, w: &[f32], rows: usize, hessian: &Hessian, options: &FeedbackOptions) -> Outcome {
    let cols = hessian.n();
    let mut target = w.to_vec();
    let encoder = TileEncoder::new(spec, &mut target, rows, cols)?;
    let (damped, ldl) = options.damping.factor(&in_frame(hessian, encoder.rotation())?, TileEncoder::BLOCK)?;
    let mut out = vec![0.0; w.len()];
    let mut rounder = Tiles { encoder, error: None };
    // Distances of a string are Euclidean, whatever the metric of its columns.
    let sweep = LdlqOptions { metric: false, ..LdlqOptions::default() };
    ldlq(&target, rows, &ldl, sweep, &mut rounder, &mut out)?;
    if let Some(error) = rounder.error {
        return Err(error.into());
    }
    let gains = row_gains(&target, &out, cols, damped.as_slice());
    Ok((rounder.encoder.finish(&gains), 1))
}

/// The factor g of each row that makes (w - g ŵ) H (w - g ŵ)ᵀ least: w H ŵᵀ / ŵ H ŵᵀ.
fn row_gains(w: &[f32], rounded: &[f32], cols: usize, h: &[f64]) -> Vec<f32> {
    use rayon::prelude::*;
    let gain = |(w, rounded): (&[f32], &[f32])| {
        let (mut product, mut power) = (0.0f64, 0.0f64);
        for ((&w, &r), h) in w.iter().zip(rounded).zip(h.chunks_exact(cols)) {
            let along: f64 = h.iter().zip(rounded).map(|(h, r)| h * f64::from(*r)).sum();
            product += f64::from(w) * along;
            power += f64::from(r) * along;
        }
        if power > 0.0 { (product / power) as f32 } else { 1.0 }
    };
    w.par_chunks_exact(cols).zip(rounded.par_chunks_exact(cols)).map(gain).collect()
}

struct Tiles {
    encoder: TileEncoder,
    error: Option<CodecError>,
}

impl Round for Tiles {
    fn round(&mut self, block: usize, _rows: usize, x: &[f32], _metric: Option<&[f64]>, out: &mut [f32]) {
        if self.error.is_none() {
            self.error = self.encoder.round_block(block, x, out).err();
        }
        if self.error.is_some() {
            out.fill(0.0);
        }
    }
}
