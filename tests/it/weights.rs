//! Weights of every shape and layout, from the checkpoint through the file to products and logits.

use std::fs;
use std::path::Path;

use candle_core::{Device, Module, Tensor};
use gosset_codec::RotationHeader;
use gosset_container::Storage;
use gosset_quantize::{QuantizeOptions, TieDecision};
use gosset_runtime::source::fixture::{TinyFamily, TinyModel};
use gosset_runtime::{LanguageModel, Linear, LoadOptions, RuntimeError};
use gosset_tests::t0::{Dtype, T0, T0Tensor};
use gosset_transform::{DEFAULT_TILE, TilePlan};

use crate::checkpoint::{
    Folder, assert_logits, decoded, e8, greedy, ids, load, load_source, logits, normal, quantize, reference,
    reference_of,
};

/// f32 sums of a few hundred terms through two layers, and a rotated frame that rounds differently; relative to the largest logit.
const LOGIT_TOLERANCE: f64 = 5e-5;

#[test]
fn a01_any_shape_multiplies_as_its_decoded_matrix_does() {
    let shapes = [(150, 210), (33, 300), (7, 65), (1, 1)];
    let name = |(rows, cols): (usize, usize)| format!("w{rows}x{cols}");
    let folder = Folder::new();
    let tensors: Vec<_> =
        shapes.iter().map(|&(r, c)| (name((r, c)), vec![r, c], normal(r * c, c as u32, 0.5))).collect();
    let file = folder.tensors("w.safetensors", &tensors);
    for codec in ["e8-rice", "d4-rice", "a2-rice", "z-rice"] {
        let at = |run: u32| folder.path(&format!("{codec}-{run}.gosset"));
        let (container, report) = quantize(&file, &QuantizeOptions::new(codec, 4.0), &at(1));
        assert!(report.fallbacks.is_empty());
        quantize(&file, &QuantizeOptions::new(codec, 4.0), &at(2));
        assert!(fs::read(at(1)).unwrap() == fs::read(at(2)).unwrap());
        for (rows, cols) in shapes {
            let name = name((rows, cols));
            assert_eq!(container.entry(&name).unwrap().shape(), [rows, cols]);
            let weight = Tensor::from_vec(decoded(&container, &name), (rows, cols), &Device::Cpu).unwrap();
            for bias in [None, Some(normal(rows, 9, 1.0))] {
                let coded = Linear::Coded { weight: container.coded(&name).unwrap(), bias: bias.clone() };
                assert_eq!((coded.out_features(), coded.in_features()), (rows, cols));
                let dense = Linear::Dense { weight: weight.clone(), bias };
                for n in [1, 5] {
                    let x = Tensor::from_vec(normal(n * cols, 8, 1.0), (n, cols), &Device::Cpu).unwrap();
                    let [found, expected] =
                        [&coded, &dense].map(|l| l.forward(&x).unwrap().to_vec2::<f32>().unwrap().concat());
                    // |x| and |w| bound each sum; a sum of `cols` f32 terms errs by a few ulps of that.
                    let bound = 1e-6 * (cols as f32).sqrt() * 4.0;
                    assert!(
                        found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= bound * (1.0 + b.abs())),
                        "{codec} {name}"
                    );
                }
            }
        }
        let coded = Linear::Coded { weight: container.coded("w33x300").unwrap(), bias: None };
        let x = Tensor::zeros((2, 304), candle_core::DType::F32, &Device::Cpu).unwrap();
        let error = coded.forward(&x).unwrap_err().to_string();
        assert!(error.contains("in_features = 300") && error.contains("304"), "{error}");
    }
}

#[test]
fn a03_plans_of_real_widths_are_in_the_file_and_lose_nothing() {
    let widths = [576, 896, 2560, 4864, 10920, 11008, 13696, 18944, 29568, 173];
    let folder = Folder::new();
    let tensors: Vec<_> =
        widths.iter().map(|&w| (format!("w{w}"), vec![2, w], normal(2 * w, w as u32, 0.02))).collect();
    let file = folder.tensors("w.safetensors", &tensors);
    let options = QuantizeOptions { seed: 3, ..e8(4.0) };
    let (container, report) = quantize(&file, &options, &folder.path("w.gosset"));
    container.verify().unwrap();
    for (width, line) in widths.into_iter().zip(&report.tensors) {
        let Storage::Coded { header, .. } = &container.entry(&format!("w{width}")).unwrap().storage else {
            panic!("{width} fell back")
        };
        let plan = TilePlan::new(width, DEFAULT_TILE).unwrap();
        let runs = plan.runs().iter().map(|run| [run.tile, run.count]).collect();
        assert_eq!(header.rotation, RotationHeader::Rht { seed: 3, runs });
        // 22.7 dB is the figure of E8 at 4 bits on Gaussian data.
        assert!((line.snr_db.unwrap() - 22.7).abs() < 1.0, "{line:?}");
    }
}

/// Hidden 40, four heads of a stated 16, queries and keys normalized: a Qwen3-like model out of T0's parts.
fn wide_heads(folder: &Folder, name: &str, head_dim: &str) -> std::path::PathBuf {
    let t0 = T0 { hidden: 40, ..T0::llama() };
    let path = folder.changed(name, &t0, |tensors| {
        for layer in 0..2 {
            for part in ["q", "k"] {
                let name = format!("model.layers.{layer}.self_attn.{part}_norm.weight");
                let values = normal(16, layer, 0.2).into_iter().map(|v| Dtype::Bf16.round(1.0 + v)).collect();
                tensors.push(T0Tensor { name, shape: vec![16], values });
            }
        }
    });
    let config = t0.config().replace("LlamaForCausalLM", "Qwen3ForCausalLM").replace("\"llama\"", "\"qwen3\"");
    let stated = "\"head_dim\": 16,";
    assert!(config.contains(stated));
    fs::write(path.join("config.json"), config.replace(stated, head_dim)).unwrap();
    path
}

#[test]
fn a04_heads_wider_than_their_share_quantize_and_run() {
    let folder = Folder::new();
    let path = wide_heads(&folder, "stated", "\"head_dim\": 16,");
    let tokens = ids(50, 260, 1);
    assert_logits(&load_source(&path), &reference(&path), &tokens, LOGIT_TOLERANCE);
    let (container, _) = quantize(&path, &e8(4.0), &folder.path("m.gosset"));
    assert_eq!(container.entry("model.layers.0.self_attn.q_proj.weight").unwrap().shape(), [64, 40]);
    assert_eq!(container.entry("model.layers.0.self_attn.o_proj.weight").unwrap().shape(), [40, 64]);
    let model = load(&container);
    assert_logits(&model, &reference_of(&container), &tokens, LOGIT_TOLERANCE);
    assert_eq!(greedy(&model, &tokens, 8).unwrap().tokens.len(), 8);
}

#[test]
fn a04_head_dim_is_derived_or_contradicted_with_tensor_and_shapes() {
    let folder = Folder::new();
    // Hidden 64 and four heads: 16 again when nothing is stated.
    let derived = folder.t0("derived", &T0::llama());
    let config = T0::llama().config().replace("\"head_dim\": 16,", "");
    fs::write(derived.join("config.json"), config).unwrap();
    assert_eq!(load_source(&derived).config().head_dim, 16);
    let stated = folder.t0("stated", &T0::llama());
    let tokens = ids(9, 260, 2);
    assert_eq!(logits(&load_source(&derived), &tokens), logits(&load_source(&stated), &tokens));

    let wrong = wide_heads(&folder, "wrong", "\"head_dim\": 20,");
    // Not stated, 40 / 4 = 10 is derived, which the shapes contradict as well.
    let unstated = wide_heads(&folder, "unstated", "");
    for (path, expected) in [(wrong, [80, 40]), (unstated, [40, 40])] {
        let (container, _) = quantize(&path, &e8(4.0), &path.with_extension("gosset"));
        let source = gosset_runtime::source::open_source(&path).unwrap();
        for error in [
            LanguageModel::from_source(&*source, &LoadOptions::default()).unwrap_err(),
            LanguageModel::from_container(container, &LoadOptions::default()).unwrap_err(),
        ] {
            match error {
                RuntimeError::Shape { name, expected: e, found } => {
                    assert_eq!(name, "model.layers.0.self_attn.q_proj.weight");
                    assert_eq!((e.as_slice(), found.as_slice()), (&expected[..], &[64, 40][..]));
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn c01_the_head_of_a_container_is_that_of_the_flag() {
    let folder = Folder::new();
    let tokens = ids(30, 260, 3);
    for (i, (tie, head, decision)) in [
        (true, false, TieDecision::Tied),
        (true, true, TieDecision::TiedDifferingHead),
        (false, true, TieDecision::Separate),
    ]
    .into_iter()
    .enumerate()
    {
        let t0 = T0 { tie: Some(tie), head, dtype: Dtype::F16, ..T0::llama() };
        let path = folder.t0(&format!("t{i}"), &t0);
        for embeddings in [None, Some(6.0)] {
            let to = folder.path(&format!("t{i}-{}.gosset", embeddings.is_some()));
            let (container, report) = quantize(&path, &gosset_quantize::QuantizeOptions { embeddings, ..e8(5.0) }, &to);
            assert_eq!(report.tie, Some(decision));
            // A stored head that the flag makes useless is told about and left out.
            assert_eq!(report.warnings.iter().any(|w| w.contains("lm_head")), tie && head, "{:?}", report.warnings);
            assert_eq!(container.entry("lm_head.weight").is_some(), !tie);
            let model = load(&container);
            let expected = reference_of(&container);
            assert_logits(&model, &expected, &tokens, LOGIT_TOLERANCE);
            // The other choice would be another model: five bits do not blur that.
            if head {
                let apart = reference(&folder.t0(&format!("x{i}"), &T0 { tie: Some(!tie), ..t0.clone() }));
                let (a, b) = (expected.forward(&tokens).logits, apart.forward(&tokens).logits);
                let distance: f64 = a.concat().iter().zip(b.concat()).map(|(a, b)| (a - b).abs()).sum();
                assert!(distance > 0.1 * a.concat().iter().map(|a| a.abs()).sum::<f64>());
            }
        }
    }
}

/// Coded planes, raw bytes and logits of the containers made from two forms of one model.
fn assert_same_container(a: &Path, b: &Path, tokens: &[u32], bound: f32) {
    let folder = Folder::new();
    let options = QuantizeOptions { embeddings: Some(5.0), ..e8(4.0) };
    let (a, _) = quantize(a, &options, &folder.path("a.gosset"));
    let (b, _) = quantize(b, &options, &folder.path("b.gosset"));
    let mut n_coded = 0;
    for entry in a.entries().iter().filter(|e| e.is_coded()) {
        assert_eq!(a.coded(&entry.name).unwrap().header(), b.coded(&entry.name).unwrap().header(), "{}", entry.name);
        assert!(decoded(&a, &entry.name) == decoded(&b, &entry.name), "{}", entry.name);
        n_coded += 1;
    }
    assert_eq!(n_coded, 2 * 7 + 2);
    let (x, y) = (logits(&load(&a), tokens), logits(&load(&b), tokens));
    let scale = x.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
    for (p, (x, y)) in x.iter().zip(&y).enumerate() {
        assert!(x.iter().zip(y).all(|(x, y)| (x - y).abs() <= bound * scale), "position {p}");
    }
}

#[test]
fn c10_folder_and_gguf_become_the_same_container_and_compute_what_the_reference_does() {
    let folder = Folder::new();
    let tokens = ids(65, 260, 4);
    for family in [TinyFamily::Llama, TinyFamily::Qwen2] {
        for dtype in ["F32", "BF16", "Q8_0"] {
            for (scaling, parts) in [(None, 1), (Some((8.0, 1.0, 4.0, 64)), 2)] {
                // Multiples of 32, so that every matrix is stored in blocks.
                let tiny = TinyModel { ffn: 160, rope_llama3: scaling, ..TinyModel::t0(family, 50) };
                let at = folder.path(&format!("{family:?}-{dtype}-{parts}"));
                tiny.write_hf(&at.join("hf"), dtype).unwrap();
                let gguf = tiny.write_gguf(&at.join("tiny.gguf"), dtype, parts).unwrap();
                let expected = reference(&at.join("hf"));
                assert_logits(&load_source(&at.join("hf")), &expected, &tokens, LOGIT_TOLERANCE);
                // GGUF holds the factors of a scaling in f32, which bends the angles of 65 positions by 1e-5 at most.
                let tolerance = if scaling.is_some() { 1e-4 } else { LOGIT_TOLERANCE };
                assert_logits(&load_source(&gguf[0]), &expected, &tokens, tolerance);
                assert_same_container(&at.join("hf"), &gguf[0], &tokens, if scaling.is_some() { 1e-4 } else { 0.0 });
            }
        }
    }
}
