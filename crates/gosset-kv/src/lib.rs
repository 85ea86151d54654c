//! Compressed KV caches for transformers, for any runtime: slices in, slices out.
//!
//! | item | gives |
//! |---|---|
//! | [`KvSpec`] | what a text such as `e8@2.25,window=256` asks for: codecs, policy, protected layers |
//! | [`Probe`], [`ProbeBuilder`] | statistics of keys and queries that frames of keys are made from |
//! | [`LatticeKv`], [`TrellisKv`], [`ShiftKv`], [`FloatKv`] | the codecs of this crate |
//! | [`ShiftPlan`] | what another machine needs to write and read the same pages as [`ShiftKv`] |
//! | [`KvCodec`] | vectors of one head to rows of codes, rows to sealed pages, and back; open for other codecs |
//! | [`Policy`] | which positions are exact (sinks, window), how long pages are |
//! | [`KvStore`] | positions in, attention out; rewinds, clones |
//! | [`KvMemory`] | what it takes, by cause |
//! | [`KvError`] | what went wrong, where, and what to do |
#![forbid(unsafe_code)]

mod attend;
mod codec;
mod coded;
mod coder;
mod curve;
mod curve_table;
mod dither;
mod eigen;
mod error;
mod float_kv;
mod frame;
mod lattice_kv;
mod matrix;
mod memory;
mod norm;
mod norm_frame;
mod overhead;
mod pages;
mod place;
mod policy;
mod probe;
mod products;
mod ring;
mod rotary;
mod rotation;
mod rows;
mod shift;
mod shift_kv;
mod spec;
mod store;
mod trellis_kv;
mod views;

pub use attend::{AttendScratch, KeyRotation};
pub use codec::{KvCodec, PageBits, Place, Role};
pub use error::KvError;
pub use float_kv::FloatKv;
pub use lattice_kv::LatticeKv;
pub use memory::{KvMemory, KvNote};
pub use policy::{Budget, ExactType, KvShape, Policy, Protected};
pub use probe::{HeadProbe, Probe, ProbeBuilder, RopePairs};
pub use shift::{ShiftFrame, ShiftPlan, ShiftRotary, ShiftRotation};
pub use shift_kv::ShiftKv;
pub use spec::{
    Code, Codecs, Coder, DEFAULT_PAGE, Frame, GRAMMAR, KvSpec, MAX_RATE, MIN_RATE, NormKind, RoleSpec, Rotation,
    parse_policy,
};
pub use store::KvStore;
pub use trellis_kv::TrellisKv;
pub use views::{Held, PageView};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
