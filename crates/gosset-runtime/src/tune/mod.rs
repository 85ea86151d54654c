//! Fine-tuning of one quantized block by backpropagation: codes stay, scales, affine maps and norms move.
//!
//! The loss is the mean squared error of the block's output, on what the quantized blocks before it give, to the output of the
//! unquantized block in the unquantized model. One sequence is one micro-batch, whole: attention sees what it saw when the targets
//! were made. Some sequences are held out; what counts is their loss with all parameters rounded as they are stored, and the state with
//! the least is kept, which may be the first. Everything is f32 on the CPU. Nothing is random, and every sum has an
//! order of its own: the same bits for any number of threads.

mod block;
mod linear;
mod ops;
mod parameter;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use gosset_quantize::{TuneReport, TunedBlock};
use gosset_unisvq::UniSvqMatrix;

use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::weights::Weights;
use block::TuneBlock;
use parameter::Kind;

/// How a block is tuned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TuneOptions {
    /// Passes over the training sequences at most.
    pub epochs: u32,
    /// Epochs without a lower loss after which it ends.
    pub patience: u32,
    /// Sequences of a step.
    pub batch: usize,
    /// First learning rate of S_U and S_V, relative to their root mean square.
    pub scale_rate: f64,
    /// First learning rate of A, B and norms, relative to theirs.
    pub map_rate: f64,
    /// One of this many sequences is held out, at least one.
    pub held_out: usize,
}

impl Default for TuneOptions {
    /// Three epochs, one sequence a step, rates 1e-2 and 2e-3, an eighth held out.
    ///
    /// The rates are for the few steps that 32k tokens give, 42 of 2048 tokens: on the first two blocks of SmolLM2 at 2 bits they take
    /// 20 % and 6 % of the loss, those of the paper's thousands of steps (5e-4 and 5e-5) 11 % and 2 %.
    fn default() -> Self {
        Self { epochs: 3, patience: 3, batch: 1, scale_rate: 1e-2, map_rate: 2e-3, held_out: 8 }
    }
}

/// Share of the learning rate that is left at the end.
const LAST_RATE: f64 = 0.05;

/// One sequence of a block: inputs and targets, `[n, hidden]` each.
struct Sequence {
    x: Tensor,
    y: Tensor,
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
    let (training, held_out) = split(config.hidden_size, data, options.held_out)?;
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
fn split(hidden: usize, data: TuneData<'_>, share: usize) -> Result<(Vec<Sequence>, Vec<Sequence>), RuntimeError> {
    let len = data.window * hidden;
    let (mut training, mut held_out) = (Vec::new(), Vec::new());
    for (i, (x, y)) in data.inputs.chunks(len).zip(data.targets.chunks(len)).enumerate() {
        let tensor = |v: &[f32]| Tensor::from_slice(v, (v.len() / hidden, hidden), &Device::Cpu);
        let sequence = Sequence { x: tensor(x)?, y: tensor(y)? };
        if i % share.max(2) == 0 { held_out.push(sequence) } else { training.push(sequence) }
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
    let n_steps = training.len().div_ceil(options.batch.max(1)) as u32 * options.epochs;
    let (mut best, mut loss_after) = (state(block)?, loss_before);
    let (mut since, mut step, mut epochs) = (0, 0, 0);
    while epochs < options.epochs && since < options.patience {
        for (b, batch) in training.chunks(options.batch.max(1)).enumerate() {
            let n_tokens: usize = batch.iter().map(|s| s.x.dims()[0]).sum();
            let (mut grads, mut shares) = (Vec::new(), Vec::new());
            for (i, sequence) in batch.iter().enumerate() {
                at(b * options.batch.max(1) + i)?;
                let loss = ((block.forward(&sequence.x)? - &sequence.y)?.sqr()?.mean_all()? * unit)?;
                grads.push(loss.backward()?);
                shares.push(sequence.x.dims()[0] as f64 / n_tokens as f64);
            }
            let rest = decay(step, n_steps);
            step += 1;
            for parameter in block.parameters_mut() {
                let rate = match parameter.kind {
                    Kind::InputScales | Kind::OutputScales => options.scale_rate,
                    Kind::Map | Kind::Offset | Kind::Norm => options.map_rate,
                };
                parameter.step(&grads, &shares, rate * rest, step)?;
            }
        }
        epochs += 1;
        let exact = block.parameters().into_iter().map(|p| p.values()).collect::<Result<Vec<_>, _>>()?;
        let stored = state(block)?;
        set(block, &stored)?;
        let found = loss(block, held_out)?;
        set(block, &exact)?;
        if found < loss_after {
            (best, loss_after, since) = (stored, found, 0);
        } else if found.is_finite() {
            since += 1;
        } else {
            // A state that is not finite does not come back.
            break;
        }
    }
    set(block, &best)?;
    Ok(TuneReport { loss_before, loss_after, epochs })
}

/// Share of the learning rate at step `step` of `n`, from 0: half a cosine from 1 to [`LAST_RATE`].
fn decay(step: u32, n: u32) -> f64 {
    let at = f64::from(step) / f64::from(n.max(1));
    LAST_RATE + (1.0 - LAST_RATE) * (1.0 + (std::f64::consts::PI * at).cos()) / 2.0
}

/// Mean squared error over all tokens.
fn loss(block: &TuneBlock, sequences: &[Sequence]) -> Result<f64, RuntimeError> {
    let (mut sum, mut n) = (0f64, 0usize);
    for sequence in sequences {
        let error = (block.forward(&sequence.x)? - &sequence.y)?.flatten_all()?.to_vec1::<f32>()?;
        sum += error.iter().map(|e| f64::from(*e).powi(2)).sum::<f64>();
        n += error.len();
    }
    Ok(sum / n.max(1) as f64)
}
