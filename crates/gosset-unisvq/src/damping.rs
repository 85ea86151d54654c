//! Damping: what makes any second moments fit to be factored.

use serde::{Deserialize, Serialize};

use crate::block_ldl::{BlockLdl, check_block, factor};
use crate::{Hessian, UniSvqError};

/// How much of the mean diagonal is added to the diagonal, and what happens if that does not suffice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DampingSpec {
    /// Share of the mean diagonal that is added first.
    pub sigma: f64,
    /// Factor of each raise.
    pub factor: f64,
    /// Raises before the second moments are given up.
    pub max_raises: u32,
}

impl Default for DampingSpec {
    /// 0.01, raised tenfold at most three times: up to ten times the mean diagonal.
    fn default() -> Self {
        Self { sigma: 0.01, factor: 10.0, max_raises: 3 }
    }
}

/// What became of second moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DampingMethod {
    /// They were damped and factored.
    Damped,
    /// They hold nothing or could not be factored up to the last raise: the identity stands in for them, which is plain rounding.
    PlainRounding,
}

/// What a report says about damping.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DampingReport {
    /// Whether damping helped.
    pub method: DampingMethod,
    /// The damping that was used, as a share of the mean diagonal.
    pub sigma: f64,
    /// How often it was raised.
    pub raises: u32,
    /// Inputs that were zero in every token of the calibration.
    pub dead_inputs: u64,
    /// Tokens of the calibration.
    pub tokens: u64,
    /// Whether there were tokens, but fewer than inputs, so that the undamped second moments are singular.
    pub too_few_tokens: bool,
}

/// H / mean(diag H) + sigma I. Everything after damping uses this matrix: feedback, re-tuning, proxies, reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Damped {
    n: usize,
    data: Vec<f64>,
    mean_diagonal: f64,
    report: DampingReport,
}

impl Damped {
    /// Number of inputs.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// All values, row-major, symmetric and positive definite.
    #[must_use]
    pub fn as_slice(&self) -> &[f64] {
        &self.data
    }

    /// What the second moments were divided by; 1 for plain rounding.
    #[must_use]
    pub fn mean_diagonal(&self) -> f64 {
        self.mean_diagonal
    }

    /// What was done.
    #[must_use]
    pub fn report(&self) -> DampingReport {
        self.report
    }
}

impl DampingSpec {
    /// Refuses damping that is no damping.
    ///
    /// # Errors
    /// [`UniSvqError::Parameter`] unless `sigma` is positive and finite, and `factor` finite and above 1.
    pub fn check(&self) -> Result<(), UniSvqError> {
        let wrong = |name, expected: &str, found: f64| UniSvqError::Parameter {
            name,
            expected: expected.into(),
            found: found.to_string(),
        };
        if !(self.sigma > 0.0 && self.sigma.is_finite()) {
            return Err(wrong("damping", "a positive finite number", self.sigma));
        }
        if !(self.factor > 1.0 && self.factor.is_finite()) {
            return Err(wrong("factor of damping", "a finite number above 1", self.factor));
        }
        Ok(())
    }

    /// The damped second moments of `hessian` and their factors in blocks of `block` columns.
    ///
    /// Damping is raised until every pivot is positive and finite. If that never happens, or if there is nothing to damp (no input was
    /// ever active), the identity takes the place of the second moments: feedback is zero then, and rounding is plain.
    ///
    /// # Errors
    /// Those of [`DampingSpec::check`], and [`UniSvqError::Parameter`] for blocks of no columns.
    ///
    /// ```
    /// use gosset_unisvq::{DampingSpec, Hessian};
    /// let (damped, ldl) = DampingSpec::default().factor(&Hessian::new(2, vec![3.0, 1.0, 1.0, 1.0], 9)?, 1)?;
    /// assert_eq!(damped.as_slice(), [1.51, 0.5, 0.5, 0.51]);
    /// assert_eq!(ldl.l(1, 0), 0.5 / 1.51);
    /// # Ok::<(), gosset_unisvq::UniSvqError>(())
    /// ```
    pub fn factor(&self, hessian: &Hessian, block: usize) -> Result<(Damped, BlockLdl), UniSvqError> {
        self.check()?;
        check_block(block)?;
        let n = hessian.n();
        let mut report = DampingReport {
            method: DampingMethod::Damped,
            sigma: self.sigma,
            raises: 0,
            dead_inputs: hessian.dead_inputs() as u64,
            tokens: hessian.n_tokens(),
            too_few_tokens: (1..n as u64).contains(&hessian.n_tokens()),
        };
        let mean_diagonal = hessian.mean_diagonal();
        // Subnormal means cannot be divided by without losing everything.
        if mean_diagonal.is_normal() && mean_diagonal > 0.0 {
            for raises in 0..=self.max_raises {
                let sigma = self.sigma * self.factor.powi(raises.min(1 << 20) as i32);
                if !sigma.is_finite() {
                    break;
                }
                (report.sigma, report.raises) = (sigma, raises);
                let mut data: Vec<f64> = hessian.as_slice().iter().map(|v| v / mean_diagonal).collect();
                data.iter_mut().step_by(n + 1).for_each(|v| *v += sigma);
                if let Some(ldl) = factor(&data, n, block) {
                    return Ok((Damped { n, data, mean_diagonal, report }, ldl));
                }
            }
        }
        report.method = DampingMethod::PlainRounding;
        let mut data = vec![0.0; n * n];
        data.iter_mut().step_by(n + 1).for_each(|v| *v = 1.0);
        Ok((Damped { n, data, mean_diagonal: 1.0, report }, BlockLdl::identity(n, block, 1.0)))
    }
}
