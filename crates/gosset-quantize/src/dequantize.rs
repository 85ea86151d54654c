//! From a container back to a safetensors folder that other programs load.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use gosset_codec::DecodeScratch;
use gosset_container::file_kind::check_replaceable;
use gosset_container::safetensors_header::dtype_bits;
use gosset_container::{Container, Storage, TensorEntry};
use half::{bf16, f16};
use rayon::prelude::*;
use serde_json::json;

use crate::error::QuantizeError;
use crate::observer::{Event, Observer};
use crate::scan::BLOCK_VALUES;
use crate::stored::StoredDecoder;

/// Name of the weight file in the folder.
const WEIGHTS: &str = "model.safetensors";

/// Dtype that coded tensors are expanded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FloatDtype {
    /// Single precision: exactly what the container decodes to.
    F32,
    /// Half precision, rounded to nearest even; tensors with values beyond 65504 are refused.
    F16,
    /// bfloat16, rounded to nearest even.
    Bf16,
}

impl FloatDtype {
    /// Every dtype, in the order of a help text.
    pub const ALL: [FloatDtype; 3] = [FloatDtype::F32, FloatDtype::F16, FloatDtype::Bf16];

    /// Name in safetensors: `F32`, `F16`, `BF16`.
    pub fn name(self) -> &'static str {
        match self {
            FloatDtype::F32 => "F32",
            FloatDtype::F16 => "F16",
            FloatDtype::Bf16 => "BF16",
        }
    }

    /// The dtype of that name, in either case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name().eq_ignore_ascii_case(name))
    }

    fn size(self) -> u64 {
        match self {
            FloatDtype::F32 => 4,
            FloatDtype::F16 | FloatDtype::Bf16 => 2,
        }
    }

    /// Dtypes for values that do not fit this one.
    fn instead(self) -> &'static str {
        match self {
            FloatDtype::F16 => "f32 or bf16",
            FloatDtype::F32 | FloatDtype::Bf16 => "f32",
        }
    }

    /// Whether a finite value becomes infinite.
    fn overflows(self, v: f32) -> bool {
        let infinite = match self {
            FloatDtype::F32 => false,
            FloatDtype::F16 => f16::from_f32(v).is_infinite(),
            FloatDtype::Bf16 => bf16::from_f32(v).is_infinite(),
        };
        infinite && v.is_finite()
    }

    fn append(self, values: &[f32], out: &mut Vec<u8>) {
        match self {
            FloatDtype::F32 => values.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
            FloatDtype::F16 => values.iter().for_each(|&v| out.extend_from_slice(&f16::from_f32(v).to_le_bytes())),
            FloatDtype::Bf16 => values.iter().for_each(|&v| out.extend_from_slice(&bf16::from_f32(v).to_le_bytes())),
        }
    }
}

/// Expands raw tensors of block types, which this crate does not interpret.
pub trait RawDequantizer: Sync {
    /// Writes `rows` of a tensor to `out`; `bytes` is the whole tensor, `cols` its last dimension.
    fn dequantize_rows(
        &self,
        dtype: &str,
        bytes: &[u8],
        cols: usize,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// What [`dequantize`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DequantizeSummary {
    /// The folder.
    pub folder: PathBuf,
    /// Its files, by name.
    pub files: Vec<String>,
    /// Bytes of the weight file.
    pub weight_bytes: u64,
    /// Tensors in it.
    pub n_tensors: usize,
}

/// Expands a container into a new folder: `model.safetensors` and the side files.
///
/// Coded tensors become `dtype`; raw tensors of a safetensors dtype are copied bit by bit; other raw tensors go through `blocks` and
/// become `dtype` too. The folder appears when it is complete. An existing folder is refused unless it is empty.
///
/// # Errors
///
/// [`QuantizeError::DtypeOverflow`] for a tensor with finite values that `dtype` cannot hold, [`QuantizeError::OutputExists`],
/// [`QuantizeError::Cancelled`], and the errors of container and codec.
pub fn dequantize(
    container: &Arc<Container>,
    out_dir: &Path,
    dtype: FloatDtype,
    blocks: Option<&dyn RawDequantizer>,
    observer: &dyn Observer,
) -> Result<DequantizeSummary, QuantizeError> {
    let exists = || QuantizeError::OutputExists { path: out_dir.to_owned() };
    match fs::read_dir(out_dir).map(|mut entries| entries.next().is_some()) {
        Ok(false) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        _ => return Err(exists()),
    }
    let io = |what| move |source| QuantizeError::Io { path: out_dir.to_owned(), what, source };
    let parent = out_dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temp = tempfile::Builder::new()
        .prefix(".gosset-")
        .suffix(".tmp")
        .tempdir_in(parent)
        .map_err(io("creating a temporary folder beside it"))?;

    let (header, plan) = layout(container, dtype, blocks)?;
    let mut file = BufWriter::new(File::create(temp.path().join(WEIGHTS)).map_err(io("creating a file"))?);
    file.write_all(&header).map_err(io("writing"))?;
    let mut weight_bytes = header.len() as u64;
    let total = plan.len();
    let weights_total = plan.iter().map(|(e, ..)| e.n_weights()).sum();
    let (started, mut weights_done) = (Instant::now(), 0);
    for (index, (entry, expand, n_bytes)) in plan.iter().enumerate() {
        if observer.cancelled() {
            return Err(QuantizeError::Cancelled { done: index, total });
        }
        let (tensor, n_weights) = (entry.name.as_str(), entry.n_weights());
        observer.event(&Event::Started { tensor, index, total, n_weights });
        match &entry.storage {
            Storage::Coded { .. } => {
                let coded = container.coded(tensor)?;
                let decoder = StoredDecoder::Coded(coded.decoder()?);
                expand_quantized(&decoder, tensor, dtype, &mut file).map_err(|e| e.at(out_dir))?;
            }
            Storage::UniSvq { .. } => {
                let codes = container.unisvq(tensor)?;
                let decoder = StoredDecoder::UniSvq(codes.decoder()?);
                expand_quantized(&decoder, tensor, dtype, &mut file).map_err(|e| e.at(out_dir))?;
            }
            _ if *expand => expand_raw(container, tensor, dtype, blocks, &mut file).map_err(|e| e.at(out_dir))?,
            _ => file.write_all(container.raw(tensor)?.bytes).map_err(io("writing"))?,
        }
        weight_bytes += n_bytes;
        weights_done += n_weights;
        let elapsed = started.elapsed();
        observer.event(&Event::Finished { tensor, index, total, weights_done, weights_total, elapsed });
    }
    observer.event(&Event::Writing);
    let file = file.into_inner().map_err(|e| io("writing")(e.into_error()))?;
    file.sync_all().map_err(io("flushing to disk"))?;
    let mut files = vec![WEIGHTS.to_owned()];
    for blob in &container.manifest().blobs {
        let Some(name) = blob_file_name(&blob.name) else { continue };
        let bytes = container.blob(&blob.name)?.unwrap_or_default();
        fs::write(temp.path().join(name), bytes).map_err(io("writing"))?;
        files.push(name.to_owned());
    }
    publish(temp, out_dir).map_err(io("renaming the temporary folder"))?;
    Ok(DequantizeSummary { folder: out_dir.to_owned(), files, weight_bytes, n_tensors: total })
}

/// Refuses a folder in which a file that [`dequantize`] makes would replace the container itself or what is no regular file.
///
/// For callers that move the files into a folder in use; to be asked before the work.
///
/// # Errors
///
/// [`QuantizeError::OutputIsInput`] and [`QuantizeError::Io`].
pub fn check_dequantize_targets(container: &Container, folder: &Path) -> Result<(), QuantizeError> {
    let input = fs::canonicalize(container.path()).ok();
    let blobs = container.manifest().blobs.iter().filter_map(|blob| blob_file_name(&blob.name));
    for name in std::iter::once(WEIGHTS).chain(blobs) {
        let out = folder.join(name);
        if input.is_some() && fs::canonicalize(&out).ok() == input {
            return Err(QuantizeError::OutputIsInput { out, input: container.path().to_owned() });
        }
        let what = "checking what it would replace";
        check_replaceable(&out).map_err(|source| QuantizeError::Io { path: out, what, source })?;
    }
    Ok(())
}

/// A tensor, whether it is expanded from a block type, and its bytes in the folder.
type Item<'a> = (&'a TensorEntry, bool, u64);

/// Header of the weight file and the tensors in the order of their data.
fn layout<'a>(
    container: &'a Container,
    dtype: FloatDtype,
    blocks: Option<&dyn RawDequantizer>,
) -> Result<(Vec<u8>, Vec<Item<'a>>), QuantizeError> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut items = Vec::new();
    let mut at = 0u64;
    for entry in container.entries() {
        let plain = match &entry.storage {
            Storage::Raw { dtype, .. } => dtype_bits(dtype).filter(|bits| bits % 8 == 0),
            _ => None,
        };
        let expand = !entry.is_quantized() && plain.is_none();
        if expand && blocks.is_none() {
            return Err(QuantizeError::RawDequantize {
                tensor: entry.name.clone(),
                dtype: entry.dtype().to_owned(),
                reason: "none was given".to_owned(),
            });
        }
        let (name, element) = match plain {
            Some(bits) => (entry.dtype(), bits / 8),
            None => (dtype.name(), dtype.size()),
        };
        let n_bytes = entry.n_weights().saturating_mul(element);
        let end = at.saturating_add(n_bytes);
        header.insert(entry.name.clone(), json!({ "dtype": name, "shape": entry.shape(), "data_offsets": [at, end] }));
        items.push((entry, expand, n_bytes));
        at = end;
    }
    let mut json = serde_json::Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.append(&mut json);
    Ok((out, items))
}

/// Values of one tensor that do not fit the dtype.
#[derive(Default)]
struct Overflow {
    count: AtomicU64,
    /// Bits of the largest magnitude, which order like the magnitudes.
    largest: AtomicU32,
}

impl Overflow {
    /// Appends values and counts those that do not fit.
    fn append(&self, dtype: FloatDtype, values: &[f32], out: &mut Vec<u8>) {
        for v in values.iter().filter(|&&v| dtype.overflows(v)) {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.largest.fetch_max(v.abs().to_bits(), Ordering::Relaxed);
        }
        dtype.append(values, out);
    }

    fn check(self, tensor: &str, dtype: FloatDtype) -> Result<(), ExpandError> {
        match self.count.into_inner() {
            0 => Ok(()),
            count => Err(ExpandError::Other(QuantizeError::DtypeOverflow {
                tensor: tensor.to_owned(),
                dtype: dtype.name(),
                count,
                largest: f32::from_bits(self.largest.into_inner()),
                instead: dtype.instead(),
            })),
        }
    }
}

/// An error that does not know the output yet.
enum ExpandError {
    Write(io::Error),
    Other(QuantizeError),
}

impl ExpandError {
    fn at(self, path: &Path) -> QuantizeError {
        match self {
            ExpandError::Write(source) => QuantizeError::Io { path: path.to_owned(), what: "writing", source },
            ExpandError::Other(e) => e,
        }
    }
}

fn expand_quantized(
    decoder: &StoredDecoder<'_>,
    name: &str,
    dtype: FloatDtype,
    out: &mut impl Write,
) -> Result<(), ExpandError> {
    let (rows, cols, step) = (decoder.rows(), decoder.cols(), decoder.step());
    let overflow = Overflow::default();
    in_blocks(rows, step, out, |block, bytes| {
        let mut values = vec![0f32; block.len() * cols];
        decoder.decode(name, block, &mut values, &mut DecodeScratch::new()).map_err(ExpandError::Other)?;
        overflow.append(dtype, &values, bytes);
        Ok(())
    })?;
    overflow.check(name, dtype)
}

fn expand_raw(
    container: &Arc<Container>,
    name: &str,
    dtype: FloatDtype,
    blocks: Option<&dyn RawDequantizer>,
    out: &mut impl Write,
) -> Result<(), ExpandError> {
    let raw = container.raw(name).map_err(|e| ExpandError::Other(e.into()))?;
    let (rows, cols) = match raw.shape {
        [] => (1, 1),
        [n] => (1, *n),
        [lead @ .., cols] => (lead.iter().product(), *cols),
    };
    let failed = |reason: String| {
        ExpandError::Other(QuantizeError::RawDequantize {
            tensor: name.to_owned(),
            dtype: raw.dtype.to_owned(),
            reason,
        })
    };
    let step = (BLOCK_VALUES / cols.max(1)).max(1);
    let overflow = Overflow::default();
    in_blocks(rows, step, out, |block, bytes| {
        let mut values = vec![0f32; block.len() * cols];
        let blocks = blocks.ok_or_else(|| failed("none was given".to_owned()))?;
        blocks.dequantize_rows(raw.dtype, raw.bytes, cols, block, &mut values).map_err(|e| failed(e.to_string()))?;
        overflow.append(dtype, &values, bytes);
        Ok(())
    })?;
    overflow.check(name, dtype)
}

/// Calls `fill` for blocks of rows on all threads, a few blocks at a time, and writes what they give in order.
fn in_blocks(
    rows: usize,
    step: usize,
    out: &mut impl Write,
    fill: impl Fn(Range<usize>, &mut Vec<u8>) -> Result<(), ExpandError> + Sync,
) -> Result<(), ExpandError> {
    let batch = step.saturating_mul(2 * rayon::current_num_threads());
    for first in (0..rows).step_by(batch) {
        let end = first.saturating_add(batch).min(rows);
        let starts: Vec<usize> = (first..end).step_by(step).collect();
        let filled: Vec<Vec<u8>> = starts
            .into_par_iter()
            .map(|s| {
                let mut bytes = Vec::new();
                fill(s..(s + step).min(end), &mut bytes)?;
                Ok(bytes)
            })
            .collect::<Result<_, ExpandError>>()?;
        for bytes in filled {
            out.write_all(&bytes).map_err(ExpandError::Write)?;
        }
    }
    Ok(())
}

/// The name as a file inside the folder; `None` for names that would lead elsewhere.
fn blob_file_name(name: &str) -> Option<&str> {
    let plain = !name.is_empty()
        && name != "."
        && name != ".."
        && name != WEIGHTS
        && !name.contains(|c: char| matches!(c, '/' | '\\' | ':') || c.is_control());
    plain.then_some(name)
}

/// Gives the temporary folder its name.
fn publish(temp: tempfile::TempDir, out_dir: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        // The usual permissions of a new folder instead of the private ones of a temporary one.
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755))?;
    }
    // An empty folder may be in the way; anything else makes this fail.
    match fs::remove_dir(out_dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    fs::rename(temp.path(), out_dir)?;
    // The name it had is gone, so there is nothing left to remove.
    let _ = temp.keep();
    Ok(())
}
