//! Runs transformers from a Gosset container, a GGUF file or a Hugging Face folder, on candle.
//!
//! | item | gives |
//! |---|---|
//! | [`source::open_source`] | a checkpoint as one kind of thing, whatever its files are |
//! | [`LanguageModel`] | hidden states, logits and scores; from a checkpoint in f32, from a container as it is stored |
//! | [`Linear`] | a layer over dense, coded or stored weights, as candle's `Module` |
//! | [`DeviceChoice`] | the device a person asks for, opened or refused with a reason |
//! | [`KvCache`] | the state of one conversation, in f32 or compressed |
//! | [`kv_device_gap`] | why a device cannot keep a compressed cache of some specification |
//! | [`KeyMeans`] | whether the keys of a model lie so far off zero that a cache has to know |
//! | [`generate`](fn@generate) | text, streamed without splitting characters |
//! | [`generate_with_cache`] | the next turn of a conversation, without computing the earlier ones again |
//! | [`text`] | tokenizers, incremental detokenization, chat templates |
//!
//! Weights of a container stay in the file's map in their compressed form. Each use decodes a block of rows into scratch,
//! multiplies it in the rotated frame with the activation, which is rotated once, and forgets it; apart from activations the
//! process holds no more than the file, the norms and one such block (2 MB for usual widths). Arithmetic is f32, and every result
//! is the same for any number of threads.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use gosset_container::Container;
//! use gosset_runtime::{GenerateOptions, LanguageModel, LoadOptions, generate};
//!
//! let container = Container::open("model.gosset".as_ref())?;
//! let model = LanguageModel::from_container(container, &LoadOptions::default())?;
//! let prompt = model.require_tokenizer()?.encode("The capital of France is")?;
//! let generation = generate(&model, &prompt, &GenerateOptions::greedy(32), &mut |_piece| ControlFlow::Continue(()))?;
//! assert_eq!(generation.n_prompt, prompt.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod arch;
mod attention;
pub mod calibration;
#[cfg(feature = "cuda")]
pub mod candle_cuda;
mod columns;
mod config;
mod device;
mod error;
mod generate;
#[cfg(feature = "gpu")]
pub mod gpu;
mod kv;
mod kv_cache;
mod language_model;
mod linear;
mod models;
mod norm;
mod rope;
mod row_blocks;
mod sampler;
pub mod source;
mod tensor;
#[cfg(test)]
mod tests;
pub mod text;
mod trees;
pub mod tune;
mod unisvq;
mod weights;

/// The candle whose tensors and modules this crate speaks.
pub use candle_core;
pub use config::{LocalLayers, ModelConfig, RopeSettings};
pub use device::{ComputeDevice, DeviceChoice, DeviceError};
pub use error::RuntimeError;
pub use generate::{GenerateOptions, Generation, Receiver, StopReason, generate, generate_with_cache};
pub use kv::{CHECK_TOKENS, KeyMeans, PROBE_TOKENS, kv_device_gap};
pub use kv_cache::KvCache;
pub use language_model::{Device, LOGIT_SLICE, LanguageModel, LoadOptions, Resident};
pub use linear::{Linear, StoredRows};
pub use models::{Architecture, Gate};
pub use rope::RopeScaling;
pub use sampler::Sampling;
pub use trees::{ScoredToken, TokenBranch, TokenTree};
pub use weights::check_shapes;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
