//! From words to token ids: raw completion or the model's chat template.

use anyhow::Result;
use gosset_runtime::LanguageModel;
use gosset_runtime::text::{Message, Tokenizer};

use crate::sandbox::Template;

/// Ids of plain text, with BOS in front where the model's own tokenizer puts it.
pub(crate) fn raw(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let mut ids = tokenizer.encode(text)?;
    let leading = tokenizer.leading_ids();
    if !ids.starts_with(leading) {
        ids.splice(0..0, leading.iter().copied());
    }
    Ok(ids)
}

/// Ids of a conversation up to where the assistant speaks: exactly one BOS, whether template or tokenizer brings it.
pub(crate) fn chat(
    model: &LanguageModel,
    tokenizer: &Tokenizer,
    template: &Template,
    messages: &[Message],
) -> Result<Vec<u32>> {
    let text = template.render(messages)?;
    let mut ids = raw(tokenizer, &text)?;
    // Families whose template prints BOS and whose tokenizer adds it under another rule would get two.
    if let Some(bos) = model.config().bos_token_id
        && ids.len() > 1
        && ids[0] == bos
    {
        let n = ids.iter().take_while(|&&id| id == bos).count();
        ids.drain(1..n);
    }
    Ok(ids)
}
