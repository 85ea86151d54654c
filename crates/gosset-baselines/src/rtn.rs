//! Rounding to nearest with one scale per group.

use gosset_entropy::Rate;

use crate::baseline::{check_shape, check_weights};
use crate::groups::{CODES, for_groups, groups_per_row, half_scale, read_scales};
use crate::pack::{pack, packed_len, padding_bits, unpack};
use crate::rows::SCALES;
use crate::{Baseline, BaselineError, Encoded, Plane};

/// Name of the plane of zero points.
pub(crate) const ZEROS: &str = "zeros";

/// Rounding to nearest, no rotation, groups along the row, one fp16 scale per group.
///
/// Asymmetric: the scale is (max - min) / (2^b - 1) with 0 inside [min, max], and a zero point of b bits is stored per group, so that
/// 0 is a level. Symmetric: the scale is max |w| / (2^(b-1) - 1), levels -2^(b-1) to 2^(b-1) - 1. Both are what weight-only
/// quantizers without calibration do (GPTQ's and AWQ's starting point). Codes are rounded against the scale as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rtn {
    name: String,
    bits: u32,
    group: usize,
    symmetric: bool,
}

impl Rtn {
    /// Codes of `bits` bits with one asymmetric scale and zero point per row: what is left of rounding without groups.
    ///
    /// # Errors
    /// [`BaselineError::Rate`] unless `bits` is 2 to 8.
    pub fn per_row(bits: u32) -> Result<Self, BaselineError> {
        Ok(Rtn { name: "rtn".into(), ..Rtn::new(bits, usize::MAX, false)? })
    }

    /// Codes of `bits` bits in groups of `group` weights.
    ///
    /// # Errors
    /// [`BaselineError::Rate`] unless `bits` is 2 to 8 and the group is not empty.
    pub fn new(bits: u32, group: usize, symmetric: bool) -> Result<Self, BaselineError> {
        let name = format!("rtn-{}g{group}", if symmetric { "sym-" } else { "" });
        if !(2..=8).contains(&bits) || group == 0 {
            return Err(BaselineError::Rate { name, asked: f64::from(bits), expected: "2 to 8".into() });
        }
        Ok(Rtn { name, bits, group, symmetric })
    }

    /// Largest code.
    pub(crate) fn max_code(&self) -> f32 {
        ((1u32 << self.bits) - 1) as f32
    }

    /// Code of the value 0 in the symmetric form.
    fn middle(&self) -> u16 {
        1 << (self.bits - 1)
    }

    /// Scale and zero point of a group.
    pub(crate) fn parameters(&self, values: &[f32]) -> Result<(half::f16, u16), f32> {
        let (low, high) = values.iter().fold((0f32, 0f32), |(low, high), &v| (low.min(v), high.max(v)));
        if self.symmetric {
            let scale = half_scale(high.max(-low) / (self.max_code() - f32::from(self.middle())))?;
            return Ok((scale, self.middle()));
        }
        // Halves first: the difference of two finite numbers may not be finite.
        let scale = half_scale((high / self.max_code()) - (low / self.max_code()))?;
        let zero = quotient(-low, scale.to_f32()).round_ties_even().clamp(0.0, self.max_code());
        Ok((scale, zero as u16))
    }
}

impl Rtn {
    /// The code of `value` in a group.
    pub(crate) fn code(&self, value: f32, scale: f32, zero: f32) -> f32 {
        (quotient(value, scale).round_ties_even() + zero).clamp(0.0, self.max_code())
    }
}

/// `a / scale`, 0 where the scale was too small for fp16.
fn quotient(a: f32, scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { a / scale }
}

impl Baseline for Rtn {
    fn name(&self) -> &str {
        &self.name
    }

    fn payload_bps(&self) -> f64 {
        f64::from(self.bits)
    }

    fn encode(&self, rows: usize, cols: usize, weights: &[f32]) -> Result<Encoded, BaselineError> {
        let n = check_weights(rows, cols, weights)?;
        let n_groups = rows * groups_per_row(cols, self.group);
        let (mut codes, mut scales, mut zeros) = (Vec::with_capacity(n), Vec::new(), Vec::new());
        for_groups(cols, self.group, weights, |values| {
            let (scale, zero) = self.parameters(values)?;
            scales.extend(scale.to_le_bytes());
            zeros.push(zero);
            let (scale, zero) = (scale.to_f32(), f32::from(zero));
            let code = |&v: &f32| self.code(v, scale, zero) as u16;
            codes.extend(values.iter().map(code));
            Ok(())
        })?;
        let bits = self.bits;
        let is_per_row = self.group == usize::MAX;
        let mut planes = vec![Plane { name: CODES, bytes: pack(&codes, bits) }, Plane { name: SCALES, bytes: scales }];
        let mut rate = Rate {
            payload_bits: n as u64 * u64::from(bits),
            table_bits: if is_per_row { 0 } else { n_groups as u64 * 16 },
            scale_bits: if is_per_row { n_groups as u64 * 16 } else { 0 },
            header_bits: padding_bits(n, bits),
            n: n as u64,
            ..Rate::default()
        };
        if !self.symmetric {
            planes.push(Plane { name: ZEROS, bytes: pack(&zeros, bits) });
            rate.table_bits += n_groups as u64 * u64::from(bits);
            rate.header_bits += padding_bits(n_groups, bits);
        }
        Ok(Encoded { planes, rate, fallback: None })
    }

    fn decode(&self, rows: usize, cols: usize, encoded: &Encoded) -> Result<Vec<f32>, BaselineError> {
        let n = check_shape(rows, cols)?;
        let n_groups = rows * groups_per_row(cols, self.group);
        let mut codes = unpack(encoded.plane(CODES, packed_len(n, self.bits))?, self.bits);
        let scales = read_scales(encoded.plane(SCALES, n_groups * 2)?);
        let zeros = if self.symmetric { &[] } else { encoded.plane(ZEROS, packed_len(n_groups, self.bits))? };
        let zeros = unpack(zeros, self.bits).chain(std::iter::repeat(self.middle()));
        let mut out = Vec::with_capacity(n);
        for (group_idx, (scale, zero)) in scales.zip(zeros).take(n_groups).enumerate() {
            let first = group_idx % groups_per_row(cols, self.group) * self.group;
            let len = self.group.min(cols - first);
            out.extend(codes.by_ref().take(len).map(|code| (f32::from(code) - f32::from(zero)) * scale));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_is_within_half_a_step_of_its_level() {
        let weights: Vec<f32> = (0..3 * 70).map(|i| ((i * 7919 % 1009) as f32 - 400.0) * 1e-3).collect();
        for bits in 2..=8 {
            for (symmetric, zero_bits) in [(false, u64::from(bits)), (true, 0)] {
                let rtn = Rtn::new(bits, 32, symmetric).unwrap();
                let encoded = rtn.encode(3, 70, &weights).unwrap();
                assert_eq!(encoded.rate.payload_bits, 210 * u64::from(bits));
                // Three groups in a row of 70: 32, 32 and 6.
                assert_eq!(encoded.rate.table_bits, 9 * (16 + zero_bits));
                let decoded = rtn.decode(3, 70, &encoded).unwrap();
                let range = if symmetric { 1.218 / ((1 << bits) - 2) as f32 } else { 1.009 / ((1 << bits) - 1) as f32 };
                for (w, d) in weights.iter().zip(&decoded) {
                    // The zero point is rounded too, which moves the ends of the range by up to half a step.
                    assert!((w - d).abs() <= range * 1.01, "{bits} bits, symmetric {symmetric}: {w} became {d}");
                }
            }
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        for symmetric in [false, true] {
            let rtn = Rtn::new(3, 4, symmetric).unwrap();
            let weights = [0.0, 0.0, 0.0, -0.0, 5.0, 0.0, 0.1, 6.0];
            let decoded = rtn.decode(1, 8, &rtn.encode(1, 8, &weights).unwrap()).unwrap();
            assert!(weights.iter().zip(&decoded).all(|(w, d)| *w != 0.0 || *d == 0.0), "{decoded:?}");
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert!(Rtn::new(1, 32, true).is_err() && Rtn::new(9, 32, true).is_err() && Rtn::new(4, 0, true).is_err());
    }
}
