//! Fixtures that the tests of several crates share. Standard library only, so that any crate may use them in its tests.
#![forbid(unsafe_code)]

pub mod t0;
