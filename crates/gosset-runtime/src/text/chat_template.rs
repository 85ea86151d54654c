//! Chat messages to the text a model was trained on.

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
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
}

const NAME: &str = "chat_template";

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
    /// [`RuntimeError::Template`] with line and construct.
    pub fn new(source: String, bos: Option<String>, eos: Option<String>) -> Result<Self, RuntimeError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        environment
            .add_template_owned(NAME, without_generation_marks(&source))
            .map_err(|e| RuntimeError::Template(explain(&source, &e)))?;
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
        let fail = |e: minijinja::Error| RuntimeError::Template(explain(&self.source, &e));
        let template = self.environment.get_template(NAME).map_err(fail)?;
        template
            .render(context! {
                messages => messages,
                add_generation_prompt => add_generation_prompt,
                bos_token => self.bos.as_deref().unwrap_or_default(),
                eos_token => self.eos.as_deref().unwrap_or_default(),
            })
            .map_err(fail)
    }

    /// The template as written.
    pub fn source(&self) -> &str {
        &self.source
    }
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
