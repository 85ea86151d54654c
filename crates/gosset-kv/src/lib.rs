//! Compressed KV caches for transformers, for any runtime: slices in, slices out.
//!
//! | item | gives |
//! |---|---|
//! | [`KvCodec`] | vectors of one head to rows of codes, rows to sealed pages, and back; open for other codecs |
//! | [`Policy`] | which positions are exact (sinks, window), how long pages are |
//! | [`KvStore`] | positions in, attention out; rewinds, clones |
//! | [`KvMemory`] | what it takes, by cause |
//! | [`KvError`] | what went wrong, where, and what to do |
#![forbid(unsafe_code)]

mod attend;
mod codec;
mod error;
mod memory;
mod pages;
mod policy;
mod products;
mod ring;
mod store;
mod views;

pub use attend::{AttendScratch, KeyRotation};
pub use codec::{KvCodec, PageBits, Place, Role};
pub use error::KvError;
pub use memory::{KvMemory, KvNote};
pub use policy::{Budget, ExactType, KvShape, Policy, Protected};
pub use store::KvStore;
pub use views::{Held, PageView};
