//! Chat messages to the text a model was trained on.

use std::io;
use std::thread;

use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::RuntimeError;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message of `role` with `content`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A compiled chat template (Jinja as Hugging Face models use it).
///
/// Templates see `messages`, `add_generation_prompt`, `bos_token`, `eos_token` and `raise_exception`; no clock, so the same
/// messages always give the same text (`strftime_now` is undefined, which templates test for).
///
/// A template comes with a model, so it is not trusted. Its source may have 64 KiB and 256 prefix operators in a row; it is
/// compiled and rendered in a thread whose stack is large enough for whatever nests within that size. A rendering ends with an error after a number of instructions that grows with the number of
/// messages, and when its text exceeds 16 MiB.
///
/// Not limited: what one instruction may cost. A template that doubles a string again and again (`s ~ s`) needs few
/// instructions to ask for more memory than there is, which ends the process, and a filter over a list that was doubled so may
/// run for very long. One expression that fills the whole source takes seconds to compile. Read a template of unknown origin before running it, or run it where memory and time are limited.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
}

const NAME: &str = "chat_template";

/// Bytes of a source.
const MAX_SOURCE: usize = 64 << 10;

/// Prefix operators in a row. Each is a level of recursion; rules of dashes in comments stay below.
const MAX_PREFIX_RUN: usize = 256;

/// Stack for compiling and rendering, of which only the touched pages take memory. A byte of the source is at most one level of
/// recursion, an instruction of a rendering builds at most one more level of a nested value.
const STACK_BYTES: usize = 512 << 20;

/// Instructions of a rendering: this many, and for each message [`FUEL_PER_MESSAGE`] more.
const FUEL: u64 = 200_000;
const FUEL_PER_MESSAGE: u64 = 1_000;

/// Bytes of a rendered text.
const MAX_OUTPUT: usize = 16 << 20;

impl ChatTemplate {
    /// The template of a model: `chat_template` (a file of its own) if there is one, else the entry in `tokenizer_config.json`;
    /// `None` if neither has one. Special tokens come from `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`RuntimeError::Template`] with line and construct if the template does not compile or the JSON is none.
    pub fn from_blobs(
        chat_template: Option<&[u8]>,
        tokenizer_config: Option<&[u8]>,
    ) -> Result<Option<Self>, RuntimeError> {
        let config: Json = match tokenizer_config {
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|e| RuntimeError::Template(format!("tokenizer_config.json: {e}")))?,
            None => Json::Null,
        };
        let source = match chat_template {
            Some(bytes) => Some(
                std::str::from_utf8(bytes).map_err(|e| RuntimeError::Template(format!("not UTF-8: {e}")))?.to_owned(),
            ),
            None => template_of(&config["chat_template"]),
        };
        let token = |name: &str| {
            let entry = &config[name];
            entry.as_str().or_else(|| entry["content"].as_str()).map(str::to_owned)
        };
        source.map(|source| Self::new(source, token("bos_token"), token("eos_token"))).transpose()
    }

    /// Compiles `source`; `bos` and `eos` are the tokens it may print.
    ///
    /// # Errors
    /// [`RuntimeError::Template`] with line and construct, or for a source beyond the limits above.
    pub fn new(source: String, bos: Option<String>, eos: Option<String>) -> Result<Self, RuntimeError> {
        if source.len() > MAX_SOURCE {
            let found = source.len();
            return Err(RuntimeError::Template(format!("expected at most {MAX_SOURCE} bytes, found {found}")));
        }
        if let Some(line) = long_prefix_run(&source) {
            let message =
                format!("line {line}: expected at most {MAX_PREFIX_RUN} prefix operators in a row, found more");
            return Err(RuntimeError::Template(message));
        }
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        let plain = without_generation_marks(&source);
        let compile = || environment.add_template_owned(NAME, plain).map_err(|e| explain(&source, &e));
        on_large_stack(compile)?;
        Ok(Self { environment, source, bos, eos })
    }

    /// The text of `messages`; with `add_generation_prompt` it ends where the assistant begins to speak.
    ///
    /// A template may print BOS itself: encode the result with [`Tokenizer::encode_with_bos`](super::Tokenizer::encode_with_bos),
    /// which never makes it two.
    ///
    /// # Errors
    /// [`RuntimeError::Template`] with line and construct, or with the reason by which the template refuses the messages.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, RuntimeError> {
        let fuel = (messages.len() as u64).saturating_mul(FUEL_PER_MESSAGE).saturating_add(FUEL);
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let bos_token = self.bos.as_deref().unwrap_or_default();
        let eos_token = self.eos.as_deref().unwrap_or_default();
        on_large_stack(|| {
            let mut out = Limited { bytes: Vec::new(), full: false };
            let context = context! { messages, add_generation_prompt, bos_token, eos_token };
            let result = environment
                .get_template(NAME)
                .and_then(|template| template.render_captured_to(context, &mut out).map(drop));
            match result {
                Ok(()) => String::from_utf8(out.bytes).map_err(|e| e.to_string()),
                Err(_) if out.full => Err(format!("expected a text of at most {MAX_OUTPUT} bytes, found a longer one")),
                Err(e) if e.kind() == ErrorKind::OutOfFuel => {
                    Err(format!("the template runs too long: expected at most {fuel} instructions, found more"))
                }
                Err(e) => Err(explain(&self.source, &e)),
            }
        })
    }

    /// The template as written.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// A text of [`MAX_OUTPUT`] bytes at most; the write that would exceed it fails and sets `full`.
struct Limited {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.full |= bytes.len() > MAX_OUTPUT - self.bytes.len();
        if self.full {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` in a thread with a stack of [`STACK_BYTES`] and waits for it.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, RuntimeError> {
    let result = thread::scope(|scope| {
        let worker = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let worker = worker.map_err(|e| format!("no thread with a stack of {STACK_BYTES} bytes: {e}"))?;
        worker.join().unwrap_or_else(|_| Err("the template makes the template engine fail".to_owned()))
    });
    result.map_err(RuntimeError::Template)
}

/// The line, from 1, where more than [`MAX_PREFIX_RUN`] operators `-` and `not` stand in a row, in a tag or elsewhere.
fn long_prefix_run(source: &str) -> Option<usize> {
    let (mut run, mut rest) = (0, source);
    while let Some(first) = rest.chars().next() {
        let step = match first {
            '-' => 1,
            'n' if rest.starts_with("not") => 3,
            _ => {
                run = if first.is_whitespace() { run } else { 0 };
                rest = &rest[first.len_utf8()..];
                continue;
            }
        };
        run += 1;
        if run > MAX_PREFIX_RUN {
            return Some(1 + source[..source.len() - rest.len()].matches('\n').count());
        }
        rest = &rest[step..];
    }
    None
}

/// The `chat_template` entry: a string, or a list of named ones of which `default` counts.
fn template_of(entry: &Json) -> Option<String> {
    match entry {
        Json::String(source) => Some(source.clone()),
        Json::Array(named) => {
            let default = named.iter().find(|t| t["name"] == "default").or(named.first())?;
            default["template"].as_str().map(str::to_owned)
        }
        _ => None,
    }
}

fn raise_exception(reason: &str) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("the template refuses these messages: {reason}")))
}

/// Line, kind, detail and the text of the line, on one line.
fn explain(source: &str, error: &minijinja::Error) -> String {
    const MAX_SHOWN: usize = 120;
    let mut text = match error.line() {
        Some(line) => format!("line {line}: {}", error.kind()),
        None => error.kind().to_string(),
    };
    if let Some(detail) = error.detail() {
        text.push_str(&format!(": {detail}"));
    }
    if let Some(shown) = error.line().and_then(|line| source.lines().nth(line.saturating_sub(1))) {
        let shown: String = shown.trim().chars().take(MAX_SHOWN).collect();
        text.push_str(&format!(" in {shown:?}"));
    }
    text
}

/// Replaces the block tags `generation` and `endgeneration`, which mark what to train on and print nothing, by plain conditions.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let inner = tag[2..].trim_start_matches(['-', '+']);
        let word = inner.trim_start();
        let end = word.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(word.len());
        let plain = match &word[..end] {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        let from = tag.len() - word.len();
        match plain {
            Some(plain) => {
                out.push_str(&tag[..from]);
                out.push_str(plain);
                rest = &word[end..];
            }
            None => {
                out.push_str(&tag[..2]);
                rest = &tag[2..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// JSON as Python writes it: a space after comma and colon, no escapes for HTML; `indent` as there.
fn tojson(value: Value, options: Kwargs) -> Result<String, minijinja::Error> {
    const MAX_INDENT: usize = 16;
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<Value> = options.get("ensure_ascii")?;
    let _: Option<Value> = options.get("sort_keys")?;
    let _: Option<Value> = options.get("separators")?;
    options.assert_all_used()?;
    let json = serde_json::to_value(&value)
        .map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, "cannot be written as JSON").with_source(e))?;
    let mut out = String::new();
    write_json(&json, indent.map(|n| n.min(MAX_INDENT)), 0, &mut out);
    Ok(out)
}

fn write_json(value: &Json, indent: Option<usize>, depth: usize, out: &mut String) {
    let line = |depth: usize, first: bool, out: &mut String| match indent {
        Some(n) => {
            out.push_str(if first { "\n" } else { ",\n" });
            out.extend(std::iter::repeat_n(' ', n * depth));
        }
        None if !first => out.push_str(", "),
        None => {}
    };
    let close = |empty: bool, out: &mut String| {
        if let Some(n) = indent.filter(|_| !empty) {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', n * depth));
        }
    };
    match value {
        Json::Array(values) => {
            out.push('[');
            for (i, v) in values.iter().enumerate() {
                line(depth + 1, i == 0, out);
                write_json(v, indent, depth + 1, out);
            }
            close(values.is_empty(), out);
            out.push(']');
        }
        Json::Object(entries) => {
            out.push('{');
            for (i, (key, v)) in entries.iter().enumerate() {
                line(depth + 1, i == 0, out);
                out.push_str(&Json::String(key.clone()).to_string());
                out.push_str(": ");
                write_json(v, indent, depth + 1, out);
            }
            close(entries.is_empty(), out);
            out.push('}');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}
