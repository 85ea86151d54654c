//! Perplexities of trained models against reference figures. Skips loudly where a model or the data folder is absent.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use gosset_runtime::source::open_source;
use gosset_runtime::{LanguageModel, LoadOptions};

/// Relative to the reference; 0.02 % is the bound the project promises for every model.
const TOLERANCE: f64 = 2e-4;

/// A sum of negative log-likelihoods.
#[derive(Default)]
struct Nll {
    sum: f64,
    n: usize,
}

impl Nll {
    fn add(&mut self, logits: &[f32], target: u32) {
        let max = logits.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
        let sum: f64 = logits.iter().map(|&v| f64::from(v - max).exp()).sum();
        self.sum += sum.ln() + f64::from(max - logits[target as usize]);
        self.n += 1;
    }

    fn ppl(&self) -> f64 {
        (self.sum / self.n as f64).exp()
    }
}

/// Cumulative perplexity after each of the first windows, over all positions, and the last one's over second halves.
///
/// With `bos` it is put in front of the text once and replaces the first token of every window.
fn perplexities(
    model: &LanguageModel,
    text: &str,
    window: usize,
    n_windows: usize,
    bos: Option<u32>,
) -> (Vec<f64>, Nll, Nll) {
    let mut ids: Vec<u32> = bos.into_iter().collect();
    ids.extend(model.require_tokenizer().unwrap().encode(text).unwrap());
    let (mut cumulative, mut full, mut half) = (Vec::new(), Nll::default(), Nll::default());
    for chunk in ids.chunks_exact(window).take(n_windows) {
        let mut chunk = chunk.to_vec();
        if let Some(bos) = bos {
            chunk[0] = bos;
        }
        let mut each = |p: usize, logits: &[f32]| {
            full.add(logits, chunk[p + 1]);
            if p >= window / 2 {
                half.add(logits, chunk[p + 1]);
            }
        };
        model.score(&chunk, 0..window - 1, &mut each).unwrap();
        cumulative.push(full.ppl());
    }
    (cumulative, full, half)
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < TOLERANCE, "perplexity {found}, expected {expected}");
}

fn load(path: &Path) -> LanguageModel {
    LanguageModel::from_source(&*open_source(path).unwrap(), &LoadOptions::default()).unwrap()
}

#[test]
fn stories260k_equals_the_reference_after_20_windows() {
    let data = std::env::var_os("GOSSET_DATA").map(PathBuf::from).unwrap_or_default();
    let (model, text) = (data.join("stories260K/stories260K.f32.gguf"), data.join("wikitext-2/wiki.test.raw"));
    if !model.is_file() || !text.is_file() {
        eprintln!("SKIPPED: stories260K and wikitext-2 are not in the folder GOSSET_DATA");
        return;
    }
    let model = load(&model);
    let text = std::fs::read_to_string(text).unwrap();
    let (_, full, half) = perplexities(&model, &text, 512, 20, model.config().bos_token_id);
    assert_eq!((full.n, half.n), (10_220, 5_100));
    assert_near(full.ppl(), 105.53862);
    assert_near(half.ppl(), 96.88511);
}

#[test]
fn the_embedded_model_equals_its_reference() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    if !assets.join("tiny/model.safetensors").is_file() {
        eprintln!("SKIPPED: assets/tiny is not beside the crates");
        return;
    }
    let model = load(&assets.join("tiny"));
    let text = std::fs::read_to_string(assets.join("text/eval.txt")).unwrap();
    // Figures of assets/tools/check_tiny.py, in f64.
    let (cumulative, ..) = perplexities(&model, &text, 512, 4, None);
    for (found, expected) in cumulative.into_iter().zip([30.790385, 36.929143, 37.840056, 35.824103]) {
        assert_near(found, expected);
    }
    let (cumulative, ..) = perplexities(&model, &text, 2048, 2, None);
    for (found, expected) in cumulative.into_iter().zip([35.229805, 36.963575]) {
        assert_near(found, expected);
    }
}
