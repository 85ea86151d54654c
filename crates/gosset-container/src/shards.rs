//! A container in several files: shards, each a container of consecutive tensors, and an index that names them in order.
//!
//! The index stands where the one file would: whoever opens it gets all tensors. It is JSON of exactly one form, so that no byte of it can
//! change unnoticed: `{"gosset_index":1,"kind":"model","shards":[{"file":"m-00001-of-00002.gosset","header_xxh3":"…"}, …]}`.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::ContainerError;
use crate::header;
use crate::manifest::{ContainerKind, FormatVersion, Manifest};
use crate::reader::{Container, Owner};
use crate::temp_file;
use crate::writer::{ManifestInfo, Summary, Writer, sync_folder};

/// Where the recipe of a shard says which one it is.
pub const SHARD_KEY: &str = "shard";

/// First bytes of every index.
const OPENING: &[u8] = b"{\"gosset_index\":";

/// The form of index that this crate writes and reads.
const VERSION: u32 = 1;

/// Most bytes of an index: some hundred thousand shards.
const MAX_INDEX: usize = 1 << 24;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    gosset_index: u32,
    kind: ContainerKind,
    shards: Vec<ShardEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShardEntry {
    file: String,
    header_xxh3: String,
}

/// Whether a file is the index of shards.
pub(crate) fn is_index(bytes: &[u8]) -> bool {
    bytes.starts_with(OPENING)
}

/// All shards of the index at `path` as one container.
pub(crate) fn open(path: &Path, bytes: &[u8]) -> Result<Container, ContainerError> {
    let bad = |reason: String| ContainerError::Manifest { path: path.to_owned(), reason };
    if bytes.len() > MAX_INDEX {
        return Err(bad(format!("index of {} bytes, expected at most {MAX_INDEX}", bytes.len())));
    }
    let index: Index = serde_json::from_slice(bytes).map_err(|e| bad(format!("index of shards: {e}")))?;
    if index.gosset_index != VERSION {
        return Err(bad(format!("index of form {}, expected {VERSION}; update gosset", index.gosset_index)));
    }
    if serde_json::to_vec(&index).map_or(true, |same| same != bytes) {
        return Err(bad("index of shards: expected the form that the writer gives it".to_owned()));
    }
    let of = index.shards.len();
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut whole: Option<Container> = None;
    for (i, entry) in index.shards.iter().enumerate() {
        if !is_plain_name(&entry.file) {
            return Err(bad(format!("shard {:?}: expected a plain file name beside the index", entry.file)));
        }
        let file = folder.join(&entry.file);
        let shard = Container::open_file(&file)?;
        let found = header::stored_checksum(&shard.files[0].map).unwrap_or_default();
        if found != entry.header_xxh3.as_bytes() {
            return Err(ContainerError::HeaderChecksum {
                path: file,
                expected: entry.header_xxh3.clone(),
                found: String::from_utf8_lossy(found).into_owned(),
            });
        }
        if shard.manifest.recipe.get(SHARD_KEY) != Some(&place(i, of)) {
            let reason = format!("expected shard {} of {of}, its recipe says otherwise", i + 1);
            return Err(ContainerError::Manifest { path: file, reason });
        }
        whole = Some(match whole {
            None => shard,
            Some(mut whole) => {
                whole.append(shard)?;
                whole
            }
        });
    }
    let mut whole = whole.ok_or_else(|| bad("index of shards: expected shards, found none".to_owned()))?;
    whole.path = path.to_owned();
    whole.manifest.kind = index.kind;
    if let Some(recipe) = whole.manifest.recipe.as_object_mut() {
        recipe.remove(SHARD_KEY);
    }
    Ok(whole)
}

impl Container {
    /// Adds the tensors of the next shard.
    fn append(&mut self, shard: Container) -> Result<(), ContainerError> {
        let path = &shard.path;
        let bad = |reason: String| ContainerError::Manifest { path: path.clone(), reason };
        if shard.slots.len() > shard.blob_slots.start {
            return Err(bad(
                "expected tensors alone, found side files or sections in a shard that is not the first".to_owned()
            ));
        }
        let (first_tensor, first_slot, file) = (self.manifest.tensors.len(), self.blob_slots.start, self.files.len());
        let n_slots = shard.slots.len();
        for (i, tensor) in shard.manifest.tensors.iter().enumerate() {
            if self.by_name.insert(tensor.name.clone(), first_tensor + i).is_some() {
                return Err(bad(format!("tensor {:?} is in an earlier shard too", tensor.name)));
            }
        }
        let moved = shard.slots.into_iter().map(|mut slot| {
            if let Owner::Tensor(i) = slot.owner {
                slot.owner = Owner::Tensor(first_tensor + i);
            }
            slot.file = file;
            slot
        });
        self.slots.splice(first_slot..first_slot, moved);
        self.tensor_slots.extend(shard.tensor_slots.iter().map(|r| r.start + first_slot..r.end + first_slot));
        self.blob_slots = self.blob_slots.start + n_slots..self.blob_slots.end + n_slots;
        self.header_bytes += shard.header_bytes;
        self.files.extend(shard.files);
        self.manifest.tensors.extend(shard.manifest.tensors);
        self.manifest.format = FormatVersion::of(&self.manifest.tensors);
        self.manifest.needs = self.manifest.format.needs().to_owned();
        Ok(())
    }
}

/// Puts the container at `path` into shards of at most `max_bytes` beside it, and an index in its place; leaves it as it is if it is no
/// larger. A tensor that is larger by itself has a shard of its own. Returns the shards.
///
/// At any moment `path` is either the whole container or an index all of whose shards are there. Needs room for both.
///
/// # Errors
/// [`ContainerError::OutputPath`] for a name that shards cannot be named after or a size that headers alone reach, and those of reading and
/// writing containers.
pub fn split(path: &Path, max_bytes: u64) -> Result<Vec<PathBuf>, ContainerError> {
    let container = Container::open(path)?;
    if container.file_bytes() <= max_bytes || container.files.len() > 1 {
        return Ok(Vec::new());
    }
    let refuse = |reason| Err(ContainerError::OutputPath { path: path.to_owned(), reason });
    // The header of a shard is no larger than that of the whole, but for its number.
    let header_bytes = container.header_bytes + 256;
    if max_bytes < 2 * header_bytes {
        return refuse("the size of shards is no more than what headers take");
    }
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return refuse("expected a name in UTF-8, after which shards are named");
    };
    let (stem, extension) = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).unwrap_or((name, "gosset"));
    let blob_bytes = container.slots[container.blob_slots.clone()].iter().map(|slot| slot.n_bytes()).sum::<u64>();
    // The last tensor of every shard.
    let mut groups: Vec<Vec<usize>> = vec![Vec::new()];
    let mut taken = header_bytes + blob_bytes;
    for tensor in 0..container.manifest.tensors.len() {
        let bytes: u64 = container.slots_of_tensor(tensor).iter().map(|slot| slot.n_bytes()).sum();
        if taken + bytes > max_bytes && groups.last().is_some_and(|group| !group.is_empty()) {
            groups.push(Vec::new());
            taken = header_bytes;
        }
        taken += bytes;
        groups.last_mut().expect("there is a first group").push(tensor);
    }
    let of = groups.len();
    let mut index = Index { gosset_index: VERSION, kind: container.manifest.kind, shards: Vec::with_capacity(of) };
    let mut written = Vec::with_capacity(of);
    for (i, group) in groups.iter().enumerate() {
        let file = format!("{stem}-{:05}-of-{of:05}.{extension}", i + 1);
        let shard = path.with_file_name(&file);
        let mut writer = Writer::create(&shard, true)?;
        for &tensor in group {
            writer.copy_tensor(&container, &container.manifest.tensors[tensor].name)?;
        }
        if i == 0 {
            copy_blobs(&container, &mut writer)?;
        }
        let mut info = info_of(&container.manifest);
        info.kind = ContainerKind::Tensors;
        match &mut info.recipe {
            Value::Object(recipe) => drop(recipe.insert(SHARD_KEY.to_owned(), place(i, of))),
            _ => return refuse("expected a recipe that can say which shard it is of"),
        }
        writer.finish(info)?;
        let header = Container::open_file(&shard)?;
        let digits = header::stored_checksum(&header.files[0].map).unwrap_or_default();
        index.shards.push(ShardEntry { file, header_xxh3: String::from_utf8_lossy(digits).into_owned() });
        written.push(shard);
    }
    write_index(path, &index)?;
    Ok(written)
}

/// Writes the container at `from`, in one file or in shards, as one file to `out`: the one that was split, byte for byte.
///
/// # Errors
/// Those of reading and writing containers.
pub fn join(from: &Path, out: &Path, overwrite: bool) -> Result<Summary, ContainerError> {
    let container = Container::open(from)?;
    let mut writer = Writer::create(out, overwrite)?;
    for tensor in &container.manifest.tensors {
        writer.copy_tensor(&container, &tensor.name)?;
    }
    copy_blobs(&container, &mut writer)?;
    writer.finish(info_of(&container.manifest))
}

fn copy_blobs(container: &Container, writer: &mut Writer) -> Result<(), ContainerError> {
    for blob in &container.manifest.blobs {
        if let Some(bytes) = container.blob(&blob.name)? {
            writer.add_blob(&blob.name, bytes)?;
        }
    }
    Ok(())
}

fn info_of(manifest: &Manifest) -> ManifestInfo {
    ManifestInfo { kind: manifest.kind, source: manifest.source.clone(), recipe: manifest.recipe.clone() }
}

/// What the recipe of shard number `index`, from 0, says.
fn place(index: usize, of: usize) -> Value {
    json!({ "index": index + 1, "of": of })
}

fn write_index(path: &Path, index: &Index) -> Result<(), ContainerError> {
    let io = |what| move |source| ContainerError::Io { path: path.to_owned(), what, source };
    let text = serde_json::to_vec(index)
        .map_err(|e| ContainerError::Manifest { path: path.to_owned(), reason: e.to_string() })?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = temp_file::create(folder).map_err(io("creating a temporary file in its folder"))?;
    file.write_all(&text).map_err(io("writing"))?;
    file.as_file().sync_all().map_err(io("flushing to disk"))?;
    file.persist(path).map_err(|e| io("renaming the temporary file")(e.error))?;
    sync_folder(folder).map_err(io("flushing its folder to disk"))
}

/// Whether a name stays in its folder on every system.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name != "."
        && name != ".."
        && !name.contains(['/', '\\', ':'])
        && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn whole(path: &Path) -> Vec<u8> {
        let mut writer = Writer::create(path, true).unwrap();
        for i in 0..9u8 {
            let bytes: Vec<u8> = (0..4000u32).map(|k| (k as u8) ^ i).collect();
            writer
                .add_raw(
                    &format!("t{i}"),
                    ["U8", "F32"][usize::from(i % 2)],
                    &[[4000, 1000][usize::from(i % 2)]],
                    &bytes,
                    "x",
                )
                .unwrap();
        }
        writer.add_raw("big", "U8", &[40_000], &[7; 40_000], "x").unwrap();
        writer.add_blob("config.json", b"{}").unwrap();
        let info = ManifestInfo { kind: ContainerKind::Model, source: "s".into(), recipe: json!({ "rate": 3 }) };
        writer.finish(info).unwrap();
        fs::read(path).unwrap()
    }

    #[test]
    fn shards_are_one_container_and_join_to_the_file_that_was_split() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gosset");
        let bytes = whole(&path);
        assert!(split(&path, bytes.len() as u64).unwrap().is_empty(), "small enough");
        const MAX: u64 = 20_000;
        let shards = split(&path, MAX).unwrap();
        assert!(shards.len() >= 4, "{shards:?}");
        for shard in &shards {
            let has_big = Container::open(shard).unwrap().entry("big").is_some();
            assert!(has_big || fs::metadata(shard).unwrap().len() <= MAX);
        }
        let container = Container::open(&path).unwrap();
        assert_eq!((container.files().len(), container.manifest().kind), (shards.len(), ContainerKind::Model));
        container.verify().unwrap();
        assert_eq!(container.raw("t8").unwrap().bytes[..2], [8, 9]);
        assert_eq!(container.blob("config.json").unwrap(), Some(&b"{}"[..]));
        let ledger = container.ledger().unwrap();
        assert_eq!(ledger.causes.total_bits(), 8 * container.file_bytes());
        assert!(split(&path, MAX).unwrap().is_empty(), "in shards already");
        let again = dir.path().join("again.gosset");
        join(&path, &again, false).unwrap();
        assert!(fs::read(again).unwrap() == bytes);
    }

    #[test]
    fn i02_c06_what_is_wrong_with_shards_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gosset");
        whole(&path);
        let shards = split(&path, 20_000).unwrap();
        let index = fs::read(&path).unwrap();
        // Any bit of the index.
        for at in 0..index.len() {
            let mut bad = index.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&path, &bad).unwrap();
            assert!(Container::open(&path).is_err(), "byte {at}");
        }
        for name in ["../m.gosset", "/etc/passwd", "a\\b", "", ".."] {
            let text = String::from_utf8(index.clone()).unwrap().replacen("m-00001-of", &format!("{name}-of"), 1);
            let text = text.replacen(&format!("{name}-of"), name, 1);
            fs::write(&path, text).unwrap();
            assert!(Container::open(&path).is_err(), "{name}");
        }
        fs::write(&path, &index).unwrap();
        // A bit of a plane, a shard in the place of another, a shard that is gone.
        let second = fs::read(&shards[1]).unwrap();
        let mut bad = second.clone();
        *bad.last_mut().unwrap() ^= 1;
        fs::write(&shards[1], bad).unwrap();
        let error = Container::open(&path).unwrap().verify().unwrap_err().to_string();
        assert!(error.contains("checksum"), "{error}");
        fs::copy(&shards[2], &shards[1]).unwrap();
        let error = Container::open(&path).unwrap_err().to_string();
        assert!(error.contains("m-00002-of"), "{error}");
        fs::remove_file(&shards[1]).unwrap();
        let error = Container::open(&path).unwrap_err().to_string();
        assert!(error.contains("m-00002-of"), "{error}");
    }
}
