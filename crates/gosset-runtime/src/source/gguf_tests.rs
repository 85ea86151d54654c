//! Laws of GGUF reading on tiny seeded models and on damaged files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gosset_quantize::ModelSource;
use rand::{Rng, SeedableRng};

use super::fixture::{GgufWriter, TinyFamily, TinyModel};
use super::{GgufSource, open_source};
use crate::RuntimeError;
use crate::text::Tokenizer;

/// Every tensor by name: shape and all values, read in uneven pieces.
fn weights(source: &dyn ModelSource) -> BTreeMap<String, (Vec<usize>, Vec<u32>)> {
    let mut all = BTreeMap::new();
    for (index, t) in source.tensors().iter().enumerate() {
        let (rows, cols) = t.rows_cols();
        let mut bits = Vec::new();
        let mut start = 0;
        for step in [1, 3, 7].into_iter().cycle() {
            let end = rows.min(start + step);
            let mut out = vec![f32::NAN; (end - start) * cols];
            source.read_rows(index, start..end, &mut out).unwrap();
            bits.extend(out.iter().map(|v| v.to_bits()));
            start = end;
            if start == rows {
                break;
            }
        }
        all.insert(t.name.clone(), (t.shape.clone(), bits));
    }
    all
}

fn json(source: &dyn ModelSource, blob: &str) -> serde_json::Value {
    serde_json::from_slice(source.blob(blob).unwrap()).unwrap()
}

fn models() -> Vec<TinyModel> {
    let mut models = Vec::new();
    for family in [TinyFamily::Llama, TinyFamily::Qwen2] {
        let t0 = TinyModel::t0(family, 11);
        models.push(TinyModel { tied: true, ..t0.clone() });
        models.push(TinyModel { head_dim: 24, ffn: 96, ..t0.clone() });
        models.push(TinyModel { rope_llama3: Some((8.0, 1.0, 4.0, 8192)), ..t0.clone() });
        models.push(t0);
    }
    models
}

/// Case C10: the same weights as Hugging Face folder and as GGUF give the same tensors, config and token ids.
#[test]
fn c10_gguf_equals_the_hugging_face_folder() {
    let folder = tempfile::tempdir().unwrap();
    for (i, model) in models().into_iter().enumerate() {
        for dtype in ["F32", "F16", "BF16", "Q8_0", "Q4_1"] {
            let hf = folder.path().join(format!("{i}-{dtype}"));
            let gguf = folder.path().join(format!("{i}-{dtype}.gguf"));
            model.write_hf(&hf, dtype).unwrap();
            model.write_gguf(&gguf, dtype, 1).unwrap();
            let (a, b) = (open_source(&hf).unwrap(), open_source(&gguf).unwrap());
            assert_eq!(weights(&*a), weights(&*b), "{model:?} {dtype}");
            assert_eq!(a.info().architecture, b.info().architecture);
            assert_eq!(b.info().total_bytes, b.tensors().iter().map(|t| t.n_bytes).sum::<u64>());
            let (stated, made) = (json(&*a, "config.json"), json(&*b, "config.json"));
            for (key, value) in stated.as_object().unwrap() {
                assert_eq!(&made[key], value, "{key}");
            }
            assert_eq!(made.get("head_dim"), stated.get("head_dim"));
            let [ta, tb] = [&a, &b].map(|s| Tokenizer::from_bytes(s.blob("tokenizer.json").unwrap()).unwrap());
            let text = "Byte by byte, é 🦀<eos> 12";
            assert_eq!(ta.encode(text).unwrap(), tb.encode(text).unwrap());
            assert_eq!(tb.vocab_size(), 260);
        }
    }
}

/// Raw bytes come in Hugging Face row order: dequantizing them equals reading the rows.
#[test]
fn raw_bytes_are_in_hugging_face_order() {
    let folder = tempfile::tempdir().unwrap();
    for model in models() {
        for dtype in ["F32", "BF16", "Q8_0"] {
            let path = folder.path().join("m.gguf");
            model.write_gguf(&path, dtype, 1).unwrap();
            let source = GgufSource::open(&path).unwrap();
            for (index, t) in source.tensors().iter().enumerate() {
                let raw = source.raw_bytes(index).unwrap();
                let mut copied = Vec::new();
                source.copy_raw(index, &mut copied).unwrap();
                assert_eq!(raw, copied.as_slice());
                assert_eq!(raw.len() as u64, t.n_bytes);
                let (rows, cols) = t.rows_cols();
                let (mut a, mut b) = (vec![0.0; rows * cols], vec![0.0; rows * cols]);
                super::dequantize_rows(&t.dtype, &raw, cols, 0..rows, &mut a).unwrap();
                source.read_rows(index, 0..rows, &mut b).unwrap();
                assert_eq!(a, b, "{} {dtype}", t.name);
            }
        }
    }
}

#[test]
fn unusual_rope_factors_become_a_list() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let model = TinyModel { rope_llama3: Some((8.0, 1.0, 4.0, 64)), ..TinyModel::t0(TinyFamily::Llama, 1) };
    model.write_gguf(&path, "F32", 1).unwrap();
    let config = json(&GgufSource::open(&path).unwrap(), "config.json");
    assert_eq!(config["rope_scaling"]["rope_type"], "longrope");
    assert_eq!(config["rope_scaling"]["long_factor"].as_array().unwrap().len(), 8);
}

/// Case C10: any part of a split model opens all of it, and no split key reaches the side files; a missing part is named.
#[test]
fn c10_split_models_need_all_parts_and_find_them() {
    let folder = tempfile::tempdir().unwrap();
    let model = TinyModel::t0(TinyFamily::Llama, 5);
    let whole = folder.path().join("whole.gguf");
    model.write_gguf(&whole, "BF16", 1).unwrap();
    let expected = weights(&GgufSource::open(&whole).unwrap());
    for n_parts in [2, 3] {
        let parts = model.write_gguf(&folder.path().join("model.gguf"), "BF16", n_parts).unwrap();
        for part in &parts {
            let source = GgufSource::open(part).unwrap();
            assert_eq!(weights(&source), expected);
            assert_eq!(source.info().files, parts);
            assert!(source.blobs().iter().all(|(_, bytes)| !String::from_utf8_lossy(bytes).contains("split")));
        }
        for missing in 0..n_parts {
            let kept = std::fs::read(&parts[missing]).unwrap();
            std::fs::remove_file(&parts[missing]).unwrap();
            match GgufSource::open(&parts[(missing + 1) % n_parts]) {
                Err(RuntimeError::MissingParts { missing: found, n_parts: n, .. }) => {
                    assert_eq!((found, n), (vec![parts[missing].clone()], n_parts));
                }
                other => panic!("{other:?}"),
            }
            std::fs::write(&parts[missing], kept).unwrap();
        }
        let renamed = folder.path().join("renamed.gguf");
        std::fs::copy(&parts[0], &renamed).unwrap();
        assert!(GgufSource::open(&renamed).unwrap_err().to_string().contains("split.count"));
        let stray = folder.path().join(format!("other-00001-of-0000{n_parts}.gguf"));
        for (i, part) in parts.iter().enumerate() {
            std::fs::copy(part, folder.path().join(format!("other-0000{}-of-0000{n_parts}.gguf", i + 1))).unwrap();
        }
        std::fs::copy(&parts[1], &stray).unwrap();
        assert!(GgufSource::open(&stray).is_err());
    }
}

/// Case C10: an unknown block type is named with its tensor, its id and what would have worked.
#[test]
fn c10_unknown_block_types_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let model = TinyModel::t0(TinyFamily::Qwen2, 5);
    model.gguf("F32").unwrap().tensor_of_id("blk.9.odd.weight", &[2, 32], 250, vec![0; 64]).write(&path).unwrap();
    match GgufSource::open(&path) {
        Err(RuntimeError::GgufBlockType { tensor, id: 250, supported, .. }) => {
            assert_eq!(tensor, "blk.9.odd.weight");
            assert!(["F32", "Q8_0", "Q4_K"].iter().all(|t| supported.contains(t)));
        }
        other => panic!("{other:?}"),
    }
}

/// The smallest sound model, for damage: a few hundred bytes of header.
fn small() -> GgufWriter {
    GgufWriter::new()
        .str("general.architecture", "llama")
        .u32("llama.context_length", 8)
        .u32("llama.embedding_length", 4)
        .u32("llama.block_count", 1)
        .u32("llama.feed_forward_length", 4)
        .u32("llama.attention.head_count", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .str("tokenizer.ggml.model", "gpt2")
        .strs("tokenizer.ggml.tokens", &["a", "b", "ab", "<s>"])
        .i32s("tokenizer.ggml.token_type", &[1, 1, 1, 3])
        .strs("tokenizer.ggml.merges", &["a b"])
        .tensor("token_embd.weight", &[4, 4], "F32", vec![1; 64])
        .tensor("blk.0.attn_q.weight", &[4, 4], "F16", vec![2; 32])
        .tensor("blk.0.attn_k.bias", &[4], "F32", vec![3; 16])
}

fn open_bytes(folder: &Path, bytes: &[u8]) -> Result<GgufSource, RuntimeError> {
    let path = folder.join("damaged.gguf");
    std::fs::write(&path, bytes).unwrap();
    GgufSource::open(&path)
}

#[test]
fn every_truncation_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = small().to_bytes();
    open_bytes(folder.path(), &bytes).unwrap();
    for len in 0..bytes.len() {
        let error = open_bytes(folder.path(), &bytes[..len]).unwrap_err();
        assert!(matches!(error, RuntimeError::TruncatedGguf { .. }), "{len}: {error}");
    }
}

#[test]
fn a_file_that_shrinks_gives_an_error_when_read() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = small().to_bytes();
    let source = open_bytes(folder.path(), &bytes).unwrap();
    std::fs::OpenOptions::new().write(true).open(folder.path().join("damaged.gguf")).unwrap().set_len(40).unwrap();
    let mut out = [0.0; 16];
    assert!(source.read_rows(0, 0..4, &mut out).is_err());
    assert!(source.raw_bytes(1).is_err());
}

/// Whatever a bit flip makes of the header, opening ends with an answer, and what opens can be read or refuses to be.
#[test]
fn bit_flips_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let sound = small().to_bytes();
    let header = sound.len() - 64 - 32 - 16;
    let mut rng = rand::rngs::StdRng::seed_from_u64(3);
    let mut opened = 0;
    for bit in (0..header * 8).step_by(3) {
        let mut bytes = sound.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // Every other file carries a second flip.
        if bit % 2 == 1 {
            let more = rng.random_range(0..header * 8);
            bytes[more / 8] ^= 1 << (more % 8);
        }
        if let Ok(source) = open_bytes(folder.path(), &bytes) {
            opened += 1;
            for (index, t) in source.tensors().iter().enumerate() {
                let (rows, cols) = t.rows_cols();
                let mut out = vec![0.0; rows * cols];
                source.read_rows(index, 0..rows, &mut out).unwrap();
            }
            if let Some(json) = source.blob("tokenizer.json")
                && let Ok(tokenizer) = Tokenizer::from_bytes(json)
            {
                let _ = tokenizer.encode("abba<s>").map(|ids| tokenizer.decode(&ids));
            }
        }
    }
    eprintln!("{opened} of {} damaged files open", header * 8 / 3);
}

#[test]
fn hostile_headers_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let refuse = |bytes: Vec<u8>, part: &str| {
        let message = open_bytes(folder.path(), &bytes).unwrap_err().to_string();
        assert!(message.contains(part), "{part}: {message}");
    };
    let patch = |at: usize, with: &[u8]| {
        let mut bytes = small().to_bytes();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    // Case I04: written on the other kind of machine, or for one.
    refuse(patch(4, &[0, 0, 0, 3]), "big-endian");
    refuse(patch(0, b"FUGG"), "big-endian");
    refuse(patch(0, b"lmgg"), "before GGUF");
    refuse(patch(4, &[9, 0, 0, 0]), "version");
    refuse(patch(8, &u64::MAX.to_le_bytes()), "incomplete");
    refuse(patch(16, &(1u64 << 60).to_le_bytes()), "incomplete");
    refuse(patch(24, &(1u64 << 62).to_le_bytes()), "incomplete");
    refuse(small().u32("general.alignment", 0).to_bytes(), "power of two");
    refuse(small().bool("general.alignment", true).to_bytes(), "general.alignment");
    refuse(small().u32("llama.block_count", 1).to_bytes(), "twice");
    refuse(small().raw_value("x", 99, &[]).to_bytes(), "value type");
    let nested: Vec<u8> = (0..40).flat_map(|_| [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).collect();
    refuse(small().raw_value("x", 9, &nested).to_bytes(), "nested");
    let long = [[0u32.to_le_bytes().as_slice(), &(1u64 << 40).to_le_bytes()].concat(), vec![0; 64]].concat();
    refuse(small().raw_value("x", 9, &long).to_bytes(), "array elements");
    refuse(small().tensor("token_embd.weight", &[1], "F32", vec![0; 4]).to_bytes(), "twice");
    refuse(small().tensor("model.embed_tokens.weight", &[1], "F32", vec![0; 4]).to_bytes(), "twice");
    refuse(small().tensor("a", &[3, 0], "F32", vec![]).to_bytes(), "at least 1");
    refuse(small().tensor("a", &[1, 33], "Q8_0", vec![0; 34]).to_bytes(), "whole Q8_0 blocks");
    refuse(small().tensor("a", &[1 << 40, 1 << 40], "F32", vec![0; 4]).to_bytes(), "overflows");
    refuse(small().tensor("a", &[1 << 40], "F32", vec![0; 4]).to_bytes(), "incomplete");
    refuse(small().tensor("a", &[1, 1, 1, 1, 1], "F32", vec![0; 4]).to_bytes(), "dimensions");
    refuse(small().tensor("blk.0.attn_k.weight", &[3, 4], "F32", vec![0; 48]).to_bytes(), "whole heads");
    refuse(GgufWriter::new().str("general.architecture", "gemma").to_bytes(), "gemma");
    refuse(GgufWriter::new().u32("general.architecture", 1).to_bytes(), "expected a string");
    // The offset of the second tensor is the last field but one row before the end of the table.
    let bytes = small().to_bytes();
    let name = b"blk.0.attn_q.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 4 + 16 + 4;
    refuse(patch(at, &32u64.to_le_bytes()), "overlap");
}

#[test]
fn a_vocabulary_that_cannot_be_read_leaves_the_weights_usable() {
    let folder = tempfile::tempdir().unwrap();
    let odd = GgufWriter::new()
        .str("general.architecture", "llama")
        .u32("llama.context_length", 8)
        .u32("llama.embedding_length", 4)
        .u32("llama.block_count", 1)
        .u32("llama.feed_forward_length", 4)
        .u32("llama.attention.head_count", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "of-the-future")
        .strs("tokenizer.ggml.tokens", &["a"])
        .strs("tokenizer.ggml.merges", &[""; 0])
        .tensor("token_embd.weight", &[4, 4], "F32", vec![1; 64]);
    let source = open_bytes(folder.path(), &odd.to_bytes()).unwrap();
    assert!(source.blob("tokenizer.json").is_none());
    assert!(source.tokenizer_problem().unwrap().contains("of-the-future"));
    assert_eq!(source.tensors().len(), 1);
}

#[test]
fn open_source_tells_kinds_by_content() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let message = |path: &Path| open_source(path).err().unwrap().to_string();
    assert!(message(&file("pytorch_model.bin", b"PK\x03\x04....")).contains("pickle"));
    assert!(message(&file("old.bin", b"\x80\x02}q\x00X")).contains("pickle"));
    assert!(message(&file("empty", b"")).contains("empty"));
    assert!(message(&folder.path().join("absent")).contains("absent"));
    // A header of 640 bytes starts as a pickle does.
    let header = format!("{:<640}", r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#);
    let sound = [640u64.to_le_bytes().as_slice(), header.as_bytes(), &[0; 4]].concat();
    assert_eq!(open_source(&file("m640.safetensors", &sound)).unwrap().tensors().len(), 1);
    let manifest = br#"{"__metadata__":{"gosset":"{}"},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    let container = [(manifest.len() as u64).to_le_bytes().as_slice(), manifest].concat();
    assert!(message(&file("m.gosset", &container)).contains("Gosset container"));
    let gguf = file("named.safetensors", &small().to_bytes());
    assert_eq!(open_source(&gguf).unwrap().info().kind, "gguf");

    let models = folder.path().join("models");
    std::fs::create_dir(&models).unwrap();
    std::fs::write(models.join("a.gguf"), small().to_bytes()).unwrap();
    assert_eq!(open_source(&models).unwrap().info().kind, "gguf");
    std::fs::write(models.join("b.gguf"), small().to_bytes()).unwrap();
    assert!(message(&models).contains("name one of them"));
}
