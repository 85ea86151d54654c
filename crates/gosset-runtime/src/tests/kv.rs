//! Compressed caches under whole models: splits, prefixes, full contexts, keys with large biases.

use std::ops::ControlFlow;

use gosset_kv::{KvError, KvSpec};
use serde_json::json;

use super::{MemorySource, ids};
use crate::source::fixture::{TinyFamily, TinyModel};
use crate::{
    GenerateOptions, Generation, KvCache, LanguageModel, LoadOptions, PROBE_TOKENS, Receiver, RuntimeError, StopReason,
    generate_with_cache,
};

/// Specs of every kind: plain, with each kind of exact part, with keys after the rotation.
const SPECS: [&str; 6] = [
    "e8@4,page=16",
    "e8@2.25,window=8,sinks=2,page=16",
    "d4@3,k@2.5,window=5,page=4,exact=f32",
    "e8@3,frame=none,page=16",
    "z@3,frame=mean,sinks=3,page=8,dither=on",
    "e8@2.25,page=16,budget=fixed,protect=k0",
];

/// Heads of 32 instead of 16, so that pages have something to average over.
fn tiny(family: TinyFamily, seed: u64) -> TinyModel {
    TinyModel { head_dim: 32, ..TinyModel::t0(family, seed) }
}

fn load(source: &MemorySource) -> LanguageModel {
    LanguageModel::from_source(source, &LoadOptions::default()).unwrap()
}

fn model(family: TinyFamily, seed: u64) -> LanguageModel {
    let mut source = MemorySource::new(&tiny(family, seed));
    source.set_config("max_position_embeddings", json!(2048));
    load(&source)
}

fn cache(model: &LanguageModel, spec: &str) -> KvCache {
    let spec: KvSpec = spec.parse().unwrap();
    let probe = spec.wants_probe().then(|| model.kv_probe(256).unwrap());
    model.new_kv_cache(&spec, probe.as_ref()).unwrap()
}

/// Logits of every position of `tokens`, which go in as `split` says.
fn logits(model: &LanguageModel, cache: &mut KvCache, tokens: &[u32], split: &[usize]) -> Vec<f32> {
    assert_eq!(split.iter().sum::<usize>(), tokens.len());
    let mut out = Vec::new();
    let mut rest = tokens;
    for n in split {
        let (chunk, left) = rest.split_at(*n);
        let hidden = model.forward(chunk, cache).unwrap();
        out.extend(model.logits(&hidden).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());
        rest = left;
    }
    out
}

/// Largest difference over the largest element.
fn distance(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    found.iter().zip(expected).fold(0f32, |m, (a, b)| m.max((a - b).abs())) / scale
}

struct Quiet {
    patience: usize,
}

impl Receiver for Quiet {
    fn text(&mut self, _: &str) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn cancelled(&mut self) -> bool {
        self.patience = self.patience.saturating_sub(1);
        self.patience == 0
    }
}

fn generate(model: &LanguageModel, cache: &mut KvCache, prompt: &[u32], n: usize) -> Generation {
    let options = GenerateOptions { ignore_model_stop_ids: true, ..GenerateOptions::greedy(n) };
    generate_with_cache(model, cache, prompt, &options, &mut Quiet { patience: usize::MAX }).unwrap()
}

#[test]
fn an_exact_store_gives_what_a_cache_in_f32_gives() {
    // Sums in another order, and angles as sums of two.
    const TOLERANCE: f32 = 2e-5;
    for family in [TinyFamily::Llama, TinyFamily::Qwen2] {
        let model = model(family, 71);
        let tokens = ids(300, 260, 1);
        let expected = logits(&model, &mut model.new_cache(), &tokens, &[300]);
        for spec in
            ["f32,exact=f32", "f32,rope=before,window=40,sinks=4,exact=f32,page=32", "e8@2,protect=0+1,exact=f32"]
        {
            let found = logits(&model, &mut cache(&model, spec), &tokens, &[150, 1, 149]);
            assert!(distance(&found, &expected) <= TOLERANCE, "{spec}: {}", distance(&found, &expected));
        }
    }
}

#[test]
fn f04_every_split_gives_the_same_logits_and_the_same_bytes() {
    const TOLERANCE: f32 = 1e-4;
    for family in [TinyFamily::Llama, TinyFamily::Qwen2] {
        let model = model(family, 72);
        let tokens = ids(40, 260, 2);
        for spec in SPECS {
            let mut whole = cache(&model, spec);
            let expected = logits(&model, &mut whole, &tokens, &[40]);
            for split in [&[1; 40][..], &[7, 33], &[1, 39], &[16, 16, 8]] {
                let mut cache = cache(&model, spec);
                let found = logits(&model, &mut cache, &tokens, split);
                assert!(distance(&found, &expected) <= TOLERANCE, "{spec}, {split:?}: {}", distance(&found, &expected));
                let (memory, all) = (cache.memory().unwrap(), whole.memory().unwrap());
                assert_eq!((memory.codes, memory.positions), (all.codes, all.positions), "{spec}, {split:?}");
            }
        }
    }
}

#[test]
fn no_bit_depends_on_the_number_of_threads() {
    let model = model(TinyFamily::Llama, 73);
    let tokens = ids(300, 260, 3);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| logits(&model, &mut cache(&model, SPECS[1]), &tokens, &[299, 1]))
    };
    assert_eq!(on(1), on(5));
}

#[test]
fn a_chunk_sees_what_single_tokens_see_when_scored() {
    let model = model(TinyFamily::Qwen2, 74);
    let tokens = ids(200, 260, 4);
    let scored = |chunk: usize| {
        let mut rows = Vec::new();
        // What another text left behind is forgotten.
        let mut cache = cache(&model, SPECS[1]);
        model.forward(&ids(9, 260, 5), &mut cache).unwrap();
        model
            .score_with_cache(&tokens, 20..199, &mut cache, chunk, &mut |p, row| rows.push((p, row.to_vec())))
            .unwrap();
        assert_eq!(cache.tokens(), tokens, "the last one too, though nothing is asked of it");
        rows
    };
    let (by_chunks, by_tokens) = (scored(64), scored(1));
    assert_eq!(by_chunks.iter().map(|row| row.0).collect::<Vec<_>>(), (20..199).collect::<Vec<_>>());
    let mut distances: Vec<f32> = by_chunks.iter().zip(&by_tokens).map(|(a, b)| distance(&a.1, &b.1)).collect();
    distances.sort_by(f32::total_cmp);
    // Sums in another order are all that tells the two apart, but once in a while they move a coordinate to the next code.
    let (middle, largest) = (distances[distances.len() / 2], distances[distances.len() - 1]);
    assert!(middle <= 1e-4 && largest <= 1e-2, "{middle}, {largest}");
}

#[test]
fn f06_conversations_do_not_leak_and_a_reused_prefix_changes_nothing() {
    let model = model(TinyFamily::Llama, 75);
    let [a, b, c, d] = [60, 30, 25, 80].map(|n| ids(n, 260, n as u32));
    for spec in SPECS {
        let fresh = |prompt: &[u32]| generate(&model, &mut cache(&model, spec), prompt, 12).tokens;
        let mut original = cache(&model, spec);
        model.forward(&a, &mut original).unwrap();
        let mut clone = original.clone();
        let (with_b, with_c) = ([a.clone(), b.clone()].concat(), [a.clone(), c.clone()].concat());
        assert_eq!(generate(&model, &mut clone, &with_b, 12).tokens, fresh(&with_b), "{spec}");
        assert_eq!(generate(&model, &mut original, &with_c, 12).tokens, fresh(&with_c), "{spec}");
        // Another text, then the same again: what was made is rewound, and in a window that is exact it cannot be.
        let first = generate(&model, &mut original, &d, 12);
        assert_eq!((first.n_reused, &first.tokens), (0, &fresh(&d)), "{spec}");
        let again = generate(&model, &mut original, &d, 12);
        assert_eq!(again.tokens, first.tokens, "{spec}");
        let policy = spec.parse::<KvSpec>().unwrap().policy;
        let expected = if policy.window == 0 { d.len() - 1 } else { policy.sinks };
        assert_eq!(again.n_reused, expected, "{spec}");
        // A continuation rewinds nothing and keeps everything.
        let longer = [d.clone(), again.tokens.clone(), b.clone()].concat();
        let next = generate(&model, &mut original, &longer, 12);
        assert_eq!((next.n_reused, &next.tokens), (d.len() + 11, &fresh(&longer)), "{spec}");
        let mut emptied = original.emptied();
        assert!(emptied.is_empty());
        assert_eq!(generate(&model, &mut emptied, &a, 12).tokens, fresh(&a), "{spec}");
    }
}

#[test]
fn f06_two_threads_share_a_model_and_nothing_else() {
    let model = model(TinyFamily::Llama, 76);
    let prompts = [ids(70, 260, 6), ids(50, 260, 7)];
    let alone = prompts.each_ref().map(|prompt| generate(&model, &mut cache(&model, SPECS[1]), prompt, 20));
    let together = std::thread::scope(|scope| {
        let model = &model;
        let run = |prompt| scope.spawn(move || generate(model, &mut cache(model, SPECS[1]), prompt, 20));
        prompts.each_ref().map(|prompt| run(prompt.as_slice())).map(|handle| handle.join().unwrap())
    });
    assert_eq!(together, alone);
}

#[test]
fn f02_a_full_context_ends_a_generation_as_announced() {
    let mut source = MemorySource::new(&tiny(TinyFamily::Llama, 77));
    source.set_config("max_position_embeddings", json!(32));
    let model = load(&source);
    for spec in SPECS {
        let mut cache = cache(&model, spec);
        let generation = generate(&model, &mut cache, &ids(20, 260, 8), 100);
        assert_eq!((generation.tokens.len(), generation.stop), (13, StopReason::ContextFull), "{spec}");
        assert_eq!(generation.notes, ["the context of 32 tokens leaves room for 13 after the prompt of 20, not 100"]);
        let full = model.forward(&[1], &mut cache).unwrap_err();
        assert!(matches!(full, RuntimeError::ContextOverflow { asked: 33, limit: 32, .. }), "{full}");
        assert_eq!(cache.len(), 32, "what did not fit left nothing behind");
    }
}

#[test]
fn j04_a_cancelled_pass_leaves_nothing_of_itself() {
    let model = model(TinyFamily::Llama, 78);
    let (prompt, options) = (ids(40, 260, 9), GenerateOptions::greedy(6));
    for spec in SPECS {
        let whole =
            generate_with_cache(&model, &mut cache(&model, spec), &prompt, &options, &mut Quiet { patience: 99 });
        let mut cache = cache(&model, spec);
        // Embedding, two layers and the norm are asked about in each of six passes.
        for patience in 1..=24 {
            generate_with_cache(&model, &mut cache, &prompt, &options, &mut Quiet { patience }).unwrap();
        }
        let again = generate_with_cache(&model, &mut cache, &prompt, &options, &mut Quiet { patience: 99 });
        assert_eq!(again.unwrap().tokens, whole.unwrap().tokens, "{spec}");
    }
}

#[test]
fn e04_keys_that_are_not_finite_are_named() {
    let mut source = MemorySource::new(&tiny(TinyFamily::Llama, 79));
    source.tensor_mut("model.embed_tokens.weight")[9 * 64] = f32::NAN;
    let model = load(&source);
    let mut cache = cache(&model, "e8@3,frame=none");
    model.forward(&[1, 2], &mut cache).unwrap();
    let error = model.forward(&[3, 9], &mut cache).unwrap_err();
    let expected = KvError::NonFinite { role: "key", layer: 0, head: 0, position: 3 };
    assert!(matches!(&error, RuntimeError::Kv(found) if *found == expected), "{error}");
    assert_eq!(cache.tokens(), [1, 2]);
    model.forward(&[3], &mut cache).unwrap();
}

#[test]
fn a_probe_sees_the_keys_of_the_model() {
    let mut source = MemorySource::new(&tiny(TinyFamily::Qwen2, 80));
    // Zeros but for the bias: every key is the bias.
    source.tensor_mut("model.layers.1.self_attn.k_proj.weight").fill(0.0);
    let bias = source.tensor_mut("model.layers.1.self_attn.k_proj.bias").clone();
    let model = load(&source);
    let probe = model.kv_probe(200).unwrap();
    assert_eq!(probe, model.kv_probe(200).unwrap());
    assert_eq!(probe.tokens(), 200);
    let head = probe.head(1, 1).unwrap();
    assert!(head.mean.iter().zip(&bias[32..]).all(|(mean, bias)| (mean - f64::from(*bias)).abs() < 1e-6));
    assert!(head.covariance.iter().all(|c| c.abs() < 1e-9));
    assert!(probe.head(0, 0).unwrap().covariance[0] > 1e-3);
    // No more than the context at a time.
    source.set_config("max_position_embeddings", json!(16));
    assert_eq!(load(&source).kv_probe(PROBE_TOKENS).unwrap().tokens(), 4 * 16);
    source.set_blob("tokenizer.json", None);
    assert!(matches!(load(&source).kv_probe(64), Err(RuntimeError::MissingPart { .. })));
    assert!(matches!(model.kv_probe_on(&[&[1, 2], &[260]]), Err(RuntimeError::Token { id: 260, .. })));
}

#[test]
fn a_spec_that_wants_a_probe_gets_one_or_is_refused() {
    let model = model(TinyFamily::Llama, 81);
    let spec: KvSpec = "e8@3".parse().unwrap();
    assert!(matches!(model.new_kv_cache(&spec, None), Err(RuntimeError::Kv(KvError::Spec { .. }))));
    assert!(model.kv_probe_for(&spec).unwrap().is_some());
    assert!(model.kv_probe_for(&"e8@3,frame=none".parse().unwrap()).unwrap().is_none());
    let beyond: KvSpec = "e8@3,frame=none,protect=2".parse().unwrap();
    assert!(matches!(model.new_kv_cache(&beyond, None), Err(RuntimeError::Kv(KvError::Spec { .. }))));
}

/// A Qwen2-like model, with ±500 added to the biases of three key channels of both layers if asked for.
fn with_key_biases(biased: bool) -> LanguageModel {
    let mut source = MemorySource::new(&tiny(TinyFamily::Qwen2, 83));
    source.set_config("max_position_embeddings", json!(2048));
    // As in Qwen2.5: the pairs that turn slowest, at its base, so that the biases shift all scores of a query alike.
    source.set_config("rope_theta", json!(1e6));
    if biased {
        for layer in 0..2 {
            let bias = source.tensor_mut(&format!("model.layers.{layer}.self_attn.k_proj.bias"));
            // Both heads, the second with other signs.
            for (channel, value) in [(15, 500.0), (31, -500.0), (14, 500.0), (32 + 15, -500.0), (32 + 31, 500.0)] {
                bias[channel] += value;
            }
        }
    }
    load(&source)
}

/// Mean NLL of `tokens` under the logits of all positions but the last.
fn nll(logits: &[f32], tokens: &[u32]) -> f64 {
    let rows = logits.chunks_exact(logits.len() / tokens.len());
    let nlls: Vec<f64> = rows
        .zip(&tokens[1..])
        .map(|(row, &next)| {
            let max = row.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
            let sum: f64 = row.iter().map(|v| f64::from(v - max).exp()).sum();
            sum.ln() - f64::from(row[next as usize] - max)
        })
        .collect();
    nlls.iter().sum::<f64>() / nlls.len() as f64
}

#[test]
fn f01_large_key_biases_cost_nothing_with_a_probe_and_are_told_of_without_one() {
    let (biased, plain) = (with_key_biases(true), with_key_biases(false));
    let tokens = ids(256, 260, 10);
    // Distance of the logits from those of a cache in f32, and the difference of NLLs.
    let losses = |model: &LanguageModel, spec: &str| {
        let expected = logits(model, &mut model.new_cache(), &tokens, &[256]);
        let found = logits(model, &mut cache(model, spec), &tokens, &[100, 156]);
        (distance(&found, &expected), (nll(&found, &tokens) - nll(&expected, &tokens)).abs())
    };
    // Bounds on the difference of NLLs that the model without these biases keeps too.
    for (bits, bound) in [(8, 1e-3), (4, 5e-3), (3, 1e-2), (2, 2e-2)] {
        let framed = format!("e8@{bits},v=f16");
        let (of_biased, of_plain) = (losses(&biased, &framed), losses(&plain, &framed));
        assert!(of_biased.0 <= 1.5 * of_plain.0, "{bits} bits: logits {of_biased:?} for {of_plain:?}");
        assert!(of_biased.1 <= bound && of_plain.1 <= bound, "{bits} bits: NLL {of_biased:?} for {of_plain:?}");
        let unframed = losses(&biased, &format!("{framed},frame=none"));
        assert!(unframed.0 >= 0.5, "{bits} bits without a frame: logits {unframed:?}, beyond use");
    }
    let notice = |model: &LanguageModel, spec: &str| model.kv_notice(&spec.parse().unwrap()).unwrap();
    let told = notice(&biased, "e8@4,frame=none").unwrap();
    assert!(told.contains("2 layers lie far off zero") && told.contains("protect"), "{told}");
    assert!(notice(&biased, "e8@4,frame=none,protect=0").unwrap().contains("1 layer lie"));
    for quiet in ["e8@4", "e8@4,frame=mean", "e8@4,frame=none,protect=0+1", "e8@4,frame=none,protect=k0+k1", "f16"] {
        assert_eq!(notice(&biased, quiet), None, "{quiet}");
    }
    assert_eq!(notice(&plain, "e8@4,frame=none"), None);
}
