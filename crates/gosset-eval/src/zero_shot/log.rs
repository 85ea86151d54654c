//! Log-likelihoods of single options on disk, for other scorers.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::QuestionScore;
use crate::EvalError;

/// One line of a log: what was scored, and the chosen options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskLog {
    /// The likelihoods.
    #[serde(flatten)]
    pub question: QuestionScore,
    /// The most likely option.
    pub choice: usize,
    /// The most likely option per character.
    pub choice_norm: usize,
}

/// Writes one line of JSON per question.
///
/// # Errors
/// Those of `out`.
pub fn write_task_log(questions: &[QuestionScore], out: &mut dyn Write) -> io::Result<()> {
    for question in questions {
        let line =
            TaskLog { choice: question.choice(), choice_norm: question.choice_norm(), question: question.clone() };
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// The lines of a log.
///
/// # Errors
/// [`EvalError::TaskFile`] with the line.
pub fn read_task_log(name: &str, text: &str) -> Result<Vec<TaskLog>, EvalError> {
    let lines = text.lines().enumerate().map(|(i, line)| {
        serde_json::from_str(line).map_err(|e| EvalError::TaskFile {
            task: name.to_owned(),
            line: i + 1,
            what: e.to_string(),
        })
    });
    lines.collect()
}
