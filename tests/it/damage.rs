//! Checkpoints that lack parts or change under the hands of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use gosset_quantize::{Event, Observer, QuantizeError, SourceError, plan, run};
use gosset_runtime::RuntimeError;
use gosset_runtime::source::fixture::{TinyFamily, TinyModel};
use gosset_runtime::source::open_source;
use gosset_tests::t0::T0;

use crate::checkpoint::{Folder, e8};

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
        let error = run(&plan, &*source, &folder.path("out.gosset"), false, &cutter).unwrap_err();
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
