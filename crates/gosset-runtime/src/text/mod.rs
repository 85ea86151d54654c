//! Text to token ids and back: tokenizers, incremental detokenization, chat templates.

mod chat_template;
mod text_stream;
#[cfg(test)]
mod text_tests;
mod tokenizer;

pub use chat_template::{ChatTemplate, Message};
pub use text_stream::TextStream;
pub use tokenizer::Tokenizer;
