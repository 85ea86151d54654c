//! Codes: from the state of the trellis to weights.

use alloc::vec::Vec;

/// Entries of a table.
pub const TABLE_LEN: usize = 1 << INDEX_BITS;
/// Bits of an index into a table.
pub(crate) const INDEX_BITS: u32 = 10;

/// What maps a state `s` of `L` bits to one or two weights.
///
/// A product with an odd multiplier walks the ring of 2^L numbers in equal paces, and the ten upper bits of
/// `s · multiplier mod 2^L` are the index into a table. So the weights that one state can lead to, and those that lead
/// to one state, are spread evenly over the Gaussian, which a hash that looks random does not do; this is why tables are
/// ordered and multipliers searched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// Weight `i` is `table[s · multipliers[i] mod 2^L / 2^(L-10)]`.
    Quantiles {
        /// Odd multipliers, one per weight of a step.
        multipliers: [u32; 2],
        /// 1024 binary16 numbers, ascending, odd about the middle.
        table: Vec<u16>,
    },
    /// The weights are the lower and the upper half of `table[s · multiplier mod 2^L / 2^(L-10)]`.
    Pairs {
        /// Odd multiplier.
        multiplier: u32,
        /// 1024 words of two binary16 numbers.
        table: Vec<u32>,
    },
}

impl Code {
    /// The weights of a state of `state_bits` bits, in units of the deviation of the numbers to encode.
    #[must_use]
    pub fn values(&self, state: u32, state_bits: u32) -> [f32; 2] {
        let index = |multiplier: u32| {
            // Whatever the state, ten bits are left.
            (state.wrapping_mul(multiplier) << (32 - state_bits) >> (32 - INDEX_BITS)) as usize
        };
        match self {
            Self::Quantiles { multipliers, table } => multipliers.map(|m| half_to_f32(table[index(m)])),
            Self::Pairs { multiplier, table } => {
                let word = table[index(*multiplier)];
                [half_to_f32(word as u16), half_to_f32((word >> 16) as u16)]
            }
        }
    }

    /// What a GPU keeps beside its kernel: 1024 words, each two binary16 numbers, lower first.
    ///
    /// Those of [`Code::Quantiles`] hold one number and zero, so that one fused multiply-add of both halves with the same
    /// activation adds the weight.
    #[must_use]
    pub fn device_table(&self) -> Vec<u32> {
        match self {
            Self::Quantiles { table, .. } => table.iter().map(|&half| half.into()).collect(),
            Self::Pairs { table, .. } => table.clone(),
        }
    }
}

/// The value of a finite binary16 number.
#[must_use]
pub(crate) fn half_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let sign = u32::from(bits >> 15) << 31;
    let value = if magnitude < 0x400 {
        // A subnormal: an integer times 2^-24, exact.
        magnitude as f32 * f32::from_bits((127 - 24) << 23)
    } else {
        f32::from_bits((magnitude << 13) + ((127 - 15) << 23))
    };
    f32::from_bits(value.to_bits() | sign)
}

/// The binary16 number nearest to a magnitude below 65504, ties to even; for the search for tables.
#[must_use]
pub fn f32_to_half(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16 & 0x8000) as u16;
    let magnitude = x.abs().min(65504.0);
    let smallest_normal = f32::from_bits((127 - 14) << 23);
    let bits = if magnitude < smallest_normal {
        // Adding 2^-1 leaves the multiples of 2^-24 in the mantissa, rounded by the addition.
        (magnitude + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        let bits = magnitude.to_bits() - ((127 - 15) << 23);
        (bits + 0xfff + (bits >> 13 & 1)) >> 13
    };
    sign | bits as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_survive_the_way_through_f32() {
        for bits in (0..=0xffffu16).filter(|bits| bits & 0x7c00 != 0x7c00) {
            assert_eq!(f32_to_half(half_to_f32(bits)), bits);
        }
        assert_eq!((half_to_f32(0x3c00), half_to_f32(0xc500), half_to_f32(1)), (1.0, -5.0, 2.0f32.powi(-24)));
    }

    #[test]
    fn ties_between_halves_go_to_even() {
        assert_eq!(f32_to_half(1.0 + 2.0f32.powi(-11)), 0x3c00);
        assert_eq!(f32_to_half(1.0 + 3.0 * 2.0f32.powi(-11)), 0x3c02);
        assert_eq!(f32_to_half(1.5 * 2.0f32.powi(-24)), 2);
    }
}
