//! What can be wrong with a trellis, its numbers or its words.

use core::fmt;

/// Why a spec, numbers or words were rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrellisError {
    /// A parameter of a spec is outside its range.
    Parameter {
        /// Which parameter.
        name: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: u64,
    },
    /// A slice has the wrong length.
    Length {
        /// Which slice.
        slice: &'static str,
        /// Length that it must have.
        expected: usize,
        /// Length that it has.
        found: usize,
    },
}

impl fmt::Display for TrellisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter { name, expected, found } => write!(f, "{name}: expected {expected}, found {found}"),
            Self::Length { slice, expected, found } => {
                write!(f, "{slice}: expected {expected} elements, found {found}")
            }
        }
    }
}

impl core::error::Error for TrellisError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn messages_say_where_what_and_what_was_expected() {
        let error = TrellisError::Parameter { name: "state bits", expected: "12 to 18", found: 40 };
        assert_eq!(error.to_string(), "state bits: expected 12 to 18, found 40");
    }
}
