//! The best Rice parameter of a set of symbols.

use crate::rice::{MAX_K, len_bits};

const N_PARAMETERS: usize = MAX_K as usize + 1;
/// Symbols below this are counted; larger ones, which are rare, add their cost under each parameter at once.
const DENSE_LEN: usize = 256;

/// Accumulates symbols and tells the exact size of their Rice code under every parameter.
///
/// ```
/// use gosset_entropy::RiceFit;
/// let mut fit = RiceFit::new();
/// fit.extend(&[5, 6, 4, 7]);
/// assert_eq!(fit.bits(0), 26);
/// assert_eq!(fit.best_k(), (2, 16));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RiceFit {
    counts: [u64; DENSE_LEN],
    large_bits: [u64; N_PARAMETERS],
    n: u64,
}

impl Default for RiceFit {
    fn default() -> Self {
        Self::new()
    }
}

impl RiceFit {
    /// A fit without symbols.
    pub const fn new() -> Self {
        Self { counts: [0; DENSE_LEN], large_bits: [0; N_PARAMETERS], n: 0 }
    }

    /// Accumulates one symbol.
    #[inline]
    pub fn add(&mut self, z: u32) {
        self.n += 1;
        match self.counts.get_mut(z as usize) {
            Some(count) => *count += 1,
            None => self.add_large(z),
        }
    }

    #[cold]
    fn add_large(&mut self, z: u32) {
        for (k, bits) in (0..).zip(&mut self.large_bits) {
            *bits += u64::from(len_bits(z, k));
        }
    }

    /// Accumulates symbols.
    pub fn extend(&mut self, symbols: &[u32]) {
        symbols.iter().for_each(|&z| self.add(z));
    }

    /// Adds the symbols of `other`.
    pub fn merge(&mut self, other: &RiceFit) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
        self.large_bits.iter_mut().zip(&other.large_bits).for_each(|(bits, other)| *bits += other);
        self.n += other.n;
    }

    /// Number of symbols.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Bits that the symbols take with parameter `k`.
    ///
    /// # Panics
    /// If `k` exceeds [`MAX_K`].
    pub fn bits(&self, k: u32) -> u64 {
        let dense: u64 = (0..).zip(&self.counts).map(|(z, &count)| count * u64::from(len_bits(z, k))).sum();
        dense + self.large_bits[k as usize]
    }

    /// The parameter with the fewest bits, the smallest of equals, and those bits.
    pub fn best_k(&self) -> (u32, u64) {
        let mut best = (0, self.bits(0));
        for k in 1..=MAX_K {
            let bits = self.bits(k);
            if bits < best.1 {
                best = (k, bits);
            }
        }
        best
    }
}

/// Accumulates each symbol in the fit of its class; the class of position i is `symbol_class[i % N]`.
///
/// ```
/// use gosset_entropy::{RiceFit, rice::accumulate_by_class};
/// let mut fits = [RiceFit::new(), RiceFit::new()];
/// accumulate_by_class(&mut fits, &[12, 0, 9, 1], &[1, 0]);
/// assert_eq!((fits[0].best_k().0, fits[1].best_k().0), (0, 3));
/// ```
///
/// # Panics
/// If a class has no fit.
pub fn accumulate_by_class<const N: usize>(fits: &mut [RiceFit], symbols: &[u32], symbol_class: &[usize; N]) {
    for block in symbols.chunks(N) {
        for (&z, &class) in block.iter().zip(symbol_class) {
            fits[class].add(z);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_are_the_sum_of_codeword_lengths(a in proptest::collection::vec(0u32..600, 0..100), b in proptest::collection::vec(any::<u32>(), 0..20)) {
            let mut fit = RiceFit::new();
            fit.extend(&a);
            let mut other = RiceFit::default();
            other.extend(&b);
            fit.merge(&other);
            prop_assert_eq!(fit.n(), (a.len() + b.len()) as u64);
            let bits = |k| a.iter().chain(&b).map(|&z| u64::from(len_bits(z, k))).sum::<u64>();
            for k in 0..=MAX_K {
                prop_assert_eq!(fit.bits(k), bits(k));
            }
            let (k, best) = fit.best_k();
            prop_assert_eq!(best, (0..=MAX_K).map(bits).min().unwrap());
            prop_assert_eq!(best, bits(k));
        }
    }
}
