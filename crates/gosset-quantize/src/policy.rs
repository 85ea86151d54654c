//! Which tensors are quantized by default, and why the others are not: one table.

use crate::source::TensorInfo;

/// Fewest weights worth coding in a model: one stream.
pub const MIN_WEIGHTS: u64 = 512;

/// What a tensor is, as far as the default policy cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A linear of a layer: quantized.
    Linear,
    /// Any 2-D float tensor of a file that is no known model: quantized.
    Matrix,
    /// Token or position embeddings: kept unless a rate for embeddings is given.
    Embedding,
    /// The output head: as embeddings.
    Head,
    /// Kept, as every model needs it exact or it is too small to matter. The text is the reason.
    Exact(&'static str),
    /// Would be quantized if it could be. The text is the reason why it cannot.
    Unable(&'static str),
}

/// Names of the modules that hold embeddings.
const EMBEDDINGS: &[&str] =
    &["embed_tokens", "embed_positions", "tok_embeddings", "word_embeddings", "embeddings", "embedding", "wte", "wpe"];

/// Full names of output heads.
const HEADS: &[&str] = &["lm_head.weight", "output.weight", "embed_out.weight"];

/// Full names of the token embedding table of supported models.
pub(crate) const TOKEN_EMBEDDINGS: &str = "model.embed_tokens.weight";

/// Full name of the output head of supported models.
pub(crate) const OUTPUT_HEAD: &str = "lm_head.weight";

/// Role of a tensor; `is_model` chooses between the policy for language models and the one for plain tensors.
pub(crate) fn role(t: &TensorInfo, is_model: bool) -> Role {
    if !is_float(&t.dtype) {
        return Role::Exact("not a float dtype");
    }
    if t.n_weights() == 0 {
        return Role::Exact("no elements");
    }
    if !is_model {
        return if t.shape.len() == 2 { Role::Matrix } else { Role::Exact("not 2-D") };
    }
    let parts: Vec<&str> = t.name.split('.').collect();
    let has = |names: &[&str]| parts.iter().any(|p| names.contains(p));
    if t.name.ends_with(".bias") {
        return Role::Exact("bias");
    }
    if parts.iter().any(|p| p.contains("norm") || p.starts_with("ln_")) {
        return Role::Exact("norm");
    }
    let is_matrix = t.shape.len() == 2;
    if HEADS.contains(&t.name.as_str()) && is_matrix {
        return Role::Head;
    }
    if has(EMBEDDINGS) && is_matrix {
        return Role::Embedding;
    }
    let in_layer = parts.iter().any(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    if !in_layer || !t.name.ends_with(".weight") {
        return Role::Exact("not a linear of a layer");
    }
    match t.shape.len() {
        0 | 1 => Role::Exact("1-D"),
        2 if t.n_weights() < MIN_WEIGHTS => Role::Unable("fewer than 512 weights (one stream)"),
        2 => Role::Linear,
        _ => Role::Unable("more than two dimensions"),
    }
}

/// Whether values of a dtype mean numbers on a continuous scale. Block types of GGUF do.
pub(crate) fn is_float(dtype: &str) -> bool {
    !matches!(dtype, "BOOL" | "U8" | "I8" | "U16" | "I16" | "U32" | "I32" | "U64" | "I64" | "C64")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, shape: &[usize], dtype: &str) -> TensorInfo {
        TensorInfo { name: name.into(), shape: shape.to_vec(), dtype: dtype.into(), n_bytes: 0 }
    }

    #[test]
    fn every_part_of_a_llama_has_its_role() {
        for (name, shape, role_of) in [
            ("model.embed_tokens.weight", &[260, 64][..], Role::Embedding),
            ("lm_head.weight", &[260, 64], Role::Head),
            ("model.norm.weight", &[64], Role::Exact("norm")),
            ("model.layers.1.input_layernorm.weight", &[64], Role::Exact("norm")),
            ("model.layers.1.self_attn.q_norm.weight", &[16], Role::Exact("norm")),
            ("model.layers.1.self_attn.q_proj.bias", &[64], Role::Exact("bias")),
            ("model.layers.1.self_attn.q_proj.weight", &[64, 64], Role::Linear),
            ("model.layers.1.mlp.gate.weight", &[2, 64], Role::Unable("fewer than 512 weights (one stream)")),
            ("model.layers.1.mlp.experts.weight", &[4, 64, 64], Role::Unable("more than two dimensions")),
            ("model.layers.1.mlp.empty.weight", &[0, 64], Role::Exact("no elements")),
            ("visual.proj.weight", &[64, 64], Role::Exact("not a linear of a layer")),
        ] {
            assert_eq!(role(&info(name, shape, "BF16"), true), role_of, "{name}");
        }
        assert_eq!(role(&info("model.layers.0.w.weight", &[64, 64], "I32"), true), Role::Exact("not a float dtype"));
    }

    #[test]
    fn plain_tensors_are_judged_by_shape_alone() {
        assert_eq!(role(&info("norm", &[1, 1], "F32"), false), Role::Matrix);
        assert_eq!(role(&info("norm", &[5], "F32"), false), Role::Exact("not 2-D"));
    }
}
