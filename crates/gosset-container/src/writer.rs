//! Writes a container: planes are spooled beside the output as they come, then composed into one file and renamed.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use gosset_codec::{EncodedMatrix, Plane};
use gosset_unisvq::UniSvqMatrix;
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use crate::error::ContainerError;
use crate::header;
use crate::manifest::{
    BlobEntry, ContainerKind, Digest, FormatVersion, GENERATOR, Manifest, PlaneEntry, Section, Storage, TensorEntry,
};
use crate::reader::Container;
use crate::safetensors_header::dtype_bits;
use crate::{file_kind, names, planes, temp_file, unisvq};

/// Element sizes in bytes, in the order of the data: descending, so that every plane is aligned to its elements.
const CLASSES: [u64; 4] = [8, 4, 2, 1];

/// Bytes buffered for each element size.
const BUFFER: usize = 1 << 18;

/// What a manifest says that only the caller knows.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestInfo {
    /// What the tensors are.
    pub kind: ContainerKind,
    /// Where the weights came from. No paths and no clocks: the bytes of a container depend on its input and options only.
    pub source: Value,
    /// Every option of the run.
    pub recipe: Value,
}

/// What [`Writer::finish`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The output.
    pub path: PathBuf,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes before the data.
    pub header_bytes: u64,
    /// Planes in the file.
    pub n_planes: usize,
}

/// A container being written.
///
/// Memory does not grow with the number of tensors but for their names and headers. Nothing exists under the output's name before
/// [`finish`](Writer::finish) has succeeded, and nothing is left in the folder when a writer is dropped before. A process that is
/// killed inside `finish` leaves `.gosset-*.tmp`, which the next writer in that folder removes.
///
/// ```
/// use gosset_codec::{CodecSpec, MatRef};
/// use gosset_container::{Container, ContainerKind, ManifestInfo, Writer};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("w.gosset");
/// let weights: Vec<f32> = (0..64 * 64).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
/// let matrix = CodecSpec::parse("e8-rice@4")?.check()?.encode(MatRef::new(&weights, 64, 64)?)?;
/// let mut writer = Writer::create(&path, false)?;
/// writer.add_matrix("w", &matrix, "F32")?;
/// writer.finish(ManifestInfo { kind: ContainerKind::Tensors, source: "doc".into(), recipe: "e8-rice@4".into() })?;
///
/// let container = Container::open(&path)?;
/// container.verify()?;
/// assert_eq!(container.coded("w")?.decoder()?.rows(), 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    dir: PathBuf,
    overwrite: bool,
    spools: [Option<Spool>; 4],
    placed: Vec<Placed>,
    tensors: Vec<TensorEntry>,
    blobs: Vec<BlobEntry>,
    sections: Vec<Section>,
    seen: HashSet<String>,
    poisoned: bool,
}

#[derive(Debug)]
struct Spool {
    file: BufWriter<File>,
    len: u64,
}

/// One plane in its spool.
#[derive(Debug)]
struct Placed {
    stored_name: String,
    dtype: String,
    shape: Vec<u64>,
    class: usize,
    start: u64,
    len: u64,
}

impl Writer {
    /// Starts a container that will appear at `path`.
    ///
    /// An existing file is refused unless `overwrite`; its folder must exist and be writable, which is found out here and not after
    /// the work. What is there and is no regular file (a pipe, a socket, a device) is never replaced.
    pub fn create(path: &Path, overwrite: bool) -> Result<Self, ContainerError> {
        let bad = |reason| ContainerError::OutputPath { path: path.to_owned(), reason };
        if path.file_name().is_none() {
            return Err(bad("expected a file name"));
        }
        let dir = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
            _ => PathBuf::from("."),
        };
        if !dir.is_dir() {
            return Err(bad("its folder does not exist"));
        }
        let found = path.symlink_metadata();
        if found.as_ref().is_ok_and(|m| m.is_dir()) {
            return Err(bad("expected a file, found a folder"));
        }
        check_target(path)?;
        if found.is_ok() && !overwrite {
            return Err(ContainerError::Exists { path: path.to_owned() });
        }
        let mut writer = Writer {
            path: path.to_owned(),
            dir,
            overwrite,
            spools: [None, None, None, None],
            placed: Vec::new(),
            tensors: Vec::new(),
            blobs: Vec::new(),
            sections: Vec::new(),
            seen: HashSet::new(),
            poisoned: false,
        };
        writer.spool(3)?;
        temp_file::sweep(&writer.dir);
        Ok(writer)
    }

    /// Adds a coded matrix under `name`; `source_dtype` is its dtype in the checkpoint.
    pub fn add_matrix(&mut self, name: &str, m: &EncodedMatrix, source_dtype: &str) -> Result<(), ContainerError> {
        self.claim("tensor", name)?;
        let planes = self.add_planes(&m.planes, |plane| names::plane(name, plane))?;
        let storage = Storage::Coded { source_dtype: source_dtype.to_owned(), header: m.header.clone(), planes };
        self.tensors.push(TensorEntry { name: name.to_owned(), storage });
        Ok(())
    }

    /// Adds a matrix of affine-grid codes under `name`; `source_dtype` is its dtype in the checkpoint.
    ///
    /// # Errors
    /// [`ContainerError::Input`] for a matrix that no decoder accepts, and those of the other ways to add a tensor.
    pub fn add_unisvq(&mut self, name: &str, m: &UniSvqMatrix, source_dtype: &str) -> Result<(), ContainerError> {
        m.decoder().map_err(|e| ContainerError::Input {
            name: name.to_owned(),
            what: "grid codes",
            expected: "a matrix that decodes".to_owned(),
            found: e.to_string(),
        })?;
        self.claim("tensor", name)?;
        let mut planes = Vec::new();
        let scales = [(unisvq::INPUT_SCALES, &m.input_scales), (unisvq::OUTPUT_SCALES, &m.output_scales)];
        let scales =
            scales.into_iter().filter_map(|(plane, v)| v.as_ref().map(|v| (plane, "F16", unisvq::half_bytes(v))));
        for (plane, dtype, bytes) in scales {
            let (stored, len) = (names::plane(name, plane), bytes.len() as u64 / 2);
            planes.push(PlaneEntry { name: plane.to_owned(), xxh3: self.add_slice(stored, dtype, vec![len], &bytes)? });
        }
        let stored = names::plane(name, unisvq::CODES);
        let xxh3 = self.add_slice(stored, "U8", vec![m.codes.len() as u64], &m.codes)?;
        planes.insert(0, PlaneEntry { name: unisvq::CODES.to_owned(), xxh3 });
        let storage = Storage::UniSvq { source_dtype: source_dtype.to_owned(), header: m.header.clone(), planes };
        self.tensors.push(TensorEntry { name: name.to_owned(), storage });
        Ok(())
    }

    /// Adds a tensor bit-exact. `dtype` is a safetensors name or any other, such as the block types of GGUF (`Q8_0`), whose bytes
    /// the container does not interpret. `reason` says why the tensor was kept.
    pub fn add_raw(
        &mut self,
        name: &str,
        dtype: &str,
        shape: &[usize],
        bytes: &[u8],
        reason: &str,
    ) -> Result<(), ContainerError> {
        self.add_raw_with(name, dtype, shape, bytes.len() as u64, reason, |out| {
            // A failure is kept by the writer and told with its path.
            let _ = out.write_all(bytes);
            Ok(())
        })
    }

    /// [`add_raw`](Writer::add_raw) of `n_bytes` bytes that `fill` writes in pieces.
    pub fn add_raw_with<E: From<ContainerError>>(
        &mut self,
        name: &str,
        dtype: &str,
        shape: &[usize],
        n_bytes: u64,
        reason: &str,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        let input = |what, expected: String, found: String| {
            E::from(ContainerError::Input { name: name.to_owned(), what, expected, found })
        };
        if let Some(bits) = dtype_bits(dtype).filter(|bits| bits % 8 == 0) {
            let needs = shape.iter().try_fold(bits / 8, |n, &d| n.checked_mul(d as u64));
            if needs != Some(n_bytes) {
                let expected = format!("{needs:?} for shape {shape:?} of {dtype}");
                return Err(input("bytes", expected, n_bytes.to_string()));
            }
        }
        let (st_dtype, st_shape) = stored_as(dtype, shape, n_bytes);
        self.claim("tensor", name)?;
        let digest = self.add_bytes(names::raw(name), st_dtype, st_shape, n_bytes, fill)?;
        let storage =
            Storage::Raw { dtype: dtype.to_owned(), shape: shape.to_vec(), reason: reason.to_owned(), xxh3: digest };
        self.tensors.push(TensorEntry { name: name.to_owned(), storage });
        Ok(())
    }

    /// Adds the tensor `name` of another container as it is there, once its planes agree with their checksums.
    ///
    /// # Errors
    /// [`ContainerError::NoTensor`] and [`ContainerError::PlaneChecksum`] of the other file, and those of the other ways to add a tensor.
    pub fn copy_tensor(&mut self, from: &Container, name: &str) -> Result<(), ContainerError> {
        let index = from.index(name)?;
        let entry = &from.entries()[index];
        let slots = from.slots_of_tensor(index);
        slots.iter().try_for_each(|slot| from.check(slot))?;
        self.claim("tensor", name)?;
        for slot in slots {
            let bytes = from.bytes(slot);
            let element = dtype_bits(&slot.dtype).map_or(1, |bits| (bits / 8).max(1));
            let shape = match &entry.storage {
                Storage::Raw { dtype, shape, .. } => stored_as(dtype, shape, bytes.len() as u64).1,
                _ => vec![bytes.len() as u64 / element],
            };
            self.add_slice(slot.stored_name.clone(), &slot.dtype, shape, bytes)?;
        }
        self.tensors.push(entry.clone());
        Ok(())
    }

    /// Adds a side file, for instance `config.json`.
    pub fn add_blob(&mut self, name: &str, bytes: &[u8]) -> Result<(), ContainerError> {
        self.claim("blob", name)?;
        let digest = self.add_slice(names::blob(name), "U8", vec![bytes.len() as u64], bytes)?;
        self.blobs.push(BlobEntry { name: name.to_owned(), xxh3: digest });
        Ok(())
    }

    /// Adds a section that readers of this version do not know; they skip it unless it is `required`.
    pub fn add_section(&mut self, name: &str, required: bool, planes: &[Plane<'_>]) -> Result<(), ContainerError> {
        self.claim("section", name)?;
        let planes = self.add_planes(planes, |plane| names::section(name, plane))?;
        self.sections.push(Section { name: name.to_owned(), required, planes });
        Ok(())
    }

    /// Composes the file, makes it durable and gives it its name.
    pub fn finish(mut self, info: ManifestInfo) -> Result<Summary, ContainerError> {
        if self.poisoned {
            return Err(ContainerError::Poisoned { path: self.path.clone() });
        }
        let sections = std::mem::take(&mut self.sections);
        let tensors = std::mem::take(&mut self.tensors);
        let manifest = manifest(info, sections, tensors, std::mem::take(&mut self.blobs));
        let head = self.header(&manifest)?;
        let io = |what| {
            let path = self.path.clone();
            move |source| ContainerError::Io { path, what, source }
        };

        let mut out = temp_file::create(&self.dir).map_err(io("creating a temporary file in its folder"))?;
        out.write_all(&head).map_err(io("writing"))?;
        let mut file_bytes = head.len() as u64;
        for spool in self.spools.iter_mut().filter_map(Option::take) {
            let mut file = spool.file.into_inner().map_err(|e| io("writing")(e.into_error()))?;
            file.seek(SeekFrom::Start(0)).map_err(io("reading back the temporary file"))?;
            let copied = io::copy(&mut file, out.as_file_mut()).map_err(io("writing"))?;
            if copied != spool.len {
                return Err(io("writing")(io::Error::other(format!("expected {} bytes, found {copied}", spool.len))));
            }
            file_bytes += copied;
        }
        out.as_file().sync_all().map_err(io("flushing to disk"))?;
        // Once more: what is there may have changed during the work.
        check_target(&self.path)?;
        let named = if self.overwrite { out.persist(&self.path) } else { out.persist_noclobber(&self.path) };
        match named {
            Ok(_) => {}
            Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(ContainerError::Exists { path: self.path.clone() });
            }
            Err(e) => return Err(io("renaming the temporary file")(e.error)),
        }
        sync_folder(&self.dir).map_err(io("flushing its folder to disk"))?;
        Ok(Summary {
            path: self.path.clone(),
            file_bytes,
            header_bytes: head.len() as u64,
            n_planes: self.placed.len(),
        })
    }

    /// Bytes before the data if [`finish`](Writer::finish) were called now: length prefix, JSON and padding.
    ///
    /// # Errors
    /// [`ContainerError::Manifest`] if `info` cannot be written.
    pub fn header_bytes(&self, info: &ManifestInfo) -> Result<u64, ContainerError> {
        let manifest = manifest(info.clone(), self.sections.clone(), self.tensors.clone(), self.blobs.clone());
        Ok(self.header(&manifest)?.len() as u64)
    }

    /// Length prefix, JSON and padding, with the checksum filled in.
    fn header(&self, manifest: &Manifest) -> Result<Vec<u8>, ContainerError> {
        let mut entries = Vec::with_capacity(self.placed.len());
        let mut class_start = 0;
        for (class, spool) in self.spools.iter().enumerate() {
            for p in self.placed.iter().filter(|p| p.class == class) {
                let start = class_start + p.start;
                entries.push(header::EntryText {
                    name: &p.stored_name,
                    dtype: &p.dtype,
                    shape: &p.shape,
                    data_offsets: [start, start + p.len],
                });
            }
            class_start += spool.as_ref().map_or(0, |s| s.len);
        }
        header::write(manifest, &entries).map_err(|reason| ContainerError::Manifest { path: self.path.clone(), reason })
    }

    fn claim(&mut self, what: &'static str, name: &str) -> Result<(), ContainerError> {
        if self.poisoned {
            return Err(ContainerError::Poisoned { path: self.path.clone() });
        }
        if self.seen.insert(format!("{what}/{name}")) {
            Ok(())
        } else {
            Err(ContainerError::Duplicate { what, name: name.to_owned() })
        }
    }

    fn add_planes(
        &mut self,
        planes: &[Plane<'_>],
        stored_name: impl Fn(&str) -> String,
    ) -> Result<Vec<PlaneEntry>, ContainerError> {
        let mut out = Vec::with_capacity(planes.len());
        for p in planes {
            let bytes = planes::to_le_bytes(&p.data);
            let shape = vec![p.data.len() as u64];
            let xxh3 = self.add_slice(stored_name(&p.name), p.data.dtype().name(), shape, &bytes)?;
            out.push(PlaneEntry { name: p.name.to_string(), xxh3 });
        }
        Ok(out)
    }

    fn add_slice(
        &mut self,
        stored_name: String,
        dtype: &str,
        shape: Vec<u64>,
        bytes: &[u8],
    ) -> Result<Digest, ContainerError> {
        self.add_bytes(stored_name, dtype, shape, bytes.len() as u64, |out| {
            let _ = out.write_all(bytes);
            Ok(())
        })
    }

    /// Spools one plane of `n_bytes` bytes. A failure inside poisons the writer: the spool then holds a part of a plane.
    fn add_bytes<E: From<ContainerError>>(
        &mut self,
        stored_name: String,
        dtype: &str,
        shape: Vec<u64>,
        n_bytes: u64,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<Digest, E> {
        let element = dtype_bits(dtype).map_or(1, |bits| bits / 8);
        let class = CLASSES.iter().position(|&c| c == element).unwrap_or(CLASSES.len() - 1);
        self.poisoned = true;
        let spool = self.spool(class)?;
        let mut sink = Sink { out: &mut spool.file, hash: Xxh3::new(), len: 0, error: None };
        let filled = fill(&mut sink);
        let (len, digest, error) = (sink.len, Digest(sink.hash.digest()), sink.error);
        if let Some(source) = error {
            return Err(ContainerError::Io { path: self.path.clone(), what: "writing", source }.into());
        }
        filled?;
        if len != n_bytes {
            let (expected, found) = (n_bytes.to_string(), len.to_string());
            return Err(ContainerError::Input { name: stored_name, what: "bytes", expected, found }.into());
        }
        let start = spool.len;
        spool.len += len;
        self.placed.push(Placed { stored_name, dtype: dtype.to_owned(), shape, class, start, len });
        self.poisoned = false;
        Ok(digest)
    }

    fn spool(&mut self, class: usize) -> Result<&mut Spool, ContainerError> {
        let slot = &mut self.spools[class];
        if slot.is_none() {
            // Without a name from the start: even a killed process leaves nothing behind.
            let file = tempfile::tempfile_in(&self.dir).map_err(|source| ContainerError::Io {
                path: self.path.clone(),
                what: "creating a temporary file in its folder",
                source,
            })?;
            *slot = Some(Spool { file: BufWriter::with_capacity(BUFFER, file), len: 0 });
        }
        Ok(slot.as_mut().expect("filled just above"))
    }
}

/// The manifest of these parts: what is written into a header, and what a forecast measures.
pub(crate) fn manifest(
    info: ManifestInfo,
    further_sections: Vec<Section>,
    tensors: Vec<TensorEntry>,
    blobs: Vec<BlobEntry>,
) -> Manifest {
    let known = |name: &str| Section { name: name.to_owned(), required: true, planes: Vec::new() };
    let format = FormatVersion::of(&tensors);
    Manifest {
        format,
        generator: GENERATOR.to_owned(),
        needs: format.needs().to_owned(),
        kind: info.kind,
        sections: [known("tensors"), known("blobs")].into_iter().chain(further_sections).collect(),
        tensors,
        blobs,
        source: info.source,
        recipe: info.recipe,
    }
}

/// Dtype and shape in the safetensors layer of a tensor kept bit-exact: its own, or bytes where that layer has no such dtype.
pub(crate) fn stored_as<'a>(dtype: &'a str, shape: &[usize], n_bytes: u64) -> (&'a str, Vec<u64>) {
    match dtype_bits(dtype).filter(|bits| bits % 8 == 0) {
        Some(_) => (dtype, shape.iter().map(|&d| d as u64).collect()),
        None => ("U8", vec![n_bytes]),
    }
}

/// Hashes and counts what passes into a spool and keeps the first error.
struct Sink<'a> {
    out: &'a mut BufWriter<File>,
    hash: Xxh3,
    len: u64,
    error: Option<io::Error>,
}

impl Write for Sink<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.out.write(buf) {
            Ok(n) => {
                self.hash.update(&buf[..n]);
                self.len += n as u64;
                Ok(n)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            Err(e) => {
                let told = io::Error::from(e.kind());
                self.error.get_or_insert(e);
                Err(told)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Refuses to replace what is no regular file.
fn check_target(path: &Path) -> Result<(), ContainerError> {
    let what = "checking what it would replace";
    file_kind::check_replaceable(path).map_err(|source| ContainerError::Io { path: path.to_owned(), what, source })
}

/// Makes a rename in `dir` durable. Only Unix has folders that can be flushed.
pub(crate) fn sync_folder(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}
