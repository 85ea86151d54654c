//! Nearest points and bit stripping of the lattices Z, A2, D4 and E8.
#![forbid(unsafe_code)]
