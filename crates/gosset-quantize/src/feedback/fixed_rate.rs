//! The bit-shift trellis, whose rate is given: columns by their spread, or tiles by blocks of 16 columns.
//!
//! At a fixed rate the error is in proportion to Σ D_k σ_k², and nothing can be moved to where it costs less. So the columns are put in
//! a frame and an order in which D_k σ_k² is nearly the same everywhere: a rotation of the inputs, of several the one with the least
//! sum, and the order that makes it flattest. The order leaves no trace in what is stored.

use gosset_codec::{
    CodecError, CodecSpec, ColumnEncoder, ColumnOptions, N_CLASSES, Rht, RotationHeader, RotationSpec, TileEncoder,
};
use gosset_transform::MAX_TILE;
use gosset_unisvq::{Hessian, InputOrder, LdlqOptions, Round, flattest_order, ldlq};

use super::entropy_coded::Columns;
use super::frame::{rotate_inputs, rotate_outputs, rotated_moments};
use super::{FeedbackError, FeedbackOptions, Outcome};

/// Octaves from the smallest scale to the spread of the widest column, of the 16 that scales span.
const OCTAVES_BELOW: i32 = 13;

/// Tile of the rotation that mixes neighbours only.
const SHORT_TILE: u32 = 16;

/// Encodes the target `w`, `[rows, cols]` row-major, column by column; `sigma` is the damping that its moments needed.
pub(super) fn columns(
    spec: &CodecSpec,
    w: &[f32],
    rows: usize,
    hessian: &Hessian,
    options: &FeedbackOptions,
    sigma: f64,
) -> Outcome {
    let cols = hessian.n();
    let (inputs, order) = frame(spec, w, hessian, sigma)?;
    let mut columns = ColumnOptions {
        inputs,
        outputs: widest(&spec.rotation, rows)?,
        step: 1.0,
        exponents: Vec::new(),
        reach: 1.0,
        gains: [1.0; N_CLASSES],
        row_exponents: Vec::new(),
    };
    let encoder = ColumnEncoder::new(spec, rows, cols, &columns)?;
    let mut target = w.to_vec();
    encoder.inputs().into_iter().for_each(|rht| rotate_inputs(&mut target, cols, rht));
    encoder.outputs().into_iter().for_each(|rht| rotate_outputs(&mut target, rows, rht));
    let power = powers(&target, cols).into_iter().fold(0.0, f64::max) / rows as f64;
    columns.step = (2.0 * power.sqrt() as f32).max(f32::MIN_POSITIVE) * 2f32.powi(-OCTAVES_BELOW);
    let mut row = vec![0.0; cols];
    for values in target.chunks_exact_mut(cols) {
        row.copy_from_slice(values);
        values.iter_mut().zip(&order).for_each(|(value, &col)| *value = row[col]);
    }
    let (_, ldl) = options.damping.factor(&in_frame(hessian, encoder.inputs())?.permuted(&order)?, 1)?;
    let mut out = vec![0.0; w.len()];
    let mut rounder = Columns::new(ColumnEncoder::new(spec, rows, cols, &columns)?, order);
    ldlq(&target, rows, &ldl, LdlqOptions::default(), &mut rounder, &mut out)?;
    // Re-tuning passes were tried: against all other columns fixed, a new search gains 0.1 to 0.4 %, in the time of the first.
    Ok((rounder.finish()?.0, 1))
}

/// The rotation of the inputs and the order of columns with the least Σ D_k σ_k².
fn frame(
    spec: &CodecSpec,
    w: &[f32],
    hessian: &Hessian,
    sigma: f64,
) -> Result<(RotationHeader, Vec<usize>), FeedbackError> {
    let cols = hessian.n();
    let frames = frames(&spec.rotation, cols)?;
    let mut best: Option<(usize, InputOrder)> = None;
    for (i, rotation) in frames.iter().enumerate() {
        let rht = rotation.to_rht(cols)?;
        let power = match &rht {
            Some(rht) => {
                let mut rotated = w.to_vec();
                rotate_inputs(&mut rotated, cols, rht);
                powers(&rotated, cols)
            }
            None => powers(w, cols),
        };
        let moments = in_frame(hessian, rht.as_ref())?;
        let mean = moments.mean_diagonal();
        let mut damped: Vec<f64> = moments.as_slice().iter().map(|v| v / mean).collect();
        drop(moments);
        damped.iter_mut().step_by(cols + 1).for_each(|v| *v += sigma);
        if let Some(order) = flattest_order(damped, &power)?
            && best.as_ref().is_none_or(|(_, least)| order.cost < least.cost)
        {
            best = Some((i, order));
        }
    }
    // Moments that can be factored in one order but in no other keep the asked frame.
    let (i, order) = best.map_or_else(|| (0, (0..cols).collect()), |(i, found)| (i, found.order));
    Ok((frames[i].clone(), order))
}

/// Rotations of `cols` inputs to choose from, the asked one first: its tiles, none, short tiles, and tiles as long as the width allows.
///
/// Which is best depends on what the inputs have to do with each other. Heads of attention make blocks of inputs that differ from
/// each other, which only long tiles mix; where few inputs carry much that the others do not explain, rotations spread it over all.
fn frames(asked: &RotationSpec, cols: usize) -> Result<Vec<RotationHeader>, CodecError> {
    let mut frames = vec![asked.header(cols)?];
    if let RotationSpec::Rht { tile, seed } = *asked {
        frames.push(RotationHeader::None);
        frames.push(RotationSpec::Rht { tile: tile.min(SHORT_TILE), seed }.header(cols)?);
        frames.push(widest(asked, cols)?);
    }
    let first = |i: &usize| !frames[..*i].contains(&frames[*i]);
    Ok((0..frames.len()).filter(first).map(|i| frames[i].clone()).collect())
}

/// The rotation with the seed that is asked for and tiles as long as the width allows, each power of two once.
///
/// Along the outputs it is always better: a string has one scale and one rate, so what it holds should be Gaussian of one spread, but
/// heads and groups of neurons differ. (Entropy codes make use of such differences.)
fn widest(asked: &RotationSpec, width: usize) -> Result<RotationHeader, CodecError> {
    let RotationSpec::Rht { seed, .. } = *asked else { return asked.header(width) };
    let longest = MAX_TILE as usize;
    let tiles = (0..=MAX_TILE.ilog2()).rev().map(|k| 1 << k);
    let count = |tile: u32| if tile == MAX_TILE { width / longest } else { (width % longest) >> tile.ilog2() & 1 };
    let runs = tiles.map(|tile| [tile, count(tile) as u32]).filter(|[_, count]| *count > 0).collect();
    Ok(RotationHeader::Rht { seed, runs })
}

/// The sum of the squares of each column.
fn powers(w: &[f32], cols: usize) -> Vec<f64> {
    let mut powers = vec![0.0f64; cols];
    for row in w.chunks_exact(cols) {
        powers.iter_mut().zip(row).for_each(|(power, v)| *power += f64::from(*v) * f64::from(*v));
    }
    powers
}

/// The moments of rotated inputs, inputs that were never active counting as ordinary ones.
fn in_frame(hessian: &Hessian, rht: Option<&Rht>) -> Result<Hessian, FeedbackError> {
    Ok(match rht {
        Some(rht) => rotated_moments(hessian, rht)?,
        None => hessian.transformed(|_| {})?,
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
