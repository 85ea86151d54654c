//! Compressed KV caches for transformers, for any runtime: slices in, slices out.
//!
//! | item | gives |
//! |---|---|
//! | [`KvCodec`] | vectors of one head to rows of codes, rows to sealed pages, and back; open for other codecs |
//! | [`Policy`] | which positions are exact (sinks, window), how long pages are |
//! | [`KvError`] | what went wrong, where, and what to do |

mod codec;
mod error;
mod policy;

pub use codec::{KvCodec, PageBits, Place, Role};
pub use error::KvError;
pub use policy::{Budget, ExactType, KvShape, Policy, Protected};
