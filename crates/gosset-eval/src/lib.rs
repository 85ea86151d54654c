//! Perplexity protocols, metrics and result records; independent of any runtime.
#![forbid(unsafe_code)]
