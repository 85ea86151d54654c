//! Text generation: prompt in, tokens out one by one.

use std::ops::ControlFlow;

use crate::error::RuntimeError;
use crate::language_model::LanguageModel;
use crate::sampler::Sampling;
use crate::tensor::f32_slice;
use crate::text::TextStream;

/// Prompt tokens that go through the model at once; bounds the memory of activations.
const PREFILL_CHUNK: usize = 512;

/// How to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// Tokens to make at most.
    pub max_tokens: usize,
    /// How each is chosen.
    pub sampling: Sampling,
    /// Ids that end the text, beside those of the model ([`LanguageModel::stop_ids`]).
    pub stop_ids: Vec<u32>,
    /// Whether the model's own stop ids are passed over (and then are part of the text).
    pub ignore_model_stop_ids: bool,
}

impl GenerateOptions {
    /// The most likely tokens, at most `max_tokens`, until the model ends its text.
    pub fn greedy(max_tokens: usize) -> Self {
        Self { max_tokens, sampling: Sampling::GREEDY, stop_ids: Vec::new(), ignore_model_stop_ids: false }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// `max_tokens` were made.
    MaxTokens,
    /// This id was chosen; it is not part of the tokens or the text.
    StopId(u32),
    /// The context is full; announced in [`Generation::notes`] from the start.
    ContextFull,
    /// The receiver of the text asked to stop.
    Receiver,
}

/// What was generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The text that follows the prompt, equal to all streamed pieces together; empty for a model without tokenizer.
    pub text: String,
    /// The ids behind it, without the stop id.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Number of tokens of the prompt.
    pub n_prompt: usize,
    /// What a user should know about this run, one line each.
    pub notes: Vec<String>,
}

/// Continues `prompt` and hands text to `on_text` as soon as it is certain, never in the middle of a character.
///
/// Ids for which the tokenizer has no token are never chosen. If prompt and `max_tokens` together exceed the context, the
/// generation is cut there with a note. A model without tokenizer generates ids and no text.
///
/// Fails before any work if the prompt is empty, has an unknown id, leaves no room in the context
/// ([`RuntimeError::ContextOverflow`]), or an option is out of range; later with [`RuntimeError::NonFinite`].
pub fn generate(
    model: &LanguageModel,
    prompt: &[u32],
    options: &GenerateOptions,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation, RuntimeError> {
    let mut sampler = options.sampling.check()?;
    let limit = model.config().max_positions;
    if prompt.len() >= limit {
        return Err(RuntimeError::ContextOverflow {
            asked: prompt.len() + 1,
            limit,
            detail: format!("{} of the prompt and one to generate", prompt.len()),
        });
    }
    let mut notes = Vec::new();
    // The last token made is never fed back, so it needs no place.
    let room = limit - prompt.len() + 1;
    let max_tokens = options.max_tokens.min(room);
    if max_tokens < options.max_tokens {
        notes.push(format!(
            "the context of {limit} tokens leaves room for {max_tokens} after the prompt of {}, not {}",
            prompt.len(),
            options.max_tokens
        ));
    }
    let tokenizer = model.tokenizer();
    let n_rows = model.vocab_size();
    let has_token: Vec<bool> =
        (0..n_rows).map(|id| tokenizer.is_none_or(|t| u32::try_from(id).is_ok_and(|id| t.contains(id)))).collect();
    let n_unknown = has_token.iter().filter(|has| !**has).count();
    if n_unknown > 0 {
        notes.push(format!("{n_unknown} of {n_rows} embedding rows have no token and are never sampled"));
    }
    let stops =
        |id: u32| options.stop_ids.contains(&id) || (!options.ignore_model_stop_ids && model.stop_ids().contains(&id));

    let mut seen = prompt.to_vec();
    let mut cache = model.new_cache();
    let mut stream = tokenizer.map(TextStream::continuing);
    let mut text = String::new();
    let mut tokens = Vec::new();
    let mut stop = if max_tokens < options.max_tokens { StopReason::ContextFull } else { StopReason::MaxTokens };
    while tokens.len() < max_tokens {
        let logits = next_logits(model, &seen, &mut cache)?;
        let Some(id) = sampler.pick(&logits, |id| has_token[id as usize]) else {
            return Err(RuntimeError::Tokenizer("none of the model's ids has a token".to_owned()));
        };
        if stops(id) {
            stop = StopReason::StopId(id);
            break;
        }
        tokens.push(id);
        seen.push(id);
        if let Some(piece) = stream.as_mut().and_then(|s| s.push(id)) {
            text.push_str(&piece);
            if on_text(&piece).is_break() {
                stop = StopReason::Receiver;
                break;
            }
        }
    }
    if let Some(rest) = stream.map(TextStream::finish).filter(|rest| !rest.is_empty()) {
        text.push_str(&rest);
        if stop != StopReason::Receiver && on_text(&rest).is_break() {
            stop = StopReason::Receiver;
        }
    }
    Ok(Generation { text, tokens, stop, n_prompt: prompt.len(), notes })
}

/// Feeds what the cache lacks of `tokens` and returns the logits after the last one.
fn next_logits(model: &LanguageModel, tokens: &[u32], cache: &mut crate::KvCache) -> Result<Vec<f32>, RuntimeError> {
    let mut last = None;
    for chunk in tokens[cache.len()..].chunks(PREFILL_CHUNK) {
        last = Some((model.forward(chunk, cache)?, chunk.len()));
    }
    let Some((hidden, n)) = last else {
        // Only an empty prompt gets here; the model has the words for it.
        return model.forward(&[], cache).map(|_| Vec::new());
    };
    let logits = f32_slice(&model.logits(&hidden.narrow(0, n - 1, 1)?)?)?.to_vec();
    if logits.iter().any(|v| !v.is_finite()) {
        return Err(model.diagnose(tokens, tokens.len() - 1));
    }
    Ok(logits)
}
