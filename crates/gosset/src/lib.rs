//! Near-Shannon quantization of transformer weights: one crate that re-exports the product.
#![forbid(unsafe_code)]
