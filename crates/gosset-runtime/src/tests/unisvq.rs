//! Models of affine-grid codes: the folded product gives what the dequantized weights give.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Module, Tensor};
use gosset_container::{Container, ContainerKind, ManifestInfo, Writer};
use gosset_quantize::{ModelSource, SafetensorsSource};
use gosset_unisvq::{Hessian, UniSvqMatrix, UniSvqSpec};
use half::f16;

use super::forward::logits;
use super::{MemorySource, ids, numbers};
use crate::source::fixture::{TinyFamily, TinyModel};
use crate::{LanguageModel, Linear, LoadOptions};

/// What is promised of every packed product.
const LOGIT_TOLERANCE: f32 = 1e-3;

/// The trained model of this repository, `None` outside of its source tree.
fn trained() -> Option<MemorySource> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny");
    if !path.is_dir() {
        eprintln!("SKIPPED: assets/tiny is not beside the crates");
        return None;
    }
    let folder = SafetensorsSource::open(&path).unwrap();
    let blob = |name: &'static str| (name, folder.blob(name).unwrap().to_vec());
    let blobs = vec![blob("config.json"), blob("tokenizer.json")];
    let mut source = MemorySource { info: folder.info().clone(), tensors: Vec::new(), data: Vec::new(), blobs };
    for (i, t) in folder.tensors().iter().enumerate() {
        let (rows, cols) = t.rows_cols();
        let mut values = vec![0.0; rows * cols];
        folder.read_rows(i, 0..rows, &mut values).unwrap();
        source.add(&t.name, &t.shape, values);
    }
    Some(source)
}

fn matrix(spec: &str, bits: f64, w: &[f32], shape: &[usize]) -> UniSvqMatrix {
    let mut spec = UniSvqSpec::named(spec, bits).unwrap();
    spec.passes = 1;
    // Some second moments far from the identity.
    let n = shape[1];
    let x = numbers(2 * n, 5, 0.0, 1.0);
    let h = (0..n * n).map(|i| f64::from(x[i / n] * x[i % n] + x[n + i / n] * x[n + i % n])).collect();
    let h = Hessian::new(n, h, 1000).unwrap();
    spec.check().unwrap().encode(w, shape[0], n, Some(&h)).unwrap().0
}

/// Scales and map as fine-tuning leaves them.
fn tune(m: &mut UniSvqMatrix, seed: u32) {
    let mut map = m.header.affine_map();
    let noise = numbers(map.a.len() + map.b.len(), seed, 0.0, 0.03);
    map.a.iter_mut().chain(&mut map.b).zip(noise).for_each(|(v, e)| *v += e);
    let tuned = |scales: &[f32], seed| -> Vec<f16> {
        let noise = numbers(scales.len(), seed, 1.0, 0.1);
        scales.iter().zip(noise).map(|(s, e)| f16::from_f32(s * e)).collect()
    };
    let decoder = m.decoder().unwrap();
    let scales = (tuned(decoder.input_scales(), seed + 1), tuned(decoder.output_scales(), seed + 2));
    drop(decoder);
    (m.header.affine, m.input_scales, m.output_scales) = (Some(map), Some(scales.0), Some(scales.1));
}

/// A container whose linear layers are grid codes, and the checkpoint of its dequantized weights.
pub(super) fn quantize(
    source: &MemorySource,
    spec: &str,
    bits: f64,
    tuned: bool,
    out: &Path,
) -> (Arc<Container>, MemorySource) {
    let mut writer = Writer::create(out, true).unwrap();
    let mut dense =
        MemorySource { info: source.info.clone(), tensors: Vec::new(), data: Vec::new(), blobs: source.blobs.clone() };
    for (i, (t, data)) in source.tensors.iter().zip(&source.data).enumerate() {
        if t.name.contains("_proj.weight") {
            let mut m = matrix(spec, bits, data, &t.shape);
            if tuned {
                tune(&mut m, i as u32 * 10);
            }
            let mut values = vec![0.0; data.len()];
            m.decoder().unwrap().decode_rows(0..t.shape[0], &mut values);
            writer.add_unisvq(&t.name, &m, "F32").unwrap();
            dense.add(&t.name, &t.shape, values);
        } else {
            writer.add_raw(&t.name, "F32", &t.shape, &source.raw_bytes(i).unwrap(), "a test").unwrap();
            dense.add(&t.name, &t.shape, data.clone());
        }
    }
    for (name, bytes) in &source.blobs {
        writer.add_blob(name, bytes).unwrap();
    }
    writer.finish(ManifestInfo { kind: ContainerKind::Model, source: "a test".into(), recipe: spec.into() }).unwrap();
    (Container::open(out).unwrap(), dense)
}

fn assert_same(container: &Arc<Container>, dense: &MemorySource, tokens: &[u32], what: &str) {
    let packed = LanguageModel::from_container(Arc::clone(container), &LoadOptions::default()).unwrap();
    let dense = LanguageModel::from_source(dense, &LoadOptions::default()).unwrap();
    assert!(packed.resident().heap_bytes < dense.resident().heap_bytes, "{what}: codes stay in the map");
    for tokens in [tokens, &tokens[..1]] {
        let (a, b) = (logits(&packed, tokens), logits(&dense, tokens));
        let scale = b.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
        let off = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= LOGIT_TOLERANCE * scale, "{what}, {} tokens: {off} of {scale}", tokens.len());
    }
}

#[test]
fn packed_and_dense_logits_of_the_trained_model_agree() {
    let Some(source) = trained() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tokens = ids(40, 900, 3);
    for (i, (spec, bits, tuned)) in [
        ("unisvq", 2.0, false),
        ("unisvq", 2.0, true),
        ("unisvq-random-full", 3.0, true),
        ("unisvq-d8-random", 2.0, false),
    ]
    .into_iter()
    .enumerate()
    {
        let (container, dense) = quantize(&source, spec, bits, tuned, &folder.path().join(format!("{i}.gosset")));
        assert_same(&container, &dense, &tokens, &format!("{spec}@{bits}, tuned: {tuned}"));
    }
}

#[test]
fn packed_and_dense_logits_agree_for_biases_and_ragged_widths() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = TinyModel { ffn: 172, n_vocab: 261, ..TinyModel::t0(TinyFamily::Qwen2, 41) };
    let source = MemorySource::new(&tiny);
    let tokens = ids(30, 260, 4);
    for (i, spec) in ["unisvq", "unisvq-norht", "unisvq-full", "unisvq-d8-random-norht"].into_iter().enumerate() {
        for tuned in [false, true] {
            let path = folder.path().join(format!("{i}-{tuned}.gosset"));
            let (container, dense) = quantize(&source, spec, 3.0, tuned, &path);
            assert_same(&container, &dense, &tokens, &format!("{spec}, tuned: {tuned}"));
        }
    }
}

#[test]
fn a_layer_of_grid_codes_is_a_module_and_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, cols) = (172, 96);
    let m = matrix("unisvq", 2.0, &numbers(rows * cols, 1, 0.0, 1.0), &[rows, cols]);
    let mut w = vec![0.0; rows * cols];
    m.decoder().unwrap().decode_rows(0..rows, &mut w);
    let path = folder.path().join("w.gosset");
    let mut writer = Writer::create(&path, false).unwrap();
    writer.add_unisvq("w", &m, "BF16").unwrap();
    let info = ManifestInfo { kind: ContainerKind::Tensors, source: "a test".into(), recipe: "none".into() };
    writer.finish(info).unwrap();
    let container = Container::open(&path).unwrap();
    let linear = Linear::from_container(&container, "w", None).unwrap();
    assert_eq!((linear.out_features(), linear.in_features(), linear.heap_bytes()), (rows, cols, 0));
    let x = numbers(3 * cols, 2, 0.0, 1.0);
    let y = linear.forward(&Tensor::from_vec(x.clone(), (3, 1, cols), &Device::Cpu).unwrap()).unwrap();
    assert_eq!(y.dims(), [3, 1, rows]);
    let y = y.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact(rows)) {
        for (y, w) in y.iter().zip(w.chunks_exact(cols)) {
            let exact: f64 = w.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(*y) - exact).abs() < 1e-4, "{y}, dense {exact}");
        }
    }
    for ids in [&[5, 6, 7, 8][..], &[171, 0, 130], &[]] {
        let table = linear.gather(ids).unwrap();
        let found = table.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let expected: Vec<f32> = ids.iter().flat_map(|&id| &w[id as usize * cols..][..cols]).copied().collect();
        assert_eq!(found, expected);
    }
}
