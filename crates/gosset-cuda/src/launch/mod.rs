//! Typed launches: one file per kernel source, each of which checks shapes, fills one parameter struct and launches.
//!
//! Whoever adds a file adds its line here.

pub mod ans;
mod checks;
pub mod copy;
mod decoded;
pub mod dense;
pub mod fixed;
pub mod kv;
pub mod model;
pub mod probe;
pub mod quantize;
pub mod random;
pub mod rht;
pub mod rice;
pub mod rice_lanes;
mod rice_layout;
pub mod rice_planes;
pub mod shift;
mod shift_few;
mod shift_gemm;
mod shift_layout;
pub mod unisvq;
mod unisvq_gemm;
mod unisvq_layout;
pub mod viterbi;

pub use decoded::{PointType, ValueType};
