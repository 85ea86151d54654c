//! Constants of the codes by bits per weight and state.

use alloc::vec::Vec;

use super::code::Code;
use super::constants_table::{PAIR_TABLES, PAIRS, QUANTILES, UPPER_QUANTILES};
use super::spec::{MIN_STATE_BITS, ShiftCode, ShiftSpec};

/// The code of a checked spec.
pub(crate) fn code(spec: ShiftSpec) -> Code {
    let (multipliers, ..) = *entry(spec);
    match spec.code {
        ShiftCode::Quantiles => Code::Quantiles { multipliers, table: quantiles() },
        ShiftCode::Pairs => {
            let table = PAIR_TABLES[usize::from(spec.bits) - 2].to_vec();
            Code::Pairs { multiplier: multipliers[0], table }
        }
    }
}

/// Factor from the values of the code to rows of unit variance.
pub(crate) fn step(spec: ShiftSpec) -> f32 {
    entry(spec).1
}

/// Squared error of Gaussian rows of unit variance after the least-squares gain.
pub(crate) fn gaussian_mse(spec: ShiftSpec) -> f64 {
    entry(spec).2
}

/// Multipliers, step and squared error.
fn entry(spec: ShiftSpec) -> &'static ([u32; 2], f32, f64) {
    let state = usize::from(spec.state_bits - MIN_STATE_BITS);
    match spec.code {
        ShiftCode::Quantiles => {
            let bits = ShiftSpec::BITS.iter().position(|&bits| bits == spec.bits);
            &QUANTILES[bits.expect("the bits of a checked spec are in the list")][state]
        }
        ShiftCode::Pairs => &PAIRS[usize::from(spec.bits) - 2][state],
    }
}

/// All quantiles: those below the middle mirror those above.
fn quantiles() -> Vec<u16> {
    let upper = UPPER_QUANTILES;
    upper.iter().rev().map(|half| half | 0x8000).chain(upper).collect()
}

#[cfg(test)]
mod tests {
    use super::super::code::half_to_f32;
    use super::*;

    #[test]
    fn the_table_of_quantiles_ascends_and_is_odd() {
        let values: Vec<f32> = quantiles().into_iter().map(half_to_f32).collect();
        assert_eq!(values.len(), super::super::TABLE_LEN);
        assert!(values.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(values.iter().zip(values.iter().rev()).all(|(a, b)| *a == -b));
        // The quantiles of 1/2 + 1/2048 and of 1 - 1/2048 of a unit Gaussian.
        assert!((values[512] - 0.001_223_9).abs() < 1e-6 && (values[1023] - 3.297_2).abs() < 1e-3);
    }

    #[test]
    fn multipliers_are_odd() {
        let all = QUANTILES.iter().chain(&PAIRS).flatten();
        assert!(all.into_iter().all(|(multipliers, ..)| multipliers.iter().all(|m| m % 2 == 1)));
    }

    #[test]
    fn pairs_are_finite_and_within_what_the_search_can_hold() {
        let halves = PAIR_TABLES.iter().flatten().flat_map(|word| [*word as u16, (word >> 16) as u16]);
        assert!(halves.into_iter().all(|half| half_to_f32(half).abs() < 4.0));
    }
}
