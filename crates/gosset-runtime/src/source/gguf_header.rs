//! The header of one GGUF file: every rule is checked here, before candle's reader sees a byte.
//!
//! Two passes: a walk that touches each field once, skips values and holds every count, length and extent against the size of
//! the file; then candle's reader, over exactly the header bytes, for the metadata values. The walk also keeps what candle's
//! reader drops: the order of the tensors and the ids of unknown block types.
//!
//! Source: the GGUF specification (versions 1, 2 and 3, little-endian).

use std::collections::{HashMap, HashSet};
use std::io::{Cursor, Read};
use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};

use super::block_type::BlockType;
use super::file_at::FileAt;
use crate::RuntimeError;

/// Longer headers are refused: the largest vocabularies known take about 20 MiB.
const MAX_HEADER_BYTES: u64 = 1 << 30;
/// Array elements in all metadata together; each takes 32 bytes once read. Known vocabularies have about a million.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 23;
const MAX_ARRAY_DEPTH: usize = 4;
/// Dimensions of a tensor; the format's own limit.
const MAX_DIMS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;

/// A header that holds: names are unique, every tensor lies inside the file, none overlaps another.
#[derive(Debug)]
pub(crate) struct GgufHeader {
    /// Every metadata value by key.
    pub(crate) metadata: HashMap<String, Value>,
    /// Tensors in the order of the file.
    pub(crate) tensors: Vec<StoredTensor>,
    /// The header's own bytes, up to the end of the tensor table.
    pub(crate) bytes: Vec<u8>,
}

/// Where one tensor lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredTensor {
    pub(crate) name: String,
    /// Outermost dimension first (the file has them the other way round).
    pub(crate) shape: Vec<usize>,
    pub(crate) ty: BlockType,
    /// Position in the file.
    pub(crate) at: u64,
    pub(crate) n_bytes: u64,
}

impl GgufHeader {
    pub(crate) fn read(file: &FileAt) -> Result<Self, RuntimeError> {
        let path = file.path();
        let mut walk =
            Walk { source: std::io::BufReader::with_capacity(1 << 16, file.reader()), file, at: 0, wide: true };
        let (n_tensors, n_values) = walk.preamble()?;
        let alignment = walk.metadata(n_values)?;
        let raw = walk.tensor_table(n_tensors)?;
        let header_len = walk.at;
        let tensors = place(file, raw, header_len.next_multiple_of(alignment))?;

        let len =
            usize::try_from(header_len).map_err(|_| RuntimeError::gguf(path, "header exceeds the address space"))?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0)?;
        let content = Content::read(&mut Cursor::new(&bytes)).map_err(|e| RuntimeError::gguf(path, e.to_string()))?;
        Ok(Self { metadata: content.metadata, tensors, bytes })
    }
}

/// One row of the tensor table as read.
struct RawTensor {
    name: String,
    dims: Vec<u64>,
    id: u32,
    offset: u64,
}

struct Walk<'a, R> {
    source: R,
    file: &'a FileAt,
    at: u64,
    /// Lengths are 64 bits wide (versions 2 and up).
    wide: bool,
}

impl<R: Read> Walk<'_, R> {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn fail(&self, detail: String) -> RuntimeError {
        RuntimeError::gguf(self.path(), format!("header, byte {}: {detail}", self.at))
    }

    /// Holds `n` further bytes against the end of the file and the limit of headers.
    fn need(&self, n: u64, what: &str) -> Result<(), RuntimeError> {
        let end = self.at.saturating_add(n);
        if end > self.file.len() {
            return Err(RuntimeError::TruncatedGguf {
                path: self.path().to_owned(),
                what: format!("{what} in the header"),
                expected: end,
                found: self.file.len(),
            });
        }
        if end > MAX_HEADER_BYTES {
            return Err(self.fail(format!("{what}: expected a header of at most {MAX_HEADER_BYTES} bytes")));
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], RuntimeError> {
        self.need(N as u64, what)?;
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(RuntimeError::io(self.file.path()))?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, RuntimeError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, RuntimeError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn length(&mut self, what: &str) -> Result<u64, RuntimeError> {
        if self.wide { self.u64(what) } else { self.u32(what).map(u64::from) }
    }

    fn skip(&mut self, n: u64, what: &str) -> Result<(), RuntimeError> {
        self.need(n, what)?;
        let skipped = std::io::copy(&mut self.source.by_ref().take(n), &mut std::io::sink())
            .map_err(RuntimeError::io(self.file.path()))?;
        self.at += skipped;
        if skipped == n {
            Ok(())
        } else {
            Err(RuntimeError::io(self.file.path())(std::io::ErrorKind::UnexpectedEof.into()))
        }
    }

    fn string(&mut self, what: &str) -> Result<String, RuntimeError> {
        let len = self.length(what)?;
        self.need(len, what)?;
        let mut bytes = Vec::new();
        self.source.by_ref().take(len).read_to_end(&mut bytes).map_err(RuntimeError::io(self.file.path()))?;
        self.at += bytes.len() as u64;
        // Some writers end strings with a zero byte; candle's reader drops it too.
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Magic, version and counts.
    fn preamble(&mut self) -> Result<(u64, u64), RuntimeError> {
        let magic: [u8; 4] = self.array("the magic number")?;
        if &magic != b"GGUF" {
            let found = match &magic {
                b"FUGG" => return Err(RuntimeError::BigEndianGguf { path: self.path().to_owned(), version: 0 }),
                b"lmgg" | b"tjgg" | b"fmgg" | b"algg" => {
                    "a GGML file from before GGUF; convert it to GGUF first".into()
                }
                other => format!("a file that starts with {:?}", String::from_utf8_lossy(other)),
            };
            return Err(RuntimeError::NotACheckpoint { path: self.path().to_owned(), found });
        }
        let version = self.u32("the version")?;
        if version != 0 && version & 0xffff == 0 {
            return Err(RuntimeError::BigEndianGguf { path: self.path().to_owned(), version });
        }
        if !(1..=3).contains(&version) {
            return Err(self.fail(format!("expected GGUF version 1, 2 or 3, found {version}")));
        }
        self.wide = version > 1;
        let n_tensors = self.length("the tensor count")?;
        let n_values = self.length("the metadata count")?;
        // A tensor row has at least a name length, a dimension count, a type and an offset; a value a key length, a type and a byte.
        let prefix = if self.wide { 8 } else { 4 };
        let least = n_tensors.saturating_mul(prefix + 16).saturating_add(n_values.saturating_mul(prefix + 5));
        self.need(least, &format!("the table of {n_tensors} tensors and {n_values} values"))?;
        Ok((n_tensors, n_values))
    }

    /// Walks over all metadata and returns the alignment of the data section.
    fn metadata(&mut self, n_values: u64) -> Result<u64, RuntimeError> {
        let mut alignment = None;
        let mut elements = 0;
        let mut keys = HashSet::new();
        for _ in 0..n_values {
            let key = self.string("a metadata key")?;
            let ty = self.u32("a value type")?;
            if key == "general.alignment" {
                if ty != 4 {
                    return Err(self.fail(format!("{key}: expected value type 4 (u32), found {ty}")));
                }
                let value = u64::from(self.u32("the alignment")?);
                if !value.is_power_of_two() || value > 1 << 20 {
                    return Err(self.fail(format!("{key}: expected a power of two up to 2^20, found {value}")));
                }
                alignment = Some(value);
            } else {
                self.skip_value(ty, 0, &mut elements)?;
            }
            if let Some(key) = keys.replace(key) {
                return Err(self.fail(format!("metadata key {key} occurs twice")));
            }
        }
        Ok(alignment.unwrap_or(DEFAULT_ALIGNMENT))
    }

    fn skip_value(&mut self, ty: u32, depth: usize, elements: &mut u64) -> Result<(), RuntimeError> {
        match ty {
            8 => {
                let len = self.length("a string")?;
                self.skip(len, "a string")
            }
            9 => {
                if depth == MAX_ARRAY_DEPTH {
                    return Err(self.fail(format!("expected arrays nested at most {MAX_ARRAY_DEPTH} deep")));
                }
                let inner = self.u32("an array type")?;
                let len = self.length("an array length")?;
                *elements = elements.saturating_add(len);
                if *elements > MAX_ARRAY_ELEMENTS {
                    return Err(self.fail(format!(
                        "expected at most {MAX_ARRAY_ELEMENTS} array elements in the metadata, found {elements}"
                    )));
                }
                match fixed_size(inner) {
                    Some(size) => self.skip(len.saturating_mul(size), "an array"),
                    None => {
                        for _ in 0..len {
                            self.skip_value(inner, depth + 1, elements)?;
                        }
                        Ok(())
                    }
                }
            }
            _ => match fixed_size(ty) {
                Some(size) => self.skip(size, "a value"),
                None => Err(self.fail(format!("expected a value type from 0 to 12, found {ty}"))),
            },
        }
    }

    fn tensor_table(&mut self, n_tensors: u64) -> Result<Vec<RawTensor>, RuntimeError> {
        let mut names = HashSet::new();
        let mut tensors = Vec::new();
        for _ in 0..n_tensors {
            let name = self.string("a tensor name")?;
            if !names.insert(name.clone()) {
                return Err(self.fail(format!("tensor name {name} occurs twice")));
            }
            let n_dims = self.u32("a dimension count")?;
            if n_dims > MAX_DIMS {
                return Err(self.fail(format!("tensor {name}: expected at most {MAX_DIMS} dimensions, found {n_dims}")));
            }
            let dims = (0..n_dims).map(|_| self.length("a dimension")).collect::<Result<Vec<_>, _>>()?;
            let id = self.u32("a block type")?;
            let offset = self.u64("a tensor offset")?;
            if BlockType::from_gguf_id(id).is_none() {
                return Err(RuntimeError::GgufBlockType {
                    path: self.path().to_owned(),
                    tensor: name,
                    id,
                    supported: BlockType::supported(),
                });
            }
            tensors.push(RawTensor { name, dims, id, offset });
        }
        Ok(tensors)
    }
}

/// Bytes of a scalar metadata value, `None` for strings, arrays and unknown types.
fn fixed_size(ty: u32) -> Option<u64> {
    match ty {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Sizes and positions of all tensors, checked against the file and each other.
fn place(file: &FileAt, raw: Vec<RawTensor>, data_at: u64) -> Result<Vec<StoredTensor>, RuntimeError> {
    let path = file.path();
    let mut tensors = Vec::with_capacity(raw.len());
    for t in raw {
        let ty = BlockType::from_gguf_id(t.id)
            .ok_or_else(|| RuntimeError::gguf(path, format!("tensor {}: unknown block type {}", t.name, t.id)))?;
        let bad = |detail: &str| RuntimeError::gguf(path, format!("tensor {} {:?}: {detail}", t.name, t.dims));
        let shape: Option<Vec<usize>> = t.dims.iter().rev().map(|&d| usize::try_from(d).ok()).collect();
        let shape = shape.ok_or_else(|| bad("a dimension exceeds the address space"))?;
        if shape.contains(&0) {
            return Err(bad("expected dimensions of at least 1"));
        }
        let cols = shape.last().copied().unwrap_or(1);
        let row_bytes = ty.row_bytes(cols).ok_or_else(|| {
            bad(&format!(
                "expected an innermost dimension of whole {} blocks of {}, found {cols}",
                ty.name(),
                ty.block_len()
            ))
        })?;
        let rows = shape.iter().rev().skip(1).try_fold(1u64, |n, &d| n.checked_mul(d as u64));
        let n_bytes = rows.and_then(|r| r.checked_mul(row_bytes as u64));
        let at = data_at.checked_add(t.offset);
        let end = n_bytes.zip(at).and_then(|(n, at)| at.checked_add(n));
        let (Some(n_bytes), Some(at), Some(end)) = (n_bytes, at, end) else {
            return Err(bad("size or offset overflows"));
        };
        if end > file.len() {
            return Err(RuntimeError::TruncatedGguf {
                path: path.to_owned(),
                what: format!("tensor {}", t.name),
                expected: end,
                found: file.len(),
            });
        }
        tensors.push(StoredTensor { name: t.name, shape, ty, at, n_bytes });
    }
    let mut by_place: Vec<&StoredTensor> = tensors.iter().collect();
    by_place.sort_by_key(|t| t.at);
    for pair in by_place.windows(2) {
        if pair[0].at + pair[0].n_bytes > pair[1].at {
            return Err(RuntimeError::gguf(
                path,
                format!("tensors {} and {} overlap at byte {}", pair[0].name, pair[1].name, pair[1].at),
            ));
        }
    }
    Ok(tensors)
}
