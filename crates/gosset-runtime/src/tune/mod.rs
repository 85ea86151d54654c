//! Fine-tuning of one quantized block by backpropagation: codes stay, scales, affine maps and norms move.
//!
//! The loss is the squared error of the block's output, on what the quantized blocks before it give, to the output of the unquantized
//! block in the unquantized model: of each token relative to the energy of its target, unless [`TokenWeights::Equal`] is asked for. A
//! step is on some tokens of a sequence, which attend to all before them, as they did when the targets were made. Some sequences are held
//! out; what counts is their loss with all parameters rounded as they are stored, and the state with the least is kept, which may be the
//! first. Everything is f32 on the CPU. Nothing is random, and every sum has an order of its own: the same bits for any number of
//! threads.

mod block;
mod linear;
mod ops;
mod parameter;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use gosset_quantize::{TuneReport, TunedBlock};
use gosset_unisvq::UniSvqMatrix;

use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::tensor::f32_slice;
use crate::weights::Weights;
use block::TuneBlock;
use ops::{Target, weighted_error};
use parameter::{Kind, Parameter};

/// What the squared errors of tokens count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenWeights {
    /// The same: the loss is the mean squared error of all values.
    Equal,
    /// Each by one over the mean square of its target, as the next norm will see it. The first token of a text can have thousands of
    /// times the energy of any other: the mean squared error is then the error of that token alone.
    Relative,
}

/// How a block is tuned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TuneOptions {
    /// Passes over the training sequences at most.
    pub epochs: u32,
    /// Epochs without a lower loss after which it ends; each of them starts again from the best state with a quarter of the rates.
    pub patience: u32,
    /// Tokens of a step at most. A longer sequence gives several steps, each on the output of some of its tokens, which attend to all
    /// tokens before them.
    pub step_tokens: usize,
    /// First learning rate of S_U and S_V, relative to their root mean square.
    pub scale_rate: f64,
    /// First learning rate of A, B and norms, relative to theirs.
    pub map_rate: f64,
    /// One of this many sequences is held out, at least one.
    pub held_out: usize,
    /// What tokens count.
    pub weights: TokenWeights,
}

impl Default for TuneOptions {
    /// Three epochs, 512 tokens a step, rates 1e-2 and 2e-3, an eighth held out.
    ///
    /// The rates are for the few steps that 32k tokens give: on the first two blocks of SmolLM2 at 2 bits they take 20 % and 6 % of the
    /// loss in 42 steps of 2048 tokens, those of the paper's thousands of steps (5e-4 and 5e-5) 11 % and 2 %. On the first two blocks of
    /// the embedded model, 16k tokens, steps of 2048 tokens take 5.0 % and 6.9 % of the loss, of 512 tokens 5.9 % and 8.0 % and of 256
    /// tokens 6.0 % and 8.2 %; steps of 2048 tokens need four times the epochs to take as much.
    fn default() -> Self {
        Self {
            epochs: 3,
            patience: 3,
            step_tokens: 512,
            scale_rate: 1e-2,
            map_rate: 2e-3,
            held_out: 8,
            weights: TokenWeights::Relative,
        }
    }
}

/// Share of the learning rate that is left at the end.
const LAST_RATE: f64 = 0.05;

/// One sequence of a block: inputs, `[n, hidden]`, and what should come of them.
struct Sequence {
    x: Tensor,
    target: Arc<Target>,
}

/// Share of the typical energy of a token below which a token counts no more.
const LEAST_ENERGY: f64 = 0.01;

impl Sequence {
    /// `typical` is what [`typical_energy`] gives for all targets.
    fn new(x: &[f32], y: &[f32], hidden: usize, weights: TokenWeights, typical: f64) -> Result<Self, RuntimeError> {
        let weight = |y: &[f32]| match weights {
            TokenWeights::Equal => 1.0,
            TokenWeights::Relative if typical > 0.0 => (1.0 / energy(y).max(LEAST_ENERGY * typical)) as f32,
            TokenWeights::Relative => 1.0,
        };
        let target = Target { values: y.to_vec(), weights: y.chunks(hidden).map(weight).collect() };
        Ok(Self { x: Tensor::from_slice(x, (x.len() / hidden, hidden), &Device::Cpu)?, target: Arc::new(target) })
    }

    fn n_tokens(&self) -> usize {
        self.target.weights.len()
    }

    fn n_values(&self) -> usize {
        self.target.values.len()
    }
}

/// Mean square of a token.
fn energy(y: &[f32]) -> f64 {
    y.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / y.len().max(1) as f64
}

/// The median of the mean squares of all tokens.
fn typical_energy(targets: &[f32], hidden: usize) -> f64 {
    let mut all: Vec<f64> = targets.chunks(hidden).map(energy).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// Inputs and targets of a block, `[tokens, hidden]`, in sequences of `window` tokens after each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TuneData<'a> {
    pub(crate) inputs: &'a [f32],
    pub(crate) targets: &'a [f32],
    pub(crate) window: usize,
}

/// Tunes block `layer`. `matrices`, by the names of their tensors, become what was kept; `None` if that is what they were.
///
/// A text of fewer than two sequences leaves nothing to hold out: then nothing is tuned. `at` is told of each sequence; its error ends
/// the tuning with the matrices as they were.
///
/// # Errors
/// Those of the weights, of the matrices, of `at`.
pub(crate) fn tune_block(
    config: &ModelConfig,
    weights: &dyn Weights,
    layer: usize,
    matrices: &mut [(&str, &mut UniSvqMatrix)],
    data: TuneData<'_>,
    options: &TuneOptions,
    at: &mut dyn FnMut(usize) -> Result<(), RuntimeError>,
) -> Result<Option<TunedBlock>, RuntimeError> {
    if matrices.is_empty() {
        return Ok(None);
    }
    let by_name: HashMap<&str, &UniSvqMatrix> = matrices.iter().map(|(name, matrix)| (*name, &**matrix)).collect();
    let mut block = TuneBlock::load(config, weights, layer, &by_name)?;
    let (training, held_out) = split(config.hidden_size, data, options)?;
    if training.is_empty() || held_out.is_empty() {
        return Ok(None);
    }
    let report = train(&mut block, &training, &held_out, options, at)?;
    if report.loss_after.is_nan() || report.loss_after >= report.loss_before {
        return Ok(None);
    }
    for (name, matrix) in matrices {
        block.store(name, matrix)?;
    }
    Ok(Some(TunedBlock { norms: block.norms()?, report }))
}

/// Training sequences and held-out ones: one of every `share`, from the first on, so that a short last sequence is not the only one.
fn split(
    hidden: usize,
    data: TuneData<'_>,
    options: &TuneOptions,
) -> Result<(Vec<Sequence>, Vec<Sequence>), RuntimeError> {
    let len = data.window * hidden;
    let typical = typical_energy(data.targets, hidden);
    let (mut training, mut held_out) = (Vec::new(), Vec::new());
    for (i, (x, y)) in data.inputs.chunks(len).zip(data.targets.chunks(len)).enumerate() {
        let sequence = Sequence::new(x, y, hidden, options.weights, typical)?;
        if i % options.held_out.max(2) == 0 { held_out.push(sequence) } else { training.push(sequence) }
    }
    Ok((training, held_out))
}

/// Trains; afterwards the parameters are those of the state with the least held-out loss, as they are stored.
fn train(
    block: &mut TuneBlock,
    training: &[Sequence],
    held_out: &[Sequence],
    options: &TuneOptions,
    at: &mut dyn FnMut(usize) -> Result<(), RuntimeError>,
) -> Result<TuneReport, RuntimeError> {
    let state = |block: &TuneBlock| block.parameters().into_iter().map(|p| p.stored()).collect::<Result<Vec<_>, _>>();
    let set = |block: &TuneBlock, state: &[Vec<f32>]| {
        block.parameters().into_iter().zip(state).try_for_each(|(p, values)| p.set(values.clone()))
    };
    let loss_before = loss(block, held_out)?;
    // Gradients of a loss of about 1 stay far from the constant that keeps steps finite.
    let unit = if loss_before > 0.0 { 1.0 / loss_before } else { 1.0 };
    let steps = steps(training, options.step_tokens);
    let n_steps = steps.len() as u32 * options.epochs;
    let (mut best, mut loss_after) = (state(block)?, loss_before);
    let (mut since, mut step, mut epochs, mut rates) = (0, 0, 0, 1.0);
    while epochs < options.epochs && since < options.patience {
        for (i, tokens) in &steps {
            at(*i)?;
            let sequence = &training[*i];
            let factor = unit * sequence.n_tokens() as f64 / (sequence.n_values() * tokens.len()) as f64;
            let x = sequence.x.narrow(0, 0, tokens.end)?;
            let loss = weighted_error(&block.forward(&x, tokens.start)?, &sequence.target, tokens.start, factor)?;
            let grads = loss.backward()?;
            let rest = decay(step, n_steps);
            step += 1;
            for parameter in block.parameters_mut() {
                let rate = match parameter.kind {
                    Kind::InputScales | Kind::OutputScales => options.scale_rate,
                    Kind::Map | Kind::Offset | Kind::Norm => options.map_rate,
                };
                parameter.step(&grads, rate * rates * rest)?;
            }
        }
        epochs += 1;
        let exact = block.parameters().into_iter().map(|p| p.values()).collect::<Result<Vec<_>, _>>()?;
        let stored = state(block)?;
        set(block, &stored)?;
        let found = loss(block, held_out)?;
        if found < loss_after {
            set(block, &exact)?;
            (best, loss_after, since) = (stored, found, 0);
        } else {
            since += 1;
            rates /= 4.0;
            set(block, &best)?;
            block.parameters_mut().into_iter().for_each(Parameter::forget);
        }
    }
    set(block, &best)?;
    Ok(TuneReport { loss_before, loss_after, epochs })
}

/// The steps of an epoch: a sequence and those of its tokens whose outputs count. Pieces of one sequence are as far from each other as
/// can be.
fn steps(training: &[Sequence], step_tokens: usize) -> Vec<(usize, Range<usize>)> {
    let n_pieces = |sequence: &Sequence| sequence.n_tokens().div_ceil(step_tokens.max(1));
    let most = training.iter().map(n_pieces).max().unwrap_or_default();
    let piece = |piece: usize, (i, sequence): (usize, &Sequence)| {
        let (n, n_pieces) = (sequence.n_tokens(), n_pieces(sequence));
        (piece < n_pieces).then(|| (i, n * piece / n_pieces..n * (piece + 1) / n_pieces))
    };
    (0..most).flat_map(|p| training.iter().enumerate().filter_map(move |sequence| piece(p, sequence))).collect()
}

/// Share of the learning rate at step `step` of `n`, from 0: half a cosine from 1 to [`LAST_RATE`].
fn decay(step: u32, n: u32) -> f64 {
    let at = f64::from(step) / f64::from(n.max(1));
    LAST_RATE + (1.0 - LAST_RATE) * (1.0 + (std::f64::consts::PI * at).cos()) / 2.0
}

/// Mean of the weighted squared errors of all values.
fn loss(block: &TuneBlock, sequences: &[Sequence]) -> Result<f64, RuntimeError> {
    let (mut sum, mut n) = (0f64, 0usize);
    for sequence in sequences {
        sum += sequence.target.error(&f32_slice(&block.forward(&sequence.x, 0)?)?, 0);
        n += sequence.n_values();
    }
    Ok(sum / n.max(1) as f64)
}
