//! Tiny seeded checkpoints, written as a Hugging Face folder and as GGUF with the same weights, for tests.

use std::io;
use std::path::{Path, PathBuf};

use candle_core::quantized::QTensor;
use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng};
use serde_json::{Value as Json, json};

use super::block_type::BlockType;
use super::dequantize::dequantize;
use super::gguf_config::llama3_factors;
pub use super::gguf_write::GgufWriter;
use crate::RuntimeError;

/// Which family a tiny model belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TinyFamily {
    /// No biases; GGUF holds q and k rows interleaved.
    Llama,
    /// Biases on q, k and v; GGUF holds the rows as they are.
    Qwen2,
}

/// Sizes and seed of a tiny model. Norms are near 1, biases and weights normal-like with a spread of 0.02 to 0.2.
#[derive(Debug, Clone)]
pub struct TinyModel {
    /// Family.
    pub family: TinyFamily,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of one head, even.
    pub head_dim: usize,
    /// Width of the feed-forward part.
    pub ffn: usize,
    /// Layers.
    pub n_layers: usize,
    /// Rows of the embedding; the tokenizer has 260 ids (256 bytes, then pad, bos, eos and one more control token).
    pub n_vocab: usize,
    /// No output head of its own.
    pub tied: bool,
    /// Llama-3 rotary scaling: factor, low, high, original context.
    pub rope_llama3: Option<(f64, f64, f64, u32)>,
    /// Seed of the weights.
    pub seed: u64,
}

/// One tensor of a tiny model under its Hugging Face name.
#[derive(Debug, Clone)]
pub struct TinyTensor {
    /// Name.
    pub name: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Values, exactly representable in the asked type.
    pub data: Vec<f32>,
    /// Type the GGUF form stores it in.
    dtype: BlockType,
    /// Name in the GGUF form.
    gguf: String,
}

impl TinyModel {
    /// The acceptance fixture T0: 2 layers, hidden 64, 4 query and 2 KV heads of 16, FFN 176, vocabulary 260.
    pub fn t0(family: TinyFamily, seed: u64) -> Self {
        Self {
            family,
            hidden: 64,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 16,
            ffn: 176,
            n_layers: 2,
            n_vocab: 260,
            tied: false,
            rope_llama3: None,
            seed,
        }
    }

    /// Every tensor, with values that `dtype` (`F32`, `F16`, `BF16`, `Q8_0`, …) holds exactly. Norms and biases are F32 where
    /// `dtype` is a block type or F32, and so are matrices whose rows `dtype` cannot fill with whole blocks.
    ///
    /// # Errors
    /// If `dtype` is unknown.
    pub fn tensors(&self, dtype: &str) -> Result<Vec<TinyTensor>, RuntimeError> {
        let ty = BlockType::from_name(dtype).ok_or_else(|| RuntimeError::raw(dtype, "unknown type".into()))?;
        let mut rng = rand::rngs::StdRng::seed_from_u64(self.seed);
        let mut out = Vec::new();
        let mut add = |name: String, gguf: String, shape: &[usize]| -> Result<(), RuntimeError> {
            let n = shape.iter().product();
            let (centre, spread) = match shape {
                [_] if name.ends_with("bias") => (0.0, 0.2),
                [_] => (1.0, 0.1),
                [_, cols] => (0.0, 1.0 / (*cols as f32).sqrt()),
                _ => (0.0, 0.02),
            };
            // Sums of four uniform numbers are close enough to normal ones, with tails that stay bounded.
            let mut data: Vec<f32> = (0..n)
                .map(|_| centre + spread * (0..4).map(|_| rng.random_range(-0.87f32..0.87)).sum::<f32>())
                .collect();
            let cols = shape.last().copied().unwrap_or(1);
            let small = shape.len() < 2 && ty.block_len() > 1;
            let ty = if small || ty.row_bytes(cols).is_none() { BlockType::F32 } else { ty };
            let stored = encode(ty, &data)?;
            dequantize(ty, &stored, &mut data)?;
            out.push(TinyTensor { name, shape: shape.to_vec(), data, dtype: ty, gguf });
            Ok(())
        };
        let (h, q, kv, f) = (self.hidden, self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim, self.ffn);
        add("model.embed_tokens.weight".into(), "token_embd.weight".into(), &[self.n_vocab, h])?;
        for layer in 0..self.n_layers {
            let mut part = |hf: &str, gguf: &str, shape: &[usize]| {
                add(format!("model.layers.{layer}.{hf}"), format!("blk.{layer}.{gguf}"), shape)
            };
            part("input_layernorm.weight", "attn_norm.weight", &[h])?;
            for (hf, gguf, rows) in [("q", "attn_q", q), ("k", "attn_k", kv), ("v", "attn_v", kv)] {
                part(&format!("self_attn.{hf}_proj.weight"), &format!("{gguf}.weight"), &[rows, h])?;
                if self.family == TinyFamily::Qwen2 {
                    part(&format!("self_attn.{hf}_proj.bias"), &format!("{gguf}.bias"), &[rows])?;
                }
            }
            part("self_attn.o_proj.weight", "attn_output.weight", &[h, q])?;
            part("post_attention_layernorm.weight", "ffn_norm.weight", &[h])?;
            part("mlp.gate_proj.weight", "ffn_gate.weight", &[f, h])?;
            part("mlp.up_proj.weight", "ffn_up.weight", &[f, h])?;
            part("mlp.down_proj.weight", "ffn_down.weight", &[h, f])?;
        }
        add("model.norm.weight".into(), "output_norm.weight".into(), &[h])?;
        if !self.tied {
            add("lm_head.weight".into(), "output.weight".into(), &[self.n_vocab, h])?;
        }
        Ok(out)
    }

    /// `config.json`.
    pub fn config(&self) -> Json {
        let (class, model_type) = match self.family {
            TinyFamily::Llama => ("LlamaForCausalLM", "llama"),
            TinyFamily::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
        };
        let mut config = json!({
            "architectures": [class], "model_type": model_type,
            "hidden_size": self.hidden, "intermediate_size": self.ffn, "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads, "num_key_value_heads": self.n_kv_heads,
            "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied, "vocab_size": self.n_vocab, "bos_token_id": 257, "eos_token_id": 258,
        });
        if self.head_dim * self.n_heads != self.hidden {
            config["head_dim"] = json!(self.head_dim);
        }
        if let Some((factor, low, high, original)) = self.rope_llama3 {
            config["rope_scaling"] = json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": original,
            });
        }
        config
    }

    /// `tokenizer.json`: 256 byte tokens without merges, then `<pad>`, `<bos>`, `<eos>`, `<extra>`.
    pub fn tokenizer(&self) -> Json {
        let vocab: serde_json::Map<String, Json> =
            tokens().into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
        let added: Vec<Json> = CONTROL
            .iter()
            .zip(256..)
            .map(|(token, id)| {
                json!({ "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": false, "special": true })
            })
            .collect();
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "post_processor": null,
            "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        })
    }

    /// Writes a Hugging Face folder: `config.json`, `tokenizer.json`, `model.safetensors`. Block types are written as F32.
    ///
    /// # Errors
    /// Those of the file system, and unknown types.
    pub fn write_hf(&self, folder: &Path, dtype: &str) -> Result<(), RuntimeError> {
        let file = |name: &str, bytes: &[u8]| -> Result<(), RuntimeError> {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(RuntimeError::io(&path))
        };
        std::fs::create_dir_all(folder).map_err(RuntimeError::io(folder))?;
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for t in self.tensors(dtype)? {
            let ty = if t.dtype.block_len() > 1 { BlockType::F32 } else { t.dtype };
            let bytes = encode(ty, &t.data)?;
            let range = [data.len(), data.len() + bytes.len()];
            header.insert(t.name, json!({ "dtype": ty.name(), "shape": t.shape, "data_offsets": range }));
            data.extend(bytes);
        }
        let mut header = Json::Object(header).to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut all = (header.len() as u64).to_le_bytes().to_vec();
        all.extend(header.as_bytes());
        all.extend(data);
        file("model.safetensors", &all)?;
        file("config.json", self.config().to_string().as_bytes())?;
        file("tokenizer.json", self.tokenizer().to_string().as_bytes())
    }

    /// The model as a GGUF file in the making, laid out as the converter of llama.cpp does it.
    ///
    /// # Errors
    /// Unknown types.
    pub fn gguf(&self, dtype: &str) -> Result<GgufWriter, RuntimeError> {
        let arch = match self.family {
            TinyFamily::Llama => "llama",
            TinyFamily::Qwen2 => "qwen2",
        };
        let types: Vec<i32> = (0..260).map(|id| if id < 256 { 1 } else { 3 }).collect();
        let key = |k: &str| format!("{arch}.{k}");
        let mut w = GgufWriter::new()
            .str("general.architecture", arch)
            .u32(&key("context_length"), 512)
            .u32(&key("embedding_length"), self.hidden as u32)
            .u32(&key("block_count"), self.n_layers as u32)
            .u32(&key("feed_forward_length"), self.ffn as u32)
            .u32(&key("attention.head_count"), self.n_heads as u32)
            .u32(&key("attention.head_count_kv"), self.n_kv_heads as u32)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .f32(&key("rope.freq_base"), 10000.0)
            .str("tokenizer.ggml.model", "gpt2")
            .str("tokenizer.ggml.pre", "gpt-2")
            .strs("tokenizer.ggml.tokens", &tokens())
            .i32s("tokenizer.ggml.token_type", &types)
            .strs("tokenizer.ggml.merges", &[""; 0])
            .u32("tokenizer.ggml.bos_token_id", 257)
            .u32("tokenizer.ggml.eos_token_id", 258)
            .bool("tokenizer.ggml.add_bos_token", false);
        if self.head_dim * self.n_heads != self.hidden {
            w = w.u32(&key("attention.key_length"), self.head_dim as u32);
            w = w.u32(&key("attention.value_length"), self.head_dim as u32);
        }
        if let Some((factor, low, high, original)) = self.rope_llama3 {
            let n = self.head_dim / 2;
            let factors = llama3_factors(n, 10000.0, factor, low, high, f64::from(original));
            let bytes = factors.iter().flat_map(|&f| (f as f32).to_le_bytes()).collect();
            w = w.tensor("rope_freqs.weight", &[n], "F32", bytes);
        }
        for t in self.tensors(dtype)? {
            let is_qk = t.gguf.contains("attn_q.") || t.gguf.contains("attn_k.");
            let data = if self.family == TinyFamily::Llama && is_qk { self.interleave(&t) } else { t.data.clone() };
            // The converter keeps norms and biases in F32 whatever the rest is.
            let ty = if t.shape.len() < 2 { BlockType::F32 } else { t.dtype };
            w = w.tensor(&t.gguf, &t.shape, ty.name(), encode(ty, &data)?);
        }
        Ok(w)
    }

    /// Writes one GGUF file, or `n_parts` parts beside `path`; returns what was written.
    ///
    /// # Errors
    /// Those of the file system, and unknown types.
    pub fn write_gguf(&self, path: &Path, dtype: &str, n_parts: usize) -> Result<Vec<PathBuf>, RuntimeError> {
        let w = self.gguf(dtype)?;
        let written: io::Result<Vec<PathBuf>> = if n_parts == 1 {
            w.write(path).map(|()| vec![path.to_owned()])
        } else {
            let folder = path.parent().unwrap_or(Path::new("."));
            w.write_split(folder, &path.file_stem().unwrap_or_default().to_string_lossy(), n_parts)
        };
        written.map_err(RuntimeError::io(path))
    }

    /// Rows of each head dealt out from its two halves in turn.
    fn interleave(&self, t: &TinyTensor) -> Vec<f32> {
        let cols = if t.shape.len() == 2 { t.shape[1] } else { 1 };
        let half = self.head_dim / 2;
        let mut out = Vec::with_capacity(t.data.len());
        for head in t.data.chunks(self.head_dim * cols) {
            for i in 0..half {
                out.extend(&head[i * cols..(i + 1) * cols]);
                out.extend(&head[(i + half) * cols..(i + half + 1) * cols]);
            }
        }
        out
    }
}

const CONTROL: [&str; 4] = ["<pad>", "<bos>", "<eos>", "<extra>"];

/// The 260 tokens: GPT-2's character for each byte in byte order, then the control tokens.
fn tokens() -> Vec<String> {
    let mut next = 0x100;
    let mut tokens = Vec::new();
    for byte in 0..=255u32 {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { byte } else { next };
        next += u32::from(!printable);
        tokens.push(char::from_u32(code).map(String::from).unwrap_or_default());
    }
    tokens.extend(CONTROL.map(String::from));
    tokens
}

/// Little-endian bytes of `data` in type `ty`.
fn encode(ty: BlockType, data: &[f32]) -> Result<Vec<u8>, RuntimeError> {
    let tensor = Tensor::from_slice(data, data.len(), &Device::Cpu)?;
    Ok(QTensor::quantize(&tensor, ty.candle())?.data()?.into_owned())
}
