//! What a quantizer may know about the activations of a model: one trait, so that any runtime can be the one that computes them.

use std::sync::Arc;

use gosset_unisvq::{Hessian, UniSvqMatrix};
use serde::{Deserialize, Serialize};

use crate::error::QuantizeError;
use crate::source::TensorInfo;

/// What feeds one linear layer.
#[derive(Debug, Clone)]
pub struct InputMoments {
    /// Second moments of the inputs that the layer will see: of the unquantized model, or of the quantized prefix.
    pub hessian: Arc<Hessian>,
    /// The mean of x x̂ᵀ, row-major `n` x `n`: unquantized inputs by inputs from the quantized prefix. `None` where the two are the same.
    pub drift: Option<Arc<Vec<f64>>>,
    /// Inputs that were zero in every token.
    pub dead_inputs: u64,
    /// What each output of the layer brings about downstream, in units of their own; errors of outputs that bring more are kept smaller.
    /// `None` where outputs count the same.
    pub output_energy: Option<Arc<Vec<f64>>>,
}

/// Activations of a model, block by block.
///
/// A run asks for tensors in the order of [`order`](Activations::order), and, if the source asks for that or the run tunes, tells each
/// that is finished to [`replaced`](Activations::replaced) before it asks for the next. A run that is taken up again does not ask for
/// the moments of tensors that were finished before; it tells what became of them and goes on from there.
pub trait Activations: Send {
    /// The indices of `tensors` in the order in which they are to be quantized: by layer, and within it as the data flow. Every index
    /// occurs once; tensors that nothing is known about come where they stand.
    fn order(&self, tensors: &[TensorInfo]) -> Vec<usize>;

    /// What feeds the linear layer whose weight is `tensor`; `None` if it is no linear of a layer that calibration sees.
    ///
    /// # Errors
    /// [`QuantizeError`] of the source, and values that are not finite, with the layer that made them.
    fn moments(&mut self, tensor: &str) -> Result<Option<InputMoments>, QuantizeError>;

    /// What each output of the linear layer whose weight is `tensor` brings about downstream, in units of their own; `None` where
    /// outputs count the same. Asked for after [`moments`](Activations::moments) of the same tensor, by methods that make use of it.
    ///
    /// # Errors
    /// Those of [`Activations::moments`].
    fn output_energy(&mut self, tensor: &str) -> Result<Option<Arc<Vec<f64>>>, QuantizeError> {
        let _ = tensor;
        Ok(None)
    }

    /// Takes note that `tensor` now is `values`, row-major.
    ///
    /// Called for every tensor that was quantized if [`is_sequential`](Activations::is_sequential) or if the run tunes blocks. After
    /// [`tune`](Activations::tune) it is called again for what that changed, norms included.
    ///
    /// # Errors
    /// Those of [`Activations::moments`].
    fn replaced(&mut self, tensor: &str, values: &[f32]) -> Result<(), QuantizeError> {
        let _ = (tensor, values);
        Ok(())
    }

    /// Tunes the quantized matrices of one block, codes aside, to the outputs of the unquantized block: called in runs that tune, after the
    /// last matrix of a block, with all of its matrices that were quantized from moments. `None` if nothing was gained; the matrices are
    /// as they were then.
    ///
    /// # Errors
    /// Those of [`Activations::moments`].
    fn tune(&mut self, block: &mut [(&str, &mut UniSvqMatrix)]) -> Result<Option<TunedBlock>, QuantizeError> {
        let _ = block;
        Ok(None)
    }

    /// Whether inputs come from the quantized prefix, so that [`replaced`](Activations::replaced) needs values.
    fn is_sequential(&self) -> bool {
        false
    }

    /// What the recipe says about the calibration.
    fn record(&self) -> CalibrationRecord;
}

/// What tuning a block changed besides its matrices.
#[derive(Debug, Clone, PartialEq)]
pub struct TunedBlock {
    /// Norms by tensor name, with their new values.
    pub norms: Vec<(String, Vec<f32>)>,
    /// What it gained.
    pub report: TuneReport,
}

/// What tuning a block gained. Losses are those of the outputs of the block on held-out
/// sequences: squared errors, of each token relative to the mean square of its target unless the tuner was asked for something else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TuneReport {
    /// Loss of the quantized block before.
    pub loss_before: f64,
    /// Loss of what was kept.
    pub loss_after: f64,
    /// Epochs that were done.
    pub epochs: u32,
}

/// What a recipe records of a calibration: enough to do it again, and to see that the text is another than that of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationRecord {
    /// Name of the text: `built-in`, or the file or folder name without its path.
    pub text: String,
    /// SHA-256 of the text, lowercase hex.
    pub text_sha256: String,
    /// SHA-256 of the token ids that were used, little-endian u32.
    pub tokens_sha256: String,
    /// Tokens that were used.
    pub tokens: u64,
    /// Tokens of a sequence.
    pub window: u64,
    /// Seed that chose the sequences.
    pub seed: u64,
    /// Whether inputs come from the quantized prefix.
    pub sequential: bool,
    /// How much each token counts.
    #[serde(default, skip_serializing_if = "TokenWeights::is_equal")]
    pub token_weights: TokenWeights,
}

/// How much the tokens of a calibration count in second moments of what `o` and `down` read.
///
/// Some models have a few tokens with thousands of times the energy of all others in the residual stream. An error there is divided by
/// the norm of the stream before anything reads it, yet with equal weights second moments are mostly those of such tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TokenWeights {
    /// All the same.
    #[default]
    Equal,
    /// A token with more than [`ENERGY_CAP`](Self::ENERGY_CAP) times the median energy of its sequence in the stream after the layer
    /// counts by that limit over its energy.
    Capped,
}

impl TokenWeights {
    /// Medians of energy up to which tokens count in full where weights are capped.
    pub const ENERGY_CAP: f64 = 16.0;
    /// The names, in the order of help texts.
    pub const NAMES: [&str; 2] = ["equal", "capped"];

    /// The weights of that name; `None` if there are none.
    ///
    /// ```
    /// use gosset_quantize::TokenWeights;
    /// assert_eq!(TokenWeights::named("capped"), Some(TokenWeights::Capped));
    /// assert_eq!(TokenWeights::named("none"), None);
    /// ```
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Equal, Self::Capped].into_iter().find(|weights| weights.name() == name)
    }

    /// Their name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Equal => Self::NAMES[0],
            Self::Capped => Self::NAMES[1],
        }
    }

    /// Whether all tokens count the same.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        *self == Self::Equal
    }
}
