//! What can go wrong.

use thiserror::Error;

/// Errors of this crate.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum UniSvqError {
    /// Lengths or dimensions that do not belong together.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// What was measured.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A value that is NaN or infinite.
    #[error("{what}, row {row}, column {col}: found {value}, expected finite values")]
    NonFinite {
        /// The matrix.
        what: &'static str,
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
        /// The value.
        value: String,
    },
    /// No damping up to the cap made the matrix positive definite.
    #[error("second moments of {n} inputs cannot be factored: damping was raised {tried} times up to {sigma}")]
    NotPositiveDefinite {
        /// Order of the matrix.
        n: usize,
        /// How often damping was raised.
        tried: usize,
        /// The last damping, as a share of the mean diagonal.
        sigma: f64,
    },
    /// A frame that does not cover its side.
    #[error("frame: {0}")]
    Frame(#[from] gosset_transform::TransformError),
    /// A parameter outside its range.
    #[error("{name}: expected {expected}, found {found}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
}
