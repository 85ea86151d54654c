//! Bits by cause.

use core::iter::Sum;
use core::ops::{Add, AddAssign};

/// Bits that `n` quantized scalars take, by what they are for; rates of parts add up.
///
/// ```
/// use gosset_entropy::Rate;
/// // One row of 4096 weights: 8 streams of 512 symbols, one bf16 scale.
/// let rate = Rate { payload_bits: 4 * 4096, length_bits: 8 * 16, scale_bits: 16, n: 4096, ..Rate::default() };
/// assert_eq!(rate.payload_bps(), 4.0);
/// assert_eq!(rate.stream_bps(), 4.03125);
/// assert_eq!(rate.all_in_bps(), 4.03515625);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bits of codewords, or of planes of a fixed-rate code.
    pub payload_bits: u64,
    /// Bits of stream lengths and page bases.
    pub length_bits: u64,
    /// Bits of code parameters and probability tables.
    pub table_bits: u64,
    /// Bits of row scales.
    pub scale_bits: u64,
    /// Bits of vector norms.
    pub norm_bits: u64,
    /// Bits of the share of the file header, of padding and of checksums.
    pub header_bits: u64,
    /// Number of scalars that the bits stand for.
    pub n: u64,
}

impl Rate {
    /// Sum over all causes.
    pub fn total_bits(&self) -> u64 {
        self.payload_bits + self.length_bits + self.table_bits + self.scale_bits + self.norm_bits + self.header_bits
    }

    /// Bits per scalar of the codewords alone; 0 if there are no scalars.
    pub fn payload_bps(&self) -> f64 {
        self.bps(self.payload_bits)
    }

    /// Bits per scalar of everything but scales and norms; 0 if there are no scalars.
    pub fn stream_bps(&self) -> f64 {
        self.bps(self.total_bits() - self.scale_bits - self.norm_bits)
    }

    /// Bits per scalar of everything; 0 if there are no scalars.
    pub fn all_in_bps(&self) -> f64 {
        self.bps(self.total_bits())
    }

    fn bps(&self, bits: u64) -> f64 {
        if self.n == 0 { 0.0 } else { bits as f64 / self.n as f64 }
    }
}

impl Add for Rate {
    type Output = Rate;

    fn add(mut self, other: Rate) -> Rate {
        self += other;
        self
    }
}

impl AddAssign for Rate {
    fn add_assign(&mut self, other: Rate) {
        self.payload_bits += other.payload_bits;
        self.length_bits += other.length_bits;
        self.table_bits += other.table_bits;
        self.scale_bits += other.scale_bits;
        self.norm_bits += other.norm_bits;
        self.header_bits += other.header_bits;
        self.n += other.n;
    }
}

impl Sum for Rate {
    fn sum<I: Iterator<Item = Rate>>(rates: I) -> Rate {
        rates.fold(Rate::default(), Add::add)
    }
}

impl<'a> Sum<&'a Rate> for Rate {
    fn sum<I: Iterator<Item = &'a Rate>>(rates: I) -> Rate {
        rates.copied().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_add_by_cause() {
        let part =
            Rate { payload_bits: 1, length_bits: 2, table_bits: 3, scale_bits: 4, norm_bits: 5, header_bits: 6, n: 7 };
        let sum: Rate = [part, part].iter().sum();
        assert_eq!(sum, part + part);
        assert_eq!(sum.total_bits(), 42);
        assert_eq!(sum.n, 14);
        assert_eq!(sum.stream_bps(), 24.0 / 14.0);
        assert_eq!(Rate::default().all_in_bps(), 0.0);
    }
}
