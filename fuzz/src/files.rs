//! Whole files: containers, safetensors, folders of them, GGUF.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use gosset_container::{Container, Digest, safetensors_header as st};
use gosset_quantize::{ModelSource, QuantizeOptions, plan};
use gosset_runtime::source::open_source;
use gosset_runtime::text::{ChatTemplate, Tokenizer};
use gosset_runtime::{GenerateOptions, LanguageModel, LoadOptions, ModelConfig, generate};
use serde_json::{Value, json};

/// Between the files of a folder: index, configuration, then the one shard.
pub const SEPARATOR: &[u8] = b"\n====\n";

/// The folder for files of this process, in memory where the system has such a place.
static PLACE: LazyLock<PathBuf> = LazyLock::new(|| {
    let shm = Path::new("/dev/shm");
    let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    let place = parent.join(format!("gosset-fuzz-{}", std::process::id()));
    fs::create_dir_all(place.join("folder")).expect("a folder for temporary files");
    place
});

fn file(name: &str, data: &[u8]) -> PathBuf {
    let path = PLACE.join(name);
    fs::write(&path, data).expect("room for a temporary file");
    path
}

/// As it is, and with every checksum made right again, which is what lets an input reach the decoders.
pub(crate) fn container(data: &[u8]) {
    open_container(data);
    if let Some(data) = repaired(data) {
        open_container(&data);
    }
}

fn open_container(data: &[u8]) {
    let Ok(container) = Container::open(&file("input.gosset", data)) else { return };
    let report = container.verify();
    if let Ok(report) = &report {
        assert_eq!(report.n_decoded, container.entries().iter().filter(|e| e.is_quantized()).count());
    }
    _ = container.ledger();
    for entry in container.entries() {
        let opened = if entry.is_coded() {
            container.coded(&entry.name).map(drop)
        } else if entry.is_unisvq() {
            container.unisvq(&entry.name).map(drop)
        } else {
            container.raw(&entry.name).map(drop)
        };
        assert!(report.is_err() || opened.is_ok(), "{:?} was verified and cannot be opened", entry.name);
    }
    for blob in &container.manifest().blobs {
        _ = container.blob(&blob.name);
    }
    _ = QuantizeOptions::from_recipe(&container.manifest().recipe);
}

/// The container with the digests of its planes and its header made those of the bytes that it has; `None` for what is too damaged.
pub fn repaired(data: &[u8]) -> Option<Vec<u8>> {
    let len = usize::try_from(st::header_len(&data[..data.len().min(64)], data.len() as u64).ok()?).ok()?;
    let header = st::parse(&data[8..8 + len]).ok()?;
    let mut manifest: Value = serde_json::from_str(header.metadata("gosset")?).ok()?;
    let digest = |stored: String| -> Option<Value> {
        let t = header.tensors.iter().find(|t| t.name == stored)?;
        let range = (header.data_start + t.start) as usize..(header.data_start + t.end) as usize;
        Some(json!(Digest::of(data.get(range)?).to_string()))
    };
    let set = |entry: &mut Value, stored: String| {
        if let (Some(digest), Some(slot)) = (digest(stored), entry.get_mut("xxh3")) {
            *slot = digest;
        }
    };
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(escape);
    for tensor in manifest.get_mut("tensors").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(name) = text(tensor, "name") else { continue };
        for (kind, storage) in tensor.get_mut("storage").and_then(Value::as_object_mut).into_iter().flatten() {
            if kind == "raw" {
                set(storage, name.clone());
            }
            for plane in storage.get_mut("planes").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(plane_name) = text(plane, "name") {
                    set(plane, format!("{name}#{plane_name}"));
                }
            }
        }
    }
    for blob in manifest.get_mut("blobs").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(name) = text(blob, "name") {
            set(blob, format!("@blob/{name}"));
        }
    }
    for section in manifest.get_mut("sections").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(name) = text(section, "name") else { continue };
        for plane in section.get_mut("planes").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(plane_name) = text(plane, "name") {
                set(plane, format!("@section/{name}#{plane_name}"));
            }
        }
    }
    let zeros = "0000000000000000";
    let mut json =
        format!(r#"{{"__metadata__":{{"gosset_header_xxh3":"{zeros}","gosset":{}}}"#, json!(manifest.to_string()));
    for t in &header.tensors {
        let entry = json!({ "dtype": t.dtype, "shape": t.shape, "data_offsets": [t.start, t.end] });
        json.push_str(&format!(",{}:{entry}", json!(t.name)));
    }
    json.push('}');
    while !(8 + json.len()).is_multiple_of(64) {
        json.push(' ');
    }
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(json.as_bytes());
    let digest = Digest::of(&out).to_string();
    out[47..63].copy_from_slice(digest.as_bytes());
    out.extend_from_slice(data.get(8 + len..)?);
    Some(out)
}

/// The spelling of a name in the safetensors layer.
fn escape(name: &str) -> String {
    match name {
        "__metadata__" => "%5F_metadata__".to_owned(),
        name => name.replace('%', "%25").replace('#', "%23").replace('@', "%40"),
    }
}

pub(crate) fn safetensors(data: &[u8]) {
    // The header alone too: most inputs are as long as their header says only by luck.
    if let Ok(len) = st::header_len(&data[..data.len().min(64)], data.len() as u64) {
        _ = st::parse(&data[8..8 + len as usize]);
    }
    if let Ok(source) = open_source(&file("input.safetensors", data)) {
        read(&*source);
    }
}

pub(crate) fn folder(data: &[u8]) {
    let cut = |data: &[u8]| -> Option<(usize, usize)> {
        let at = data.windows(SEPARATOR.len()).position(|window| window == SEPARATOR)?;
        Some((at, at + SEPARATOR.len()))
    };
    let Some((index_end, config_at)) = cut(data) else { return };
    let Some((config_len, shard_at)) = cut(&data[config_at..]) else { return };
    let put = |name: &str, bytes: &[u8]| {
        let path = PLACE.join("folder").join(name);
        if bytes.is_empty() {
            _ = fs::remove_file(path);
        } else {
            fs::write(path, bytes).expect("room for a temporary file");
        }
    };
    put("model.safetensors.index.json", &data[..index_end]);
    put("config.json", &data[config_at..config_at + config_len]);
    put("model-00001-of-00001.safetensors", &data[config_at + shard_at..]);
    if let Ok(source) = open_source(&PLACE.join("folder")) {
        read(&*source);
    }
}

pub(crate) fn gguf(data: &[u8]) {
    if let Ok(source) = open_source(&file("input.gguf", data)) {
        read(&*source);
    }
}

/// Everything that quantizing and running read of a checkpoint, for its first tensors.
fn read(source: &dyn ModelSource) {
    const MAX_ROW: usize = 1 << 20;
    for (i, t) in source.tensors().iter().enumerate().take(64) {
        let (rows, cols) = t.rows_cols();
        if cols <= MAX_ROW {
            let last = rows.saturating_sub(1);
            let mut row = vec![0f32; cols];
            _ = source.read_rows(i, last..rows, &mut row[..(rows - last) * cols]);
            _ = source.read_rows(i, 0..1, &mut row);
        }
        if let Ok(bytes) = source.raw_bytes(i) {
            assert_eq!(bytes.len() as u64, t.n_bytes);
        }
    }
    _ = plan(source, &QuantizeOptions::new("e8", 3.0));
    _ = source.blob("config.json").map(ModelConfig::from_json);
    _ = ChatTemplate::from_blobs(source.blob("chat_template.jinja"), source.blob("tokenizer_config.json"));
    _ = source.blob("tokenizer.json").map(Tokenizer::from_bytes);
    const MAX_MODEL: u64 = 1 << 20;
    if source.info().total_bytes <= MAX_MODEL
        && let Ok(model) = LanguageModel::from_source(source, &LoadOptions::default())
    {
        _ = generate(&model, &[1, 0], &GenerateOptions::greedy(2), &mut |_| ControlFlow::Continue(()));
    }
}
