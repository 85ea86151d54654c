//! Zero-shot scoring on models that can be worked out by hand.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{error::Error, ops::ControlFlow, ops::Range};

use gosset_eval::{
    CausalLm, EncodeRules, OptionText, Question, TaskResult, TokenTree, encode_option, read_task_log, score_questions,
    write_task_log,
};

const VOCAB: usize = 256;

/// The logits after a token depend on it and on the number of tokens before it.
struct Bigram {
    calls: usize,
    poison: Option<u32>,
}

fn logits(last: u32, position: usize) -> Vec<f32> {
    (0..VOCAB as u32).map(|next| ((last * 31 + next * 17 + position as u32 * 7) % 101) as f32 / 20.0).collect()
}

impl CausalLm for Bigram {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn score(
        &mut self,
        tokens: &[u32],
        positions: Range<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.calls += 1;
        for p in positions {
            let mut row = logits(tokens[p], p);
            if self.poison == Some(tokens[p]) {
                row[3] = f32::NAN;
            }
            sink(p, &row);
        }
        Ok(())
    }
}

fn bytes(text: &str) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
    Ok(text.bytes().map(u32::from).collect())
}

const RULES: EncodeRules = EncodeRules { context: 64, bos: None, empty: None };

fn option(context: &str, continuation: &str) -> OptionText {
    OptionText { context: context.to_owned(), continuation: continuation.to_owned() }
}

fn questions() -> Vec<Question> {
    let same = |context: &str, choices: &[&str], gold, doc_id| Question {
        doc_id,
        options: choices.iter().map(|c| option(context, &format!(" {c}"))).collect(),
        gold,
    };
    vec![
        same("Question: a?\nAnswer:", &["yes", "no", "perhaps not"], 1, 0),
        // A shared continuation after contexts that differ, as in winogrande.
        Question { doc_id: 1, options: vec![option("so Sarah", " sang."), option("so Maria", " sang.")], gold: 0 },
        same(&"long ".repeat(30), &["é", "ünder"], 0, 2),
        same("Said", &["it"], 0, 3),
    ]
}

/// By the definition, without trees or batches.
fn by_hand(text: &OptionText) -> f64 {
    let all: Vec<u32> = bytes(&format!(
        "{}{}",
        text.context.trim_end(),
        &format!("{}{}", " ".repeat(text.context.len() - text.context.trim_end().len()), text.continuation)
    ))
    .unwrap();
    let n = all.len() - text.context.trim_end().len();
    let all = &all[all.len().saturating_sub(RULES.context + 1)..];
    (all.len() - n..all.len())
        .map(|i| {
            let row: Vec<f64> = logits(all[i - 1], i - 1).into_iter().map(f64::from).collect();
            row[all[i] as usize] - row.iter().map(|l| l.exp()).sum::<f64>().ln()
        })
        .sum()
}

#[test]
fn likelihoods_are_those_of_the_definition_for_every_batch_size() {
    let questions = questions();
    for batch in [1, 40, 100_000] {
        let mut lm = Bigram { calls: 0, poison: None };
        let mut seen = Vec::new();
        let scores = score_questions(&mut lm, "t", &questions, RULES, &mut bytes, batch, &mut |n| {
            seen.push(n);
            ControlFlow::Continue(())
        });
        let scores = scores.unwrap().unwrap();
        assert_eq!(seen.last(), Some(&questions.len()));
        for (question, score) in questions.iter().zip(&scores) {
            for (text, found) in question.options.iter().zip(&score.options) {
                let expected = by_hand(text);
                assert!((found.log_likelihood - expected).abs() < 1e-9, "{text:?}: {found:?} for {expected}");
            }
        }
        let lengths: Vec<_> = scores[2].options.iter().map(|o| (o.chars, o.bytes)).collect();
        assert_eq!(lengths, [(1, 2), (5, 6)]);
        let result = TaskResult::of("t", &scores);
        assert_eq!((result.n, result.tokens_scored), (4, 4 + 3 + 12 + 6 + 6 + 4 + 8 + 3));
    }
}

#[test]
fn what_options_share_is_one_prefix_without_scored_tokens() {
    let encode = |q: &Question| {
        let encoded = q.options.iter().map(|o| encode_option(o, RULES, &mut bytes).unwrap());
        TokenTree::of(&encoded.collect::<Vec<_>>())
    };
    let questions = questions();
    let first = encode(&questions[0]);
    assert_eq!(first.prefix, bytes("Question: a?\nAnswer:").unwrap());
    assert_eq!(first.branches[1].tokens, bytes(" no").unwrap());
    let winogrande = encode(&questions[1]);
    assert_eq!(winogrande.prefix, bytes("so ").unwrap());
    assert_eq!((winogrande.branches[0].tokens.len(), winogrande.branches[0].n_scored), (11, 6));
    assert_eq!(winogrande.n_read(), 3 + 10 + 10);
}

#[test]
fn a_logit_that_is_no_number_names_its_question_and_leaves_no_mean() {
    let mut lm = Bigram { calls: 0, poison: Some(u32::from(b'g')) };
    let error =
        score_questions(&mut lm, "t", &questions(), RULES, &mut bytes, 1000, &mut |_| ControlFlow::Continue(()));
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("task t, document 1, option 0: scored token 5: logit 3 is NaN"), "{error}");
}

#[test]
fn the_callback_can_stop_between_batches() {
    let mut lm = Bigram { calls: 0, poison: None };
    let found = score_questions(&mut lm, "t", &questions(), RULES, &mut bytes, 1, &mut |_| ControlFlow::Break(()));
    assert_eq!(found.unwrap(), None);
    assert_eq!(lm.calls, 3);
}

#[test]
fn logs_survive_to_the_last_bit() {
    let mut lm = Bigram { calls: 0, poison: None };
    let scores = score_questions(&mut lm, "t", &questions(), RULES, &mut bytes, 1, &mut |_| ControlFlow::Continue(()));
    let scores = scores.unwrap().unwrap();
    let mut out = Vec::new();
    write_task_log(&scores, &mut out).unwrap();
    let lines = read_task_log("t", std::str::from_utf8(&out).unwrap()).unwrap();
    assert!(lines.iter().map(|line| &line.question).eq(&scores));
    assert!(lines.iter().all(|l| l.choice == l.question.choice() && l.choice_norm == l.question.choice_norm()));
    assert!(read_task_log("t", "{}").unwrap_err().to_string().contains("line 1"));
}
