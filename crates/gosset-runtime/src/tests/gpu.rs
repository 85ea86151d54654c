//! Models on a CUDA device compute what they compute on the processor.
//!
//! Without a device each test says so on stderr and passes. The binary can be carried: the embedded model is looked for in the
//! source tree, then in `assets/tiny` of the current folder.
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gosset_container::Container;
use gosset_quantize::{ModelSource, QuantizeOptions, RunOptions, Silent};
use serde_json::json;

use super::{MemorySource, ids, qwen3_like};
use crate::gpu::{Gpu, GpuOptions, OpenOptions, device};
use crate::source::fixture::{TinyFamily, TinyModel};
use crate::source::open_source;
use crate::{Device, GenerateOptions, LanguageModel, LoadOptions, RuntimeError, generate, generate_with_cache};

pub(super) fn open() -> Option<Gpu> {
    open_with(&OpenOptions::default())
}

fn open_with(options: &OpenOptions) -> Option<Gpu> {
    match crate::gpu::open(0, options) {
        Ok(gpu) => Some(gpu),
        Err(reason) => {
            eprintln!("SKIPPED, no GPU: {reason}");
            None
        }
    }
}

pub(super) fn on(gpu: &Gpu, options: GpuOptions) -> LoadOptions {
    LoadOptions { device: device(gpu.clone(), options), ..LoadOptions::default() }
}

pub(super) fn load(source: &dyn ModelSource, options: &LoadOptions) -> LanguageModel {
    LanguageModel::from_source(source, options).unwrap()
}

pub(super) fn assets() -> Option<PathBuf> {
    let found = [Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny"), PathBuf::from("assets/tiny")]
        .into_iter()
        .find(|path| path.is_dir());
    if found.is_none() {
        eprintln!("SKIPPED: the embedded model is not here");
    }
    found
}

/// Logits of every position.
pub(super) fn logits(model: &LanguageModel, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut out = vec![Vec::new(); tokens.len()];
    model.score(tokens, 0..tokens.len(), &mut |p, row| out[p] = row.to_vec()).unwrap();
    out
}

/// Largest difference relative to the largest logit of `b`.
fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let scale = b.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
    let differences = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs());
    assert!(a.len() == b.len() && scale > 0.0);
    differences.fold(0f32, f32::max) / scale
}

fn families() -> Vec<(&'static str, MemorySource)> {
    let mut scaled = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 71));
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64});
    scaled.set_config("rope_scaling", scaling);
    let odd = TinyModel { ffn: 172, n_vocab: 261, tied: true, ..TinyModel::t0(TinyFamily::Qwen2, 72) };
    vec![
        ("llama", MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 70))),
        ("llama, scaled rope", scaled),
        ("qwen2, tied, odd widths", MemorySource::new(&odd)),
        ("qwen3", qwen3_like()),
    ]
}

/// Sums of f32 in another order, over two layers.
const EXACT: f32 = 2e-5;

/// What the issue asks for of half-precision weights and caches.
const HALF: f32 = 1e-2;

#[test]
fn gpu_logits_are_those_of_the_processor() {
    let Some(gpu) = open() else { return };
    for (name, source) in families() {
        let cpu = load(&source, &LoadOptions::default());
        let tokens = ids(150, 260, 7);
        let expected = logits(&cpu, &tokens);
        for (options, bound) in [(GpuOptions::exact(), EXACT), (GpuOptions::default(), HALF)] {
            let model = load(&source, &on(&gpu, options));
            let found = difference(&logits(&model, &tokens), &expected);
            eprintln!("{name}: {found:.2e}");
            assert!(found <= bound, "{name}: {found}");
            assert!(model.resident().device_bytes > 0 && model.resident().heap_bytes == 0);
            // Token by token, with a cache that grows and a graph from the third step on.
            let mut cache = model.new_cache();
            let mut steps = Vec::new();
            for token in &tokens[..40] {
                let hidden = model.forward(&[*token], &mut cache).unwrap();
                steps.push(model.logits(&hidden).unwrap().to_vec2::<f32>().unwrap().remove(0));
            }
            let found = difference(&steps, &expected[..40]);
            assert!(found <= bound, "{name}, step by step: {found}");
            assert_eq!(cache.tokens(), &tokens[..40]);
        }
    }
}

#[test]
fn gpu_generation_is_that_of_the_processor() {
    let Some(gpu) = open() else { return };
    for (name, source) in families() {
        let cpu = load(&source, &LoadOptions::default());
        let options = GenerateOptions { ignore_model_stop_ids: true, ..GenerateOptions::greedy(40) };
        for graph in [true, false] {
            // Little room at first, so that the cache grows during the text.
            let model = load(&source, &on(&gpu, GpuOptions::exact().context(16).graph(graph)));
            let mut cache = model.new_cache();
            for n_prompt in [1, 2, 9, 70] {
                let prompt = ids(n_prompt, 260, n_prompt as u32);
                let expected = generate(&cpu, &prompt, &options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
                let mut receiver = Text(String::new());
                let found = generate_with_cache(&model, &mut cache, &prompt, &options, &mut receiver).unwrap();
                assert_eq!(found.tokens, expected.tokens, "{name}, prompt of {n_prompt}, graph {graph}");
                assert_eq!(receiver.0, found.text);
                // A clone has no state on the device, and makes it again.
                let history = [&prompt[..], &found.tokens, &[5]].concat();
                let mut clone = cache.clone();
                let a = generate_with_cache(&model, &mut clone, &history, &options, &mut Text(String::new())).unwrap();
                let b = generate_with_cache(&model, &mut cache, &history, &options, &mut Text(String::new())).unwrap();
                assert_eq!(a, b);
                assert_eq!(a.n_reused, n_prompt + 39);
                cache.truncate(n_prompt);
            }
        }
    }
}

pub(super) struct Text(pub(super) String);

impl crate::Receiver for Text {
    fn text(&mut self, piece: &str) -> std::ops::ControlFlow<()> {
        self.0.push_str(piece);
        std::ops::ControlFlow::Continue(())
    }
}

fn quantize(source: &MemorySource, options: &QuantizeOptions, out: &Path) -> Arc<Container> {
    let plan = gosset_quantize::plan(source, options).unwrap();
    gosset_quantize::run(&plan, source, None, out, &RunOptions::replacing(), &Silent).unwrap();
    Container::open(out).unwrap()
}

#[test]
fn gpu_runs_containers_of_every_kind_of_codec() {
    let Some(gpu) = open() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tiny = TinyModel { tied: true, ..TinyModel::t0(TinyFamily::Qwen2, 73) };
    let source = MemorySource::new(&tiny);
    for codec in ["e8-rice", "e8", "trellis-8", "shift-12", "shiftlut-17"] {
        for embeddings in [None, Some(4.0)] {
            let options = QuantizeOptions { embeddings, ..QuantizeOptions::new(codec, 3.0) };
            let container = quantize(&source, &options, &folder.path().join(format!("{codec}.gosset")));
            let cpu = LanguageModel::from_container(Arc::clone(&container), &LoadOptions::default()).unwrap();
            let model = LanguageModel::from_container(container, &on(&gpu, GpuOptions::default())).unwrap();
            let tokens = ids(130, 260, 9);
            let found = difference(&logits(&model, &tokens), &logits(&cpu, &tokens));
            eprintln!("{codec}, embeddings {embeddings:?}: {found:.2e}; {:?}", model.warnings());
            assert!(found <= HALF, "{codec}: {found}");
        }
    }
}

#[test]
fn gpu_runs_affine_grids() {
    let Some(gpu) = open() else { return };
    let folder = tempfile::tempdir().unwrap();
    // Widths of whole tiles, whose matrices can lie on top of each other, and odd ones; a frame that the device has no product for.
    let wide = TinyModel { hidden: 256, ffn: 512, ..TinyModel::t0(TinyFamily::Llama, 79) };
    let odd = TinyModel { ffn: 172, tied: true, ..TinyModel::t0(TinyFamily::Qwen2, 80) };
    for (tiny, method, bits, tuned) in [
        (&wide, "unisvq", 2.0, false),
        (&wide, "unisvq-random", 3.0, true),
        (&odd, "unisvq-d8-random", 3.0, true),
        (&odd, "unisvq-full", 2.0, false),
    ] {
        let path = folder.path().join(format!("{method}.gosset"));
        let (container, _) = super::unisvq::quantize(&MemorySource::new(tiny), method, bits, tuned, &path);
        let cpu = LanguageModel::from_container(Arc::clone(&container), &LoadOptions::default()).unwrap();
        let model = LanguageModel::from_container(container, &on(&gpu, GpuOptions::default())).unwrap();
        let tokens = ids(70, 260, 9);
        let expected = logits(&cpu, &tokens);
        let found = difference(&logits(&model, &tokens), &expected);
        eprintln!("{method} at {bits} bits: {found:.2e}; {:?}", model.warnings());
        assert!(found <= HALF, "{method}: {found}");
        // Token by token: the products of one activation.
        let mut cache = model.new_cache();
        let step = |token: &u32| {
            let hidden = model.forward(&[*token], &mut cache).unwrap();
            model.logits(&hidden).unwrap().to_vec2::<f32>().unwrap().remove(0)
        };
        let steps: Vec<Vec<f32>> = tokens[..20].iter().map(step).collect();
        let found = difference(&steps, &expected[..20]);
        assert!(found <= HALF, "{method}, step by step: {found}");
    }
}

#[test]
fn gpu_greedy_tokens_of_the_embedded_model_are_those_of_the_processor() {
    let (Some(gpu), Some(path)) = (open(), assets()) else { return };
    let source = open_source(&path).unwrap();
    let cpu = load(source.as_ref(), &LoadOptions::default());
    let model = load(source.as_ref(), &on(&gpu, GpuOptions::default()));
    let tokenizer = cpu.require_tokenizer().unwrap();
    let options = GenerateOptions { ignore_model_stop_ids: true, ..GenerateOptions::greedy(50) };
    for text in ["The ", "Once upon a time", "In the year"] {
        let prompt = tokenizer.encode(text).unwrap();
        let run = |model| generate(model, &prompt, &options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        assert_eq!(run(&model).tokens, run(&cpu).tokens, "{text:?}");
        let tokens = [&prompt[..], &run(&cpu).tokens].concat();
        let found = difference(&logits(&model, &tokens), &logits(&cpu, &tokens));
        eprintln!("embedded model, {text:?}: {found:.2e}");
        assert!(found <= HALF);
    }
}

#[test]
fn gpu_names_the_layer_of_a_number_that_is_not_finite() {
    let Some(gpu) = open() else { return };
    let mut source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 74));
    source.tensor_mut("model.layers.1.mlp.down_proj.weight")[3] = f32::NAN;
    let model = load(&source, &on(&gpu, GpuOptions::exact()));
    let tokens = ids(20, 260, 3);
    match model.score(&tokens, 0..20, &mut |_, _| {}) {
        Err(RuntimeError::NonFinite { layer, position }) => {
            assert_eq!((layer.as_str(), position), ("model.layers.1", 0))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn h07_threads_share_a_model_while_another_is_loaded_and_dropped() {
    let Some(gpu) = open() else { return };
    let source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 75));
    let other = MemorySource::new(&TinyModel::t0(TinyFamily::Qwen2, 76));
    let model = load(&source, &on(&gpu, GpuOptions::default()));
    let options = GenerateOptions { ignore_model_stop_ids: true, ..GenerateOptions::greedy(12) };
    let run = |seed| {
        let prompt = ids(5, 260, seed);
        generate(&model, &prompt, &options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap().tokens
    };
    let expected = [run(1), run(2)];
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (i, expected) in expected.iter().enumerate() {
            let run = &run;
            scope.spawn(move || (0..200).for_each(|round| assert_eq!(&run(i as u32 + 1), expected, "round {round}")));
        }
        scope.spawn(|| {
            for _ in 0..200 {
                drop(load(&other, &on(&gpu, GpuOptions::default())));
            }
        });
    });
    assert!(start.elapsed() < Duration::from_secs(120), "no hang");
    eprintln!("200 rounds of two threads: {:.1} s", start.elapsed().as_secs_f64());
}

#[test]
fn h07_a_capture_that_fails_leaves_plain_launches() {
    let Some(gpu) = open() else { return };
    let source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 77));
    let options = GenerateOptions { ignore_model_stop_ids: true, ..GenerateOptions::greedy(20) };
    let run = |break_capture| {
        let options_gpu = GpuOptions { break_capture, ..GpuOptions::default() };
        let model = load(&source, &on(&gpu, options_gpu));
        generate(&model, &ids(4, 260, 1), &options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap().tokens
    };
    assert_eq!(run(true), run(false));
    assert_eq!(run(false), run(true), "later calls still work");
}

#[test]
fn h08_memory_is_compared_before_anything_is_loaded() {
    let Some(gpu) = open_with(&OpenOptions::default().memory_limit(64 << 20)) else { return };
    let tiny = TinyModel { hidden: 1024, ffn: 4096, n_vocab: 16_384, ..TinyModel::t0(TinyFamily::Llama, 78) };
    let source = MemorySource::new(&tiny);
    let refused = |gpu: &Gpu, options: GpuOptions| match LanguageModel::from_source(&source, &on(gpu, options)) {
        Err(error @ RuntimeError::DeviceMemory { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let text = refused(&gpu, GpuOptions::default());
    for part in ["for weights", "for keys and values of", "of workspace", "free: lower the context"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(gpu.allocated_bytes(), 0, "nothing was left behind");
    // The device is usable afterwards: a small model fits the same limit.
    let small = load(&MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 79)), &on(&gpu, GpuOptions::default()));
    assert_eq!(logits(&small, &ids(10, 260, 1)).len(), 10);
    // A cache of a million positions says how large it would be.
    let Some(whole) = open() else { return };
    let million = refused(&gpu, GpuOptions::default().context(1 << 20));
    assert!(million.contains("keys and values of 1048576 positions"), "{million}");
    let fits = whole.free_bytes().unwrap() > 64 << 30;
    assert!(!fits || LanguageModel::from_source(&source, &on(&whole, GpuOptions::default().context(1 << 20))).is_ok());
}

#[test]
fn h08_an_unknown_number_of_multiprocessors_runs_with_generic_settings() {
    for n in [1, 7, 1000] {
        let Some(gpu) = open_with(&OpenOptions::default().pretend_multiprocessors(n)) else { return };
        let (name, source) = families().remove(0);
        let expected = logits(&load(&source, &LoadOptions::default()), &ids(70, 260, 2));
        let found = logits(&load(&source, &on(&gpu, GpuOptions::exact())), &ids(70, 260, 2));
        assert!(difference(&found, &expected) <= EXACT, "{name}, {n} multiprocessors");
    }
}

#[test]
fn the_processor_is_the_default_device() {
    assert!(matches!(LoadOptions::default().device, Device::Cpu));
}
