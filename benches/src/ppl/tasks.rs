//! Zero-shot tasks beside perplexity.

use std::fs::{self, File};
use std::io::BufWriter;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use gosset_eval::{
    CausalLm, EncodeRules, Question, QuestionScore, TaskResult, read_questions, score_questions, sha256_hex,
    write_task_log,
};
use gosset_runtime::text::Tokenizer;

/// Tokens that go through the model together: coded weights are decoded once for all of them.
const BATCH_TOKENS: usize = 1024;

/// Folders of one task in the package of tasks, in the order in which they are looked for: options scored as texts, without examples.
const VARIANTS: [&str; 3] = ["", "rc_0shot", "bpb_0shot"];

/// What is asked of tasks.
#[derive(Debug, Clone, Args)]
pub struct TaskArgs {
    /// Zero-shot tasks to score for every row: arc_easy, arc_challenge, piqa, winogrande, hellaswag, boolq, openbookqa, sciq, lambada.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "tasks_dir")]
    pub tasks: Vec<String>,
    /// Folder with a folder per task that holds `requests.jsonl.gz`, itself or in `rc_0shot`; or with `TASK.jsonl`.
    #[arg(long, value_name = "DIR")]
    pub tasks_dir: Option<PathBuf>,
    /// Score the first N questions of each task.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub task_limit: Option<u64>,
    /// Write log-likelihoods and choices of every question to `DIR/ROW/TASK.jsonl`.
    #[arg(long, value_name = "DIR")]
    pub task_log: Option<PathBuf>,
}

/// The questions of one task.
struct Task {
    name: String,
    sha256: String,
    questions: Vec<Question>,
}

/// The tasks of a run, read once.
pub(super) struct Tasks {
    tasks: Vec<Task>,
    log: Option<PathBuf>,
    /// Of the first model; all others must have the same.
    tokenizer: Option<Tokenizer>,
}

impl Tasks {
    /// Reads the task files.
    pub(super) fn read(args: &TaskArgs) -> Result<Self> {
        let mut tasks = Vec::new();
        for name in &args.tasks {
            let Some(folder) = &args.tasks_dir else { bail!("--tasks {name}: expected --tasks-dir too") };
            let path = find(folder, name)?;
            let bytes = fs::read(&path).with_context(|| format!("{}", path.display()))?;
            let mut questions = read_questions(name, &bytes).with_context(|| format!("{}", path.display()))?;
            questions.truncate(args.task_limit.map_or(usize::MAX, |n| n as usize));
            tasks.push(Task { name: name.clone(), sha256: sha256_hex(&bytes), questions });
        }
        Ok(Tasks { tasks, log: args.task_log.clone(), tokenizer: None })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Keeps a tokenizer, if one is needed and none is held.
    pub(super) fn keep_tokenizer(&mut self, make: impl FnOnce() -> Result<Tokenizer>) -> Result<()> {
        if !self.is_empty() && self.tokenizer.is_none() {
            self.tokenizer = Some(make()?);
        }
        Ok(())
    }

    /// Scores every task; `None` if `on_progress`, told the task, questions done and their number, stops it.
    pub(super) fn score(
        &self,
        lm: &mut dyn CausalLm,
        label: &str,
        rules: EncodeRules,
        on_progress: &mut dyn FnMut(&str, usize, usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<TaskResult>>> {
        let mut results = Vec::with_capacity(self.tasks.len());
        for task in &self.tasks {
            let tokenizer = self.tokenizer.as_ref().context("tasks need a tokenizer")?;
            let begin = Instant::now();
            let n = task.questions.len();
            let scores = score_questions(
                lm,
                &task.name,
                &task.questions,
                rules,
                &mut |text| Ok(tokenizer.encode(text)?),
                BATCH_TOKENS,
                &mut |done| on_progress(&task.name, done, n),
            )?;
            let Some(scores) = scores else { return Ok(None) };
            if let Some(folder) = &self.log {
                write_log(&folder.join(file_name(label)), &task.name, &scores)?;
            }
            results.push(TaskResult {
                file_sha256: task.sha256.clone(),
                seconds: begin.elapsed().as_secs_f64(),
                ..TaskResult::of(&task.name, &scores)
            });
        }
        Ok(Some(results))
    }
}

/// The file of a task in `folder`.
fn find(folder: &Path, task: &str) -> Result<PathBuf> {
    if task.is_empty() || !task.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        bail!("--tasks {task:?}: expected a name of letters, digits and underscores");
    }
    let in_folders = VARIANTS.iter().map(|variant| folder.join(task).join(variant).join("requests.jsonl.gz"));
    let plain = ["jsonl", "jsonl.gz"].map(|ending| folder.join(format!("{task}.{ending}")));
    in_folders.chain(plain).find(|path| path.is_file()).with_context(|| {
        let known = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut known: Vec<String> = known.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        known.sort();
        format!("task {task}: no requests.jsonl.gz for it in {}, which has {}", folder.display(), known.join(", "))
    })
}

fn write_log(folder: &Path, task: &str, scores: &[QuestionScore]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    let path = folder.join(format!("{task}.jsonl"));
    let file = File::create(&path).with_context(|| format!("{}", path.display()))?;
    write_task_log(scores, &mut BufWriter::new(file)).with_context(|| format!("{}", path.display()))
}

/// A row's label as a part of a path.
fn file_name(label: &str) -> String {
    label.chars().map(|c| if c.is_alphanumeric() || "._-+@".contains(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_files_are_found_in_the_package_and_beside_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in ["arc_easy/rc_0shot", "lambada/bpb_0shot", "piqa"] {
            fs::create_dir_all(root.join(path)).unwrap();
            fs::write(root.join(path).join("requests.jsonl.gz"), b"").unwrap();
        }
        fs::write(root.join("mine.jsonl"), b"").unwrap();
        for task in ["arc_easy", "lambada", "piqa", "mine"] {
            assert!(find(root, task).unwrap().is_file(), "{task}");
        }
        assert!(find(root, "boolq").unwrap_err().to_string().contains("arc_easy, lambada, mine.jsonl, piqa"));
        assert!(find(root, "../x").is_err() && find(root, "").is_err());
        assert_eq!(file_name("e8+feedback@3"), "e8+feedback@3");
        assert_eq!(file_name("a/../b"), "a_.._b");
    }
}
