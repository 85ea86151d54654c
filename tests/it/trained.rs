//! Trained models against reference figures, through the whole path: source, container, protocol.
//!
//! The embedded model is always there. The others are looked for in the folder `GOSSET_DATA` and in the user's cache; a test that
//! finds none says so and passes.

use std::env;
use std::error::Error;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::process::Command;

use gosset_container::Container;
use gosset_eval::{BosPolicy, CausalLm, NllSum, PplProtocol, PplResult, evaluate, sha256_ids, token_nll};
use gosset_runtime::LanguageModel;

use crate::checkpoint::{Folder, e8, load, load_source, quantize};

/// 0.02 %: what the project promises for every model.
const TOLERANCE: f64 = 2e-4;

fn data(file: &str) -> Option<PathBuf> {
    let found = env::var_os("GOSSET_DATA").map(|d| PathBuf::from(d).join(file)).filter(|p| p.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: {file} is not in the folder GOSSET_DATA");
    }
    found
}

/// A model of the user's cache, by the rule of the command.
fn cached(file: &str) -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("GOSSET_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("gosset")))
        .or_else(|| Some(set("HOME")?.join(".cache/gosset")));
    let found = cache.map(|c| c.join("models").join(file)).filter(|p| p.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: {file} is not in the cache; cargo xtask fetch gets it");
    }
    found
}

/// Sums the second halves of windows while evaluation sums all of them: two protocols for the price of one pass.
struct Halves<'a> {
    model: &'a LanguageModel,
    half: NllSum,
}

impl CausalLm for Halves<'_> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn score(
        &mut self,
        tokens: &[u32],
        positions: Range<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let half = &mut self.half;
        Ok(self.model.score(tokens, positions, &mut |p, row| {
            if p >= tokens.len() / 2 {
                half.push(token_nll(row, tokens[p + 1] as usize).unwrap());
            }
            sink(p, row);
        })?)
    }
}

/// The first windows of a text under `full-N`, and the second halves of the same windows.
fn score(model: &LanguageModel, text: &str, window: usize, n: usize) -> (PplResult, NllSum, String) {
    let tokenizer = model.require_tokenizer().unwrap();
    let auto = tokenizer.leading_ids().first().copied();
    let ids = tokenizer.encode(text).unwrap();
    let protocol = PplProtocol::parse(&format!("full-{window}")).unwrap().for_family(auto.is_some());
    let mut lm = Halves { model, half: NllSum::default() };
    let full = evaluate(&mut lm, &ids, auto, &protocol, Some(n), &mut |_| ControlFlow::Continue(())).unwrap();
    (full, lm.half, sha256_ids(&ids))
}

#[track_caller]
fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < TOLERANCE, "perplexity {found}, expected {expected}");
}

fn embedded() -> (PathBuf, String) {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets");
    (assets.join("tiny"), std::fs::read_to_string(assets.join("text/eval.txt")).unwrap())
}

/// Figures of assets/tools/check_tiny.py, in f64.
#[test]
fn the_embedded_model_has_its_reference_perplexity() {
    let (model, text) = embedded();
    let (full, _, ids) = score(&load_source(&model), &text, 2048, 4);
    assert_eq!((full.tokens, full.windows_available, full.bos), (69_647, 34, BosPolicy::None));
    assert_eq!(ids, "1b45f6c5af613571903fad9c382864dd10bca96cece6afcd45516b59112ab5bd");
    for (window, expected) in full.per_window.iter().zip([35.229805, 36.963575, 34.199228, 31.560350]) {
        assert_near(window.cumulative_ppl, expected);
    }
}

#[test]
fn more_bits_bring_the_embedded_model_nearer_to_its_source() {
    let (model, text) = embedded();
    let folder = Folder::new();
    let none = score(&load_source(&model), &text, 512, 4).0;
    assert_near(none.ppl, 35.824103);
    let mut before = f64::INFINITY;
    for rate in [2.0, 3.0, 4.0, 6.0] {
        let path = folder.path(&format!("{rate}.gosset"));
        let (container, report) = quantize(&model, &e8(rate), &path);
        assert!((report.payload_bps - rate).abs() < 0.01);
        let first = score(&load(&container), &text, 512, 4).0;
        let delta_ln = (first.ppl / none.ppl).ln();
        assert!(delta_ln < before && delta_ln > -0.01, "{rate} bits: {delta_ln} after {before}");
        before = delta_ln;
        if rate == 3.0 {
            drop(container);
            assert_eq!(score(&load(&Container::open(&path).unwrap()), &text, 512, 4).0, first);
        }
    }
    assert!(before < 0.01, "{before} at 6 bits");
}

#[test]
fn stories260k_has_its_reference_perplexity() {
    let (Some(model), Some(text)) = (data("stories260K/stories260K.f32.gguf"), data("wikitext-2/wiki.test.raw")) else {
        return;
    };
    let (full, half, _) = score(&load_source(&model), &std::fs::read_to_string(text).unwrap(), 512, 20);
    assert_eq!((full.bos, full.bos_id), (BosPolicy::EachWindow, Some(1)));
    assert_eq!((full.tokens_scored, half.n), (10_220, 5_100));
    assert_near(full.ppl, 105.53862);
    assert_near(half.ppl(), 96.88511);
}

const SMOLLM2: &str = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

#[test]
fn smollm2_has_its_reference_perplexity_in_the_first_window() {
    let (Some(model), Some(text)) = (cached(SMOLLM2), data("wikitext-2/wiki.test.raw")) else { return };
    let begin = std::time::Instant::now();
    let (full, half, ids) = score(&load_source(&model), &std::fs::read_to_string(text).unwrap(), 2048, 1);
    eprintln!("one window of 2048 in {:.1} s", begin.elapsed().as_secs_f64());
    assert_eq!((full.tokens, full.bos), (303_415, BosPolicy::None));
    assert_eq!(ids, "18e663b61dd00f49796c8a6ae498b7dbe009cac4a2eaf3c67fa7d81baf47d945");
    assert_eq!((full.tokens_scored, half.n), (2047, 1023));
    assert_near(full.ppl, 15.10237);
    assert_near(half.ppl(), 16.43597);
}

const CHILD: &str = "GOSSET_TESTS_QUANTIZE";

/// Quantizes in a process of its own, whose memory is then known.
#[test]
fn smollm2_payloads_are_on_target_within_the_memory_law() {
    let Some(model) = cached(SMOLLM2) else { return };
    if env::var_os(CHILD).is_some() {
        return quantize_and_measure(&model);
    }
    let name = "trained::smollm2_payloads_are_on_target_within_the_memory_law";
    let child = Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads", "1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    eprintln!("{said}");
    assert!(child.status.success() && said.contains("1 passed") && said.contains("worst payload"), "{said}");
}

fn quantize_and_measure(model: &Path) {
    let folder = Folder::new();
    let begin = std::time::Instant::now();
    let (container, report) = quantize(model, &e8(3.0), &folder.path("m.gosset"));
    let seconds = begin.elapsed().as_secs_f64();
    // As the file has it, not as the run reports it.
    let ledger = container.ledger().unwrap();
    let mut worst = 0f64;
    let mut n = 0;
    for entry in container.entries().iter().filter(|e| e.is_coded()) {
        let payload = ledger.tensor(&entry.name).unwrap().rate().payload_bps();
        assert!((payload - 3.0).abs() <= 0.01, "{}: {payload}", entry.name);
        worst = worst.max((payload - 3.0).abs());
        n += 1;
    }
    assert_eq!((n, report.n_quantized), (210, 106_168_320));
    eprintln!("210 linears in {seconds:.1} s, worst payload error {worst:.5} bits");
    let Some(peak) = peak_memory() else {
        eprintln!("SKIPPED: this system does not tell the peak memory of a process");
        return;
    };
    // The input counts once although it is read, not mapped; its largest tensor is the table of embeddings.
    let source = gosset_runtime::source::open_source(model).unwrap();
    let input: u64 = source.info().files.iter().map(|f| f.metadata().unwrap().len()).sum();
    let largest = source.tensors().iter().map(|t| t.n_bytes).max().unwrap();
    eprintln!("peak {peak} bytes, input {input}, largest tensor {largest}");
    assert!(peak <= input + 3 * largest, "peak {peak} bytes, input {input}, largest tensor {largest}");
}

/// Largest resident set of this process so far, in bytes.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
