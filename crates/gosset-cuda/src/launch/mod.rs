//! Typed launches: one file per kernel source, each of which checks shapes, fills one parameter struct and launches.
//!
//! Whoever adds a file adds its line here.

pub mod model;
pub mod probe;
pub mod rht;
pub mod viterbi;
