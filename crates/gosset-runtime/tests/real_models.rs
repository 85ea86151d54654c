//! Vocabularies of real models against reference ids. Skips loudly where a model or the data folder is absent.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::PathBuf;

use gosset_quantize::ModelSource;
use gosset_runtime::source::GgufSource;
use gosset_runtime::text::{ChatTemplate, Message, TextStream, Tokenizer};
use sha2::{Digest, Sha256};

/// The folder named by `GOSSET_DATA`, which holds the texts and the smallest model.
fn data(file: &str) -> Option<PathBuf> {
    let found = std::env::var_os("GOSSET_DATA").map(|d| PathBuf::from(d).join(file)).filter(|p| p.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: {file} is not in the folder GOSSET_DATA");
    }
    found
}

/// A model of the user's cache, by the same rule as the command.
fn cached(file: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("GOSSET_CACHE")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("XDG_CACHE_HOME").map(|d| PathBuf::from(d).join("gosset")))
        .or_else(|| std::env::var_os("HOME").map(|d| PathBuf::from(d).join(".cache/gosset")));
    let found = cache.map(|c| c.join("models").join(file)).filter(|p| p.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: {file} is not in the cache");
    }
    found
}

fn open(path: &std::path::Path) -> (GgufSource, Tokenizer) {
    let source = GgufSource::open(path).unwrap();
    let tokenizer = Tokenizer::from_bytes(source.blob("tokenizer.json").unwrap()).unwrap();
    (source, tokenizer)
}

fn config(source: &GgufSource) -> serde_json::Value {
    serde_json::from_slice(source.blob("config.json").unwrap()).unwrap()
}

/// Ids, their count and the hash of their little-endian i32 dump equal those of the reference implementation.
fn ids_match(tokenizer: &Tokenizer, text: &str, n_ids: usize, first: [u32; 8], sha256: &str) {
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(&ids[..8], &first);
    assert_eq!(ids.len(), n_ids);
    let dump: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    assert_eq!(Sha256::digest(&dump).iter().map(|b| format!("{b:02x}")).collect::<String>(), sha256);
    assert_eq!(tokenizer.decode(&ids), text);
    assert!(tokenizer.leading_ids().is_empty());
}

#[test]
fn smollm2_ids_equal_the_reference() {
    let (Some(model), Some(text)) =
        (cached("smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"), data("wikitext-2/wiki.test.raw"))
    else {
        return;
    };
    let (source, tokenizer) = open(&model);
    ids_match(
        &tokenizer,
        &std::fs::read_to_string(text).unwrap(),
        303_415,
        [3717, 446, 6356, 389, 9226, 352, 446, 3717],
        "18e663b61dd00f49796c8a6ae498b7dbe009cac4a2eaf3c67fa7d81baf47d945",
    );
    let config = config(&source);
    assert_eq!(config["architectures"][0], "LlamaForCausalLM");
    assert_eq!(config["rope_theta"], 100_000.0);
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!(config["tie_word_embeddings"], true);
    assert_eq!(config["vocab_size"], 49152);
    assert_eq!(tokenizer.vocab_size(), 49152);
    let ends: serde_json::Value = serde_json::from_slice(source.blob("generation_config.json").unwrap()).unwrap();
    assert_eq!(ends["eos_token_id"], serde_json::json!([2, 0]));

    let template = ChatTemplate::from_blobs(source.blob("chat_template.jinja"), source.blob("tokenizer_config.json"))
        .unwrap()
        .unwrap();
    let text = template.render(&[Message::new("user", "Hi")], true).unwrap();
    assert!(text.starts_with("<|im_start|>system\nYou are a helpful AI assistant"), "{text}");
    assert!(text.ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"), "{text}");
    assert_eq!(tokenizer.encode(&text).unwrap()[0], 1);
}

#[test]
fn qwen2_ids_equal_the_reference() {
    let (Some(model), Some(text)) =
        (cached("qwen2.5-coder-0.5b/qwen2.5-coder-0.5b.gguf"), data("wikitext-2/wiki.test.raw"))
    else {
        return;
    };
    let (source, tokenizer) = open(&model);
    ids_match(
        &tokenizer,
        &std::fs::read_to_string(text).unwrap(),
        299_078,
        [715, 284, 8397, 425, 10965, 465, 284, 31906],
        "8557ef42be22a592e5f1704026fedbedc937b484e52f517add9f478adc0de20f",
    );
    let config = config(&source);
    assert_eq!(config["architectures"][0], "Qwen2ForCausalLM");
    assert_eq!(config["rope_theta"], 1e6);
    assert_eq!(config["tie_word_embeddings"], false);
    let template = ChatTemplate::from_blobs(source.blob("chat_template.jinja"), source.blob("tokenizer_config.json"))
        .unwrap()
        .unwrap();
    let text = template.render(&[Message::new("user", "Hi")], true).unwrap();
    assert!(text.ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"), "{text}");
}

#[test]
fn sentencepiece_vocabulary_round_trips() {
    let Some(model) = data("stories260K/stories260K.f32.gguf") else { return };
    let (source, tokenizer) = open(&model);
    assert_eq!(tokenizer.leading_ids(), [1]);
    assert_eq!(config(&source)["tie_word_embeddings"], false);
    for text in [
        "Once upon a time, there was a little girl named Lily.",
        "",
        " leading space",
        "two  spaces\nand a line",
        "é 🦀 日本語 \u{0}",
        "trailing ",
    ] {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&ids), text);
        let mut stream = TextStream::new(&tokenizer);
        let mut streamed: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
        streamed.push_str(&stream.finish());
        assert_eq!(streamed, text);
    }
    let ids = tokenizer.encode("Once upon a time").unwrap();
    assert_eq!(ids, [403, 407, 261, 378]);
    let mut continuing = TextStream::continuing(&tokenizer);
    assert_eq!(continuing.push(ids[0]).unwrap().chars().next(), Some(' '));
}
