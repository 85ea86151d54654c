//! A GGUF checkpoint, in one file or split, as a [`ModelSource`] with Hugging Face names, row order and side files.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gosset_quantize::{ModelSource, SourceError, SourceInfo, TensorInfo};
use sha2::{Digest, Sha256};

use super::block_type::BlockType;
use super::dequantize::dequantize;
use super::file_at::FileAt;
use super::gguf_config::{
    Metadata, TensorFacts, config_json, generation_config_json, heads, tokenizer_config_json, with_window,
};
use super::gguf_header::{GgufHeader, StoredTensor};
use super::gguf_names::{Family, RowOrder, hf_name};
use super::gguf_tokenizer::gguf_tokenizer;
use crate::RuntimeError;

/// Stored bytes read at a time: large enough for the disk, small beside any tensor that matters.
const PIECE_BYTES: usize = 1 << 20;
/// The tensor of rotary divisors, which becomes part of `config.json`.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// An opened GGUF checkpoint.
///
/// Headers were checked in full and every tensor lies inside its file. Weights are read at their positions when asked for, never
/// mapped: a file that shrinks meanwhile gives an I/O error.
#[derive(Debug)]
pub struct GgufSource {
    info: SourceInfo,
    tensors: Vec<TensorInfo>,
    places: Vec<Place>,
    files: Vec<FileAt>,
    blobs: Vec<(&'static str, Vec<u8>)>,
    tokenizer_problem: Option<String>,
}

/// Where and how one tensor is stored.
#[derive(Debug)]
struct Place {
    file: usize,
    at: u64,
    ty: BlockType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    order: RowOrder,
    /// F32 that Hugging Face has less by one.
    less_one: bool,
}

impl GgufSource {
    /// Opens a GGUF file; any part of a split model (`…-00001-of-00003.gguf`) opens all of it.
    ///
    /// # Errors
    /// Typed errors for files that are damaged, truncated, big-endian, of unknown block types, of an architecture without a
    /// known layout, or parts of an incomplete set. A vocabulary that cannot be read is no error here: weights can be quantized
    /// without it; see [`GgufSource::tokenizer_problem`].
    pub fn open(path: &Path) -> Result<Self, RuntimeError> {
        let paths = parts(path)?;
        let files = paths.iter().map(|p| FileAt::open(p)).collect::<Result<Vec<_>, _>>()?;
        let headers = files.iter().map(GgufHeader::read).collect::<Result<Vec<_>, _>>()?;
        let first = &headers[0];
        let meta = Metadata { path: files[0].path(), values: &first.metadata };
        check_split(meta, &headers)?;

        let architecture = meta
            .str("general.architecture")?
            .ok_or_else(|| RuntimeError::gguf(meta.path, "metadata general.architecture is missing"))?;
        let family = Family::of(architecture).ok_or_else(|| RuntimeError::UnsupportedArchitecture {
            found: architecture.to_owned(),
            supported: Family::supported(),
        })?;
        let heads = heads(meta, family)?;
        let family = with_window(meta, family)?;

        let (mut tensors, mut places, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        let mut rope_factors = None;
        for (file, header) in headers.iter().enumerate() {
            for stored in &header.tensors {
                if !seen.insert(hf_name(&stored.name, family)) {
                    return Err(RuntimeError::gguf(files[file].path(), format!("tensor {} occurs twice", stored.name)));
                }
                if stored.name == ROPE_FREQS {
                    rope_factors = Some(read_all(&files[file], stored)?);
                    continue;
                }
                let order = row_order(family, heads.head_dim as usize, stored);
                let (info, place) = describe(file, files[file].path(), stored, family, order)?;
                tensors.push(info);
                places.push(place);
            }
        }

        let facts = tensor_facts(&tensors, rope_factors);
        let mut blobs = vec![
            ("config.json", pretty(&config_json(meta, family, &facts)?)),
            ("generation_config.json", pretty(&generation_config_json(meta)?)),
        ];
        let (tokenizer, tokenizer_problem) = match gguf_tokenizer(meta) {
            Ok(found) => (found, None),
            Err(problem) => (None, Some(problem.to_string())),
        };
        if let Some(problem) = &tokenizer_problem {
            tracing::warn!("{}: {problem}; weights can be used, text cannot", meta.path.display());
        }
        if let Some(tokenizer) = tokenizer {
            blobs.push(("tokenizer.json", tokenizer.json.to_string().into_bytes()));
            blobs.push(("tokenizer_config.json", pretty(&tokenizer_config_json(meta, tokenizer.adds_bos)?)));
        }
        if let Some(template) = meta.str("tokenizer.chat_template")? {
            blobs.push(("chat_template.jinja", template.as_bytes().to_vec()));
        }

        let mut hash = Sha256::new();
        for header in &headers {
            hash.update((header.bytes.len() as u64).to_le_bytes());
            hash.update(&header.bytes);
        }
        let info = SourceInfo {
            kind: "gguf".into(),
            name: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
            architecture: Some(family.class.to_owned()),
            files: paths,
            total_bytes: tensors.iter().map(|t| t.n_bytes).sum(),
            fingerprint: hash.finalize().iter().map(|b| format!("{b:02x}")).collect(),
        };
        Ok(Self { info, tensors, places, files, blobs, tokenizer_problem })
    }

    /// Why there is no `tokenizer.json` although the file has a vocabulary; `None` if all is well or there is no vocabulary.
    pub fn tokenizer_problem(&self) -> Option<&str> {
        self.tokenizer_problem.as_deref()
    }

    fn place(&self, index: usize) -> Result<&Place, SourceError> {
        self.places.get(index).ok_or_else(|| SourceError::Range {
            name: format!("#{index}"),
            what: "tensor index",
            expected: self.places.len() as u64,
            found: index as u64,
        })
    }

    /// Hands the bytes of `rows` to `take`, in Hugging Face order and as they are there, in pieces of whole rows.
    fn for_rows<E: From<RuntimeError>>(
        &self,
        place: &Place,
        rows: Range<usize>,
        mut take: impl FnMut(Range<usize>, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let file = &self.files[place.file];
        let per_piece = (PIECE_BYTES / place.row_bytes).max(1);
        let mut buffer = Vec::new();
        let mut start = rows.start;
        while start < rows.end {
            let piece = start..rows.end.min(start + per_piece);
            buffer.resize(piece.len() * place.row_bytes, 0);
            match place.order {
                RowOrder::Plain => {
                    file.read_exact_at(&mut buffer, place.at + (piece.start * place.row_bytes) as u64)?;
                }
                RowOrder::Interleaved { .. } => {
                    for (row, out) in piece.clone().zip(buffer.chunks_exact_mut(place.row_bytes)) {
                        let stored = place.order.stored_row(row);
                        file.read_exact_at(out, place.at + (stored * place.row_bytes) as u64)?;
                    }
                }
            }
            if place.less_one {
                for value in buffer.as_chunks_mut::<4>().0 {
                    *value = (f32::from_le_bytes(*value) - 1.0).to_le_bytes();
                }
            }
            take(piece.clone(), &buffer)?;
            start = piece.end;
        }
        Ok(())
    }
}

impl ModelSource for GgufSource {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read_rows(&self, index: usize, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError> {
        let place = self.place(index)?;
        let (n_rows, cols) = self.tensors[index].rows_cols();
        let range = |what, expected: usize, found: usize| SourceError::Range {
            name: self.tensors[index].name.clone(),
            what,
            expected: expected as u64,
            found: found as u64,
        };
        if rows.start > rows.end || rows.end > n_rows {
            return Err(range("last row", n_rows, rows.end.max(rows.start)));
        }
        if rows.len() * cols != out.len() {
            return Err(range("output length", rows.len() * cols, out.len()));
        }
        // One-dimensional tensors in interleaved order are stored as one element per row; to the caller they are one row.
        let unit = cols / place.cols;
        let stored = rows.start * unit..rows.end * unit;
        let first = stored.start;
        self.for_rows(place, stored, |piece, bytes| {
            dequantize(place.ty, bytes, &mut out[(piece.start - first) * place.cols..(piece.end - first) * place.cols])
        })
        .map_err(SourceError::other)
    }

    fn raw_bytes(&self, index: usize) -> Result<Cow<'_, [u8]>, SourceError> {
        let place = self.place(index)?;
        let mut all = Vec::with_capacity(place.rows * place.row_bytes);
        self.for_rows(place, 0..place.rows, |_, bytes| {
            all.extend_from_slice(bytes);
            Ok::<_, RuntimeError>(())
        })
        .map_err(SourceError::other)?;
        Ok(all.into())
    }

    fn copy_raw(&self, index: usize, out: &mut dyn Write) -> Result<(), SourceError> {
        /// Keeps the two sides of a copy apart.
        enum Failed {
            Read(RuntimeError),
            Write(std::io::Error),
        }
        impl From<RuntimeError> for Failed {
            fn from(e: RuntimeError) -> Self {
                Failed::Read(e)
            }
        }
        let place = self.place(index)?;
        self.for_rows(place, 0..place.rows, |_, bytes| out.write_all(bytes).map_err(Failed::Write)).map_err(|e| match e
        {
            Failed::Read(e) => SourceError::other(e),
            Failed::Write(source) => SourceError::Sink { source },
        })
    }

    fn read_ahead(&self, index: usize) {
        if let Ok(place) = self.place(index) {
            self.files[place.file].read_ahead(place.at, (place.rows * place.row_bytes) as u64);
        }
    }

    fn release(&self, index: usize) {
        if let Ok(place) = self.place(index) {
            self.files[place.file].release(place.at, (place.rows * place.row_bytes) as u64);
        }
    }

    fn blob(&self, name: &str) -> Option<&[u8]> {
        self.blobs.iter().find(|(n, _)| *n == name).map(|(_, bytes)| bytes.as_slice())
    }

    fn blobs(&self) -> Vec<(&str, &[u8])> {
        self.blobs.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect()
    }
}

/// All files of the model that `path` is a part of, in order: just `path` unless its name ends in `-00001-of-00003.gguf`.
pub(super) fn parts(path: &Path) -> Result<Vec<PathBuf>, RuntimeError> {
    /// Real models have at most some hundred parts.
    const MAX_PARTS: usize = 9999;
    let Some((stem, n_parts)) = path.file_name().and_then(|n| n.to_str()).and_then(split_name) else {
        return Ok(vec![path.to_owned()]);
    };
    if n_parts > MAX_PARTS {
        return Err(RuntimeError::gguf(path, format!("expected at most {MAX_PARTS} parts, found {n_parts}")));
    }
    let all: Vec<PathBuf> =
        (1..=n_parts).map(|i| path.with_file_name(format!("{stem}-{i:05}-of-{n_parts:05}.gguf"))).collect();
    let missing: Vec<PathBuf> = all.iter().filter(|p| !p.is_file()).cloned().collect();
    if missing.is_empty() {
        Ok(all)
    } else {
        Err(RuntimeError::MissingParts { path: path.to_owned(), n_parts, missing })
    }
}

/// Stem and part count of a file name that follows the convention of split models.
fn split_name(name: &str) -> Option<(&str, usize)> {
    let digits =
        |s: &str| (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse::<usize>().ok()).flatten();
    let name = name.strip_suffix(".gguf")?;
    let (rest, n_parts) = name.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let (part, n_parts) = (digits(part)?, digits(n_parts)?);
    (1..=n_parts).contains(&part).then_some((stem, n_parts))
}

/// Holds the counts that split files state against the files that were found.
fn check_split(meta: Metadata<'_>, headers: &[GgufHeader]) -> Result<(), RuntimeError> {
    let n_parts = meta.u32("split.count")?.unwrap_or(1).max(1) as usize;
    if n_parts != headers.len() {
        return Err(RuntimeError::gguf(
            meta.path,
            format!(
                "metadata split.count: expected {} part(s) by the file name, found {n_parts}; parts are named NAME-00001-of-{n_parts:05}.gguf",
                headers.len()
            ),
        ));
    }
    let n_tensors: usize = headers.iter().map(|h| h.tensors.len()).sum();
    match meta.u32("split.tensors.count")? {
        Some(stated) if headers.len() > 1 && stated as usize != n_tensors => Err(RuntimeError::gguf(
            meta.path,
            format!("metadata split.tensors.count: expected {n_tensors} tensors as in all parts, found {stated}"),
        )),
        _ => Ok(()),
    }
}

fn row_order(family: Family, head_dim: usize, stored: &StoredTensor) -> RowOrder {
    let part = stored.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map(|(_, part)| part);
    match part {
        Some("attn_q.weight" | "attn_q.bias" | "attn_k.weight" | "attn_k.bias") if family.interleaved_qk => {
            RowOrder::Interleaved { head_dim }
        }
        _ => RowOrder::Plain,
    }
}

fn describe(
    file: usize,
    path: &Path,
    stored: &StoredTensor,
    family: Family,
    order: RowOrder,
) -> Result<(TensorInfo, Place), RuntimeError> {
    let info = TensorInfo {
        name: hf_name(&stored.name, family),
        shape: stored.shape.clone(),
        dtype: stored.ty.name().to_owned(),
        n_bytes: stored.n_bytes,
    };
    let bad = |detail: String| RuntimeError::gguf(path, format!("tensor {} {:?}: {detail}", stored.name, stored.shape));
    let (mut rows, mut cols) = info.rows_cols();
    if let RowOrder::Interleaved { head_dim } = order {
        if stored.shape.len() == 1 {
            (rows, cols) = (cols, 1);
        }
        if !rows.is_multiple_of(head_dim) {
            return Err(bad(format!("expected rows for whole heads of {head_dim}, found {rows}")));
        }
    }
    let row_bytes = stored
        .ty
        .row_bytes(cols)
        .ok_or_else(|| bad(format!("expected rows of whole {} blocks, found {cols} weights", stored.ty.name())))?;
    let less_one = family.gemma_norms && info.name.ends_with("norm.weight");
    if less_one && stored.ty != BlockType::F32 {
        return Err(bad(format!("expected a norm in F32, found {}", stored.ty.name())));
    }
    Ok((info, Place { file, at: stored.at, ty: stored.ty, rows, cols, row_bytes, order, less_one }))
}

/// A small tensor as f32.
fn read_all(file: &FileAt, stored: &StoredTensor) -> Result<Vec<f32>, RuntimeError> {
    const MAX_WEIGHTS: u64 = 1 << 16;
    let n: u64 = stored.shape.iter().map(|&d| d as u64).product();
    if n > MAX_WEIGHTS {
        return Err(RuntimeError::gguf(
            file.path(),
            format!("tensor {}: expected at most {MAX_WEIGHTS} numbers, found {n}", stored.name),
        ));
    }
    let mut bytes = vec![0; stored.n_bytes as usize];
    file.read_exact_at(&mut bytes, stored.at)?;
    let mut out = vec![0.0; n as usize];
    dequantize(stored.ty, &bytes, &mut out)?;
    Ok(out)
}

fn tensor_facts(tensors: &[TensorInfo], rope_factors: Option<Vec<f32>>) -> TensorFacts {
    let find = |name: &str| tensors.iter().find(|t| t.name == name);
    let any = |suffix: &str| tensors.iter().any(|t| t.name.ends_with(suffix));
    // The type of the linears says what the model was stored in; blocks are read as f32.
    let linear = tensors.iter().find(|t| t.name.ends_with("mlp.down_proj.weight")).map(|t| t.dtype.as_str());
    TensorFacts {
        n_vocab: find("model.embed_tokens.weight").and_then(|t| t.shape.first().copied()),
        has_head: find("lm_head.weight").is_some(),
        has_qkv_bias: any("self_attn.q_proj.bias"),
        has_mlp_bias: any("mlp.down_proj.bias"),
        torch_dtype: match linear {
            Some("F16") => "float16",
            Some("BF16") => "bfloat16",
            _ => "float32",
        },
        rope_factors,
    }
}

fn pretty(json: &serde_json::Value) -> Vec<u8> {
    format!("{json:#}").into_bytes()
}
