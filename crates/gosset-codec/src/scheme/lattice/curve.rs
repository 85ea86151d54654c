//! The stored rate curve of Gaussian data: payload and distortion as functions of alpha.

use gosset_lattice::LatticeKind;

use super::{ans_curve_table, curve_table};
use crate::CodeKind;

/// A point of the curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CurvePoint {
    /// Scale of the lattice.
    pub alpha: f64,
    /// Payload in bits per value, with the best parameters of the code.
    pub payload_bps: f64,
    /// Signal-to-noise ratio in decibels.
    pub snr_db: f64,
}

/// The curve of one lattice and code, ascending in every field; linear in between.
///
/// Only the four basic operations and comparisons are used, so that any machine finds the same alpha for a rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Curve {
    points: &'static [[f64; 3]],
}

impl Curve {
    /// The curve of a lattice under a code.
    pub(crate) fn of(lattice: LatticeKind, code: CodeKind) -> Self {
        let points: &[[f64; 3]] = match (lattice, code) {
            (LatticeKind::Z, CodeKind::Rice) => &curve_table::Z_RICE,
            (LatticeKind::A2, CodeKind::Rice) => &curve_table::A2_RICE,
            (LatticeKind::D4, CodeKind::Rice) => &curve_table::D4_RICE,
            (LatticeKind::E8, CodeKind::Rice) => &curve_table::E8_RICE,
            (LatticeKind::Z, CodeKind::Ans) => &ans_curve_table::Z_ANS,
            (LatticeKind::A2, CodeKind::Ans) => &ans_curve_table::A2_ANS,
            (LatticeKind::D4, CodeKind::Ans) => &ans_curve_table::D4_ANS,
            (LatticeKind::E8, CodeKind::Ans) => &ans_curve_table::E8_ANS,
        };
        Self { points }
    }

    /// The point of that payload; the ends of the curve beyond them.
    pub(crate) fn at_bps(&self, payload_bps: f64) -> CurvePoint {
        self.interpolate(1, payload_bps)
    }

    /// The point of that alpha; the ends of the curve beyond them.
    pub(crate) fn at_alpha(&self, alpha: f64) -> CurvePoint {
        self.interpolate(0, alpha)
    }

    fn interpolate(&self, key: usize, value: f64) -> CurvePoint {
        let after = self.points.partition_point(|point| point[key] < value).clamp(1, self.points.len() - 1);
        let (a, b) = (self.points[after - 1], self.points[after]);
        let t = ((value - a[key]) / (b[key] - a[key])).clamp(0.0, 1.0);
        let at = |i: usize| a[i] + t * (b[i] - a[i]);
        CurvePoint { alpha: at(0), payload_bps: at(1), snr_db: at(2) }
    }
}
