//! What a store takes, by cause.

use std::fmt;

/// Bytes that a [`KvStore`](crate::KvStore) has allocated, by cause: what an allocator counts, headers of shared memory included. What
/// codecs hold (tables, matrices) is theirs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvMemory {
    /// Codes of coordinates in sealed pages.
    pub codes: u64,
    /// Norms, scales and zero points in sealed pages.
    pub scales: u64,
    /// All else that sealed pages need: lengths, tables, final states, offsets, headers, spills of a fixed budget; and the list of layers.
    pub overhead: u64,
    /// Rows that wait for their page.
    pub open: u64,
    /// Exact vectors of sinks.
    pub sinks: u64,
    /// Exact vectors of the window, and of a chunk until it is settled.
    pub window: u64,
    /// Exact vectors of protected layers.
    pub protected: u64,
    /// Allocated and not used: spare capacity, unused bytes of a fixed budget.
    pub slack: u64,
    /// Of all these, how many belong to other stores as well: pages and exact vectors that clones have not written to since.
    pub shared: u64,
    /// Positions held, summed over layers.
    pub positions: u64,
    /// Scalars held, keys and values: what bits per value are counted for.
    pub scalars: u64,
    /// Of these, those in sealed pages.
    pub page_scalars: u64,
    /// Sealed pages, each of all heads.
    pub pages: u64,
    /// Slots of a fixed budget that were too small.
    pub spills: u64,
}

/// What a user should know about the memory of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvNote {
    /// The exact part takes more than coding saves so far, which is at a short context the rule.
    ExactOutweighsSaving {
        /// Bytes of sinks, window and protected layers.
        exact: u64,
        /// Bytes less than a cache of 16-bit elements takes; negative if it is more.
        saved: i64,
    },
}

impl KvMemory {
    /// Bytes of everything.
    pub const fn total(&self) -> u64 {
        self.codes + self.scales + self.overhead + self.open + self.exact() + self.slack
    }

    /// Bytes of exact vectors.
    pub const fn exact(&self) -> u64 {
        self.sinks + self.window + self.protected
    }

    /// Bytes of sealed pages.
    pub const fn sealed(&self) -> u64 {
        self.codes + self.scales + self.overhead
    }

    /// Bits per scalar with everything counted; 0 while nothing is held.
    pub fn bits_per_value(&self) -> f64 {
        ratio(self.total(), self.scalars)
    }

    /// Bits per scalar of sealed pages alone; 0 without pages.
    pub fn page_bits_per_value(&self) -> f64 {
        ratio(self.sealed(), self.page_scalars)
    }

    /// Bytes that the same vectors take in 16-bit elements.
    pub const fn uncompressed(&self) -> u64 {
        2 * self.scalars
    }

    /// Bytes less than [`uncompressed`](Self::uncompressed); negative if it is more.
    pub const fn saved(&self) -> i64 {
        self.uncompressed() as i64 - self.total() as i64
    }

    /// What a user should be told, if anything.
    pub fn note(&self) -> Option<KvNote> {
        let (exact, saved) = (self.exact(), self.saved());
        (exact > 0 && exact as i64 > saved).then_some(KvNote::ExactOutweighsSaving { exact, saved })
    }
}

fn ratio(bytes: u64, scalars: u64) -> f64 {
    if scalars == 0 { 0.0 } else { 8.0 * bytes as f64 / scalars as f64 }
}

impl fmt::Display for KvMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes for {} scalars, {:.3} bits each: codes {}, scales {}, overhead {}, open rows {}, sinks {}, window {}, protected {}, \
             slack {}",
            self.total(),
            self.scalars,
            self.bits_per_value(),
            self.codes,
            self.scales,
            self.overhead,
            self.open,
            self.sinks,
            self.window,
            self.protected,
            self.slack
        )
    }
}

impl fmt::Display for KvNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExactOutweighsSaving { exact, saved } => write!(
                f,
                "exact sinks and window take {exact} bytes, coding saves {saved} bytes against 16-bit elements so far"
            ),
        }
    }
}

/// Bytes that a shared slice of `len` bytes takes: two counters before it, rounded up to their alignment.
pub(crate) const fn arc_bytes(len: usize) -> usize {
    let word = size_of::<usize>();
    2 * word + len.next_multiple_of(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_appears_while_the_exact_part_outweighs_the_saving() {
        let memory = KvMemory { window: 1000, scalars: 1000, codes: 100, ..KvMemory::default() };
        assert_eq!(memory.total(), 1100);
        assert_eq!(memory.note(), Some(KvNote::ExactOutweighsSaving { exact: 1000, saved: 900 }));
        assert_eq!(KvMemory { window: 500, ..memory }.note(), None);
        assert_eq!(KvMemory::default().note(), None);
        assert!(memory.to_string().contains("window 1000"));
    }
}
