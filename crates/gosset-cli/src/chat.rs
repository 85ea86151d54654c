//! `gosset chat`: a conversation on the terminal.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use gosset_runtime::text::{Message, Tokenizer};
use gosset_runtime::{KvCache, LanguageModel, RuntimeError, StopReason, generate_with_cache};

use crate::cli::ThreadArgs;
use crate::device::DeviceArgs;
use crate::generate::{SamplingArgs, Streamed, notes, warnings};
use crate::kv::{self, KvArgs};
use crate::model::Input;
use crate::sandbox::Template;
use crate::{interrupt, output, prompt};

/// Talk with a model.
///
/// The model is a container, a GGUF file, a Hugging Face folder, a known name or a hub name. Lines are read from
/// stdin, answers are streamed to stdout, and the conversation is kept until it is cleared. Ctrl-C stops an answer,
/// Ctrl-D leaves. A model without chat template continues each line as plain text.
#[derive(Debug, Args)]
#[command(after_help = "While chatting:
  /clear   forget the conversation
  /help    list these commands
  /quit    leave, as Ctrl-D does

Examples:
  gosset chat smollm2.gosset
  gosset chat smollm2.gosset --system \"You answer in one sentence.\" --temperature 0.7 --top-p 0.9")]
pub(crate) struct ChatArgs {
    /// Container, GGUF file, Hugging Face folder, known name (`gosset list`), or hub name org/name.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// A message of the system that opens the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

const COMMANDS: &str = "/clear forgets the conversation, /quit (or Ctrl-D) leaves, Ctrl-C stops an answer";

/// Runs the command.
pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    args.threads.apply()?;
    let mut device = args.device.open(&args.kv, false)?;
    let input = Input::open(&args.model)?;
    let model = args.device.load(&input, args.kv.spec(), &mut device, false)?;
    let tokenizer = model.require_tokenizer()?;
    warnings(&model);
    let template = Template::of(&input)?;
    if template.is_none() {
        output::note("note: the model has no chat template; each line is continued as plain text");
    }
    let interactive = io::stdin().is_terminal();
    if interactive {
        output::note(COMMANDS);
    }
    let opening: Vec<Message> = args.system.iter().map(|text| Message::new("system", text.as_str())).collect();
    let mut conversation = Conversation {
        model: &model,
        tokenizer,
        template,
        messages: opening.clone(),
        cache: args.kv.cache(&model, false)?,
        notes: Vec::new(),
        args,
    };
    let mut lines = io::stdin().lock();
    loop {
        if interactive {
            let mut err = io::stderr().lock();
            let _ = err.write_all(b"> ").and_then(|()| err.flush());
        }
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line)? == 0 {
            if interactive {
                output::note("");
            }
            conversation.end();
            return Ok(());
        }
        let line = String::from_utf8_lossy(&line);
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => {
                conversation.end();
                return Ok(());
            }
            "/help" => output::note(COMMANDS),
            "/clear" => {
                conversation.messages.clone_from(&opening);
                conversation.cache = conversation.cache.emptied();
                output::note("the conversation is forgotten");
            }
            text => conversation.answer(text)?,
        }
    }
}

struct Conversation<'a> {
    model: &'a LanguageModel,
    tokenizer: &'a Tokenizer,
    template: Option<Template>,
    messages: Vec<Message>,
    /// Of the turns so far: a turn computes only what it adds.
    cache: KvCache,
    /// Notes of the last answer, which need not be said again.
    notes: Vec<String>,
    args: &'a ChatArgs,
}

impl Conversation<'_> {
    /// Says what a compressed cache took.
    fn end(&self) {
        if !self.cache.is_empty() {
            kv::line(&self.cache).iter().for_each(|line| output::note(line));
        }
    }

    /// Streams the answer to `text` and remembers both.
    fn answer(&mut self, text: &str) -> Result<()> {
        self.messages.push(Message::new("user", text));
        let ids = match &self.template {
            Some(template) => prompt::chat(self.model, self.tokenizer, template, &self.messages)?,
            None => prompt::raw(self.tokenizer, text)?,
        };
        let options = self.args.sampling.options();
        let watch = interrupt::watch();
        let mut stream = Streamed::new(true);
        let result = generate_with_cache(self.model, &mut self.cache, &ids, &options, &mut stream);
        drop(watch);
        stream.end()?;
        interrupt::take();
        if let Ok(generation) = &result
            && generation.notes != self.notes
        {
            notes(generation);
            self.notes.clone_from(&generation.notes);
        }
        match result {
            Ok(_) if self.template.is_none() => self.messages.clear(),
            Ok(generation) if generation.stop == StopReason::Receiver && generation.text.is_empty() => {
                self.messages.pop();
                output::note("stopped before the first word; the message is taken back");
            }
            Ok(generation) => self.messages.push(Message::new("assistant", generation.text)),
            Err(RuntimeError::ContextOverflow { .. }) => {
                // The conversation stays usable: the message that did not fit is taken back.
                self.messages.pop();
                output::note("error: the conversation no longer fits the model's context; /clear starts a new one");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
