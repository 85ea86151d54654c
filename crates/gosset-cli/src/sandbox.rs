//! Chat templates in a process of their own, with limits that the system holds it to.
//!
//! A template comes with a model, and models come from strangers. [`ChatTemplate`] bounds its instructions, its depth and its text; what one
//! instruction may take (a string doubled again and again) nothing inside a process can bound. So templates are compiled and rendered by
//! this program started anew, with limits on memory and processor time. It is killed by them or gives the text.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use gosset_runtime::RuntimeError;
use gosset_runtime::text::{ChatTemplate, Message};
use serde::{Deserialize, Serialize};

use crate::model::Input;
use crate::output;

/// Memory of a rendering, in KiB: four times the stack that [`ChatTemplate`] reserves.
const MEMORY_KIB: u32 = 2 << 20;

/// Seconds of processor time of a rendering.
const SECONDS: u32 = 20;

/// The verb by which this program renders.
pub(crate) const VERB: &str = "render-template";

/// Render a chat template (for this program's own use): JSON from stdin to stdout.
#[derive(Debug, Args)]
pub(crate) struct RenderArgs {}

/// A model's template, not yet run in this process.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    chat_template: Option<Arc<[u8]>>,
    tokenizer_config: Option<Arc<[u8]>>,
}

/// What the process is asked.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    chat_template: Option<Vec<u8>>,
    tokenizer_config: Option<Vec<u8>>,
    /// `None` asks for compiling alone.
    messages: Option<Vec<Message>>,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// The model has no template.
    None,
    /// It compiles.
    Compiled,
    Text(String),
    /// What is wrong with the template or the messages.
    Refused(String),
}

impl Template {
    /// The template of a model once it has compiled; `None` if it has none.
    pub(crate) fn of(input: &Input) -> Result<Option<Self>> {
        let blob = |name: &str| -> Result<Option<Arc<[u8]>>> { Ok(input.blob(name)?.map(Arc::from)) };
        let (chat_template, tokenizer_config) = (blob("chat_template.jinja")?, blob("tokenizer_config.json")?);
        if chat_template.is_none() && tokenizer_config.is_none() {
            return Ok(None);
        }
        let template = Template { chat_template, tokenizer_config };
        match template.ask(None)? {
            Answer::None => Ok(None),
            Answer::Refused(reason) => Err(RuntimeError::Template(reason).into()),
            Answer::Compiled | Answer::Text(_) => Ok(Some(template)),
        }
    }

    /// The text of `messages` up to where the assistant begins to speak.
    pub(crate) fn render(&self, messages: &[Message]) -> Result<String> {
        match self.ask(Some(messages.to_vec()))? {
            Answer::Text(text) => Ok(text),
            Answer::Refused(reason) => Err(RuntimeError::Template(reason).into()),
            Answer::None | Answer::Compiled => Err(failed("it gave no text".to_owned())),
        }
    }

    fn ask(&self, messages: Option<Vec<Message>>) -> Result<Answer> {
        let request = Request {
            chat_template: self.chat_template.as_deref().map(<[u8]>::to_vec),
            tokenizer_config: self.tokenizer_config.as_deref().map(<[u8]>::to_vec),
            messages,
        };
        let Some(mut command) = command()? else { return Ok(answer(request)) };
        let mut child = command.spawn().context("starting the process that renders chat templates")?;
        let text = serde_json::to_vec(&request)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A process that was killed reads no further; its status tells.
            let _ = stdin.write_all(&text);
        }
        let done = child.wait_with_output().context("waiting for the process that renders chat templates")?;
        if !done.status.success() {
            let reason = format!(
                "it takes more than {} MiB of memory or {SECONDS} s, expected less ({})",
                MEMORY_KIB >> 10,
                done.status
            );
            return Err(failed(reason));
        }
        Ok(serde_json::from_slice(&done.stdout)?)
    }
}

fn failed(reason: String) -> anyhow::Error {
    RuntimeError::Template(reason).into()
}

/// This program under limits; `None` where the system has no shell to set them.
fn command() -> Result<Option<Command>> {
    if !cfg!(unix) {
        return Ok(None);
    }
    let program = std::env::current_exe().context("finding this program")?;
    let limits = format!("ulimit -c 0; ulimit -v {MEMORY_KIB} 2>/dev/null; ulimit -t {SECONDS}; exec \"$0\" {VERB}");
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(limits).arg(program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(Some(command))
}

/// Runs the command: what the process does.
pub(crate) fn run(_: &RenderArgs) -> Result<()> {
    let request = serde_json::from_reader(std::io::stdin().lock())?;
    output::json_line(&answer(request))
}

fn answer(request: Request) -> Answer {
    let Request { chat_template, tokenizer_config, messages } = request;
    let refused = |e: RuntimeError| match e {
        RuntimeError::Template(reason) => Answer::Refused(reason),
        other => Answer::Refused(other.to_string()),
    };
    match ChatTemplate::from_blobs(chat_template.as_deref(), tokenizer_config.as_deref()) {
        Ok(None) => Answer::None,
        Err(e) => refused(e),
        Ok(Some(template)) => match messages {
            None => Answer::Compiled,
            Some(messages) => template.render(&messages, true).map_or_else(refused, Answer::Text),
        },
    }
}
