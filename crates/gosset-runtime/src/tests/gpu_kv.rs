//! Compressed caches on a CUDA device: the bytes of the processor's codec, and what attention makes of them.
//!
//! As in [`gpu`](super::gpu), each test says so and passes where there is no device.
#![allow(clippy::print_stderr, reason = "tests say what they skip and measure")]

use gosset_kv::{KvSpec, Place, Probe, Role};
use serde_json::json;

use super::gpu::{Text, assets, load, logits, on, open};
use super::{MemorySource, ids, numbers};
use crate::gpu::GpuOptions;
use crate::kv_cache::KvCache;
use crate::source::fixture::{TinyFamily, TinyModel};
use crate::source::open_source;
use crate::{GenerateOptions, LanguageModel, LoadOptions, RuntimeError, generate_with_cache};

/// Positions of a page.
const PAGE: usize = 64;

/// Heads that kernels take, in groups of two, three, eight and one, with biases, and with norms.
fn models() -> Vec<(&'static str, MemorySource)> {
    let wide = |family, head_dim, n_heads, n_kv_heads, seed| {
        let tiny = TinyModel { head_dim, n_heads, n_kv_heads, ..TinyModel::t0(family, seed) };
        let mut source = MemorySource::new(&tiny);
        source.set_config("max_position_embeddings", json!(2048));
        source
    };
    let mut normed = wide(TinyFamily::Llama, 64, 2, 2, 90);
    for layer in 0..2 {
        for part in ["q", "k"] {
            let name = format!("model.layers.{layer}.self_attn.{part}_norm.weight");
            normed.add(&name, &[64], numbers(64, 60 + layer, 1.0, 0.2));
        }
    }
    normed.set_config("architectures", json!(["Qwen3ForCausalLM"]));
    normed.set_config("model_type", json!("qwen3"));
    vec![
        ("llama, 64", wide(TinyFamily::Llama, 64, 4, 2, 91)),
        ("qwen2, 128", wide(TinyFamily::Qwen2, 128, 6, 2, 92)),
        ("one key head, 64", wide(TinyFamily::Llama, 64, 8, 1, 93)),
        ("qwen3, 64", normed),
    ]
}

fn spec(text: &str) -> KvSpec {
    text.parse().unwrap()
}

fn cache(model: &LanguageModel, text: &str, probe: &Probe) -> KvCache {
    model.new_kv_cache(&spec(text), Some(probe)).unwrap()
}

/// Logits of tokens that go in one by one, as a generation has them: from the third on by a graph.
fn by_steps(model: &LanguageModel, cache: &mut KvCache, tokens: &[u32]) -> Vec<Vec<f32>> {
    tokens.iter().map(|token| model.next_logits(&[*token], cache, 512, &mut || false).unwrap()).collect()
}

/// Logits of tokens that go in `n` at a time.
fn by_chunks(model: &LanguageModel, cache: &mut KvCache, tokens: &[u32], n: usize) -> Vec<Vec<f32>> {
    let of_chunk = |chunk: &[u32]| {
        let hidden = model.forward(chunk, cache).unwrap();
        model.logits(&hidden).unwrap().to_vec2::<f32>().unwrap()
    };
    tokens.chunks(n).flat_map(of_chunk).collect()
}

/// Mean squared difference.
fn error(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    assert_eq!(a.len(), b.len());
    let squares: Vec<f64> =
        a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| f64::from(a - b) * f64::from(a - b)).collect();
    squares.iter().sum::<f64>() / squares.len() as f64
}

#[test]
fn gpu_pages_are_those_of_the_processor_byte_for_byte() {
    let Some(gpu) = open() else { return };
    for (name, source) in models() {
        let model = load(&source, &on(&gpu, GpuOptions::default().context(256)));
        let probe = model.kv_probe(256).unwrap();
        let shape = model.kv_shape();
        for text in ["shift-10@3", "shift-12@2.25,k@1.75", "shift-10@4.5,window=10,sinks=3"] {
            let spec = spec(text);
            let mut cache = model.new_kv_cache(&spec, Some(&probe)).unwrap();
            let (sinks, window) = (spec.policy.sinks, spec.policy.window);
            let (mut n_pages, mut n_bytes) = (0, 0);
            for chunk in ids(400, 260, 11).chunks(50) {
                let due = n_pages..cache.len().saturating_sub(sinks + window) / PAGE;
                let places = (0..shape.layers as u32)
                    .flat_map(|layer| (0..shape.kv_heads as u32).map(move |head| (layer, head)))
                    .flat_map(|(layer, head)| [Role::Key, Role::Value].map(|role| Place { layer, role, head }));
                // Exact vectors before the pass that seals them.
                let vectors: Vec<(Place, usize, Vec<f32>)> = places
                    .flat_map(|place| due.clone().map(move |page| (place, page)))
                    .map(|(place, page)| {
                        let first = sinks + page * PAGE;
                        let state = cache.device.state.as_ref().unwrap();
                        (place, page, state.coded().unwrap().exact_rows(&gpu, place, first..first + PAGE))
                    })
                    .collect();
                model.forward(chunk, &mut cache).unwrap();
                let state = cache.device.state.as_ref().unwrap();
                for (place, page, vectors) in vectors {
                    let [found, expected] = state.coded().unwrap().page(&gpu, place, page, &vectors);
                    let differ = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
                    assert!(
                        found == expected,
                        "{name}, {text}, {place:?}, page {page}: {differ} of {} bytes",
                        found.len()
                    );
                    n_bytes += found.len();
                }
                n_pages = due.end;
            }
            assert!(n_pages >= 4);
            eprintln!("{name}, {text}: {n_bytes} bytes of {n_pages} pages");
        }
    }
}

#[test]
fn gpu_logits_from_a_compressed_cache_lose_no_more_than_on_the_processor() {
    let Some(gpu) = open() else { return };
    for (name, source) in models() {
        let cpu = load(&source, &LoadOptions::default());
        let model = load(&source, &on(&gpu, GpuOptions::default()));
        let probe = cpu.kv_probe(256).unwrap();
        let tokens = ids(330, 260, 12);
        let exact = logits(&cpu, &tokens);
        // What weights and caches in f16 lose.
        let floor = error(&logits(&model, &tokens), &exact);
        for text in ["shift-10@4", "shift-12@2.25", "shift-10@3,window=40,sinks=3"] {
            let noise = error(&by_chunks(&cpu, &mut cache(&cpu, text, &probe), &tokens, 50), &exact);
            let steps = by_steps(&model, &mut cache(&model, text, &probe), &tokens);
            let chunks = by_chunks(&model, &mut cache(&model, text, &probe), &tokens, PAGE);
            let (of_steps, of_chunks) = (error(&steps, &exact), error(&chunks, &exact));
            let between = error(&steps, &chunks);
            eprintln!(
                "{name}, {text}: f16 {floor:.2e}, coded on the CPU {noise:.2e}, steps {of_steps:.2e}, chunks {of_chunks:.2e}, between \
                 the two {between:.2e}"
            );
            // Open pages are exact on the device.
            assert!(of_steps <= 1.2 * noise + 2.0 * floor, "{name}, {text}");
            assert!(of_chunks <= 1.2 * noise + 2.0 * floor, "{name}, {text}");
            assert!(of_steps > floor, "{name}, {text}: nothing was coded");
            if !text.contains("window") {
                // The same positions are in code: what differs is which of two near paths a vector took.
                assert!(between <= 0.02 * noise + 2.0 * floor, "{name}, {text}");
            }
        }
    }
}

#[test]
fn gpu_rewinds_of_a_compressed_cache_leave_no_trace() {
    let Some(gpu) = open() else { return };
    let (_, source) = models().remove(0);
    let model = load(&source, &on(&gpu, GpuOptions::default()));
    let probe = model.kv_probe(256).unwrap();
    let (first, second) = (ids(330, 260, 13), ids(330, 260, 14));
    let exact = logits(&model, &second[..250]);
    for text in ["shift-10@3", "shift-10@3,window=40,sinks=3"] {
        let fresh = |tokens: &[u32]| by_steps(&model, &mut cache(&model, text, &probe), tokens);
        let noise = error(&fresh(&second[..250]), &exact);
        for kept in [329, 300, 260, 130, 100, 64, 10, 1, 0] {
            let mut cache = cache(&model, text, &probe);
            by_steps(&model, &mut cache, &first);
            cache.truncate(kept);
            assert_eq!(cache.len(), kept);
            let tokens = [&first[..kept], &second[..40]].concat();
            let found = by_steps(&model, &mut cache, &second[..40]);
            let expected = &fresh(&tokens)[kept..];
            let difference = error(&found, expected);
            eprintln!("{text}, back to {kept}: {difference:.2e} of {noise:.2e}");
            if kept >= 260 {
                // The ring still has what was exact.
                assert_eq!(found, expected, "{text}, back to {kept}");
            } else {
                // A page, or all, went through the model again, several tokens at once.
                assert!(difference <= noise, "{text}, back to {kept}: {difference:.2e} of {noise:.2e}");
            }
        }
    }
}

#[test]
fn gpu_room_of_a_compressed_cache_grows_without_a_trace() {
    let Some(gpu) = open() else { return };
    for (name, source) in models() {
        let (small, large) = (GpuOptions::default().context(64), GpuOptions::default().context(2048));
        let [small, large] = [small, large].map(|options| load(&source, &on(&gpu, options)));
        let probe = large.kv_probe(256).unwrap();
        let tokens = ids(700, 260, 15);
        for text in ["shift-10@3", "shift-12@2.25,window=100,sinks=7"] {
            let run = |model: &LanguageModel| {
                let mut cache = cache(model, text, &probe);
                let mut found = vec![model.next_logits(&tokens[..300], &mut cache, 512, &mut || false).unwrap()];
                found.extend(by_steps(model, &mut cache, &tokens[300..500]));
                found.extend(by_chunks(model, &mut cache, &tokens[500..], 100));
                (found, cache)
            };
            let ((found, cache), (expected, _)) = (run(&small), run(&large));
            assert_eq!(found, expected, "{name}, {text}");
            // What is not held by pages, sinks and ring is room for more.
            let memory = cache.memory().unwrap();
            assert_eq!(memory.total(), cache.allocated_bytes() as u64);
            let KvSpec { key, value, policy, .. } = spec(text);
            let d = small.kv_shape().head_dim as f64;
            let bits = |rate: f64| ((rate * d + 1e-6) / 16.0).floor() * 16.0 / d;
            let page = (bits(key.rate) + bits(value.rate)) / 2.0;
            assert!((memory.page_bits_per_value() - page).abs() < 1e-9, "{text}: {memory}");
            // As many as the last pass, of 100 rows, found.
            let sealed = (600 - policy.sinks - policy.window) / PAGE;
            assert_eq!(memory.pages, (sealed * small.kv_shape().layers) as u64, "{text}");
            assert_eq!(memory.positions, (700 * small.kv_shape().layers) as u64);
        }
    }
}

/// Greedy tokens after `prompt`.
fn greedy(model: &LanguageModel, cache: &mut KvCache, prompt: &[u32]) -> Vec<u32> {
    let options = GenerateOptions { ignore_model_stop_ids: true, ..GenerateOptions::greedy(100) };
    generate_with_cache(model, cache, prompt, &options, &mut Text(String::new())).unwrap().tokens
}

/// Index and lead of the largest logit.
fn best(row: &[f32]) -> (usize, f32) {
    let (mut at, mut best, mut next) = (0, f32::MIN, f32::MIN);
    for (i, &v) in row.iter().enumerate() {
        if v > best {
            (at, best, next) = (i, v, best);
        } else if v > next {
            next = v;
        }
    }
    (at, best - next)
}

#[test]
fn gpu_greedy_choices_from_a_compressed_cache_are_the_uncompressed_ones_at_a_high_rate() {
    const SPEC: &str = "shift-12@5,k@5,sinks=4";
    /// Of logits: one token is likelier than any other by a factor of e.
    const CLEAR: f32 = 1.0;
    let Some(path) = assets() else { return };
    let source = open_source(&path).unwrap();
    let cpu = load(source.as_ref(), &LoadOptions::default());
    let gpu = open().map(|gpu| load(source.as_ref(), &on(&gpu, GpuOptions::default())));
    let tokenizer = cpu.require_tokenizer().unwrap();
    let probe = cpu.kv_probe(1024).unwrap();
    let (mut clear, mut all, mut equal) = (0, 0, 0);
    for text in TEXTS {
        let prompt = tokenizer.encode(&text.repeat(4)).unwrap();
        let made = greedy(&cpu, &mut cpu.new_cache(), &prompt);
        let tokens = [&prompt[..], &made].concat();
        let expected = logits(&cpu, &tokens);
        for model in [Some(&cpu), gpu.as_ref()].into_iter().flatten() {
            let mut coded = cache(model, SPEC, &probe);
            // As a generation has them: the prompt at once, then step by step.
            let (first, rest) = tokens.split_at(prompt.len());
            let mut found = vec![model.next_logits(first, &mut coded, 512, &mut || false).unwrap()];
            found.extend(by_steps(model, &mut coded, rest));
            for (found, expected) in found.iter().zip(&expected[prompt.len() - 1..]) {
                let ((choice, _), (wanted, lead)) = (best(found), best(expected));
                assert!(choice == wanted || lead < CLEAR, "{text:?}: {choice}, not {wanted}, which leads by {lead}");
                (clear, all) = (clear + usize::from(lead >= CLEAR), all + 1);
                equal += usize::from(choice == wanted);
            }
            assert!(coded.memory().unwrap().pages > 0, "nothing was coded");
        }
        let Some(model) = &gpu else { continue };
        // A next turn goes on from what is held, a clone computes everything again, an emptied cache starts anew.
        let mut coded = cache(model, SPEC, &probe);
        let found = greedy(model, &mut coded, &prompt);
        let mut clone = coded.clone();
        assert_eq!(clone.len(), prompt.len() + found.len() - 1);
        let history = [&prompt[..], &found, &prompt[..20]].concat();
        let n_reused = clone.keep_common_start(&history[..history.len() - 1]);
        assert_eq!(n_reused, prompt.len() + found.len() - 1);
        assert_eq!(greedy(model, &mut clone, &history).len(), greedy(model, &mut coded, &history).len());
        let mut emptied = coded.emptied();
        assert_eq!((emptied.len(), emptied.memory().unwrap().total()), (0, 0));
        assert_eq!(greedy(model, &mut emptied, &prompt), found);
        coded.truncate(0);
        assert_eq!(greedy(model, &mut coded, &prompt), found);
    }
    eprintln!("{equal} of {all} choices are equal, {clear} of them clear");
    assert!(10 * equal >= 9 * all && clear >= 30, "{equal} of {all}, {clear} clear");
}

/// Each in its own words, repeated so that prompts are longer than pages.
const TEXTS: [&str; 3] = [
    "The old house stood at the end of the road, and nobody had lived in it for years. ",
    "Once upon a time there was a king who had three sons, and the youngest was the wisest. ",
    "In the year of the great storm the ships stayed in the harbour until the spring came. ",
];

#[test]
fn gpu_probes_are_those_of_the_processor() {
    /// Weights in f16, of which sums of a few hundred are taken, two layers deep.
    const CLOSE: f64 = 5e-3;
    let Some(gpu) = open() else { return };
    for (name, source) in models() {
        let expected = load(&source, &LoadOptions::default()).kv_probe(512).unwrap();
        let model = load(&source, &on(&gpu, GpuOptions::default()));
        let found = model.kv_probe(512).unwrap();
        assert_eq!((found.tokens(), found.turns()), (expected.tokens(), expected.turns()));
        for layer in 0..2 {
            for head in 0..model.kv_shape().kv_heads {
                let (a, b) = (found.head(layer, head).unwrap(), expected.head(layer, head).unwrap());
                for (what, a, b) in [
                    ("means", &a.mean, &b.mean),
                    ("covariances", &a.covariance, &b.covariance),
                    ("energies", &a.query_energy, &b.query_energy),
                ] {
                    let scale = b.iter().fold(0f64, |m, v| m.max(v.abs()));
                    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f64, f64::max);
                    assert!(worst <= CLOSE * scale, "{name}, layer {layer}, head {head}: {what} {worst} of {scale}");
                }
            }
        }
        let means = |model: &LanguageModel| model.key_means().unwrap().layers.len();
        assert_eq!(means(&model), 2);
    }
}

#[test]
fn gpu_refuses_caches_that_it_cannot_keep_and_says_which_it_can() {
    let Some(gpu) = open() else { return };
    let refused = |model: &LanguageModel, text: &str| {
        let probe = model.kv_probe(64).unwrap();
        match model.new_kv_cache(&spec(text), Some(&probe)) {
            Err(error @ RuntimeError::KvDevice { .. }) => error.to_string(),
            other => panic!("{text}: {other:?}"),
        }
    };
    let narrow = load(&MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 94)), &on(&gpu, GpuOptions::default()));
    assert!(refused(&narrow, "shift-10@3").contains("heads of 16"));
    let model = load(&models().remove(0).1, &on(&gpu, GpuOptions::default()));
    for (text, word) in [("e8@3", "e8"), ("shift-10@3,frame=probe", "frame=probe"), ("shift-10@3,page=16", "page=16")] {
        let message = refused(&model, text);
        assert!(message.contains(word) && message.contains("shift-10@3"), "{message}");
        assert!(model.kv_gap(&spec(text)).is_some());
    }
    assert_eq!(model.kv_gap(&spec("shift-10@3")), None);
}

#[test]
fn gpu_passes_that_are_stopped_leave_a_compressed_cache_as_it_was() {
    let Some(gpu) = open() else { return };
    let (_, source) = models().remove(0);
    let model = load(&source, &on(&gpu, GpuOptions::default()));
    let probe = model.kv_probe(256).unwrap();
    let (first, long) = (ids(200, 260, 16), ids(600, 260, 17));
    let run = |stopped: bool| {
        let mut cache = cache(&model, "shift-10@3", &probe);
        by_steps(&model, &mut cache, &first);
        if stopped {
            let mut patience = 3;
            let result = model.next_logits(&long, &mut cache, 512, &mut || {
                patience -= 1;
                patience == 0
            });
            assert!(matches!(result, Err(RuntimeError::Cancelled)));
            assert_eq!(cache.tokens(), first);
        }
        by_chunks(&model, &mut cache, &long[..10], 10)
    };
    let exact = logits(&model, &[&first[..], &long[..10]].concat());
    let (found, expected) = (run(true), run(false));
    // What the ring has lost went through the model again.
    assert!(error(&found, &expected) <= error(&expected, &exact[200..]));
}
