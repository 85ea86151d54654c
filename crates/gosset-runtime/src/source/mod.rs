//! Checkpoints on disk as one [`ModelSource`]: GGUF files, Hugging Face folders, bare safetensors.
//!
//! [`resolve_model`] turns a name into a path, [`open_source`] a path into a [`ModelSource`], and [`dequantize_rows`] stored
//! bytes into f32. GGUF files appear as their Hugging Face equivalent: names, row order, `config.json` and `tokenizer.json`.

mod block_type;
mod dequantize;
mod file_at;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod gguf;
mod gguf_config;
mod gguf_header;
mod gguf_names;
#[cfg(test)]
mod gguf_tests;
mod gguf_tokenizer;
#[cfg(any(test, feature = "fixture"))]
mod gguf_write;
#[cfg(feature = "hub")]
mod hub;
mod resolve;

use std::path::Path;

use gosset_container::safetensors_header;
use gosset_quantize::{ModelSource, SafetensorsSource};

use crate::RuntimeError;
pub use dequantize::dequantize_rows;
use file_at::FileAt;
pub use gguf::GgufSource;
pub use resolve::resolve_model;

/// Opens the checkpoint at `path`: a GGUF file (all parts of a split one), a Hugging Face folder, a folder with one GGUF model,
/// or a bare safetensors file.
///
/// The kind is told by content, not by name. Layout and extents are checked before this returns; weights are read later.
///
/// # Errors
/// [`RuntimeError::NotACheckpoint`] for files of another kind, [`RuntimeError::Source`] for safetensors checkpoints, and the GGUF
/// variants of [`RuntimeError`].
pub fn open_source(path: &Path) -> Result<Box<dyn ModelSource>, RuntimeError> {
    let meta = std::fs::metadata(path).map_err(RuntimeError::io(path))?;
    if meta.is_dir() {
        return match gguf_in_folder(path)? {
            Some(gguf) => Ok(Box::new(GgufSource::open(&gguf)?)),
            None => Ok(Box::new(SafetensorsSource::open(path)?)),
        };
    }
    let file = FileAt::open(path)?;
    let mut start = [0u8; 16];
    let n = usize::try_from(file.len()).unwrap_or(usize::MAX).min(start.len());
    file.read_exact_at(&mut start[..n], 0)?;
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let not = |found: &str| Err(RuntimeError::NotACheckpoint { path: path.to_owned(), found: found.to_owned() });
    if let Some(kind) = safetensors_header::foreign_format(&start[..n]).filter(|_| !start.starts_with(b"GGUF")) {
        let why = if kind.contains("pickle") {
            "; pickle files can run code and are not loaded: convert to safetensors"
        } else {
            ""
        };
        return not(&format!("{kind}{why}"));
    }
    match &start[..n] {
        [] => not("an empty file"),
        [b'G', b'G', b'U', b'F', ..] | [b'F', b'U', b'G', b'G', ..] => Ok(Box::new(GgufSource::open(path)?)),
        _ if extension == "gguf" => Ok(Box::new(GgufSource::open(path)?)),
        _ if is_container(&file, &start[..n]) => not("a Gosset container, whose weights are compressed already"),
        _ => Ok(Box::new(SafetensorsSource::open(path)?)),
    }
}

/// Whether a safetensors file carries a Gosset manifest. Damaged headers are left to the safetensors reader to name.
fn is_container(file: &FileAt, start: &[u8]) -> bool {
    let Ok(len) = safetensors_header::header_len(start, file.len()) else { return false };
    let Ok(len) = usize::try_from(len) else { return false };
    let mut json = vec![0; len];
    let read = file.read_exact_at(&mut json, 8);
    read.is_ok() && safetensors_header::parse(&json).is_ok_and(|header| header.metadata("gosset").is_some())
}

/// The GGUF model of a folder without safetensors; an error if there are several.
fn gguf_in_folder(folder: &Path) -> Result<Option<std::path::PathBuf>, RuntimeError> {
    let mut ggufs = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(RuntimeError::io(folder))? {
        let path = entry.map_err(RuntimeError::io(folder))?.path();
        match path.extension().and_then(|e| e.to_str()) {
            Some("safetensors") => return Ok(None),
            Some("gguf") => ggufs.push(path),
            _ => {}
        }
    }
    ggufs.sort();
    let Some(first) = ggufs.first().cloned() else { return Ok(None) };
    let model = gguf::parts(&first)?;
    if ggufs.iter().all(|p| *p == first || model.contains(p)) {
        return Ok(Some(first));
    }
    let names: Vec<_> = ggufs.iter().filter_map(|p| p.file_name()).map(|n| n.to_string_lossy()).collect();
    Err(RuntimeError::NotACheckpoint {
        path: folder.to_owned(),
        found: format!("a folder with {} GGUF models ({}); name one of them", ggufs.len(), names.join(", ")),
    })
}
