//! Checkpoints that lack parts or change under the hands of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use gosset_container::Container;
use gosset_quantize::{Event, Observer, QuantizeError, RunOptions, SourceError, plan, run};
use gosset_runtime::source::fixture::{TinyFamily, TinyModel};
use gosset_runtime::source::open_source;
use gosset_runtime::{LanguageModel, LoadOptions, RuntimeError};
use gosset_tests::t0::T0;

use crate::checkpoint::{Folder, e8, greedy, quantize};

fn refused(path: &Path) -> RuntimeError {
    open_source(path).err().unwrap()
}

#[test]
fn c02_absent_shards_are_told_before_any_weight_is_read() {
    let folder = Folder::new();
    let t0 = T0 { shards: 3, ..T0::llama() };
    let path = folder.t0("t0", &t0);
    fs::remove_file(path.join(t0.shard_name(1))).unwrap();
    let text = refused(&path).to_string();
    // Seven of the twenty tensors are in each of the first two shards.
    assert!(text.contains(&t0.shard_name(1)) && text.contains("7 tensors"), "{text}");
    // The index of a version in six shards, of which three hold everything under other names.
    let stale = folder.t0("stale", &t0);
    let index = stale.join("model.safetensors.index.json");
    fs::write(&index, fs::read_to_string(&index).unwrap().replace("-of-00003", "-of-00006")).unwrap();
    let text = refused(&stale).to_string();
    assert!(text.contains("-of-00006") && text.contains("stale"), "{text}");
}

/// Cuts a file to half when the third tensor is started.
struct Cutter {
    file: PathBuf,
    started: AtomicUsize,
}

impl Observer for Cutter {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::Started { .. }) && self.started.fetch_add(1, Ordering::Relaxed) == 2 {
            let file = fs::OpenOptions::new().write(true).open(&self.file).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
    }
}

#[test]
fn c05_an_input_that_shrinks_during_the_run_is_an_io_error_and_leaves_no_file() {
    let folder = Folder::new();
    let input = folder.path("in");
    T0::llama().write(&input).unwrap();
    TinyModel::t0(TinyFamily::Llama, 52).write_gguf(&folder.path("in.gguf"), "BF16", 1).unwrap();
    for (open, file) in
        [(input.clone(), input.join("model.safetensors")), (folder.path("in.gguf"), folder.path("in.gguf"))]
    {
        let source = open_source(&open).unwrap();
        let plan = plan(&*source, &e8(3.0)).unwrap();
        let cutter = Cutter { file: file.clone(), started: AtomicUsize::new(0) };
        let error =
            run(&plan, &*source, None, &folder.path("out.gosset"), &RunOptions::default(), &cutter).unwrap_err();
        let QuantizeError::Source(source) = &error else { panic!("{error}") };
        let told = matches!(source, SourceError::Io { .. })
            || matches!(source, SourceError::Other { source: Some(e), .. } if matches!(e.downcast_ref(), Some(RuntimeError::Io { .. })));
        assert!(told, "{error:?}");
        assert!(error.to_string().contains(file.file_name().unwrap().to_str().unwrap()), "{error}");
        assert_eq!(folder.names(), ["in", "in.gguf"]);
    }
}

#[test]
fn c05_a_short_file_is_told_with_both_lengths_whatever_its_kind() {
    let folder = Folder::new();
    let path = folder.t0("t0", &T0::llama());
    TinyModel::t0(TinyFamily::Llama, 53).write_gguf(&folder.path("m.gguf"), "BF16", 1).unwrap();
    for (open, file) in [(path.clone(), path.join("model.safetensors")), (folder.path("m.gguf"), folder.path("m.gguf"))]
    {
        let whole = fs::read(&file).unwrap();
        for len in [whole.len() - 1, whole.len() - 64, whole.len() / 2] {
            fs::write(&file, &whole[..len]).unwrap();
            let text = refused(&open).to_string();
            assert!(text.contains(&len.to_string()) && text.contains("incomplete"), "{text}");
        }
        for len in [4, 1, 0] {
            fs::write(&file, &whole[..len]).unwrap();
            let text = refused(&open).to_string();
            assert!(text.contains(file.file_name().unwrap().to_str().unwrap()), "{text}");
        }
    }
}

/// The smallest model that has every kind of part.
fn small_container(folder: &Folder) -> PathBuf {
    let t0 = T0 { layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 48, ..T0::llama() };
    let path = folder.path("small.gosset");
    quantize(&folder.t0("small", &t0), &e8(3.0), &path);
    path
}

/// Greedy ids of the model in a file, or its refusal.
fn ids_of(path: &Path) -> Result<Vec<u32>, RuntimeError> {
    let model = LanguageModel::from_container(Container::open(path)?, &LoadOptions::default())?;
    Ok(greedy(&model, &[1, 2, 3], 3)?.tokens)
}

#[test]
fn i02_a_flipped_bit_is_an_error_or_changes_nothing() {
    let folder = Folder::new();
    let path = small_container(&folder);
    let good = fs::read(&path).unwrap();
    let expected = ids_of(&path).unwrap();
    let target = folder.path("bad.gosset");
    // An odd step visits every bit of a byte in turn.
    let step = (good.len() * 8 / 2100) | 1;
    let (mut refused, mut unharmed) = (0, 0);
    let mut bad = good.clone();
    for bit in (0..good.len() * 8).step_by(step) {
        bad[bit / 8] ^= 1 << (bit % 8);
        fs::write(&target, &bad).unwrap();
        let verified = Container::open(&target).and_then(|c| c.verify());
        assert!(verified.is_err(), "bit {bit} of {} is not noticed", good.len() * 8);
        match ids_of(&target) {
            Ok(ids) => {
                assert_eq!(ids, expected, "bit {bit} changes the model unnoticed");
                unharmed += 1;
            }
            Err(_) => refused += 1,
        }
        bad[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(refused + unharmed >= 2000);
    // Only side files that running does not read may be damaged without harm.
    assert!(unharmed < refused / 10, "{unharmed} of {} ran", refused + unharmed);
}

#[test]
fn i02_every_truncation_is_refused() {
    let folder = Folder::new();
    let path = small_container(&folder);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for len in (0..file.metadata().unwrap().len()).rev() {
        file.set_len(len).unwrap();
        assert!(Container::open(&path).is_err(), "cut to {len} bytes");
    }
}
