//! Integration tests of the workspace; see `it/`.
