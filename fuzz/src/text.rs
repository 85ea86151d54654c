//! Side files of models: configurations, tokenizers, chat templates.

use gosset_runtime::ModelConfig;
use gosset_runtime::text::{ChatTemplate, Message, TextStream, Tokenizer};

pub(crate) fn config(data: &[u8]) {
    _ = ModelConfig::from_json(data);
}

pub(crate) fn tokenizer(data: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_bytes(data) else { return };
    for text in ["", "Hello,  wörld 🦀\n\t1234<s>", "a\u{300}\u{0}\u{fffd} the end</s>"] {
        if let Ok(ids) = tokenizer.encode(text) {
            _ = tokenizer.decode(&ids);
        }
    }
    _ = (tokenizer.encode_with_bos("x", Some(1)), tokenizer.leading_ids(), tokenizer.vocab_size());
    let ids: Vec<u32> = (0..tokenizer.id_bound().min(300)).chain([u32::MAX, tokenizer.id_bound()]).collect();
    let whole = tokenizer.decode(&ids);
    let mut stream = TextStream::new(&tokenizer);
    let mut pieces: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
    pieces.push_str(&stream.finish());
    assert_eq!(pieces, whole, "streamed text is not the whole");
}

/// Whether a template could make a text double again and again, which nothing inside a process bounds (the command renders in a process
/// of its own): such sources are compiled only, and not even that where constants could be multiplied.
fn doubles(source: &[u8]) -> (bool, bool) {
    let has = |word: &[u8]| source.windows(word.len()).any(|window| window == word);
    let joins = [&b"~"[..], b"+", b"*", b"replace", b"join", b"format", b"indent"].iter().any(|word| has(word));
    let again = [&b"set"[..], b"macro", b"for", b"with", b"call", b"filter"].iter().any(|word| has(word));
    (joins && again, source.iter().filter(|&&b| b == b'*').count() > 1)
}

/// A source that starts with `{"` is a `tokenizer_config.json`, any other a template.
pub(crate) fn chat_template(data: &[u8]) {
    let (grows, multiplies) = doubles(data);
    if multiplies {
        return;
    }
    let (source, config) = if data.starts_with(b"{\"") { (None, Some(data)) } else { (Some(data), None) };
    let Ok(Some(template)) = ChatTemplate::from_blobs(source, config) else { return };
    if grows {
        return;
    }
    let messages =
        [Message::new("system", "Be brief."), Message::new("user", "Hi <b>"), Message::new("assistant", "é")];
    _ = template.render(&messages, true);
    _ = template.render(&messages[1..2], false);
}
