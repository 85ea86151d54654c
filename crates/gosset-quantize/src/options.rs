//! What a user asks for, as plain data that is stored in the recipe.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use gosset_container::GENERATOR;

use crate::calibration::CalibrationRecord;
use crate::error::QuantizeError;
use crate::method::Method;
use crate::target::{Allocation, QuantizeTarget};

/// Everything that decides the bytes of a container besides its input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantizeOptions {
    /// Name of the method, for instance `e8-rice` or `e8+feedback`: see [`methods`](crate::methods).
    pub codec: String,
    /// What fixes the rates.
    #[serde(rename = "rate")]
    pub target: QuantizeTarget,
    /// How bits are shared out where the target is not a payload.
    #[serde(default)]
    pub allocation: Allocation,
    /// What the relative error of a tensor counts there, by name; the last one that matches counts, others are 1.
    #[serde(default)]
    pub weights: Vec<TensorWeight>,
    /// Asked tile of the randomized Hadamard transform, in columns.
    pub tile: u32,
    /// Seed of its signs.
    pub seed: u64,
    /// Payload target of embeddings and output head; `None` keeps them bit-exact.
    pub embeddings: Option<f64>,
    /// Exceptions by tensor name; the last one that matches a tensor counts.
    pub overrides: Vec<Override>,
    /// Whether any tensor that has to stay wider than asked is an error.
    pub strict: bool,
    /// Whether the output head shares the embedding table; `None` follows `config.json`.
    pub tie: Option<bool>,
    /// The calibration of a method that needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationRecord>,
}

/// An exception for the tensors whose name matches a pattern.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// Tensor name in which `*` stands for any run of characters and `?` for one.
    pub pattern: String,
    /// What to do with them.
    pub action: OverrideAction,
}

/// What the relative error counts of the tensors whose name matches a pattern.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorWeight {
    /// Tensor name in which `*` stands for any run of characters and `?` for one.
    pub pattern: String,
    /// The weight, positive.
    pub weight: f64,
}

/// What an override does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverrideAction {
    /// Keep bit-exact.
    Keep,
    /// Quantize with this payload target in bits per weight.
    Rate(f64),
}

impl QuantizeOptions {
    /// `codec` at a payload of `rate` bits per weight, with the defaults for the rest: tile 128, seed 0, embeddings kept, no
    /// overrides, not strict, tie by configuration.
    pub fn new(codec: &str, rate: f64) -> Self {
        Self::with_target(codec, QuantizeTarget::PayloadBps(rate))
    }

    /// `codec` with that target and the defaults of [`QuantizeOptions::new`] for the rest.
    pub fn with_target(codec: &str, target: QuantizeTarget) -> Self {
        QuantizeOptions {
            codec: codec.to_owned(),
            target,
            allocation: Allocation::default(),
            weights: Vec::new(),
            tile: 128,
            seed: 0,
            embeddings: None,
            overrides: Vec::new(),
            strict: false,
            tie: None,
            calibration: None,
        }
    }

    /// The payload asked for, in bits per weight; `None` if the target is another.
    pub fn payload_bps(&self) -> Option<f64> {
        match self.target {
            QuantizeTarget::PayloadBps(bps) => Some(bps),
            _ => None,
        }
    }

    /// The recipe that is stored in a container: every option with its value, defaults included, and the version of the program.
    pub fn to_recipe(&self) -> Value {
        let mut recipe = serde_json::json!({ "verb": "quantize", "program": GENERATOR, "options": self });
        if let Some(settings) = self.settings() {
            recipe["settings"] = settings;
        }
        recipe
    }

    /// What the method does by default and no option changes; `None` for codecs by themselves.
    fn settings(&self) -> Option<Value> {
        let rate = Method::info(&self.codec).ok()?.min_bps;
        Method::parse(&self.codec, rate).ok()?.in_frame(self.tile, self.seed).ok()?.settings()
    }

    /// The options of a recipe. Quantizing the same input with them gives the same bytes, by the program the recipe names.
    ///
    /// # Errors
    /// [`QuantizeError::Recipe`] for a recipe that is none, or whose method had other settings than this program gives it.
    ///
    /// ```
    /// use gosset_quantize::QuantizeOptions;
    /// let options = QuantizeOptions::new("e8-rice", 3.5);
    /// assert_eq!(QuantizeOptions::from_recipe(&options.to_recipe())?, options);
    /// # Ok::<(), gosset_quantize::QuantizeError>(())
    /// ```
    pub fn from_recipe(recipe: &Value) -> Result<Self, QuantizeError> {
        let options = recipe.get("options").cloned().unwrap_or(Value::Null);
        let options: Self =
            serde_json::from_value(options).map_err(|e| QuantizeError::Recipe { reason: e.to_string() })?;
        let (made_with, ours) = (recipe.get("settings"), options.settings());
        if made_with != ours.as_ref() {
            let [expected, found] = [ours.as_ref(), made_with].map(|v| v.unwrap_or(&Value::Null).to_string());
            let reason = format!("settings of {}: expected {expected}, found {found}", options.codec);
            return Err(QuantizeError::Recipe { reason });
        }
        Ok(options)
    }
}

impl Override {
    /// Reads `PATTERN=RATE` or `PATTERN=keep`.
    ///
    /// ```
    /// use gosset_quantize::{Override, OverrideAction};
    /// assert_eq!(Override::parse("*.down_proj.weight=4.5")?.action, OverrideAction::Rate(4.5));
    /// assert_eq!(Override::parse("*.down_proj.weight=keep")?.action, OverrideAction::Keep);
    /// assert!(Override::parse("*.down_proj.weight").is_err());
    /// # Ok::<(), gosset_quantize::QuantizeError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, QuantizeError> {
        let syntax = || QuantizeError::OverrideSyntax { text: text.to_owned() };
        let (pattern, action) = text.rsplit_once('=').ok_or_else(syntax)?;
        let action = match action {
            "keep" => OverrideAction::Keep,
            rate => OverrideAction::Rate(rate.parse().map_err(|_| syntax())?),
        };
        if pattern.is_empty() {
            return Err(syntax());
        }
        Ok(Override { pattern: pattern.to_owned(), action })
    }

    /// Whether a tensor name matches.
    pub fn matches(&self, name: &str) -> bool {
        glob_matches(self.pattern.as_bytes(), name.as_bytes())
    }
}

impl TensorWeight {
    /// Whether a tensor name matches.
    pub fn matches(&self, name: &str) -> bool {
        glob_matches(self.pattern.as_bytes(), name.as_bytes())
    }
}

/// Whether `text` matches `pattern`, in time linear in the product of their lengths at worst.
fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to resume after a mismatch: behind the last star, one byte further on in the text.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((after, from)) => {
                    p = after;
                    t = from + 1;
                    star = Some((after, t));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(p: &[u8], t: &[u8]) -> bool {
        match (p.first(), t.first()) {
            (None, None) => true,
            (Some(b'*'), _) => naive(&p[1..], t) || (!t.is_empty() && naive(p, &t[1..])),
            (Some(&c), Some(&d)) => (c == b'?' || c == d) && naive(&p[1..], &t[1..]),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_defined(p in "[ab*?]{0,7}", t in "[ab]{0,7}") {
            prop_assert_eq!(glob_matches(p.as_bytes(), t.as_bytes()), naive(p.as_bytes(), t.as_bytes()));
        }
    }

    #[test]
    fn recipes_of_format_1_0_are_read() {
        let recipe: Value = serde_json::from_str(
            r#"{"options":{"codec":"e8-rice","rate":4.0,"tile":128,"seed":0,"embeddings":null,"overrides":[{"pattern":"*","action":{"rate":2.5}}],"strict":false,"tie":null},"program":"gosset 0.1.0","verb":"quantize"}"#,
        )
        .unwrap();
        let options = QuantizeOptions::from_recipe(&recipe).unwrap();
        assert_eq!(options.overrides[0].action, OverrideAction::Rate(2.5));
        assert_eq!(QuantizeOptions { overrides: Vec::new(), ..options }, QuantizeOptions::new("e8-rice", 4.0));
    }

    #[test]
    fn a_recipe_with_an_unknown_option_is_refused() {
        let mut recipe = QuantizeOptions::new("e8-rice", 3.0).to_recipe();
        recipe["options"]["future"] = true.into();
        assert!(QuantizeOptions::from_recipe(&recipe).unwrap_err().to_string().contains("future"));
        assert!(QuantizeOptions::from_recipe(&Value::Null).is_err());
    }
}
