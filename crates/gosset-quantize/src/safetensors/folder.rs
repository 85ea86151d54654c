//! Which files of a folder make up a checkpoint.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gosset_container::file_kind::file_or_folder;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::error::SourceError;

use super::shard::Shard;

/// Largest index that is read, in bytes.
const MAX_INDEX: u64 = 1 << 26;

/// Ending of an index file.
const INDEX_ENDING: &str = ".safetensors.index.json";

/// File names told in one message.
const MAX_TOLD: usize = 8;

/// The files of a checkpoint.
pub(super) struct Checkpoint {
    pub(super) index: Option<Index>,
    pub(super) shards: Vec<PathBuf>,
    pub(super) is_folder: bool,
}

/// The index of a sharded checkpoint.
pub(super) struct Index {
    path: PathBuf,
    pub(super) bytes: Vec<u8>,
    /// Tensor names by shard.
    by_shard: BTreeMap<String, Vec<String>>,
}

/// Finds the weight files at `path`, a folder or one file.
pub(super) fn find(path: &Path) -> Result<Checkpoint, SourceError> {
    let meta = path.symlink_metadata().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => SourceError::NotFound { path: path.to_owned() },
        _ => SourceError::Io { path: path.to_owned(), what: "opening", source },
    })?;
    if meta.is_symlink() {
        check_link(path)?;
    }
    if !path.is_dir() {
        return Ok(Checkpoint { index: None, shards: vec![path.to_owned()], is_folder: false });
    }
    let names = list(path)?;
    let single = path.join("model.safetensors");
    if names.iter().any(|n| n == "model.safetensors") {
        check_link(&single)?;
        return Ok(Checkpoint { index: None, shards: vec![single], is_folder: true });
    }
    let indices: Vec<_> = names.iter().filter(|n| n.ends_with(INDEX_ENDING)).collect();
    if let [name] = indices.as_slice() {
        let index = Index::read(path.join(name))?;
        let shards = index.find_shards(path, &names)?;
        return Ok(Checkpoint { index: Some(index), shards, is_folder: true });
    }
    let weights: Vec<String> = names.iter().filter(|n| n.ends_with(".safetensors")).cloned().collect();
    match weights.as_slice() {
        [name] => {
            let only = path.join(name);
            check_link(&only)?;
            Ok(Checkpoint { index: None, shards: vec![only], is_folder: true })
        }
        [] => Err(explain_absence(path, names)),
        _ => Err(SourceError::SeveralFiles { path: path.to_owned(), files: told(&weights) }),
    }
}

/// Fails if `path` is a symbolic link whose target does not exist. Links that lead out of the folder are fine: caches are built so.
pub(super) fn check_link(path: &Path) -> Result<(), SourceError> {
    let Ok(target) = fs::read_link(path) else { return Ok(()) };
    match fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(SourceError::BrokenLink { path: path.to_owned(), target }),
        Err(source) => Err(SourceError::Io { path: path.to_owned(), what: "following the link", source }),
    }
}

/// File names of a folder, sorted. Names that are no Unicode are of no use here and are shown with replacement characters.
fn list(folder: &Path) -> Result<Vec<String>, SourceError> {
    let io = |source| SourceError::Io { path: folder.to_owned(), what: "listing", source };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        names.push(entry.map_err(io)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The error for a folder without safetensors files.
fn explain_absence(folder: &Path, names: Vec<String>) -> SourceError {
    let path = folder.to_owned();
    if names.is_empty() {
        return SourceError::EmptyFolder { path };
    }
    let ending = |n: &str, endings: &[&str]| endings.iter().any(|e| n.ends_with(e));
    let pickles: Vec<String> = names
        .iter()
        .filter(|n| ending(n, &[".bin", ".pt", ".pth", ".ckpt", ".pkl"]))
        .filter_map(|n| pickle_kind(&folder.join(n)).map(|kind| format!("{n} ({kind})")))
        .collect();
    if !pickles.is_empty() {
        return SourceError::OnlyPickle { path, files: told(&pickles) };
    }
    let weights: Vec<String> = names.iter().filter(|n| n.ends_with(".gguf")).cloned().collect();
    if !weights.is_empty() {
        return SourceError::OnlyGguf { path, files: told(&weights) };
    }
    if names.iter().any(|n| ending(n, &["tokenizer.model", ".spm", "tokenizer.json"])) {
        return SourceError::OnlyTokenizer { path, found: told(&names) };
    }
    SourceError::NoWeights { path, found: told(&names) }
}

/// How a pickle file is packed, judged by its first bytes; `None` for other files.
fn pickle_kind(path: &Path) -> Option<&'static str> {
    use std::io::Read;
    let mut magic = [0u8; 4];
    file_or_folder(path).ok()?;
    fs::File::open(path).ok()?.read_exact(&mut magic).ok()?;
    match magic {
        [b'P', b'K', ..] => Some("zip archive of pickles"),
        [0x80, 2..=5, ..] => Some("pickle"),
        _ => None,
    }
}

fn told(names: &[String]) -> Vec<String> {
    let mut out: Vec<String> = names.iter().take(MAX_TOLD).cloned().collect();
    if names.len() > MAX_TOLD {
        out.push(format!("and {} more", names.len() - MAX_TOLD));
    }
    out
}

/// Whether `name` names a file directly inside its folder, on every system.
fn is_plain_name(name: &str) -> bool {
    let forbidden = |c: char| matches!(c, '/' | '\\' | ':') || c.is_control();
    !name.is_empty() && name != "." && name != ".." && !name.contains(forbidden)
}

impl Index {
    fn read(path: PathBuf) -> Result<Self, SourceError> {
        check_link(&path)?;
        let io = |source| SourceError::Io { path: path.clone(), what: "reading", source };
        let bad = |reason: String| SourceError::BadIndex { path: path.clone(), reason };
        let len = file_or_folder(&path).map_err(io)?.len();
        if len > MAX_INDEX {
            return Err(bad(format!("expected at most {MAX_INDEX} bytes, found {len}")));
        }
        let bytes = fs::read(&path).map_err(io)?;
        let file: IndexFile = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        let mut by_shard: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, shard) in file.weight_map.0 {
            if !is_plain_name(&shard) {
                return Err(SourceError::UnsafeShardName { path, name: shard });
            }
            by_shard.entry(shard).or_default().push(tensor);
        }
        if by_shard.is_empty() {
            return Err(bad("weight_map names no tensor".to_owned()));
        }
        Ok(Index { path, bytes, by_shard })
    }

    /// Paths of all shards; fails with the whole list if some are absent.
    fn find_shards(&self, folder: &Path, names: &[String]) -> Result<Vec<PathBuf>, SourceError> {
        let mut paths = Vec::new();
        let mut missing = Vec::new();
        for (shard, tensors) in &self.by_shard {
            let path = folder.join(shard);
            if path.symlink_metadata().is_err() {
                missing.push((shard.clone(), tensors.len()));
                continue;
            }
            check_link(&path)?;
            paths.push(path);
        }
        if missing.is_empty() {
            return Ok(paths);
        }
        let hint = self.elsewhere(folder, names, &missing);
        Err(SourceError::MissingShards { path: self.path.clone(), missing, hint })
    }

    /// Whether the tensors of absent shards are in the files that are there.
    fn elsewhere(&self, folder: &Path, names: &[String], missing: &[(String, usize)]) -> String {
        let files = names.iter().filter(|n| n.ends_with(".safetensors"));
        let shards: Vec<Shard> = files.filter_map(|n| Shard::open(folder.join(n)).ok()).collect();
        let present: HashSet<&str> =
            shards.iter().flat_map(|s| s.header.tensors.iter().map(|t| t.name.as_str())).collect();
        let absent = missing.iter().filter_map(|(shard, _)| self.by_shard.get(shard)).flatten();
        let (mut n, mut found) = (0, 0);
        for tensor in absent {
            n += 1;
            found += usize::from(present.contains(tensor.as_str()));
        }
        if found == n {
            format!("all {n} of their tensors were found in the files that are there: the index is stale")
        } else {
            format!("{} of their {n} tensors were not found in any file: download the missing files", n - found)
        }
    }

    /// Checks that every shard has the tensors that the index places in it.
    pub(super) fn check_placement(&self, shards: &[Shard]) -> Result<(), SourceError> {
        let by_name: HashMap<_, _> = shards.iter().map(|s| (s.path.file_name(), s)).collect();
        for (name, tensors) in &self.by_shard {
            let Some(shard) = by_name.get(&Some(name.as_ref())) else { continue };
            let present: HashSet<&str> = shard.header.tensors.iter().map(|t| t.name.as_str()).collect();
            if let Some(t) = tensors.iter().find(|t| !present.contains(t.as_str())) {
                return Err(SourceError::MissingTensor { path: shard.path.clone(), name: t.clone() });
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct IndexFile {
    weight_map: WeightMap,
}

/// Pairs of tensor and shard; a repeated tensor is refused.
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct WeightMapVisitor;
        impl<'de> Visitor<'de> for WeightMapVisitor {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object that maps tensor names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut out = Vec::new();
                let mut seen = HashSet::new();
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    if !seen.insert(tensor.clone()) {
                        return Err(A::Error::custom(format_args!("tensor {tensor:?} appears twice")));
                    }
                    out.push((tensor, shard));
                }
                Ok(WeightMap(out))
            }
        }
        d.deserialize_map(WeightMapVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_shard_names() {
        for name in ["", ".", "..", "../x", "/abs/x", "a/../../x", "sub/x", "C:\\x", "a\0b", "a\nb"] {
            assert!(!is_plain_name(name), "{name:?}");
        }
        assert!(is_plain_name("model-00001-of-00003.safetensors"));
    }
}
