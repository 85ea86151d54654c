//! `gosset generate`: continues a text.

use std::io::{self, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::{ArgGroup, Args};
use gosset_runtime::text::Message;
use gosset_runtime::{GenerateOptions, Generation, LanguageModel, Receiver, Sampling, StopReason, generate_with_cache};
use serde_json::json;

use crate::cli::ThreadArgs;
use crate::device::DeviceArgs;
use crate::exit::{Exit, error};
use crate::kv::{self, KvArgs};
use crate::model::Input;
use crate::sandbox::Template;
use crate::{interrupt, output, prompt};

/// Continue a text with a model.
///
/// The model is a container, a GGUF file, a Hugging Face folder, a known name or a hub name. The text is streamed to
/// stdout as it arrives. It ends at one of the model's end tokens, after --max-tokens, or with Ctrl-C. Greedy by
/// default; the same options and seed give the same text.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true).args(["prompt", "stdin"])))]
#[command(after_help = "Examples:
  gosset generate smollm2.gosset --chat --prompt \"Why is the sky blue?\"
  gosset generate smollm2.gosset --prompt \"Once upon a time\" --temperature 0.8 --top-p 0.95 --seed 7
  gosset generate smollm2.gosset --prompt \"Once upon a time\" --kv e8@3
  git diff | gosset generate model.gosset --chat --stdin --max-tokens 60 --json")]
pub(crate) struct GenerateArgs {
    /// Container, GGUF file, Hugging Face folder, known name (`gosset list`), or hub name org/name.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The text to continue.
    #[arg(long, short = 'p', value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the text from stdin (UTF-8).
    #[arg(long)]
    stdin: bool,
    /// Put the text through the model's chat template, as a message of the user.
    #[arg(long, conflicts_with = "raw")]
    chat: bool,
    /// Continue the text as it is, which is the default.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    kv: KvArgs,
    /// Print one JSON object at the end instead of streaming text.
    #[arg(long)]
    json: bool,
    /// No notes on stderr.
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// How tokens are drawn.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token.
    #[arg(long, short = 't', value_name = "T", default_value_t = 0.0, value_parser = temperature)]
    temperature: f64,
    /// Draw from the likeliest tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = top_p)]
    top_p: f64,
    /// Seed of the draw.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Most tokens to generate.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

fn temperature(text: &str) -> Result<f64, String> {
    number(text).and_then(|t| if (0.0..=100.0).contains(&t) { Ok(t) } else { Err("expected 0 to 100".to_owned()) })
}

fn top_p(text: &str) -> Result<f64, String> {
    number(text).and_then(|p| if p > 0.0 && p <= 1.0 { Ok(p) } else { Err("expected above 0, at most 1".to_owned()) })
}

impl SamplingArgs {
    /// The options of a generation.
    pub(crate) fn options(&self) -> GenerateOptions {
        GenerateOptions {
            max_tokens: self.max_tokens as usize,
            sampling: Sampling { temperature: self.temperature, top_p: self.top_p, seed: self.seed },
            stop_ids: Vec::new(),
            ignore_model_stop_ids: false,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &GenerateArgs) -> Result<Exit> {
    args.threads.apply()?;
    let mut device = args.device.open(&args.kv, args.quiet)?;
    let input = Input::open(&args.model)?;
    let model = args.device.load(&input, args.kv.spec(), &mut device, args.quiet)?;
    let tokenizer = model.require_tokenizer()?;
    if !args.quiet {
        warnings(&model);
    }
    let text = match &args.prompt {
        Some(text) => text.clone(),
        None => read_stdin()?,
    };
    let ids = if args.chat {
        let Some(template) = Template::of(&input)? else {
            let name = args.model.display();
            return Err(error(Exit::MissingPart, format!("{name}: the model has no chat template; leave out --chat")));
        };
        prompt::chat(&model, tokenizer, &template, &[Message::new("user", text.as_str())])?
    } else {
        prompt::raw(tokenizer, &text)?
    };
    if ids.is_empty() {
        return Err(error(
            Exit::Usage,
            "--prompt: the text is empty and this model has no begin token; give some text",
        ));
    }
    let options = args.sampling.options();
    let mut cache = args.kv.cache(&model, args.quiet)?;

    let _watch = interrupt::watch();
    let start = Instant::now();
    let mut stream = Streamed::new(!args.json);
    let result = generate_with_cache(&model, &mut cache, &ids, &options, &mut stream);
    let seconds = start.elapsed().as_secs_f64();
    stream.end()?;
    let generation = result?;
    if !args.quiet {
        notes(&generation);
        kv::line(&cache).iter().for_each(|line| output::note(line));
    }
    if args.json {
        let Generation { text, tokens, stop, n_prompt, notes, .. } = &generation;
        output::json_line(&json!({
            "model": args.model.display().to_string(),
            "device": device.name(),
            "n_prompt": n_prompt,
            "text": text,
            "tokens": tokens,
            "n_tokens": tokens.len(),
            "stop": reason(*stop),
            "notes": notes,
            "kv": args.kv.spec().map(ToString::to_string),
            "kv_bytes": cache.memory().map(|memory| memory.total()),
            "kv_f16_bytes": cache.memory().map(|memory| memory.uncompressed()),
            "seconds": seconds,
            "tokens_per_second": tokens.len() as f64 / seconds.max(1e-9),
        }))?;
    }
    Ok(if interrupt::requested() { Exit::Interrupted } else { Exit::Ok })
}

/// Name of a reason in JSON.
fn reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::MaxTokens => "max_tokens",
        StopReason::StopId(_) => "stop_token",
        StopReason::ContextFull => "context_full",
        StopReason::Receiver => "interrupted",
        _ => "other",
    }
}

/// Tells what is odd about a model, one line each.
pub(crate) fn warnings(model: &LanguageModel) {
    model.warnings().iter().for_each(|warning| output::note(&format!("warning: {warning}")));
}

/// Tells what a generation has to say about itself.
pub(crate) fn notes(generation: &Generation) {
    generation.notes.iter().for_each(|note| output::note(&format!("note: {note}")));
}

fn read_stdin() -> Result<String> {
    if io::stdin().is_terminal() {
        output::note("reading the prompt from the terminal; Ctrl-D ends it");
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes)?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        error(Exit::Usage, format!("stdin: not UTF-8 at byte {at}; convert the text first"))
    })
}

/// Text on its way to stdout: written and flushed piece by piece, stopped by Ctrl-C or a closed pipe.
#[derive(Debug)]
pub(crate) struct Streamed {
    shown: bool,
    failed: Option<io::Error>,
    /// Whether nothing was shown since the last line feed.
    ends_line: bool,
}

impl Streamed {
    /// A stream that shows what it gets, or only watches for Ctrl-C.
    pub(crate) fn new(shown: bool) -> Self {
        Streamed { shown, failed: None, ends_line: true }
    }

    /// Ends the last line, if one was begun.
    pub(crate) fn end(self) -> Result<()> {
        if let Some(e) = self.failed {
            return Err(e.into());
        }
        if self.shown && !self.ends_line {
            let mut out = io::stdout().lock();
            out.write_all(b"\n")?;
            out.flush()?;
        }
        Ok(())
    }
}

impl Receiver for Streamed {
    fn text(&mut self, piece: &str) -> ControlFlow<()> {
        if self.shown && !piece.is_empty() {
            self.ends_line = piece.ends_with('\n');
            let mut out = io::stdout().lock();
            if let Err(e) = out.write_all(piece.as_bytes()).and_then(|()| out.flush()) {
                self.failed = Some(e);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn cancelled(&mut self) -> bool {
        interrupt::requested()
    }
}
