//! The ±1 diagonal of the randomized Hadamard transform.

use alloc::vec::Vec;

use crate::philox::{Domain, RandomStream};

const SIGN_BIT: u32 = 1 << 31;

/// The first `width` entries of the sign diagonal of a seed.
///
/// Column `j` is negative iff bit `j % 32` (bit 0 is the least significant) of word `j / 32` of the stream
/// ([`Domain::Signs`], index 0) of the seed is set. The width takes no part in that: two matrices with one seed have
/// the same signs on the columns they share, so layers that read the same activation share one rotated activation.
///
/// ```
/// use gosset_transform::Signs;
///
/// let signs = Signs::new(0, 4); // Word 0 of seed 0 is 0x6627e8d5: its lowest bits, from bit 0 up, are 1, 0, 1, 0.
/// let mut row = [1.0, 2.0, 3.0, 4.0];
/// signs.apply(&mut row);
/// assert_eq!(row, [-1.0, 2.0, -3.0, 4.0]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signs {
    seed: u64,
    width: usize,
    words: Vec<u32>,
}

impl Signs {
    /// The signs of `seed` for rows of `width` columns. Takes `width / 8` bytes.
    ///
    /// ```
    /// assert_eq!(gosset_transform::Signs::new(7, 4096).words().len(), 128);
    /// ```
    #[must_use]
    pub fn new(seed: u64, width: usize) -> Self {
        let mut stream = RandomStream::new(seed, Domain::Signs, 0);
        let words = (0..width.div_ceil(32)).map(|_| stream.next_u32()).collect();
        Self { seed, width, words }
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Number of columns.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The packed signs, `ceil(width / 32)` words: bit `j % 32` of word `j / 32` is column `j`.
    ///
    /// Bits past the width hold the stream's own values, not zeros: a shorter row's words are a prefix of a longer
    /// row's.
    ///
    /// ```
    /// assert_eq!(gosset_transform::Signs::new(0, 40).words(), [0x6627e8d5, 0xe169c58d]);
    /// ```
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Whether column `j` is negated.
    ///
    /// # Panics
    ///
    /// If `j` is not below the width.
    ///
    /// ```
    /// let signs = gosset_transform::Signs::new(0, 4);
    /// assert_eq!([0, 1, 2, 3].map(|j| signs.is_negative(j)), [true, false, true, false]);
    /// ```
    #[must_use]
    pub fn is_negative(&self, j: usize) -> bool {
        assert!(j < self.width, "column {j} of {} signs", self.width);
        self.words[j / 32] >> (j % 32) & 1 == 1
    }

    /// Negates the columns of `row` whose sign is negative, by flipping the sign bit of each; its own inverse.
    ///
    /// # Panics
    ///
    /// If the length of `row` is not the width.
    ///
    /// ```
    /// let mut row = [1.0; 3];
    /// gosset_transform::Signs::new(0, 3).apply(&mut row);
    /// assert_eq!(row, [-1.0, 1.0, -1.0]);
    /// ```
    pub fn apply(&self, row: &mut [f32]) {
        assert_eq!(row.len(), self.width, "row length and number of signs");
        apply_from(&self.words, 0, row);
    }
}

/// Applies the signs of columns `start ..` of the packed `words` to `row`.
pub(crate) fn apply_from(words: &[u32], start: usize, row: &mut [f32]) {
    for (j, x) in (start..).zip(row) {
        let flip = (words[j / 32] >> (j % 32)) << 31;
        *x = f32::from_bits(x.to_bits() ^ (flip & SIGN_BIT));
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    #[test]
    fn first_words_are_golden() {
        // Seed 0 begins with the first Random123 vector; the rest comes from a separate implementation in Python. A
        // change of the stream would silently turn every stored matrix into noise.
        let golden: [(u64, [u32; 6]); 2] = [
            (0, [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8, 0xf8e4cca4, 0x5cb200db]),
            (0x0123_4567_89ab_cdef, [0xb850222e, 0xc58cb04b, 0x14a7a020, 0x7a84fff9, 0xadca1466, 0x523e0d85]),
        ];
        for (seed, words) in golden {
            assert_eq!(Signs::new(seed, 192).words(), words, "seed {seed:#x}");
        }
    }

    #[test]
    fn signs_of_a_shorter_row_are_a_prefix() {
        let long = Signs::new(42, 11008);
        for width in [1, 31, 32, 33, 173, 576, 4096] {
            let short = Signs::new(42, width);
            assert_eq!(short.words(), &long.words()[..width.div_ceil(32)]);
            assert!((0..width).all(|j| short.is_negative(j) == long.is_negative(j)));
        }
    }

    #[test]
    fn apply_flips_exactly_the_negative_columns() {
        let signs = Signs::new(5, 173);
        let mut row = vec![0.0; 173];
        signs.apply(&mut row);
        for (j, x) in row.iter().enumerate() {
            assert_eq!(x.is_sign_negative(), signs.is_negative(j), "column {j}"); // Zeros change sign, too.
        }
        signs.apply(&mut row);
        assert!(row.iter().all(|x| x.to_bits() == 0));
    }

    #[test]
    fn signs_are_balanced() {
        let n = 1 << 16;
        let signs = Signs::new(1, n);
        let negative: u32 = signs.words().iter().map(|w| w.count_ones()).sum();
        // Binomial(65536, 1/2): standard deviation 128; five of them.
        assert!(negative.abs_diff(n as u32 / 2) < 640, "{negative}");
    }
}
