//! Task files: one line of JSON per option of a question.

use std::io::{BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;

use crate::EvalError;

/// Documents from here on repeat the others without their context, to measure options by themselves; they are no questions.
const UNCONDITIONAL_FROM: u64 = 1_000_000;

/// Largest unpacked task file.
const MAX_BYTES: u64 = 1 << 30;

/// First bytes of a gzip member.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// One option: what is given, and what is scored after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionText {
    /// What the model reads.
    pub context: String,
    /// What it is asked the likelihood of.
    pub continuation: String,
}

impl OptionText {
    /// The option as people read it: the continuation without the one space that parts it from the context.
    pub fn choice(&self) -> &str {
        self.continuation.strip_prefix(' ').unwrap_or(&self.continuation)
    }
}

/// One question with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Number of the document in the task.
    pub doc_id: u64,
    /// At least one. With one alone (LAMBADA) the question is whether the model would say it.
    pub options: Vec<OptionText>,
    /// Index of the right option.
    pub gold: usize,
}

/// The part of a line that scoring needs.
#[derive(Deserialize)]
struct Line {
    doc_id: u64,
    idx: usize,
    label: Label,
    request: Request,
}

#[derive(Deserialize)]
struct Request {
    context: String,
    continuation: String,
}

/// The index of the right option; tasks with a single option name the answer instead.
#[derive(Deserialize)]
#[serde(untagged)]
enum Label {
    Index(usize),
    Answers(Vec<String>),
}

/// The questions of a task file: JSON lines, plain or gzipped, with `doc_id`, `idx`, `label`, `request.context` and
/// `request.continuation`.
///
/// The options of a question follow each other and are numbered from 0. Documents from 1,000,000 on are left out: they are
/// copies without a context.
///
/// # Errors
/// [`EvalError::TaskFile`], with the line.
///
/// ```
/// let line = |idx, text| format!(
///     r#"{{"doc_id": 0, "idx": {idx}, "label": 1, "request": {{"context": "1 + 1 =", "continuation": " {text}"}}}}"#
/// );
/// let questions = gosset_eval::read_questions("sums", [line(0, "one"), line(1, "two")].join("\n").as_bytes())?;
/// assert_eq!((questions.len(), questions[0].gold, questions[0].options[1].choice()), (1, 1, "two"));
/// # Ok::<(), gosset_eval::EvalError>(())
/// ```
pub fn read_questions(task: &str, bytes: &[u8]) -> Result<Vec<Question>, EvalError> {
    let reader: Box<dyn BufRead + '_> = match bytes.strip_prefix(&GZIP) {
        Some(_) => Box::new(BufReader::new(MultiGzDecoder::new(bytes).take(MAX_BYTES))),
        None => Box::new(bytes),
    };
    let mut questions: Vec<Question> = Vec::new();
    for (i, line) in reader.lines().enumerate() {
        let bad = |what: String| EvalError::TaskFile { task: task.to_owned(), line: i + 1, what };
        let line = line.map_err(|e| bad(e.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(&line).map_err(|e| bad(e.to_string()))?;
        if line.doc_id >= UNCONDITIONAL_FROM {
            continue;
        }
        let gold = match line.label {
            Label::Index(gold) => gold,
            Label::Answers(answers) if !answers.is_empty() => 0,
            Label::Answers(_) => return Err(bad("label: expected an answer, found none".to_owned())),
        };
        let option = OptionText { context: line.request.context, continuation: line.request.continuation };
        match questions.last_mut() {
            Some(question) if question.doc_id == line.doc_id => {
                let (expected, found) = (question.options.len(), line.idx);
                if expected != found {
                    return Err(bad(format!("document {}: expected option {expected}, found {found}", line.doc_id)));
                }
                if question.gold != gold {
                    let first = question.gold;
                    return Err(bad(format!("document {}: expected label {first}, found {gold}", line.doc_id)));
                }
                question.options.push(option);
            }
            _ if line.idx == 0 => questions.push(Question { doc_id: line.doc_id, options: vec![option], gold }),
            _ => return Err(bad(format!("document {}: expected option 0, found {}", line.doc_id, line.idx))),
        }
    }
    let whole = |q: &&Question| q.gold >= q.options.len();
    if let Some(question) = questions.iter().find(whole) {
        let (n, gold) = (question.options.len(), question.gold);
        let what = format!("document {}: expected a label below {n}, found {gold}", question.doc_id);
        return Err(EvalError::TaskFile { task: task.to_owned(), line: 0, what });
    }
    if questions.is_empty() {
        let what = "expected at least one question, found none".to_owned();
        return Err(EvalError::TaskFile { task: task.to_owned(), line: 0, what });
    }
    Ok(questions)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn line(doc: u64, idx: usize, label: &str) -> String {
        format!(
            r#"{{"request_type": "loglikelihood", "doc": {{"x": 1}}, "request": {{"context": "c{doc}", "continuation": " o{idx}"}}, "idx": {idx}, "task_name": "t", "doc_id": {doc}, "native_id": null, "label": {label}}}"#
        )
    }

    #[test]
    fn lines_become_questions_and_copies_without_context_are_dropped() {
        let text = [line(0, 0, "1"), line(0, 1, "1"), line(1_000_000, 0, "1"), line(1, 0, "[\"a\"]"), String::new()]
            .join("\n");
        let plain = read_questions("t", text.as_bytes()).unwrap();
        assert_eq!(plain.len(), 2);
        assert_eq!((plain[0].options.len(), plain[0].gold, plain[1].options.len(), plain[1].gold), (2, 1, 1, 0));
        assert_eq!(plain[0].options[1].choice(), "o1");
        let mut gz = GzEncoder::new(Vec::new(), Compression::default());
        gz.write_all(text.as_bytes()).unwrap();
        let gz = gz.finish().unwrap();
        assert_eq!(read_questions("t", &gz).unwrap(), plain);
        assert!(read_questions("t", &gz[..gz.len() / 2]).is_err());
    }

    #[test]
    fn damage_is_named_with_its_line() {
        for (lines, what) in [
            (vec![line(0, 1, "0")], "line 1: document 0: expected option 0, found 1"),
            (vec![line(0, 0, "0"), line(0, 2, "0")], "line 2: document 0: expected option 1, found 2"),
            (vec![line(0, 0, "0"), line(0, 1, "1")], "line 2: document 0: expected label 0, found 1"),
            (vec![line(0, 0, "1")], "expected a label below 1, found 1"),
            (vec!["{}".to_owned()], "line 1: missing field"),
            (vec![], "expected at least one question"),
        ] {
            let error = read_questions("t", lines.join("\n").as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("task t") && error.contains(what), "{error}");
        }
    }
}
