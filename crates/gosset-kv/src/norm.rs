//! Norms of vectors in a few bits.
//!
//! A vector is divided by its *stored* norm, not by its own: reconstructions then need no correction, and a coarse norm costs rate and
//! distortion next to nothing and adds no bias.

use half::f16;

use crate::spec::NormKind;

/// Quarter octaves below which there is nothing: the index of a vector of zeros. Norms of vectors of f32 lie from −600 to 560.
pub(crate) const ZERO: i32 = -1024;
/// 2^(1/4) and its powers.
const QUARTERS: [f64; 4] = [1.0, 1.189_207_115_002_721, std::f64::consts::SQRT_2, 1.681_792_830_507_429];
/// Index of the byte 1 of [`NormKind::Log8`]; the byte 0 is the vector of zeros.
const LOG8_FIRST: i32 = -128;
/// Least norm of [`NormKind::F16`] other than 0.
const F16_LEAST: f64 = 1.0 / 16_384.0;

/// A norm as it is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StoredNorm {
    /// What is stored: an index as `i16`, a byte or the bits of an `f16`.
    pub(crate) field: u16,
    /// What the vector is divided by; 0 for a vector of zeros. The stored norm, unless that cannot be as large.
    pub(crate) divisor: f64,
}

/// The stored norm for a sum of squares, finite and not negative.
pub(crate) fn store(kind: NormKind, squares: f64) -> StoredNorm {
    if squares == 0.0 {
        let field = if kind == NormKind::Coded { ZERO as i16 as u16 } else { 0 };
        return StoredNorm { field, divisor: 0.0 };
    }
    match kind {
        NormKind::Coded => {
            let index = index_of(squares);
            StoredNorm { field: index as i16 as u16, divisor: quarter_octaves(index) }
        }
        NormKind::Log8 => {
            let index = index_of(squares);
            let byte = (index - LOG8_FIRST + 1).clamp(1, 255);
            let stored = quarter_octaves(byte - 1 + LOG8_FIRST);
            StoredNorm { field: byte as u16, divisor: if byte == 255 { stored.max(squares.sqrt()) } else { stored } }
        }
        NormKind::F16 => {
            let norm = squares.sqrt().max(F16_LEAST);
            let stored = f16::from_f64(norm).min(f16::MAX);
            let clipped = stored == f16::MAX;
            let divisor = if clipped { stored.to_f64().max(norm) } else { stored.to_f64() };
            StoredNorm { field: stored.to_bits(), divisor }
        }
    }
}

/// What a field stands for; finite for any field.
pub(crate) fn value(kind: NormKind, field: u16) -> f64 {
    match kind {
        NormKind::Coded => quarter_octaves(i32::from(field as i16)),
        NormKind::Log8 if field & 0xff == 0 => 0.0,
        NormKind::Log8 => quarter_octaves(i32::from(field & 0xff) - 1 + LOG8_FIRST),
        NormKind::F16 => {
            let value = f16::from_bits(field).to_f64();
            if value.is_finite() { value } else { 0.0 }
        }
    }
}

/// The nearest quarter octave, in logarithm, to the root of a positive normal number.
fn index_of(squares: f64) -> i32 {
    let bits = squares.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    // Indices are half octaves of the square: 2^(k/2) with limits half a step on either side.
    2 * exponent + i32::from(mantissa >= QUARTERS[1]) + i32::from(mantissa >= QUARTERS[3])
}

/// 2^(index/4); 0 from [`ZERO`] down, and no more than 2^256.
fn quarter_octaves(index: i32) -> f64 {
    if index <= ZERO {
        return 0.0;
    }
    let index = index.min(1024);
    let power = f64::from_bits(((1023 + index.div_euclid(4)) as u64) << 52);
    power * QUARTERS[index.rem_euclid(4) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_norms_are_the_nearest_quarter_octaves() {
        for i in -2000..2000 {
            let norm = (f64::from(i) * 0.05).exp2();
            let stored = store(NormKind::Coded, norm * norm);
            let octaves = (stored.divisor / norm).log2();
            assert!(octaves.abs() <= 0.125 + 1e-12, "{norm}: {stored:?}");
            assert_eq!(value(NormKind::Coded, stored.field), stored.divisor);
        }
        assert_eq!(store(NormKind::Coded, 4.0).divisor, 2.0);
    }

    #[test]
    fn extreme_norms_are_stored_or_clipped() {
        for norm in [1e-45f64, 1e-30, 1.0, 1e30, 5e39] {
            let stored = store(NormKind::Coded, norm * norm);
            assert!((stored.divisor / norm).log2().abs() <= 0.126);
            for kind in [NormKind::Log8, NormKind::F16] {
                let stored = store(kind, norm * norm);
                let value = value(kind, stored.field);
                assert!(value > 0.0 && value.is_finite() && stored.divisor >= norm * 0.9, "{norm}: {stored:?} {value}");
            }
        }
        for kind in [NormKind::Coded, NormKind::Log8, NormKind::F16] {
            let stored = store(kind, 0.0);
            assert_eq!((stored.divisor, value(kind, stored.field)), (0.0, 0.0));
            assert!((0..=u16::MAX).all(|field| value(kind, field).is_finite()));
        }
    }
}
