//! Text generation: prompt in, tokens out one by one.

use std::ops::ControlFlow;

use crate::KvCache;
use crate::error::RuntimeError;
use crate::language_model::LanguageModel;
use crate::sampler::Sampling;
use crate::text::TextStream;

/// Prompt tokens that go through the model at once; bounds the memory of activations.
///
/// Fewer would decode compressed weights more often for the same prompt.
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

/// Who gets a text while it is generated.
pub trait Receiver {
    /// Takes the next piece, which never ends in the middle of a character; says whether to go on.
    fn text(&mut self, piece: &str) -> ControlFlow<()>;

    /// Whether to stop. Asked within every layer of every pass, so also while a prompt is read and while no text arrives.
    fn cancelled(&mut self) -> bool {
        false
    }
}

/// A receiver that stops at pieces only.
struct Pieces<'a>(&'a mut dyn FnMut(&str) -> ControlFlow<()>);

impl Receiver for Pieces<'_> {
    fn text(&mut self, piece: &str) -> ControlFlow<()> {
        (self.0)(piece)
    }
}

/// What was generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The text that follows the prompt, equal to all streamed pieces together; empty for a model without tokenizer.
    ///
    /// A character that was unfinished when the receiver stopped is left out.
    pub text: String,
    /// The ids behind it, without the stop id.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Number of tokens of the prompt.
    pub n_prompt: usize,
    /// Number of those that the cache already held, which did not go through the model again.
    pub n_reused: usize,
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
    generate_with_cache(model, &mut model.new_cache(), prompt, options, &mut Pieces(on_text))
}

/// As [`generate`], from a cache of earlier texts: their common start with `prompt` does not go through the model again.
///
/// Afterwards the cache holds the prompt and all tokens made but the last, or less if the receiver stopped; a next prompt that
/// repeats them costs only what it adds. After an error it holds no more than the common start. `cache` was made by `model`.
///
/// ```no_run
/// # use std::ops::ControlFlow;
/// # use gosset_runtime::{GenerateOptions, LanguageModel, Receiver, RuntimeError, generate_with_cache};
/// struct Printer;
///
/// impl Receiver for Printer {
///     fn text(&mut self, piece: &str) -> ControlFlow<()> {
///         print!("{piece}");
///         ControlFlow::Continue(())
///     }
/// }
///
/// # fn two_turns(model: &LanguageModel, question: &[u32], next: &[u32]) -> Result<(), RuntimeError> {
/// let mut cache = model.new_cache();
/// let options = GenerateOptions::greedy(100);
/// let answer = generate_with_cache(model, &mut cache, question, &options, &mut Printer)?;
/// let history = [question, &answer.tokens, next].concat();
/// let second = generate_with_cache(model, &mut cache, &history, &options, &mut Printer)?;
/// assert_eq!(second.n_reused, question.len() + answer.tokens.len() - 1);
/// # Ok(())
/// # }
/// ```
pub fn generate_with_cache(
    model: &LanguageModel,
    cache: &mut KvCache,
    prompt: &[u32],
    options: &GenerateOptions,
    receiver: &mut dyn Receiver,
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
    model.check_tokens(prompt, 0)?;
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

    // The last token of the prompt goes through the model in any case: its logits choose the first new one.
    let n_reused = cache.keep_common_start(&prompt[..prompt.len() - 1]);
    let mut seen = prompt.to_vec();
    let mut stream = tokenizer.map(TextStream::continuing);
    let mut text = String::new();
    let mut tokens = Vec::new();
    let mut stop = if max_tokens < options.max_tokens { StopReason::ContextFull } else { StopReason::MaxTokens };
    while tokens.len() < max_tokens {
        let logits = match next_logits(model, &seen, cache, receiver) {
            Ok(logits) => logits,
            Err(RuntimeError::Cancelled) => {
                stop = StopReason::Receiver;
                break;
            }
            Err(error) => {
                // What was added may hold the NaN that is the error.
                cache.truncate(n_reused);
                return Err(error);
            }
        };
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
            if receiver.text(&piece).is_break() {
                stop = StopReason::Receiver;
                break;
            }
        }
    }
    if stop != StopReason::Receiver
        && let Some(rest) = stream.map(TextStream::finish).filter(|rest| !rest.is_empty())
    {
        text.push_str(&rest);
        if receiver.text(&rest).is_break() {
            stop = StopReason::Receiver;
        }
    }
    Ok(Generation { text, tokens, stop, n_prompt: prompt.len(), n_reused, notes })
}

/// Feeds what the cache lacks of `tokens`, at least one, and returns the logits after the last one.
fn next_logits(
    model: &LanguageModel,
    tokens: &[u32],
    cache: &mut KvCache,
    receiver: &mut dyn Receiver,
) -> Result<Vec<f32>, RuntimeError> {
    let rest = &tokens[cache.len()..];
    let logits = model.next_logits(rest, cache, PREFILL_CHUNK, &mut || receiver.cancelled())?;
    if logits.iter().any(|v| !v.is_finite()) {
        return Err(model.diagnose(tokens, tokens.len() - 1));
    }
    Ok(logits)
}
