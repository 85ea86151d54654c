//! Rates of a file that no codec touched.

use std::fs;

use anyhow::{Context, Result};
use gosset_eval::Rates;
use gosset_quantize::{Action, ModelSource, Plan, TensorInfo};

/// Bytes of the source's files and the rates that they amount to.
///
/// The rates are over the tensors that `plan` would quantize, so that they stand beside those of the codecs.
pub(super) fn source_rates(source: &dyn ModelSource, plan: &Plan) -> Result<(u64, Rates)> {
    let mut file_bytes = 0;
    for path in &source.info().files {
        file_bytes += fs::metadata(path).with_context(|| format!("{}", path.display()))?.len();
    }
    let n_params = source.tensors().iter().map(TensorInfo::n_weights).sum();
    let replaced = plan.items.iter().filter(|item| matches!(item.action, Action::Quantize { .. }));
    let (bits, n) =
        replaced.fold((0, 0), |(bits, n), item| (bits + item.tensor.n_bytes * 8, n + item.tensor.n_weights()));
    Ok((file_bytes, Rates::unquantized(bits, n, file_bytes, n_params)))
}

/// `Q8_0 as in the source`: what happened to embeddings and output head in the unquantized model.
pub(super) fn source_embeddings(source: &dyn ModelSource) -> String {
    describe_embeddings(source.tensors().iter().map(|t| (t.name.as_str(), format!("{} as in the source", t.dtype))))
}

/// The states of the embedding table and the output head, out of all tensors' names and states.
pub(super) fn describe_embeddings<'a>(tensors: impl Iterator<Item = (&'a str, String)>) -> String {
    let (mut table, mut head) = (None, None);
    for (name, state) in tensors {
        match name {
            "model.embed_tokens.weight" => table = Some(state),
            "lm_head.weight" => head = Some(state),
            _ => {}
        }
    }
    match (table, head) {
        (Some(table), Some(head)) if table != head => format!("{table}; output head {head}"),
        (Some(table), _) => table,
        (None, Some(head)) => format!("output head {head}"),
        (None, None) => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_and_head_are_told_apart_only_where_they_differ() {
        let describe =
            |list: &[(&'static str, &str)]| describe_embeddings(list.iter().map(|(n, s)| (*n, s.to_string())));
        let (table, head) = ("model.embed_tokens.weight", "lm_head.weight");
        assert_eq!(describe(&[(table, "Q8_0")]), "Q8_0");
        assert_eq!(describe(&[(table, "F16"), (head, "F16"), ("x", "y")]), "F16");
        assert_eq!(describe(&[(head, "Q6_K"), (table, "Q5_0")]), "Q5_0; output head Q6_K");
    }
}
