//! Perplexities of small models whose answers are known by other means.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    error::Error,
    ops::{ControlFlow, Range},
};

use gosset_eval::{
    BosPolicy, CausalLm, EvalError, NllSum, PplProtocol, PplRecord, Provenance, Scored, Tail, TokenStream, evaluate,
};

/// Hand-computed values and ours may differ by rounding in f32 logits only.
const TOLERANCE: f64 = 1e-6;
const VOCAB: usize = 7;
const BOS: u32 = 6;

/// Logit of `next` after the last two tokens and the position: enough to notice a wrong context, a wrong shift or a stale cache.
fn logit(before: Option<u32>, last: u32, position: usize, next: u32) -> f32 {
    let before = before.map_or(11, |t| t as usize);
    let mix = before * 31 + last as usize * 17 + position * 5 + next as usize * 13;
    ((mix * 2_654_435_761) % 97) as f32 / 32.0
}

/// A model that answers from [`logit`] and remembers what it was asked.
#[derive(Default)]
struct TableLm {
    asked: Vec<(Vec<u32>, Range<usize>)>,
    bad: Option<(usize, f32)>,
}

impl CausalLm for TableLm {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn score(
        &mut self,
        tokens: &[u32],
        positions: Range<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.asked.push((tokens.to_vec(), positions.clone()));
        for p in positions {
            let mut row: Vec<f32> =
                (0..VOCAB as u32).map(|next| logit(p.checked_sub(1).map(|q| tokens[q]), tokens[p], p, next)).collect();
            match self.bad {
                Some((window, value)) if self.asked.len() == window && p == 9 => row[4] = value,
                _ => {}
            }
            sink(p, &row);
        }
        Ok(())
    }
}

/// NLL of one token by the textbook formula, from the window it is scored in.
fn hand_nll(window: &[u32], target: usize) -> f64 {
    let p = target - 1;
    let l = |next| f64::from(logit(p.checked_sub(1).map(|q| window[q]), window[p], p, next));
    let z: f64 = (0..VOCAB as u32).map(|next| l(next).exp()).sum();
    z.ln() - l(window[target])
}

fn text(n: usize) -> Vec<u32> {
    (0..n as u64).map(|i| ((i * i * 7 + i * 3 + i / 5) % 6) as u32).collect()
}

fn run(lm: &mut dyn CausalLm, tokens: &[u32], bos: Option<u32>, p: &PplProtocol) -> gosset_eval::PplResult {
    evaluate(lm, tokens, bos, p, None, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn protocol(window: usize, stride: usize, bos: BosPolicy, scored: Scored, tail: Tail) -> PplProtocol {
    PplProtocol { window, stride, bos, scored, tail, ..PplProtocol::default() }
}

#[test]
fn e02_perplexity_equals_the_hand_value_for_every_window_stride_and_tail() {
    let tokens = text(5000);
    let n = tokens.len();
    for window in [128, 256] {
        for stride in [window, window / 2, 1] {
            for tail in [Tail::Drop, Tail::Keep] {
                for scored in [Scored::All, Scored::SecondHalf] {
                    // The naive account: a token belongs to the first window that may score it.
                    let mut done = vec![false; n];
                    let mut hand = Vec::new();
                    let mut start = 0;
                    loop {
                        let end = (start + window).min(n);
                        if end - start < window && tail == Tail::Drop {
                            break;
                        }
                        for (t, &seen) in done.iter().enumerate().take(end).skip(start + 1) {
                            let position = t - 1 - start;
                            if !seen && (scored == Scored::All || position >= window / 2) {
                                hand.push(hand_nll(&tokens[start..end], t - start));
                            }
                        }
                        done[start..end].fill(true);
                        if end == n {
                            break;
                        }
                        start += stride;
                    }
                    let p = protocol(window, stride, BosPolicy::None, scored, tail);
                    let got = run(&mut TableLm::default(), &tokens, None, &p);
                    let mean = hand.iter().sum::<f64>() / hand.len() as f64;
                    assert_eq!(got.tokens_scored, hand.len(), "{p}");
                    assert!((got.total_nll - hand.iter().sum::<f64>()).abs() < TOLERANCE, "{p}");
                    assert!((got.ppl - mean.exp()).abs() < TOLERANCE, "{p}");
                    let variance = hand.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (hand.len() - 1) as f64;
                    let sigma = (variance / hand.len() as f64).sqrt() * mean.exp();
                    assert!((got.ppl_sigma - sigma).abs() < TOLERANCE, "{p}");
                    assert_eq!((got.tokens, got.window, got.stride, got.tail), (n, window, stride, tail));
                }
            }
        }
    }
}

#[test]
fn e02_the_mean_is_over_tokens_not_over_windows() {
    // Two full windows and a tail of 3 tokens: a mean of window means would weigh the tail's 2 tokens like 15.
    let tokens = text(35);
    let p = protocol(16, 16, BosPolicy::None, Scored::All, Tail::Keep);
    let got = run(&mut TableLm::default(), &tokens, None, &p);
    assert_eq!((got.windows, got.tokens_scored), (3, 32));
    let mut all = NllSum::default();
    for (a, b) in [(0, 16), (16, 32), (32, 35)] {
        (1..b - a).for_each(|t| all.push(hand_nll(&tokens[a..b], t)));
    }
    assert!((got.ppl - all.ppl()).abs() < TOLERANCE);
    // Cumulative results are the perplexities of the prefixes of whole windows.
    for w in &got.per_window {
        let limited =
            evaluate(&mut TableLm::default(), &tokens, None, &p, Some(w.window), &mut |_| ControlFlow::Continue(()));
        assert_eq!(limited.unwrap().ppl, w.cumulative_ppl);
    }
}

#[test]
fn e01_bos_policies_give_the_hand_written_token_lists() {
    let tokens = [0, 1, 2, 3, 4, 5, 0, 1];
    let seen = |bos, policy| {
        let mut lm = TableLm::default();
        let p = protocol(4, 4, policy, Scored::All, Tail::Keep);
        let result = run(&mut lm, &tokens, bos, &p);
        (lm.asked.into_iter().map(|(t, _)| t).collect::<Vec<_>>(), result)
    };
    let (windows, result) = seen(Some(BOS), BosPolicy::None);
    assert_eq!(windows, [vec![0, 1, 2, 3], vec![4, 5, 0, 1]]);
    assert_eq!((result.bos, result.bos_id, result.stream_tokens), (BosPolicy::None, None, 8));

    let (windows, result) = seen(Some(BOS), BosPolicy::Once);
    // The last token is a window of its own and predicts nothing, so it is not run.
    assert_eq!(windows, [vec![BOS, 0, 1, 2], vec![3, 4, 5, 0]]);
    assert_eq!((result.bos, result.bos_id, result.stream_tokens), (BosPolicy::Once, Some(BOS), 9));

    let (windows, result) = seen(Some(BOS), BosPolicy::EachWindow);
    assert_eq!(windows, [vec![BOS, 0, 1, 2], vec![BOS, 4, 5, 0]]);
    assert_eq!((result.tokens, result.tokens_scored), (8, 6));

    // A tokenizer without a BOS works under every policy, and the record says that none was used.
    for policy in [BosPolicy::None, BosPolicy::Once, BosPolicy::EachWindow] {
        let (windows, result) = seen(None, policy);
        assert_eq!(windows, [vec![0, 1, 2, 3], vec![4, 5, 0, 1]]);
        assert_eq!((result.bos, result.bos_id), (BosPolicy::None, None));
    }
}

#[test]
fn e01_a_text_that_begins_with_the_bos_gets_no_second_one_and_it_is_not_scored() {
    let mut tokens = vec![BOS];
    tokens.extend(text(31));
    for policy in [BosPolicy::None, BosPolicy::Once, BosPolicy::EachWindow] {
        let mut lm = TableLm::default();
        let p = protocol(8, 4, policy, Scored::All, Tail::Keep);
        let got = run(&mut lm, &tokens, Some(BOS), &p);
        assert_eq!(got.stream_tokens, tokens.len());
        assert_eq!(got.tokens_scored, tokens.len() - 1);
        for (window, positions) in &lm.asked {
            assert!(window.windows(2).all(|pair| pair != [BOS, BOS]));
            assert!(positions.clone().all(|p| window[p + 1] != BOS), "the BOS is a target");
        }
        // The same stream as a text without it, when the policy puts it there.
        if policy != BosPolicy::None {
            let other = run(&mut TableLm::default(), &tokens[1..], Some(BOS), &p);
            assert_eq!((other.ppl, other.total_nll), (got.ppl, got.total_nll));
            let stream = TokenStream::new(&tokens[1..], Some(BOS), policy);
            assert!(stream.slice(0..tokens.len()).eq(tokens.iter().copied()));
        }
    }
}

#[test]
fn e01_a_family_that_does_not_add_its_bos_is_scored_without() {
    let p = PplProtocol::default();
    assert_eq!(p.clone().for_family(true).bos, BosPolicy::EachWindow);
    assert_eq!(p.for_family(false).bos, BosPolicy::None);
    let line = PplProtocol::parse("gptq-2048").unwrap().to_string();
    assert!(line.contains("BOS once") && line.contains("window 2048") && line.contains("tail dropped"), "{line}");
}

#[test]
fn e04_the_first_non_finite_logit_stops_the_run_and_names_its_window() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut lm = TableLm { bad: Some((3, value)), ..TableLm::default() };
        let p = protocol(16, 16, BosPolicy::None, Scored::All, Tail::Drop);
        let mut shown = 0;
        let error = evaluate(&mut lm, &text(160), None, &p, None, &mut |_| {
            shown += 1;
            ControlFlow::Continue(())
        })
        .unwrap_err();
        assert!(matches!(error, EvalError::NonFinite { window: 3, position: 9, index: 4, .. }), "{error}");
        assert_eq!((shown, lm.asked.len()), (2, 3));
        assert!(error.to_string().starts_with("window 3, position 9: logit 4 is"));
    }
}

#[test]
fn the_callback_can_stop_the_run() {
    let p = protocol(16, 16, BosPolicy::None, Scored::All, Tail::Drop);
    let stop_after = |n: usize| {
        evaluate(&mut TableLm::default(), &text(64), None, &p, None, &mut |w| {
            if w.window == n { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap()
    };
    let partial = stop_after(2);
    assert!(!partial.complete);
    assert_eq!((partial.windows, partial.windows_available), (2, 4));
    assert!(stop_after(4).complete);
}

#[test]
fn bad_requests_are_refused_before_the_model_runs() {
    let mut lm = TableLm::default();
    let p = protocol(16, 16, BosPolicy::None, Scored::All, Tail::Drop);
    let mut go = |tokens: &[u32], p: &PplProtocol, n| {
        evaluate(&mut lm, tokens, None, p, n, &mut |_| ControlFlow::Continue(())).unwrap_err()
    };
    assert!(matches!(go(&text(15), &p, None), EvalError::TooShort { needed: 16, found: 15, .. }));
    assert!(matches!(go(&[], &PplProtocol { tail: Tail::Keep, ..p.clone() }, None), EvalError::TooShort { .. }));
    assert!(matches!(go(&text(64), &p, Some(0)), EvalError::BadProtocol { .. }));
    assert!(matches!(go(&text(64), &PplProtocol { stride: 17, ..p.clone() }, None), EvalError::BadProtocol { .. }));
    let mut tokens = text(64);
    tokens[40] = 7;
    assert!(matches!(go(&tokens, &p, None), EvalError::TokenOutOfRange { position: 40, token: 7, vocab_size: 7 }));
    assert!(lm.asked.is_empty());
}

/// Models that break the contract of [`CausalLm::score`] in one way each.
struct Broken(u8);

impl CausalLm for Broken {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn score(
        &mut self,
        _: &[u32],
        positions: Range<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        match self.0 {
            0 => return Err("weights are gone".into()),
            1 => positions.skip(1).for_each(|p| sink(p, &[0.0; VOCAB])),
            2 => positions.for_each(|p| sink(p, &[0.0; VOCAB - 1])),
            3 => sink(positions.start, &[0.0; VOCAB]),
            _ => (0..100).for_each(|p| sink(p, &[0.0; VOCAB])),
        }
        Ok(())
    }
}

#[test]
fn a_model_that_breaks_its_contract_is_an_error_never_a_number() {
    let p = protocol(16, 16, BosPolicy::None, Scored::All, Tail::Drop);
    for kind in 0..5 {
        let error =
            evaluate(&mut Broken(kind), &text(64), None, &p, None, &mut |_| ControlFlow::Continue(())).unwrap_err();
        match kind {
            0 => assert_eq!(error.to_string(), "window 1: weights are gone"),
            _ => assert!(matches!(error, EvalError::BadLogits { window: 1, .. }), "{kind}: {error}"),
        }
    }
}

#[test]
fn e02_a_record_survives_json_to_the_last_bit() {
    let p = protocol(16, 8, BosPolicy::Once, Scored::All, Tail::Keep);
    let record = PplRecord {
        provenance: Provenance {
            model: "table".into(),
            text_sha256: "aa".into(),
            tokenizer_sha256: "bb".into(),
            token_ids_sha256: "cc".into(),
            dtype: "f32".into(),
            device: "cpu".into(),
        },
        result: run(&mut TableLm::default(), &text(64), Some(BOS), &p),
        protocol: p,
    };
    let json = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<PplRecord>(&json).unwrap(), record);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    for key in ["text_sha256", "tokenizer_sha256", "dtype", "device"] {
        assert!(value[key].is_string(), "{key}");
    }
    for key in ["tokens", "tokens_scored", "window", "stride", "bos", "tail", "total_nll"] {
        assert!(!value["result"][key].is_null(), "{key}");
    }
}
