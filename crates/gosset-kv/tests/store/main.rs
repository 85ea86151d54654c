//! The store against a dense reference: what is exact, what is coded, and what attention makes of it.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which fail by panicking")]

mod attention;
mod byte_codec;
mod dense;
mod f03_exact;
mod f04_splits;
mod f06_clones;
mod f07_rewinds;
mod pages;
mod random_walks;
