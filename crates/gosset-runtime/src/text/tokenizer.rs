//! A tokenizer read from `tokenizer.json`.

use std::collections::HashMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::TextStream;
use crate::RuntimeError;

/// Text to token ids and back.
///
/// Regular expressions run on a back end in pure Rust; its ids are those of the reference tokenizers on the WikiText-2 test set.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: PieceRule,
    sha256: String,
    leading: Vec<u32>,
    id_bound: u32,
}

/// How the string of a token becomes bytes of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceRule {
    /// Each character stands for one byte (GPT-2's table).
    ByteLevel,
    /// A mark stands for a space, `<0xAB>` for one byte; one space at the start of a text is not part of it if `strip`.
    Marked { mark: char, strip: bool, byte_tokens: bool },
    /// Anything else: only the library knows.
    Library,
}

impl Tokenizer {
    /// Reads `tokenizer.json`. Truncation and padding that the file may ask for are switched off.
    ///
    /// # Errors
    /// [`RuntimeError::Tokenizer`] if the file is no tokenizer, uses parts unknown here or contradicts itself.
    pub fn from_bytes(json: &[u8]) -> Result<Self, RuntimeError> {
        let fail = |e: &dyn Display| RuntimeError::Tokenizer(format!("tokenizer.json: {e}"));
        check_parts(json).map_err(|e| fail(&e))?;
        let (inner, leading, decoder) = guarded(|| {
            let mut inner = tokenizers::Tokenizer::from_bytes(json)?;
            inner.with_truncation(None)?;
            inner.with_padding(None);
            let leading = inner.encode_fast("", true)?.get_ids().to_vec();
            // All it does besides adding tokens concerns offsets, and nothing here reads them.
            inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
            let decoder = serde_json::to_value(inner.get_decoder())?;
            Ok::<_, tokenizers::Error>((inner, leading, decoder))
        })
        .map_err(|e| fail(&e))?;
        let id_bound = inner.get_vocab(true).values().max().map_or(0, |&id| id.saturating_add(1));
        Ok(Self {
            pieces: piece_rule(&decoder),
            sha256: Sha256::digest(json).iter().map(|b| format!("{b:02x}")).collect(),
            inner,
            leading,
            id_bound,
        })
    }

    /// Token ids of `text`. No BOS, EOS or other token is added; special tokens written out in the text are recognised.
    ///
    /// # Errors
    /// [`RuntimeError::Tokenizer`] if the vocabulary cannot spell the text, or if the file's settings make the tokenizer fail.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, RuntimeError> {
        let encoding = guarded(|| self.inner.encode_fast(text, false)).map_err(RuntimeError::Tokenizer)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// As [`Tokenizer::encode`], with `bos` in front unless the text already starts with it: never two.
    pub fn encode_with_bos(&self, text: &str, bos: Option<u32>) -> Result<Vec<u32>, RuntimeError> {
        let mut ids = self.encode(text)?;
        if let Some(bos) = bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The text of `ids`. Special tokens and ids without a token give nothing; bytes that are no UTF-8 give U+FFFD.
    ///
    /// Equal to what [`TextStream`] gives piece by piece.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = TextStream::new(self);
        let mut text = String::new();
        for &id in ids {
            if let Some(piece) = stream.push(id) {
                text.push_str(&piece);
            }
        }
        text.push_str(&stream.finish());
        text
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// One more than the largest id. Models often have further rows without a token.
    pub fn id_bound(&self) -> u32 {
        self.id_bound
    }

    /// Whether a token has this id.
    pub fn contains(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some()
    }

    /// The token of an id as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token as the vocabulary spells it, for instance `<|im_end|>`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Ids that the tokenizer by its own settings puts in front of a text; `[bos]` for families that add BOS, else empty.
    pub fn leading_ids(&self) -> &[u32] {
        &self.leading
    }

    /// SHA-256 of `tokenizer.json` in lowercase hex.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    pub(super) fn rule(&self) -> PieceRule {
        self.pieces
    }

    /// The library's own decoding, for vocabularies whose rule is not known here.
    pub(super) fn decode_by_library(&self, ids: &[u32]) -> String {
        guarded(|| self.inner.decode(ids, true)).unwrap_or_default()
    }

    /// Bytes that a token adds to a text; `None` for special tokens and ids without a token.
    pub(super) fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.inner.id_to_token(id)?;
        let added = self.inner.get_added_vocabulary();
        if added.is_special_token(&token) {
            return None;
        }
        if added.simple_id_to_token(id).is_some() {
            return Some(token.into_bytes());
        }
        Some(match self.pieces {
            PieceRule::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(|c| BYTE_OF_CHAR.get(&c).copied()).collect();
                bytes.unwrap_or_else(|| token.into_bytes())
            }
            PieceRule::Marked { mark, byte_tokens, .. } => match byte_token(&token).filter(|_| byte_tokens) {
                Some(byte) => vec![byte],
                None => token.replace(mark, " ").into_bytes(),
            },
            PieceRule::Library => token.into_bytes(),
        })
    }
}

/// Runs a call of the tokenizer library, which panics on some contradictory files; a panic becomes the text of an error.
fn guarded<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    // The library only reads its settings during a call, and a tokenizer that failed while it was built is dropped.
    catch_unwind(AssertUnwindSafe(call)).map_or_else(
        |panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given");
            Err(format!("tokenizer.json makes the tokenizer fail: {text}"))
        },
        |result| result.map_err(|e| e.to_string()),
    )
}

/// Refuses two contradictions on which the library would panic. Anything unknown here is left to the library.
fn check_parts(json: &[u8]) -> Result<(), String> {
    /// The sections that are looked at; the vocabulary is skipped without being built.
    #[derive(Deserialize)]
    struct Parts {
        #[serde(default)]
        normalizer: Json,
        #[serde(default)]
        post_processor: Json,
    }
    let Ok(parts) = serde_json::from_slice::<Parts>(json) else { return Ok(()) };
    check_normalizer(&parts.normalizer)?;
    check_post_processor(&parts.post_processor)
}

fn check_normalizer(part: &Json) -> Result<(), String> {
    if part["type"] == "Replace" && part["pattern"]["String"] == "" {
        return Err("normalizer: Replace has an empty pattern, expected at least one character".to_owned());
    }
    part["normalizers"].as_array().into_iter().flatten().try_for_each(check_normalizer)
}

fn check_post_processor(part: &Json) -> Result<(), String> {
    if part["type"] == "TemplateProcessing"
        && let (Some(pieces), Some(known)) = (part["single"].as_array(), part["special_tokens"].as_object())
    {
        for piece in pieces {
            if let Some(id) = piece["SpecialToken"]["id"].as_str().filter(|&id| !known.contains_key(id)) {
                return Err(format!(
                    "post_processor: TemplateProcessing uses {id:?}, which special_tokens does not have"
                ));
            }
            if piece["Sequence"]["id"] == "B" {
                return Err("post_processor: TemplateProcessing of a single text uses a second one (B)".to_owned());
            }
        }
    }
    part["processors"].as_array().into_iter().flatten().try_for_each(check_post_processor)
}

/// GPT-2's table: printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 and up in order.
static BYTE_OF_CHAR: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| {
            let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let code = if printable { u32::from(byte) } else { next };
            next += u32::from(!printable);
            (char::from_u32(code).unwrap_or_default(), byte)
        })
        .collect()
});

fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit()) { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// Recognises the decoder section of a `tokenizer.json`.
fn piece_rule(decoder: &Json) -> PieceRule {
    let kind = |part: &Json| part["type"].as_str().unwrap_or_default().to_owned();
    let one = |text: &Json| -> Option<char> {
        let mut chars = text.as_str()?.chars();
        chars.next().filter(|_| chars.next().is_none())
    };
    match kind(decoder).as_str() {
        "ByteLevel" => PieceRule::ByteLevel,
        "Metaspace" => match one(&decoder["replacement"]) {
            Some(mark) => PieceRule::Marked { mark, strip: decoder["prepend_scheme"] != "never", byte_tokens: false },
            None => PieceRule::Library,
        },
        "Sequence" => {
            let empty = Vec::new();
            let parts = decoder["decoders"].as_array().unwrap_or(&empty);
            if let [only] = parts.as_slice() {
                return piece_rule(only);
            }
            let (mut mark, mut strip, mut byte_tokens) = (None, false, false);
            for part in parts {
                match kind(part).as_str() {
                    "Replace" if part["content"] == " " && mark.is_none() => mark = one(&part["pattern"]["String"]),
                    "ByteFallback" => byte_tokens = true,
                    "Fuse" => {}
                    "Strip" if part["content"] == " " && part["stop"] == 0 && part["start"] == 0 => {}
                    "Strip" if part["content"] == " " && part["stop"] == 0 && part["start"] == 1 => strip = true,
                    _ => return PieceRule::Library,
                }
            }
            mark.map_or(PieceRule::Library, |mark| PieceRule::Marked { mark, strip, byte_tokens })
        }
        _ => PieceRule::Library,
    }
}
