//! Scales of vectors: a byte in eighth octaves.

use std::sync::LazyLock;

/// The byte of the scale 1.
pub(crate) const ONE: u8 = 129;
/// Mantissas of 2^(1/8), 2^(3/8), 2^(5/8) and 2^(7/8) in f32: between mean squares whose roots are eighth octaves.
const LIMITS: [u32; 4] =
    [0x3f8b_95c2 & 0x7f_ffff, 0x3fa5_fed7 & 0x7f_ffff, 0x3fc5_672a & 0x7f_ffff, 0x3fea_c0c7 & 0x7f_ffff];
const MANTISSA_BITS: u32 = 23;
/// One over the square of how many scales away a coordinate may lie: points reach little further, and a key that is cut off there draws
/// attention elsewhere.
const REACH: f32 = 0.125;

/// What each byte stands for: 0, then 2^((byte − 129)/8).
pub(crate) static SCALES: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|byte| value(byte) as f32));
/// The f32 nearest to the inverse of each scale, 0 for 0.
pub(crate) static INVERSES: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|byte| if byte == 0 { 0.0 } else { (1.0 / value(byte)) as f32 }));

fn value(byte: usize) -> f64 {
    if byte == 0 { 0.0 } else { libm::exp2((byte as f64 - f64::from(ONE)) / 8.0) }
}

/// The byte for the coordinates `y`, of which as many as `1/share` count; `squares` is scratch.
pub(crate) fn byte(y: &[f32], share: f32, squares: &mut Vec<f32>) -> u8 {
    squares.clear();
    squares.extend(y.iter().map(|y| y * y));
    let most = squares.iter().fold(0f32, |most, &square| most.max(square));
    let mut half = y.len().next_power_of_two() / 2;
    while half > 0 {
        if half < squares.len() {
            let (low, high) = squares.split_at_mut(half);
            low.iter_mut().zip(&*high).for_each(|(a, b)| *a += b);
            squares.truncate(half);
        }
        half /= 2;
    }
    let mean = squares.first().map_or(0.0, |sum| sum * share).max(most * REACH);
    if mean == 0.0 {
        return 0;
    }
    let bits = mean.to_bits();
    let exponent = (bits >> MANTISSA_BITS) as i32 - 127;
    let mantissa = bits & ((1 << MANTISSA_BITS) - 1);
    let reached = LIMITS.iter().filter(|&&limit| mantissa >= limit).count() as i32;
    (4 * exponent + reached + i32::from(ONE)).clamp(1, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_lie_between_the_squares_of_scales() {
        for (i, limit) in LIMITS.iter().enumerate() {
            let exact = libm::exp2((2 * i + 1) as f64 / 8.0) as f32;
            assert_eq!(exact.to_bits() & 0x7f_ffff, *limit, "{i}: {:#x}", exact.to_bits());
        }
    }

    #[test]
    fn scales_are_the_nearest_eighth_octaves() {
        for i in -150..=150 {
            let rms = (f64::from(i) * 0.1).exp2();
            for d in [2, 16, 80, 96, 128] {
                let byte = byte(&vec![rms as f32; d], 1.0 / d as f32, &mut Vec::new());
                let octaves = (f64::from(SCALES[usize::from(byte)]) / rms).log2();
                assert!(octaves.abs() <= 0.0625 + 1e-5, "{rms}, {d}: {byte}");
                assert!((SCALES[usize::from(byte)] * INVERSES[usize::from(byte)] - 1.0).abs() < 1e-6);
            }
        }
        assert_eq!(byte(&[0.0; 5], 0.2, &mut Vec::new()), 0);
        assert_eq!(byte(&[1e-18; 4], 0.25, &mut Vec::new()), 1);
        assert_eq!(byte(&[1e12; 4], 0.25, &mut Vec::new()), 255);
    }
}
