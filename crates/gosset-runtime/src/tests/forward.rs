//! Logits against the reference, caches against recomputation, refusals before work.

use serde_json::json;

use super::{MemorySource, gemma3_like, ids, mistral_like, qwen3_like};
use crate::source::fixture::{TinyFamily, TinyModel};
use crate::source::open_source;
use crate::{LanguageModel, LoadOptions, RuntimeError, TokenBranch, TokenTree};

/// Largest difference of a logit, as a share of the largest logit: f32 sums of some hundred terms through two layers.
const LOGIT_TOLERANCE: f64 = 2e-5;

fn load(source: &MemorySource) -> Result<LanguageModel, RuntimeError> {
    LanguageModel::from_source(source, &LoadOptions::default())
}

/// Logits of every position, through `score`.
pub(super) fn logits(model: &LanguageModel, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    model
        .score(tokens, 0..tokens.len(), &mut |p, row| {
            assert_eq!(p, rows.len());
            rows.push(row.to_vec());
        })
        .unwrap();
    rows
}

fn assert_close(found: &[Vec<f32>], expected: &[Vec<f64>], what: &str) {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().flatten().fold(0f64, |m, v| m.max(v.abs()));
    for (p, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (id, (f, e)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(*f) - e).abs() / scale;
            assert!(error < LOGIT_TOLERANCE, "{what}: position {p}, id {id}: {f} for {e}, scale {scale}");
        }
    }
}

fn models() -> Vec<(&'static str, MemorySource)> {
    let llama = TinyModel::t0(TinyFamily::Llama, 1);
    let odd = TinyModel {
        hidden: 36,
        n_heads: 3,
        n_kv_heads: 1,
        head_dim: 10,
        ffn: 50,
        ..TinyModel::t0(TinyFamily::Qwen2, 2)
    };
    vec![
        ("llama", MemorySource::new(&llama)),
        ("llama tied", MemorySource::new(&TinyModel { tied: true, ..llama.clone() })),
        ("llama without groups", MemorySource::new(&TinyModel { n_kv_heads: 4, ..llama.clone() })),
        ("llama3 scaling", MemorySource::new(&TinyModel { rope_llama3: Some((8.0, 1.0, 4.0, 64)), ..llama })),
        ("qwen2", MemorySource::new(&TinyModel::t0(TinyFamily::Qwen2, 3))),
        ("qwen2 of odd sizes", MemorySource::new(&odd)),
        ("qwen3", qwen3_like()),
        ("mistral", mistral_like()),
        ("gemma3", gemma3_like()),
    ]
}

#[test]
fn logits_equal_those_of_the_reference() {
    for (what, source) in models() {
        let tokens = ids(70, 260, 11);
        assert_close(&logits(&load(&source).unwrap(), &tokens), &source.reference().logits(&tokens), what);
    }
}

#[test]
fn attention_over_many_blocks_equals_the_reference() {
    // Three query blocks, the last one cut; more positions than one slice of logits.
    let source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 4));
    let tokens = ids(150, 260, 12);
    assert_close(&logits(&load(&source).unwrap(), &tokens), &source.reference().logits(&tokens), "150 positions");
}

#[test]
fn f04_any_split_of_a_prompt_gives_the_logits_of_one_chunk() {
    for (what, source) in models() {
        let model = load(&source).unwrap();
        let tokens = ids(40, 260, 13);
        let expected = source.reference().logits(&tokens);
        for split in [vec![40], vec![1; 40], vec![7, 33], vec![1, 39], vec![16, 16, 8]] {
            let (mut cache, mut found, mut at) = (model.new_cache(), Vec::new(), 0);
            for n in split {
                let hidden = model.forward(&tokens[at..at + n], &mut cache).unwrap();
                found.extend(model.logits(&hidden).unwrap().to_vec2::<f32>().unwrap());
                at += n;
                assert_eq!(cache.len(), at);
            }
            assert_close(&found, &expected, what);
        }
    }
}

/// Case E05: a text scored in chunks of any length, or beside other texts, has the likelihood of the text alone, within 1e-5.
#[test]
fn e05_chunks_and_company_leave_the_likelihood_as_it_is() {
    for (what, source) in models() {
        let model = load(&source).unwrap();
        let tokens = ids(100, 260, 14);
        let nll = |row: &[f32], next: u32| {
            let largest = row.iter().fold(f64::MIN, |m, v| m.max(f64::from(*v)));
            let sum: f64 = row.iter().map(|v| (f64::from(*v) - largest).exp()).sum();
            sum.ln() + largest - f64::from(row[next as usize])
        };
        let total = |rows: &[Vec<f32>]| rows.iter().zip(&tokens[1..]).map(|(row, next)| nll(row, *next)).sum::<f64>();
        let alone = total(&logits(&model, &tokens));
        let near = |found: f64, how: &str| {
            assert!((found - alone).abs() <= 1e-5 * alone, "{what}, {how}: {found} for {alone}");
        };
        for chunk in [1, 17, 512] {
            let (mut cache, mut rows) = (model.new_cache(), Vec::new());
            for part in tokens.chunks(chunk) {
                let hidden = model.forward(part, &mut cache).unwrap();
                rows.extend(model.logits(&hidden).unwrap().to_vec2::<f32>().unwrap());
            }
            near(total(&rows), &format!("chunks of {chunk}"));
        }
        for company in [1, 2, 7] {
            let others: Vec<Vec<u32>> = (0..company).map(|i| ids(30 + 9 * i, 260, 15 + i as u32)).collect();
            let branch = |tokens| TokenBranch { tokens, n_scored: 99 };
            let beside = others.iter().map(|t| TokenBranch { tokens: t, n_scored: 1 });
            let tree = TokenTree { prefix: &[], branches: beside.chain([branch(&tokens)]).collect() };
            let mut found = 0.0;
            model
                .score_trees(&[tree], &mut |at, row| {
                    if at.branch == company {
                        found += nll(row, tokens[at.index + 1]);
                    }
                })
                .unwrap();
            near(found, &format!("{company} beside"));
        }
    }
}

#[test]
fn f06_clones_are_independent_and_truncation_forgets() {
    let model = load(&MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 6))).unwrap();
    let (a, b, c) = (ids(20, 260, 1), ids(9, 260, 2), ids(9, 260, 3));
    let mut original = model.new_cache();
    model.forward(&a, &mut original).unwrap();
    let mut clone = original.clone();
    let with_b = model.forward(&b, &mut clone).unwrap().to_vec2::<f32>().unwrap();
    let with_c = model.forward(&c, &mut original).unwrap().to_vec2::<f32>().unwrap();
    original.truncate(a.len());
    assert_eq!(model.forward(&b, &mut original).unwrap().to_vec2::<f32>().unwrap(), with_b);
    clone.truncate(a.len());
    assert_eq!(model.forward(&c, &mut clone).unwrap().to_vec2::<f32>().unwrap(), with_c);
    assert!(clone.allocated_bytes() >= 2 * 2 * 29 * 32 * 4);
}

#[test]
fn scored_positions_are_those_asked_for() {
    let model = load(&MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 7))).unwrap();
    let tokens = ids(300, 260, 5);
    let all = logits(&model, &tokens);
    let mut seen = Vec::new();
    model.score(&tokens, 150..299, &mut |p, row| seen.push((p, row.to_vec()))).unwrap();
    assert_eq!(seen.iter().map(|(p, _)| *p).collect::<Vec<_>>(), (150..299).collect::<Vec<_>>());
    let scale = all.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
    assert!(seen.iter().all(|(p, row)| row.iter().zip(&all[*p]).all(|(a, b)| (a - b).abs() <= 1e-5 * scale)));
}

#[test]
fn trees_give_the_logits_of_each_sequence_by_itself() {
    for (name, source) in models() {
        let model = load(&source).unwrap();
        let (a, b, c, d) = (ids(37, 260, 1), ids(5, 260, 2), ids(90, 260, 3), ids(1, 260, 4));
        let branch = |tokens, n_scored| TokenBranch { tokens, n_scored };
        let trees = [
            TokenTree { prefix: &a, branches: vec![branch(&b, 5), branch(&c, 90), branch(&d, 1)] },
            TokenTree { prefix: &[], branches: vec![branch(&c, 3), branch(&b, 0)] },
            TokenTree { prefix: &d, branches: vec![branch(&a, 2)] },
        ];
        let mut seen = 0;
        let sequence = |tree: usize, branch: usize| [trees[tree].prefix, trees[tree].branches[branch].tokens].concat();
        let mut given = Vec::new();
        model.score_trees(&trees, &mut |token, row| given.push((token, row.to_vec()))).unwrap();
        for (token, row) in given {
            let tokens = sequence(token.tree, token.branch);
            let n_scored = trees[token.tree].branches[token.branch].n_scored;
            let alone = logits(&model, &tokens);
            let expected = &alone[tokens.len() - n_scored + token.index - 1];
            let scale = alone.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
            assert!(row.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-5 * scale), "{name}: {token:?}");
            seen += 1;
        }
        assert_eq!(seen, 5 + 90 + 1 + 3 + 2);
        let nothing_before = [TokenTree { prefix: &[], branches: vec![branch(&b, 5)] }];
        assert!(matches!(model.score_trees(&nothing_before, &mut |_, _| ()), Err(RuntimeError::Options { .. })));
        let unknown = [TokenTree { prefix: &[7, 1 << 30], branches: vec![branch(&b, 5)] }];
        assert!(matches!(model.score_trees(&unknown, &mut |_, _| ()), Err(RuntimeError::Token { position: 1, .. })));
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let source = MemorySource::new(&TinyModel::t0(TinyFamily::Qwen2, 8));
    let tokens = ids(200, 260, 6);
    let run = |n| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
        pool.install(|| logits(&load(&source).unwrap(), &tokens))
    };
    let one = run(1);
    assert!(run(2) == one && run(7) == one);
}

#[test]
fn a04_head_dim_is_stated_or_derived_or_contradicted() {
    let mut source = qwen3_like();
    assert_eq!(load(&source).unwrap().config().head_dim, 16);
    source.set_config("head_dim", json!(20));
    let error = load(&source).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor model.layers.0.self_attn.q_proj.weight: expected shape [80, 40], found [64, 40]"
    );
    assert!(matches!(error, RuntimeError::Shape { .. }));

    let derived = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 9));
    assert!(derived.config()["head_dim"].is_null());
    assert_eq!(load(&derived).unwrap().config().head_dim, 16);
}

#[test]
fn missing_tensors_and_parts_are_named() {
    let whole = || MemorySource::new(&TinyModel::t0(TinyFamily::Qwen2, 10));
    let without = |name: &str| {
        let mut source = whole();
        source.remove(name);
        load(&source).unwrap_err().to_string()
    };
    assert_eq!(
        without("model.layers.1.mlp.down_proj.weight"),
        "tensor model.layers.1.mlp.down_proj.weight is missing, expected shape [64, 176]"
    );
    assert_eq!(
        without("model.layers.0.self_attn.k_proj.bias"),
        "tensor model.layers.0.self_attn.k_proj.bias is missing, expected shape [32]"
    );
    let mut source = whole();
    source.set_config("num_hidden_layers", json!(2_000_000_000));
    assert!(
        matches!(load(&source).unwrap_err(), RuntimeError::MissingTensor { name, .. } if name.contains("layers.2."))
    );
    let mut source = whole();
    source.set_config("num_hidden_layers", json!(1));
    let message = load(&source).unwrap_err().to_string();
    assert!(
        message.contains("num_hidden_layers: expected 2")
            && message.contains("model.layers.1.")
            && message.ends_with("found 1"),
        "{message}"
    );
    let mut source = whole();
    source.set_blob("config.json", None);
    assert!(matches!(load(&source).unwrap_err(), RuntimeError::MissingPart { part, .. } if part == "config.json"));
    let mut source = whole();
    source.set_blob("tokenizer.json", None);
    let model = load(&source).unwrap();
    assert!(
        matches!(model.require_tokenizer().unwrap_err(), RuntimeError::MissingPart { part, .. } if part == "tokenizer.json")
    );
}

#[test]
fn c01_the_flag_and_the_tensors_decide_about_the_head() {
    let with = |flag: bool, head: bool| {
        let mut source = MemorySource::new(&TinyModel { tied: !head, ..TinyModel::t0(TinyFamily::Llama, 14) });
        source.set_config("tie_word_embeddings", json!(flag));
        source
    };
    let tokens = ids(5, 260, 1);
    for (flag, head) in [(true, false), (true, true), (false, true)] {
        let source = with(flag, head);
        let model = load(&source).unwrap();
        assert_close(&logits(&model, &tokens), &source.reference().logits(&tokens), "tie");
        assert_eq!(model.warnings().len(), usize::from(flag && head), "a differing stored head is worth a warning");
    }
    let source = with(false, false);
    assert!(matches!(load(&source).unwrap_err(), RuntimeError::Tie(_)));
    let forced =
        LanguageModel::from_source(&source, &LoadOptions { tie: Some(true), ..LoadOptions::default() }).unwrap();
    assert_eq!(forced.resident().heap_bytes, load(&with(true, false)).unwrap().resident().heap_bytes);
}

#[test]
fn tokens_and_contexts_out_of_range_are_refused_before_any_work() {
    let model = load(&MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 15))).unwrap();
    let mut cache = model.new_cache();
    assert_eq!(
        model.forward(&[1, 2, 260], &mut cache).unwrap_err().to_string(),
        "token 260 at position 2: expected an id below 260"
    );
    model.forward(&[1; 500], &mut cache).unwrap();
    assert_eq!(
        model.forward(&[1; 13], &mut cache).unwrap_err().to_string(),
        "context of 512 tokens: 513 were asked for (500 in the cache, 13 new)"
    );
    assert_eq!(cache.len(), 500);
    assert!(matches!(model.forward(&[], &mut cache).unwrap_err(), RuntimeError::Options { .. }));
}

#[test]
fn e04_the_first_bad_layer_is_named() {
    let tokens = ids(40, 260, 16);
    let bad = |tensor: &str, at: usize, value: f32| {
        let mut source = MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 17));
        source.tensor_mut(tensor)[at] = value;
        let mut rows = 0;
        let result = load(&source).unwrap().score(&tokens, 0..40, &mut |_, _| rows += 1);
        (result.unwrap_err().to_string(), rows)
    };
    let (message, rows) = bad("model.layers.1.mlp.up_proj.weight", 100, f32::NAN);
    assert_eq!((message.as_str(), rows), ("non-finite value at position 0: first seen in model.layers.1", 0));
    let row_of_third = tokens[3] as usize * 64;
    let (message, _) = bad("model.embed_tokens.weight", row_of_third, f32::INFINITY);
    let first = tokens.iter().position(|&t| t == tokens[3]).unwrap();
    assert_eq!(message, format!("non-finite value at position {first}: first seen in model.embed_tokens"));
    let (message, _) = bad("lm_head.weight", 5, f32::NAN);
    assert_eq!(message, "non-finite value at position 0: first seen in lm_head");
}

#[test]
fn c10_folder_and_gguf_of_the_same_weights_give_equal_logits() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = ids(65, 260, 18);
    for (i, (family, dtype)) in [TinyFamily::Llama, TinyFamily::Qwen2]
        .into_iter()
        .flat_map(|f| ["F32", "BF16", "Q8_0"].map(|d| (f, d)))
        .enumerate()
    {
        for (scaling, parts) in [(None, 1), (Some((8.0, 1.0, 4.0, 64)), 2)] {
            // The sizes are multiples of 32, so that every matrix is stored in blocks.
            let tiny = TinyModel { ffn: 160, rope_llama3: scaling, ..TinyModel::t0(family, 20) };
            let at = folder.path().join(format!("{i}-{parts}"));
            tiny.write_hf(&at.join("hf"), dtype).unwrap();
            let gguf = tiny.write_gguf(&at.join("tiny.gguf"), dtype, parts).unwrap();
            let run = |path: &std::path::Path| {
                let source = open_source(path).unwrap();
                logits(&LanguageModel::from_source(&*source, &LoadOptions::default()).unwrap(), &tokens)
            };
            let (hf, gguf) = (run(&at.join("hf")), run(&gguf[0]));
            let scale = hf.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
            // The converter writes the scaling's factors in f32; without scaling the bits are the same.
            let bound = if scaling.is_some() { 1e-4 * scale } else { 0.0 };
            for (a, b) in hf.iter().flatten().zip(gguf.iter().flatten()) {
                assert!((a - b).abs() <= bound, "{family:?} {dtype} scaled {scaling:?}: {a} {b}");
            }
        }
    }
}
