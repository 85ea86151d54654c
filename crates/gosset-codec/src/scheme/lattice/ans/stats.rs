//! Counts of coded values, their cost under each member of the family, and the choice of one.

use std::collections::BTreeMap;

use gosset_entropy::ans::{COST_BITS, FreqTable};
use gosset_lattice::LatticeKind;

use super::coding::{self, coordinate, known_bits};
use super::{ANS_STREAM_LEN, STREAM_END_BITS, family, raw_bits};

/// Values of smaller magnitude are counted in an array.
const DENSE: i32 = 256;

/// How often each value was coded in each context, at one alpha.
#[derive(Debug, Clone)]
pub(crate) struct AnsStats {
    lattice: LatticeKind,
    alpha: f32,
    raw_bits: u32,
    contexts: Vec<Counts>,
    /// Values counted.
    n: u64,
}

#[derive(Debug, Clone)]
struct Counts {
    /// Counts of −256 to 255.
    dense: Vec<u64>,
    sparse: BTreeMap<i32, u64>,
}

impl Counts {
    fn iter(&self) -> impl Iterator<Item = (i32, u64)> {
        let dense = self.dense.iter().zip(-DENSE..).map(|(&n, value)| (value, n));
        dense.chain(self.sparse.iter().map(|(&value, &n)| (value, n))).filter(|&(_, n)| n > 0)
    }
}

/// The tables of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnsChoice {
    pub(crate) member: usize,
    pub(crate) raw_bits: u32,
    /// Expected bits, with the share of full streams in the ends of streams.
    pub(crate) bits: u64,
}

impl AnsStats {
    pub(crate) fn new(lattice: LatticeKind, alpha: f32) -> Self {
        let raw_bits = raw_bits(lattice.dim(), alpha);
        let n_contexts = if raw_bits == 0 { coding::n_contexts(lattice.dim()) } else { 2 };
        let counts = Counts { dense: vec![0; 2 * DENSE as usize], sparse: BTreeMap::new() };
        Self { lattice, alpha, raw_bits, contexts: vec![counts; n_contexts], n: 0 }
    }

    /// Counts the coordinates of the point `y`.
    #[inline]
    pub(crate) fn add<const N: usize>(&mut self, y: &[i32; N]) {
        for i in 0..N {
            let value = y[coordinate::<N>(i)] >> self.raw_bits;
            let context = match self.raw_bits {
                0 => coding::context::<N>(i, coding::residue::<N>(i, y)),
                _ => coding::wide_context::<N>(i),
            };
            let counts = &mut self.contexts[context];
            match counts.dense.get_mut(value.wrapping_add(DENSE) as usize) {
                Some(n) => *n += 1,
                None => *counts.sparse.entry(value).or_insert(0) += 1,
            }
        }
        self.n += N as u64;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (counts, other) in self.contexts.iter_mut().zip(&other.contexts) {
            counts.dense.iter_mut().zip(&other.dense).for_each(|(n, other)| *n += other);
            other.sparse.iter().for_each(|(&value, n)| *counts.sparse.entry(value).or_insert(0) += n);
        }
        self.n += other.n;
    }

    /// Number of values.
    pub(crate) fn n(&self) -> u64 {
        self.n
    }

    /// Average bits of all values that are entropy coded, given the contexts: what no table can do better than. Raw bits are
    /// counted too.
    pub(crate) fn conditional_entropy_bits(&self) -> f64 {
        let of = |counts: &Counts| {
            let total: u64 = counts.iter().map(|(_, n)| n).sum();
            total as f64 * gosset_entropy::entropy_bits(counts.iter().map(|(_, n)| n))
        };
        self.contexts.iter().map(of).sum::<f64>() + self.raw_total() as f64
    }

    /// The member with the least cost near that of a Gaussian source, and the cost.
    ///
    /// From the member made for this alpha towards lower cost, until a step does not lower it.
    pub(crate) fn choose(&self) -> AnsChoice {
        let n_members = family::n_members(self.raw_bits);
        let start = family::nearest_member(self.raw_bits, self.alpha);
        let mut best = (self.cost(start), start);
        for step in [1, -1] {
            while let Some(next) = best.1.checked_add_signed(step).filter(|&next| next < n_members) {
                let cost = self.cost(next);
                if cost >= best.0 {
                    break;
                }
                best = (cost, next);
            }
        }
        // In proportion: a matrix of a few values would otherwise have nothing left for them.
        let end_bits = self.n * STREAM_END_BITS / ANS_STREAM_LEN as u64;
        let bits = (best.0 >> COST_BITS) + self.raw_total() + end_bits;
        AnsChoice { member: best.1, raw_bits: self.raw_bits, bits }
    }

    /// Cost of the coded values under a member, in units of 2^-16 bit.
    fn cost(&self, member: usize) -> u64 {
        let tables = family::member(self.lattice, self.raw_bits, member).expect("the caller names a member");
        let of = |(counts, table): (&Counts, &&FreqTable<'_>)| -> u64 {
            counts.iter().map(|(value, n)| n.saturating_mul(table.cost(value))).sum()
        };
        self.contexts.iter().zip(&tables).map(of).sum()
    }

    fn raw_total(&self) -> u64 {
        if self.raw_bits == 0 {
            return 0;
        }
        let known: u32 = match self.lattice {
            LatticeKind::Z => known_bits::<1>(0),
            LatticeKind::A2 => (0..2).map(known_bits::<2>).sum(),
            LatticeKind::D4 => (0..4).map(known_bits::<4>).sum(),
            LatticeKind::E8 => (0..8).map(known_bits::<8>).sum(),
        };
        let dim = self.lattice.dim() as u64;
        self.n / dim * (dim * u64::from(self.raw_bits) - u64::from(known))
    }
}
