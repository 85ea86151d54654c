//! Affine-grid quantization of weight matrices (UniSVQ), Hessians, block LDL, and LDLQ error feedback over any rounding rule.
#![forbid(unsafe_code)]

mod block_ldl;
mod damping;
mod drift;
mod error;
mod feedback;
mod hessian;
mod ldlq;
mod parallel;
mod proxy;
mod refine;
mod round;

pub use block_ldl::{BlockLdl, block_ldl};
pub use damping::{Damped, DampingMethod, DampingReport, DampingSpec};
pub use drift::drift_target;
pub use error::UniSvqError;
pub use feedback::{Feedback, FeedbackReport};
pub use hessian::{CrossAccumulator, Hessian, HessianAccumulator};
pub use ldlq::{LdlqOptions, ldlq, round_plain};
pub use proxy::{proxy, relative_proxy};
pub use refine::{RefineOptions, RefineReport, refine};
pub use round::Round;
