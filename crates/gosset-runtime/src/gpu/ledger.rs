//! Which positions of a compressed cache on a device are where.

use std::ops::Range;

use gosset_cuda::launch::kv::PAGE;

/// The account of a cache whose first positions are exact for ever, whose newest are exact in a ring, and which has pages between them.
///
/// Before positions from p on go through the model, as many pages are sealed as leave a window of exact positions behind p. So a step knows
/// from its position alone where everything is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ledger {
    sinks: usize,
    window: usize,
    ring: usize,
    sealed: usize,
    /// Positions from here on, beyond the sinks, are in the ring, as far as they are held.
    low: usize,
}

impl Ledger {
    /// Of nothing; `rows` positions at most go through the model at once.
    pub(super) fn new(sinks: usize, window: usize, rows: usize) -> Self {
        let ring = (window + PAGE + rows).next_multiple_of(PAGE);
        Self { sinks, window, ring, sealed: 0, low: sinks }
    }

    /// Rows of the ring; position p is in row p modulo this.
    pub(super) fn ring(&self) -> usize {
        self.ring
    }

    /// Pages that are sealed.
    pub(super) fn sealed(&self) -> usize {
        self.sealed
    }

    /// Of `held` positions, those that are exact in the ring.
    pub(super) fn exact(&self, held: usize) -> Range<usize> {
        let first = self.end_of(self.sealed);
        first.min(held)..held
    }

    /// First position after so many pages.
    fn end_of(&self, pages: usize) -> usize {
        self.sinks + PAGE * pages
    }

    /// Pages that are sealed before a pass from `position` on.
    fn before(&self, position: usize) -> usize {
        position.saturating_sub(self.sinks + self.window) / PAGE
    }

    /// Pages that have to be sealed before a pass from `position` on.
    pub(super) fn due(&self, position: usize) -> Range<usize> {
        self.sealed..self.before(position).max(self.sealed)
    }

    /// Pages up to `sealed` are sealed, and what the ring holds of positions up to `end` is written over what is a ring before them.
    pub(super) fn pass(&mut self, sealed: usize, end: usize) {
        self.sealed = sealed;
        self.low = self.low.max(end.saturating_sub(self.ring));
    }

    /// Goes back to at most `len` positions: to as many as leave the cache as if it had never held more. Returns how many.
    ///
    /// Rows that are still in the ring can be exact again. Beyond that a cache without window goes back to the start of the page, and one
    /// with a window to its sinks: what was computed while the window was exact must not be computed again with it in code.
    pub(super) fn rewind(&mut self, len: usize) -> usize {
        let sealed = self.sealed.min(self.before(len));
        let needed = self.end_of(sealed);
        let held = if len <= needed || needed >= self.low {
            len
        } else if self.window == 0 {
            needed
        } else {
            len.min(self.sinks)
        };
        self.sealed = self.before(held).min(sealed);
        if held <= self.end_of(self.sealed) {
            // The ring is empty.
            self.low = self.end_of(self.sealed);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is where, position by position.
    struct Cache {
        ledger: Ledger,
        ring: Vec<Option<usize>>,
        pages: Vec<Vec<usize>>,
        held: usize,
    }

    impl Cache {
        fn new(sinks: usize, window: usize, rows: usize) -> Self {
            let ledger = Ledger::new(sinks, window, rows);
            Self { ledger, ring: vec![None; ledger.ring()], pages: Vec::new(), held: 0 }
        }

        fn pass(&mut self, rows: usize) {
            let due = self.ledger.due(self.held);
            self.pages.truncate(due.start);
            for page in due.clone() {
                let first = self.ledger.sinks + PAGE * page;
                let positions: Vec<usize> = (first..first + PAGE).collect();
                assert!(positions.iter().all(|p| self.ring[p % self.ring.len()] == Some(*p)), "page {page}");
                self.pages.push(positions);
            }
            self.ledger.pass(due.end, self.held + rows);
            for p in (self.held..self.held + rows).filter(|p| *p >= self.ledger.sinks) {
                let slot = p % self.ring.len();
                self.ring[slot] = Some(p);
            }
            self.held += rows;
            self.check();
        }

        fn rewind(&mut self, len: usize) {
            self.held = self.ledger.rewind(len.min(self.held));
            self.check();
        }

        /// Every position is in a page, a sink or the ring; exact positions are those of a cache that never held more.
        fn check(&self) {
            let exact = self.ledger.exact(self.held);
            assert!(self.pages.len() >= self.ledger.sealed());
            assert!(exact.clone().all(|p| p < self.ledger.sinks || self.ring[p % self.ring.len()] == Some(p)));
            assert!(exact.start <= self.ledger.sinks.min(self.held) + PAGE * self.ledger.sealed());
        }
    }

    #[test]
    fn every_position_is_in_one_place_through_passes_and_rewinds() {
        for (sinks, window, rows) in [(0, 0, 1), (0, 0, 128), (5, 0, 64), (64, 256, 128), (3, 10, 100), (0, 64, 64)] {
            let mut cache = Cache::new(sinks, window, rows);
            let mut random = 12345u64;
            let mut draw = |n: usize| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (random >> 33) as usize % n
            };
            for _ in 0..3000 {
                if draw(8) > 0 {
                    cache.pass(1 + draw(rows));
                    // At a step the pages are those that its position says.
                    let sealed = cache.ledger.sealed();
                    assert!(sealed <= cache.ledger.before(cache.held));
                } else {
                    let back = [1, 20, 300, 100_000][draw(4)];
                    let len = cache.held.saturating_sub(draw(back));
                    cache.rewind(len);
                    assert!(cache.held <= len && (len - cache.held < PAGE || window > 0));
                    assert!(cache.ledger.sealed() <= cache.ledger.before(cache.held));
                }
            }
        }
    }

    #[test]
    fn a_short_way_back_costs_nothing() {
        let mut cache = Cache::new(0, 0, 128);
        for _ in 0..300 {
            cache.pass(1);
        }
        cache.rewind(250);
        assert_eq!((cache.held, cache.ledger.sealed(), cache.ledger.exact(250)), (250, 3, 192..250));
        // Further back than the ring reaches: to the start of the page.
        cache.rewind(100);
        assert_eq!((cache.held, cache.ledger.sealed()), (64, 1));
        cache.pass(36);
        assert_eq!(cache.ledger.exact(100), 64..100);
        cache.rewind(0);
        assert_eq!((cache.held, cache.ledger.sealed()), (0, 0));
    }

    #[test]
    fn a_window_that_is_gone_is_made_again_from_the_sinks() {
        let mut cache = Cache::new(4, 100, 64);
        for _ in 0..1000 {
            cache.pass(1);
        }
        cache.rewind(990);
        assert_eq!(cache.held, 990);
        cache.rewind(500);
        assert_eq!((cache.held, cache.ledger.sealed()), (4, 0));
    }
}
