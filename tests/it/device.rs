//! Models on a CUDA device against the same models on the CPU. Every test needs a GPU; without one it says so and passes.
//!
//! `GOSSET_ASSETS` names the folder of the embedded model where the binary runs away from its sources.

use std::env;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gosset_container::Container;
use gosset_eval::{BosPolicy, PplProtocol, PplResult, evaluate};
use gosset_quantize::{FloatDtype, QuantizeOptions, Silent, dequantize};
use gosset_runtime::gpu::{self, Gpu, GpuOptions, OpenOptions};
use gosset_runtime::source::open_source;
use gosset_runtime::{Device, LanguageModel, LoadOptions};

use crate::checkpoint::{Folder, Lm, greedy, logits, quantize};

/// What is asked for by the project: perplexities within 1e-3 of each other, relative.
const PPL_TOLERANCE: f64 = 1e-3;
/// Logits within 1e-2 of the largest.
const LOGIT_TOLERANCE: f32 = 1e-2;

fn first_gpu() -> Option<Gpu> {
    match Gpu::open(0, &OpenOptions::default()) {
        Ok(gpu) => Some(gpu),
        Err(reason) => {
            eprintln!("SKIPPED: no usable CUDA device: {reason}");
            None
        }
    }
}

fn assets() -> PathBuf {
    env::var_os("GOSSET_ASSETS").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets"), PathBuf::from)
}

/// A file below the folder that a variable names.
fn file(variable: &str, name: &str) -> Option<PathBuf> {
    let found = env::var_os(variable).map(|folder| PathBuf::from(folder).join(name)).filter(|path| path.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: {name} is not in the folder {variable}");
    }
    found
}

/// Where a model comes from.
enum Origin<'a> {
    Source(&'a Path),
    Container(&'a Arc<Container>),
}

impl Origin<'_> {
    fn load(&self, device: Device) -> LanguageModel {
        let options = LoadOptions { device, ..LoadOptions::default() };
        match self {
            Origin::Source(path) => LanguageModel::from_source(&*open_source(path).unwrap(), &options).unwrap(),
            Origin::Container(container) => LanguageModel::from_container(Arc::clone(container), &options).unwrap(),
        }
    }

    /// On the CPU, and on the GPU with these options.
    fn both(&self, gpu: &Gpu, options: GpuOptions) -> [LanguageModel; 2] {
        [self.load(Device::Cpu), self.load(gpu::device(gpu.clone(), options))]
    }
}

/// Perplexity over the first windows, as `cargo xtask eval` measures it.
fn perplexity(model: &LanguageModel, ids: &[u32], window: usize, n: usize) -> PplResult {
    let protocol = PplProtocol { bos: BosPolicy::None, ..PplProtocol::parse(&format!("full-{window}")).unwrap() };
    evaluate(&mut Lm::new(model), ids, None, &protocol, Some(n), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Asserts that both devices give this text the same perplexity.
fn assert_same_perplexity(what: &str, from: &Origin<'_>, gpu: &Gpu, text: &str, window: usize, n: usize) {
    let [cpu, device] = from.both(gpu, GpuOptions::default());
    let ids = cpu.require_tokenizer().unwrap().encode(text).unwrap();
    let [expected, found] = [&cpu, &device].map(|model| perplexity(model, &ids, window, n).ppl);
    let apart = (found / expected - 1.0).abs();
    eprintln!("{what}: ppl {expected:.5} on the CPU, {found:.5} on the GPU, {apart:.1e} apart");
    assert!(apart < PPL_TOLERANCE, "{what}: {expected} on the CPU, {found} on the GPU");
}

/// Asserts that logits agree and that greedy texts are the same.
fn assert_same_answers(what: &str, from: &Origin<'_>, gpu: &Gpu, text: &str) {
    for (kind, options) in [
        ("exact", GpuOptions::exact()),
        ("default", GpuOptions::default()),
        ("without graphs", GpuOptions::default().graph(false)),
    ] {
        let name = format!("{what}, {kind}");
        let [cpu, device] = from.both(gpu, options);
        let ids = cpu.require_tokenizer().unwrap().encode(text).unwrap();
        let (expected, found) = (logits(&cpu, &ids[..100]), logits(&device, &ids[..100]));
        let scale = expected.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
        let apart = expected.iter().flatten().zip(found.iter().flatten()).map(|(a, b)| (a - b).abs() / scale);
        let apart = apart.fold(0f32, |worst, d| if d > worst || d.is_nan() { d } else { worst });
        eprintln!("{name}: logits {apart:.1e} apart");
        assert!(expected.len() == found.len() && apart <= LOGIT_TOLERANCE, "{name}: {apart}");
        let [expected, found] = [&cpu, &device].map(|model| greedy(model, &ids[..20], 50).unwrap());
        assert_eq!(found.tokens, expected.tokens, "{name}");
    }
}

/// The embedded model, its text, and containers of it under each kind of code.
fn embedded(folder: &Folder) -> (PathBuf, String, Vec<(&'static str, Arc<Container>)>) {
    let model = assets().join("tiny");
    let text = std::fs::read_to_string(assets().join("text/eval.txt")).unwrap();
    let coded = [("e8-rice", 4.0), ("e8", 3.0), ("trellis-256", 3.0), ("shift-14", 4.0)].map(|(codec, rate)| {
        let options = QuantizeOptions::new(codec, rate);
        (codec, quantize(&model, &options, &folder.path(&format!("{codec}.gosset"))).0)
    });
    (model, text, coded.into())
}

#[test]
fn the_embedded_model_answers_on_the_gpu_as_on_the_cpu() {
    let Some(gpu) = first_gpu() else { return };
    let folder = Folder::new();
    let (model, text, coded) = embedded(&folder);
    assert_same_answers("unquantized", &Origin::Source(&model), &gpu, &text);
    for (codec, container) in &coded {
        assert_same_answers(codec, &Origin::Container(container), &gpu, &text);
    }
}

#[test]
fn the_embedded_model_has_one_perplexity_on_both_devices() {
    let Some(gpu) = first_gpu() else { return };
    let folder = Folder::new();
    let (model, text, coded) = embedded(&folder);
    assert_same_perplexity("unquantized", &Origin::Source(&model), &gpu, &text, 512, 4);
    assert_same_perplexity("unquantized", &Origin::Source(&model), &gpu, &text, 2048, 2);
    for (codec, container) in &coded {
        assert_same_perplexity(codec, &Origin::Container(container), &gpu, &text, 512, 4);
    }
}

/// The model and the text that the project's figures are about.
const SMOLLM2: &str = "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
/// A container of it, made by `gosset quantize smollm2 -o smollm2.gosset --codec e8-rice --rate 3 --embeddings 4`.
const SMOLLM2_CODED: &str = "smollm2.gosset";
const WIKITEXT2: &str = "wikitext-2/wiki.test.raw";

/// Part of the text: tokenizing all of it takes longer than scoring a window.
fn start_of(text: &Path) -> String {
    std::fs::read_to_string(text).unwrap().chars().take(20_000).collect()
}

#[test]
fn smollm2_has_one_perplexity_on_both_devices() {
    let Some(gpu) = first_gpu() else { return };
    let (Some(model), Some(text)) = (file("GOSSET_CACHE", SMOLLM2), file("GOSSET_DATA", WIKITEXT2)) else { return };
    assert_same_perplexity("smollm2", &Origin::Source(&model), &gpu, &start_of(&text), 1024, 2);
}

#[test]
fn smollm2_compressed_has_one_perplexity_on_both_devices() {
    let Some(gpu) = first_gpu() else { return };
    let (Some(path), Some(text)) = (file("GOSSET_DATA", SMOLLM2_CODED), file("GOSSET_DATA", WIKITEXT2)) else { return };
    let (container, text) = (Container::open(&path).unwrap(), start_of(&text));
    assert_same_perplexity("smollm2, coded", &Origin::Container(&container), &gpu, &text, 1024, 2);
    // The same weights, no longer coded.
    let folder = Folder::new();
    dequantize(&container, &folder.path("expanded"), FloatDtype::F16, None, &Silent).unwrap();
    assert_same_perplexity("smollm2, expanded", &Origin::Source(&folder.path("expanded")), &gpu, &text, 1024, 2);
}
