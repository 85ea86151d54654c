//! Errors of the baselines.

/// What kept a matrix from being encoded or decoded. Each variant says what was expected, what was found and where.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BaselineError {
    /// The text is not `name@rate`.
    #[error("`{text}` names no baseline, expected `name@rate` such as `higgs2@3`")]
    Syntax {
        /// The text.
        text: String,
    },
    /// There is no family of that name.
    #[error("unknown baseline `{name}`, expected one of {expected}")]
    Unknown {
        /// The name.
        name: String,
        /// Every name there is.
        expected: String,
    },
    /// The family has no member of that rate.
    #[error("{name} has no form of {asked} bits per weight, expected one of {expected}")]
    Rate {
        /// The family.
        name: String,
        /// The rate asked for.
        asked: f64,
        /// Every rate there is.
        expected: String,
    },
    /// The number of values is not that of the matrix, or the matrix is empty or too large.
    #[error("a matrix of {rows} x {cols}: {what}")]
    Shape {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
        /// Expected and found.
        what: String,
    },
    /// A value that is not a finite number, or that leaves the range of f32 when its row is rotated.
    #[error("row {row}, column {col}: expected a finite number, found {value}")]
    NotFinite {
        /// Row.
        row: usize,
        /// Column, after rotation if the method rotates.
        col: usize,
        /// The value.
        value: f32,
    },
    /// A scale that its stored type cannot hold.
    #[error("row {row}, group {group}: the scale {scale} exceeds the range of its stored type")]
    Scale {
        /// Row.
        row: usize,
        /// Group in the row.
        group: usize,
        /// The scale.
        scale: f32,
    },
    /// A plane that is missing or has the wrong length.
    #[error("plane `{plane}`: expected {expected} bytes, found {found}")]
    PlaneLength {
        /// Its name.
        plane: &'static str,
        /// Bytes that the shape asks for.
        expected: usize,
        /// Bytes there are.
        found: usize,
    },
    /// Error feedback failed.
    #[error(transparent)]
    Feedback(#[from] gosset_unisvq::UniSvqError),
    /// The method of a third party failed.
    #[error("{0}")]
    Other(String),
}
