//! Models out of containers: the same as their dequantized form, whatever the number of threads.

use std::path::Path;
use std::sync::Arc;

use gosset_codec::{CodecSpec, MatRef, PlaneData};
use gosset_container::{Container, ContainerKind, ManifestInfo, Writer};
use gosset_quantize::{ModelSource, QuantizeOptions, RunOptions, Silent};
use serde_json::json;

use super::forward::logits;
use super::{MemorySource, ids};
use crate::source::fixture::{TinyFamily, TinyModel};
use crate::{GenerateOptions, LanguageModel, LoadOptions, RuntimeError, generate};

fn quantize(source: &MemorySource, options: &QuantizeOptions, out: &Path) -> Arc<Container> {
    let plan = gosset_quantize::plan(source, options).unwrap();
    gosset_quantize::run(&plan, source, None, out, &RunOptions::replacing(), &Silent).unwrap();
    Container::open(out).unwrap()
}

fn load(container: &Arc<Container>) -> LanguageModel {
    LanguageModel::from_container(Arc::clone(container), &LoadOptions::default()).unwrap()
}

/// The container's tensors, decoded to f32 in their original basis, as a checkpoint of its own.
fn decoded(source: &MemorySource, container: &Arc<Container>) -> MemorySource {
    let mut out =
        MemorySource { info: source.info.clone(), tensors: Vec::new(), data: Vec::new(), blobs: source.blobs.clone() };
    for (t, data) in source.tensors.iter().zip(&source.data) {
        match container.entry(&t.name) {
            Some(e) if e.is_coded() => {
                let coded = container.coded(&t.name).unwrap();
                let decoder = coded.decoder().unwrap();
                let mut data = vec![0.0; decoder.rows() * decoder.cols()];
                decoder.decode_rows(0..decoder.rows(), &mut data, &mut Default::default()).unwrap();
                out.add(&t.name, &t.shape, data);
            }
            Some(_) => out.add(&t.name, &t.shape, data.clone()),
            None => {}
        }
    }
    out
}

/// Relative to the largest logit; products in the rotated frame round differently.
const LOGIT_TOLERANCE: f32 = 5e-5;

fn assert_same_logits(a: &LanguageModel, b: &LanguageModel, what: &str) {
    let tokens = ids(150, 260, 41);
    let (a, b) = (logits(a, &tokens), logits(b, &tokens));
    let scale = b.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
    for (x, y) in a.iter().flatten().zip(b.iter().flatten()) {
        assert!((x - y).abs() <= LOGIT_TOLERANCE * scale, "{what}: {x} {y}, scale {scale}");
    }
}

#[test]
fn a_container_computes_what_its_decoded_weights_compute() {
    let folder = tempfile::tempdir().unwrap();
    // Widths 64 = one tile, 172 = a plan of several, rows whose streams end inside other rows.
    let odd = TinyModel { ffn: 172, n_vocab: 261, ..TinyModel::t0(TinyFamily::Qwen2, 41) };
    for (i, (tiny, embeddings)) in [
        (TinyModel::t0(TinyFamily::Llama, 40), None),
        (TinyModel { tied: true, ..TinyModel::t0(TinyFamily::Llama, 42) }, Some(5.0)),
        (odd.clone(), None),
        (odd, Some(4.0)),
    ]
    .into_iter()
    .enumerate()
    {
        let source = MemorySource::new(&tiny);
        for codec in ["e8-rice", "z-rice"] {
            let options = QuantizeOptions { embeddings, ..QuantizeOptions::new(codec, 3.0) };
            let path = folder.path().join(format!("{i}-{codec}.gosset"));
            let container = quantize(&source, &options, &path);
            assert!(container.entries().iter().any(|e| e.is_coded()));
            let model = load(&container);
            assert_eq!(model.resident().mapped_bytes, container.file_bytes());
            let dense = LanguageModel::from_source(&decoded(&source, &container), &LoadOptions::default()).unwrap();
            assert!(model.resident().heap_bytes * 8 < dense.resident().heap_bytes, "weights stay in the map");
            assert_same_logits(&model, &dense, &format!("model {i}, {codec}"));
        }
    }
}

#[test]
fn results_from_a_container_do_not_depend_on_the_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let source = MemorySource::new(&TinyModel { ffn: 172, ..TinyModel::t0(TinyFamily::Llama, 43) });
    let container = quantize(&source, &QuantizeOptions::new("e8-rice", 2.5), &folder.path().join("m.gosset"));
    let tokens = ids(140, 260, 44);
    let run = |n| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
        pool.install(|| {
            let model = load(&container);
            let options = GenerateOptions { ignore_model_stop_ids: true, ..GenerateOptions::greedy(10) };
            let text = generate(&model, &tokens[..9], &options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
            (logits(&model, &tokens), text)
        })
    };
    let one = run(1);
    assert!(run(2) == one && run(7) == one);
}

#[test]
fn i05_a_moved_container_generates_and_a_stripped_one_names_the_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gosset");
    let mut source = MemorySource::new(&TinyModel {
        rope_llama3: Some((8.0, 1.0, 4.0, 64)),
        ..TinyModel::t0(TinyFamily::Llama, 45)
    });
    drop(quantize(&source, &QuantizeOptions::new("e8-rice", 4.0), &path));
    let elsewhere = tempfile::tempdir().unwrap();
    let moved = elsewhere.path().join("moved.gosset");
    std::fs::rename(&path, &moved).unwrap();
    let model = load(&Container::open(&moved).unwrap());
    assert_ne!(model.config().rope_scaling, crate::RopeScaling::None);
    let prompt = model.require_tokenizer().unwrap().encode("hello").unwrap();
    let text = generate(&model, &prompt, &GenerateOptions::greedy(8), &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(text.is_ok());

    source.set_blob("tokenizer.json", None);
    let model = load(&quantize(&source, &QuantizeOptions::new("e8-rice", 4.0), &path));
    let error = model.require_tokenizer().unwrap_err().to_string();
    assert_eq!(error, "tokenizer.json is missing: the model has no tokenizer; text needs one");
}

#[test]
fn a_container_of_bare_tensors_is_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.gosset");
    let mut writer = Writer::create(&path, false).unwrap();
    writer.add_raw("w", "F32", &[1, 1], &[0; 4], "small").unwrap();
    writer.finish(ManifestInfo { kind: ContainerKind::Tensors, source: json!({}), recipe: json!({}) }).unwrap();
    let error = LanguageModel::from_container(Container::open(&path).unwrap(), &LoadOptions::default()).unwrap_err();
    assert!(matches!(&error, RuntimeError::MissingPart { part, .. } if part == "model section"), "{error}");
    assert!(error.to_string().ends_with("this container holds tensors only; running needs a model"), "{error}");
}

#[test]
fn e04_a_nan_scale_inside_a_container_is_found_by_layer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nan.gosset");
    let source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 46));
    let codec = CodecSpec::named("e8-rice", 3.0).unwrap().check().unwrap();
    let mut writer = Writer::create(&path, false).unwrap();
    for (t, data) in source.tensors.iter().zip(&source.data) {
        if t.name.ends_with("proj.weight") {
            let mut m = codec.encode(MatRef::new(data, t.shape[0], t.shape[1]).unwrap()).unwrap();
            if t.name == "model.layers.1.mlp.gate_proj.weight" {
                let scales = m.planes.iter_mut().find(|p| p.name == "scales").unwrap();
                let PlaneData::Bf16(scales) = &mut scales.data else { panic!("scales are bf16") };
                scales.to_mut()[3] = half::bf16::NAN;
            }
            writer.add_matrix(&t.name, &m, "F32").unwrap();
        } else {
            let bytes: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
            writer.add_raw(&t.name, "F32", &t.shape, &bytes, "kept").unwrap();
        }
    }
    for (name, bytes) in source.blobs() {
        writer.add_blob(name, bytes).unwrap();
    }
    writer.finish(ManifestInfo { kind: ContainerKind::Model, source: json!({}), recipe: json!({}) }).unwrap();
    let model = load(&Container::open(&path).unwrap());
    let mut rows = 0;
    let scored = model.score(&ids(20, 260, 1), 0..19, &mut |_, _| rows += 1).unwrap_err();
    assert_eq!(
        (scored.to_string().as_str(), rows),
        ("non-finite value at position 0: first seen in model.layers.1", 0)
    );
    let generated =
        generate(&model, &[1, 2], &GenerateOptions::greedy(3), &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(matches!(generated.unwrap_err(), RuntimeError::NonFinite { layer, .. } if layer == "model.layers.1"));
}
