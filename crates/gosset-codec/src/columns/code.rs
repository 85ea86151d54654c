//! The byte of a column.

/// Exponents of a column's step.
pub const N_EXPONENTS: usize = 16;
/// Classes of a column. The last is not used by writers, so that no column's byte is the one for a column of zeros by accident.
pub const N_CLASSES: usize = 15;
/// The byte of a column of zeros, which has no symbols.
pub(crate) const ZERO: u8 = 255;
/// Gains are multiples of one part in so many.
pub(crate) const GAIN_UNITS: f32 = 256.0;

/// 2^(i/4), nearest.
const QUARTERS: [f32; 4] = [1.0, 1.189_207_1, std::f32::consts::SQRT_2, 1.681_792_9];

/// The byte of an exponent below 16 and a class below 15.
pub(crate) fn pack(exponent: u8, class: u8) -> u8 {
    debug_assert!(usize::from(exponent) < N_EXPONENTS && usize::from(class) < N_CLASSES);
    exponent << 4 | class
}

/// Exponent and class of a byte that is not [`ZERO`].
pub(crate) fn unpack(byte: u8) -> (u8, u8) {
    (byte >> 4, byte & 15)
}

/// `base` · 2^(exponent/4): two roundings at most.
pub(crate) fn step(base: f32, exponent: u8) -> f32 {
    let whole = f32::from_bits((127 + u32::from(exponent >> 2)) << 23);
    base * QUARTERS[usize::from(exponent & 3)] * whole
}

/// What a row with that exponent, below [`N_EXPONENTS`], is multiplied by after its column was rotated back: 2^(exponent/4).
///
/// ```
/// assert_eq!([0, 2, 4, 15].map(gosset_codec::row_factor), [1.0, 1.4142135, 2.0, 13.454343]);
/// ```
#[must_use]
pub fn row_factor(exponent: u8) -> f32 {
    step(1.0, exponent & 15)
}

/// Exponents of rows, two to a byte.
pub(crate) fn pack_rows(exponents: &[u8]) -> Vec<u8> {
    exponents.chunks(2).map(|pair| pair[0] | pair.get(1).copied().unwrap_or(0) << 4).collect()
}

/// Factors of `rows` rows out of ⌈rows/2⌉ bytes; `None` if there are bits beyond the last row.
pub(crate) fn row_factors(bytes: &[u8], rows: usize) -> Option<Vec<f32>> {
    let is_clean = rows.is_multiple_of(2) || bytes.last().is_none_or(|last| last >> 4 == 0);
    is_clean.then(|| (0..rows).map(|row| row_factor(bytes[row / 2] >> (4 * (row % 2)))).collect())
}

/// The gain of a class.
pub(crate) fn gain(gains: &[u16], class: u8) -> f32 {
    gains.get(usize::from(class)).map_or(1.0, |&gain| f32::from(gain) / GAIN_UNITS)
}

/// Scales per octave of the bit-shift trellis.
const PER_OCTAVE: usize = 16;

/// 2^(i/16) to seven decimals: what files hold is in terms of these very numbers (docs/FORMAT.md, section 3.6).
const SIXTEENTHS: [f32; PER_OCTAVE] = [
    1.0,
    1.044_273_8,
    1.090_507_7,
    1.138_788_6,
    1.189_207_1,
    1.241_857_8,
    1.296_839_6,
    1.354_255_5,
    std::f32::consts::SQRT_2,
    1.476_826_1,
    1.542_210_8,
    1.610_490_3,
    1.681_792_9,
    1.756_252_2,
    1.834_008,
    1.915_206_6,
];

/// `base` · 2^(byte/16), two roundings at most: the scale of a column under the bit-shift trellis.
pub(crate) fn scale(base: f32, byte: u8) -> f32 {
    let whole = f32::from_bits((127 + u32::from(byte) / PER_OCTAVE as u32) << 23);
    base * SIXTEENTHS[usize::from(byte) % PER_OCTAVE] * whole
}

/// The byte whose scale is nearest to `spread`, [`ZERO`] for a spread of zero.
pub(crate) fn scale_byte(base: f32, spread: f32) -> u8 {
    if spread == 0.0 {
        return ZERO;
    }
    let byte = (f64::from(spread) / f64::from(base)).log2() * PER_OCTAVE as f64;
    byte.round().clamp(0.0, f64::from(ZERO - 1)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_hold_exponent_and_class() {
        for exponent in 0..N_EXPONENTS as u8 {
            for class in 0..N_CLASSES as u8 {
                let byte = pack(exponent, class);
                assert_eq!(unpack(byte), (exponent, class));
                assert_ne!(byte, ZERO);
            }
        }
    }

    #[test]
    fn steps_are_quarters_of_octaves() {
        for exponent in 0..N_EXPONENTS as u8 {
            let exact = 0.75 * (f64::from(exponent) / 4.0).exp2();
            assert!((f64::from(step(0.75, exponent)) / exact - 1.0).abs() < 2e-7);
        }
    }

    #[test]
    fn scales_are_sixteenths_of_octaves_and_found_again() {
        for byte in 0..ZERO {
            let exact = 0.75 * (f64::from(byte) / 16.0).exp2();
            let found = scale(0.75, byte);
            assert!((f64::from(found) / exact - 1.0).abs() < 2e-7);
            assert_eq!(scale_byte(0.75, found * 1.02), byte);
        }
        assert_eq!([scale_byte(1.0, 0.0), scale_byte(1.0, 1e-9), scale_byte(1.0, 1e30)], [ZERO, 0, ZERO - 1]);
    }
}
