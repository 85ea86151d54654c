//! Trellis-coded quantization of weights: the fixed-rate bit-shift trellis and the entropy-coded trellis.
//!
//! - [`shift`]: every few weights append a fixed number of bits to a string; a window of the last `L` bits is the state and
//!   a computed code or a small table maps the state to weights. What runs on a GPU.
//! - [`entropy_coded`]: grid points that follow each other as a convolutional code allows, chosen by distortion and rate for an
//!   entropy coder. The least distortion at any rate, for storage and CPUs.
//!
//! The crate knows neither containers nor matrices: it turns rows of numbers of unit variance into words and back. Words
//! are untrusted when they are decoded: any word gives numbers, a wrong length gives a [`TrellisError`].
//!
//! `no_std` with `alloc`. The `std` feature (default) finds vector instructions at run time; words and values are the same bits without.
#![cfg_attr(not(any(test, feature = "std")), no_std)]

extern crate alloc;

pub mod entropy_coded;
mod error;
pub mod shift;

pub use error::TrellisError;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
