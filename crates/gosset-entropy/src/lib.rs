//! Bit streams, Rice codes, stream tables and rate accounting.
#![forbid(unsafe_code)]
