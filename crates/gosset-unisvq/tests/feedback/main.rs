//! Error feedback: second moments, damping, factors, sweeps, re-tuning.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which fail by panicking")]

mod cases;
mod laws;
mod moments;
mod support;
mod vectors;
