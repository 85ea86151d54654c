//! Generation: greedy against recomputation, masks, stops, contexts.

use std::ops::ControlFlow;

use serde_json::json;

use super::{MemorySource, ids};
use crate::source::fixture::{TinyFamily, TinyModel};
use crate::text::TextStream;
use crate::{
    GenerateOptions, Generation, KvCache, LanguageModel, LoadOptions, Receiver, RuntimeError, Sampling, StopReason,
    generate, generate_with_cache,
};

fn load(source: &MemorySource) -> LanguageModel {
    LanguageModel::from_source(source, &LoadOptions::default()).unwrap()
}

fn run(model: &LanguageModel, prompt: &[u32], options: &GenerateOptions) -> crate::Generation {
    let mut streamed = String::new();
    let generation = generate(model, prompt, options, &mut |piece| {
        streamed.push_str(piece);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(streamed, generation.text);
    let continued = |tokenizer| {
        let mut stream = TextStream::continuing(tokenizer);
        let text: String = generation.tokens.iter().filter_map(|&id| stream.push(id)).collect();
        text + &stream.finish()
    };
    assert_eq!(generation.text, model.tokenizer().map_or(String::new(), continued));
    generation
}

fn untied(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { ignore_model_stop_ids: true, ..GenerateOptions::greedy(max_tokens) }
}

#[test]
fn greedy_tokens_are_those_of_full_recomputation() {
    for family in [TinyFamily::Llama, TinyFamily::Qwen2] {
        let source = MemorySource::new(&TinyModel::t0(family, 31));
        let (model, reference) = (load(&source), source.reference());
        let prompt = ids(12, 260, 1);
        let generation = run(&model, &prompt, &untied(12));
        let mut seen = prompt.clone();
        for &id in &generation.tokens {
            let logits = reference.logits(&seen).pop().unwrap();
            let best = (0..260).max_by(|&a: &usize, &b| logits[a].total_cmp(&logits[b])).unwrap();
            assert_eq!(id as usize, best);
            seen.push(id);
        }
        assert_eq!((generation.tokens.len(), generation.stop), (12, StopReason::MaxTokens));
        assert_eq!(generation.n_prompt, 12);
    }
}

#[test]
fn long_prompts_go_through_in_chunks() {
    let mut source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 32));
    source.set_config("max_position_embeddings", json!(2048));
    let model = load(&source);
    let prompt = ids(1100, 260, 2);
    let (mut cache, mut last) = (model.new_cache(), Vec::new());
    let hidden = model.forward(&prompt, &mut cache).unwrap();
    last.extend(model.logits(&hidden.narrow(0, 1099, 1).unwrap()).unwrap().to_vec2::<f32>().unwrap().remove(0));
    let best = (0..260).max_by(|&a: &usize, &b| last[a].total_cmp(&last[b])).unwrap();
    assert_eq!(run(&model, &prompt, &untied(1)).tokens, [best as u32]);
}

#[test]
fn a06_ids_without_a_token_are_never_sampled() {
    let mut source = MemorySource::new(&TinyModel { n_vocab: 320, ..TinyModel::t0(TinyFamily::Llama, 33) });
    // A head whose last 60 rows win every argmax: a hundred times row 0 with its sign turned both ways covers any state.
    let head = source.tensor_mut("lm_head.weight");
    for row in 260..320 {
        for i in 0..64 {
            head[row * 64 + i] = head[i] * if row % 2 == 0 { 100.0 } else { -100.0 };
        }
    }
    let model = load(&source);
    assert_eq!(model.vocab_size(), 320);
    let prompt = ids(8, 260, 3);
    let hidden = model.forward(&prompt, &mut model.new_cache()).unwrap();
    let logits = model.logits(&hidden).unwrap().to_vec2::<f32>().unwrap();
    for row in &logits {
        assert_eq!(row.len(), 320, "scoring keeps every row of the table");
        assert!((0..320).max_by(|&a: &usize, &b| row[a].total_cmp(&row[b])).unwrap() >= 260);
    }
    for sampling in [Sampling::GREEDY, Sampling { temperature: 1.5, top_p: 1.0, seed: 4 }] {
        let generation = run(&model, &prompt, &GenerateOptions { sampling, ..untied(30) });
        assert!(generation.tokens.iter().all(|&id| id < 260));
        assert_eq!(generation.notes, ["60 of 320 embedding rows have no token and are never sampled"]);
    }
    // An id without a token, given by the user, is decoded to nothing.
    assert_eq!(model.tokenizer().unwrap().decode(&[65, 300, 66]), "AB");
}

#[test]
fn j02_generation_ends_at_any_listed_id() {
    let prompt = ids(6, 260, 5);
    let source = |eos: serde_json::Value, generation: Option<serde_json::Value>| {
        let mut source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 34));
        source.set_config("eos_token_id", eos);
        source.set_blob("generation_config.json", generation.map(|g| g.to_string().into_bytes()));
        source
    };
    let free = run(&load(&source(json!(null), None)), &prompt, &GenerateOptions::greedy(10)).tokens;
    let stop_at = |id: u32| free.iter().position(|&t| t == id).unwrap();
    for (eos, generation) in [
        (json!(free[4]), None),
        (json!([259, free[4]]), None),
        (json!(null), Some(json!({ "eos_token_id": free[4] }))),
        (json!(259), Some(json!({ "eos_token_id": [259, free[4]] }))),
    ] {
        let generation = run(&load(&source(eos, generation)), &prompt, &GenerateOptions::greedy(10));
        assert_eq!(generation.stop, StopReason::StopId(free[4]));
        assert_eq!(generation.tokens, free[..stop_at(free[4])]);
    }
    let asked = GenerateOptions { stop_ids: vec![free[2]], ..GenerateOptions::greedy(10) };
    assert_eq!(run(&load(&source(json!(null), None)), &prompt, &asked).tokens, free[..stop_at(free[2])]);
}

#[test]
fn f02_a_full_context_is_known_at_the_start() {
    let mut source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 35));
    source.set_config("max_position_embeddings", json!(32));
    let model = load(&source);
    let generation = run(&model, &ids(20, 260, 6), &untied(100));
    assert_eq!((generation.tokens.len(), generation.stop), (13, StopReason::ContextFull));
    assert_eq!(generation.notes, ["the context of 32 tokens leaves room for 13 after the prompt of 20, not 100"]);
    let result = generate(&model, &ids(32, 260, 6), &untied(1), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(result.unwrap_err(), RuntimeError::ContextOverflow { asked: 33, limit: 32, .. }));
    let empty = generate(&model, &[], &untied(1), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(empty.unwrap_err(), RuntimeError::Options { .. }));
}

#[test]
fn j01_a_continuation_keeps_its_leading_space() {
    let mut source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 38));
    // SentencePiece style: every piece is a word that begins with a space, which is no part of a text only at its start.
    let vocab: serde_json::Map<_, _> = (0..260).map(|id| (format!("▁w{id}"), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    source.set_blob("tokenizer.json", Some(tokenizer.to_string().into_bytes()));
    let model = load(&source);
    let decode = |ids: &[u32]| model.tokenizer().unwrap().decode(ids);
    for seed in 0..4 {
        let prompt = ids(5, 260, seed);
        let generation = run(&model, &prompt, &untied(6));
        assert!(generation.text.starts_with(" w"), "{:?}", generation.text);
        assert_eq!(decode(&prompt) + &generation.text, decode(&[prompt, generation.tokens].concat()));
    }
}

#[test]
fn the_receiver_can_stop_and_a_seed_repeats() {
    let model = load(&MemorySource::new(&TinyModel::t0(TinyFamily::Qwen2, 36)));
    let sampling = Sampling { temperature: 1.0, top_p: 0.9, seed: 77 };
    let options = GenerateOptions { sampling, ..untied(40) };
    let prompt = ids(5, 260, 7);
    assert_eq!(run(&model, &prompt, &options), run(&model, &prompt, &options));
    let mut pieces = 0;
    let stopped = generate(&model, &prompt, &options, &mut |_| {
        pieces += 1;
        if pieces == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((stopped.unwrap().stop, pieces), (StopReason::Receiver, 2));
}

#[test]
fn e04_generation_reports_the_layer_not_the_sampler() {
    let mut source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 37));
    source.tensor_mut("model.layers.1.self_attn.v_proj.weight")[7] = f32::NAN;
    let result = generate(&load(&source), &[1, 2, 3], &untied(5), &mut |_| ControlFlow::Continue(()));
    assert_eq!(result.unwrap_err().to_string(), "non-finite value at position 0: first seen in model.layers.1");
}

/// Collects text and stops when it is asked for the `patience`-th time.
struct Impatient {
    text: String,
    patience: usize,
}

impl Receiver for Impatient {
    fn text(&mut self, piece: &str) -> ControlFlow<()> {
        self.text.push_str(piece);
        ControlFlow::Continue(())
    }

    fn cancelled(&mut self) -> bool {
        self.patience = self.patience.saturating_sub(1);
        self.patience == 0
    }
}

fn run_with_cache(
    model: &LanguageModel,
    cache: &mut KvCache,
    prompt: &[u32],
    options: &GenerateOptions,
    patience: usize,
) -> Generation {
    let mut receiver = Impatient { text: String::new(), patience };
    let generation = generate_with_cache(model, cache, prompt, options, &mut receiver).unwrap();
    assert_eq!(receiver.text, generation.text);
    generation
}

/// The cache holds what one pass over its tokens would put there: both go on alike.
fn assert_is_recomputed(model: &LanguageModel, cache: &KvCache) {
    // Sums of at most some hundred f32 terms in another order, through two layers.
    const TOLERANCE: f32 = 1e-4;
    let mut fresh = model.new_cache();
    model.forward(cache.tokens(), &mut fresh).unwrap();
    let next = ids(3, 260, 99);
    let after = |mut cache: KvCache| model.forward(&next, &mut cache).unwrap().flatten_all().unwrap().to_vec1::<f32>();
    let (found, expected) = (after(cache.clone()).unwrap(), after(fresh).unwrap());
    let scale = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= TOLERANCE * scale));
}

fn long_context(family: TinyFamily, seed: u64) -> LanguageModel {
    let mut source = MemorySource::new(&TinyModel::t0(family, seed));
    source.set_config("max_position_embeddings", json!(2048));
    load(&source)
}

#[test]
fn a_kept_cache_gives_what_a_fresh_one_gives() {
    for (family, sampling) in
        [(TinyFamily::Llama, Sampling::GREEDY), (TinyFamily::Qwen2, Sampling { temperature: 1.0, top_p: 0.9, seed: 3 })]
    {
        let model = long_context(family, 39);
        let options = GenerateOptions { sampling, ..untied(6) };
        let mut cache = model.new_cache();
        let mut prompt = ids(700, 260, 8);
        for (turn, n_reused) in [(0, 0), (1, 705), (2, 709), (3, 710), (4, 300), (5, 0)] {
            match turn {
                // Longer by what is new; the same again; all but its end; other words from the middle on; other words.
                1 => prompt.extend(ids(4, 260, 9)),
                2 => {}
                3 => prompt.push(7),
                4 => prompt.splice(300.., [(prompt[300] + 1) % 260, 5, 6]).for_each(drop),
                5 => prompt = vec![(prompt[0] + 1) % 260],
                _ => {}
            }
            let kept = run_with_cache(&model, &mut cache, &prompt, &options, usize::MAX);
            assert_eq!(kept.n_reused, n_reused, "turn {turn}");
            assert_eq!(Generation { n_reused: 0, ..kept.clone() }, run(&model, &prompt, &options), "turn {turn}");
            let (_, fed) = kept.tokens.split_last().unwrap();
            assert_eq!(cache.tokens(), [&prompt, fed].concat());
            assert_is_recomputed(&model, &cache);
            if turn == 0 {
                prompt.extend(&kept.tokens);
            }
        }
    }
}

#[test]
fn j04_a_generation_can_be_cancelled_at_any_layer_and_taken_up_again() {
    let model = long_context(TinyFamily::Llama, 40);
    let (prompt, options) = (ids(1100, 260, 10), untied(4));
    let whole = run(&model, &prompt, &options);
    let mut cache = model.new_cache();
    // Three chunks of prompt and three more tokens; embedding, two layers and the norm are asked about in each.
    let n_asked = 6 * 4;
    for (patience, n_held) in (1..=n_asked).map(|n| (n, [0, 512, 1024, 1100, 1101, 1102][(n - 1) / 4])) {
        cache.truncate(0);
        let cut = run_with_cache(&model, &mut cache, &prompt, &options, patience);
        assert_eq!((cut.stop, cache.len()), (StopReason::Receiver, n_held), "asked {patience} times");
        assert_eq!(cut.tokens, whole.tokens[..n_held.saturating_sub(1099)]);
        assert!(whole.text.starts_with(&cut.text));
        assert_eq!(cache.tokens(), &[prompt.clone(), cut.tokens].concat()[..n_held]);
    }
    assert_is_recomputed(&model, &cache);
    let again = run_with_cache(&model, &mut cache, &prompt, &options, n_asked + 1);
    assert_eq!(Generation { n_reused: 0, ..again }, whole);
}

#[test]
fn e04_an_error_leaves_no_bad_position_in_the_cache() {
    let mut source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 41));
    source.tensor_mut("model.embed_tokens.weight")[9 * 64] = f32::NAN;
    let model = load(&source);
    let (mut cache, options) = (model.new_cache(), untied(1));
    let mut turn = |prompt: &[u32]| {
        let mut receiver = Impatient { text: String::new(), patience: usize::MAX };
        let result = generate_with_cache(&model, &mut cache, prompt, &options, &mut receiver);
        (result.map(|g| g.n_reused).map_err(|e| e.to_string()), cache.len())
    };
    assert_eq!(turn(&[1, 2, 3]), (Ok(0), 3));
    let error = "non-finite value at position 3: first seen in model.embed_tokens";
    assert_eq!(turn(&[1, 2, 3, 9, 4]), (Err(error.to_owned()), 3));
    assert_eq!(turn(&[1, 2, 3, 4]), (Ok(3), 4));
    let unknown = "token 260 at position 4: expected an id below 260";
    assert_eq!(turn(&[1, 2, 3, 4, 260]), (Err(unknown.to_owned()), 4), "refused before any work");
}
