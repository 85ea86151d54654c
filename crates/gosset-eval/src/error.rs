//! Errors of an evaluation.

use std::error::Error;

/// What stopped an evaluation. Each variant says what was expected, what was found and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The protocol's name is not a preset and does not follow the grammar `FAMILY-WINDOW`.
    #[error("unknown protocol `{name}`: expected full-N, half-N, llama.cpp-N or gptq-N with N a window in tokens")]
    UnknownProtocol {
        /// The name as given.
        name: String,
    },
    /// The protocol's numbers contradict each other.
    #[error("protocol `{name}`: {what}")]
    BadProtocol {
        /// Name of the protocol.
        name: String,
        /// Expected and found.
        what: String,
    },
    /// No window of the protocol fits into the text.
    #[error("text too short for protocol `{name}`: expected at least {needed} tokens, found {found}")]
    TooShort {
        /// Name of the protocol.
        name: String,
        /// Tokens of the shortest text that has a scored position.
        needed: usize,
        /// Tokens of this text, BOS included.
        found: usize,
    },
    /// A token id that the model has no row for.
    #[error("token {position} of the text: expected an id below {vocab_size}, found {token}")]
    TokenOutOfRange {
        /// Index in the text.
        position: usize,
        /// The id found there.
        token: u32,
        /// Vocabulary size of the model.
        vocab_size: usize,
    },
    /// A logit that is not a finite number; nothing after it was scored and no partial mean is reported.
    #[error("window {window}, position {position}: logit {index} is {value}, expected a finite number")]
    NonFinite {
        /// Window, counted from 1.
        window: usize,
        /// Position inside the window whose logits were being read.
        position: usize,
        /// Vocabulary index of the first bad logit.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// The model gave other logits than it was asked for.
    #[error("window {window}: {what}")]
    BadLogits {
        /// Window, counted from 1.
        window: usize,
        /// Expected and found.
        what: String,
    },
    /// The model failed.
    #[error("window {window}: {source}")]
    Model {
        /// Window, counted from 1.
        window: usize,
        /// What the model said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A task file that is no list of questions.
    #[error("task {task}{}: {what}", if *line > 0 { format!(", line {line}") } else { String::new() })]
    TaskFile {
        /// Name of the task.
        task: String,
        /// Line, counted from 1; 0 for the file as a whole.
        line: usize,
        /// Expected and found.
        what: String,
    },
    /// An option that cannot be encoded or scored.
    #[error("{what}")]
    Option {
        /// Expected and found.
        what: String,
    },
    /// A question that cannot be scored.
    #[error("task {task}, document {doc_id}, option {option}: {source}")]
    Question {
        /// Name of the task.
        task: String,
        /// Number of the document.
        doc_id: u64,
        /// Index of the option.
        option: usize,
        /// Why.
        source: Box<EvalError>,
    },
    /// A prompt that asks for a pass key could not be made or answered.
    #[error("passkey at {context} tokens, trial {trial}: {what}")]
    Passkey {
        /// Tokens of prompt and answer.
        context: usize,
        /// Number of the prompt among those of its context.
        trial: usize,
        /// Expected and found.
        what: String,
    },
}
