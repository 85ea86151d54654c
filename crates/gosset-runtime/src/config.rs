//! The model's hyperparameters, from a Hugging Face `config.json`.

use serde_json::{Map, Value};

use crate::error::RuntimeError;
use crate::models::{ARCHITECTURES, Architecture};
use crate::rope::RopeScaling;

/// Largest count that a field may claim; beyond every real model, and small enough that no product of two overflows.
const MAX_COUNT: u64 = 1 << 31;

/// Hyperparameters of a decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Which architecture, and with it which tensors are expected.
    pub architecture: &'static Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// Query heads per layer.
    pub n_heads: usize,
    /// Key and value heads per layer; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head; stated, else `hidden_size / n_heads`. Even.
    pub head_dim: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Longest context.
    pub max_positions: usize,
    /// Added to the mean square in every normalization.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Stretching of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// Whether q, k, v and o projections have a bias beyond what the architecture always has (`attention_bias`).
    pub attention_bias: bool,
    /// Whether the feed-forward projections have a bias (`mlp_bias`).
    pub mlp_bias: bool,
    /// Begin-of-text id, if any.
    pub bos_token_id: Option<u32>,
    /// End ids: one number or a list in the file.
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// Reads the bytes of a `config.json`.
    ///
    /// Fails with [`RuntimeError::Config`] naming the field, what was expected and what was found, and with
    /// [`RuntimeError::UnsupportedArchitecture`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, RuntimeError> {
        Self::from_value(&parse_config(bytes)?)
    }

    /// [`from_json`](Self::from_json) after parsing.
    pub(crate) fn from_value(config: &Value) -> Result<Self, RuntimeError> {
        let Value::Object(map) = config else {
            return Err(RuntimeError::config("(whole file)", "a JSON object", kind(config)));
        };
        let architecture = architecture(map)?;
        let field = |name| Field { map, name };
        let hidden_size = field("hidden_size").count()?;
        let n_heads = field("num_attention_heads").count()?;
        let n_kv_heads = field("num_key_value_heads").optional_count()?.unwrap_or(n_heads);
        if !n_heads.is_multiple_of(n_kv_heads) {
            return Err(RuntimeError::config("num_key_value_heads", format!("a divisor of {n_heads}"), n_kv_heads));
        }
        let head_dim = match field("head_dim").optional_count()? {
            Some(d) => d,
            None if hidden_size.is_multiple_of(n_heads) => hidden_size / n_heads,
            None => {
                return Err(RuntimeError::config("hidden_size", format!("a multiple of {n_heads} heads"), hidden_size));
            }
        };
        if !head_dim.is_multiple_of(2) {
            return Err(RuntimeError::config("head_dim", "an even number", head_dim));
        }
        match field("hidden_act").present() {
            None => {}
            Some(Value::String(s)) if matches!(s.as_str(), "silu" | "swish") => {}
            Some(Value::String(other)) => return Err(RuntimeError::config("hidden_act", "silu", other)),
            Some(other) => return Err(field("hidden_act").wrong("silu", other)),
        }
        // Read where the head is chosen; here only its type counts.
        field("tie_word_embeddings").bool(false)?;
        if field("use_sliding_window").bool(false)? {
            return Err(RuntimeError::config(
                "use_sliding_window",
                "false: window attention is not implemented",
                "true",
            ));
        }
        let rms_norm_eps = field("rms_norm_eps").float()?.unwrap_or(1e-6);
        if !(0.0..1.0).contains(&rms_norm_eps) {
            return Err(RuntimeError::config("rms_norm_eps", "a number in [0, 1)", rms_norm_eps));
        }
        // Newer files put everything about the rotation in one object.
        let rope = map.get("rope_parameters").and_then(Value::as_object);
        let theta = match rope {
            Some(rope) => Field { map: rope, name: "rope_theta" }.float()?,
            None => None,
        };
        let rope_theta = match theta {
            Some(theta) => theta,
            None => field("rope_theta").float()?.unwrap_or(10_000.0),
        };
        if rope_theta <= 0.0 {
            return Err(RuntimeError::config("rope_theta", "a positive number", rope_theta));
        }
        let partial = field("partial_rotary_factor").float()?.unwrap_or(1.0);
        if partial != 1.0 {
            return Err(RuntimeError::config(
                "partial_rotary_factor",
                "1: partly rotated heads are not implemented",
                partial,
            ));
        }
        Ok(Self {
            architecture,
            hidden_size,
            intermediate_size: field("intermediate_size").count()?,
            n_layers: field("num_hidden_layers").count()?,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size: field("vocab_size").count()?,
            max_positions: field("max_position_embeddings").optional_count()?.unwrap_or(2048),
            rms_norm_eps,
            rope_theta,
            rope_scaling: match rope {
                Some(rope) => rope_scaling("rope_parameters", rope, head_dim)?,
                None => match map.get("rope_scaling") {
                    None | Some(Value::Null) => RopeScaling::None,
                    Some(Value::Object(scaling)) => rope_scaling("rope_scaling", scaling, head_dim)?,
                    Some(other) => return Err(RuntimeError::config("rope_scaling", "an object", kind(other))),
                },
            },
            attention_bias: field("attention_bias").bool(false)?,
            mlp_bias: field("mlp_bias").bool(false)?,
            bos_token_id: field("bos_token_id").ids()?.first().copied(),
            eos_token_ids: field("eos_token_id").ids()?,
        })
    }

    /// Width of all query heads together.
    pub(crate) fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together.
    pub(crate) fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

/// The JSON of a `config.json`.
pub(crate) fn parse_config(bytes: &[u8]) -> Result<Value, RuntimeError> {
    serde_json::from_slice(bytes).map_err(|e| RuntimeError::config("(whole file)", "JSON", e))
}

/// Reads `eos_token_id` (one number or a list) out of a `generation_config.json`; empty if there is none.
pub(crate) fn generation_eos_ids(bytes: &[u8]) -> Result<Vec<u32>, RuntimeError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Field { map: &map, name: "eos_token_id" }.ids(),
        _ => Err(RuntimeError::config("generation_config.json", "a JSON object", "something else")),
    }
}

fn architecture(map: &Map<String, Value>) -> Result<&'static Architecture, RuntimeError> {
    let model_type = map.get("model_type").and_then(Value::as_str);
    let class = map.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
    let found = ARCHITECTURES
        .iter()
        .copied()
        .find(|a| Some(a.class) == class || (class.is_none() && Some(a.model_type) == model_type));
    found.ok_or_else(|| RuntimeError::UnsupportedArchitecture {
        found: class.or(model_type).unwrap_or("(neither architectures nor model_type in config.json)").to_owned(),
        supported: ARCHITECTURES.iter().map(|a| a.class).collect::<Vec<_>>().join(", "),
    })
}

fn rope_scaling(at: &str, map: &Map<String, Value>, head_dim: usize) -> Result<RopeScaling, RuntimeError> {
    let positive = |name: &'static str| -> Result<f64, RuntimeError> {
        match (Field { map, name }).float()? {
            Some(v) if v > 0.0 => Ok(v),
            Some(v) => Err(RuntimeError::config(&format!("{at}.{name}"), "a positive number", v)),
            None => Err(RuntimeError::config(&format!("{at}.{name}"), "a positive number", "nothing")),
        }
    };
    let rope_type = map.get("rope_type").or_else(|| map.get("type")).and_then(Value::as_str).unwrap_or("default");
    match rope_type {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: positive("factor")? }),
        "llama3" => {
            let (low, high) = (positive("low_freq_factor")?, positive("high_freq_factor")?);
            if high <= low {
                return Err(RuntimeError::config(&format!("{at}.high_freq_factor"), format!("above {low}"), high));
            }
            Ok(RopeScaling::Llama3 {
                factor: positive("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_positions: positive("original_max_position_embeddings")?,
            })
        }
        // With two different lists the choice depends on the length of the text; with equal ones it is a fixed divisor.
        "longrope"
            if map.get("short_factor") == map.get("long_factor")
                && map.get("attention_factor") == Some(&Value::from(1.0)) =>
        {
            let list = map.get("long_factor").and_then(Value::as_array);
            let factors: Option<Vec<f64>> =
                list.and_then(|l| l.iter().map(|v| v.as_f64().filter(|f| f.is_finite() && *f > 0.0)).collect());
            match factors {
                Some(factors) if factors.len() == head_dim / 2 => Ok(RopeScaling::Factors(factors)),
                _ => Err(RuntimeError::config(
                    &format!("{at}.long_factor"),
                    format!("{} positive numbers", head_dim / 2),
                    list.map_or("nothing".to_owned(), |l| format!("a list of {}", l.len())),
                )),
            }
        }
        other => Err(RuntimeError::config(
            &format!("{at}.rope_type"),
            "default, linear, llama3, or longrope with equal lists and attention_factor 1.0",
            other,
        )),
    }
}

/// One field of a JSON object, read as what is expected.
struct Field<'a> {
    map: &'a Map<String, Value>,
    name: &'a str,
}

impl Field<'_> {
    fn present(&self) -> Option<&Value> {
        self.map.get(self.name).filter(|v| !v.is_null())
    }

    fn wrong(&self, expected: impl Into<String>, found: &Value) -> RuntimeError {
        match found {
            Value::Number(n) => RuntimeError::config(self.name, expected, n),
            other => RuntimeError::config(self.name, expected, kind(other)),
        }
    }

    fn optional_count(&self) -> Result<Option<usize>, RuntimeError> {
        match self.present() {
            None => Ok(None),
            Some(v) => match v.as_u64() {
                Some(n) if (1..=MAX_COUNT).contains(&n) => Ok(Some(n as usize)),
                _ => Err(self.wrong(format!("an integer from 1 to {MAX_COUNT}"), v)),
            },
        }
    }

    fn count(&self) -> Result<usize, RuntimeError> {
        self.optional_count()?.ok_or_else(|| RuntimeError::config(self.name, "a positive integer", "nothing"))
    }

    fn float(&self) -> Result<Option<f64>, RuntimeError> {
        match self.present() {
            None => Ok(None),
            Some(v) => match v.as_f64() {
                Some(f) if f.is_finite() => Ok(Some(f)),
                _ => Err(self.wrong("a finite number", v)),
            },
        }
    }

    fn bool(&self, default: bool) -> Result<bool, RuntimeError> {
        match self.present() {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => Err(self.wrong("true or false", v)),
        }
    }

    fn ids(&self) -> Result<Vec<u32>, RuntimeError> {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let expected = "a token id or a list of them";
        match self.present() {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => {
                list.iter().map(|v| id(v).ok_or_else(|| self.wrong(expected, v))).collect::<Result<_, _>>()
            }
            Some(v) => Ok(vec![id(v).ok_or_else(|| self.wrong(expected, v))?]),
        }
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => format!("{:?}", s.chars().take(60).collect::<String>()),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn llama() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 176,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 260,
        })
    }

    fn with(changes: Value) -> Result<ModelConfig, RuntimeError> {
        let mut config = llama();
        for (k, v) in changes.as_object().unwrap() {
            config[k] = v.clone();
        }
        ModelConfig::from_json(config.to_string().as_bytes())
    }

    #[test]
    fn defaults_fill_what_is_absent() {
        let config = with(json!({})).unwrap();
        assert_eq!((config.head_dim, config.n_kv_heads, config.rope_theta), (16, 2, 10_000.0));
        assert!(config.eos_token_ids.is_empty());
        assert_eq!(with(json!({"head_dim": 32, "num_key_value_heads": null})).unwrap().q_dim(), 128);
        assert_eq!(with(json!({"eos_token_id": 5})).unwrap().eos_token_ids, [5]);
        assert_eq!(with(json!({"eos_token_id": [5, 7]})).unwrap().eos_token_ids, [5, 7]);
    }

    #[test]
    fn both_places_of_rope_settings_are_read() {
        let llama3 = json!({
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_theta": 500000.0
        });
        let old = with(json!({"rope_scaling": llama3, "rope_theta": 500000.0})).unwrap();
        let new = with(json!({"rope_parameters": llama3})).unwrap();
        assert_eq!(old, new);
        assert_eq!(old.rope_theta, 500_000.0);
        let factors = json!([1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]);
        let longrope =
            json!({"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0});
        let config = with(json!({"rope_scaling": longrope})).unwrap();
        assert_eq!(config.rope_scaling, RopeScaling::Factors(vec![1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]));
    }

    #[test]
    fn refusals_name_the_field() {
        for (changes, message) in [
            (json!({"hidden_size": null}), "config.json: hidden_size: expected a positive integer, found nothing"),
            (json!({"hidden_size": 66}), "config.json: hidden_size: expected a multiple of 4 heads, found 66"),
            (
                json!({"num_hidden_layers": -1}),
                "config.json: num_hidden_layers: expected an integer from 1 to 2147483648, found -1",
            ),
            (json!({"num_key_value_heads": 3}), "config.json: num_key_value_heads: expected a divisor of 4, found 3"),
            (json!({"head_dim": 15}), "config.json: head_dim: expected an even number, found 15"),
            (json!({"hidden_act": "gelu"}), "config.json: hidden_act: expected silu, found gelu"),
            (json!({"hidden_act": ["silu"]}), "config.json: hidden_act: expected silu, found a list of 1"),
            (json!({"hidden_act": 7}), "config.json: hidden_act: expected silu, found 7"),
            (
                json!({"tie_word_embeddings": "false"}),
                "config.json: tie_word_embeddings: expected true or false, found \"false\"",
            ),
            (json!({"tie_word_embeddings": 0}), "config.json: tie_word_embeddings: expected true or false, found 0"),
            (
                json!({"rope_scaling": {"type": "yarn"}}),
                "config.json: rope_scaling.rope_type: expected default, linear, llama3, or longrope with equal lists and attention_factor 1.0, found yarn",
            ),
            (
                json!({"architectures": ["MambaForCausalLM"]}),
                "architecture MambaForCausalLM is not supported; supported: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
            ),
        ] {
            assert_eq!(with(changes).unwrap_err().to_string(), message);
        }
        assert!(ModelConfig::from_json(b"[1]").is_err());
        assert!(ModelConfig::from_json(b"{").is_err());
    }
}
