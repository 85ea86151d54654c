//! The family of frequency tables of the ANS coder, from Gaussian data and the nearest-point map.

use std::collections::BTreeMap;
use std::fmt::Write;

use gosset_entropy::ans::{MAX_ESCAPE_K, MAX_FREQ, TABLE_LEN};
use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};

use crate::parallel;
use crate::scheme::lattice::ans::coding;
use crate::scheme::lattice::ans::family::{N_NARROW, N_WIDE, TableKind, WIDE, narrow_alpha, table_kinds, wide_sigma};

/// Values of one task.
const CHUNK: usize = 1 << 15;

/// How often each value was coded in one context.
type Counts = BTreeMap<i32, u64>;

/// Text of the file of tables, made from Gaussian `values` of unit variance.
///
/// # Panics
/// If the number of values is no positive multiple of 8.
pub fn family_source(values: &[f32]) -> String {
    assert!(!values.is_empty() && values.len().is_multiple_of(8), "{} values", values.len());
    let mut text = String::new();
    for lattice in LatticeKind::ALL {
        for member in 0..N_NARROW {
            let counts = lattice.dispatch(Count { values, alpha: narrow_alpha(member) as f32 });
            for kind in table_kinds(lattice) {
                write_table(&mut text, lattice.name(), member, kind, &counts[kind.context]);
            }
        }
    }
    for member in 0..N_WIDE {
        let sigma = wide_sigma(member) as f32;
        let counts = count(values, 1, |counts, chunk| {
            chunk.iter().for_each(|v| *counts[0].entry((v * sigma).floor() as i32).or_insert(0) += 1);
        });
        write_table(&mut text, "wide", member, &WIDE, &counts[0]);
    }
    text
}

fn write_table(text: &mut String, family: &str, member: usize, kind: &TableKind, counts: &Counts) {
    let Quantized { escape_k, escape, freqs, .. } = quantize(kind, counts);
    let _ = write!(text, "{family} {member} {} {escape_k} {escape}", kind.name);
    for freq in &freqs {
        let _ = write!(text, " {freq}");
    }
    text.push('\n');
}

fn count(values: &[f32], n_contexts: usize, f: impl Fn(&mut [Counts], &[f32]) + Sync + Send) -> Vec<Counts> {
    let merge = |all: &mut Vec<Counts>, part: Vec<Counts>| {
        for (all, part) in all.iter_mut().zip(part) {
            part.into_iter().for_each(|(value, n)| *all.entry(value).or_insert(0) += n);
        }
    };
    let task = |counts: &mut Vec<Counts>, i: usize| f(counts, &values[i * CHUNK..((i + 1) * CHUNK).min(values.len())]);
    parallel::accumulate(values.len().div_ceil(CHUNK), || vec![Counts::new(); n_contexts], task, merge)
}

struct Count<'a> {
    values: &'a [f32],
    alpha: f32,
}

impl LatticeVisitor for Count<'_> {
    type Out = Vec<Counts>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Vec<Counts> {
        count(self.values, coding::n_contexts(N), |counts, chunk| {
            for x in chunk.as_chunks::<N>().0 {
                let y = L::nearest_point(&x.map(|v| v * self.alpha));
                for i in 0..N {
                    let context = coding::context::<N>(i, coding::residue::<N>(i, &y));
                    *counts[context].entry(y[coding::coordinate::<N>(i)]).or_insert(0) += 1;
                }
            }
        })
    }
}

/// A table, as its line states it.
struct Quantized {
    escape_k: u8,
    escape: u16,
    freqs: Vec<u16>,
    bits: f64,
}

/// The frequencies with which the counted values take the fewest bits.
fn quantize(kind: &TableKind, counts: &Counts) -> Quantized {
    // Values that mirror each other share a frequency, and the count of both. Entry i is that of the i-th value of the line.
    let mut shares: Vec<f64> = Vec::new();
    let total = counts.values().sum::<u64>() as f64;
    for (&value, &n) in counts {
        let step = kind.index_of(value);
        if step >= shares.len() {
            shares.resize(step + 1, 0.0);
        }
        shares[step] += n as f64 / total;
    }
    let mut best: Option<Quantized> = None;
    let longest = shares.len().min(400);
    let mut misses = 0;
    for len in 1..=longest.max(1) {
        let quantized = quantize_run(kind, &shares, len);
        if best.as_ref().is_none_or(|best| quantized.bits < best.bits) {
            (best, misses) = (Some(quantized), 0);
        } else {
            misses += 1;
            if misses > 12 {
                break;
            }
        }
    }
    best.expect("at least one run was tried")
}

/// The same for a run of the first `len` values of the line.
fn quantize_run(kind: &TableKind, shares: &[f64], len: usize) -> Quantized {
    let share = |i: usize| shares.get(i).copied().unwrap_or(0.0);
    let slots: Vec<u16> = (0..len).map(|i| kind.multiplicity(i)).collect();
    let escaped: f64 = shares.iter().skip(len).sum();
    // The last entry is the escape.
    let weights: Vec<f64> = (0..len).map(share).chain([escaped]).collect();
    let slots: Vec<u16> = slots.into_iter().chain([1]).collect();
    let mut freqs = vec![1u16; len + 1];
    let mut left = TABLE_LEN as i32 - slots.iter().map(|&n| i32::from(n)).sum::<i32>();
    while left > 0 {
        let gain = |i: usize| weights[i] / f64::from(slots[i]) * (1.0 + 1.0 / f64::from(freqs[i])).log2();
        let fits = |i: &usize| i32::from(slots[*i]) <= left && freqs[*i] < MAX_FREQ;
        let Some(i) = (0..=len).filter(fits).max_by(|&a, &b| gain(a).total_cmp(&gain(b))) else { break };
        freqs[i] += 1;
        left -= i32::from(slots[i]);
    }
    let mut bits: f64 = weights.iter().zip(&freqs).map(|(w, &f)| w * (TABLE_LEN as f64 / f64::from(f)).log2()).sum();
    if left != 0 {
        bits = f64::INFINITY;
    }
    // What lies beyond the run, by the number of steps beyond its nearest end.
    let beyond = |k: u8| -> f64 {
        (len..shares.len())
            .map(|i| {
                let excess = kind.excess(i, len);
                let n_bits = (excess + (1u64 << k)).ilog2() + 1;
                shares[i] * f64::from(1 + 2 * n_bits - 1 - u32::from(k))
            })
            .sum()
    };
    let escape_k = (0..=MAX_ESCAPE_K).min_by(|&a, &b| beyond(a).total_cmp(&beyond(b))).unwrap_or(0);
    bits += beyond(escape_k);
    let escape = freqs.pop().expect("the escape was appended");
    Quantized { escape_k, escape, freqs, bits }
}
