//! The stored rate curves of the trellises.

use super::curve_table;
use super::family::N_TABLES;
use crate::scheme::curve::Curve;

/// The curve of a trellis with that many states; its stored point i was measured with table i of the family.
pub(crate) fn curve_of(states: u32) -> Curve {
    let points: &'static [[f64; 3]; N_TABLES] = match states {
        8 => &curve_table::TRELLIS_8,
        64 => &curve_table::TRELLIS_64,
        _ => &curve_table::TRELLIS_256,
    };
    Curve::new(points)
}
