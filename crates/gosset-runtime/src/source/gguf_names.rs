//! From GGUF tensor names and row order to those of Hugging Face.

/// Architectures whose GGUF form is understood, with the Hugging Face names they get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Family {
    /// `general.architecture` in GGUF.
    pub(crate) gguf: &'static str,
    /// `model_type` in `config.json`.
    pub(crate) model_type: &'static str,
    /// Entry of `architectures` in `config.json`.
    pub(crate) class: &'static str,
    /// GGUF holds the rows of q and k for interleaved rotary pairs, unlike Hugging Face.
    pub(crate) interleaved_qk: bool,
    /// GGUF holds the weights of norms as they are used, Hugging Face less by one; and layers have norms behind their parts too.
    pub(crate) gemma_norms: bool,
}

const LLAMA: Family =
    Family { gguf: "llama", model_type: "llama", class: "LlamaForCausalLM", interleaved_qk: true, gemma_norms: false };

const FAMILIES: [Family; 4] = [
    LLAMA,
    Family { gguf: "qwen2", model_type: "qwen2", class: "Qwen2ForCausalLM", interleaved_qk: false, ..LLAMA },
    Family { gguf: "qwen3", model_type: "qwen3", class: "Qwen3ForCausalLM", interleaved_qk: false, ..LLAMA },
    Family {
        gguf: "gemma3",
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        interleaved_qk: false,
        gemma_norms: true,
    },
];

/// What a `llama` file with a sliding window is.
pub(crate) const MISTRAL: Family = Family { model_type: "mistral", class: "MistralForCausalLM", ..LLAMA };

impl Family {
    pub(crate) fn of(architecture: &str) -> Option<Self> {
        FAMILIES.iter().copied().find(|f| f.gguf == architecture)
    }

    pub(crate) fn supported() -> String {
        FAMILIES.iter().map(|f| f.gguf).collect::<Vec<_>>().join(", ")
    }
}

/// Parts outside the layers, then parts of a layer.
const MODEL_PARTS: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];
const LAYER_PARTS: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Norms of layers that have them on both sides of their parts; others have the first and the third, under other names.
const GEMMA_NORMS: [(&str, &str); 4] = [
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// The Hugging Face name of a GGUF tensor; names without one are kept as they are.
pub(crate) fn hf_name(gguf: &str, family: Family) -> String {
    let translate = || {
        let (stem, leaf) = gguf.rsplit_once('.')?;
        if !matches!(leaf, "weight" | "bias") {
            return None;
        }
        if let Some((_, hf)) = MODEL_PARTS.iter().find(|(g, _)| *g == stem) {
            return Some(format!("{hf}.{leaf}"));
        }
        let (layer, part) = stem.strip_prefix("blk.")?.split_once('.')?;
        let layer: u32 = layer.parse().ok()?;
        let own: &[(&str, &str)] = if family.gemma_norms { &GEMMA_NORMS } else { &[] };
        let (_, hf) = own.iter().chain(&LAYER_PARTS).find(|(g, _)| *g == part)?;
        Some(format!("model.layers.{layer}.{hf}.{leaf}"))
    };
    translate().unwrap_or_else(|| gguf.to_owned())
}

/// How the rows of a stored tensor follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As in Hugging Face.
    Plain,
    /// Within each head of `head_dim` rows, rotary partners lie side by side: stored row `2 i + j` is row `j head_dim/2 + i`.
    Interleaved { head_dim: usize },
}

impl RowOrder {
    /// Stored position of Hugging Face row `row`.
    ///
    /// Rotary embedding turns the coordinates (i, i + head_dim/2) of a head in Hugging Face models and (2i, 2i + 1) in GGUF
    /// Llama models; the converter permutes the rows of q and k between the two, which leaves every score unchanged.
    pub(crate) fn stored_row(self, row: usize) -> usize {
        match self {
            RowOrder::Plain => row,
            RowOrder::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                let half = head_dim / 2;
                let (j, i) = (within / half, within % half);
                head * head_dim + 2 * i + j
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_hugging_face() {
        for (gguf, hf) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("output_norm.weight", "model.norm.weight"),
            ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
            ("blk.17.attn_k_norm.weight", "model.layers.17.self_attn.k_norm.weight"),
            ("blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight"),
            ("blk.x.ffn_down.weight", "blk.x.ffn_down.weight"),
            ("blk.3.ffn_gate_exps.weight", "blk.3.ffn_gate_exps.weight"),
            ("rope_freqs.weight", "rope_freqs.weight"),
            ("", ""),
        ] {
            assert_eq!(hf_name(gguf, LLAMA), hf);
        }
        let gemma = Family::of("gemma3").unwrap();
        assert_eq!(hf_name("blk.2.ffn_norm.weight", gemma), "model.layers.2.pre_feedforward_layernorm.weight");
        assert_eq!(hf_name("blk.2.ffn_norm.weight", LLAMA), "model.layers.2.post_attention_layernorm.weight");
        assert_eq!(hf_name("blk.2.post_ffw_norm.weight", gemma), "model.layers.2.post_feedforward_layernorm.weight");
        assert_eq!(hf_name("blk.2.attn_q.weight", gemma), "model.layers.2.self_attn.q_proj.weight");
    }

    /// The naive statement of the converter: split a head's rows in two halves and deal them out in turn.
    #[test]
    fn interleaving_deals_the_halves_in_turn() {
        for (heads, head_dim) in [(1, 2), (3, 8), (2, 64)] {
            let mut stored = Vec::new();
            for h in 0..heads {
                for i in 0..head_dim / 2 {
                    stored.push(h * head_dim + i);
                    stored.push(h * head_dim + head_dim / 2 + i);
                }
            }
            let order = RowOrder::Interleaved { head_dim };
            for row in 0..heads * head_dim {
                assert_eq!(stored[order.stored_row(row)], row);
            }
        }
    }
}
