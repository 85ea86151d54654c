//! Text to token ids and back: tokenizers, incremental detokenization, chat templates.
