//! Affine-grid quantization of weight matrices (UniSVQ), Hessians, block LDL, and LDLQ error feedback over any rounding rule.
#![forbid(unsafe_code)]

mod accumulator;
mod block_ldl;
mod damping;
mod decoder;
mod drift;
mod encode;
mod error;
mod feedback;
mod grid;
mod hessian;
mod incoherence;
mod ldlq;
mod matrix;
mod order;
mod pack;
mod parallel;
mod proxy;
mod refine;
mod round;
mod spec;

pub use accumulator::{CrossAccumulator, HessianAccumulator};
pub use block_ldl::{BlockLdl, block_ldl};
pub use damping::{Damped, DampingMethod, DampingReport, DampingSpec};
pub use decoder::UniSvqDecoder;
pub use drift::drift_target;
pub use encode::UniSvqReport;
pub use error::UniSvqError;
pub use feedback::{Feedback, FeedbackReport};
pub use grid::{Grid, NearestPoint, initial_map};
pub use hessian::Hessian;
pub use incoherence::{Frame, FrameHeader};
pub use ldlq::{LdlqOptions, ldlq, round_plain};
pub use matrix::{AffineMap, UniSvqHeader, UniSvqMatrix};
pub use order::{InputOrder, flattest_order};
pub use pack::{pack_row, row_bytes, unpack_row, unpack_row_f32};
pub use proxy::{proxy, relative_proxy};
pub use refine::{RefineOptions, RefineReport, refine};
pub use round::Round;
pub use spec::{GridInit, Incoherence, UniSvq, UniSvqSpec};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
