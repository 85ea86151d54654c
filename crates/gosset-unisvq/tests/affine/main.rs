//! The affine grid, its codes, and matrices of them.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which fail by panicking")]

mod grid;
mod matrix;
#[allow(dead_code, reason = "shared with the tests of feedback")]
#[path = "../feedback/support.rs"]
mod support;
