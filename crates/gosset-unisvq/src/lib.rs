//! Affine-grid quantization of weight matrices (UniSVQ), Hessians, block LDL, and LDLQ error feedback over any rounding rule.
#![forbid(unsafe_code)]

mod error;
mod hessian;
mod round;

pub use error::UniSvqError;
pub use hessian::Hessian;
pub use round::Round;
