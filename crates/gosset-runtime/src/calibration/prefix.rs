//! Two streams of hidden states side by side: of the unquantized model, and of the model whose layers so far are quantized.

use std::sync::Arc;

use gosset_quantize::InputMoments;
use gosset_unisvq::{CrossAccumulator, HessianAccumulator};

use super::layer_input::{InputCoverage, LayerInput};
use super::progress::{Pass, Reporter};
use super::runner::{Replaced, Runner, Watch, add_squares, check_output};
use super::token_factors::{token_factors, weighted};
use crate::error::RuntimeError;
use crate::models::EMBEDDING;
use crate::tensor::f32_slice;

/// Hidden states before a layer, and what became of that layer so far.
pub(super) struct Prefix {
    layer: usize,
    /// Unquantized, `[tokens, hidden]`.
    x: Vec<f32>,
    /// From the quantized prefix, `[tokens, hidden]`.
    x_hat: Vec<f32>,
    /// Tensors of this layer that are quantized already.
    replaced: Replaced,
    /// Whether the first layer reads the same in both streams.
    same_embedding: bool,
    /// Factors of all tokens in second moments of what o and down of this layer read, once they were needed.
    factors: Option<Arc<Vec<f32>>>,
    /// Whether a pass ended early, with some sequences before the layer and others after it.
    half_done: bool,
}

impl Prefix {
    /// Before the first layer, where both streams are the same.
    pub(super) fn new(runner: &Runner<'_>) -> Result<Self, RuntimeError> {
        let x = runner.embed()?;
        let (x_hat, replaced) = (x.clone(), Replaced::new());
        Ok(Self { layer: 0, x, x_hat, replaced, same_embedding: true, factors: None, half_done: false })
    }

    /// Whether a pass over a layer ended early: then nothing more can be made of the streams.
    pub(super) fn is_half_done(&self) -> bool {
        self.half_done
    }

    /// Inputs of the layer from the quantized prefix, `[tokens, hidden]`.
    pub(super) fn inputs(&self) -> &[f32] {
        &self.x_hat
    }

    /// What became of tensors of the layer so far.
    pub(super) fn replaced(&self) -> &Replaced {
        &self.replaced
    }

    /// Takes the embedding table that the quantized model has.
    pub(super) fn replace_embedding(&mut self, runner: &Runner<'_>, table: &[f32]) -> Result<(), RuntimeError> {
        check_len(runner, EMBEDDING, table)?;
        self.x_hat = runner.embed_from(table);
        self.same_embedding = false;
        Ok(())
    }

    /// Takes a tensor of the layer at hand, or of a later one, up to which both streams move.
    pub(super) fn replace(
        &mut self,
        runner: &Runner<'_>,
        reporter: &mut Reporter,
        (layer, tensor): (usize, &str),
        values: &[f32],
    ) -> Result<(), RuntimeError> {
        check_len(runner, tensor, values)?;
        self.move_to(runner, reporter, layer)?;
        self.replaced.insert(tensor.to_owned(), values.to_vec());
        Ok(())
    }

    /// Moves both streams up to `layer`.
    ///
    /// # Errors
    /// [`RuntimeError::Options`] if they are beyond it.
    pub(super) fn move_to(
        &mut self,
        runner: &Runner<'_>,
        reporter: &mut Reporter,
        layer: usize,
    ) -> Result<(), RuntimeError> {
        if layer < self.layer {
            return Err(RuntimeError::Options {
                option: "calibration".to_owned(),
                expected: format!("tensors in the order of layers, from layer {}", self.layer),
                found: format!("one of layer {layer}"),
            });
        }
        while self.layer < layer {
            let plain = runner.layer(self.layer)?;
            let quantized = runner.replaced_layer(self.layer, &self.replaced)?;
            self.half_done = true;
            for i in 0..runner.sequences.n_sequences() {
                reporter.at(Pass::Forward, self.layer, i)?;
                for (layer, x) in [(&plain, &mut self.x), (&quantized, &mut self.x_hat)] {
                    let before = runner.sequence(x, i)?;
                    if let Some(after) = runner.pass(layer, &before, None, &mut |_, _| Ok(()))? {
                        let first = runner.sequences.range(i).start;
                        check_output(self.layer, first, &f32_slice(&after)?, runner.config.hidden_size)?;
                        runner.set_sequence(x, i, &after)?;
                    }
                }
            }
            self.half_done = false;
            self.replaced.clear();
            self.factors = None;
            self.layer += 1;
        }
        Ok(())
    }

    /// Second moments of `input` of the layer at hand as its quantized tensors make it, and the drift of the unquantized one from it.
    pub(super) fn moments(
        &mut self,
        runner: &Runner<'_>,
        reporter: &mut Reporter,
        input: LayerInput,
    ) -> Result<(InputMoments, InputCoverage), RuntimeError> {
        let factors = self.factors(runner, reporter, input)?;
        let failed = |source| RuntimeError::Moments { place: input.place(self.layer), source };
        let same = self.layer == 0 && input == LayerInput::Attention && self.same_embedding;
        let (plain, quantized) = (runner.layer(self.layer)?, runner.replaced_layer(self.layer, &self.replaced)?);
        let n = input.width(&runner.config);
        let mut sums = HessianAccumulator::new(n).map_err(failed)?;
        let mut cross = if same { None } else { Some(CrossAccumulator::new(n).map_err(failed)?) };
        let mut watch = Watch::new(self.layer, input, &runner.config);
        for i in 0..runner.sequences.n_sequences() {
            reporter.at(Pass::Moments, self.layer, i)?;
            let at = |layer, x| {
                let x = runner.sequence(x, i)?;
                let mut found = None;
                let mut keep = |seen, values: &candle_core::Tensor| {
                    if seen == input {
                        found = Some(values.clone());
                    }
                    Ok(())
                };
                runner.pass(layer, &x, Some(input), &mut keep)?;
                Ok::<_, RuntimeError>(match found {
                    Some(found) => found,
                    None => unreachable!("the pass ends at the input"),
                })
            };
            let x_hat = at(&quantized, &self.x_hat)?;
            let x_hat = f32_slice(&x_hat)?;
            watch.look(&x_hat)?;
            let factors = factors.as_ref().map(|factors| &factors[runner.sequences.range(i)]);
            let x_hat = weighted(&x_hat, factors);
            sums.add(&x_hat).map_err(failed)?;
            if let Some(cross) = &mut cross {
                cross.add(&weighted(&f32_slice(&at(&plain, &self.x)?)?, factors), &x_hat).map_err(failed)?;
            }
        }
        let hessian = sums.finish().map_err(failed)?;
        let drift = cross.map(|cross| cross.finish().map(Arc::new)).transpose().map_err(failed)?;
        let seen = InputCoverage { dead: hessian.dead_inputs() as u64, ..watch.seen };
        let (dead_inputs, hessian) = (seen.dead, Arc::new(hessian));
        Ok((InputMoments { dead_inputs, hessian, drift, output_energy: None }, seen))
    }

    /// Factors of all tokens in second moments of `input`, by the unquantized stream after the layer; `None` where all count the same.
    fn factors(
        &mut self,
        runner: &Runner<'_>,
        reporter: &mut Reporter,
        input: LayerInput,
    ) -> Result<Option<Arc<Vec<f32>>>, RuntimeError> {
        if !runner.weighs(input) {
            return Ok(None);
        }
        if self.factors.is_none() {
            let stream = self.targets(runner, reporter)?;
            let hidden = runner.config.hidden_size;
            let of = |i: usize| {
                let range = runner.sequences.range(i);
                let stream = &stream[range.start * hidden..range.end * hidden];
                token_factors(runner.token_weights, stream, hidden).unwrap_or_else(|| vec![1.0; range.len()])
            };
            self.factors = Some(Arc::new((0..runner.sequences.n_sequences()).flat_map(of).collect()));
        }
        Ok(self.factors.clone())
    }

    /// Mean squares of what down reads, in the unquantized layer and the unquantized stream.
    pub(super) fn gated_power(
        &mut self,
        runner: &Runner<'_>,
        reporter: &mut Reporter,
    ) -> Result<Vec<f64>, RuntimeError> {
        let factors = self.factors(runner, reporter, LayerInput::FeedForwardOutput)?;
        let layer = runner.layer(self.layer)?;
        let mut power = vec![0f64; LayerInput::FeedForwardOutput.width(&runner.config)];
        for i in 0..runner.sequences.n_sequences() {
            reporter.at(Pass::Moments, self.layer, i)?;
            let mut add = |input: LayerInput, values: &candle_core::Tensor| {
                if input == LayerInput::FeedForwardOutput {
                    let factors = factors.as_ref().map(|factors| &factors[runner.sequences.range(i)]);
                    add_squares(&mut power, &weighted(&f32_slice(values)?, factors));
                }
                Ok(())
            };
            runner.pass(&layer, &runner.sequence(&self.x, i)?, Some(LayerInput::FeedForwardOutput), &mut add)?;
        }
        let n = runner.sequences.ids.len().max(1) as f64;
        power.iter_mut().for_each(|sum| *sum /= n);
        Ok(power)
    }

    /// Outputs of the unquantized layer in the unquantized stream, `[tokens, hidden]`.
    pub(super) fn targets(&self, runner: &Runner<'_>, reporter: &mut Reporter) -> Result<Vec<f32>, RuntimeError> {
        let layer = runner.layer(self.layer)?;
        let mut y = vec![0f32; self.x.len()];
        for i in 0..runner.sequences.n_sequences() {
            reporter.at(Pass::Targets, self.layer, i)?;
            if let Some(after) = runner.pass(&layer, &runner.sequence(&self.x, i)?, None, &mut |_, _| Ok(()))? {
                runner.set_sequence(&mut y, i, &after)?;
            }
        }
        check_output(self.layer, 0, &y, runner.config.hidden_size)?;
        Ok(y)
    }
}

fn check_len(runner: &Runner<'_>, tensor: &str, values: &[f32]) -> Result<(), RuntimeError> {
    match runner.n_values(tensor) {
        Some(n) if n == values.len() => Ok(()),
        Some(n) => Err(RuntimeError::Shape { name: tensor.to_owned(), expected: vec![n], found: vec![values.len()] }),
        None => Err(RuntimeError::MissingTensor { name: tensor.to_owned(), expected: Vec::new() }),
    }
}
