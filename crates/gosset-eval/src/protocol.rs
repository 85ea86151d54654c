//! The protocol of a perplexity, as data.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::EvalError;

/// How the lines of the text become one string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TextJoin {
    /// The file as it is, read whole.
    Raw,
    /// `"\n\n".join(rows)` of the data set's rows, as the papers of the GPTQ family do: see [`crate::join_rows`].
    GptqRows,
}

/// Where a beginning-of-sequence token stands. A model without one is scored without, whatever the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum BosPolicy {
    /// Nowhere.
    None,
    /// Once, in front of the whole token stream (unless the stream already begins with it): later windows see none.
    Once,
    /// In front of the whole stream, which shifts every window by one token, and then in place of the first token of every
    /// window. No window ever holds two of them in a row because of this.
    EachWindow,
}

/// Which positions of a window count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Scored {
    /// Every position that predicts a token of the window.
    All,
    /// Positions `window / 2` and up: every counted token has at least half a window of context.
    SecondHalf,
}

/// What happens to the tokens after the last full window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Tail {
    /// They are left out.
    Drop,
    /// They form a last, shorter window.
    Keep,
}

/// One way to turn a model and a text into a perplexity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PplProtocol {
    /// Name to print: a preset's, or one with another window (`full-512`).
    pub name: String,
    /// Tokens per window; each window starts from an empty cache.
    pub window: usize,
    /// Tokens from one window's start to the next; smaller than `window` means overlap, and each token is still scored once.
    pub stride: usize,
    /// Where a BOS stands.
    pub bos: BosPolicy,
    /// Which positions count.
    pub scored: Scored,
    /// What happens to the rest after the last full window.
    pub tail: Tail,
    /// How lines become one string.
    pub join: TextJoin,
}

/// A named protocol.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// The name that [`PplProtocol::parse`] takes.
    pub name: &'static str,
    /// One line for `--help`.
    pub about: &'static str,
    family: Family,
    window: usize,
}

#[derive(Debug, Clone, Copy)]
struct Family {
    prefix: &'static str,
    bos: BosPolicy,
    scored: Scored,
    join: TextJoin,
}

const FULL: Family = Family { prefix: "full-", bos: BosPolicy::EachWindow, scored: Scored::All, join: TextJoin::Raw };
const HALF: Family =
    Family { prefix: "half-", bos: BosPolicy::EachWindow, scored: Scored::SecondHalf, join: TextJoin::Raw };
const LLAMA_CPP: Family = Family { prefix: "llama.cpp-", ..HALF };
const GPTQ: Family = Family { prefix: "gptq-", bos: BosPolicy::Once, scored: Scored::All, join: TextJoin::GptqRows };

/// The named protocols; the first is the default. Any other window follows the same pattern (`half-1024`).
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "full-2048",
        about: "raw file, windows of 2048 side by side, every position scored (default)",
        family: FULL,
        window: 2048,
    },
    Preset { name: "half-2048", about: "the same windows, positions 1024 and up scored", family: HALF, window: 2048 },
    Preset {
        name: "llama.cpp-512",
        about: "llama.cpp's default: windows of 512, positions 256 and up scored",
        family: LLAMA_CPP,
        window: 512,
    },
    Preset {
        name: "gptq-2048",
        about: "rows joined by blank lines, windows of 2048, every position scored (GPTQ family of papers)",
        family: GPTQ,
        window: 2048,
    },
];

impl Preset {
    /// The protocol behind the name.
    pub fn protocol(&self) -> PplProtocol {
        self.family.protocol(self.name.to_owned(), self.window)
    }
}

impl Family {
    fn protocol(&self, name: String, window: usize) -> PplProtocol {
        let Family { bos, scored, join, .. } = *self;
        PplProtocol { name, window, stride: window, bos, scored, tail: Tail::Drop, join }
    }
}

impl PplProtocol {
    /// The protocol named `name`: one of [`PRESETS`] or the same pattern with another window.
    ///
    /// ```
    /// let p = gosset_eval::PplProtocol::parse("half-1024")?;
    /// assert_eq!((p.window, p.stride), (1024, 1024));
    /// # Ok::<(), gosset_eval::EvalError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EvalError::UnknownProtocol`] for any other name, [`EvalError::BadProtocol`] for a window that [`Self::check`] refuses.
    pub fn parse(name: &str) -> Result<Self, EvalError> {
        for family in [FULL, HALF, LLAMA_CPP, GPTQ] {
            let window = name.strip_prefix(family.prefix).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
            if let Some(window) = window.and_then(|digits| digits.parse().ok()) {
                let protocol = family.protocol(name.to_owned(), window);
                protocol.check()?;
                return Ok(protocol);
            }
        }
        Err(EvalError::UnknownProtocol { name: name.to_owned() })
    }

    /// Whether the numbers make sense together: a window of at least 2 tokens (4 for [`Scored::SecondHalf`], so that the half
    /// predicts something) and a stride from 1 to the window.
    ///
    /// # Errors
    ///
    /// [`EvalError::BadProtocol`].
    pub fn check(&self) -> Result<(), EvalError> {
        let bad = |what: String| Err(EvalError::BadProtocol { name: self.name.clone(), what });
        let least = if self.scored == Scored::SecondHalf { 4 } else { 2 };
        if self.window < least {
            return bad(format!("window: expected at least {least} tokens, found {}", self.window));
        }
        if self.stride == 0 || self.stride > self.window {
            return bad(format!("stride: expected 1 to the window ({}), found {}", self.window, self.stride));
        }
        Ok(())
    }

    /// The protocol with its BOS policy replaced by [`BosPolicy::None`] unless the model's tokenizer puts a BOS in front of
    /// text by itself: the default for a family that defines a BOS without using it.
    #[must_use]
    pub fn for_family(mut self, bos_auto_added: bool) -> Self {
        if !bos_auto_added {
            self.bos = BosPolicy::None;
        }
        self
    }
}

impl Default for PplProtocol {
    /// `full-2048`.
    fn default() -> Self {
        PRESETS[0].protocol()
    }
}

/// One line with every setting, as printed beside each perplexity.
impl fmt::Display for PplProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bos = match self.bos {
            BosPolicy::None => "no BOS",
            BosPolicy::Once => "BOS once",
            BosPolicy::EachWindow => "BOS in each window",
        };
        let scored = match self.scored {
            Scored::All => "all positions",
            Scored::SecondHalf => "second half",
        };
        let tail = match self.tail {
            Tail::Drop => "tail dropped",
            Tail::Keep => "tail kept",
        };
        let join = match self.join {
            TextJoin::Raw => "raw text",
            TextJoin::GptqRows => "rows joined by blank lines",
        };
        write!(f, "{} (window {}, stride {}, {scored}, {bos}, {tail}, {join})", self.name, self.window, self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_what_its_name_parses_to() {
        for preset in PRESETS {
            assert_eq!(PplProtocol::parse(preset.name).unwrap(), preset.protocol());
        }
        assert_eq!(PplProtocol::default(), PplProtocol::parse("full-2048").unwrap());
    }

    #[test]
    fn bad_names_and_windows_are_refused() {
        for name in ["", "full", "full-", "full-x", "full-+5", "full--5", "quarter-2048", "half-99999999999999999999"] {
            assert!(matches!(PplProtocol::parse(name), Err(EvalError::UnknownProtocol { .. })), "{name}");
        }
        for name in ["full-0", "full-1", "half-3", "llama.cpp-2"] {
            assert!(matches!(PplProtocol::parse(name), Err(EvalError::BadProtocol { .. })), "{name}");
        }
        for stride in [0, 129] {
            let p = PplProtocol { stride, ..PplProtocol::parse("full-128").unwrap() };
            assert!(matches!(p.check(), Err(EvalError::BadProtocol { .. })));
        }
    }
}
