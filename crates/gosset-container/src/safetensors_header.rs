//! A strict reader of safetensors headers, for files nobody vouches for.
//!
//! The format: 8 bytes little-endian header length `n`, `n` bytes of JSON, then the data. The JSON is one object that maps a
//! tensor name to `{dtype, shape, data_offsets}` and `__metadata__` to an object of strings. Every rule that a header can
//! break has its own [`HeaderProblem`]; nothing is allocated by a claimed size before the file is known to be that large.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use thiserror::Error;

/// Longest header that is read, in bytes; the limit of the reference implementation of safetensors.
pub const MAX_HEADER_LEN: u64 = 100_000_000;

/// Name of the header entry that holds free text instead of a tensor.
pub const METADATA: &str = "__metadata__";

/// What is wrong with a safetensors header.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HeaderProblem {
    /// The file ends before the header does, or cannot hold one.
    #[error("expected at least {expected} bytes for length and header, found {found}; is the download incomplete?")]
    TooShort {
        /// Bytes that length prefix and header need.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// The length prefix cannot be right.
    #[error("header length {claimed} is impossible: expected 2 to {limit} in a file of {file_bytes} bytes")]
    HeaderLength {
        /// The length prefix.
        claimed: u64,
        /// Largest length this file could have.
        limit: u64,
        /// Bytes in the file.
        file_bytes: u64,
    },
    /// The file is of another kind.
    #[error("expected a safetensors file, found {found}")]
    OtherFormat {
        /// The kind, in words.
        found: &'static str,
    },
    /// The header is no JSON object of the expected form.
    #[error("header is not the expected JSON object: {reason}")]
    Json {
        /// The parser's message with line and column.
        reason: String,
    },
    /// Two entries have one name.
    #[error("tensor name {name:?} appears twice")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A dtype that safetensors does not define.
    #[error("tensor {name:?}: unknown dtype {dtype:?}")]
    UnknownDtype {
        /// The tensor.
        name: String,
        /// The dtype as written.
        dtype: String,
    },
    /// A range runs backwards.
    #[error("tensor {name:?}: range {start}..{end} is reversed")]
    ReversedRange {
        /// The tensor.
        name: String,
        /// First byte, relative to the data.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// Shape and dtype do not give the size of the range.
    #[error("tensor {name:?}: shape {shape:?} of {dtype} needs {expected} bytes, its range has {found}")]
    SizeMismatch {
        /// The tensor.
        name: String,
        /// The dtype.
        dtype: String,
        /// The shape.
        shape: Vec<u64>,
        /// Bytes that shape and dtype need; `more than 2^64` when they overflow.
        expected: String,
        /// Bytes of the range.
        found: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap at data byte {at}")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
        /// Start of the second.
        at: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("data bytes {start}..{end} before tensor {next:?} belong to no tensor")]
    Gap {
        /// First orphaned byte.
        start: u64,
        /// One past the last.
        end: u64,
        /// The tensor that follows.
        next: String,
    },
    /// The file is longer or shorter than its header says.
    #[error("expected {expected} bytes in the file, found {found}{}", if found < expected { "; is the download incomplete?" } else { "" })]
    FileLength {
        /// Bytes by the header: 8 + header + data.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
}

/// One tensor of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderTensor {
    /// Name.
    pub name: String,
    /// Dtype as safetensors spells it: `F32`, `BF16`, `U8`, …
    pub dtype: String,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// First byte, counted from the start of the data.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// A header that kept every rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of their data.
    pub tensors: Vec<HeaderTensor>,
    /// The strings of `__metadata__`, in the order of the file.
    pub metadata: Vec<(String, String)>,
    /// Bytes before the data: 8 + header length.
    pub data_start: u64,
    /// Bytes of data.
    pub data_len: u64,
}

impl Header {
    /// The metadata string under `key`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Checks that a file of `file_bytes` bytes is exactly as long as this header says.
    pub fn check_file_length(&self, file_bytes: u64) -> Result<(), HeaderProblem> {
        let expected = self.data_start.saturating_add(self.data_len);
        if expected == file_bytes { Ok(()) } else { Err(HeaderProblem::FileLength { expected, found: file_bytes }) }
    }
}

/// Bits per element of a safetensors dtype; `None` for an unknown name.
pub fn dtype_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// Names the kind of file that starts with `prefix` when it is a well-known one that is not safetensors.
///
/// ```
/// use gosset_container::safetensors_header::foreign_format;
/// assert_eq!(foreign_format(b"GGUF\x03\0\0\0"), Some("a GGUF file"));
/// assert_eq!(foreign_format(b"\x02\0\0\0\0\0\0\0{}"), None);
/// ```
pub fn foreign_format(prefix: &[u8]) -> Option<&'static str> {
    const KINDS: &[(&[u8], &str)] = &[
        (b"GGUF", "a GGUF file"),
        (b"GGML", "a GGML file"),
        (b"PK\x03\x04", "a zip archive (PyTorch pickle weights?)"),
        (b"PK\x05\x06", "an empty zip archive"),
        (b"\x80\x02", "a Python pickle"),
        (b"\x80\x03", "a Python pickle"),
        (b"\x80\x04", "a Python pickle"),
        (b"\x80\x05", "a Python pickle"),
        (b"\x93NUMPY", "a NumPy array file"),
        (b"\x89HDF", "an HDF5 file"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"version https://git-lfs", "a Git LFS pointer (the real file was never downloaded)"),
        (b"<!DOCTYPE", "an HTML page"),
        (b"<html", "an HTML page"),
    ];
    // A pickle magic is two bytes only; a safetensors file has the upper five bytes of its length at zero.
    let is_length = prefix.len() >= 9 && prefix[5..8] == [0, 0, 0] && prefix[8] == b'{';
    if is_length {
        return None;
    }
    KINDS.iter().find(|(magic, _)| prefix.starts_with(magic)).map(|(_, name)| *name)
}

/// Header length from the 8 bytes that open a file of `file_bytes` bytes.
///
/// `prefix` is the beginning of the file: at least its first 9 bytes, or all of them if it is shorter.
pub fn header_len(prefix: &[u8], file_bytes: u64) -> Result<u64, HeaderProblem> {
    if let Some(found) = foreign_format(prefix) {
        return Err(HeaderProblem::OtherFormat { found });
    }
    let Some(len_bytes) = prefix.first_chunk::<8>() else {
        return Err(HeaderProblem::TooShort { expected: 10, found: file_bytes });
    };
    let claimed = u64::from_le_bytes(*len_bytes);
    let room = file_bytes.saturating_sub(8);
    let plausible = (2..=MAX_HEADER_LEN).contains(&claimed) && (room == 0 || prefix.get(8) == Some(&b'{'));
    if plausible && claimed > room {
        return Err(HeaderProblem::TooShort { expected: claimed + 8, found: file_bytes });
    }
    let limit = room.min(MAX_HEADER_LEN);
    if claimed < 2 || claimed > limit {
        return Err(HeaderProblem::HeaderLength { claimed, limit, file_bytes });
    }
    Ok(claimed)
}

/// Parses the JSON of a header and checks every rule but the length of the file.
///
/// `json` is exactly the header, without its length prefix. Trailing white space is allowed, as in the reference.
pub fn parse(json: &[u8]) -> Result<Header, HeaderProblem> {
    let text = std::str::from_utf8(json)
        .map_err(|e| HeaderProblem::Json { reason: format!("byte {} is not UTF-8", e.valid_up_to()) })?;
    if !text.starts_with('{') {
        let found = text.chars().next().map_or_else(|| "nothing".to_owned(), |c| format!("{c:?}"));
        return Err(HeaderProblem::Json { reason: format!("expected '{{' as first byte, found {found}") });
    }
    let raw: RawHeader = serde_json::from_str(text).map_err(|e| HeaderProblem::Json { reason: e.to_string() })?;
    if let Some(name) = raw.duplicate {
        return Err(HeaderProblem::DuplicateName { name });
    }
    let mut tensors = Vec::with_capacity(raw.tensors.len());
    for (name, t) in raw.tensors {
        tensors.push(check_tensor(name, t)?);
    }
    tensors.sort_by_key(|t| (t.start, t.end));
    let mut at = 0u64;
    for (i, t) in tensors.iter().enumerate() {
        if t.start < at {
            let first = tensors[..i].iter().rfind(|p| p.end > t.start).map_or_else(String::new, |p| p.name.clone());
            return Err(HeaderProblem::Overlap { first, second: t.name.clone(), at: t.start });
        }
        if t.start > at {
            return Err(HeaderProblem::Gap { start: at, end: t.start, next: t.name.clone() });
        }
        at = t.end;
    }
    Ok(Header { tensors, metadata: raw.metadata, data_start: 8 + json.len() as u64, data_len: at })
}

fn check_tensor(name: String, t: RawTensor) -> Result<HeaderTensor, HeaderProblem> {
    let Some(bits) = dtype_bits(&t.dtype) else {
        return Err(HeaderProblem::UnknownDtype { name, dtype: t.dtype });
    };
    let [start, end] = t.data_offsets;
    if end < start {
        return Err(HeaderProblem::ReversedRange { name, start, end });
    }
    let total_bits = t.shape.iter().try_fold(bits, |acc, &d| acc.checked_mul(d));
    let found = end - start;
    if total_bits.is_none_or(|b| b % 8 != 0 || b / 8 != found) {
        let expected = match total_bits {
            Some(b) if b % 8 == 0 => (b / 8).to_string(),
            Some(b) => format!("{b}/8 (not whole)"),
            None => "more than 2^61".to_owned(),
        };
        return Err(HeaderProblem::SizeMismatch { name, dtype: t.dtype, shape: t.shape, expected, found });
    }
    Ok(HeaderTensor { name, dtype: t.dtype, shape: t.shape, start, end })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header as written: duplicates are noticed here because a map would swallow them.
#[derive(Default)]
struct RawHeader {
    tensors: Vec<(String, RawTensor)>,
    metadata: Vec<(String, String)>,
    duplicate: Option<String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut out = RawHeader::default();
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        // Reading on keeps the parser's own checks; the first duplicate is the one that is told.
                        map.next_value::<IgnoredAny>()?;
                        out.duplicate.get_or_insert(name);
                    } else if name == METADATA {
                        out.metadata = map.next_value::<Metadata>()?.0;
                    } else {
                        let tensor = map
                            .next_value::<RawTensor>()
                            .map_err(|e| A::Error::custom(format_args!("tensor {name:?}: {e}")))?;
                        out.tensors.push((name, tensor));
                    }
                }
                Ok(out)
            }
        }
        d.deserialize_map(HeaderVisitor)
    }
}

struct Metadata(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct MetadataVisitor;
        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut out: Vec<(String, String)> = Vec::new();
                let mut seen = HashSet::new();
                while let Some(key) = map.next_key::<String>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format_args!("metadata key {key:?} appears twice")));
                    }
                    out.push((key, map.next_value()?));
                }
                Ok(Metadata(out))
            }
        }
        d.deserialize_map(MetadataVisitor)
    }
}
