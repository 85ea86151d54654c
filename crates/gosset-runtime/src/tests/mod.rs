//! Laws of whole models, on seeded tiny ones.

mod calibration;
mod container;
mod forward;
mod generation;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "gpu")]
mod gpu_kv;
mod kv;
mod larger;
mod reference;
mod unisvq;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use gosset_quantize::{ModelSource, SourceError, SourceInfo, TensorInfo};
use serde_json::{Value, json};

use crate::source::fixture::TinyModel;
use reference::Reference;

/// A checkpoint in memory, all f32, that tests change at will.
pub(crate) struct MemorySource {
    info: SourceInfo,
    tensors: Vec<TensorInfo>,
    data: Vec<Vec<f32>>,
    blobs: Vec<(&'static str, Vec<u8>)>,
}

impl MemorySource {
    /// The tensors, configuration and tokenizer of `tiny`, in values that BF16 holds.
    pub(crate) fn new(tiny: &TinyModel) -> Self {
        let mut source = Self {
            info: SourceInfo {
                kind: "memory".into(),
                name: "tiny".into(),
                architecture: Some("LlamaForCausalLM".into()),
                files: Vec::new(),
                total_bytes: 0,
                fingerprint: String::new(),
            },
            tensors: Vec::new(),
            data: Vec::new(),
            blobs: vec![
                ("config.json", tiny.config().to_string().into_bytes()),
                ("tokenizer.json", tiny.tokenizer().to_string().into_bytes()),
            ],
        };
        for t in tiny.tensors("BF16").unwrap() {
            source.add(&t.name, &t.shape, t.data);
        }
        source
    }

    pub(crate) fn add(&mut self, name: &str, shape: &[usize], data: Vec<f32>) {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "{name}");
        let n_bytes = data.len() as u64 * 4;
        self.tensors.push(TensorInfo { name: name.into(), shape: shape.to_vec(), dtype: "F32".into(), n_bytes });
        self.data.push(data);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let i = self.index(name);
        self.tensors.remove(i);
        self.data.remove(i);
    }

    pub(crate) fn tensor_mut(&mut self, name: &str) -> &mut Vec<f32> {
        let i = self.index(name);
        &mut self.data[i]
    }

    fn index(&self, name: &str) -> usize {
        self.tensors.iter().position(|t| t.name == name).unwrap_or_else(|| panic!("{name}"))
    }

    pub(crate) fn set_blob(&mut self, name: &'static str, bytes: Option<Vec<u8>>) {
        self.blobs.retain(|(n, _)| *n != name);
        self.blobs.extend(bytes.map(|b| (name, b)));
    }

    pub(crate) fn config(&self) -> Value {
        serde_json::from_slice(self.blob("config.json").unwrap()).unwrap()
    }

    pub(crate) fn set_config(&mut self, key: &str, value: Value) {
        let mut config = self.config();
        config[key] = value;
        self.set_blob("config.json", Some(config.to_string().into_bytes()));
    }

    fn reference(&self) -> Reference {
        let tensors = self.tensors.iter().zip(&self.data);
        let tensors: HashMap<_, _> =
            tensors.map(|(t, data)| (t.name.clone(), (t.shape.clone(), data.clone()))).collect();
        Reference { config: self.config(), tensors, inputs: RefCell::default() }
    }
}

impl ModelSource for MemorySource {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read_rows(&self, index: usize, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError> {
        let (_, cols) = self.tensors[index].rows_cols();
        out.copy_from_slice(&self.data[index][rows.start * cols..rows.end * cols]);
        Ok(())
    }

    fn raw_bytes(&self, index: usize) -> Result<Cow<'_, [u8]>, SourceError> {
        Ok(self.data[index].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into())
    }

    fn blob(&self, name: &str) -> Option<&[u8]> {
        self.blobs.iter().find(|(n, _)| *n == name).map(|(_, b)| b.as_slice())
    }

    fn blobs(&self) -> Vec<(&str, &[u8])> {
        self.blobs.iter().map(|(n, b)| (*n, b.as_slice())).collect()
    }
}

/// Seeded numbers, about normal with the given spread.
pub(crate) fn numbers(n: usize, seed: u32, centre: f32, spread: f32) -> Vec<f32> {
    let uniform = |w: u32| w as f32 / 2f32.powi(32) - 0.5;
    (0..n as u32)
        .map(|i| {
            let words = gosset_transform::philox4x32_10([i, 0, 0, 1], [seed, 0]);
            centre + spread * 1.7 * words.into_iter().map(uniform).sum::<f32>()
        })
        .collect()
}

/// Seeded token ids below `vocab`.
pub(crate) fn ids(n: usize, vocab: u32, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| gosset_transform::philox4x32_10([i, 0, 0, 2], [seed, 0])[0] % vocab).collect()
}

/// A Qwen3-like checkpoint: hidden 40, 4 heads of a stated 16, 2 KV heads, normalized queries and keys.
pub(crate) fn qwen3_like() -> MemorySource {
    use crate::source::fixture::TinyFamily;
    let tiny = TinyModel { hidden: 40, head_dim: 16, ..TinyModel::t0(TinyFamily::Llama, 5) };
    let mut source = MemorySource::new(&tiny);
    for layer in 0..2 {
        for part in ["q", "k"] {
            let name = format!("model.layers.{layer}.self_attn.{part}_norm.weight");
            source.add(&name, &[16], numbers(16, 60 + layer, 1.0, 0.2));
        }
    }
    source.set_config("architectures", json!(["Qwen3ForCausalLM"]));
    source.set_config("model_type", json!("qwen3"));
    source
}

/// A Gemma-3-like checkpoint: the first of two layers with a window of 16 and a rotary base of its own, norms on both sides.
pub(crate) fn gemma3_like() -> MemorySource {
    use crate::source::fixture::TinyFamily;
    let tiny = TinyModel { hidden: 40, head_dim: 16, tied: true, ..TinyModel::t0(TinyFamily::Llama, 15) };
    let mut source = MemorySource::new(&tiny);
    for layer in 0..2 {
        let part = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for (i, norm) in ["pre_feedforward_layernorm", "post_feedforward_layernorm"].into_iter().enumerate() {
            source.add(&part(norm), &[40], numbers(40, 70 + 2 * layer + i as u32, 0.1, 0.2));
        }
        for norm in ["q_norm", "k_norm"] {
            source.add(&part(&format!("self_attn.{norm}")), &[16], numbers(16, 80 + layer, 0.1, 0.2));
        }
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            source.tensor_mut(&part(norm)).iter_mut().for_each(|w| *w -= 1.0);
        }
    }
    for (key, value) in [
        ("architectures", json!(["Gemma3ForCausalLM"])),
        ("model_type", json!("gemma3_text")),
        ("head_dim", json!(16)),
        ("query_pre_attn_scalar", json!(24)),
        ("sliding_window", json!(16)),
        ("sliding_window_pattern", json!(2)),
        ("rope_local_base_freq", json!(1000.0)),
    ] {
        source.set_config(key, value);
    }
    source
}

/// A Mistral-like checkpoint with a window of 16.
pub(crate) fn mistral_like() -> MemorySource {
    use crate::source::fixture::TinyFamily;
    let mut source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 16));
    for (key, value) in [
        ("architectures", json!(["MistralForCausalLM"])),
        ("model_type", json!("mistral")),
        ("sliding_window", json!(16)),
    ] {
        source.set_config(key, value);
    }
    source
}
