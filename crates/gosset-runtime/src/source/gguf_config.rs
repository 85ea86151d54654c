//! `config.json`, `generation_config.json` and `tokenizer_config.json` in the Hugging Face schema, made from GGUF metadata.

use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use serde_json::{Map, Value as Json, json};

use super::gguf_names::{Family, MISTRAL};
use crate::RuntimeError;

/// Control tokens that end a turn or a text in the families known here, whether or not the metadata lists them as such.
const END_TOKENS: [&str; 7] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"];

/// Metadata of one GGUF file, with typed access.
#[derive(Clone, Copy)]
pub(crate) struct Metadata<'a> {
    pub(crate) path: &'a Path,
    pub(crate) values: &'a HashMap<String, Value>,
}

impl<'a> Metadata<'a> {
    fn wrong(&self, key: &str, expected: &str, found: &Value) -> RuntimeError {
        let found = match found {
            Value::Array(values) => format!("an array of {}", values.len()),
            Value::String(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
            other => format!("{other:?}"),
        };
        RuntimeError::gguf(self.path, format!("metadata {key}: expected {expected}, found {found}"))
    }

    pub(crate) fn str(&self, key: &str) -> Result<Option<&'a str>, RuntimeError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, "a string", other)),
        }
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, RuntimeError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.wrong(key, "a boolean", other)),
        }
    }

    /// A count or an id of any integer type.
    pub(crate) fn u32(&self, key: &str) -> Result<Option<u32>, RuntimeError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        // Head counts may be one number per layer; models with equal layers are read, others are not implemented.
        let value = match value {
            Value::Array(values) => match values.split_first() {
                Some((first, rest)) if rest.iter().all(|v| int(v).is_some() && int(v) == int(first)) => first,
                _ => return Err(self.wrong(key, "one number, the same for every layer", value)),
            },
            other => other,
        };
        match int(value).and_then(|v| u32::try_from(v).ok()) {
            Some(v) => Ok(Some(v)),
            None => Err(self.wrong(key, "an integer from 0 to 2^32 - 1", value)),
        }
    }

    /// A float, as the f64 with the shortest decimal form of the stored f32: 1e-5 stays 1e-5 in JSON.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, RuntimeError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::F32(v)) if v.is_finite() => Ok(Some(shortest(*v))),
            Some(Value::F64(v)) if v.is_finite() => Ok(Some(*v)),
            Some(other) => Err(self.wrong(key, "a finite number", other)),
        }
    }

    pub(crate) fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, RuntimeError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array(values)) => values
                .iter()
                .map(|v| match v {
                    Value::String(text) => Ok(text.as_str()),
                    other => Err(self.wrong(key, "an array of strings", other)),
                })
                .collect::<Result<_, _>>()
                .map(Some),
            Some(other) => Err(self.wrong(key, "an array of strings", other)),
        }
    }

    pub(crate) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, RuntimeError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array(values)) => values
                .iter()
                .map(|v| match v {
                    Value::F32(v) => Ok(f64::from(*v)),
                    Value::F64(v) => Ok(*v),
                    other => int(other).map(|v| v as f64).ok_or_else(|| self.wrong(key, "an array of numbers", other)),
                })
                .collect::<Result<_, _>>()
                .map(Some),
            Some(other) => Err(self.wrong(key, "an array of numbers", other)),
        }
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, RuntimeError> {
        value.ok_or_else(|| RuntimeError::gguf(self.path, format!("metadata {key} is missing")))
    }
}

fn int(value: &Value) -> Option<i64> {
    match value {
        Value::U8(v) => Some((*v).into()),
        Value::I8(v) => Some((*v).into()),
        Value::U16(v) => Some((*v).into()),
        Value::I16(v) => Some((*v).into()),
        Value::U32(v) => Some((*v).into()),
        Value::I32(v) => Some((*v).into()),
        Value::U64(v) => i64::try_from(*v).ok(),
        Value::I64(v) => Some(*v),
        _ => None,
    }
}

fn shortest(v: f32) -> f64 {
    format!("{v:e}").parse().unwrap_or_else(|_| f64::from(v))
}

/// What `config.json` needs beside the metadata: facts about the tensors.
pub(crate) struct TensorFacts {
    pub(crate) n_vocab: Option<usize>,
    pub(crate) has_head: bool,
    pub(crate) has_qkv_bias: bool,
    pub(crate) has_mlp_bias: bool,
    /// `float32`, `float16` or `bfloat16`.
    pub(crate) torch_dtype: &'static str,
    /// Divisors of the rotary frequencies, one per pair, from the tensor `rope_freqs`.
    pub(crate) rope_factors: Option<Vec<f32>>,
}

/// Sizes of the attention, checked against each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) n_heads: u32,
    pub(crate) n_kv_heads: u32,
    pub(crate) head_dim: u32,
    explicit: bool,
}

pub(crate) fn heads(meta: Metadata<'_>, family: Family) -> Result<Heads, RuntimeError> {
    let key = |k: &str| format!("{}.{k}", family.gguf);
    let wrong = |detail: String| RuntimeError::gguf(meta.path, format!("metadata {detail}"));
    let hidden = meta.required(&key("embedding_length"), meta.u32(&key("embedding_length"))?)?;
    let n_heads = meta.required(&key("attention.head_count"), meta.u32(&key("attention.head_count"))?)?;
    let n_kv_heads = meta.u32(&key("attention.head_count_kv"))?.unwrap_or(n_heads);
    let stated = meta.u32(&key("attention.key_length"))?;
    let value_length = meta.u32(&key("attention.value_length"))?;
    if n_heads == 0 || n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
        return Err(wrong(format!(
            "head_count {n_heads}, head_count_kv {n_kv_heads}: expected a multiple of at least 1"
        )));
    }
    let head_dim = match stated {
        Some(d) => d,
        None if hidden.is_multiple_of(n_heads) => hidden / n_heads,
        None => return Err(wrong(format!("embedding_length {hidden}: expected a multiple of {n_heads} heads"))),
    };
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(wrong(format!("head size: expected an even number of at least 2, found {head_dim}")));
    }
    if value_length.is_some_and(|v| v != head_dim) {
        return Err(wrong(format!("value_length: expected the key length {head_dim}, found {value_length:?}")));
    }
    let rotated = meta.u32(&key("rope.dimension_count"))?;
    if rotated.is_some_and(|r| r != head_dim) {
        return Err(wrong(format!(
            "rope.dimension_count: expected the head size {head_dim}, found {rotated:?}: partly rotated heads are not supported"
        )));
    }
    Ok(Heads {
        n_heads,
        n_kv_heads,
        head_dim,
        explicit: stated.is_some_and(|d| u64::from(d) * u64::from(n_heads) != u64::from(hidden)),
    })
}

/// The window of metadata that state one.
fn window(meta: Metadata<'_>, family: Family) -> Result<Option<u32>, RuntimeError> {
    Ok(meta.u32(&format!("{}.attention.sliding_window", family.gguf))?.filter(|window| *window > 0))
}

/// The family, which of a `llama` file with a window is another: Mistral models come as `llama`.
pub(crate) fn with_window(meta: Metadata<'_>, family: Family) -> Result<Family, RuntimeError> {
    let is_mistral = family.gguf == MISTRAL.gguf && window(meta, family)?.is_some();
    Ok(if is_mistral { MISTRAL } else { family })
}

/// What Gemma 3 has and others have not.
///
/// Files leave out what all models of the family have in common: five local layers for each other one, and the rotary base of local layers.
/// The largest one, of 62 layers, divides scores by the root of its width over its heads, the others by that of `head_dim`.
fn gemma3(
    meta: Metadata<'_>,
    family: Family,
    heads: Heads,
    put: &mut dyn FnMut(&str, Json),
) -> Result<(), RuntimeError> {
    const LARGEST: u32 = 62;
    let key = |k: &str| format!("{}.{k}", family.gguf);
    let (layers, hidden) = (meta.u32(&key("block_count"))?, meta.u32(&key("embedding_length"))?.unwrap_or_default());
    let scalar = if layers == Some(LARGEST) { hidden / heads.n_heads } else { heads.head_dim };
    put("query_pre_attn_scalar", json!(scalar));
    put("sliding_window", json!(window(meta, family)?));
    put("sliding_window_pattern", json!(meta.u32(&key("attention.sliding_window_pattern"))?.unwrap_or(6)));
    put("rope_local_base_freq", json!(meta.float(&key("rope.freq_base_swa"))?.unwrap_or(10_000.0)));
    put("final_logit_softcapping", json!(meta.float(&key("final_logit_softcapping"))?.filter(|cap| *cap > 0.0)));
    put("hidden_activation", json!("gelu_pytorch_tanh"));
    Ok(())
}

/// `config.json` for the metadata and tensors of a GGUF model.
pub(crate) fn config_json(meta: Metadata<'_>, family: Family, facts: &TensorFacts) -> Result<Json, RuntimeError> {
    let key = |k: &str| format!("{}.{k}", family.gguf);
    let count = |k: &str| -> Result<u32, RuntimeError> { meta.required(&key(k), meta.u32(&key(k))?) };
    if meta.u32(&key("expert_count"))?.unwrap_or(0) > 0 {
        return Err(RuntimeError::UnsupportedArchitecture {
            found: format!("{} with experts", family.gguf),
            supported: Family::supported(),
        });
    }
    let heads = heads(meta, family)?;
    let context = count("context_length")?;
    let vocab = facts.n_vocab.map(|n| n as u64).or(meta.u32(&key("vocab_size"))?.map(u64::from));
    let mut config = Map::new();
    let mut put = |name: &str, value: Json| {
        config.insert(name.to_owned(), value);
    };
    put("architectures", json!([family.class]));
    put("model_type", json!(family.model_type));
    put("hidden_size", json!(count("embedding_length")?));
    put("intermediate_size", json!(count("feed_forward_length")?));
    put("num_hidden_layers", json!(count("block_count")?));
    put("num_attention_heads", json!(heads.n_heads));
    put("num_key_value_heads", json!(heads.n_kv_heads));
    if heads.explicit || family.gemma_norms {
        put("head_dim", json!(heads.head_dim));
    }
    if family.gemma_norms {
        gemma3(meta, family, heads, &mut put)?;
    } else {
        put("hidden_act", json!("silu"));
    }
    if family == MISTRAL {
        put("sliding_window", json!(window(meta, family)?));
    }
    put("max_position_embeddings", json!(context));
    let eps = meta.float(&key("attention.layer_norm_rms_epsilon"))?;
    put("rms_norm_eps", json!(meta.required(&key("attention.layer_norm_rms_epsilon"), eps)?));
    let usual = if family.gemma_norms { 1_000_000.0 } else { 10_000.0 };
    put("rope_theta", json!(meta.float(&key("rope.freq_base"))?.unwrap_or(usual)));
    if let Some(scaling) = rope_scaling(meta, family, facts, heads.head_dim, context)? {
        put("rope_scaling", scaling);
    }
    put("tie_word_embeddings", json!(!facts.has_head));
    if family.gguf == "llama" && family != MISTRAL {
        put("attention_bias", json!(facts.has_qkv_bias));
        put("mlp_bias", json!(facts.has_mlp_bias));
    }
    put(
        "vocab_size",
        json!(vocab.ok_or_else(|| RuntimeError::gguf(meta.path, "tensor token_embd.weight is missing"))?),
    );
    put("torch_dtype", json!(facts.torch_dtype));
    for (name, k) in
        [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id"), ("pad_token_id", "padding_token_id")]
    {
        if let Some(id) = meta.u32(&format!("tokenizer.ggml.{k}"))? {
            put(name, json!(id));
        }
    }
    Ok(Json::Object(config))
}

fn rope_scaling(
    meta: Metadata<'_>,
    family: Family,
    facts: &TensorFacts,
    head_dim: u32,
    context: u32,
) -> Result<Option<Json>, RuntimeError> {
    let key = |k: &str| format!("{}.rope.scaling.{k}", family.gguf);
    let original = meta.u32(&key("original_context_length"))?;
    if let Some(factors) = &facts.rope_factors {
        if factors.len() != head_dim as usize / 2 || factors.iter().any(|f| !f.is_finite() || *f <= 0.0) {
            return Err(RuntimeError::gguf(
                meta.path,
                format!(
                    "tensor rope_freqs.weight: expected {} positive numbers, found {}",
                    head_dim / 2,
                    factors.len()
                ),
            ));
        }
        let theta = meta.float(&format!("{}.rope.freq_base", family.gguf))?;
        if let Some(llama3) = llama3_scaling(factors, theta.unwrap_or(10000.0), original) {
            return Ok(Some(llama3));
        }
        // Any list of divisors is a `longrope` whose short and long lists are the same.
        let list: Vec<f64> = factors.iter().map(|&f| shortest(f)).collect();
        return Ok(Some(json!({
            "rope_type": "longrope",
            "short_factor": list,
            "long_factor": list,
            "attention_factor": 1.0,
            "original_max_position_embeddings": original.unwrap_or(context),
        })));
    }
    let kind = meta.str(&key("type"))?.unwrap_or("none");
    let factor = meta.float(&key("factor"))?.or(meta.float(&format!("{}.rope.scale_linear", family.gguf))?);
    match (kind, factor) {
        ("none", None) => Ok(None),
        ("none" | "linear", Some(factor)) if factor == 1.0 || factor == 0.0 => Ok(None),
        ("none" | "linear", Some(factor)) => Ok(Some(json!({ "rope_type": "linear", "factor": factor }))),
        (kind, factor) => Ok(Some(json!({
            "rope_type": kind,
            "factor": factor.unwrap_or(1.0),
            "original_max_position_embeddings": original.unwrap_or(context),
        }))),
    }
}

/// Divisors of the Llama-3 rule for `n` rotary pairs.
///
/// Pairs whose wavelength is below `original / high` turn as before, those above `original / low` are slowed by `factor`,
/// between them the frequency is interpolated linearly in `original / wavelength`.
pub(crate) fn llama3_factors(n: usize, theta: f64, factor: f64, low: f64, high: f64, original: f64) -> Vec<f64> {
    (0..n)
        .map(|i| {
            let frequency = theta.powf(-(i as f64) / n as f64);
            let turns = original * frequency / std::f64::consts::TAU;
            let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            1.0 / ((1.0 - smooth) / factor + smooth)
        })
        .collect()
}

/// The Llama-3 settings that give `factors`, if the usual ones do (low 1, high 4, original context 8192 or as stated).
fn llama3_scaling(factors: &[f32], theta: f64, original: Option<u32>) -> Option<Json> {
    /// The converter computes in f32; its wavelengths carry a few units in the last place.
    const TOLERANCE: f64 = 1e-5;
    let factor = shortest(*factors.last()?);
    let factor = if (factor - factor.round()).abs() < TOLERANCE { factor.round() } else { factor };
    let original = original.unwrap_or(8192);
    let expected = llama3_factors(factors.len(), theta, factor, 1.0, 4.0, f64::from(original));
    let fits = factors.iter().zip(&expected).all(|(&f, e)| (f64::from(f) - e).abs() <= TOLERANCE * e);
    fits.then(|| {
        json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        })
    })
}

/// `generation_config.json`: begin, end and padding ids. Every id that ends a turn or a text is listed.
pub(crate) fn generation_config_json(meta: Metadata<'_>) -> Result<Json, RuntimeError> {
    let mut ends = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ends.extend(meta.u32(&format!("tokenizer.ggml.{key}"))?);
    }
    if let Some(tokens) = meta.strings("tokenizer.ggml.tokens")? {
        let types = meta.numbers("tokenizer.ggml.token_type")?.unwrap_or_default();
        for (id, token) in tokens.iter().enumerate() {
            let is_control = types.get(id).is_some_and(|&t| t == 3.0);
            if is_control && END_TOKENS.contains(token) {
                ends.extend(u32::try_from(id));
            }
        }
    }
    let mut seen = Vec::new();
    ends.retain(|id| {
        !seen.contains(id) && {
            seen.push(*id);
            true
        }
    });
    let mut config = Map::new();
    if let Some(id) = meta.u32("tokenizer.ggml.bos_token_id")? {
        config.insert("bos_token_id".into(), json!(id));
    }
    if !ends.is_empty() {
        config.insert("eos_token_id".into(), json!(ends));
    }
    if let Some(id) = meta.u32("tokenizer.ggml.padding_token_id")? {
        config.insert("pad_token_id".into(), json!(id));
    }
    Ok(Json::Object(config))
}

/// `tokenizer_config.json`: the special tokens by name and whether BOS is put in front.
pub(crate) fn tokenizer_config_json(meta: Metadata<'_>, add_bos: bool) -> Result<Json, RuntimeError> {
    let tokens = meta.strings("tokenizer.ggml.tokens")?.unwrap_or_default();
    let mut config = Map::new();
    config.insert("add_bos_token".into(), json!(add_bos));
    for (name, key) in [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        let id = meta.u32(&format!("tokenizer.ggml.{key}_token_id"))?;
        if let Some(token) = id.and_then(|id| tokens.get(id as usize)) {
            config.insert(name.into(), json!(token));
        }
    }
    Ok(Json::Object(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_settings_come_back_from_their_factors() {
        let factors: Vec<f32> =
            llama3_factors(64, 500_000.0, 32.0, 1.0, 4.0, 8192.0).iter().map(|&f| f as f32).collect();
        assert_eq!(factors[0], 1.0);
        assert_eq!(factors[63], 32.0);
        let json = llama3_scaling(&factors, 500_000.0, None).unwrap();
        assert_eq!(json["factor"], 32.0);
        assert_eq!(json["original_max_position_embeddings"], 8192);
        assert!(llama3_scaling(&factors, 10_000.0, None).is_none());
    }

    #[test]
    fn stored_f32_keeps_its_short_decimal() {
        assert_eq!(shortest(1e-5f32), 1e-5);
        assert_eq!(shortest(100_000.0), 100_000.0);
        assert_eq!(shortest(1e-6f32) as f32, 1e-6f32);
    }

    #[test]
    fn wrong_types_name_the_key() {
        let values = HashMap::from([
            ("a".to_owned(), Value::String("x".into())),
            ("b".to_owned(), Value::Array(vec![Value::U32(3), Value::I32(3)])),
            ("c".to_owned(), Value::Array(vec![Value::U32(3), Value::U32(4)])),
            ("d".to_owned(), Value::I32(-1)),
        ]);
        let meta = Metadata { path: Path::new("m.gguf"), values: &values };
        assert!(meta.u32("a").unwrap_err().to_string().contains("metadata a: expected an integer"));
        assert_eq!(meta.u32("b").unwrap(), Some(3));
        assert!(meta.u32("c").is_err());
        assert!(meta.u32("d").is_err());
        assert_eq!(meta.u32("e").unwrap(), None);
    }
}
