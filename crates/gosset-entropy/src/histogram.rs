//! Empirical entropies.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Symbols below this are counted in an array.
const DENSE_LEN: usize = 256;

/// Entropy in bits per symbol of the empirical distribution `counts`; 0 for no symbols.
///
/// ```
/// assert_eq!(gosset_entropy::entropy_bits([2, 1, 1]), 1.5);
/// ```
pub fn entropy_bits(counts: impl IntoIterator<Item = u64>) -> f64 {
    let (mut total, mut weighted) = (0u64, 0.0);
    for count in counts {
        if count > 0 {
            total += count;
            weighted += count as f64 * libm::log2(count as f64);
        }
    }
    if total == 0 { 0.0 } else { libm::log2(total as f64) - weighted / total as f64 }
}

/// Entropy in bits per symbol given a context, from one histogram per context: Σ_c P(c)·H(symbol | c).
///
/// ```
/// use gosset_entropy::{Histogram, conditional_entropy_bits};
/// let constant: Histogram = [7, 7].into_iter().collect();
/// let fair: Histogram = [0, 1].into_iter().collect();
/// assert_eq!(conditional_entropy_bits(&[constant, fair]), 0.5);
/// ```
pub fn conditional_entropy_bits(by_context: &[Histogram]) -> f64 {
    let total: u64 = by_context.iter().map(Histogram::n).sum();
    if total == 0 {
        return 0.0;
    }
    by_context.iter().map(|histogram| histogram.n() as f64 * histogram.entropy_bits()).sum::<f64>() / total as f64
}

/// Counts of symbols of any size; memory grows with the number of distinct symbols only.
///
/// ```
/// let histogram: gosset_entropy::Histogram = [0, 0, 1, u32::MAX].into_iter().collect();
/// assert_eq!(histogram.n(), 4);
/// assert_eq!(histogram.count(0), 2);
/// assert_eq!(histogram.entropy_bits(), 1.5);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    dense: Vec<u64>,
    sparse: BTreeMap<u32, u64>,
    n: u64,
}

impl Histogram {
    /// A histogram without symbols.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one symbol.
    pub fn add(&mut self, symbol: u32) {
        self.add_n(symbol, 1);
    }

    fn add_n(&mut self, symbol: u32, count: u64) {
        self.n += count;
        let idx = symbol as usize;
        if idx < DENSE_LEN {
            if idx >= self.dense.len() {
                self.dense.resize(idx + 1, 0);
            }
            self.dense[idx] += count;
        } else {
            *self.sparse.entry(symbol).or_insert(0) += count;
        }
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        for (symbol, count) in other.iter() {
            self.add_n(symbol, count);
        }
    }

    /// Number of symbols counted.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// How often `symbol` was counted.
    pub fn count(&self, symbol: u32) -> u64 {
        let dense = self.dense.get(symbol as usize).copied();
        dense.or_else(|| self.sparse.get(&symbol).copied()).unwrap_or(0)
    }

    /// The symbols that occur and their counts, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let dense = self.dense.iter().enumerate().map(|(symbol, &count)| (symbol as u32, count));
        let sparse = self.sparse.iter().map(|(&symbol, &count)| (symbol, count));
        dense.chain(sparse).filter(|&(_, count)| count > 0)
    }

    /// Order-0 entropy of the empirical distribution, in bits per symbol.
    pub fn entropy_bits(&self) -> f64 {
        entropy_bits(self.iter().map(|(_, count)| count))
    }
}

impl Extend<u32> for Histogram {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, symbols: I) {
        symbols.into_iter().for_each(|symbol| self.add(symbol));
    }
}

impl FromIterator<u32> for Histogram {
    fn from_iter<I: IntoIterator<Item = u32>>(symbols: I) -> Self {
        let mut histogram = Self::new();
        histogram.extend(symbols);
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn conditioning_never_raises_entropy(symbols in proptest::collection::vec((0u32..4, 250u32..262), 1..300)) {
            let mut all = Histogram::new();
            let mut by_context = alloc::vec![Histogram::new(); 4];
            for &(context, symbol) in &symbols {
                all.add(symbol);
                by_context[context as usize].add(symbol);
            }
            prop_assert!(conditional_entropy_bits(&by_context) <= all.entropy_bits() + 1e-12);
            let mut merged = Histogram::new();
            by_context.iter().for_each(|histogram| merged.merge(histogram));
            prop_assert_eq!(merged.n(), symbols.len() as u64);
            for symbol in 250..262 {
                prop_assert_eq!(merged.count(symbol), all.count(symbol));
            }
        }
    }

    #[test]
    fn empty_histograms_have_no_entropy() {
        assert_eq!(Histogram::new().entropy_bits(), 0.0);
        assert_eq!(conditional_entropy_bits(&[]), 0.0);
        assert_eq!(entropy_bits([0, 5, 0]), 0.0);
    }
}
