//! Steps of columns: where the bits go.

use gosset_codec::N_EXPONENTS;

/// Exponents of columns, in quarters of octaves, that make steps as nearly proportional to 1/√D_k as 16 of them allow.
///
/// At one distortion level every column then gains as much from another bit. Where the spread of D_k is larger than the exponents can
/// follow, they cover the range in which the sum of D_k step_k² / (2 ln 2) - log2 step_k, distortion and rate of many bits, is least.
pub(super) fn exponents(weights: &[f64]) -> Vec<u8> {
    let asked: Vec<i32> = weights.iter().map(|d| (-2.0 * d.log2()).round() as i32).collect();
    let top = N_EXPONENTS as i32 - 1;
    let cost = |from: i32| -> f64 {
        let of = |&asked: &i32| {
            // How far the step is from the one asked for, in octaves.
            let octaves = f64::from(asked.clamp(from, from + top) - asked) / 4.0;
            (2.0 * octaves).exp2() / (2.0 * std::f64::consts::LN_2) - octaves
        };
        asked.iter().map(of).sum()
    };
    let (least, most) = (asked.iter().min().copied().unwrap_or(0), asked.iter().max().copied().unwrap_or(0));
    let from = (least..=(most - top).max(least)).min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(least);
    asked.iter().map(|&asked| (asked.clamp(from, from + top) - from) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_the_square_root() {
        assert_eq!(exponents(&[1.0, 0.25, 4.0, 1.0 / 16.0, 1.02]), [4, 8, 0, 12, 4]);
        assert_eq!(exponents(&[3.0; 5]), [0; 5]);
    }

    #[test]
    fn a_column_that_hardly_counts_does_not_flatten_the_others() {
        let mut weights: Vec<f64> = (0..64).map(|i| if i % 2 == 0 { 1.0 } else { 0.25 }).collect();
        weights[5] = 1e-12;
        let exponents = exponents(&weights);
        assert_eq!(exponents[5], 15);
        assert_eq!(exponents[1] - exponents[0], 4);
    }
}
