//! Every architecture against logits of transformers (`tests/golden/models.py`): from folders, from GGUF, whole and token by token, through
//! windows, compressed caches and containers.

use std::fs;
use std::path::{Path, PathBuf};

use gosset_container::Container;
use gosset_kv::KvSpec;
use gosset_quantize::{FloatDtype, ModelSource, SafetensorsSource, Silent, dequantize};
use gosset_runtime::source::open_source;
use gosset_runtime::{KvCache, LanguageModel, LoadOptions, RuntimeError};
use serde_json::{Value, json};

use crate::checkpoint::{Folder, e8, greedy, load, load_source, logits, quantize};

/// Largest difference of a logit, as a share of the largest one: f32 sums in another order than those of the golden files, which are f32 too.
const GOLDEN_TOLERANCE: f64 = 1e-4;

/// The same sums in two orders of ours.
const OWN_TOLERANCE: f64 = 2e-5;

const FOLDERS: [&str; 8] =
    ["llama", "qwen2", "qwen2-window", "qwen3", "mistral", "gemma3", "gemma3-capped", "gemma3-seeing"];
const GGUFS: [&str; 5] = ["llama", "qwen2", "qwen3", "mistral", "gemma3"];

fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/models").join(name)
}

/// Tokens, and logits of every position.
struct Golden {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
    /// Without the window.
    full: Option<Vec<Vec<f32>>>,
}

fn golden(name: &str) -> Golden {
    let source = SafetensorsSource::open(&golden_path(&format!("{name}.golden.safetensors"))).unwrap();
    let find = |name: &str| source.tensors().iter().position(|t| t.name == name);
    let rows = |i: usize| -> Vec<Vec<f32>> {
        let (rows, cols) = source.tensors()[i].rows_cols();
        let mut all = vec![0f32; rows * cols];
        source.read_rows(i, 0..rows, &mut all).unwrap();
        all.chunks_exact(cols).map(<[f32]>::to_vec).collect()
    };
    let bytes = source.raw_bytes(find("tokens").unwrap()).unwrap();
    let tokens = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    Golden { tokens, logits: rows(find("logits").unwrap()), full: find("logits.full").map(rows) }
}

/// Largest difference relative to the largest expected value.
fn distance(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    f64::from(pairs.fold(0f32, |m, (f, e)| if f.is_nan() { f32::INFINITY } else { m.max((f - e).abs()) }))
        / f64::from(scale)
}

/// Logits of `tokens` as a continuation of `cache`, in chunks of `chunk`.
fn continued(model: &LanguageModel, cache: &mut KvCache, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let one = |tokens: &[u32]| {
        let hidden = model.forward(tokens, cache).unwrap();
        model.logits(&hidden).unwrap().to_vec2::<f32>().unwrap()
    };
    tokens.chunks(chunk).flat_map(one).collect()
}

fn assert_golden(model: &LanguageModel, golden: &Golden, what: &str) {
    let mut worst = 0f64;
    for chunk in [golden.tokens.len(), 1, 7] {
        let found = continued(model, &mut model.new_cache(), &golden.tokens, chunk);
        let off = distance(&found, &golden.logits);
        assert!(off < GOLDEN_TOLERANCE, "{what} in chunks of {chunk}: {off:e}");
        worst = worst.max(off);
    }
    let scored = distance(&logits(model, &golden.tokens), &golden.logits);
    assert!(scored < GOLDEN_TOLERANCE, "{what} scored: {scored:e}");
    eprintln!("{what}: {:.1e}", worst.max(scored));
}

/// A copy of a golden folder with a changed configuration.
fn with_config(folder: &Folder, name: &str, to: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let (from, path) = (golden_path(name), folder.path(to));
    fs::create_dir_all(&path).unwrap();
    fs::copy(from.join("model.safetensors"), path.join("model.safetensors")).unwrap();
    let mut config = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    fs::write(path.join("config.json"), config.to_string()).unwrap();
    path
}

fn try_load(path: &Path) -> Result<LanguageModel, RuntimeError> {
    LanguageModel::from_source(&*open_source(path).unwrap(), &LoadOptions::default())
}

#[test]
fn folders_give_the_golden_logits_at_once_and_token_by_token() {
    for name in FOLDERS {
        assert_golden(&load_source(&golden_path(name)), &golden(name), name);
    }
}

#[test]
fn gguf_files_give_the_golden_logits_at_once_and_token_by_token() {
    for name in GGUFS {
        let model = load_source(&golden_path(&format!("{name}.gguf")));
        assert_golden(&model, &golden(name), &format!("{name}.gguf"));
        let folder = load_source(&golden_path(name));
        assert_eq!(model.config().architecture, folder.config().architecture, "{name}");
        assert_eq!(model.config().sliding_window, folder.config().sliding_window, "{name}");
    }
}

#[test]
fn configurations_of_older_libraries_say_the_same() {
    let folder = Folder::new();
    // Fields of their own for what newer files have in one object, and no list of layers.
    let old = |config: &mut Value| {
        let map = config.as_object_mut().unwrap();
        let rope = map.remove("rope_parameters").unwrap();
        let dtype = map.remove("dtype").unwrap();
        map.insert("torch_dtype".to_owned(), dtype);
        map.remove("layer_types");
        let all = if rope["full_attention"].is_object() { &rope["full_attention"] } else { &rope };
        map.insert("rope_theta".to_owned(), all["rope_theta"].clone());
        if all["rope_type"] != "default" {
            let mut scaling = all.clone();
            scaling.as_object_mut().unwrap().remove("rope_theta");
            map.insert("rope_scaling".to_owned(), scaling);
        }
        if rope["sliding_attention"].is_object() {
            map.insert("rope_local_base_freq".to_owned(), rope["sliding_attention"]["rope_theta"].clone());
        }
        if let Some(pattern) = map.remove("_sliding_window_pattern") {
            map.insert("sliding_window_pattern".to_owned(), pattern);
        }
    };
    for name in ["llama", "qwen2", "qwen2-window", "qwen3", "mistral", "gemma3"] {
        let path = with_config(&folder, name, name, old);
        assert_golden(&load_source(&path), &golden(name), &format!("{name}, old configuration"));
    }
    let seeing = with_config(&folder, "gemma3-seeing", "seeing", |config| old(&mut config["text_config"]));
    assert_golden(&load_source(&seeing), &golden("gemma3-seeing"), "gemma3-seeing, old configuration");
}

#[test]
fn f07_prompts_and_steps_around_a_window_and_rewinds_over_it() {
    const STEPS: usize = 20;
    for name in ["mistral", "qwen2-window", "gemma3"] {
        let (model, golden) = (load_source(&golden_path(name)), golden(name));
        assert_eq!(model.config().sliding_window, Some(8));
        for prompt in [5, 8, 9, 30] {
            let tokens = &golden.tokens[..prompt + STEPS];
            let mut cache = model.new_cache();
            let mut found = continued(&model, &mut cache, &tokens[..prompt], prompt);
            found.extend(continued(&model, &mut cache, &tokens[prompt..], 1));
            let off = distance(&found, &golden.logits[..tokens.len()]);
            assert!(off < GOLDEN_TOLERANCE, "{name}, prompt of {prompt}: {off:e}");
            for back in [1, 12] {
                cache.rewind(tokens.len() - back).unwrap();
                assert_eq!(cache.len(), tokens.len() - back);
                let again = continued(&model, &mut cache, &tokens[tokens.len() - back..], 1);
                let off = distance(&again, &golden.logits[tokens.len() - back..tokens.len()]);
                assert!(off < GOLDEN_TOLERANCE, "{name}, prompt of {prompt}, back {back}: {off:e}");
            }
        }
    }
}

#[test]
fn f07_memory_ends_at_the_window_and_a_rewind_beyond_it_is_an_error() {
    let model = load_source(&golden_path("mistral"));
    let tokens: Vec<u32> = (0..400).map(|i| 3 + i * 7 % 90).collect();
    let expected = continued(&model, &mut model.new_cache(), &tokens, 400);
    let mut cache = model.new_cache();
    let found = continued(&model, &mut cache, &tokens, 1);
    assert!(distance(&found, &expected) < OWN_TOLERANCE);
    // Two layers of 2 heads of 16, keys and values; room grows by doubling.
    let per_position = 2 * 2 * 32 * 4;
    assert!(cache.allocated_bytes() < 300 * per_position, "{} bytes", cache.allocated_bytes());
    let error = cache.rewind(40).unwrap_err();
    assert!(matches!(error, RuntimeError::Options { .. }), "{error}");
    assert_eq!(cache.len(), 400, "as it was");
    let next = continued(&model, &mut cache.clone(), &tokens[..1], 1);
    cache.rewind(400).unwrap();
    assert_eq!(continued(&model, &mut cache.clone(), &tokens[..1], 1), next);
    // Without an error, there is no half of it: a cache that cannot be cut there is emptied, and says so.
    cache.truncate(40);
    assert!(cache.is_empty());
    assert!(distance(&continued(&model, &mut cache, &tokens[..50], 50), &expected[..50]) < OWN_TOLERANCE);
    // A prompt that shares its start goes on from nothing, and gives what a new cache gives.
    let mut used = model.new_cache();
    continued(&model, &mut used, &tokens, 400);
    continued(&model, &mut used, &tokens[..1], 1);
    let other = [&tokens[..40], &[90, 91]].concat();
    assert_eq!(used.keep_common_start(&other[..41]), 0);
}

#[test]
fn f07_windows_that_are_off_null_or_for_some_layers() {
    let folder = Folder::new();
    let variant = |name: &str, to: &str, key: &str, value: Value| {
        load_source(&with_config(&folder, name, to, |config| config[key] = value))
    };
    let assert_full = |model: &LanguageModel, name: &str| {
        let golden = golden(name);
        assert_eq!(model.config().sliding_window, None);
        let off = distance(&logits(model, &golden.tokens), &golden.full.unwrap());
        assert!(off < GOLDEN_TOLERANCE, "{name}: {off:e}");
    };
    assert_full(&variant("mistral", "null", "sliding_window", Value::Null), "mistral");
    assert_full(&variant("mistral", "flag", "use_sliding_window", json!(false)), "mistral");
    // As wide as the longest text: nothing is ever out of sight, and nothing is allocated for it.
    assert_full(&variant("mistral", "wide", "sliding_window", json!(131_072)), "mistral");
    let off = |config: &mut Value| {
        config["use_sliding_window"] = json!(false);
        config["sliding_window"] = json!(131_072);
    };
    assert_full(&load_source(&with_config(&folder, "qwen2-window", "off", off)), "qwen2-window");
    let absent = |config: &mut Value| {
        config.as_object_mut().unwrap().remove("use_sliding_window");
    };
    assert_full(&load_source(&with_config(&folder, "qwen2-window", "absent", absent)), "qwen2-window");
    // The first layer with a window, with and without a list of layers.
    let by_index = |first: usize| {
        let change = |config: &mut Value| {
            config.as_object_mut().unwrap().remove("layer_types");
            config["max_window_layers"] = json!(first);
        };
        load_source(&with_config(&folder, "qwen2-window", &format!("from-{first}"), change))
    };
    assert_golden(&by_index(1), &golden("qwen2-window"), "qwen2-window by index");
    assert_eq!(by_index(2).config().window_of(1), None);
    assert_eq!(by_index(2).config().window_of(2), Some(8));
    assert_full(&by_index(3), "qwen2-window");
    // Stated head_dim, or what follows from it: here the shapes contradict.
    let underived = with_config(&folder, "mistral", "head-dim", |config| config["head_dim"] = Value::Null);
    assert!(matches!(try_load(&underived).unwrap_err(), RuntimeError::Shape { .. }));
    for (name, key, value) in [
        ("mistral", "layer_types", json!(["sliding_attention", "full_attention"])),
        ("mistral", "sliding_window", json!(0)),
        ("mistral", "sliding_window", json!("8")),
        ("qwen2-window", "layer_types", json!(["sliding_attention"])),
        ("qwen2-window", "layer_types", json!(["full_attention", "full_attention", "chunked_attention"])),
        ("gemma3", "use_bidirectional_attention", json!(true)),
        ("gemma3", "attn_logit_softcapping", json!(50.0)),
        ("gemma3", "hidden_activation", json!("silu")),
        ("llama", "use_sliding_window", json!(true)),
    ] {
        let path = with_config(&folder, name, "refused", |config| config[key] = value.clone());
        let error = try_load(&path).unwrap_err();
        assert!(
            matches!(&error, RuntimeError::Config { field, .. } if field.starts_with(key)),
            "{key} {value}: {error}"
        );
    }
}

#[test]
fn f07_compressed_caches_see_what_windows_show() {
    for name in ["mistral", "qwen2-window", "gemma3"] {
        let (model, golden) = (load_source(&golden_path(name)), golden(name));
        // Pages of 64 positions, more of which than the window are passed.
        let tokens: Vec<u32> = golden.tokens.iter().cycle().take(230).copied().collect();
        let expected = continued(&model, &mut model.new_cache(), &tokens, 230);
        // Beside f16 and f32 the bounds are those of a code at 8 bits on random weights, which exaggerate.
        for (spec, bound) in [("f32", OWN_TOLERANCE), ("f16", 5e-3), ("e8@8,frame=none", 0.15), ("e8@8", 0.15)] {
            let spec: KvSpec = spec.parse().unwrap();
            let probe = spec.wants_probe().then(|| model.kv_probe_on(&[&tokens]).unwrap());
            for chunk in [1, 50, 230] {
                let mut cache = model.new_kv_cache(&spec, probe.as_ref()).unwrap();
                let off = distance(&continued(&model, &mut cache, &tokens, chunk), &expected);
                assert!(off < bound, "{name}, {spec} in chunks of {chunk}: {off:e}");
                cache.rewind(218).unwrap();
                let again = distance(&continued(&model, &mut cache, &tokens[218..], 1), &expected[218..]);
                assert!(again < bound, "{name}, {spec} after a rewind: {again:e}");
                // Layers without a window hold everything, so a rewind is refused where one layer has dropped what it needs.
                assert!(cache.rewind(20).is_err(), "{name}, {spec}");
                assert_eq!(cache.len(), 230);
            }
        }
    }
    let gemma = load_source(&golden_path("gemma3"));
    let pairs = "shift-10@3".parse().unwrap();
    let errors = [
        gemma.new_kv_cache(&pairs, None).unwrap_err(),
        gemma.kv_probe_for(&pairs).unwrap_err(),
        gemma.kv_notice(&pairs).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("Gemma3ForCausalLM") && text.contains("frame other than pairs"), "{text}");
    }
}

#[test]
fn containers_of_every_architecture_run_packed_from_the_one_file() {
    let folder = Folder::new();
    for name in FOLDERS {
        let golden = golden(name);
        let (container, _) = quantize(&golden_path(name), &e8(6.0), &folder.path(&format!("{name}.gosset")));
        let alone = folder.path(&format!("{name}-alone"));
        fs::create_dir(&alone).unwrap();
        fs::rename(folder.path(&format!("{name}.gosset")), alone.join("m.gosset")).unwrap();
        drop(container);
        let container = Container::open(&alone.join("m.gosset")).unwrap();
        let n_coded = container.entries().iter().filter(|e| e.is_coded()).count();
        let model = load(&container);
        assert!(n_coded >= 7 * model.config().n_layers, "{name}: {n_coded} coded");
        // What the file holds, as a checkpoint: the same numbers by another way.
        let out = folder.path(&format!("{name}-dequantized"));
        dequantize(&container, &out, FloatDtype::F32, None, &Silent).unwrap();
        let expected = logits(&load_source(&out), &golden.tokens);
        for chunk in [50, 1] {
            let off = distance(&continued(&model, &mut model.new_cache(), &golden.tokens, chunk), &expected);
            assert!(off < GOLDEN_TOLERANCE, "{name} packed, chunks of {chunk}: {off:e}");
        }
        let off = distance(&expected, &golden.logits);
        assert!(off < 0.3, "{name} at 6 bits: {off:e}");
        assert_eq!(greedy(&model, &golden.tokens[..9], 20).unwrap().tokens.len(), 20);
        // Parts that are not run are kept under their names.
        let names = |path: &Path| {
            let source = open_source(path).unwrap();
            let mut names: Vec<String> = source.tensors().iter().map(|t| t.name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&out), names(&golden_path(name)), "{name}");
    }
    for name in GGUFS {
        let path = golden_path(&format!("{name}.gguf"));
        let (container, _) = quantize(&path, &e8(8.0), &folder.path(&format!("{name}-gguf.gosset")));
        let off = distance(&logits(&load(&container), &golden(name).tokens), &golden(name).logits);
        assert!(off < 0.1, "{name}.gguf at 8 bits: {off:e}");
    }
}

#[test]
fn checkpoints_of_unknown_architectures_are_quantized_and_given_back_but_not_run() {
    let folder = Folder::new();
    let unknown = |config: &mut Value| {
        config["architectures"] = json!(["MysteryForCausalLM"]);
        config["model_type"] = json!("mystery");
    };
    let path = with_config(&folder, "gemma3-seeing", "mystery", unknown);
    let (container, report) = quantize(&path, &e8(4.0), &folder.path("mystery.gosset"));
    assert!(report.file_bytes > 0 && container.entries().iter().any(|e| e.is_coded()));
    let out = folder.path("dequantized");
    dequantize(&container, &out, FloatDtype::F32, None, &Silent).unwrap();
    let (before, after) = (open_source(&path).unwrap(), open_source(&out).unwrap());
    let shapes = |source: &dyn ModelSource| {
        let mut all: Vec<_> = source.tensors().iter().map(|t| (t.name.clone(), t.shape.clone())).collect();
        all.sort();
        all
    };
    assert_eq!(shapes(&*before), shapes(&*after));
    assert_eq!(before.blob("config.json"), after.blob("config.json"));
    for error in
        [try_load(&path).unwrap_err(), LanguageModel::from_container(container, &LoadOptions::default()).unwrap_err()]
    {
        let text = error.to_string();
        assert!(matches!(error, RuntimeError::UnsupportedArchitecture { .. }), "{text}");
        assert!(
            text.contains("MysteryForCausalLM") && text.contains("can be quantized, inspected and dequantized"),
            "{text}"
        );
    }
}
