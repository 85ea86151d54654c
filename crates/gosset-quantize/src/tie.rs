//! Whether the output head is the embedding table.

use serde::Serialize;
use serde_json::Value;

use crate::error::{QuantizeError, SourceError};

/// Key in `config.json`.
pub const TIE_KEY: &str = "tie_word_embeddings";

/// How the output head relates to the embedding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TieDecision {
    /// One shared table; no head is stored.
    Tied,
    /// One shared table; a stored head with the same values is left out.
    TiedSameHead,
    /// One shared table because the configuration says so; a stored head with other values is left out.
    TiedDifferingHead,
    /// Two tables.
    Separate,
}

impl TieDecision {
    /// Whether one table serves both.
    pub fn is_tied(self) -> bool {
        self != TieDecision::Separate
    }

    /// What to warn about, if anything.
    pub fn warning(self) -> Option<&'static str> {
        match self {
            TieDecision::TiedDifferingHead => Some(
                "config.json ties the output head to the embeddings, but a differing lm_head.weight is stored; it is ignored",
            ),
            _ => None,
        }
    }

    /// One sentence for reports.
    pub fn describe(self) -> &'static str {
        match self {
            TieDecision::Tied => "output head shares the embedding table, stored once",
            TieDecision::TiedSameHead => {
                "output head shares the embedding table, stored once; the equal lm_head.weight is left out"
            }
            TieDecision::TiedDifferingHead => {
                "output head shares the embedding table, stored once; the differing lm_head.weight is left out"
            }
            TieDecision::Separate => "output head and embeddings are separate",
        }
    }
}

/// Decides whether the head is tied, from the flag in `config.json`, the tensors that exist and an explicit choice.
///
/// | flag | head stored | result |
/// |---|---|---|
/// | true | no | tied |
/// | true | yes | tied; `heads_equal` tells whether to warn |
/// | false | yes | separate |
/// | false | no | refused, unless `force` is `Some(true)` |
/// | absent | - | tied if no head is stored |
///
/// `force` replaces the flag. `heads_equal` compares the two tables and is asked only when it matters.
pub fn resolve_tie(
    config: Option<&Value>,
    has_head: bool,
    heads_equal: impl FnOnce() -> Result<bool, SourceError>,
    force: Option<bool>,
) -> Result<TieDecision, QuantizeError> {
    let flag = config.and_then(|c| c.get(TIE_KEY)).and_then(Value::as_bool);
    match (force.or(flag), has_head) {
        (Some(true), true) => {
            Ok(if heads_equal()? { TieDecision::TiedSameHead } else { TieDecision::TiedDifferingHead })
        }
        (Some(true) | None, false) => Ok(TieDecision::Tied),
        (Some(false) | None, true) => Ok(TieDecision::Separate),
        (Some(false), false) => Err(QuantizeError::TieUndecided),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c01_the_flag_decides_and_contradictions_are_told() {
        let config = |tie: bool| json!({ TIE_KEY: tie });
        let never = || -> Result<bool, SourceError> { panic!("heads need not be compared") };
        let decide = |c: &Value, head, equal: bool, force| resolve_tie(Some(c), head, || Ok(equal), force);
        assert_eq!(resolve_tie(Some(&config(true)), false, never, None).unwrap(), TieDecision::Tied);
        assert_eq!(resolve_tie(Some(&config(false)), true, never, None).unwrap(), TieDecision::Separate);
        assert_eq!(resolve_tie(Some(&json!({})), false, never, None).unwrap(), TieDecision::Tied);
        assert_eq!(resolve_tie(None, true, never, None).unwrap(), TieDecision::Separate);
        assert_eq!(decide(&config(true), true, true, None).unwrap(), TieDecision::TiedSameHead);
        let differing = decide(&config(true), true, false, None).unwrap();
        assert_eq!(differing, TieDecision::TiedDifferingHead);
        assert!(differing.warning().is_some() && differing.is_tied());
        assert!(matches!(decide(&config(false), false, true, None), Err(QuantizeError::TieUndecided)));
        assert_eq!(decide(&config(false), false, true, Some(true)).unwrap(), TieDecision::Tied);
        assert_eq!(decide(&config(true), true, true, Some(false)).unwrap(), TieDecision::Separate);
        assert!(matches!(decide(&config(true), false, true, Some(false)), Err(QuantizeError::TieUndecided)));
    }
}
