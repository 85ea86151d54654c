//! Which tokens are given and which are scored.

use std::error::Error;

use super::OptionText;
use crate::EvalError;

/// Text to token ids, without special tokens.
pub type Encode<'a> = dyn FnMut(&str) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> + 'a;

/// What the tokenizer of a model is like, as far as options are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeRules {
    /// Positions that the model has.
    pub context: usize,
    /// Token in front of every text, where the tokenizer adds one by itself.
    pub bos: Option<u32>,
    /// Token that stands for an empty context where nothing is in front.
    pub empty: Option<u32>,
}

/// One option in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedOption {
    /// Context and continuation.
    pub tokens: Vec<u32>,
    /// Number of tokens at the end that are scored.
    pub n_scored: usize,
}

/// The tokens of an option by the rule of lm-evaluation-harness.
///
/// White space at the end of the context belongs to the continuation. Context and continuation are encoded as one text, and its
/// tokens after as many as the context alone has are scored, after the tokens of the context alone. What does not fit the
/// model (its last token needs no position) is cut off at the left.
///
/// # Errors
/// [`EvalError::Option`] if nothing is left to score, if the continuation alone does not fit, or if the tokenizer fails.
pub fn encode_option(
    option: &OptionText,
    rules: EncodeRules,
    encode: &mut Encode<'_>,
) -> Result<EncodedOption, EvalError> {
    let bad = |what: String| EvalError::Option { what };
    let given = option.context.trim_end();
    let moved = &option.context[given.len()..];
    let mut text = |text: &str| -> Result<Vec<u32>, EvalError> {
        let mut ids: Vec<u32> = rules.bos.into_iter().collect();
        ids.extend(encode(text).map_err(|e| bad(e.to_string()))?);
        Ok(ids)
    };
    let (mut tokens, scored) = if given.is_empty() {
        let scored = encode(&format!("{moved}{}", option.continuation)).map_err(|e| bad(e.to_string()))?;
        let front = rules
            .bos
            .or(rules.empty)
            .ok_or_else(|| bad("expected a context, or a token that stands for none; found neither".to_owned()))?;
        (vec![front], scored)
    } else {
        let whole = text(&format!("{given}{moved}{}", option.continuation))?;
        let context = text(given)?;
        let scored = whole.get(context.len()..).unwrap_or_default().to_vec();
        (context, scored)
    };
    let n_scored = scored.len();
    if n_scored == 0 {
        return Err(bad(format!(
            "{:?} after its context: expected at least one token of its own, found none",
            option.continuation
        )));
    }
    if n_scored > rules.context {
        return Err(bad(format!("a continuation of {n_scored} tokens: the model has {} positions", rules.context)));
    }
    tokens.extend(scored);
    // The last token is predicted and never read.
    let surplus = tokens.len().saturating_sub(rules.context + 1);
    tokens.drain(..surplus);
    Ok(EncodedOption { tokens, n_scored })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token per word with the space before it; "xy" is a token across a boundary.
    fn words(text: &str) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest[1..].find(' ').map_or(rest.len(), |i| i + 1);
            ids.push(rest[..end].bytes().fold(7, |h: u32, b| h.wrapping_mul(31).wrapping_add(b.into())) % 1000);
            rest = &rest[end..];
        }
        Ok(ids)
    }

    fn encoded(context: &str, continuation: &str, rules: EncodeRules) -> Result<EncodedOption, EvalError> {
        let option = OptionText { context: context.to_owned(), continuation: continuation.to_owned() };
        encode_option(&option, rules, &mut words)
    }

    const WIDE: EncodeRules = EncodeRules { context: 100, bos: None, empty: None };

    #[test]
    fn spaces_at_the_end_of_a_context_are_scored() {
        let plain = encoded("a b", " c d", WIDE).unwrap();
        assert_eq!((plain.tokens.clone(), plain.n_scored), (words("a b c d").unwrap(), 2));
        assert_eq!(encoded("a b ", "c d", WIDE).unwrap(), plain);
    }

    #[test]
    fn tokens_are_counted_after_those_of_the_context_alone() {
        // "b" and "bc" are other tokens: the context is read as it is alone, the continuation begins after its count.
        let merged = encoded("a b", "c d", WIDE).unwrap();
        assert_eq!(merged.n_scored, 1);
        assert_eq!(merged.tokens, [words("a b").unwrap(), words(" d").unwrap()].concat());
        assert!(encoded("a b", "c", WIDE).unwrap_err().to_string().contains("expected at least one token"));
    }

    #[test]
    fn what_does_not_fit_is_cut_at_the_left() {
        let rules = EncodeRules { context: 3, ..WIDE };
        let cut = encoded("a b c d", " e f", rules).unwrap();
        assert_eq!((cut.tokens, cut.n_scored), (words(" c d e f").unwrap(), 2));
        assert!(encoded("a", " b c d e", rules).unwrap_err().to_string().contains("3 positions"));
    }

    #[test]
    fn a_bos_is_in_front_and_stands_for_an_empty_context() {
        let bos = EncodeRules { bos: Some(1), ..WIDE };
        assert_eq!(encoded("a", " b", bos).unwrap().tokens[0], 1);
        let found = encoded(" ", "b", bos).unwrap();
        assert_eq!((found.tokens, found.n_scored), ([vec![1], words(" b").unwrap()].concat(), 1));
        let empty = EncodeRules { empty: Some(2), ..WIDE };
        assert_eq!(encoded("", "b", empty).unwrap().tokens[0], 2);
        assert!(encoded("", "b", WIDE).is_err());
    }
}
