//! Choices and accuracies against those of `tests/golden/score_tasks.py` for the same log-likelihoods.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use gosset_eval::{Accuracy, OptionScore, QuestionScore, TaskResult};
use serde::Deserialize;

#[derive(Deserialize)]
struct Task {
    acc: [f64; 2],
    acc_norm: [f64; 2],
    questions: Vec<Question>,
}

#[derive(Deserialize)]
struct Question {
    doc_id: u64,
    gold: usize,
    ll: Vec<f64>,
    chars: Vec<usize>,
    choice: usize,
    choice_norm: usize,
}

/// SmolLM2 on the first questions of arc_easy and piqa.
const GOLDEN: &str = include_str!("../../../tests/golden/tasks.json");

#[test]
fn choices_and_accuracies_are_those_of_the_independent_scorer() {
    let tasks: BTreeMap<String, Task> = serde_json::from_str(GOLDEN).unwrap();
    assert_eq!(tasks.keys().collect::<Vec<_>>(), ["arc_easy", "piqa"]);
    for (name, task) in &tasks {
        assert!(task.questions.len() >= 50);
        let scores = task.questions.iter().map(|q| {
            let options = q.ll.iter().zip(&q.chars).map(|(&log_likelihood, &chars)| OptionScore {
                log_likelihood,
                chars,
                bytes: chars,
                tokens: 1,
                greedy: false,
            });
            QuestionScore { doc_id: q.doc_id, gold: q.gold, options: options.collect() }
        });
        let scores: Vec<QuestionScore> = scores.collect();
        for (score, question) in scores.iter().zip(&task.questions) {
            assert_eq!((score.choice(), score.choice_norm()), (question.choice, question.choice_norm), "{name}");
        }
        let found = TaskResult::of(name, &scores);
        let close = |found: Accuracy, [value, stderr]: [f64; 2]| {
            assert!((found.value - value).abs() < 1e-12 && (found.stderr - stderr).abs() < 1e-12, "{name}: {found:?}");
        };
        close(found.acc, task.acc);
        close(found.acc_norm, task.acc_norm);
    }
}
