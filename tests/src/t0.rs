//! T0: a generated checkpoint small enough for every test.
//!
//! Llama type: 2 layers, hidden 64, 4 query heads, 2 key-value heads, head dimension 16, FFN 176, vocabulary 260 (a byte-level
//! tokenizer and 4 specials), BF16, weights near normal with sigma 0.02, one safetensors file below 1 MB. The Qwen type adds Q/K/V
//! biases. The weights come from integer arithmetic and exact sums, so they are the same on every machine.

use std::fs;
use std::io;
use std::path::Path;

/// Number of special tokens; their ids follow those of the 256 bytes.
pub const N_SPECIAL: usize = 4;

/// The special tokens, with ids 256 to 259.
pub const SPECIALS: [&str; N_SPECIAL] = ["<s>", "</s>", "<pad>", "<unk>"];

/// Family of the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `LlamaForCausalLM`.
    Llama,
    /// `Qwen2ForCausalLM`: biases on Q, K and V.
    Qwen2,
}

/// Dtype of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

/// What to generate. [`T0::llama`] and [`T0::qwen2`] are the checkpoints of the acceptance cases; change fields for variants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct T0 {
    /// Family.
    pub family: Family,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the FFN.
    pub ffn: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Flag in `config.json`; `None` leaves it out.
    pub tie: Option<bool>,
    /// Whether `lm_head.weight` is stored.
    pub head: bool,
    /// Whether a stored head equals the embedding table.
    pub head_equals_embeddings: bool,
    /// Dtype.
    pub dtype: Dtype,
    /// Seed of the weights.
    pub seed: u64,
    /// Number of safetensors files; more than one come with an index.
    pub shards: usize,
}

/// One tensor with f32 values that its dtype holds exactly.
#[derive(Debug, Clone, PartialEq)]
pub struct T0Tensor {
    /// Hugging Face name.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Values, row-major.
    pub values: Vec<f32>,
}

impl T0 {
    /// The Llama-type checkpoint: tied head, one file, seed 0.
    pub fn llama() -> Self {
        T0 {
            family: Family::Llama,
            layers: 2,
            hidden: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ffn: 176,
            vocab: 260,
            tie: Some(true),
            head: false,
            head_equals_embeddings: false,
            dtype: Dtype::Bf16,
            seed: 0,
            shards: 1,
        }
    }

    /// The Qwen-type checkpoint: Q/K/V biases, otherwise as [`T0::llama`].
    pub fn qwen2() -> Self {
        T0 { family: Family::Qwen2, ..T0::llama() }
    }

    /// T0-big: hidden 1024 and 8 layers, otherwise as [`T0::llama`].
    pub fn big() -> Self {
        T0 { hidden: 1024, layers: 8, ..T0::llama() }
    }

    /// All tensors in the order of the file.
    pub fn tensors(&self) -> Vec<T0Tensor> {
        let mut out = vec![self.normal("model.embed_tokens.weight", &[self.vocab, self.hidden])];
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
            out.push(self.ones(&name("input_layernorm.weight")));
            for (proj, rows) in [("q", q), ("k", kv), ("v", kv)] {
                out.push(self.normal(&name(&format!("self_attn.{proj}_proj.weight")), &[rows, self.hidden]));
                if self.family == Family::Qwen2 {
                    out.push(self.normal(&name(&format!("self_attn.{proj}_proj.bias")), &[rows]));
                }
            }
            out.push(self.normal(&name("self_attn.o_proj.weight"), &[self.hidden, q]));
            out.push(self.ones(&name("post_attention_layernorm.weight")));
            out.push(self.normal(&name("mlp.gate_proj.weight"), &[self.ffn, self.hidden]));
            out.push(self.normal(&name("mlp.up_proj.weight"), &[self.ffn, self.hidden]));
            out.push(self.normal(&name("mlp.down_proj.weight"), &[self.hidden, self.ffn]));
        }
        out.push(self.ones("model.norm.weight"));
        if self.head {
            let mut head = self.normal("lm_head.weight", &[self.vocab, self.hidden]);
            if self.head_equals_embeddings {
                head.values.clone_from(&out[0].values);
            }
            out.push(head);
        }
        out
    }

    /// `config.json`.
    pub fn config(&self) -> String {
        let (architecture, model_type) = match self.family {
            Family::Llama => ("LlamaForCausalLM", "llama"),
            Family::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
        };
        let tie = self.tie.map_or_else(String::new, |t| format!("\n  \"tie_word_embeddings\": {t},"));
        let dtype = match self.dtype {
            Dtype::Bf16 => "bfloat16",
            Dtype::F16 => "float16",
            Dtype::F32 => "float32",
        };
        format!(
            r#"{{
  "architectures": ["{architecture}"],
  "model_type": "{model_type}",{tie}
  "hidden_size": {hidden},
  "intermediate_size": {ffn},
  "num_hidden_layers": {layers},
  "num_attention_heads": {heads},
  "num_key_value_heads": {kv_heads},
  "head_dim": {head_dim},
  "vocab_size": {vocab},
  "max_position_embeddings": 512,
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "hidden_act": "silu",
  "bos_token_id": 256,
  "eos_token_id": 257,
  "torch_dtype": "{dtype}"
}}
"#,
            hidden = self.hidden,
            ffn = self.ffn,
            layers = self.layers,
            heads = self.heads,
            kv_heads = self.kv_heads,
            head_dim = self.head_dim,
            vocab = self.vocab,
        )
    }

    /// `generation_config.json`.
    pub fn generation_config(&self) -> String {
        "{\n  \"bos_token_id\": 256,\n  \"eos_token_id\": [257, 258]\n}\n".to_owned()
    }

    /// Writes the whole folder: weights, configuration and tokenizer. The folder is made if need be.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("config.json"), self.config())?;
        fs::write(folder.join("generation_config.json"), self.generation_config())?;
        fs::write(folder.join("tokenizer.json"), byte_tokenizer())?;
        let tensors = self.tensors();
        if self.shards <= 1 {
            return fs::write(folder.join("model.safetensors"), self.safetensors(&tensors));
        }
        let per_shard = tensors.len().div_ceil(self.shards);
        let mut map = Vec::new();
        for (i, part) in tensors.chunks(per_shard).enumerate() {
            let file = self.shard_name(i);
            fs::write(folder.join(&file), self.safetensors(part))?;
            map.extend(part.iter().map(|t| format!("\"{}\":\"{file}\"", t.name)));
        }
        let index = format!("{{\"metadata\":{{}},\"weight_map\":{{{}}}}}", map.join(","));
        fs::write(folder.join("model.safetensors.index.json"), index)
    }

    /// File name of a shard.
    pub fn shard_name(&self, index: usize) -> String {
        format!("model-{:05}-of-{:05}.safetensors", index + 1, self.shards)
    }

    /// The bytes of a safetensors file with these tensors in the checkpoint's dtype.
    pub fn safetensors(&self, tensors: &[T0Tensor]) -> Vec<u8> {
        let encoded: Vec<(String, &str, Vec<usize>, Vec<u8>)> = tensors
            .iter()
            .map(|t| (t.name.clone(), self.dtype.name(), t.shape.clone(), self.dtype.encode(&t.values)))
            .collect();
        safetensors(&encoded)
    }

    fn normal(&self, name: &str, shape: &[usize]) -> T0Tensor {
        let mut random = Random::new(self.seed, name);
        let values = (0..shape.iter().product()).map(|_| self.dtype.round(random.normal() * 0.02)).collect();
        T0Tensor { name: name.to_owned(), shape: shape.to_vec(), values }
    }

    /// Norm weights near one.
    fn ones(&self, name: &str) -> T0Tensor {
        let mut random = Random::new(self.seed, name);
        let values = (0..self.hidden).map(|_| self.dtype.round(1.0 + random.normal() * 0.05)).collect();
        T0Tensor { name: name.to_owned(), shape: vec![self.hidden], values }
    }
}

impl Dtype {
    /// Name in safetensors.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bf16 => "BF16",
            Dtype::F16 => "F16",
            Dtype::F32 => "F32",
        }
    }

    /// The nearest value the dtype holds. F16 is good for magnitudes from 2^-14 to 65504 and rounds smaller ones to multiples of 2^-24.
    pub fn round(self, v: f32) -> f32 {
        match self {
            Dtype::F32 => v,
            Dtype::Bf16 => {
                let bits = v.to_bits();
                f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
            }
            Dtype::F16 => {
                // Adding and removing 1.5 · 2^23 ulps rounds to nearest even at the wanted place.
                let exponent = (v.to_bits() >> 23 & 0xff) as i32 - 127;
                let ulp = 2f32.powi(exponent.max(-14) - 10);
                let shift = 12_582_912.0 * ulp;
                (v + shift) - shift
            }
        }
    }

    /// Little-endian bytes of values that the dtype holds exactly.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Dtype::Bf16 => values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect(),
            Dtype::F16 => values.iter().flat_map(|&v| half_bits(v).to_le_bytes()).collect(),
        }
    }
}

/// Bits of a half-precision number that is finite and exact.
fn half_bits(v: f32) -> u16 {
    let sign = (v.to_bits() >> 16 & 0x8000) as u16;
    let magnitude = v.abs();
    if magnitude < 2f32.powi(-14) {
        return sign | (magnitude * 2f32.powi(24)) as u16;
    }
    let bits = magnitude.to_bits();
    sign | (((bits >> 23) - 112) << 10) as u16 | (bits >> 13 & 0x3ff) as u16
}

/// The bytes of a safetensors file with `(name, dtype, shape, bytes)` tensors, in that order.
pub fn safetensors(tensors: &[(String, &str, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let mut entries = vec!["\"__metadata__\":{\"format\":\"pt\"}".to_owned()];
    let mut at = 0;
    for (name, dtype, shape, bytes) in tensors {
        let end = at + bytes.len();
        entries.push(format!("{name:?}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}"));
        at = end;
    }
    let mut header = format!("{{{}}}", entries.join(","));
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    tensors.iter().for_each(|(.., bytes)| out.extend_from_slice(bytes));
    out
}

/// A `tokenizer.json` with one token per byte (ids 0 to 255 in byte order) and [`SPECIALS`] after them.
pub fn byte_tokenizer() -> String {
    let vocab: Vec<String> = (0..=255u8).map(|b| format!("{}:{b}", json_string(&byte_char(b).to_string()))).collect();
    let added: Vec<String> = SPECIALS
        .iter()
        .enumerate()
        .map(|(i, s)| {
            format!(
                r#"{{"id":{},"content":"{s}","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}}"#,
                256 + i
            )
        })
        .collect();
    format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{}],"normalizer":null,"pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}},"post_processor":null,"decoder":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}},"model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{{{}}},"merges":[]}}}}"#,
        added.join(","),
        vocab.join(",")
    )
}

/// The character that byte-level tokenizers write for a byte: itself if it prints, otherwise the next unused one from U+0100 on.
fn byte_char(byte: u8) -> char {
    let prints = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if prints(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !prints(b)).count() as u32;
    char::from_u32(256 + before).expect("U+0100 to U+0143 are characters")
}

fn json_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// SplitMix64 keyed by seed and tensor name.
struct Random(u64);

impl Random {
    fn new(seed: u64, name: &str) -> Self {
        // FNV-1a of the name.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Nearly normal with variance 1: the centred sum of twelve uniform numbers, in integers so that it is the same everywhere.
    fn normal(&mut self) -> f32 {
        let sum: i64 = (0..6).map(|_| self.next()).map(|z| (z >> 32) as i64 + (z & 0xffff_ffff) as i64).sum();
        ((sum - 6 * (1 << 32)) as f64 / (1u64 << 32) as f64) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t0_is_small_and_always_the_same() {
        let t0 = T0::llama();
        let tensors = t0.tensors();
        let bytes = t0.safetensors(&tensors);
        assert!(bytes.len() < 1 << 20, "{}", bytes.len());
        assert_eq!(tensors.len(), 1 + 2 * 9 + 1);
        assert_eq!(T0::qwen2().tensors().len(), 1 + 2 * 12 + 1);
        let w = &tensors[0].values;
        let rms = (w.iter().map(|v| f64::from(v * v)).sum::<f64>() / w.len() as f64).sqrt();
        assert!((rms - 0.02).abs() < 0.001, "{rms}");
        assert_eq!(tensors, T0::llama().tensors());
    }

    #[test]
    fn rounded_values_survive_their_dtype() {
        for v in [0.0f32, 1.0, -0.02, 65504.0, 3.1e-5, 1e-7, 0.1] {
            let h = Dtype::F16.round(v);
            assert_eq!(Dtype::F16.encode(&[h]).len(), 2);
            assert!((h - v).abs() <= v.abs() / 2048.0 + 2f32.powi(-25), "{v} {h}");
            let b = Dtype::Bf16.round(v);
            assert!((b - v).abs() <= v.abs() / 256.0);
            assert_eq!(b.to_bits() & 0xffff, 0);
        }
        assert_eq!(half_bits(1.5), 0x3e00);
        assert_eq!(half_bits(-65504.0), 0xfbff);
        assert_eq!(half_bits(2f32.powi(-24)), 1);
    }

    #[test]
    fn byte_characters_are_distinct() {
        let mut chars: Vec<char> = (0..=255).map(byte_char).collect();
        assert_eq!((chars[b'A' as usize], chars[b' ' as usize], chars[0]), ('A', 'Ġ', 'Ā'));
        chars.sort_unstable();
        chars.dedup();
        assert_eq!(chars.len(), 256);
    }
}
