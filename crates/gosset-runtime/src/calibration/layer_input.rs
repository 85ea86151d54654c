//! The four inputs of a layer that its seven linears read, and what was seen at them.

use serde::{Deserialize, Serialize};

use crate::config::ModelConfig;
use crate::models::{layer_name, of_layers};

/// What linears of one layer read. Linears with the same input have the same second moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerInput {
    /// The normalized residual stream, read by q, k and v.
    Attention,
    /// What was attended, read by o.
    AttentionOutput,
    /// The normalized residual stream after attention, read by gate and up.
    FeedForward,
    /// The gate's value times up, read by down.
    FeedForwardOutput,
}

impl LayerInput {
    /// All four, as the data flow.
    pub const ALL: [LayerInput; 4] =
        [LayerInput::Attention, LayerInput::AttentionOutput, LayerInput::FeedForward, LayerInput::FeedForwardOutput];

    /// The linears that read it, as tensors of a layer are named, in the order of the data flow.
    #[must_use]
    pub const fn linears(self) -> &'static [&'static str] {
        match self {
            LayerInput::Attention => &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            LayerInput::AttentionOutput => &["self_attn.o_proj"],
            LayerInput::FeedForward => &["mlp.gate_proj", "mlp.up_proj"],
            LayerInput::FeedForwardOutput => &["mlp.down_proj"],
        }
    }

    /// Word for it in file names and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            LayerInput::Attention => "attention",
            LayerInput::AttentionOutput => "attention-output",
            LayerInput::FeedForward => "feed-forward",
            LayerInput::FeedForwardOutput => "feed-forward-output",
        }
    }

    /// Whether what reads it adds to the residual stream, whose energy then says how much an error counts.
    pub(super) const fn feeds_stream(self) -> bool {
        matches!(self, LayerInput::AttentionOutput | LayerInput::FeedForwardOutput)
    }

    /// Number of its channels.
    pub(super) fn width(self, config: &ModelConfig) -> usize {
        match self {
            LayerInput::Attention | LayerInput::FeedForward => config.hidden_size,
            LayerInput::AttentionOutput => config.q_dim(),
            LayerInput::FeedForwardOutput => config.intermediate_size,
        }
    }

    /// Where an error or a warning about it is: the first linear that reads it.
    pub(super) fn place(self, layer: usize) -> String {
        format!("{}.{}", layer_name(layer), self.linears()[0])
    }

    /// Position of it and of the linear in the data flow, for a part of a tensor name such as `mlp.up_proj`.
    fn of_part(part: &str) -> Option<(LayerInput, usize)> {
        let all = LayerInput::ALL.iter().flat_map(|input| input.linears().iter().map(move |linear| (*input, *linear)));
        all.enumerate().find(|(_, (_, linear))| *linear == part).map(|(i, (input, _))| (input, i))
    }
}

/// A linear of a layer, by the name of its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinearPlace {
    pub(super) layer: usize,
    /// Its number within the layer, as the data flow.
    pub(super) rank: usize,
    pub(super) input: LayerInput,
}

impl LinearPlace {
    /// The linear whose weight is `tensor`, if that is one of a layer below `n_layers`.
    pub(super) fn of(tensor: &str, n_layers: usize) -> Option<Self> {
        let (layer, part) = layer_part(tensor)?;
        let (input, rank) = LayerInput::of_part(part.strip_suffix(".weight")?)?;
        (layer < n_layers).then_some(Self { layer, rank, input })
    }
}

/// Layer and rest of a tensor name such as `model.layers.3.mlp.up_proj.weight`.
pub(super) fn layer_part(tensor: &str) -> Option<(usize, &str)> {
    let (layer, part) = of_layers(tensor)?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

/// What calibration saw at one input of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputCoverage {
    /// The layer, from 0.
    pub layer: u64,
    /// Which of its inputs.
    pub input: LayerInput,
    /// Tokens seen.
    pub tokens: u64,
    /// Channels there are.
    pub channels: u64,
    /// Channels that were zero in every token.
    pub dead: u64,
    /// Largest absolute value.
    pub max_abs: f32,
    /// Calibration token at which it was, counted over all sequences.
    pub max_token: u64,
    /// Its channel.
    pub max_channel: u64,
}

/// Largest finite value of F16. Kernels that carry activations in F16 cannot hold what is beyond.
const F16_MAX: f32 = 65504.0;

impl InputCoverage {
    /// One sentence about values that are finite but beyond the range of F16, with the place of the largest.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        (self.max_abs > F16_MAX).then(|| {
            format!(
                "{}: input of {:e} at token {}, channel {}: beyond {F16_MAX}, the range of F16; calibration holds it, a runtime in F16 does not",
                self.input.place(self.layer as usize),
                self.max_abs,
                self.max_token,
                self.max_channel
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linears_are_found_by_the_names_of_their_weights() {
        let of = |name| LinearPlace::of(name, 12);
        let up = of("model.layers.11.mlp.up_proj.weight").unwrap();
        assert_eq!((up.layer, up.rank, up.input), (11, 5, LayerInput::FeedForward));
        for name in [
            "model.layers.12.mlp.up_proj.weight",
            "model.layers.3.mlp.up_proj.bias",
            "model.layers.3.input_layernorm.weight",
            "model.layers.x.mlp.up_proj.weight",
            "model.norm.weight",
            "lm_head.weight",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
