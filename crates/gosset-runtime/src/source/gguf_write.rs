//! A writer of GGUF files for tests: it writes what it is told, sound or not.

use std::io;
use std::path::{Path, PathBuf};

use super::block_type::BlockType;

/// A GGUF file in the making (version 3, little-endian, alignment 32).
#[derive(Debug, Clone, Default)]
pub struct GgufWriter {
    values: Vec<Vec<u8>>,
    tensors: Vec<Tensor>,
}

#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    id: u32,
    bytes: Vec<u8>,
}

const ALIGNMENT: usize = 32;

impl GgufWriter {
    /// A file without values and tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value from its type id and its payload as on disk.
    pub fn raw_value(mut self, key: &str, type_id: u32, payload: &[u8]) -> Self {
        let mut entry = string(key);
        entry.extend(type_id.to_le_bytes());
        entry.extend(payload);
        self.values.push(entry);
        self
    }

    /// Adds a u32.
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw_value(key, 4, &value.to_le_bytes())
    }

    /// Adds an f32.
    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw_value(key, 6, &value.to_le_bytes())
    }

    /// Adds a boolean.
    pub fn bool(self, key: &str, value: bool) -> Self {
        self.raw_value(key, 7, &[value.into()])
    }

    /// Adds a string.
    pub fn str(self, key: &str, value: &str) -> Self {
        self.raw_value(key, 8, &string(value))
    }

    /// Adds an array of strings.
    pub fn strs(self, key: &str, values: &[impl AsRef<str>]) -> Self {
        self.array(key, 8, values.len(), values.iter().flat_map(|v| string(v.as_ref())))
    }

    /// Adds an array of i32.
    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        self.array(key, 5, values.len(), values.iter().flat_map(|v| v.to_le_bytes()))
    }

    /// Adds an array of f32.
    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        self.array(key, 6, values.len(), values.iter().flat_map(|v| v.to_le_bytes()))
    }

    fn array(self, key: &str, type_id: u32, len: usize, payload: impl Iterator<Item = u8>) -> Self {
        let mut bytes = type_id.to_le_bytes().to_vec();
        bytes.extend((len as u64).to_le_bytes());
        bytes.extend(payload);
        self.raw_value(key, 9, &bytes)
    }

    /// Adds a tensor of a known type (`F32`, `Q8_0`, …); `shape` has the outermost dimension first.
    ///
    /// # Panics
    /// If `dtype` is unknown.
    pub fn tensor(self, name: &str, shape: &[usize], dtype: &str, bytes: Vec<u8>) -> Self {
        let Some(ty) = BlockType::from_name(dtype) else { panic!("unknown type {dtype}") };
        self.tensor_of_id(name, shape, ty.gguf_id(), bytes)
    }

    /// Adds a tensor of any type id.
    pub fn tensor_of_id(mut self, name: &str, shape: &[usize], id: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), id, bytes });
        self
    }

    /// The whole file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.values.len() as u64).to_le_bytes());
        out.extend(self.values.iter().flatten());
        let mut offset = 0usize;
        for t in &self.tensors {
            out.extend(string(&t.name));
            out.extend((t.shape.len() as u32).to_le_bytes());
            out.extend(t.shape.iter().rev().flat_map(|&d| (d as u64).to_le_bytes()));
            out.extend(t.id.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + t.bytes.len()).next_multiple_of(ALIGNMENT);
        }
        for t in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&t.bytes);
        }
        out
    }

    /// Writes the whole file.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.to_bytes())
    }

    /// Writes `n_parts` files `stem-00001-of-0000N.gguf` into `folder`, with the values in the first and the tensors dealt out in
    /// runs; returns their paths.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write_split(&self, folder: &Path, stem: &str, n_parts: usize) -> io::Result<Vec<PathBuf>> {
        let per_part = self.tensors.len().div_ceil(n_parts).max(1);
        let mut runs = self.tensors.chunks(per_part);
        (0..n_parts)
            .map(|part| {
                let mut file = Self { values: Vec::new(), tensors: runs.next().unwrap_or_default().to_vec() };
                if part == 0 {
                    file.values = self.values.clone();
                }
                let file = file
                    .raw_value("split.no", 2, &(part as u16).to_le_bytes())
                    .raw_value("split.count", 2, &(n_parts as u16).to_le_bytes())
                    .raw_value("split.tensors.count", 5, &(self.tensors.len() as i32).to_le_bytes());
                let path = folder.join(format!("{stem}-{:05}-of-{n_parts:05}.gguf", part + 1));
                file.write(&path)?;
                Ok(path)
            })
            .collect()
    }
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}
