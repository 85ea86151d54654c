//! Perplexities of T0 against values computed by hand: in f64, by another forward pass, window by window.

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;

use gosset_eval::{
    BosPolicy, NllSum, PplProtocol, PplRecord, Provenance, Scored, Tail, TextJoin, evaluate, join_rows, sha256_hex,
    sha256_ids,
};
use gosset_runtime::source::open_source;
use gosset_runtime::text::Tokenizer;
use gosset_tests::t0::{T0, byte_tokenizer};
use rayon::prelude::*;

use crate::checkpoint::{Folder, Lm, e8, load, load_source, perplexity, quantize, reference, reference_of, windows};
use crate::reference::Reference;

/// The acceptance bound on a perplexity, relative.
const TOLERANCE: f64 = 1e-6;

/// About 5000 bytes of lines that repeat with changes, some of them empty: exactly 5000 tokens for the byte tokenizer.
fn synthetic_text() -> String {
    let mut text = String::new();
    for i in 0.. {
        text += &match i % 7 {
            0 => format!(" = Section {i} = \n"),
            1 | 4 => " \n".to_owned(),
            k => format!(" The {i}th of {} lines é says {} \n", i * k, "na ".repeat(k)),
        };
        if text.len() >= 5000 {
            break;
        }
    }
    let mut end = 5000;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text + &"x".repeat(5000 - end)
}

/// NLLs by span of the stream, computed once per span.
struct ByHand {
    reference: Reference,
    tokens: Vec<u32>,
    spans: HashMap<(usize, usize), Vec<f64>>,
}

impl ByHand {
    fn fill(&mut self, spans: &[(usize, usize)]) {
        let new: Vec<_> = spans.iter().filter(|span| !self.spans.contains_key(span)).collect();
        let (reference, tokens) = (&self.reference, &self.tokens);
        let computed: Vec<_> = new.par_iter().map(|&&(a, b)| ((a, b), reference.nlls(&tokens[a..b]))).collect();
        self.spans.extend(computed);
    }

    /// All NLLs that a protocol counts: each token in the first window that may score it, each window from an empty context.
    fn nlls(&mut self, p: &PplProtocol, n_windows: usize) -> Vec<f64> {
        let n = self.tokens.len();
        let starts = (0..).map(|i| i * p.stride).take(n_windows);
        let mut spans = Vec::new();
        for start in starts {
            let end = (start + p.window).min(n);
            if end - start < p.window && (p.tail == Tail::Drop || end - start < 2) {
                break;
            }
            spans.push((start, end));
            if end == n {
                break;
            }
        }
        self.fill(&spans);
        let (mut done, mut out) = (0, Vec::new());
        for (start, end) in spans {
            for target in done.max(start + 1)..end {
                if p.scored == Scored::All || target - 1 - start >= p.window / 2 {
                    out.push(self.spans[&(start, end)][target - 1 - start]);
                }
            }
            done = end;
        }
        out
    }
}

#[test]
fn e02_perplexities_of_t0_equal_the_hand_values() {
    let folder = Folder::new();
    let from = folder.t0("t0", &T0::llama());
    let (container, _) = quantize(&from, &e8(4.0), &folder.path("t0.gosset"));
    let tokens = load_source(&from).require_tokenizer().unwrap().encode(&synthetic_text()).unwrap();
    assert_eq!(tokens.len(), 5000);
    for (model, reference) in [(load_source(&from), reference(&from)), (load(&container), reference_of(&container))] {
        let mut hand = ByHand { reference, tokens: tokens.clone(), spans: HashMap::new() };
        for window in [128, 256] {
            // A stride of one token takes thousands of windows; the first few of them show it.
            for (stride, n) in [(window, usize::MAX), (window / 2, usize::MAX), (1, 12)] {
                for (scored, tail) in
                    [(Scored::All, Tail::Keep), (Scored::All, Tail::Drop), (Scored::SecondHalf, Tail::Keep)]
                {
                    let p = windows(window, stride, scored, tail);
                    let nlls = hand.nlls(&p, n);
                    let found = perplexity(&model, &tokens, &p, (n != usize::MAX).then_some(n)).unwrap();
                    let total: f64 = nlls.iter().sum();
                    assert_eq!(found.tokens_scored, nlls.len(), "{p}");
                    assert!((found.total_nll / total - 1.0).abs() < TOLERANCE, "{p}: {} for {total}", found.total_nll);
                    let ppl = (total / nlls.len() as f64).exp();
                    assert!((found.ppl / ppl - 1.0).abs() < TOLERANCE, "{p}: {} for {ppl}", found.ppl);
                }
            }
        }
    }
}

#[test]
fn e02_the_record_of_a_run_says_what_was_measured_how() {
    let folder = Folder::new();
    let from = folder.t0("t0", &T0::llama());
    let model = load_source(&from);
    let text = synthetic_text();
    let tokenizer = model.require_tokenizer().unwrap();
    // Two joins of one text are two token lists and two figures.
    let lists = [TextJoin::Raw, TextJoin::GptqRows].map(|join| tokenizer.encode(&join_rows(&text, join)).unwrap());
    assert!(lists[1].len() > lists[0].len());
    let p = windows(128, 128, Scored::All, Tail::Drop);
    let results = lists.each_ref().map(|tokens| perplexity(&model, tokens, &p, None).unwrap());
    assert_ne!(results[0].ppl, results[1].ppl);
    let record = PplRecord {
        provenance: Provenance {
            model: "t0".to_owned(),
            text_sha256: sha256_hex(text.as_bytes()),
            tokenizer_sha256: tokenizer.sha256().to_owned(),
            token_ids_sha256: sha256_ids(&lists[0]),
            dtype: "f32".to_owned(),
            device: "cpu".to_owned(),
        },
        protocol: p,
        result: results[0].clone(),
    };
    let json = serde_json::to_value(&record).unwrap();
    for (pointer, expected) in [
        ("/result/tokens", 5000),
        ("/result/tokens_scored", 39 * 127),
        ("/result/window", 128),
        ("/result/stride", 128),
    ] {
        assert_eq!(json.pointer(pointer).and_then(serde_json::Value::as_u64), Some(expected), "{pointer}");
    }
    for (pointer, expected) in [
        ("/result/bos", "none"),
        ("/result/tail", "drop"),
        ("/dtype", "f32"),
        ("/device", "cpu"),
        ("/tokenizer_sha256", &sha256_hex(byte_tokenizer().as_bytes())),
    ] {
        assert_eq!(json.pointer(pointer).and_then(serde_json::Value::as_str), Some(expected), "{pointer}");
    }
    assert_eq!(json.pointer("/result/total_nll").and_then(serde_json::Value::as_f64), Some(record.result.total_nll));
}

/// T0's tokenizer with a post-processor that puts `<s>` in front of every text.
fn adding_tokenizer() -> String {
    let bos = r#"{"SpecialToken":{"id":"<s>","type_id":0}}"#;
    let template = format!(
        r#""post_processor":{{"type":"TemplateProcessing","single":[{bos},{{"Sequence":{{"id":"A","type_id":0}}}}],"pair":[{bos},{{"Sequence":{{"id":"A","type_id":0}}}},{{"Sequence":{{"id":"B","type_id":0}}}}],"special_tokens":{{"<s>":{{"id":"<s>","ids":[256],"tokens":["<s>"]}}}}}}"#
    );
    let plain = byte_tokenizer();
    assert!(plain.contains("\"post_processor\":null"));
    plain.replace("\"post_processor\":null", &template)
}

#[test]
fn e01_bos_follows_the_family_and_the_policy_and_never_doubles() {
    let folder = Folder::new();
    let (a, b) = (u32::from(b'a'), u32::from(b'b'));
    // (a) the tokenizer adds the BOS, (b) the configuration has one that nobody adds, (c) there is none.
    for (case, tokenizer, has_bos) in
        [("added", adding_tokenizer(), true), ("defined", byte_tokenizer(), true), ("none", byte_tokenizer(), false)]
    {
        let from = folder.t0(case, &T0::llama());
        fs::write(from.join("tokenizer.json"), &tokenizer).unwrap();
        if !has_bos {
            let config = T0::llama().config().replace("  \"bos_token_id\": 256,\n", "");
            fs::write(from.join("config.json"), config).unwrap();
            fs::remove_file(from.join("generation_config.json")).unwrap();
        }
        let (container, _) = quantize(&from, &e8(4.0), &folder.path(&format!("{case}.gosset")));
        let model = load(&container);
        let tokenizer = model.require_tokenizer().unwrap();
        let auto = tokenizer.leading_ids().first().copied();
        assert_eq!(auto, (case == "added").then_some(256));
        let bos = auto.or(model.config().bos_token_id);
        assert_eq!(bos, has_bos.then_some(256));
        // Ids never hold what the tokenizer would add; a text that spells the BOS is that token, once.
        assert_eq!(tokenizer.encode("abab").unwrap(), [a, b, a, b]);
        assert_eq!(tokenizer.encode("<s>aba").unwrap(), [256, a, b, a]);
        let seen = |text: &str, protocol: &PplProtocol| {
            let ids = tokenizer.encode(text).unwrap();
            let mut lm = Lm::new(&model);
            let result = evaluate(&mut lm, &ids, bos, protocol, None, &mut |_| ControlFlow::Continue(())).unwrap();
            let asked: Vec<_> = lm.asked.iter().map(|(tokens, _)| tokens.clone()).collect();
            for (tokens, positions) in &lm.asked {
                assert!(tokens.windows(2).all(|pair| pair != [256, 256]), "two BOS in {tokens:?}");
                assert!(positions.clone().all(|p| tokens[p + 1] != 256), "the BOS is scored in {tokens:?}");
            }
            (asked, result.bos, result.tokens_scored)
        };
        let of = |bos| PplProtocol { bos, ..windows(3, 3, Scored::All, Tail::Keep) };
        let plain = vec![vec![a, b, a], vec![b, a, b]];
        assert_eq!(seen("ababab", &of(BosPolicy::None)), (plain.clone(), BosPolicy::None, 4));
        for text in ["ababab", "<s>ababab"] {
            if has_bos {
                let once = vec![vec![256, a, b], vec![a, b, a]];
                assert_eq!(seen(text, &of(BosPolicy::Once)), (once, BosPolicy::Once, 4), "{case} {text}");
                let each = vec![vec![256, a, b], vec![256, b, a]];
                assert_eq!(seen(text, &of(BosPolicy::EachWindow)), (each, BosPolicy::EachWindow, 4), "{case} {text}");
            }
        }
        if !has_bos {
            assert_eq!(seen("ababab", &of(BosPolicy::Once)), (plain.clone(), BosPolicy::None, 4));
            assert_eq!(seen("ababab", &of(BosPolicy::EachWindow)), (plain, BosPolicy::None, 4));
        }
        // The default of a family: each window where the tokenizer adds one, none elsewhere.
        let family = of(BosPolicy::EachWindow).for_family(auto.is_some());
        assert_eq!(seen("ababab", &family).1, if auto.is_some() { BosPolicy::EachWindow } else { BosPolicy::None });
        assert!(family.to_string().contains(if auto.is_some() { "BOS in each window" } else { "no BOS" }), "{family}");
    }
}

#[test]
fn e02_the_mean_is_over_the_corpus_from_a_container_too() {
    let folder = Folder::new();
    let from = folder.t0("qwen", &T0::qwen2());
    let (container, _) = quantize(&from, &e8(3.0), &folder.path("qwen.gosset"));
    let source = open_source(&from).unwrap();
    let tokens =
        Tokenizer::from_bytes(source.blob("tokenizer.json").unwrap()).unwrap().encode(&synthetic_text()).unwrap();
    let tokens = &tokens[..140];
    // One whole window and a tail of twelve: the mean over tokens is not the mean of the two windows.
    let found = perplexity(&load(&container), tokens, &windows(128, 128, Scored::All, Tail::Keep), None).unwrap();
    let reference = reference_of(&container);
    let mut sum = NllSum::default();
    for part in [&tokens[..128], &tokens[128..]] {
        reference.nlls(part).into_iter().for_each(|nll| sum.push(nll));
    }
    assert_eq!(found.tokens_scored, 127 + 11);
    assert!((found.ppl / sum.ppl() - 1.0).abs() < TOLERANCE, "{} for {}", found.ppl, sum.ppl());
    assert!((found.ppl_sigma / sum.ppl_sigma() - 1.0).abs() < 1e-4);
}

#[test]
fn a06_perplexity_keeps_the_full_softmax_over_rows_without_a_token() {
    let folder = Folder::new();
    let t0 = T0 { vocab: 320, ..T0::llama() };
    // The last sixty rows win every argmax, so leaving them out would change every figure.
    let from = folder.changed("wide", &t0, |tensors| {
        tensors[0].values[260 * 64..].iter_mut().for_each(|v| *v *= 64.0);
    });
    let (container, _) = quantize(&from, &e8(4.0), &folder.path("wide.gosset"));
    assert_eq!(container.entry("model.embed_tokens.weight").unwrap().shape(), [320, 64]);
    let model = load(&container);
    let tokens = &model.require_tokenizer().unwrap().encode(&synthetic_text()).unwrap()[..256];
    let found = perplexity(&model, tokens, &windows(256, 256, Scored::All, Tail::Drop), None).unwrap();
    let reference = reference_of(&container);
    let expected: f64 = reference.nlls(tokens).iter().sum();
    assert!((found.total_nll / expected - 1.0).abs() < TOLERANCE, "{} for {expected}", found.total_nll);
    let rows = reference.forward(tokens).logits;
    let known: f64 = rows
        .iter()
        .zip(&tokens[1..])
        .map(|(row, &next)| row[..260].iter().map(|l| l.exp()).sum::<f64>().ln() - row[next as usize])
        .sum();
    assert!(found.total_nll > known + 1.0, "{} with, {known} without the rows", found.total_nll);
}
