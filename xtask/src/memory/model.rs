//! A generated model of a given size, written as it is made: nothing of it is ever in memory.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Result;
use gosset_tests::t0::T0;

/// Values that are repeated, from another place for every tensor. A prime number of them, so that rows differ.
const BLOCK: usize = 1_048_573;

/// One tensor: its name in safetensors and in GGUF, and its shape.
struct Tensor {
    name: String,
    gguf: String,
    shape: Vec<u64>,
}

/// A decoder of equal layers.
pub(super) fn shape(layers: usize) -> T0 {
    T0 { layers, hidden: 2048, ffn: 5632, heads: 32, kv_heads: 8, head_dim: 64, ..T0::llama() }
}

/// Writes `t0` as a folder of one safetensors file; returns its bytes.
pub(super) fn write_safetensors(t0: &T0, folder: &Path) -> Result<u64> {
    // Tokenizer and side files are those of the small model.
    T0::llama().write(folder)?;
    fs::write(folder.join("config.json"), t0.config())?;
    let (mut header, mut at) = (String::from("{"), 0);
    for t in tensors(t0) {
        let end = at + 2 * t.shape.iter().product::<u64>();
        let comma = if at > 0 { "," } else { "" };
        header += &format!(
            "{comma}\"{}\":{{\"dtype\":\"BF16\",\"shape\":{:?},\"data_offsets\":[{at},{end}]}}",
            t.name, t.shape
        );
        at = end;
    }
    header.push('}');
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut out = BufWriter::new(File::create(folder.join("model.safetensors"))?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let block = block();
    for (i, t) in tensors(t0).iter().enumerate() {
        values(&block, i, t.shape.iter().product(), &mut out)?;
    }
    out.flush()?;
    Ok(8 + header.len() as u64 + at)
}

/// Writes `t0` as one GGUF file of the same weights, without a tokenizer; returns its bytes.
pub(super) fn write_gguf(t0: &T0, path: &Path) -> Result<u64> {
    const ALIGNMENT: u64 = 32;
    const BF16: u32 = 30;
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let tensors = tensors(t0);
    let integers = [
        ("llama.block_count", t0.layers),
        ("llama.embedding_length", t0.hidden),
        ("llama.feed_forward_length", t0.ffn),
        ("llama.attention.head_count", t0.heads),
        ("llama.attention.head_count_kv", t0.kv_heads),
        ("llama.context_length", 512),
        ("llama.vocab_size", t0.vocab),
    ];
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((integers.len() as u64 + 2).to_le_bytes());
    head.extend([string("general.architecture"), 8u32.to_le_bytes().to_vec(), string("llama")].concat());
    head.extend(string("llama.attention.layer_norm_rms_epsilon"));
    head.extend([6u32.to_le_bytes(), 1e-5f32.to_le_bytes()].concat());
    for (key, value) in integers {
        head.extend([string(key), 4u32.to_le_bytes().to_vec(), (value as u32).to_le_bytes().to_vec()].concat());
    }
    let mut at = 0u64;
    for t in &tensors {
        head.extend(string(&t.gguf));
        head.extend((t.shape.len() as u32).to_le_bytes());
        t.shape.iter().rev().for_each(|d| head.extend(d.to_le_bytes()));
        head.extend(BF16.to_le_bytes());
        head.extend(at.to_le_bytes());
        at += (2 * t.shape.iter().product::<u64>()).next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&head)?;
    let block = block();
    for (i, t) in tensors.iter().enumerate() {
        let n: u64 = t.shape.iter().product();
        values(&block, i, n, &mut out)?;
        let padding = (2 * n).next_multiple_of(ALIGNMENT) - 2 * n;
        out.write_all(&vec![0; padding as usize])?;
    }
    out.flush()?;
    Ok(head.len() as u64 + at)
}

fn tensors(t0: &T0) -> Vec<Tensor> {
    let (hidden, ffn, vocab) = (t0.hidden as u64, t0.ffn as u64, t0.vocab as u64);
    let (q, kv) = ((t0.heads * t0.head_dim) as u64, (t0.kv_heads * t0.head_dim) as u64);
    let tensor = |name: &str, gguf: &str, shape: &[u64]| Tensor {
        name: format!("{name}.weight"),
        gguf: format!("{gguf}.weight"),
        shape: shape.to_vec(),
    };
    let mut all = vec![tensor("model.embed_tokens", "token_embd", &[vocab, hidden])];
    for i in 0..t0.layers {
        let of_layer = |name: &str, gguf: &str, shape: &[u64]| {
            tensor(&format!("model.layers.{i}.{name}"), &format!("blk.{i}.{gguf}"), shape)
        };
        all.extend([
            of_layer("input_layernorm", "attn_norm", &[hidden]),
            of_layer("self_attn.q_proj", "attn_q", &[q, hidden]),
            of_layer("self_attn.k_proj", "attn_k", &[kv, hidden]),
            of_layer("self_attn.v_proj", "attn_v", &[kv, hidden]),
            of_layer("self_attn.o_proj", "attn_output", &[hidden, q]),
            of_layer("post_attention_layernorm", "ffn_norm", &[hidden]),
            of_layer("mlp.gate_proj", "ffn_gate", &[ffn, hidden]),
            of_layer("mlp.up_proj", "ffn_up", &[ffn, hidden]),
            of_layer("mlp.down_proj", "ffn_down", &[hidden, ffn]),
        ]);
    }
    all.push(tensor("model.norm", "output_norm", &[hidden]));
    all
}

/// Values near normal with sigma 0.02, as bfloat16.
fn block() -> Vec<u8> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let mut value = || (0..6).map(|_| uniform()).sum::<f32>() * (2f32).sqrt() * 0.02;
    (0..BLOCK).flat_map(|_| ((value().to_bits() >> 16) as u16).to_le_bytes()).collect()
}

/// Writes `n` values, from a place in the block that the number of the tensor decides.
fn values(block: &[u8], tensor: usize, n: u64, out: &mut impl std::io::Write) -> Result<()> {
    let mut left = 2 * n as usize;
    let mut at = 2 * (tensor * 104_729 % BLOCK);
    while left > 0 {
        let len = left.min(block.len() - at);
        out.write_all(&block[at..at + len])?;
        left -= len;
        at = 0;
    }
    Ok(())
}
