//! A model whose linears went through a baseline's bytes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use gosset_baselines::{Baseline, Encoded, lloyd::random_normals};
use gosset_entropy::Rate;
use gosset_quantize::{Action, Activations, ModelSource, Plan, PlanItem, SourceError, SourceInfo, TensorInfo};
use rayon::prelude::*;

/// Weights of a tensor that the error of the source's own grid is looked for in.
const PROBE_WEIGHTS: usize = 1 << 14;

/// Weights that share a scale in the block types of GGUF files, and so a grid.
const GRID_GROUP: usize = 32;

/// A method whose error is below this part of what it makes of Gaussian values with the same mean and spread in every group has met
/// levels that the weights were rounded to before.
///
/// On Q4_1 weights Q4_1 itself has an error of 0, Q4_K, which rounds scales and minima to 6 bits, less than this, and every other
/// method 0.8 or more (SmolLM2).
const GRID_RATIO: f64 = 0.25;

/// Linears of a layer, which are encoded together.
const LAYER_TENSORS: usize = 7;

/// Part of the weights on such levels that takes a method out of orders.
const GRID_SHARE: f64 = 0.02;

/// The linears of a model in a baseline's packed form.
#[derive(Debug)]
pub(super) struct CodedLinears {
    /// By index in the source.
    tensors: HashMap<usize, Encoded>,
    /// The bits of all of them by cause.
    pub(super) rate: Rate,
    /// Part of the tensors that a fallback type stands in for; `None` if there is none.
    pub(super) fallback_share: Option<f64>,
    /// The fallback types.
    pub(super) fallback_types: Vec<&'static str>,
    /// Part of the weights that lie in tensors whose levels are the method's.
    pub(super) grid_share: f64,
    /// Wall time of activations and second moments.
    pub(super) calibrating_s: f64,
}

impl CodedLinears {
    /// Encodes every tensor that `plan` quantizes; with `activations`, in their order and in the light of them.
    ///
    /// `cancelled` is asked between tensors, of which some are in work at a time; the answer is `None` then.
    pub(super) fn encode(
        source: &dyn ModelSource,
        plan: &Plan,
        method: &dyn Baseline,
        mut activations: Option<&mut dyn Activations>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Self>> {
        let is_quantized = |item: &&PlanItem| matches!(item.action, Action::Quantize { .. });
        let mut items: Vec<&PlanItem> = plan.items.iter().filter(is_quantized).collect();
        let mut at_a_time = items.len().max(1);
        let mut sequential = false;
        if let Some(activations) = &activations {
            let tensors: Vec<TensorInfo> = items.iter().map(|item| item.tensor.clone()).collect();
            items = activations.order(&tensors).into_iter().map(|i| items[i]).collect();
            sequential = activations.is_sequential();
            // Second moments of a layer are in memory once; those of all layers would not be.
            at_a_time = if sequential { 1 } else { LAYER_TENSORS };
        }
        let mut coded = Vec::with_capacity(items.len());
        let mut calibrating_s = 0.0;
        for items in items.chunks(at_a_time) {
            if cancelled() {
                return Ok(None);
            }
            let begin = Instant::now();
            let mut inputs = Vec::with_capacity(items.len());
            for item in items {
                let moments = activations.as_mut().map(|a| a.moments(&item.tensor.name)).transpose();
                inputs.push((*item, moments.with_context(|| item.tensor.name.clone())?.flatten()));
            }
            calibrating_s += begin.elapsed().as_secs_f64();
            let done = inputs.par_iter().map(|(item, moments)| {
                let (rows, cols) = item.tensor.rows_cols();
                let encode = || -> Result<_> {
                    let mut weights = vec![0.0; rows * cols];
                    source.read_rows(item.index, 0..rows, &mut weights)?;
                    let errors = probe(method, rows, cols, &weights, item.index as u64)?;
                    let hessian = moments.as_ref().map(|moments| &*moments.hessian);
                    Ok((item.index, method.encode_calibrated(rows, cols, &weights, hessian)?, errors))
                };
                encode().with_context(|| item.tensor.name.clone())
            });
            coded.extend(done.collect::<Result<Vec<_>>>()?);
            if let (true, Some(activations), [item], Some((_, encoded, _))) =
                (sequential, &mut activations, items, coded.last())
            {
                let (rows, cols) = item.tensor.rows_cols();
                activations.replaced(&item.tensor.name, &method.decode(rows, cols, encoded)?)?;
            }
        }
        let fallbacks: Vec<&'static str> = coded.iter().filter_map(|(_, encoded, _)| encoded.fallback).collect();
        let mut fallback_types = fallbacks.clone();
        fallback_types.sort_unstable();
        fallback_types.dedup();
        let rate: Rate = coded.iter().map(|(_, encoded, _)| encoded.rate).sum();
        let on_grid = coded.iter().filter(|(_, _, (found, expected))| *found < GRID_RATIO * expected);
        let on_grid: u64 = on_grid.map(|(_, encoded, _)| encoded.rate.n).sum();
        Ok(Some(CodedLinears {
            rate,
            fallback_share: (!fallbacks.is_empty()).then(|| fallbacks.len() as f64 / coded.len() as f64),
            fallback_types,
            grid_share: on_grid as f64 / rate.n.max(1) as f64,
            calibrating_s,
            tensors: coded.into_iter().map(|(index, encoded, _)| (index, encoded)).collect(),
        }))
    }

    /// Whether the method's levels are the source's in more than a few tensors.
    pub(super) fn on_source_grid(&self) -> bool {
        self.grid_share > GRID_SHARE
    }

    /// Bytes of a file with these linears, the tensors that `plan` keeps and the source's side files; no header, no padding.
    pub(super) fn file_bytes(&self, source: &dyn ModelSource, plan: &Plan) -> u64 {
        let kept = plan.items.iter().filter(|item| matches!(item.action, Action::Keep { .. }));
        let kept: u64 = kept.map(|item| item.tensor.n_bytes).sum();
        let side: u64 = source.blobs().iter().map(|(_, bytes)| bytes.len() as u64).sum();
        self.tensors.values().map(Encoded::n_bytes).sum::<u64>() + kept + side
    }
}

/// Relative squared errors of `method` on the first rows of a matrix, and on Gaussian values with the same mean and spread in every
/// group of 32, in their place.
///
/// The second is what the method would do to these weights if they were on no grid.
fn probe(method: &dyn Baseline, rows: usize, cols: usize, weights: &[f32], seed: u64) -> Result<(f64, f64)> {
    let rows = rows.min((PROBE_WEIGHTS / cols).max(1));
    let weights = &weights[..rows * cols];
    let noise = random_normals::<2>(weights.len().div_ceil(2), seed);
    let mut control = Vec::with_capacity(weights.len());
    for (row, noise) in weights.chunks(cols).zip(noise.as_flattened().chunks(cols)) {
        for (group, noise) in row.chunks(GRID_GROUP).zip(noise.chunks(GRID_GROUP)) {
            let n = group.len() as f64;
            let mean = group.iter().map(|&w| f64::from(w)).sum::<f64>() / n;
            let variance = group.iter().map(|&w| (f64::from(w) - mean).powi(2)).sum::<f64>() / n;
            control.extend(noise.iter().map(|&z| (mean + variance.sqrt() * f64::from(z)) as f32));
        }
    }
    let error = |values: &[f32]| -> Result<f64> {
        let decoded = method.decode(rows, cols, &method.encode(rows, cols, values)?)?;
        let sum = |f: &dyn Fn(usize) -> f32| (0..values.len()).map(|i| f64::from(f(i)).powi(2)).sum::<f64>();
        let energy = sum(&|i| values[i]);
        Ok(if energy > 0.0 { sum(&|i| values[i] - decoded[i]) / energy } else { 0.0 })
    };
    Ok((error(weights)?, error(&control)?))
}

/// A checkpoint in which the coded linears read as what their bytes decode to.
pub(super) struct CodedSource<'a> {
    source: &'a dyn ModelSource,
    coded: &'a CodedLinears,
    method: &'a dyn Baseline,
}

impl<'a> CodedSource<'a> {
    pub(super) fn new(source: &'a dyn ModelSource, coded: &'a CodedLinears, method: &'a dyn Baseline) -> Self {
        CodedSource { source, coded, method }
    }
}

impl ModelSource for CodedSource<'_> {
    fn info(&self) -> &SourceInfo {
        self.source.info()
    }

    fn folder(&self) -> Option<&Path> {
        self.source.folder()
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.source.tensors()
    }

    fn read_rows(&self, index: usize, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError> {
        let Some(encoded) = self.coded.tensors.get(&index) else { return self.source.read_rows(index, rows, out) };
        let (n_rows, cols) = self.tensors()[index].rows_cols();
        let decoded = self.method.decode(n_rows, cols, encoded).map_err(SourceError::other)?;
        out.copy_from_slice(&decoded[rows.start * cols..rows.end * cols]);
        Ok(())
    }

    fn raw_bytes(&self, index: usize) -> Result<Cow<'_, [u8]>, SourceError> {
        self.source.raw_bytes(index)
    }

    fn copy_raw(&self, index: usize, out: &mut dyn Write) -> Result<(), SourceError> {
        self.source.copy_raw(index, out)
    }

    fn blob(&self, name: &str) -> Option<&[u8]> {
        self.source.blob(name)
    }

    fn blobs(&self) -> Vec<(&str, &[u8])> {
        self.source.blobs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kquants::KQuant;
    use gosset_baselines::{Rotation, families, named};

    /// Error ratio of a method on one matrix.
    fn ratio(method: &dyn Baseline, rows: usize, cols: usize, weights: &[f32]) -> f64 {
        let (found, expected) = probe(method, rows, cols, weights, 1).unwrap();
        found / expected
    }

    #[test]
    fn levels_that_the_source_was_rounded_to_are_recognized_and_others_are_not() {
        let (rows, cols) = (16, 768);
        let weights = random_normals::<2>(rows * cols / 2, 9).concat();
        let rounded = |name: &str| {
            let kquant = KQuant::named(name).unwrap();
            kquant.decode(rows, cols, &kquant.encode(rows, cols, &weights).unwrap()).unwrap()
        };
        for (source, values) in [("none", weights.clone()), ("q4_0", rounded("q4_0")), ("q4_1", rounded("q4_1"))] {
            for name in ["q4_0", "q4_1", "q5_0", "q4_k", "q3_k", "q2_k"] {
                let found = ratio(&KQuant::named(name).unwrap(), rows, cols, &values);
                // Q5_0 has every level of Q4_0, and Q4_K those of Q4_1 up to the rounding of its scales.
                match (source, name) {
                    ("q4_0", "q4_0" | "q5_0") | ("q4_1", "q4_1") => {
                        assert!(found < 0.01, "{name} on {source}: {found}")
                    }
                    ("q4_1", "q4_k") => assert!(found < GRID_RATIO, "{name} on {source}: {found}"),
                    ("q4_0", _) => {}
                    _ => assert!(found > 2.0 * GRID_RATIO, "{name} on {source}: {found}"),
                }
            }
            // A rotation leaves nothing of a grid.
            for family in families().iter().filter(|family| family.name.starts_with("higgs")) {
                let method = named(family.name, family.rates[0], Rotation::DEFAULT).unwrap();
                assert!((0.8..1.25).contains(&ratio(&*method, rows, cols, &values)), "{} on {source}", family.name);
            }
        }
    }
}
