//! Layers of a checkpoint, one at a time, over all sequences.

use std::collections::HashMap;

use candle_core::Tensor;
use gosset_quantize::{ModelSource, TokenWeights};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::layer_input::{InputCoverage, LayerInput};
use super::text::{Sequences, hex};
use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::kv_cache::LayerCache;
use crate::linear::Linear;
use crate::models::{EMBEDDING, Layer, layer_name, text_name};
use crate::rope::{RopeTables, Ropes};
use crate::tensor::{f32_slice, tensor2};
use crate::weights::{SourceWeights, Weights};

/// Tensors that a run replaced, by name, row-major.
pub(super) type Replaced = HashMap<String, Vec<f32>>;

/// Gets each input of a layer, `[tokens, channels]`, row-major, as a pass comes to it.
pub(super) type See<'s> = dyn FnMut(LayerInput, &[f32], Count<'_>) -> Result<(), RuntimeError> + 's;

/// How the tokens of an input count.
#[derive(Debug, Clone, Copy)]
pub(super) enum Count<'f> {
    /// All the same.
    Equally,
    /// It comes again once the stream after the layer is known.
    Later,
    /// It was seen already; its rows have these factors, or all 1.
    By(Option<&'f [f32]>),
}

/// Everything that the hidden states of a calibration are computed with.
pub(super) struct Runner<'a> {
    pub(super) config: ModelConfig,
    pub(super) sequences: Sequences,
    pub(super) token_weights: TokenWeights,
    source: &'a dyn ModelSource,
    weights: SourceWeights<'a>,
    rope: RopeTables,
}

impl<'a> Runner<'a> {
    /// For a checkpoint whose shapes were checked and ids below its vocabulary.
    pub(super) fn new(
        source: &'a dyn ModelSource,
        config: ModelConfig,
        sequences: Sequences,
        token_weights: TokenWeights,
    ) -> Self {
        Self {
            rope: Ropes::of(&config).table(0..sequences.window),
            weights: SourceWeights::new(source),
            source,
            sequences,
            token_weights,
            config,
        }
    }

    /// Whether tokens count differently in second moments of `input`, by the stream after the layer.
    pub(super) fn weighs(&self, input: LayerInput) -> bool {
        !self.token_weights.is_equal() && input.feeds_stream()
    }

    /// Embeddings of all tokens, `[tokens, hidden]`; each row of the table that occurs is read once.
    pub(super) fn embed(&self) -> Result<Vec<f32>, RuntimeError> {
        let (ids, hidden) = (&self.sequences.ids, self.config.hidden_size);
        let index = self.weights.find(EMBEDDING)?;
        let mut by_id: Vec<usize> = (0..ids.len()).collect();
        by_id.sort_by_key(|&token| ids[token]);
        let mut x = vec![0f32; ids.len() * hidden];
        let mut row = vec![0f32; hidden];
        for tokens in by_id.chunk_by(|&a, &b| ids[a] == ids[b]) {
            let id = ids[tokens[0]] as usize;
            self.source.read_rows(index, id..id + 1, &mut row)?;
            row.iter_mut().for_each(|v| *v *= self.config.embedding_scale);
            tokens.iter().for_each(|token| x[token * hidden..][..hidden].copy_from_slice(&row));
        }
        Ok(x)
    }

    /// Embeddings of all tokens out of a table, `[vocab, hidden]`.
    pub(super) fn embed_from(&self, table: &[f32]) -> Vec<f32> {
        let hidden = self.config.hidden_size;
        let rows = self.sequences.ids.iter().flat_map(|&id| &table[id as usize * hidden..][..hidden]);
        rows.map(|v| v * self.config.embedding_scale).collect()
    }

    /// Layer `index` of the checkpoint.
    pub(super) fn layer(&self, index: usize) -> Result<Layer, RuntimeError> {
        Layer::load(&self.config, &self.weights, index)
    }

    /// Layer `index` with tensors that a run replaced.
    pub(super) fn replaced_layer(&self, index: usize, replaced: &Replaced) -> Result<Layer, RuntimeError> {
        Layer::load(&self.config, &Overlay { below: &self.weights, replaced }, index)
    }

    /// The checkpoint with tensors that a run replaced.
    pub(super) fn weights_with<'b>(&'b self, replaced: &'b Replaced) -> impl Weights + 'b {
        Overlay { below: &self.weights, replaced }
    }

    /// The sum of the squares of each column of matrix `name`.
    pub(super) fn column_powers(&self, name: &str) -> Result<Vec<f64>, RuntimeError> {
        /// Rows that are read at once.
        const ROWS: usize = 64;
        let index = self.weights.find(name)?;
        let (rows, cols) = self.source.tensors()[index].rows_cols();
        let (mut powers, mut block) = (vec![0f64; cols], vec![0f32; ROWS.min(rows) * cols]);
        for first in (0..rows).step_by(ROWS) {
            let block = &mut block[..ROWS.min(rows - first) * cols];
            self.source.read_rows(index, first..first + block.len() / cols, block)?;
            add_squares(&mut powers, block);
        }
        Ok(powers)
    }

    /// The name that the checkpoint has for tensor `name`.
    pub(super) fn stored_name(&self, name: &str) -> Result<&str, RuntimeError> {
        Ok(&self.source.tensors()[self.weights.find(name)?].name)
    }

    /// Elements of tensor `name`, if it is there.
    pub(super) fn n_values(&self, name: &str) -> Option<usize> {
        self.weights.shape(name).map(|shape| shape.iter().product())
    }

    /// Sequence `i` of hidden states.
    pub(super) fn sequence(&self, x: &[f32], i: usize) -> Result<Tensor, RuntimeError> {
        let (range, hidden) = (self.sequences.range(i), self.config.hidden_size);
        tensor2(x[range.start * hidden..range.end * hidden].to_vec(), range.len(), hidden)
    }

    /// Writes sequence `i` of hidden states.
    pub(super) fn set_sequence(&self, x: &mut [f32], i: usize, values: &Tensor) -> Result<(), RuntimeError> {
        let (range, hidden) = (self.sequences.range(i), self.config.hidden_size);
        x[range.start * hidden..range.end * hidden].copy_from_slice(&f32_slice(values)?);
        Ok(())
    }

    /// The residual stream after a layer, or after as much of it as is needed to show `last`; `see` gets each input on the way.
    ///
    /// `None` if it ended before the end of the layer.
    pub(super) fn pass(
        &self,
        layer: &Layer,
        x: &Tensor,
        last: Option<LayerInput>,
        see: &mut dyn FnMut(LayerInput, &Tensor) -> Result<(), RuntimeError>,
    ) -> Result<Option<Tensor>, RuntimeError> {
        let input = layer.attention_input(x)?;
        see(LayerInput::Attention, &input)?;
        if last == Some(LayerInput::Attention) {
            return Ok(None);
        }
        let [q, k, v] = layer.queries_keys_values(input)?;
        let attended = layer.attend(&q, &k, &v, &mut LayerCache::new(layer.shape()), &self.rope)?;
        see(LayerInput::AttentionOutput, &attended)?;
        if last == Some(LayerInput::AttentionOutput) {
            return Ok(None);
        }
        let x = layer.add_attention(x, attended)?;
        let input = layer.feed_forward_input(&x)?;
        see(LayerInput::FeedForward, &input)?;
        if last == Some(LayerInput::FeedForward) {
            return Ok(None);
        }
        let gated = layer.gated(input)?;
        see(LayerInput::FeedForwardOutput, &gated)?;
        if last == Some(LayerInput::FeedForwardOutput) {
            return Ok(None);
        }
        Ok(Some(layer.add_feed_forward(&x, gated)?))
    }

    /// SHA-256 over what tells two checkpoints of the same shapes apart: all norms and biases of the layers, three rows of each of
    /// their matrices, and of the embedding. Training changes every one of them; reading all weights would take as long as using them.
    pub(super) fn weights_sha256(&self) -> Result<String, RuntimeError> {
        let mut hash = Sha256::new();
        for (index, tensor) in self.source.tensors().iter().enumerate() {
            if !text_name(&tensor.name).starts_with("model.") {
                continue;
            }
            let (rows, cols) = tensor.rows_cols();
            if rows == 0 || cols == 0 {
                continue;
            }
            hash.update((tensor.name.len() as u64).to_le_bytes());
            hash.update(tensor.name.as_bytes());
            let mut row = vec![0f32; cols];
            for r in [0, rows / 2, rows - 1] {
                self.source.read_rows(index, r..r + 1, &mut row)?;
                row.iter().for_each(|v| hash.update(v.to_le_bytes()));
            }
        }
        Ok(hex(&hash.finalize()))
    }

    /// Bytes of one layer in f32.
    pub(super) fn layer_bytes(&self) -> u64 {
        let prefix = format!("{}.", layer_name(0));
        let layer = self.source.tensors().iter().filter(|t| text_name(&t.name).starts_with(&prefix));
        layer.map(gosset_quantize::TensorInfo::n_weights).sum::<u64>() * 4
    }

    /// Bytes of activations while one sequence goes through a layer, all of its intermediate results together.
    pub(super) fn pass_bytes(&self) -> u64 {
        let c = &self.config;
        // The stream thrice, two inputs, the results of o and down; queries and what was attended; keys and values twice; gate, up
        // and their product.
        let row = 7 * c.hidden_size + 2 * c.q_dim() + 4 * c.kv_dim() + 3 * c.intermediate_size;
        let scores = crate::attention::SCORE_ROWS * self.sequences.window * rayon::current_num_threads();
        // Rows of one input times their factors.
        let weighted = if self.token_weights.is_equal() { 0 } else { c.q_dim().max(c.intermediate_size) };
        ((row + weighted) * self.sequences.window + scores) as u64 * 4
    }
}

/// Some tensors of a model over those of another.
struct Overlay<'a> {
    below: &'a SourceWeights<'a>,
    replaced: &'a Replaced,
}

impl Weights for Overlay<'_> {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.below.shape(name)
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        self.below.names()
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, RuntimeError> {
        self.replaced.get(name).map_or_else(|| self.below.vector(name), |values| Ok(values.clone()))
    }

    fn linear(&self, name: &str, bias: Option<Vec<f32>>) -> Result<Linear, RuntimeError> {
        match (self.replaced.get(name), self.below.shape(name)) {
            (Some(values), Some(&[rows, cols])) => {
                Ok(Linear::Dense { weight: tensor2(values.clone(), rows, cols)?, bias })
            }
            _ => self.below.linear(name, bias),
        }
    }

    #[cfg(feature = "gpu")]
    fn stored(&self, name: &str) -> Result<crate::weights::Stored<'_>, RuntimeError> {
        self.below.stored(name)
    }

    fn equal(&self, a: &str, b: &str) -> Result<bool, RuntimeError> {
        self.below.equal(a, b)
    }
}

/// Keeps the largest absolute value at one input in one layer, and fails at the first that is not finite.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch {
    pub(super) seen: InputCoverage,
}

impl Watch {
    pub(super) fn new(layer: usize, input: LayerInput, config: &ModelConfig) -> Self {
        let channels = input.width(config) as u64;
        let layer = layer as u64;
        let seen =
            InputCoverage { layer, input, tokens: 0, channels, dead: 0, max_abs: 0.0, max_token: 0, max_channel: 0 };
        Self { seen }
    }

    /// Looks at the next tokens, `[n, channels]`.
    pub(super) fn look(&mut self, x: &[f32]) -> Result<(), RuntimeError> {
        let width = self.seen.channels as usize;
        // Rows are judged in parallel, and in order after that.
        let rows: Vec<f32> = x.par_chunks(width).with_min_len(64).map(max_abs).collect();
        for (i, (&max, row)) in rows.iter().zip(x.chunks_exact(width)).enumerate() {
            let token = self.seen.tokens + i as u64;
            if !max.is_finite() {
                let place = self.seen.input.place(self.seen.layer as usize);
                return Err(non_finite(format!("the input of {place}"), token, row));
            }
            if max > self.seen.max_abs {
                let channel = row.iter().position(|v| v.abs() == max).unwrap_or_default();
                (self.seen.max_abs, self.seen.max_token, self.seen.max_channel) = (max, token, channel as u64);
            }
        }
        self.seen.tokens += rows.len() as u64;
        Ok(())
    }
}

/// Adds the squares of each column of `x`, `[n, sums.len()]`.
pub(super) fn add_squares(sums: &mut [f64], x: &[f32]) {
    for row in x.chunks_exact(sums.len()) {
        sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += f64::from(*v) * f64::from(*v));
    }
}

/// Fails if hidden states after a layer are not finite.
pub(super) fn check_output(layer: usize, first_token: usize, x: &[f32], width: usize) -> Result<(), RuntimeError> {
    let rows: Vec<f32> = x.par_chunks(width).with_min_len(64).map(max_abs).collect();
    match rows.iter().position(|max| !max.is_finite()) {
        Some(row) => {
            let token = (first_token + row) as u64;
            Err(non_finite(format!("the output of {}", layer_name(layer)), token, &x[row * width..][..width]))
        }
        None => Ok(()),
    }
}

fn non_finite(place: String, token: u64, row: &[f32]) -> RuntimeError {
    let channel = row.iter().position(|v| !v.is_finite()).unwrap_or_default();
    RuntimeError::NonFiniteActivation { place, token, channel: channel as u64, value: row[channel] }
}

/// Largest absolute value of a row; NaN if one is NaN.
fn max_abs(row: &[f32]) -> f32 {
    let (mut max, mut nan) = ([0f32; 16], [0f32; 16]);
    let (chunks, rest) = row.as_chunks::<16>();
    for chunk in chunks {
        for ((max, nan), v) in max.iter_mut().zip(&mut nan).zip(chunk) {
            // `max` passes over NaN, the product keeps it.
            *max = max.max(v.abs());
            *nan += v * 0.0;
        }
    }
    let bad = nan.iter().chain(rest).any(|v| v.is_nan());
    let all = max.iter().copied().chain(rest.iter().map(|v| v.abs()));
    // An infinity makes the product NaN as well, and is the larger of both answers.
    let max = all.fold(0.0, f32::max);
    if bad && max.is_finite() { f32::NAN } else { max }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_of_a_row_is_found_whatever_is_in_it() {
        for len in [1, 15, 16, 33, 100] {
            for at in [0, len / 2, len - 1] {
                let mut row: Vec<f32> = (0..len).map(|i| i as f32 / 200.0).collect();
                row[at] = -3.0;
                assert_eq!(max_abs(&row), 3.0);
                row[at] = f32::NEG_INFINITY;
                assert_eq!(max_abs(&row), f32::INFINITY);
                row[at] = f32::NAN;
                assert!(max_abs(&row).is_nan());
            }
        }
    }
}
