//! QuIP#'s padded E8 codebook, with and without error feedback.

mod codebook;
mod feedback;
mod plain;

pub use feedback::E8p;
pub use plain::E8pRtn;
