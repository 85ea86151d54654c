//! Checkpoints in safetensors files: a Hugging Face folder, sharded or not, or one bare file.

mod dtype;
mod folder;
mod shard;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gosset_container::file_kind::file_or_folder;
use gosset_container::safetensors_header::HeaderTensor;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::SourceError;
use crate::source::{ModelSource, SourceInfo, TensorInfo};

use folder::Checkpoint;
use shard::Shard;

/// Bytes copied or converted at a time.
const CHUNK: usize = 1 << 18;

/// Largest side file that is read.
const MAX_BLOB: u64 = 1 << 28;

/// Side files that a container carries along.
const BLOBS: &[&str] =
    &["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// Tensors of one or more safetensors files.
///
/// [`open`](SafetensorsSource::open) reads headers only and checks everything that can be checked without the weights: every
/// file's length, every range, every name. Weights are read by position, without a map: a file that shrinks meanwhile gives
/// [`SourceError::Io`].
#[derive(Debug)]
pub struct SafetensorsSource {
    info: SourceInfo,
    folder: Option<PathBuf>,
    shards: Vec<Shard>,
    tensors: Vec<TensorInfo>,
    /// Shard and first byte in its file for each tensor.
    places: Vec<(usize, u64)>,
    blobs: Vec<(String, Vec<u8>)>,
}

impl SafetensorsSource {
    /// Opens a folder with `model.safetensors`, with an index and shards, or with exactly one safetensors file; or one file.
    ///
    /// A folder whose `config.json` names an architecture is a model; anything else is plain tensors.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let Checkpoint { index, shards: paths, is_folder } = folder::find(path)?;
        let blobs = if is_folder { read_blobs(path)? } else { Vec::new() };
        let config = parse_config(path, &blobs)?;
        let shards = paths.into_iter().map(Shard::open).collect::<Result<Vec<_>, _>>()?;
        if let Some(index) = &index {
            index.check_placement(&shards)?;
        }

        let mut tensors = Vec::new();
        let mut places = Vec::new();
        let mut owner: HashMap<&str, usize> = HashMap::new();
        for (i, shard) in shards.iter().enumerate() {
            for t in &shard.header.tensors {
                if let Some(first) = owner.insert(&t.name, i) {
                    return Err(SourceError::DuplicateTensor {
                        name: t.name.clone(),
                        first: shards[first].path.clone(),
                        second: shard.path.clone(),
                    });
                }
                tensors.push(tensor_info(t)?);
                places.push((i, shard.header.data_start + t.start));
            }
        }
        let architecture = config.as_ref().and_then(architecture);
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        refuse_quantized(&name, config.as_ref(), &tensors, architecture.is_some())?;

        let mut hash = Sha256::new();
        if let Some(index) = &index {
            hash.update(&index.bytes);
        }
        shards.iter().for_each(|s| hash.update(s.header_digest));
        let info = SourceInfo {
            kind: "safetensors".to_owned(),
            name,
            architecture,
            files: shards.iter().map(|s| s.path.clone()).collect(),
            total_bytes: tensors.iter().map(|t| t.n_bytes).sum(),
            fingerprint: hash.finalize().iter().map(|b| format!("{b:02x}")).collect(),
        };
        let folder = is_folder.then(|| path.to_owned());
        Ok(SafetensorsSource { info, folder, shards, tensors, places, blobs })
    }
}

impl ModelSource for SafetensorsSource {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read_rows(&self, index: usize, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError> {
        let (t, shard, start) = self.place(index)?;
        let (n_rows, cols) = t.rows_cols();
        let range = |what, expected: usize, found: usize| SourceError::Range {
            name: t.name.clone(),
            what,
            expected: expected as u64,
            found: found as u64,
        };
        if rows.start > rows.end || rows.end > n_rows {
            return Err(range("end of rows", n_rows, rows.end));
        }
        if out.len() != rows.len() * cols {
            return Err(range("values of output", rows.len() * cols, out.len()));
        }
        let Some(element) = dtype::float_size(&t.dtype) else {
            return Err(SourceError::NotFloat { name: t.name.clone(), dtype: t.dtype.clone() });
        };
        let mut at = start + (rows.start * cols * element) as u64;
        let per_chunk = CHUNK / element;
        let mut buffer = vec![0u8; out.len().min(per_chunk) * element];
        for out in out.chunks_mut(per_chunk) {
            let bytes = &mut buffer[..out.len() * element];
            shard.read_at(at, bytes)?;
            dtype::to_f32(&t.dtype, bytes, out);
            at += bytes.len() as u64;
        }
        Ok(())
    }

    fn raw_bytes(&self, index: usize) -> Result<Cow<'_, [u8]>, SourceError> {
        let (t, shard, start) = self.place(index)?;
        // The file was found to be at least that long when it was opened.
        let mut bytes = vec![0u8; t.n_bytes as usize];
        shard.read_at(start, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    fn copy_raw(&self, index: usize, out: &mut dyn Write) -> Result<(), SourceError> {
        let (t, shard, start) = self.place(index)?;
        let mut buffer = vec![0u8; t.n_bytes.min(CHUNK as u64) as usize];
        let (mut at, end) = (start, start + t.n_bytes);
        while at < end {
            let bytes = &mut buffer[..(end - at).min(CHUNK as u64) as usize];
            shard.read_at(at, bytes)?;
            out.write_all(bytes).map_err(|source| SourceError::Sink { source })?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    fn read_ahead(&self, index: usize) {
        if let Ok((t, shard, start)) = self.place(index) {
            shard.read_ahead(start, t.n_bytes);
        }
    }

    fn release(&self, index: usize) {
        if let Ok((t, shard, start)) = self.place(index) {
            shard.release(start, t.n_bytes);
        }
    }

    fn blob(&self, name: &str) -> Option<&[u8]> {
        self.blobs.iter().find(|(n, _)| n == name).map(|(_, bytes)| bytes.as_slice())
    }

    fn blobs(&self) -> Vec<(&str, &[u8])> {
        self.blobs.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect()
    }
}

impl SafetensorsSource {
    fn place(&self, index: usize) -> Result<(&TensorInfo, &Shard, u64), SourceError> {
        match (self.tensors.get(index), self.places.get(index)) {
            (Some(t), Some(&(shard, start))) => Ok((t, &self.shards[shard], start)),
            _ => Err(SourceError::Range {
                name: format!("#{index}"),
                what: "tensor index",
                expected: self.tensors.len() as u64,
                found: index as u64,
            }),
        }
    }
}

fn tensor_info(t: &HeaderTensor) -> Result<TensorInfo, SourceError> {
    let shape = t.shape.iter().map(|&d| usize::try_from(d)).collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| SourceError::Range {
        name: t.name.clone(),
        what: "dimension",
        expected: usize::MAX as u64,
        found: t.shape.iter().copied().max().unwrap_or(0),
    })?;
    Ok(TensorInfo { name: t.name.clone(), shape, dtype: t.dtype.clone(), n_bytes: t.end - t.start })
}

fn read_blobs(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, SourceError> {
    let mut out = Vec::new();
    for name in BLOBS {
        let path = folder.join(name);
        let io = |what| {
            let path = path.clone();
            move |source| SourceError::Io { path, what, source }
        };
        if path.symlink_metadata().is_err() {
            continue;
        }
        folder::check_link(&path)?;
        let meta = file_or_folder(&path).map_err(io("reading"))?;
        if meta.len() > MAX_BLOB {
            let reason = format!("expected at most {MAX_BLOB} bytes, found {}", meta.len());
            return Err(SourceError::BadConfig { path, reason });
        }
        let bytes = fs::read(&path).map_err(io("reading"))?;
        out.push(((*name).to_owned(), bytes));
    }
    Ok(out)
}

fn parse_config(folder: &Path, blobs: &[(String, Vec<u8>)]) -> Result<Option<Value>, SourceError> {
    let Some((name, bytes)) = blobs.iter().find(|(n, _)| n == "config.json") else { return Ok(None) };
    let bad = |reason: String| SourceError::BadConfig { path: folder.join(name), reason };
    let config: Value = serde_json::from_slice(bytes).map_err(|e| bad(format!("expected JSON: {e}")))?;
    if !config.is_object() {
        return Err(bad("expected a JSON object".to_owned()));
    }
    Ok(Some(config))
}

fn architecture(config: &Value) -> Option<String> {
    let first = config.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
    first.or_else(|| config.get("model_type").and_then(Value::as_str)).map(str::to_owned)
}

/// Refuses weights that are quantized already, by the configuration or by their dtypes.
fn refuse_quantized(
    name: &str,
    config: Option<&Value>,
    tensors: &[TensorInfo],
    is_model: bool,
) -> Result<(), SourceError> {
    let refuse = |format: String| Err(SourceError::AlreadyQuantized { name: name.to_owned(), format });
    let packed = |t: &&TensorInfo| {
        let small_float = t.dtype.starts_with("F8_") || t.dtype.starts_with("F6_") || t.dtype == "F4";
        let integer = !crate::policy::is_float(&t.dtype) && t.dtype != "BOOL";
        let name_says = ["qweight", "weight_packed", "qzeros"].iter().any(|s| t.name.ends_with(s));
        let linear = is_model && t.shape.len() == 2 && t.name.ends_with(".weight");
        small_float || (integer && (name_says || linear))
    };
    let mut by_dtype: Vec<(&str, usize, &str)> = Vec::new();
    for t in tensors.iter().filter(packed) {
        match by_dtype.iter_mut().find(|(d, ..)| *d == t.dtype) {
            Some((_, n, _)) => *n += 1,
            None => by_dtype.push((&t.dtype, 1, &t.name)),
        }
    }
    let counts: Vec<_> =
        by_dtype.iter().map(|(d, n, first)| format!("{n} tensors of {d}, the first is {first:?}")).collect();
    let method = config.and_then(|c| c.get("quantization_config")).filter(|q| !q.is_null());
    if let Some(q) = method {
        let method = q.get("quant_method").and_then(Value::as_str).unwrap_or("of an unnamed method");
        let dtypes = if counts.is_empty() { String::new() } else { format!(": {}", counts.join("; ")) };
        return refuse(format!("config.json has a quantization_config, {method}{dtypes}"));
    }
    if counts.is_empty() { Ok(()) } else { refuse(counts.join("; ")) }
}
