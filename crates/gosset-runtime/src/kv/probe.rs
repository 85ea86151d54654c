//! What the keys and queries of a model look like: a short text of this crate, sent through it once.

use gosset_kv::{Probe, ProbeBuilder, RopePairs};

use super::bias::{KeyMeans, Means};
use crate::calibration::CalibrationText;
use crate::error::RuntimeError;
use crate::language_model::LanguageModel;
use crate::rope::Ropes;
use crate::text::Tokenizer;

/// Tokens of a probe whose second moments frame keys; those of 32768 are hardly better.
pub const PROBE_TOKENS: usize = 2048;

/// Tokens after which means of keys are known well enough to warn of them.
pub const CHECK_TOKENS: usize = 128;

/// Places of the built-in text that tokens are taken from, evenly spaced: it goes from descriptions and speeches to programs.
const PIECES: usize = 4;

/// Sees queries `[n, heads * head_dim]` and keys `[n, kv_heads * head_dim]` of a layer, neither rotated.
pub(crate) type Seen<'a> = dyn FnMut(usize, &[f32], &[f32]) -> Result<(), RuntimeError> + 'a;

impl LanguageModel {
    /// Statistics of keys before their rotation and of queries, over about `n_tokens` of the built-in text.
    ///
    /// The result is the same on every run of a model on one kind of processor or device.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::MissingPart`] without a tokenizer, [`RuntimeError::Options`] for no tokens.
    pub fn kv_probe(&self, n_tokens: usize) -> Result<Probe, RuntimeError> {
        let sequences = built_in_sequences(self.require_tokenizer()?, n_tokens, self.config().max_positions)?;
        let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        self.kv_probe_on(&sequences)
    }

    /// [`kv_probe`](Self::kv_probe) over sequences of ids, each from an empty cache.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Token`] and [`RuntimeError::ContextOverflow`] before any work.
    pub fn kv_probe_on(&self, sequences: &[&[u32]]) -> Result<Probe, RuntimeError> {
        let mut probe = ProbeBuilder::new(self.kv_shape(), RopePairs::Halves)?;
        if let Some(rope) = Ropes::of(self.config()).single() {
            probe = probe.turns(&rope.turns())?;
        }
        self.see_keys(sequences, &mut |layer, queries, keys| Ok(probe.add(layer, keys, queries)?))?;
        Ok(probe.finish()?)
    }

    /// How far the keys of this model lie off zero, over [`CHECK_TOKENS`] of the built-in text.
    ///
    /// # Errors
    ///
    /// Those of [`kv_probe`](Self::kv_probe).
    pub fn key_means(&self) -> Result<KeyMeans, RuntimeError> {
        let sequences = built_in_sequences(self.require_tokenizer()?, CHECK_TOKENS, self.config().max_positions)?;
        let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let mut means = Means::new(self.kv_shape());
        self.see_keys(&sequences, &mut |layer, _, keys| {
            means.add(layer, keys);
            Ok(())
        })?;
        Ok(means.finish())
    }

    /// Shows `see` the number of every layer, its queries `[n, heads * head_dim]` and its keys `[n, kv_heads * head_dim]`, neither rotated,
    /// while `tokens` go through from an empty cache; on a device once for every chunk of them.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Token`] and [`RuntimeError::ContextOverflow`] before any work.
    #[allow(clippy::type_complexity)]
    pub fn see_queries_and_keys(
        &self,
        tokens: &[u32],
        see: &mut dyn FnMut(usize, &[f32], &[f32]),
    ) -> Result<(), RuntimeError> {
        self.see_keys(&[tokens], &mut |layer, queries, keys| {
            see(layer, queries, keys);
            Ok(())
        })
    }

    /// Rotates heads of `head_dim` elements as the model rotates them at their positions: `rows` has `width` elements for each position
    /// from `first` on.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Options`] for a width that is not made of whole heads, or rows of another, and for a model whose layers rotate in two
    /// ways.
    pub fn rotate_by_position(&self, first: usize, width: usize, rows: &mut [f32]) -> Result<(), RuntimeError> {
        let head_dim = self.config().head_dim;
        if width == 0 || !width.is_multiple_of(head_dim) || !rows.len().is_multiple_of(width) {
            return Err(RuntimeError::Options {
                option: "rows to rotate".to_owned(),
                expected: format!("whole rows of whole heads of {head_dim}"),
                found: format!("{} elements, {width} for each position", rows.len()),
            });
        }
        let ropes = Ropes::of(self.config());
        let rope = ropes.single().ok_or_else(|| RuntimeError::Options {
            option: "rows to rotate".to_owned(),
            expected: "a model whose layers all rotate alike".to_owned(),
            found: format!("{}, whose local layers have frequencies of their own", self.config().architecture.class),
        })?;
        let rope = rope.table(first..first + rows.len() / width);
        let mut head = vec![0.0; head_dim];
        for (i, row) in rows.chunks_exact_mut(width).enumerate() {
            for out in row.chunks_exact_mut(head_dim) {
                head.copy_from_slice(out);
                rope.rotate(first + i, &head, 1.0, out);
            }
        }
        Ok(())
    }

    fn see_keys(&self, sequences: &[&[u32]], see: &mut Seen<'_>) -> Result<(), RuntimeError> {
        sequences.iter().try_for_each(|sequence| self.check_tokens(sequence, 0))?;
        sequences.iter().try_for_each(|sequence| self.see_keys_of(sequence, see))
    }
}

/// About `n_tokens` of the built-in text in sequences of at most `context`, each with what the tokenizer puts in front of a text.
fn built_in_sequences(tokenizer: &Tokenizer, n_tokens: usize, context: usize) -> Result<Vec<Vec<u32>>, RuntimeError> {
    if n_tokens == 0 {
        return Err(RuntimeError::Options {
            option: "tokens of the probe".to_owned(),
            expected: "at least one".to_owned(),
            found: "0".to_owned(),
        });
    }
    let text = CalibrationText::BuiltIn.read()?;
    let bos = match tokenizer.leading_ids() {
        [bos] => Some(*bos),
        _ => None,
    };
    let each = n_tokens.div_ceil(PIECES).min(context);
    // A token of English is about four bytes; twice that is enough, and the whole text need not be tokenized.
    let bytes = each.saturating_mul(8);
    let sequences = (0..PIECES).map(|i| {
        // From the start of a line, so that a sequence starts as texts do.
        let from = text.ceil_char_boundary(text.len() / PIECES * i);
        let from = if i == 0 { 0 } else { from + text[from..].find('\n').map_or(0, |at| at + 1) };
        let to = text.floor_char_boundary(from.saturating_add(bytes));
        let mut ids = tokenizer.encode_with_bos(&text[from..to], bos)?;
        ids.truncate(each);
        Ok(ids)
    });
    sequences.collect()
}
