//! Log-likelihoods of options.

use std::ops::ControlFlow;

use super::{Encode, EncodeRules, EncodedOption, OptionScore, Question, QuestionScore, encode_option};
use crate::{CausalLm, EvalError, token_nll};

/// Sequences of tokens with a common start: each branch follows `prefix`, and knows nothing of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenTree {
    /// The common start.
    pub prefix: Vec<u32>,
    /// What follows it.
    pub branches: Vec<TreeBranch>,
}

/// One continuation of a [`TokenTree`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeBranch {
    /// Tokens after the prefix.
    pub tokens: Vec<u32>,
    /// Number of tokens at the end that are scored; something precedes each of them.
    pub n_scored: usize,
}

/// A scored token of a list of trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeToken {
    /// Index of the tree.
    pub tree: usize,
    /// Index of its branch.
    pub branch: usize,
    /// Index among the scored tokens of the branch.
    pub index: usize,
}

impl TokenTree {
    /// The tree of the options of a question: what all of them begin with is given once.
    ///
    /// Scored tokens stay in the branches. Options that share nothing, such as those of a question whose contexts differ from the
    /// first word on, have an empty prefix.
    pub fn of(options: &[EncodedOption]) -> Self {
        let shortest = options.iter().map(|o| o.tokens.len() - o.n_scored).min().unwrap_or(0);
        let common = |i: &usize| options.windows(2).all(|pair| pair[0].tokens[*i] == pair[1].tokens[*i]);
        let n = (0..shortest).take_while(common).count();
        let prefix = options.first().map_or_else(Vec::new, |o| o.tokens[..n].to_vec());
        let branches =
            options.iter().map(|o| TreeBranch { tokens: o.tokens[n..].to_vec(), n_scored: o.n_scored }).collect();
        TokenTree { prefix, branches }
    }

    /// Tokens that the model reads: those that nothing follows are not.
    pub fn n_read(&self) -> usize {
        self.prefix.len() + self.branches.iter().map(|b| b.tokens.len().saturating_sub(1)).sum::<usize>()
    }
}

/// Likelihoods of the options of `questions`.
///
/// Questions go to the model together until they have `batch_tokens` tokens. `on_progress` is told how many are done after each
/// batch and may stop there: then the answer is `None`.
///
/// # Errors
/// [`EvalError::Question`] around what keeps a question from being encoded or scored: none of them is left out of a mean.
pub fn score_questions(
    lm: &mut dyn CausalLm,
    task: &str,
    questions: &[Question],
    rules: EncodeRules,
    encode: &mut Encode<'_>,
    batch_tokens: usize,
    on_progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Option<Vec<QuestionScore>>, EvalError> {
    let mut scores = Vec::with_capacity(questions.len());
    let mut trees: Vec<TokenTree> = Vec::new();
    let mut n_read = 0;
    for (i, question) in questions.iter().enumerate() {
        let encoded = question.options.iter().enumerate().map(|(option, text)| {
            encode_option(text, rules, encode).map_err(|source| of_question(task, question, option, source))
        });
        let tree = TokenTree::of(&encoded.collect::<Result<Vec<_>, _>>()?);
        n_read += tree.n_read();
        trees.push(tree);
        if n_read >= batch_tokens || i + 1 == questions.len() {
            scores.extend(score_batch(lm, task, &questions[scores.len()..=i], &trees)?);
            trees.clear();
            n_read = 0;
            if on_progress(scores.len()).is_break() {
                return Ok((scores.len() == questions.len()).then_some(scores));
            }
        }
    }
    Ok(Some(scores))
}

fn of_question(task: &str, question: &Question, option: usize, source: EvalError) -> EvalError {
    EvalError::Question { task: task.to_owned(), doc_id: question.doc_id, option, source: Box::new(source) }
}

fn score_batch(
    lm: &mut dyn CausalLm,
    task: &str,
    questions: &[Question],
    trees: &[TokenTree],
) -> Result<Vec<QuestionScore>, EvalError> {
    let vocab_size = lm.vocab_size();
    let mut scores: Vec<QuestionScore> = questions.iter().map(unscored).collect();
    let mut first_error: Option<(TreeToken, EvalError)> = None;
    // The sink cannot stop the model, so after the first error it only waits for the end of the batch.
    let mut sink = |at: TreeToken, logits: &[f32]| {
        if first_error.is_some() {
            return;
        }
        let branch = &trees[at.tree].branches[at.branch];
        let score = &mut scores[at.tree].options[at.branch];
        let target = branch.tokens[branch.tokens.len() - branch.n_scored + at.index] as usize;
        let outcome = if at.index != score.tokens || logits.len() != vocab_size || target >= vocab_size {
            let expected =
                format!("expected {vocab_size} logits of scored token {}, token {target} among them", score.tokens);
            Err(EvalError::Option { what: format!("{expected}; found {} of {}", logits.len(), at.index) })
        } else {
            token_nll(logits, target).map_err(|index| {
                let (value, position) = (logits[index], at.index);
                EvalError::Option {
                    what: format!("scored token {position}: logit {index} is {value}, expected a finite number"),
                }
            })
        };
        match outcome {
            Ok(nll) => {
                score.log_likelihood -= nll;
                score.tokens += 1;
                // As an argmax that takes the first of equals.
                score.greedy &= logits.iter().position(|l| *l >= logits[target]) == Some(target)
                    && logits.iter().all(|l| *l <= logits[target]);
            }
            Err(error) => first_error = Some((at, error)),
        }
    };
    let outcome = lm.score_trees(trees, &mut sink);
    if let Some((at, error)) = first_error {
        return Err(of_question(task, &questions[at.tree], at.branch, error));
    }
    outcome.map_err(|source| {
        let first = &questions[0];
        of_question(task, first, 0, EvalError::Option { what: format!("in a batch from here on: {source}") })
    })?;
    for ((question, score), tree) in questions.iter().zip(&scores).zip(trees) {
        for (i, (option, branch)) in score.options.iter().zip(&tree.branches).enumerate() {
            if option.tokens != branch.n_scored {
                let what = format!("expected logits of {} tokens, found {}", branch.n_scored, option.tokens);
                return Err(of_question(task, question, i, EvalError::Option { what }));
            }
        }
    }
    Ok(scores)
}

fn unscored(question: &Question) -> QuestionScore {
    let options = question.options.iter().map(|option| OptionScore {
        log_likelihood: 0.0,
        chars: option.choice().chars().count(),
        bytes: option.choice().len(),
        tokens: 0,
        greedy: true,
    });
    QuestionScore { doc_id: question.doc_id, gold: question.gold, options: options.collect() }
}
