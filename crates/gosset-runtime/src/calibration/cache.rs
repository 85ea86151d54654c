//! Second moments on disk, so that a second run on the same model and text needs no forward pass.
//!
//! One file per input of a layer, `layer-0007.feed-forward.hessian`:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `GOSSCALI` |
//! | 4 | length of the header, u32 little-endian, at most 65536 |
//! | | header, JSON: the key, what the values are of, what was seen |
//! | 8 | length of the values, u64 little-endian |
//! | | values as [`Hessian::to_bytes`] stores them |
//! | 32 | SHA-256 of everything before |
//!
//! Neither the processor nor the version of the program is part of the key: both change the last digits of the values only, far below
//! 1e-5 of √(h_ii h_jj) ([`HessianAccumulator`](gosset_unisvq::HessianAccumulator)), where the text's sampling leaves 1/√tokens. So a
//! folder serves any of them, and runs that share it share its digits. A change of what is computed raises [`FORMAT`].
//!
//! A file is composed under another name and renamed when it is whole. Sequential calibration has no cache: its second moments
//! depend on what the run made of the layers before.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use gosset_quantize::TokenWeights;
use gosset_unisvq::Hessian;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::layer_input::{InputCoverage, LayerInput};
use crate::error::RuntimeError;

const MAGIC: [u8; 8] = *b"GOSSCALI";
const EXTENSION: &str = "hessian";
const MAX_HEADER: u64 = 1 << 16;
const SHA256_LEN: usize = 32;
/// Bytes before the header.
const PREFIX: usize = 12;

/// What second moments depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CacheKey {
    /// Fingerprint of the checkpoint: names, shapes, types.
    pub(super) model: String,
    /// SHA-256 of its norms and of some rows of every matrix of a layer.
    pub(super) weights: String,
    /// SHA-256 of the token ids.
    pub(super) tokens_sha256: String,
    /// How many there are.
    pub(super) tokens: u64,
    /// Tokens of a sequence.
    pub(super) window: u64,
    /// How much each token counts.
    #[serde(default, skip_serializing_if = "TokenWeights::is_equal")]
    pub(super) token_weights: TokenWeights,
}

impl CacheKey {
    /// First field in which `found` differs, with both values.
    fn difference(&self, found: &CacheKey) -> Option<(&'static str, String, String)> {
        let fields = |key: &CacheKey| {
            [
                ("model", key.model.clone()),
                ("weights", key.weights.clone()),
                ("tokens", key.tokens.to_string()),
                ("tokens of a sequence", key.window.to_string()),
                ("token ids", key.tokens_sha256.clone()),
                ("token weights", key.token_weights.name().to_owned()),
            ]
        };
        let mut pairs = fields(self).into_iter().zip(fields(found));
        pairs.find(|(a, b)| a.1 != b.1).map(|((what, expected), (_, found))| (what, expected, found))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    key: CacheKey,
    seen: InputCoverage,
}

/// Version of the layout above.
const FORMAT: u32 = 1;

/// A folder of second moments of one model and text.
#[derive(Debug)]
pub(super) struct HessianCache {
    folder: PathBuf,
    key: CacheKey,
}

impl HessianCache {
    /// Opens the folder, which is made if it is not there.
    ///
    /// # Errors
    /// [`RuntimeError::HessianCacheDiffers`] if it holds second moments of another model or text, [`RuntimeError::HessianCache`]
    /// for files that are none, [`RuntimeError::Io`].
    pub(super) fn open(folder: &Path, key: CacheKey) -> Result<Self, RuntimeError> {
        fs::create_dir_all(folder).map_err(RuntimeError::io(folder))?;
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).map_err(RuntimeError::io(folder))? {
            let path = entry.map_err(RuntimeError::io(folder))?.path();
            if path.extension().is_some_and(|e| e == EXTENSION) {
                files.push(path);
            }
        }
        let cache = Self { folder: folder.to_owned(), key };
        if let Some(path) = files.iter().min() {
            let mut file = File::open(path).map_err(RuntimeError::io(path))?;
            cache.header(path, &mut file)?;
        }
        Ok(cache)
    }

    fn path(&self, layer: usize, input: LayerInput) -> PathBuf {
        self.folder.join(format!("layer-{layer:04}.{}.{EXTENSION}", input.name()))
    }

    /// Reads and checks prefix and header; returns the header's bytes too.
    fn header(&self, path: &Path, file: &mut File) -> Result<(Header, Vec<u8>), RuntimeError> {
        let damaged = |detail: String| RuntimeError::HessianCache { path: path.to_owned(), detail };
        let len = file.metadata().map_err(RuntimeError::io(path))?.len();
        let mut start = vec![0; PREFIX];
        if len < PREFIX as u64 {
            return Err(damaged(format!("expected {PREFIX} bytes or more, found {len}")));
        }
        file.read_exact(&mut start).map_err(RuntimeError::io(path))?;
        let (magic, header_len) = start.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(damaged(format!("expected a file that starts with {:?}", String::from_utf8_lossy(&MAGIC))));
        }
        let header_len = u64::from(u32::from_le_bytes(header_len.try_into().unwrap_or_default()));
        if header_len > MAX_HEADER || PREFIX as u64 + header_len > len {
            let limit = MAX_HEADER.min(len - PREFIX as u64);
            return Err(damaged(format!("expected a header of at most {limit} bytes, found {header_len}")));
        }
        start.resize(PREFIX + header_len as usize, 0);
        file.read_exact(&mut start[PREFIX..]).map_err(RuntimeError::io(path))?;
        let header: Header = serde_json::from_slice(&start[PREFIX..]).map_err(|e| damaged(format!("header: {e}")))?;
        if header.format != FORMAT {
            return Err(damaged(format!("expected format {FORMAT}, found {}", header.format)));
        }
        match self.key.difference(&header.key) {
            Some((what, expected, found)) => {
                Err(RuntimeError::HessianCacheDiffers { path: path.to_owned(), what, expected, found })
            }
            None => Ok((header, start)),
        }
    }

    /// Second moments of `n` channels at one input, and what was seen there; `None` if they are not in the folder.
    ///
    /// Nothing is allocated by a length that the file states.
    pub(super) fn read(
        &self,
        layer: usize,
        input: LayerInput,
        n: usize,
    ) -> Result<Option<(Hessian, InputCoverage)>, RuntimeError> {
        let path = self.path(layer, input);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(RuntimeError::io(&path)(e)),
        };
        let damaged = |detail: String| RuntimeError::HessianCache { path: path.clone(), detail };
        let (header, start) = self.header(&path, &mut file)?;
        let expected = (layer as u64, input, n as u64, self.key.tokens);
        let found = (header.seen.layer, header.seen.input, header.seen.channels, header.seen.tokens);
        if expected != found {
            let words = |(layer, input, channels, tokens): (u64, LayerInput, u64, u64)| {
                format!("layer {layer}, {}, {channels} channels, {tokens} tokens", input.name())
            };
            return Err(damaged(format!("expected {}, found {}", words(expected), words(found))));
        }
        let len = file.metadata().map_err(RuntimeError::io(&path))?.len();
        let values_len = values_len(n);
        let whole = start.len() as u64 + 8 + values_len + SHA256_LEN as u64;
        if len != whole {
            return Err(damaged(format!("expected {whole} bytes, found {len}")));
        }
        let mut rest = vec![0; 8 + values_len as usize + SHA256_LEN];
        file.read_exact(&mut rest).map_err(RuntimeError::io(&path))?;
        let (body, sum) = rest.split_at(8 + values_len as usize);
        let mut hash = Sha256::new();
        hash.update(&start);
        hash.update(body);
        if hash.finalize().as_slice() != sum {
            return Err(damaged("the checksum does not match: the file was changed or cut".to_owned()));
        }
        let (stated, values) = body.split_at(8);
        if stated != values_len.to_le_bytes() {
            return Err(damaged(format!("expected {values_len} bytes of values, found another length")));
        }
        let hessian = Hessian::from_bytes(values).map_err(|e| damaged(e.to_string()))?;
        if (hessian.n(), hessian.n_tokens()) != (n, self.key.tokens) {
            let (n_found, tokens) = (hessian.n(), hessian.n_tokens());
            let expected = format!("{n} channels of {} tokens", self.key.tokens);
            return Err(damaged(format!("expected values of {expected}, found {n_found} of {tokens}")));
        }
        Ok(Some((hessian, header.seen)))
    }

    /// Whether [`read`](Self::read) would find a file.
    pub(super) fn has(&self, layer: usize, input: LayerInput) -> bool {
        self.path(layer, input).is_file()
    }

    /// Writes one file whole.
    pub(super) fn write(&self, hessian: &Hessian, seen: &InputCoverage) -> Result<(), RuntimeError> {
        let path = self.path(seen.layer as usize, seen.input);
        let header = Header { format: FORMAT, key: self.key.clone(), seen: *seen };
        let header = serde_json::to_vec(&header)
            .map_err(|e| RuntimeError::HessianCache { path: path.clone(), detail: format!("header: {e}") })?;
        let values = hessian.to_bytes();
        let io = |e: std::io::Error| RuntimeError::io(&path)(e);
        let mut file = temp_file(&self.folder).map_err(io)?;
        let mut hash = Sha256::new();
        let lengths = ((header.len() as u32).to_le_bytes(), (values.len() as u64).to_le_bytes());
        for part in [&MAGIC[..], &lengths.0, &header, &lengths.1, &values] {
            hash.update(part);
            file.write_all(part).map_err(io)?;
        }
        file.write_all(&hash.finalize()).map_err(io)?;
        file.persist(&path).map_err(|e| io(e.error))?;
        Ok(())
    }
}

/// Bytes of [`Hessian::to_bytes`] for `n` channels: 24, then the lower triangle in f64.
fn values_len(n: usize) -> u64 {
    let n = n as u64;
    24 + n * (n + 1) / 2 * 8
}

/// A new file in `folder` with the usual permissions instead of the private ones of a temporary file.
fn temp_file(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".gosset-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}
