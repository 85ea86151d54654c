//! Runs transformers from a Gosset container, a GGUF file or a Hugging Face folder, on candle.
