//! Stored rate curves of Gaussian data: payload and distortion as functions of alpha.

/// A point of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CurvePoint {
    /// Scale that rows of unit RMS are multiplied by.
    pub alpha: f64,
    /// Payload in bits per value, with the best parameters of the code.
    pub payload_bps: f64,
    /// Signal-to-noise ratio in decibels.
    pub snr_db: f64,
    /// Index of the nearer one of the stored points around it.
    pub nearest: usize,
}

/// A curve, ascending in alpha, payload and distortion ratio; linear in between.
///
/// Only the four basic operations and comparisons are used, so that any machine finds the same alpha for a rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Curve {
    points: &'static [[f64; 3]],
}

impl Curve {
    /// The curve through rows of alpha, payload and signal-to-noise ratio, at least two.
    pub(crate) fn new(points: &'static [[f64; 3]]) -> Self {
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
        let nearest = if t < 0.5 { after - 1 } else { after };
        CurvePoint { alpha: at(0), payload_bps: at(1), snr_db: at(2), nearest }
    }
}
