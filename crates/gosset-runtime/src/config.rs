//! The model's hyperparameters, from a Hugging Face `config.json`.

mod field;
mod rope_settings;
mod window;

use std::borrow::Cow;

use half::{bf16, f16};
use serde_json::{Map, Value};

use crate::error::RuntimeError;
use crate::models::{ARCHITECTURES, Architecture, Gate};
use crate::rope::RopeScaling;
use field::{Field, kind};
pub use rope_settings::RopeSettings;
use rope_settings::rope;
pub use window::LocalLayers;
pub(crate) use window::WindowRule;
use window::windows;

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
    /// Rotary settings of local layers, where they have their own.
    pub local_rope: Option<RopeSettings>,
    /// Positions that local layers see, the query's own included; `None` if that is all of them.
    pub sliding_window: Option<usize>,
    /// Which layers are local.
    pub local_layers: LocalLayers,
    /// Scores are divided by the root of this: `head_dim`, unless `query_pre_attn_scalar` says otherwise.
    pub query_scalar: f64,
    /// What embeddings are multiplied by: 1, or the root of the width as the type of the checkpoint holds it.
    pub embedding_scale: f32,
    /// Logits are `cap * tanh(logit / cap)` of this cap (`final_logit_softcapping`).
    pub final_softcap: Option<f32>,
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
        let text = text_part(map, architecture)?;
        let map = &text;
        let is_gemma = architecture.windows == WindowRule::Pattern;
        let field = |name| Field { map, name };
        // Files of Gemma 3 leave out what is as in the library that wrote them.
        let count = |name, usual: usize| match is_gemma {
            true => Ok(field(name).optional_count()?.unwrap_or(usual)),
            false => field(name).count(),
        };
        let hidden_size = count("hidden_size", 2304)?;
        let n_heads = count("num_attention_heads", 8)?;
        let n_kv_heads = field("num_key_value_heads").optional_count()?.unwrap_or(if is_gemma { 4 } else { n_heads });
        if !n_heads.is_multiple_of(n_kv_heads) {
            return Err(RuntimeError::config("num_key_value_heads", format!("a divisor of {n_heads}"), n_kv_heads));
        }
        let head_dim = match field("head_dim").optional_count()? {
            Some(d) => d,
            None if is_gemma => 256,
            None if hidden_size.is_multiple_of(n_heads) => hidden_size / n_heads,
            None => {
                return Err(RuntimeError::config("hidden_size", format!("a multiple of {n_heads} heads"), hidden_size));
            }
        };
        if !head_dim.is_multiple_of(2) {
            return Err(RuntimeError::config("head_dim", "an even number", head_dim));
        }
        gate(map, architecture)?;
        // Read where the head is chosen; here only its type counts.
        field("tie_word_embeddings").bool(false)?;
        let rms_norm_eps = field("rms_norm_eps").float()?.unwrap_or(1e-6);
        if !(0.0..1.0).contains(&rms_norm_eps) {
            return Err(RuntimeError::config("rms_norm_eps", "a number in [0, 1)", rms_norm_eps));
        }
        for name in REFUSED {
            match field(name).present() {
                None | Some(Value::Bool(false)) => {}
                Some(other) => return Err(field(name).wrong("null or false: it is not implemented", other)),
            }
        }
        let (rope, local_rope) = rope(map, head_dim, is_gemma)?;
        let n_layers = count("num_hidden_layers", 26)?;
        let max_positions = field("max_position_embeddings").optional_count()?;
        let max_positions = max_positions.unwrap_or(match architecture.windows {
            WindowRule::Never => 2048,
            WindowRule::Upper => 32_768,
            WindowRule::All | WindowRule::Pattern => 131_072,
        });
        let (window, local_layers) = windows(architecture.windows, map, n_layers)?;
        let query_scalar = match field("query_pre_attn_scalar").float()? {
            Some(scalar) if is_gemma && scalar > 0.0 => scalar,
            Some(scalar) if is_gemma => {
                return Err(RuntimeError::config("query_pre_attn_scalar", "a positive number", scalar));
            }
            None if is_gemma => 256.0,
            _ => head_dim as f64,
        };
        let final_softcap = match field("final_logit_softcapping").float()? {
            Some(cap) if cap > 0.0 => Some(cap as f32),
            None => None,
            Some(cap) => return Err(RuntimeError::config("final_logit_softcapping", "a positive number or null", cap)),
        };
        let scale = if architecture.scaled_embedding { (hidden_size as f64).sqrt() as f32 } else { 1.0 };
        Ok(Self {
            architecture,
            hidden_size,
            intermediate_size: count("intermediate_size", 9216)?,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size: count("vocab_size", 262_208)?,
            max_positions,
            rms_norm_eps,
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            local_rope,
            // A window that no text outgrows is none.
            sliding_window: window.filter(|window| *window < max_positions && local_layers.any(n_layers)),
            local_layers,
            query_scalar,
            embedding_scale: rounded(scale, map),
            final_softcap,
            attention_bias: field("attention_bias").bool(false)?,
            mlp_bias: field("mlp_bias").bool(false)?,
            bos_token_id: field("bos_token_id").ids()?.first().copied(),
            eos_token_ids: field("eos_token_id").ids()?,
        })
    }

    /// Positions that queries of layer `index` see, their own included; `None` if that is all of them.
    pub fn window_of(&self, index: usize) -> Option<usize> {
        self.sliding_window.filter(|_| self.local_layers.contains(index))
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

/// Attention of some architectures that is not implemented, and that must be off.
const REFUSED: [&str; 2] = ["use_bidirectional_attention", "attn_logit_softcapping"];

/// Fields that a larger model states for its language model too, if that does not.
const SHARED: [&str; 5] = ["tie_word_embeddings", "bos_token_id", "eos_token_id", "dtype", "torch_dtype"];

/// The configuration of the language model: `text_config` of a model that sees, with what the whole states for it.
fn text_part<'a>(
    map: &'a Map<String, Value>,
    architecture: &Architecture,
) -> Result<Cow<'a, Map<String, Value>>, RuntimeError> {
    match map.get("text_config") {
        Some(Value::Object(text)) if architecture.windows == WindowRule::Pattern => {
            let mut text = text.clone();
            for name in SHARED {
                if let (Some(value), true) = (map.get(name), text.get(name).is_none_or(Value::is_null)) {
                    text.insert(name.to_owned(), value.clone());
                }
            }
            Ok(Cow::Owned(text))
        }
        Some(other) if architecture.windows == WindowRule::Pattern => {
            Err(RuntimeError::config("text_config", "an object", kind(other)))
        }
        _ => Ok(Cow::Borrowed(map)),
    }
}

/// Fails unless the gate is the one of the architecture.
fn gate(map: &Map<String, Value>, architecture: &Architecture) -> Result<(), RuntimeError> {
    let (name, expected, alike): (_, _, &[&str]) = match architecture.gate {
        Gate::Silu => ("hidden_act", "silu", &["silu", "swish"]),
        Gate::GeluTanh => ("hidden_activation", "gelu_pytorch_tanh", &["gelu_pytorch_tanh"]),
    };
    let field = Field { map, name };
    match field.present() {
        None => Ok(()),
        Some(Value::String(s)) if alike.contains(&s.as_str()) => Ok(()),
        Some(Value::String(other)) => Err(RuntimeError::config(name, expected, other)),
        Some(other) => Err(field.wrong(expected, other)),
    }
}

/// `scale` as the type of the checkpoint holds it: models are trained with that.
fn rounded(scale: f32, map: &Map<String, Value>) -> f32 {
    match ["dtype", "torch_dtype"].iter().find_map(|name| map.get(*name).and_then(Value::as_str)) {
        Some("bfloat16") => bf16::from_f32(scale).to_f32(),
        Some("float16") => f16::from_f32(scale).to_f32(),
        _ => scale,
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
                "architecture MambaForCausalLM cannot be run; those that can: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, \
                 MistralForCausalLM, Gemma3ForCausalLM, Gemma3ForConditionalGeneration. Weights in safetensors can be quantized, \
                 inspected and dequantized whatever the architecture is",
            ),
        ] {
            assert_eq!(with(changes).unwrap_err().to_string(), message);
        }
        assert!(ModelConfig::from_json(b"[1]").is_err());
        assert!(ModelConfig::from_json(b"{").is_err());
    }
}
