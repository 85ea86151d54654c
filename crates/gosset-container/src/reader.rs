//! Opens a container: one memory map whose whole header is checked before anything else happens.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gosset_codec::{CodecError, Decoder, MatrixHeader, Plane};
use memmap2::Mmap;
use serde::Deserialize;

use crate::error::ContainerError;
use crate::header::{self, MANIFEST_KEY};
use crate::manifest::{
    Digest, FORMAT_MAJOR, FORMAT_MINOR, GENERATOR, Manifest, PlaneEntry, Storage, TensorEntry, is_rice,
};
use crate::safetensors_header::{self as st, Header, HeaderProblem, HeaderTensor};
use crate::{file_kind, names, planes, shards, unisvq};

/// Sections of format 1, which every reader knows.
const KNOWN_SECTIONS: [&str; 2] = ["tensors", "blobs"];

/// An open container.
///
/// The file is mapped, not read: it must not be changed while it is open, which is why writers replace files by renaming.
#[derive(Debug)]
pub struct Container {
    pub(crate) path: PathBuf,
    /// The file itself, or every shard of it.
    pub(crate) files: Vec<MappedFile>,
    pub(crate) manifest: Manifest,
    pub(crate) header_bytes: u64,
    pub(crate) slots: Vec<Slot>,
    pub(crate) tensor_slots: Vec<Range<usize>>,
    pub(crate) blob_slots: Range<usize>,
    pub(crate) by_name: HashMap<String, usize>,
}

/// One file that planes lie in.
#[derive(Debug)]
pub(crate) struct MappedFile {
    pub(crate) path: PathBuf,
    pub(crate) map: Mmap,
}

/// One plane of the file.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Tensor, blob or section that owns the plane, for messages.
    pub(crate) owner: Owner,
    /// Name in the safetensors layer.
    pub(crate) stored_name: String,
    /// Name within its owner.
    pub(crate) plane: String,
    pub(crate) dtype: String,
    /// The file that it lies in, of those of the container.
    pub(crate) file: usize,
    /// Bytes within the file.
    range: Range<usize>,
    digest: Digest,
    checked: AtomicBool,
}

/// What a plane belongs to; indices into the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Tensor(usize),
    Blob(usize),
    Section(usize),
}

impl Slot {
    pub(crate) fn n_bytes(&self) -> u64 {
        self.range.len() as u64
    }
}

/// A tensor kept bit-exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawTensor<'a> {
    /// Dtype: a safetensors name or a GGUF block type.
    pub dtype: &'a str,
    /// Shape.
    pub shape: &'a [usize],
    /// All bytes, little-endian. Aligned to the elements unless another program moved them.
    pub bytes: &'a [u8],
}

/// A coded tensor that keeps its container open.
#[derive(Debug, Clone)]
pub struct CodedTensor {
    container: Arc<Container>,
    index: usize,
    /// Copies of the planes where the map could not be used in place.
    copied: Option<Arc<Vec<Plane<'static>>>>,
}

/// Just enough of a manifest to say which version a file needs.
#[derive(Deserialize)]
struct VersionProbe {
    #[serde(default)]
    format: Option<FormatProbe>,
    #[serde(default)]
    generator: Option<String>,
    #[serde(default)]
    needs: Option<String>,
}

#[derive(Deserialize)]
struct FormatProbe {
    major: u64,
    minor: u64,
}

impl Container {
    /// Maps the container at `path` and checks its header: checksum, version, manifest, and that the planes cover the file exactly. Where
    /// `path` is the index of shards, all of them become one container.
    ///
    /// Planes are checked when they are first used; [`verify`](Container::verify) checks all of them.
    pub fn open(path: &Path) -> Result<Arc<Self>, ContainerError> {
        let map = Self::map(path)?;
        if shards::is_index(&map) {
            return shards::open(path, &map).map(Arc::new);
        }
        Self::from_map(path.to_owned(), map).map(Arc::new)
    }

    fn map(path: &Path) -> Result<Mmap, ContainerError> {
        let io = |what| move |source| ContainerError::Io { path: path.to_owned(), what, source };
        file_kind::file_or_folder(path).map_err(io("opening"))?;
        let file = File::open(path).map_err(io("opening"))?;
        let meta = file.metadata().map_err(io("opening"))?;
        if meta.is_dir() {
            return Err(ContainerError::OtherFormat { path: path.to_owned(), found: "a folder" });
        }
        if meta.len() == 0 {
            return Err(ContainerError::OtherFormat { path: path.to_owned(), found: "an empty file" });
        }
        // SAFETY: the map is read-only. Its bytes may change only if another process writes to the file in place, which no
        // writer of this format does: outputs appear by renaming. The contract is part of this type's documentation.
        unsafe { Mmap::map(&file) }.map_err(io("mapping"))
    }

    /// The one file at `path`, which is no index.
    pub(crate) fn open_file(path: &Path) -> Result<Self, ContainerError> {
        Self::from_map(path.to_owned(), Self::map(path)?)
    }

    fn from_map(path: PathBuf, map: Mmap) -> Result<Self, ContainerError> {
        let parsed = parse(&path, &map)?;
        let Parsed { manifest, header } = parsed;
        let manifest_error = |reason: String| ContainerError::Manifest { path: path.clone(), reason };

        let header_tensors: HashMap<&str, &HeaderTensor> =
            header.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let mut pool = header_tensors.clone();
        let mut slots = Vec::with_capacity(header.tensors.len());
        let data_start = header.data_start;
        let mut take = |owner, stored_name: String, plane: &str, digest: Digest| {
            let Some(t) = pool.remove(stored_name.as_str()) else {
                return Err(format!("plane {stored_name:?} is not in the file, or belongs to two parts"));
            };
            // In bounds of the map: the length of the file was checked against the header.
            let range = (data_start + t.start) as usize..(data_start + t.end) as usize;
            slots.push(Slot {
                owner,
                stored_name,
                plane: plane.to_owned(),
                dtype: t.dtype.clone(),
                file: 0,
                range,
                digest,
                checked: AtomicBool::new(false),
            });
            Ok(t)
        };

        let mut by_name = HashMap::with_capacity(manifest.tensors.len());
        let mut tensor_slots = Vec::with_capacity(manifest.tensors.len());
        let mut n_slots = 0;
        for (i, entry) in manifest.tensors.iter().enumerate() {
            if by_name.insert(entry.name.clone(), i).is_some() {
                return Err(manifest_error(format!("tensor {:?} is listed twice", entry.name)));
            }
            let first = n_slots;
            match &entry.storage {
                Storage::Coded { header, planes, .. } => {
                    check_coded_size(header, planes, |plane| {
                        header_tensors.get(names::plane(&entry.name, plane).as_str()).map(|t| t.end - t.start)
                    })
                    .map_err(|reason| manifest_error(format!("tensor {:?}: {reason}", entry.name)))?;
                    for p in planes {
                        let t = take(Owner::Tensor(i), names::plane(&entry.name, &p.name), &p.name, p.xxh3)
                            .map_err(manifest_error)?;
                        check_plane_dtype(t).map_err(manifest_error)?;
                        n_slots += 1;
                    }
                }
                Storage::UniSvq { header, planes, .. } => {
                    unisvq::check_planes(header, planes, |plane| {
                        header_tensors.get(names::plane(&entry.name, plane).as_str()).copied()
                    })
                    .map_err(|reason| manifest_error(format!("tensor {:?}: {reason}", entry.name)))?;
                    for p in planes {
                        take(Owner::Tensor(i), names::plane(&entry.name, &p.name), &p.name, p.xxh3)
                            .map_err(manifest_error)?;
                        n_slots += 1;
                    }
                }
                Storage::Raw { dtype, shape, xxh3, .. } => {
                    let t = take(Owner::Tensor(i), names::raw(&entry.name), "", *xxh3).map_err(manifest_error)?;
                    check_raw(t, dtype, shape).map_err(manifest_error)?;
                    n_slots += 1;
                }
            }
            tensor_slots.push(first..n_slots);
        }
        let first_blob = n_slots;
        for (i, blob) in manifest.blobs.iter().enumerate() {
            if manifest.blobs[..i].iter().any(|b| b.name == blob.name) {
                return Err(manifest_error(format!("blob {:?} is listed twice", blob.name)));
            }
            let t = take(Owner::Blob(i), names::blob(&blob.name), "", blob.xxh3).map_err(manifest_error)?;
            if t.dtype != "U8" {
                return Err(manifest_error(format!("blob {:?}: expected U8, found {}", blob.name, t.dtype)));
            }
            n_slots += 1;
        }
        let blob_slots = first_blob..n_slots;
        for (i, section) in manifest.sections.iter().enumerate() {
            for PlaneEntry { name, xxh3 } in &section.planes {
                take(Owner::Section(i), names::section(&section.name, name), name, *xxh3).map_err(manifest_error)?;
            }
        }
        if let Some(name) = pool.keys().min() {
            return Err(manifest_error(format!("plane {name:?} belongs to nothing that the manifest lists")));
        }
        let files = vec![MappedFile { path: path.clone(), map }];
        Ok(Container { header_bytes: data_start, path, files, manifest, slots, tensor_slots, blob_slots, by_name })
    }

    /// What the container holds.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file, or of all shards.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.map.len() as u64).sum()
    }

    /// The files that the planes lie in: the container itself, or its shards.
    pub fn files(&self) -> Vec<&Path> {
        self.files.iter().map(|file| file.path.as_path()).collect()
    }

    /// Bytes before the data: length prefix, JSON and padding.
    pub fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// The tensors, in the order they were written.
    pub fn entries(&self) -> &[TensorEntry] {
        &self.manifest.tensors
    }

    /// The tensor `name`.
    pub fn entry(&self, name: &str) -> Option<&TensorEntry> {
        self.by_name.get(name).map(|&i| &self.manifest.tensors[i])
    }

    /// The coded tensor `name`. Its planes are checked against their checksums, the first time they are asked for.
    pub fn coded(self: &Arc<Self>, name: &str) -> Result<CodedTensor, ContainerError> {
        let index = self.index(name)?;
        if !self.manifest.tensors[index].is_coded() {
            return Err(self.wrong_kind(name, "stored in another way", "one under a codec"));
        }
        let range = self.tensor_slots[index].clone();
        for slot in &self.slots[range.clone()] {
            self.check(slot)?;
        }
        let in_place = self.slots[range.clone()]
            .iter()
            .all(|s| planes::dtype_named(&s.dtype).is_some_and(|d| !planes::needs_copy(d, self.bytes(s))));
        let copied = (!in_place).then(|| {
            let own = |s: &Slot| planes::into_owned(self.plane(s));
            Arc::new(self.slots[range].iter().map(own).collect())
        });
        let tensor = CodedTensor { container: Arc::clone(self), index, copied };
        tensor.decoder()?;
        Ok(tensor)
    }

    /// The raw tensor `name`. Its bytes are checked against their checksum, the first time they are asked for.
    pub fn raw(&self, name: &str) -> Result<RawTensor<'_>, ContainerError> {
        let index = self.index(name)?;
        let Storage::Raw { dtype, shape, .. } = &self.manifest.tensors[index].storage else {
            return Err(self.wrong_kind(name, "compressed", "one kept bit-exact"));
        };
        let slot = &self.slots[self.tensor_slots[index].start];
        self.check(slot)?;
        Ok(RawTensor { dtype, shape, bytes: self.bytes(slot) })
    }

    /// The side file `name`, `None` if there is none.
    pub fn blob(&self, name: &str) -> Result<Option<&[u8]>, ContainerError> {
        let Some(i) = self.manifest.blobs.iter().position(|b| b.name == name) else {
            return Ok(None);
        };
        let slot = &self.slots[self.blob_slots.start + i];
        self.check(slot)?;
        Ok(Some(self.bytes(slot)))
    }

    /// The plane `plane` of the section `section`, as bytes; `None` if there is none.
    pub fn section_plane(&self, section: &str, plane: &str) -> Result<Option<&[u8]>, ContainerError> {
        let stored = names::section(section, plane);
        let Some(slot) = self.slots[self.blob_slots.end..].iter().find(|s| s.stored_name == stored) else {
            return Ok(None);
        };
        self.check(slot)?;
        Ok(Some(self.bytes(slot)))
    }

    /// Checks a plane against its checksum, once.
    pub(crate) fn check(&self, slot: &Slot) -> Result<(), ContainerError> {
        // Relaxed is enough: the flag guards no data, a second check by another thread gives the same answer.
        if slot.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let found = Digest::of(self.bytes(slot));
        if found != slot.digest {
            return Err(ContainerError::PlaneChecksum {
                path: self.files[slot.file].path.clone(),
                plane: slot.stored_name.clone(),
                expected: slot.digest.0,
                found: found.0,
            });
        }
        slot.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Checks a plane against its checksum, whether that was done before or not.
    pub(crate) fn recheck(&self, slot: &Slot) -> Result<(), ContainerError> {
        slot.checked.store(false, Ordering::Relaxed);
        self.check(slot)
    }

    pub(crate) fn slots_of_tensor(&self, index: usize) -> &[Slot] {
        &self.slots[self.tensor_slots[index].clone()]
    }

    /// A decoder of tensor `index` straight from the map, `None` for a raw tensor. No checksum is looked at.
    pub(crate) fn unchecked_decoder(&self, index: usize) -> Option<Result<Decoder<'_>, CodecError>> {
        let Storage::Coded { header, .. } = &self.manifest.tensors[index].storage else { return None };
        let planes: Vec<_> = self.slots_of_tensor(index).iter().map(|s| self.plane(s)).collect();
        Some(Decoder::new(header, &planes))
    }

    fn plane<'a>(&'a self, slot: &'a Slot) -> Plane<'a> {
        let dtype = planes::dtype_named(&slot.dtype).expect("dtypes of planes were checked when the file was opened");
        Plane { name: slot.plane.as_str().into(), data: planes::from_le_bytes(dtype, self.bytes(slot)) }
    }

    pub(crate) fn bytes(&self, slot: &Slot) -> &[u8] {
        &self.files[slot.file].map[slot.range.clone()]
    }

    pub(crate) fn index(&self, name: &str) -> Result<usize, ContainerError> {
        self.by_name.get(name).copied().ok_or_else(|| ContainerError::NoTensor {
            path: self.path.clone(),
            name: name.to_owned(),
            n_tensors: self.manifest.tensors.len(),
        })
    }

    pub(crate) fn wrong_kind(&self, name: &str, found: &'static str, expected: &'static str) -> ContainerError {
        ContainerError::WrongKind { path: self.path.clone(), name: name.to_owned(), found, expected }
    }
}

impl CodedTensor {
    /// Name in the checkpoint.
    pub fn name(&self) -> &str {
        &self.entry().name
    }

    /// What the manifest says about the tensor.
    pub fn entry(&self) -> &TensorEntry {
        &self.container.manifest.tensors[self.index]
    }

    /// Everything but the planes that decoding needs.
    pub fn header(&self) -> &MatrixHeader {
        match &self.entry().storage {
            Storage::Coded { header, .. } => header,
            _ => unreachable!("only coded tensors are handed out as such"),
        }
    }

    /// Bytes of the planes.
    pub fn n_bytes(&self) -> u64 {
        self.container.slots_of_tensor(self.index).iter().map(Slot::n_bytes).sum()
    }

    /// The container that the planes lie in.
    pub fn container(&self) -> &Arc<Container> {
        &self.container
    }

    /// The planes, borrowed from the map where its alignment allows.
    pub fn planes(&self) -> Vec<Plane<'_>> {
        match &self.copied {
            Some(planes) => planes.iter().map(Plane::borrowed).collect(),
            None => self.container.slots_of_tensor(self.index).iter().map(|s| self.container.plane(s)).collect(),
        }
    }

    /// A decoder that borrows the map. Cheap beside decoding: nothing is copied, and the checks are linear in rows and streams.
    pub fn decoder(&self) -> Result<Decoder<'_>, ContainerError> {
        Decoder::new(self.header(), &self.planes()).map_err(|source| ContainerError::Coded {
            path: self.container.path.clone(),
            tensor: self.name().to_owned(),
            source,
        })
    }
}

struct Parsed {
    manifest: Manifest,
    header: Header,
}

/// Reads header and manifest out of a whole file.
fn parse(path: &Path, file: &[u8]) -> Result<Parsed, ContainerError> {
    let of_header = |problem| match problem {
        HeaderProblem::OtherFormat { found } => ContainerError::OtherFormat { path: path.to_owned(), found },
        problem => ContainerError::Header { path: path.to_owned(), problem: Box::new(problem) },
    };
    let len = st::header_len(&file[..file.len().min(64)], file.len() as u64).map_err(of_header)?;
    let head = &file[..8 + len as usize];
    let header = st::parse(&head[8..]).map_err(of_header)?;
    let Some(text) = header.metadata(MANIFEST_KEY) else {
        return Err(ContainerError::OtherFormat { path: path.to_owned(), found: "a plain safetensors file" });
    };
    check_version(path, text)?;
    let manifest_error = |reason: String| ContainerError::Manifest { path: path.to_owned(), reason };

    let Some(digits) = header::stored_checksum(head) else {
        let reason = "header does not open with its checksum; was the file saved again by another program?";
        return Err(manifest_error(reason.to_owned()));
    };
    let found = header::checksum(head);
    if digits != found.to_string().as_bytes() {
        let expected = String::from_utf8_lossy(digits).into_owned();
        return Err(ContainerError::HeaderChecksum { path: path.to_owned(), expected, found: found.to_string() });
    }
    header.check_file_length(file.len() as u64).map_err(of_header)?;

    let probe: VersionProbe = serde_json::from_str(text).map_err(|e| manifest_error(e.to_string()))?;
    let manifest: Manifest = serde_json::from_str(text).map_err(|e| match &probe.format {
        // A newer file may hold what this version has no words for.
        Some(f) if f.minor > u64::from(FORMAT_MINOR) => version_error(path, &probe),
        _ => manifest_error(e.to_string()),
    })?;
    let unknown = |name: &str| !KNOWN_SECTIONS.contains(&name);
    if let Some(s) = manifest.sections.iter().find(|s| s.required && unknown(&s.name)) {
        return Err(ContainerError::UnknownSection {
            path: path.to_owned(),
            section: s.name.clone(),
            generator: manifest.generator,
            needs: manifest.needs,
        });
    }
    Ok(Parsed { manifest, header })
}

fn check_version(path: &Path, manifest: &str) -> Result<(), ContainerError> {
    let probe: VersionProbe = serde_json::from_str(manifest)
        .map_err(|e| ContainerError::Manifest { path: path.to_owned(), reason: e.to_string() })?;
    match &probe.format {
        Some(f) if f.major == u64::from(FORMAT_MAJOR) => Ok(()),
        Some(_) => Err(version_error(path, &probe)),
        None => Err(ContainerError::Manifest {
            path: path.to_owned(),
            reason: "expected a format version, found none".into(),
        }),
    }
}

fn version_error(path: &Path, probe: &VersionProbe) -> ContainerError {
    let told = |text: &Option<String>| text.clone().unwrap_or_else(|| "an unknown program".to_owned());
    ContainerError::Version {
        path: path.to_owned(),
        found: probe.format.as_ref().map_or_else(String::new, |f| format!("{}.{}", f.major, f.minor)),
        generator: told(&probe.generator),
        needs: probe.needs.clone().unwrap_or_else(|| format!("something other than {GENERATOR}")),
    }
}

/// Most weights for each bit of the planes of a tensor that is not under a Rice code.
///
/// No coding comes near it: row scales, lengths and stream ends alone take more than a bit for 64 weights. Every symbol of a Rice
/// code takes at least one bit, so for that code the limit is one weight.
const MAX_WEIGHTS_PER_BIT: u64 = 64;

/// Checks that a coded tensor has no more weights than the bits of its planes allow.
///
/// It bounds what decoding a hostile file can allocate by a multiple of its size, before any stream is looked at.
fn check_coded_size(
    header: &MatrixHeader,
    planes: &[PlaneEntry],
    n_bytes: impl Fn(&str) -> Option<u64>,
) -> Result<(), String> {
    let bytes = planes.iter().filter_map(|p| n_bytes(&p.name)).fold(0u64, u64::saturating_add);
    let per_bit = if is_rice(header) { 1 } else { MAX_WEIGHTS_PER_BIT };
    let bits = bytes.saturating_mul(8);
    match header.rows.checked_mul(header.cols) {
        Some(n) if n <= bits.saturating_mul(per_bit) => Ok(()),
        _ => {
            let (rows, cols) = (header.rows, header.cols);
            Err(format!("{rows} x {cols} weights, expected at most {per_bit} for each of {bits} bits"))
        }
    }
}

fn check_plane_dtype(t: &HeaderTensor) -> Result<(), String> {
    let one_dim = t.shape.len() == 1;
    if one_dim && planes::dtype_named(&t.dtype).is_some() {
        return Ok(());
    }
    Err(format!(
        "plane {:?}: expected one dimension of a plane dtype, found {} of shape {:?}",
        t.name, t.dtype, t.shape
    ))
}

fn check_raw(t: &HeaderTensor, dtype: &str, shape: &[usize]) -> Result<(), String> {
    let mismatch = || {
        Err(format!(
            "tensor {:?}: the manifest says {dtype} of shape {shape:?}, the header {} of shape {:?}",
            t.name, t.dtype, t.shape
        ))
    };
    match st::dtype_bits(dtype).filter(|bits| bits % 8 == 0) {
        Some(_)
            if t.dtype != dtype || !t.shape.iter().eq(shape.iter().map(|&d| d as u64).collect::<Vec<_>>().iter()) =>
        {
            mismatch()
        }
        None if t.dtype != "U8" || t.shape.len() != 1 => mismatch(),
        _ => Ok(()),
    }
}
