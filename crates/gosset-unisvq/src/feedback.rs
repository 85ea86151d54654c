//! The whole loop for rules that round blocks on their own: damp, factor, sweep, re-tune, and never end above plain rounding.

use crate::damping::{DampingMethod, DampingReport, DampingSpec};
use crate::ldlq::{LdlqOptions, check_matrix, ldlq, round_plain};
use crate::proxy::{difference_proxy, ratio, weights_proxy};
use crate::refine::{RefineOptions, refine};
use crate::{BlockLdl, Damped, Hessian, Round, UniSvqError};

/// What was done, and what it cost: errors are tr((W - Ŵ) H (W - Ŵ)ᵀ) / tr(W H Wᵀ) for the damped H.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedbackReport {
    /// What became of the second moments.
    pub damping: DampingReport,
    /// The error of plain rounding.
    pub plain: f64,
    /// The error of what was kept.
    pub kept: f64,
    /// Re-tuning passes that were done.
    pub passes: u32,
    /// Whether plain rounding was kept, because second moments could not be used or feedback was no better.
    pub is_plain: bool,
}

/// Second moments that are ready for any number of sweeps over matrices that read the same inputs.
#[derive(Debug, Clone)]
pub struct Feedback {
    damped: Damped,
    ldl: BlockLdl,
}

impl Feedback {
    /// Damps and factors second moments for blocks of `block` columns.
    ///
    /// # Errors
    /// Those of [`DampingSpec::factor`].
    pub fn new(hessian: &Hessian, damping: DampingSpec, block: usize) -> Result<Self, UniSvqError> {
        let (damped, ldl) = damping.factor(hessian, block)?;
        Ok(Self { damped, ldl })
    }

    /// The damped second moments.
    #[must_use]
    pub fn damped(&self) -> &Damped {
        &self.damped
    }

    /// Their factors.
    #[must_use]
    pub fn ldl(&self) -> &BlockLdl {
        &self.ldl
    }

    /// Rounds `w`, `[rows, n]` row-major, into `out`: a sweep with feedback, then re-tuning, or plain rounding if that is no worse.
    ///
    /// The rounder has to round blocks on their own. Take codes from `out`, not from what the rounder said last.
    ///
    /// # Errors
    /// [`UniSvqError::Shape`] if lengths do not belong together.
    pub fn round(
        &self,
        w: &[f32],
        rows: usize,
        sweep: LdlqOptions,
        tuning: RefineOptions,
        rounder: &mut dyn Round,
        out: &mut [f32],
    ) -> Result<FeedbackReport, UniSvqError> {
        let h = self.damped.as_slice();
        check_matrix("reconstruction", out.len(), rows, self.damped.n())?;
        let mut plain = vec![0.0; w.len()];
        round_plain(w, rows, self.damped.n(), self.ldl.block(), sweep.panel, rounder, &mut plain)?;
        // Products with H are what costs: that of the weights is computed once.
        let energy = weights_proxy(w, rows, h);
        let mut report = FeedbackReport {
            damping: self.damped.report(),
            plain: ratio(difference_proxy(w, &plain, rows, h), energy),
            kept: 0.0,
            passes: 0,
            is_plain: true,
        };
        if report.damping.method == DampingMethod::Damped {
            ldlq(w, rows, &self.ldl, sweep, rounder, out)?;
            let tuned = refine(w, rows, &self.damped, self.ldl.block(), tuning, rounder, out)?;
            report.passes = tuned.passes.len() as u32;
            report.kept = ratio(tuned.best, energy);
            report.is_plain = report.kept.is_nan() || report.kept >= report.plain;
        }
        if report.is_plain {
            out.copy_from_slice(&plain);
            report.kept = report.plain;
        }
        Ok(report)
    }
}
