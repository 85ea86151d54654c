//! Names of the tensors of a language model that is a part of a larger one.

use std::borrow::Cow;

/// Where checkpoints have the language model of a model that sees: as written since 2025, and before.
const PARTS: [(&str, &str); 3] =
    [("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.lm_head.", "lm_head.")];

/// The name that a tensor has in a model of text alone; names of other parts stay as they are.
pub(crate) fn text_name(name: &str) -> Cow<'_, str> {
    let found = PARTS.iter().find_map(|(part, alone)| Some((alone, name.strip_prefix(part)?)));
    found.map_or(Cow::Borrowed(name), |(alone, rest)| Cow::Owned(format!("{alone}{rest}")))
}

/// What follows the layers' common start in the name of a tensor of a language model, such as `3.mlp.up_proj.weight`.
pub(crate) fn of_layers(name: &str) -> Option<&str> {
    let rest = PARTS.iter().filter(|(_, alone)| *alone == "model.").find_map(|(part, _)| name.strip_prefix(part));
    rest.or_else(|| name.strip_prefix("model."))?.strip_prefix("layers.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_model_of_a_larger_one_has_the_names_of_one_alone() {
        for (name, expected) in [
            ("model.language_model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
            ("language_model.model.embed_tokens.weight", "model.embed_tokens.weight"),
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
            ("vision_tower.layers.0.mlp.fc1.weight", "vision_tower.layers.0.mlp.fc1.weight"),
        ] {
            assert_eq!(text_name(name), expected);
            assert_eq!(of_layers(name), expected.strip_prefix("model.layers."));
        }
    }
}
