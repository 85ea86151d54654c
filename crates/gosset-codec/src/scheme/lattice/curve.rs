//! The stored rate curves of lattices and codes.

use gosset_lattice::LatticeKind;

use super::{ans_curve_table, curve_table};
use crate::CodeKind;
use crate::scheme::curve::Curve;

/// The curve of a lattice under a code.
pub(super) fn curve_of(lattice: LatticeKind, code: CodeKind) -> Curve {
    let points: &'static [[f64; 3]] = match (lattice, code) {
        (LatticeKind::Z, CodeKind::Rice) => &curve_table::Z_RICE,
        (LatticeKind::A2, CodeKind::Rice) => &curve_table::A2_RICE,
        (LatticeKind::D4, CodeKind::Rice) => &curve_table::D4_RICE,
        (LatticeKind::E8, CodeKind::Rice) => &curve_table::E8_RICE,
        (LatticeKind::Z, CodeKind::Ans) => &ans_curve_table::Z_ANS,
        (LatticeKind::A2, CodeKind::Ans) => &ans_curve_table::A2_ANS,
        (LatticeKind::D4, CodeKind::Ans) => &ans_curve_table::D4_ANS,
        (LatticeKind::E8, CodeKind::Ans) => &ans_curve_table::E8_ANS,
    };
    Curve::new(points)
}
