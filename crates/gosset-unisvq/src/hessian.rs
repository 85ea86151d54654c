//! Second moments of the inputs of a linear layer.

use crate::UniSvqError;

/// The mean of x xᵀ over calibration tokens, `n` x `n`, symmetric, undamped.
#[derive(Debug, Clone, PartialEq)]
pub struct Hessian {
    n: usize,
    data: Vec<f64>,
    n_tokens: u64,
}

impl Hessian {
    /// Around row-major `data` of `n` x `n` values, a mean over `n_tokens` tokens.
    ///
    /// # Errors
    /// [`UniSvqError::Shape`] for another length or `n` = 0, [`UniSvqError::NonFinite`] for NaN and infinities.
    pub fn new(n: usize, data: Vec<f64>, n_tokens: u64) -> Result<Self, UniSvqError> {
        if n == 0 || n.checked_mul(n) != Some(data.len()) {
            let (expected, found) = (format!("{n} x {n} values"), data.len().to_string());
            return Err(UniSvqError::Shape { what: "hessian", expected, found });
        }
        match data.iter().position(|v| !v.is_finite()) {
            Some(i) => Err(UniSvqError::NonFinite { what: "hessian", row: i / n, col: i % n, value: data[i].to_string() }),
            None => Ok(Self { n, data, n_tokens }),
        }
    }

    /// Number of inputs.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// All values, row-major.
    #[must_use]
    pub fn as_slice(&self) -> &[f64] {
        &self.data
    }

    /// Tokens that the mean is over.
    #[must_use]
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }
}
