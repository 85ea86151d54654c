//! The header of a container: a safetensors header that opens with its own checksum and the manifest.

use serde::Serialize;

use crate::manifest::{Digest, Manifest};
use crate::safetensors_header::MAX_HEADER_LEN;

/// Metadata key of the manifest.
pub(crate) const MANIFEST_KEY: &str = "gosset";

/// First bytes of the JSON of every container; the 16 digits of the checksum follow.
pub(crate) const OPENING: &str = "{\"__metadata__\":{\"gosset_header_xxh3\":\"";

/// The data start at a multiple of this many bytes.
pub(crate) const ALIGNMENT: usize = 64;

const DIGITS: usize = 16;

/// One tensor of the safetensors layer, ready to be written.
#[derive(Serialize)]
pub(crate) struct EntryText<'a> {
    #[serde(skip)]
    pub(crate) name: &'a str,
    pub(crate) dtype: &'a str,
    pub(crate) shape: &'a [u64],
    pub(crate) data_offsets: [u64; 2],
}

impl EntryText<'_> {
    /// The entry as it stands in the header, with the comma before it.
    pub(crate) fn text(&self) -> serde_json::Result<String> {
        Ok(format!(",{}:{}", serde_json::to_string(self.name)?, serde_json::to_string(self)?))
    }
}

/// Length prefix, JSON and padding, with the checksum filled in. The error says what cannot be written.
pub(crate) fn write(manifest: &Manifest, entries: &[EntryText<'_>]) -> Result<Vec<u8>, String> {
    let text = |e: serde_json::Error| e.to_string();
    let manifest = serde_json::to_string(manifest).map_err(text)?;
    let mut json = String::with_capacity(manifest.len() * 2 + entries.len() * 128);
    json.push_str(OPENING);
    json.push_str(&"0".repeat(DIGITS));
    json.push_str("\",\"");
    json.push_str(MANIFEST_KEY);
    json.push_str("\":");
    json.push_str(&serde_json::to_string(&manifest).map_err(text)?);
    json.push('}');
    for e in entries {
        json.push_str(&e.text().map_err(text)?);
    }
    json.push('}');
    let padding = (8 + json.len()).next_multiple_of(ALIGNMENT) - 8 - json.len();
    json.push_str(&" ".repeat(padding));
    if json.len() as u64 > MAX_HEADER_LEN {
        return Err(format!("header of {} bytes, expected at most {MAX_HEADER_LEN}", json.len()));
    }
    let mut out = Vec::with_capacity(8 + json.len());
    out.extend_from_slice(&(json.len() as u64).to_le_bytes());
    out.extend_from_slice(json.as_bytes());
    let digest = checksum(&out);
    out[8 + OPENING.len()..][..DIGITS].copy_from_slice(digest.to_string().as_bytes());
    Ok(out)
}

/// XXH3-64 of a header that starts at its length prefix, with the digits of the checksum read as zeros.
///
/// `head` starts as [`write()`] makes it; shorter input is hashed as it is.
pub(crate) fn checksum(head: &[u8]) -> Digest {
    let at = 8 + OPENING.len();
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    if head.len() < at + DIGITS {
        return Digest::of(head);
    }
    hash.update(&head[..at]);
    hash.update(&[b'0'; DIGITS]);
    hash.update(&head[at + DIGITS..]);
    Digest(hash.digest())
}

/// The digits in a header that starts at its length prefix; `None` if it does not open as a container does.
pub(crate) fn stored_checksum(head: &[u8]) -> Option<&[u8]> {
    head.get(8..)?.strip_prefix(OPENING.as_bytes())?.get(..DIGITS)
}
