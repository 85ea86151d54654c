//! From log-likelihoods of options to accuracies.

use serde::{Deserialize, Serialize};

/// Likelihood of one option.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OptionScore {
    /// Sum of the log-likelihoods of its tokens, in nats.
    #[serde(rename = "ll")]
    pub log_likelihood: f64,
    /// Characters of the option, without the space that parts it from the context.
    pub chars: usize,
    /// Its bytes in UTF-8.
    pub bytes: usize,
    /// Tokens that were scored.
    pub tokens: usize,
    /// Whether each of its tokens is the most likely one.
    pub greedy: bool,
}

/// Likelihoods of the options of one question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuestionScore {
    /// Number of the document in the task.
    pub doc_id: u64,
    /// Index of the right option.
    pub gold: usize,
    /// In the order of the question.
    pub options: Vec<OptionScore>,
}

impl QuestionScore {
    /// The most likely option, the first of equals.
    pub fn choice(&self) -> usize {
        self.argmax(|option| option.log_likelihood)
    }

    /// The most likely option per character, the first of equals.
    pub fn choice_norm(&self) -> usize {
        self.argmax(|option| option.log_likelihood / option.chars as f64)
    }

    /// The most likely option per byte, the first of equals.
    pub fn choice_bytes(&self) -> usize {
        self.argmax(|option| option.log_likelihood / option.bytes as f64)
    }

    fn argmax(&self, value: impl Fn(&OptionScore) -> f64) -> usize {
        let mut best = (0, f64::NEG_INFINITY);
        for (i, option) in self.options.iter().enumerate() {
            let value = value(option);
            if value > best.1 {
                best = (i, value);
            }
        }
        best.0
    }

    /// Whether the choice is right; for a single option, whether the model would say it.
    fn is_right(&self, choice: usize) -> bool {
        match &self.options[..] {
            [only] => only.greedy,
            _ => choice == self.gold,
        }
    }
}

/// A share of right answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Right answers over questions.
    pub value: f64,
    /// Its standard error: sample standard deviation over the root of the number of questions; 0 for a single question.
    pub stderr: f64,
}

impl Accuracy {
    /// Of `n` questions, `right` of them answered rightly.
    ///
    /// ```
    /// let accuracy = gosset_eval::Accuracy::of(3, 4);
    /// assert_eq!((accuracy.value, accuracy.stderr), (0.75, 0.25));
    /// ```
    pub fn of(right: usize, n: usize) -> Self {
        let (k, n) = (right as f64, n.max(1) as f64);
        let value = k / n;
        // Sum of squared deviations of k ones and n - k zeros: n p (1 - p).
        let variance = if n > 1.0 { n * value * (1.0 - value) / (n - 1.0) } else { 0.0 };
        Accuracy { value, stderr: (variance / n).sqrt() }
    }
}

/// Zero-shot result of one task.
///
/// `acc` and `acc_norm` are those of lm-evaluation-harness: the option with the largest log-likelihood, and with the largest per
/// character of the option.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Name of the task.
    pub task: String,
    /// Questions.
    pub n: usize,
    /// By the sum of log-likelihoods.
    pub acc: Accuracy,
    /// By the sum over the characters of the option.
    pub acc_norm: Accuracy,
    /// By the sum over the bytes of the option.
    pub acc_bytes: Accuracy,
    /// Mean log-likelihood of the right option per byte, in nats: what moves before answers do.
    pub gold_nats_per_byte: f64,
    /// Tokens scored.
    pub tokens_scored: usize,
    /// SHA-256 of the task file.
    pub file_sha256: String,
    /// Wall time of scoring.
    pub seconds: f64,
}

impl TaskResult {
    /// The result of `questions`, of which there is at least one; file and time are the caller's.
    pub fn of(task: &str, questions: &[QuestionScore]) -> Self {
        let count = |choice: fn(&QuestionScore) -> usize| {
            Accuracy::of(questions.iter().filter(|q| q.is_right(choice(q))).count(), questions.len())
        };
        let gold = questions.iter().map(|q| q.options[q.gold].log_likelihood / q.options[q.gold].bytes.max(1) as f64);
        TaskResult {
            task: task.to_owned(),
            n: questions.len(),
            acc: count(QuestionScore::choice),
            acc_norm: count(QuestionScore::choice_norm),
            acc_bytes: count(QuestionScore::choice_bytes),
            gold_nats_per_byte: gold.sum::<f64>() / questions.len().max(1) as f64,
            tokens_scored: questions.iter().flat_map(|q| &q.options).map(|o| o.tokens).sum(),
            file_sha256: String::new(),
            seconds: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(log_likelihood: f64, chars: usize, bytes: usize) -> OptionScore {
        OptionScore { log_likelihood, chars, bytes, tokens: 1, greedy: false }
    }

    fn question(gold: usize, options: Vec<OptionScore>) -> QuestionScore {
        QuestionScore { doc_id: 0, gold, options }
    }

    #[test]
    fn each_choice_has_its_own_measure() {
        let q = question(0, vec![option(-4.0, 2, 2), option(-6.0, 4, 4), option(-7.0, 4, 6)]);
        assert_eq!((q.choice(), q.choice_norm(), q.choice_bytes()), (0, 1, 2));
    }

    #[test]
    fn equals_are_never_decided_for_the_last() {
        let q = question(3, vec![option(-8.0, 4, 4); 4]);
        assert_eq!((q.choice(), q.choice_norm(), q.choice_bytes()), (0, 0, 0));
        // An option that is impossible, or empty, is never chosen over one that is not.
        let q = question(0, vec![option(f64::NEG_INFINITY, 1, 1), option(-9.0, 1, 1)]);
        assert_eq!(q.choice(), 1);
    }

    #[test]
    fn standard_errors_are_those_of_the_sample() {
        let answers = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0f64];
        let n = answers.len() as f64;
        let mean = answers.iter().sum::<f64>() / n;
        let variance = answers.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let found = Accuracy::of(4, 7);
        assert!((found.value - mean).abs() < 1e-15 && (found.stderr - (variance / n).sqrt()).abs() < 1e-15);
        assert_eq!(Accuracy::of(1, 1).stderr, 0.0);
    }

    #[test]
    fn a_single_option_is_right_if_the_model_would_say_it() {
        let said = OptionScore { greedy: true, ..option(-1.0, 3, 3) };
        let result = TaskResult::of("t", &[question(0, vec![said]), question(0, vec![option(-1.0, 3, 3)])]);
        assert_eq!((result.acc.value, result.acc_norm.value, result.n), (0.5, 0.5, 2));
    }
}
