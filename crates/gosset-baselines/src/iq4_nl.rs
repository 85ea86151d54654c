//! The IQ4_NL type of GGUF files.

use half::f16;

use crate::baseline::check_weights;
use crate::groups::{for_groups, groups_per_row, half_scale, nearest_level, thresholds};
use crate::nf4::{decode, encoded};
use crate::{Baseline, BaselineError, Encoded};

/// The levels, in units of the group's scale.
///
/// Source: the type's table in the GGUF ecosystem; the values are part of the file format.
const LEVELS: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// What separates them.
const THRESHOLDS: [f32; 15] = thresholds(&LEVELS);

/// Weights per group.
const GROUP: usize = 32;

/// Scales tried on each side of the one that puts the largest weight on an outermost level.
const TRIES: i32 = 5;

/// 16 levels that are denser near zero, groups of 32 with an fp16 scale: 4.5 bits per weight.
///
/// The scale is searched for the least squared error: candidates put the largest weight near either outermost level, and each is
/// refined by least squares with its codes held. This is what llama.cpp falls back to for Q2_K and Q3_K (and IQ types) where a width
/// is no multiple of 256. Codes and scales lie in planes of their own instead of blocks, which changes no bit count. Where a width
/// is no multiple of 32, the last group of the row is shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Iq4Nl;

impl Iq4Nl {
    /// The best scale of a group.
    fn scale(values: &[f32]) -> Result<f16, f32> {
        let peak = values.iter().fold(0f32, |peak, &v| if v.abs() > peak.abs() { v } else { peak });
        if peak == 0.0 {
            return half_scale(0.0);
        }
        let (mut best, mut best_gain) = (0.0, 0.0);
        for outermost in [LEVELS[0], LEVELS[15]] {
            for step in -TRIES..=TRIES {
                let (dot, energy) = products(values, peak / (outermost + step as f32));
                // With these codes the best scale is dot / energy, which takes dot^2 / energy off the squared error.
                let gain = dot * (dot / energy);
                if gain > best_gain {
                    (best, best_gain) = (dot / energy, gain);
                }
            }
        }
        half_scale(best)
    }
}

fn code(v: f32, scale: f32) -> u16 {
    nearest_level(&THRESHOLDS, if scale == 0.0 { 0.0 } else { v / scale })
}

/// Product of values and levels, and the energy of the levels, for the codes that `scale` gives; the energy is positive, since no
/// level is 0.
fn products(values: &[f32], scale: f32) -> (f32, f32) {
    let inverse = 1.0 / scale;
    values.iter().fold((0.0, 0.0), |(dot, energy), &v| {
        let level = LEVELS[usize::from(nearest_level(&THRESHOLDS, v * inverse))];
        (dot + level * v, energy + level * level)
    })
}

impl Baseline for Iq4Nl {
    fn name(&self) -> &str {
        "iq4_nl"
    }

    fn payload_bps(&self) -> f64 {
        4.0
    }

    fn encode(&self, rows: usize, cols: usize, weights: &[f32]) -> Result<Encoded, BaselineError> {
        let n = check_weights(rows, cols, weights)?;
        let (mut codes, mut scales) = (Vec::with_capacity(n), Vec::new());
        for_groups(cols, GROUP, weights, |values| {
            let scale = Self::scale(values)?;
            scales.extend(scale.to_le_bytes());
            codes.extend(values.iter().map(|&v| code(v, scale.to_f32())));
            Ok(())
        })?;
        Ok(encoded(n, rows * groups_per_row(cols, GROUP), &codes, scales))
    }

    fn decode(&self, rows: usize, cols: usize, encoded: &Encoded) -> Result<Vec<f32>, BaselineError> {
        decode(&LEVELS, GROUP, rows, cols, encoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_come_back_exactly() {
        // Both orientations: the outermost level is negative times the scale.
        for scale in [0.25, -0.25] {
            let weights: Vec<f32> = (0..64).map(|i| LEVELS[i * 7 % 16] * scale).collect();
            let encoded = Iq4Nl.encode(2, 32, &weights).unwrap();
            assert_eq!(Iq4Nl.decode(2, 32, &encoded).unwrap(), weights);
            assert_eq!(encoded.rate.all_in_bps(), 4.5);
        }
    }

    #[test]
    fn a_group_of_zeros_stays_one() {
        let encoded = Iq4Nl.encode(1, 40, &[0.0; 40]).unwrap();
        assert_eq!(Iq4Nl.decode(1, 40, &encoded).unwrap(), [0.0; 40]);
    }
}
