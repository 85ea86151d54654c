//! How many bits Gaussian values take and what reconstruction suits them, by lattice, code and scale.
//!
//! The scale alpha is the standard deviation of the values in units of the lattice's embedding. Curves are stored at
//! alpha = 2^(i/8 − 3) in a table that `cargo run --release -p gosset-kv --example curves` makes, and are linear in log2(alpha) between.

use gosset_lattice::LatticeKind;

use crate::curve_table::{CURVES, LEN};
use crate::spec::Coder;

/// Stored points per doubling of alpha.
pub(crate) const PER_OCTAVE: f64 = 8.0;
/// log2(alpha) of the first stored point.
pub(crate) const FIRST_OCTAVE: f64 = -3.0;

/// Bits per value and the least-squares gain of reconstructions, by stored point.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Curve {
    points: &'static [[f32; 2]; LEN],
}

impl Curve {
    pub(crate) fn new(lattice: LatticeKind, coder: Coder, dither: bool) -> Self {
        let lattice = match lattice {
            LatticeKind::Z => 0,
            LatticeKind::A2 => 1,
            LatticeKind::D4 => 2,
            LatticeKind::E8 => 3,
        };
        Self { points: &CURVES[lattice][usize::from(coder == Coder::Rice)][usize::from(dither)] }
    }

    /// Bits per value at `alpha`, positive and finite.
    pub(crate) fn bits(&self, alpha: f64) -> f64 {
        let (i, t) = self.place(alpha);
        let at = |i: usize| f64::from(self.points[i][0]);
        at(i) + t * (at(i + 1) - at(i))
    }

    /// Factor of reconstructions that brings them nearest to Gaussian values, at most 1.
    pub(crate) fn gain(&self, alpha: f64) -> f64 {
        let (i, t) = self.place(alpha);
        let at = |i: usize| f64::from(self.points[i][1]);
        let t = t.clamp(0.0, 1.0);
        at(i) + t * (at(i + 1) - at(i))
    }

    /// The stored point before alpha and how far to the next it is; beyond the ends the last two points continue, below the first one
    /// the values are those of it.
    fn place(&self, alpha: f64) -> (usize, f64) {
        let at = (libm::log2(alpha) - FIRST_OCTAVE) * PER_OCTAVE;
        let i = at.clamp(0.0, (LEN - 2) as f64) as usize;
        (i, (at - i as f64).max(0.0))
    }

    /// The alpha at which values take `bits`, between the ends of the curve.
    pub(crate) fn alpha(&self, bits: f64) -> f64 {
        let after = self.points.partition_point(|point| f64::from(point[0]) < bits).clamp(1, LEN - 1);
        let at = |i: usize| f64::from(self.points[i][0]);
        let t = ((bits - at(after - 1)) / (at(after) - at(after - 1)).max(1e-6)).clamp(0.0, 1.0);
        libm::exp2(FIRST_OCTAVE + ((after - 1) as f64 + t) / PER_OCTAVE)
    }

    /// Bits per value at the ends of the curve.
    pub(crate) fn range(&self) -> (f64, f64) {
        (f64::from(self.points[0][0]), f64::from(self.points[LEN - 1][0]))
    }
}
