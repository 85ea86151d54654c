//! NormalFloat with 4 bits.

use gosset_entropy::Rate;

use crate::baseline::{check_shape, check_weights};
use crate::groups::{CODES, for_groups, groups_per_row, half_scale, nearest_level, read_scales, thresholds};
use crate::pack::{pack, packed_len, padding_bits, unpack};
use crate::rows::SCALES;
use crate::{Baseline, BaselineError, Encoded, Plane};

/// The levels, between -1 and 1; 0 is one of them.
///
/// Source: Dettmers et al., *QLoRA*, arXiv 2305.14314, appendix E.
const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// What separates them.
const THRESHOLDS: [f32; 15] = thresholds(&LEVELS);

/// Weights per group.
const GROUP: usize = 64;

/// Weights divided by the largest magnitude of their group of 64 (fp16), then the nearest of 16 levels: 4.25 bits per weight.
///
/// bitsandbytes stores that maximum as f32 or quantizes it a second time; fp16 costs nothing in error and half of the bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Nf4;

impl Baseline for Nf4 {
    fn name(&self) -> &str {
        "nf4"
    }

    fn payload_bps(&self) -> f64 {
        4.0
    }

    fn encode(&self, rows: usize, cols: usize, weights: &[f32]) -> Result<Encoded, BaselineError> {
        let n = check_weights(rows, cols, weights)?;
        let (mut codes, mut scales) = (Vec::with_capacity(n), Vec::new());
        for_groups(cols, GROUP, weights, |values| {
            let scale = half_scale(values.iter().fold(0f32, |max, v| max.max(v.abs())))?;
            scales.extend(scale.to_le_bytes());
            let scale = scale.to_f32();
            codes
                .extend(values.iter().map(|&v| nearest_level(&THRESHOLDS, if scale == 0.0 { 0.0 } else { v / scale })));
            Ok(())
        })?;
        Ok(encoded(n, rows * groups_per_row(cols, GROUP), &codes, scales))
    }

    fn decode(&self, rows: usize, cols: usize, encoded: &Encoded) -> Result<Vec<f32>, BaselineError> {
        decode(&LEVELS, GROUP, rows, cols, encoded)
    }
}

/// 4-bit codes with an fp16 scale per group.
pub(crate) fn encoded(n: usize, n_groups: usize, codes: &[u16], scales: Vec<u8>) -> Encoded {
    let rate = Rate {
        payload_bits: n as u64 * 4,
        table_bits: n_groups as u64 * 16,
        header_bits: padding_bits(n, 4),
        n: n as u64,
        ..Rate::default()
    };
    let planes = vec![Plane { name: CODES, bytes: pack(codes, 4) }, Plane { name: SCALES, bytes: scales }];
    Encoded { planes, rate, fallback: None }
}

/// Level times scale, for 4-bit codes in groups.
pub(crate) fn decode(
    levels: &[f32; 16],
    group: usize,
    rows: usize,
    cols: usize,
    encoded: &Encoded,
) -> Result<Vec<f32>, BaselineError> {
    let n = check_shape(rows, cols)?;
    let per_row = groups_per_row(cols, group);
    let mut codes = unpack(encoded.plane(CODES, packed_len(n, 4))?, 4);
    let scales = read_scales(encoded.plane(SCALES, rows * per_row * 2)?);
    let mut out = Vec::with_capacity(n);
    for (group_idx, scale) in scales.enumerate() {
        let len = group.min(cols - group_idx % per_row * group);
        out.extend(codes.by_ref().take(len).map(|code| levels[usize::from(code)] * scale));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_come_back_exactly() {
        let weights: Vec<f32> = (0..130).map(|i| LEVELS[i * 5 % 16] * 2.0).collect();
        let encoded = Nf4.encode(1, 130, &weights).unwrap();
        assert_eq!(Nf4.decode(1, 130, &encoded).unwrap(), weights);
        assert_eq!(encoded.rate.total_bits(), 130 * 4 + 3 * 16);
    }
}
