//! Constants of the codes.

use alloc::vec::Vec;

use super::code::Code;
use super::spec::{ShiftCode, ShiftSpec};
use super::tables;

/// The code of a spec.
pub(crate) fn code(spec: ShiftSpec) -> Code {
    match spec.code {
        ShiftCode::Quantiles => Code::Quantiles { multipliers: [0x1ee7b, 0x36b73], table: quantiles() },
        ShiftCode::Pairs => Code::Pairs { multiplier: 0x1bc4d, table: Vec::from([0; 1024]) },
    }
}

/// Factor from the values of the code to rows of unit variance.
pub(crate) fn step(spec: ShiftSpec) -> f32 {
    match spec.bits {
        2 => 1.0,
        3 => 1.05,
        _ => 1.08,
    }
}

/// Measured squared error.
pub(crate) fn gaussian_mse(spec: ShiftSpec) -> f64 {
    let _ = spec;
    1.0
}

/// All quantiles, from those above the middle.
fn quantiles() -> Vec<u16> {
    let upper = tables::QUANTILES;
    upper.iter().rev().map(|half| half | 0x8000).chain(upper).collect()
}
