//! `tokenizer.json` made from the vocabulary inside a GGUF file.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::gguf_config::Metadata;
use crate::RuntimeError;

/// Token types of GGUF's `tokenizer.ggml.token_type`.
const UNKNOWN: u32 = 2;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const BYTE: u32 = 6;

/// The word separator of SentencePiece vocabularies.
const SPACE_MARK: char = '\u{2581}';

/// Pieces are cut within their first characters only, up to this many.
const MAX_PIECE_CHARS: usize = 256;

/// How text is cut into words before byte-pair merging.
///
/// Each rule is the behaviour of the tokenizer of that name; GGUF states the name in `tokenizer.ggml.pre`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WordRule {
    /// Letters, digits or symbols, each with at most one space in front; contractions apart.
    Gpt2,
    /// As GPT-2 after every digit was cut out on its own.
    SmolLm,
    /// As Llama 3, each digit on its own.
    Qwen2,
    /// Digits in threes from the left, line ends kept with the symbols before them.
    Llama3,
}

impl WordRule {
    fn of(pre: Option<&str>) -> Option<Self> {
        match pre {
            None | Some("" | "default" | "gpt-2" | "gpt2") => Some(WordRule::Gpt2),
            Some("smollm" | "codeshell" | "refact" | "command-r" | "starcoder") => Some(WordRule::SmolLm),
            Some("qwen2" | "deepseek-r1-qwen" | "stablelm2") => Some(WordRule::Qwen2),
            Some("llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe" | "dbrx") => Some(WordRule::Llama3),
            Some(_) => None,
        }
    }

    const NAMES: &'static str = "default, gpt-2, smollm, qwen2, llama-bpe and their aliases";

    fn pre_tokenizer(self) -> Json {
        let bytes_only =
            json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
        let gpt2 = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
        match self {
            WordRule::Gpt2 => gpt2,
            WordRule::SmolLm => json!({
                "type": "Sequence",
                "pretokenizers": [{ "type": "Digits", "individual_digits": true }, gpt2],
            }),
            WordRule::Qwen2 => split_then(&large_vocabulary_words("\\p{N}"), bytes_only),
            WordRule::Llama3 => split_then(&large_vocabulary_words("\\p{N}{1,3}"), bytes_only),
        }
    }

    /// Words that are tokens themselves skip the merges.
    fn ignore_merges(self) -> bool {
        self == WordRule::Llama3
    }

    /// Whether BOS goes in front where the metadata does not say.
    fn adds_bos(self) -> bool {
        self == WordRule::Llama3
    }

    fn normalizer(self) -> Json {
        match self {
            WordRule::Qwen2 => json!({ "type": "NFC" }),
            _ => Json::Null,
        }
    }
}

/// Alternatives in the order they are tried: contractions in any case; a word with one leading symbol or space; digits; symbols
/// with one leading space and the line ends behind them; white space up to the last line end; white space that leaves one
/// space for the next word; the rest.
fn large_vocabulary_words(digits: &str) -> String {
    [
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+",
        digits,
        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*",
        "\\s*[\\r\\n]+",
        "\\s+(?!\\S)",
        "\\s+",
    ]
    .join("|")
}

fn split_then(regex: &str, next: Json) -> Json {
    let split = json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false });
    json!({ "type": "Sequence", "pretokenizers": [split, next] })
}

/// A vocabulary as `tokenizer.json`, and whether it puts BOS in front of a text.
pub(crate) struct GgufTokenizer {
    pub(crate) json: Json,
    pub(crate) adds_bos: bool,
}

/// The tokenizer of a GGUF file; `None` if the file has none.
///
/// Byte-level BPE (`gpt2`, with merges) and SentencePiece BPE (`llama`, with scores and byte fallback) are read.
///
/// # Errors
/// [`RuntimeError::Tokenizer`] for other models, unknown word rules, and vocabularies that contradict themselves.
pub(crate) fn gguf_tokenizer(meta: Metadata<'_>) -> Result<Option<GgufTokenizer>, RuntimeError> {
    let Some(model) = meta.str("tokenizer.ggml.model")? else { return Ok(None) };
    let tokens = meta
        .strings("tokenizer.ggml.tokens")?
        .ok_or_else(|| RuntimeError::Tokenizer("metadata tokenizer.ggml.tokens is missing".into()))?;
    let vocabulary = Vocabulary::new(meta, tokens)?;
    let stated_bos = meta.bool("tokenizer.ggml.add_bos_token")?;
    match model {
        "gpt2" => {
            let pre = meta.str("tokenizer.ggml.pre")?;
            let rule = WordRule::of(pre).ok_or_else(|| {
                RuntimeError::Tokenizer(format!(
                    "tokenizer.ggml.pre: expected one of {}, found {}",
                    WordRule::NAMES,
                    pre.unwrap_or_default()
                ))
            })?;
            let adds_bos = stated_bos.unwrap_or(rule.adds_bos());
            let merges = meta.strings("tokenizer.ggml.merges")?.ok_or_else(|| {
                RuntimeError::Tokenizer("metadata tokenizer.ggml.merges is missing, needed for model gpt2".into())
            })?;
            let json = vocabulary.byte_level(rule, &merges, adds_bos)?;
            Ok(Some(GgufTokenizer { json, adds_bos }))
        }
        "llama" => {
            let adds_bos = stated_bos.unwrap_or(true);
            let scores = meta.numbers("tokenizer.ggml.scores")?.unwrap_or_default();
            if scores.len() != vocabulary.tokens.len() || scores.iter().any(|s| s.is_nan()) {
                return Err(RuntimeError::Tokenizer(format!(
                    "tokenizer.ggml.scores: expected {} numbers, found {}",
                    vocabulary.tokens.len(),
                    scores.len()
                )));
            }
            let prefix = meta.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
            let json = vocabulary.sentencepiece(&scores, prefix, adds_bos)?;
            Ok(Some(GgufTokenizer { json, adds_bos }))
        }
        other => Err(RuntimeError::Tokenizer(format!("tokenizer.ggml.model: expected gpt2 or llama, found {other}"))),
    }
}

struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<u32>,
    bos: Option<u32>,
    unknown: Option<u32>,
}

impl<'a> Vocabulary<'a> {
    fn new(meta: Metadata<'a>, tokens: Vec<&'a str>) -> Result<Self, RuntimeError> {
        if u32::try_from(tokens.len()).is_err() || tokens.is_empty() {
            return Err(RuntimeError::Tokenizer(format!("expected from 1 to 2^32 - 1 tokens, found {}", tokens.len())));
        }
        let types = match meta.numbers("tokenizer.ggml.token_type")? {
            None => vec![1; tokens.len()],
            Some(types) if types.len() == tokens.len() => types.iter().map(|&t| t as u32).collect(),
            Some(types) => {
                return Err(RuntimeError::Tokenizer(format!(
                    "tokenizer.ggml.token_type: expected {} numbers, found {}",
                    tokens.len(),
                    types.len()
                )));
            }
        };
        let id = |key: &str| -> Result<Option<u32>, RuntimeError> {
            let id = meta.u32(&format!("tokenizer.ggml.{key}_token_id"))?;
            Ok(id.filter(|&id| (id as usize) < tokens.len()))
        };
        Ok(Self { bos: id("bos")?, unknown: id("unknown")?, tokens, types })
    }

    /// Ids by token. Of equal tokens the first counts; the others get a name of their own, so that their ids still exist.
    fn ids(&self) -> Map<String, Json> {
        let mut ids = Map::new();
        for (id, &token) in self.tokens.iter().enumerate() {
            let mut name = token.to_owned();
            while ids.contains_key(&name) {
                name = format!("{name}#{id}");
            }
            ids.insert(name, json!(id));
        }
        ids
    }

    /// Tokens that are matched in the text before anything else: control tokens (left out of decoded text) and user-defined ones.
    fn added_tokens(&self) -> Vec<Json> {
        let mut seen = std::collections::HashSet::new();
        let mut added = Vec::new();
        for (id, (&content, &ty)) in self.tokens.iter().zip(&self.types).enumerate() {
            let special = matches!(ty, CONTROL | UNKNOWN);
            if !(special || ty == USER_DEFINED) || content.is_empty() || !seen.insert(content) {
                continue;
            }
            added.push(json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            }));
        }
        added
    }

    fn post_processor(&self, adds_bos: bool, otherwise: Json) -> Json {
        let Some((id, token)) = self.bos.filter(|_| adds_bos).and_then(|id| Some((id, self.tokens.get(id as usize)?)))
        else {
            return otherwise;
        };
        let bos = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
        let sequence = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
        let mut special_tokens = Map::new();
        special_tokens.insert((*token).to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }));
        json!({
            "type": "TemplateProcessing",
            "single": [bos, sequence("A")],
            "pair": [bos, sequence("A"), bos, sequence("B")],
            "special_tokens": special_tokens,
        })
    }

    fn document(
        &self,
        normalizer: Json,
        pre_tokenizer: Json,
        post_processor: Json,
        decoder: Json,
        model: Json,
    ) -> Json {
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": self.added_tokens(),
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor,
            "decoder": decoder,
            "model": model,
        })
    }

    fn byte_level(&self, rule: WordRule, merges: &[&str], adds_bos: bool) -> Result<Json, RuntimeError> {
        let ids = self.ids();
        let mut pairs = Vec::with_capacity(merges.len());
        for (rank, merge) in merges.iter().enumerate() {
            // A token may itself contain a space only after its first byte, as byte-level tokens never do: the first space splits.
            let Some((left, right)) = merge.split_once(' ') else {
                return Err(RuntimeError::Tokenizer(format!("merge {rank}: expected two tokens, found {merge:?}")));
            };
            let known = |t: &str| ids.contains_key(t);
            if !known(left) || !known(right) || !known(&format!("{left}{right}")) {
                return Err(RuntimeError::Tokenizer(format!(
                    "merge {rank}: expected tokens of the vocabulary, found {merge:?}"
                )));
            }
            pairs.push(json!([left, right]));
        }
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
        let offsets =
            json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true });
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": rule.ignore_merges(), "vocab": ids, "merges": pairs,
        });
        let post = self.post_processor(adds_bos, offsets);
        Ok(self.document(rule.normalizer(), rule.pre_tokenizer(), post, bytes, model))
    }

    fn sentencepiece(&self, scores: &[f64], prefix: bool, adds_bos: bool) -> Result<Json, RuntimeError> {
        let merges: Vec<Json> = self.merges_of_scores(scores).into_iter().map(|(l, r)| json!([l, r])).collect();
        let unknown = self.unknown.or_else(|| self.types.iter().position(|&t| t == UNKNOWN).map(|id| id as u32));
        let unknown = unknown.map(|id| self.tokens[id as usize]);
        let mark = SPACE_MARK.to_string();
        let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": mark });
        let (normalizer, strip) = if prefix {
            let prepend = json!({ "type": "Prepend", "prepend": mark });
            (json!({ "type": "Sequence", "normalizers": [prepend, replace] }), 1)
        } else {
            (replace, 0)
        };
        let decoder = json!({ "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": mark }, "content": " " },
            { "type": "ByteFallback" },
            { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": strip, "stop": 0 },
        ] });
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": true, "byte_fallback": self.types.contains(&BYTE), "ignore_merges": false,
            "vocab": self.ids(), "merges": merges,
        });
        Ok(self.document(normalizer, Json::Null, self.post_processor(adds_bos, Json::Null), decoder, model))
    }

    /// Merges that act as SentencePiece does, best score first.
    ///
    /// SentencePiece joins the neighbouring pair whose join has the best score. A list of merges says the same when every way
    /// to cut a piece in two known pieces is listed at the piece's rank; cuts of one piece never compete at the same place.
    fn merges_of_scores(&self, scores: &[f64]) -> Vec<(&'a str, &'a str)> {
        let mut ids = HashMap::new();
        for (id, &token) in self.tokens.iter().enumerate() {
            if !matches!(self.types[id], CONTROL | UNKNOWN | BYTE) {
                ids.entry(token).or_insert(id);
            }
        }
        let mut ranked: Vec<usize> = ids.values().copied().collect();
        ranked.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        let mut merges = Vec::new();
        for id in ranked {
            let piece = self.tokens[id];
            // Real pieces have at most some dozen characters; the bound keeps a hostile one from costing its square.
            let mut cuts: Vec<(&str, &str)> = piece
                .char_indices()
                .skip(1)
                .take(MAX_PIECE_CHARS)
                .map(|(at, _)| piece.split_at(at))
                .filter(|(l, r)| ids.contains_key(l) && ids.contains_key(r))
                .collect();
            cuts.sort_by_key(|(l, r)| (ids[l], ids[r]));
            merges.extend(cuts);
        }
        merges
    }
}
