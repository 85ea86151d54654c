//! What launches check of their arguments.

use crate::error::CudaError;

/// A count that kernels hold in 32 bits.
pub(super) fn to_u32(what: &'static str, n: usize) -> Result<u32, CudaError> {
    u32::try_from(n).ok().filter(|&n| n < 1 << 31).ok_or_else(|| CudaError::shape(what, "below 2^31", n))
}

/// Checks the length of an argument.
pub(super) fn check_len(what: &'static str, found: usize, expected: usize) -> Result<(), CudaError> {
    if found != expected {
        return Err(CudaError::shape(what, format!("{expected} elements"), found));
    }
    Ok(())
}
