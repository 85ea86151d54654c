//! The work folder of a run that can be taken up again: `<output>.work`.
//!
//! | file | what |
//! |---|---|
//! | `lock` | locked for as long as a process works here; the system drops the lock however the process ends |
//! | `job.json` | what decides the bytes of the output: source, options, program, processor |
//! | `00012.part` | a container with the tensors that were finished together, the first being number 12 of the source, and their figures |
//!
//! Every file appears under its name when it is whole: written beside, flushed, renamed. A process can be killed at any moment and
//! leaves what the next one goes on from. Parts are plain containers, checksums included.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gosset_container::{Container, ContainerKind, ManifestInfo, Writer};
use serde_json::{Value, json};

use crate::error::QuantizeError;

const LOCK: &str = "lock";
const JOB: &str = "job.json";
const PART: &str = "part";

/// Differences between jobs that are told at most.
const MAX_TOLD: usize = 4;

/// A locked work folder.
#[derive(Debug)]
pub(crate) struct WorkFolder {
    path: PathBuf,
    /// Held for the lock.
    _lock: File,
}

/// The work folder of an output.
pub(crate) fn folder_of(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".work");
    PathBuf::from(name)
}

fn locked(path: PathBuf, lock: &mut File) -> QuantizeError {
    let mut holder = String::new();
    let _ = lock.take(256).read_to_string(&mut holder);
    let holder = if holder.trim().is_empty() { "a process".to_owned() } else { holder.trim().to_owned() };
    QuantizeError::Locked { path, holder }
}

impl WorkFolder {
    /// Locks the work folder of `out`, made if need be, for this job. `restart` throws away what another left there.
    ///
    /// # Errors
    /// [`QuantizeError::Locked`] while another process works there, [`QuantizeError::OtherJob`] and [`QuantizeError::WorkFolder`] for what
    /// cannot be gone on from, [`QuantizeError::Io`].
    pub(crate) fn open(out: &Path, job: &Value, restart: bool) -> Result<Self, QuantizeError> {
        let path = folder_of(out);
        let folder = WorkFolder { _lock: lock(&path)?, path };
        let found = folder.read_job();
        match found {
            _ if restart => folder.clear()?,
            Ok(Some(found)) => {
                let differences = differences(&found, job, ["there", "asked for"]);
                if differences.is_empty() {
                    return Ok(folder);
                }
                return Err(QuantizeError::OtherJob { path: folder.path.clone(), differences });
            }
            // Parts without a job are what a finished run had not yet removed.
            Ok(None) => folder.clear()?,
            Err(e) => return Err(e),
        }
        folder.write_job(job)?;
        Ok(folder)
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the tensors are kept that were finished together with number `index` of the source, the first of them.
    fn part(&self, index: usize) -> PathBuf {
        self.path.join(format!("{index:05}.{PART}"))
    }

    /// Keeps what `fill` writes as the part of tensor `index`, with its figures.
    pub(crate) fn keep(
        &self,
        index: usize,
        figures: Value,
        fill: impl FnOnce(&mut Writer) -> Result<(), QuantizeError>,
    ) -> Result<Arc<Container>, QuantizeError> {
        let path = self.part(index);
        let mut writer = Writer::create(&path, true)?;
        fill(&mut writer)?;
        writer.finish(ManifestInfo { kind: ContainerKind::Tensors, source: Value::Null, recipe: figures })?;
        Ok(Container::open(&path)?)
    }

    /// The part of tensor `index`, every byte of it checked; `None` if it is not there.
    pub(crate) fn kept(&self, index: usize) -> Result<Option<Arc<Container>>, QuantizeError> {
        let path = self.part(index);
        if !path.exists() {
            return Ok(None);
        }
        let part = Container::open(&path)?;
        part.verify()?;
        Ok(Some(part))
    }

    /// Removes the folder: the run is complete.
    pub(crate) fn remove(self) -> Result<(), QuantizeError> {
        self.clear()
    }

    fn read_job(&self) -> Result<Option<Value>, QuantizeError> {
        let path = self.path.join(JOB);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| QuantizeError::WorkFolder {
                path,
                reason: format!("expected the job of an unfinished run: {e}"),
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => match self.others()?.first() {
                None => Ok(None),
                Some(name) => Err(QuantizeError::WorkFolder {
                    path: self.path.clone(),
                    reason: format!("expected the work folder of a run, found {name:?} and no {JOB}"),
                }),
            },
            Err(source) => Err(QuantizeError::Io { path, what: "reading", source }),
        }
    }

    fn write_job(&self, job: &Value) -> Result<(), QuantizeError> {
        let io = |what| move |source| QuantizeError::Io { path: self.path.join(JOB), what, source };
        let mut file = tempfile::Builder::new()
            .prefix(".gosset-")
            .suffix(".tmp")
            .tempfile_in(&self.path)
            .map_err(io("creating a temporary file beside it"))?;
        let text = serde_json::to_vec_pretty(job).map_err(|e| io("writing")(e.into()))?;
        file.write_all(&text).map_err(io("writing"))?;
        file.as_file().sync_all().map_err(io("flushing to disk"))?;
        file.persist(self.path.join(JOB)).map_err(|e| io("renaming")(e.error))?;
        if cfg!(unix) {
            File::open(&self.path).and_then(|f| f.sync_all()).map_err(io("flushing its folder to disk"))?;
        }
        Ok(())
    }

    /// Names in the folder that no run makes.
    fn others(&self) -> Result<Vec<String>, QuantizeError> {
        let names = self.names()?;
        Ok(names.into_iter().filter(|name| !is_ours(name)).collect())
    }

    fn names(&self) -> Result<Vec<String>, QuantizeError> {
        let io = |source| QuantizeError::Io { path: self.path.clone(), what: "listing", source };
        let entries = fs::read_dir(&self.path).map_err(io)?;
        let name = |entry: io::Result<fs::DirEntry>| entry.map(|e| e.file_name().to_string_lossy().into_owned());
        entries.map(name).collect::<io::Result<_>>().map_err(io)
    }

    fn has_parts(&self) -> bool {
        self.names().is_ok_and(|names| names.iter().any(|name| is_part(name)))
    }

    /// Removes everything that runs make but the lock, the job first: without it parts are nothing.
    fn clear(&self) -> Result<(), QuantizeError> {
        let remove = |name: &str| match fs::remove_file(self.path.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(QuantizeError::Io { path: self.path.join(name), what: "removing", source: e })
            }
            _ => Ok(()),
        };
        let names = self.names()?;
        remove(JOB)?;
        names.iter().filter(|name| is_ours(name) && *name != LOCK).try_for_each(|name| remove(name))
    }
}

impl Drop for WorkFolder {
    /// Leaves no folder behind that holds nothing to go on from.
    fn drop(&mut self) {
        if !self.has_parts() && self.clear().is_ok() {
            // Still locked: whoever waits for the lock finds the file gone and starts over.
            let _ = fs::remove_file(self.path.join(LOCK));
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn is_part(name: &str) -> bool {
    name.strip_suffix(PART)
        .and_then(|name| name.strip_suffix('.'))
        .is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
}

fn is_ours(name: &str) -> bool {
    name == LOCK || name == JOB || is_part(name) || (name.starts_with(".gosset-") && name.ends_with(".tmp"))
}

/// Makes the folder and locks it.
fn lock(folder: &Path) -> Result<File, QuantizeError> {
    let path = folder.join(LOCK);
    let io = |what| {
        let path = path.clone();
        move |source| QuantizeError::Io { path, what, source }
    };
    loop {
        fs::create_dir_all(folder).map_err(io("creating its folder"))?;
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = match opened {
            Ok(file) => file,
            // Its folder was removed in between.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(io("opening")(e)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(locked(folder.to_owned(), &mut file));
            }
            // A file system without locks: nothing tells whether another process is here.
            Err(TryLockError::Error(_)) => {}
        }
        // The one that held the lock may have finished and removed the file; then another name is wanted.
        if path.symlink_metadata().is_ok() {
            let _ = file.set_len(0).and_then(|()| file.rewind());
            let _ = write!(file, "process {}", std::process::id());
            return Ok(file);
        }
    }
}

/// Where two descriptions differ, named by what they are of: `options.rate: 3.0 there, 2.0 asked for`.
pub(crate) fn differences(there: &Value, asked: &Value, of: [&str; 2]) -> Vec<String> {
    let mut found = Vec::new();
    compare("", there, asked, of, &mut found);
    if found.len() > MAX_TOLD {
        let more = found.len() - MAX_TOLD;
        found.truncate(MAX_TOLD);
        found.push(format!("and {more} more"));
    }
    found
}

fn compare(path: &str, there: &Value, asked: &Value, of: [&str; 2], found: &mut Vec<String>) {
    match (there, asked) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare(&path, a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null), of, found);
            }
        }
        _ if there == asked => {}
        _ => found.push(format!("{path}: {there} {}, {asked} {}", of[0], of[1])),
    }
}

/// What decides the bytes of an output, for the comparison with what a work folder holds.
pub(crate) fn job(source: Value, recipe: &Value, is_calibrated: bool) -> Value {
    let mut job = json!({ "source": source, "recipe": recipe });
    if is_calibrated {
        job["processor"] = processor().into();
    }
    job
}

/// The processor, as far as products of matrices differ by it in their last bits.
pub(crate) fn processor() -> String {
    let mut text = if cfg!(target_arch = "x86_64") {
        "x86_64".to_owned()
    } else if cfg!(target_arch = "aarch64") {
        "aarch64".to_owned()
    } else {
        "another".to_owned()
    };
    #[cfg(target_arch = "x86_64")]
    {
        let features = [
            ("avx2", std::arch::is_x86_feature_detected!("avx2")),
            ("fma", std::arch::is_x86_feature_detected!("fma")),
            ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ];
        features.iter().filter(|(_, has)| *has).for_each(|(name, _)| text.extend([" ", name]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(folder: &WorkFolder, index: usize) {
        folder.keep(index, json!({}), |w| Ok(w.add_raw("a", "U8", &[1], &[1], "x")?)).unwrap();
    }

    #[test]
    fn c12_one_process_at_a_time_works_in_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("x.gosset");
        let job = json!({ "a": 1 });
        let first = WorkFolder::open(&out, &job, false).unwrap();
        let error = WorkFolder::open(&out, &job, false).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, QuantizeError::Locked { .. }) && text.contains(&std::process::id().to_string()),
            "{text}"
        );
        assert!(WorkFolder::open(&out, &job, true).is_err(), "not to be thrown away while in use");
        part(&first, 0);
        drop(first);
        // What a dead process leaves is a lock file that nobody locks.
        let second = WorkFolder::open(&out, &job, false).unwrap();
        assert!(second.kept(0).unwrap().is_some());
        second.remove().unwrap();
        assert!(!folder_of(&out).exists());
    }

    #[test]
    fn c12_another_job_is_refused_with_what_differs() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("x.gosset");
        let job = |rate: f64| json!({ "recipe": { "options": { "rate": rate, "seed": 0 } } });
        let folder = WorkFolder::open(&out, &job(3.0), false).unwrap();
        part(&folder, 3);
        drop(folder);
        let error = WorkFolder::open(&out, &job(2.0), false).unwrap_err().to_string();
        assert!(error.contains("recipe.options.rate: 3.0 there, 2.0 asked for"), "{error}");
        let folder = WorkFolder::open(&out, &job(2.0), true).unwrap();
        assert!(folder.kept(3).unwrap().is_none());
        drop(folder);
        assert!(!folder_of(&out).exists(), "nothing to go on from, nothing left");
    }

    #[test]
    fn c12_files_of_others_are_neither_used_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("x.gosset");
        let notes = folder_of(&out).join("notes.txt");
        fs::create_dir(folder_of(&out)).unwrap();
        fs::write(&notes, "precious").unwrap();
        let error = WorkFolder::open(&out, &json!({}), false).unwrap_err().to_string();
        assert!(error.contains("notes.txt"), "{error}");
        WorkFolder::open(&out, &json!({}), true).unwrap().remove().unwrap();
        assert!(notes.exists());
    }

    #[test]
    fn damaged_parts_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = WorkFolder::open(&dir.path().join("x.gosset"), &json!({}), false).unwrap();
        part(&folder, 7);
        let path = folder.part(7);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(folder.kept(7).is_err());
    }
}
