//! The stored rate curve of Gaussian data: payload and distortion as functions of alpha.

use super::curve_table;
use super::family::N_TABLES;

/// A point of the curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CurvePoint {
    /// Grid steps per unit of RMS, the inverse of the step.
    pub alpha: f64,
    /// Payload in bits per value.
    pub payload_bps: f64,
    /// Signal-to-noise ratio in decibels.
    pub snr_db: f64,
    /// The table of the family for this alpha.
    pub table: u16,
}

/// The curve of one number of states, ascending in every field; linear in between.
///
/// Only the four basic operations and comparisons are used, so that any machine finds the same alpha for a rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Curve {
    points: &'static [[f64; 3]; N_TABLES],
}

impl Curve {
    /// The curve of a trellis with that many states.
    pub(super) fn of(states: u32) -> Self {
        let points = match states {
            8 => &curve_table::TRELLIS_8,
            64 => &curve_table::TRELLIS_64,
            _ => &curve_table::TRELLIS_256,
        };
        Self { points }
    }

    /// The point of that payload; the ends of the curve beyond them.
    pub(super) fn at_bps(&self, payload_bps: f64) -> CurvePoint {
        self.interpolate(1, payload_bps)
    }

    /// The point of that alpha; the ends of the curve beyond them.
    pub(super) fn at_alpha(&self, alpha: f64) -> CurvePoint {
        self.interpolate(0, alpha)
    }

    fn interpolate(&self, key: usize, value: f64) -> CurvePoint {
        let after = self.points.partition_point(|point| point[key] < value).clamp(1, self.points.len() - 1);
        let (a, b) = (self.points[after - 1], self.points[after]);
        let t = ((value - a[key]) / (b[key] - a[key])).clamp(0.0, 1.0);
        let at = |i: usize| a[i] + t * (b[i] - a[i]);
        // Point i of the curve was measured with table i.
        let table = if t < 0.5 { after - 1 } else { after };
        CurvePoint { alpha: at(0), payload_bps: at(1), snr_db: at(2), table: table as u16 }
    }
}
