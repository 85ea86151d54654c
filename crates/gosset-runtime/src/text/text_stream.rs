//! Token ids to text as they arrive.

use super::Tokenizer;
use super::tokenizer::PieceRule;

/// Turns ids into text one at a time, without ever splitting a character.
///
/// Bytes of an unfinished character are held back until later tokens finish it or show that it cannot be one; then each maximal
/// invalid part becomes one U+FFFD, as in a whole decode. The text of all calls together equals [`Tokenizer::decode`].
///
/// ```
/// # use gosset_runtime::text::{TextStream, Tokenizer};
/// let json = r#"{ "version": "1.0", "added_tokens": [], "decoder": { "type": "ByteLevel", "add_prefix_space": true,
///     "trim_offsets": true, "use_regex": true }, "model": { "type": "BPE", "vocab": { "Ã": 0, "©": 1 }, "merges": [] } }"#;
/// let tokenizer = Tokenizer::from_bytes(json.as_bytes())?;
/// let mut stream = TextStream::new(&tokenizer);
/// assert_eq!(stream.push(0), None);
/// assert_eq!(stream.push(1).as_deref(), Some("é"));
/// assert_eq!(stream.finish(), "");
/// # Ok::<(), gosset_runtime::RuntimeError>(())
/// ```
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Bytes not given out yet: the start of a character.
    pending: Vec<u8>,
    /// The next space, if it comes first, is not part of the text.
    strip: bool,
    /// Only for rules that the library alone knows: every id so far, and how much of their text was given out.
    ids: Vec<u32>,
    given: String,
}

impl<'a> TextStream<'a> {
    /// A stream for ids that start a text: a leading space that the tokenizer itself added is left out.
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        let strip = matches!(tokenizer.rule(), PieceRule::Marked { strip: true, .. });
        Self { tokenizer, pending: Vec::new(), strip, ids: Vec::new(), given: String::new() }
    }

    /// A stream for ids that continue a text, as generation does after a prompt: a leading space is kept.
    pub fn continuing(tokenizer: &'a Tokenizer) -> Self {
        Self { strip: false, ..Self::new(tokenizer) }
    }

    /// The text that `id` completes, if any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        if self.tokenizer.rule() == PieceRule::Library {
            return self.push_by_library(id);
        }
        let bytes = self.tokenizer.bytes(id)?;
        self.pending.extend_from_slice(&bytes);
        if self.strip && !self.pending.is_empty() {
            self.strip = false;
            if self.pending[0] == b' ' {
                self.pending.remove(0);
            }
        }
        let text = self.take_finished();
        (!text.is_empty()).then_some(text)
    }

    /// The rest: an unfinished character becomes one U+FFFD.
    pub fn finish(mut self) -> String {
        if self.tokenizer.rule() == PieceRule::Library {
            let text = self.tokenizer.decode_by_library(&self.ids);
            return text.strip_prefix(self.given.as_str()).unwrap_or_default().to_owned();
        }
        let mut text = self.take_finished();
        text.push_str(&String::from_utf8_lossy(&self.pending));
        text
    }

    /// Takes whole characters and invalid bytes; leaves what may still become a character, three bytes at most.
    fn take_finished(&mut self) -> String {
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            let (valid, error) = match std::str::from_utf8(rest) {
                Ok(all) => (all, None),
                Err(e) => (std::str::from_utf8(&rest[..e.valid_up_to()]).unwrap_or_default(), Some(e)),
            };
            text.push_str(valid);
            rest = &rest[valid.len()..];
            match error.and_then(|e| e.error_len()) {
                Some(invalid) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
                None => break,
            }
        }
        let kept = rest.len();
        self.pending.drain(..self.pending.len() - kept);
        text
    }

    fn push_by_library(&mut self, id: u32) -> Option<String> {
        /// A character has four bytes at most: a replacement sign this many tokens old is final.
        const LONGEST_CHARACTER: usize = 4;
        self.ids.push(id);
        let text = self.tokenizer.decode_by_library(&self.ids);
        let settled = self.tokenizer.decode_by_library(&self.ids[..self.ids.len().saturating_sub(LONGEST_CHARACTER)]);
        let certain = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len().max(settled.len());
        let new = text.get(..certain)?.strip_prefix(self.given.as_str()).filter(|new| !new.is_empty())?.to_owned();
        self.given.push_str(&new);
        Some(new)
    }
}
