//! Models by name: their configurations without their weights.

use anyhow::{Result, bail};
use gosset_runtime::ModelConfig;
use serde_json::json;

/// Sizes of a decoder.
#[derive(Debug)]
pub(super) struct ModelShape {
    pub(super) name: &'static str,
    hidden: usize,
    ffn: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    vocab: usize,
    pub(super) tied: bool,
}

static SHAPES: [ModelShape; 3] = [
    ModelShape {
        name: "llama-3.1-8b",
        hidden: 4096,
        ffn: 14_336,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        vocab: 128_256,
        tied: false,
    },
    ModelShape {
        name: "qwen2.5-0.5b",
        hidden: 896,
        ffn: 4864,
        layers: 24,
        heads: 14,
        kv_heads: 2,
        vocab: 151_936,
        tied: true,
    },
    ModelShape {
        name: "smollm2-135m",
        hidden: 576,
        ffn: 1536,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        vocab: 49_152,
        tied: true,
    },
];

impl ModelShape {
    pub(super) fn find(name: &str) -> Result<&'static Self> {
        let found = SHAPES.iter().find(|shape| shape.name == name);
        let Some(shape) = found else {
            let names = SHAPES.each_ref().map(|shape| shape.name).join(", ");
            bail!("model {name}: expected one of {names}");
        };
        Ok(shape)
    }

    /// The configuration, with the rotary scaling of Llama 3.1 for all.
    pub(super) fn config(&self) -> Result<ModelConfig> {
        let config = json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "vocab_size": self.vocab,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": self.tied,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192
            }
        });
        Ok(ModelConfig::from_json(config.to_string().as_bytes())?)
    }
}
