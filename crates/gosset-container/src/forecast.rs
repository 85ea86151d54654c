//! What parts of a container take in its file, before it is written.

use gosset_codec::{MatrixHeader, PlaneDtype};
use gosset_unisvq::UniSvqHeader;

use crate::header::{self, EntryText};
use crate::manifest::{BlobEntry, Digest, PlaneEntry, Storage, TensorEntry};
use crate::names;
use crate::unisvq;
use crate::writer::{self, ManifestInfo};

/// Bytes of one tensor or side file: an upper bound, missed by the digits of its offsets and of numbers not yet known.
///
/// A container is the sum of its parts and of [`Forecast::frame`], up to the padding of the header to 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forecast {
    /// Text in the header: entries of the planes, and the part's lines of the manifest.
    pub header_bytes: u64,
    /// Bytes of the planes.
    pub plane_bytes: u64,
    /// Number of planes.
    pub n_planes: u64,
}

/// One plane to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneForecast<'a> {
    /// Name within its tensor.
    pub name: &'a str,
    /// Type of the elements.
    pub dtype: PlaneDtype,
    /// Number of elements.
    pub len: u64,
}

impl Forecast {
    /// What belongs to no part: length prefix, checksum, the manifest without its lists, padding.
    ///
    /// # Errors
    /// The reason why `info` cannot be written as JSON.
    pub fn frame(info: &ManifestInfo) -> Result<u64, String> {
        let manifest = writer::manifest(info.clone(), Vec::new(), Vec::new(), Vec::new());
        // An empty container is padded already; one with parts is padded by 63 bytes at most.
        header::write(&manifest, &[]).map(|head| head.len() as u64 + header::ALIGNMENT as u64)
    }

    /// A coded tensor with this header and these planes, in a file of at most `max_bytes`.
    pub fn coded(
        name: &str,
        source_dtype: &str,
        header: &MatrixHeader,
        planes: &[PlaneForecast<'_>],
        max_bytes: u64,
    ) -> Self {
        let entry = |p: &PlaneForecast<'_>| PlaneEntry { name: p.name.to_owned(), xxh3: Digest(0) };
        let storage = Storage::Coded {
            source_dtype: source_dtype.to_owned(),
            header: header.clone(),
            planes: planes.iter().map(entry).collect(),
        };
        let mut out = Self::of_manifest(&TensorEntry { name: name.to_owned(), storage });
        for p in planes {
            let bytes = p.len.saturating_mul(p.dtype.size() as u64);
            out.add_plane(&names::plane(name, p.name), p.dtype.name(), &[p.len], bytes, max_bytes);
        }
        out
    }

    /// A matrix of grid codes with this header, with or without tuned scales of inputs and outputs.
    pub fn unisvq(name: &str, source_dtype: &str, header: &UniSvqHeader, is_tuned: bool, max_bytes: u64) -> Self {
        let codes = header.code_bytes().map_or(u64::MAX, |n| n as u64);
        let scales = [(unisvq::INPUT_SCALES, header.cols), (unisvq::OUTPUT_SCALES, header.rows)];
        let planes = [(unisvq::CODES, "U8", codes, 1)]
            .into_iter()
            .chain(scales.map(|(plane, len)| (plane, "F16", len, 2)).into_iter().filter(|_| is_tuned));
        let entry = |plane: &str| PlaneEntry { name: plane.to_owned(), xxh3: Digest(0) };
        let storage = Storage::UniSvq {
            source_dtype: source_dtype.to_owned(),
            header: header.clone(),
            planes: planes.clone().map(|(plane, ..)| entry(plane)).collect(),
        };
        let mut out = Self::of_manifest(&TensorEntry { name: name.to_owned(), storage });
        for (plane, dtype, len, size) in planes {
            let bytes = len.saturating_mul(size);
            out.add_plane(&names::plane(name, plane), dtype, &[len], bytes, max_bytes);
        }
        out
    }

    /// A tensor kept bit-exact.
    pub fn raw(name: &str, dtype: &str, shape: &[usize], n_bytes: u64, reason: &str, max_bytes: u64) -> Self {
        let (st_dtype, st_shape) = writer::stored_as(dtype, shape, n_bytes);
        let storage =
            Storage::Raw { dtype: dtype.to_owned(), shape: shape.to_vec(), reason: reason.to_owned(), xxh3: Digest(0) };
        let mut out = Self::of_manifest(&TensorEntry { name: name.to_owned(), storage });
        out.add_plane(&names::raw(name), st_dtype, &st_shape, n_bytes, max_bytes);
        out
    }

    /// A side file.
    pub fn blob(name: &str, n_bytes: u64, max_bytes: u64) -> Self {
        let mut out = Self::of_manifest(&BlobEntry { name: name.to_owned(), xxh3: Digest(0) });
        out.add_plane(&names::blob(name), "U8", &[n_bytes], n_bytes, max_bytes);
        out
    }

    /// The lines of a part in the manifest, which stands in the header as a string, and the comma before them.
    fn of_manifest(entry: &impl serde::Serialize) -> Self {
        let text = serde_json::to_string(entry).unwrap_or_default();
        let quoted = serde_json::to_string(&text).unwrap_or_default();
        Forecast { header_bytes: (quoted.len() as u64).saturating_sub(2) + 1, plane_bytes: 0, n_planes: 0 }
    }

    fn add_plane(&mut self, stored_name: &str, dtype: &str, shape: &[u64], n_bytes: u64, max_bytes: u64) {
        let entry = EntryText { name: stored_name, dtype, shape, data_offsets: [max_bytes, max_bytes] };
        self.header_bytes += entry.text().map_or(0, |text| text.len() as u64);
        self.plane_bytes += n_bytes;
        self.n_planes += 1;
    }
}
