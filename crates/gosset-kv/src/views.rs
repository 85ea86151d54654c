//! What a store holds, byte by byte: for tests, and for whoever moves pages to another device.

use std::borrow::Cow;
use std::ops::Range;

use crate::{KvError, KvStore, Role};

/// A sealed page of one role of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageView {
    /// Positions whose vectors count.
    pub positions: Range<usize>,
    /// Vectors that were packed: more than count if a rewind ended inside the page.
    pub packed: usize,
}

/// Where the vectors of a position are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Exact, as a sink or in a protected layer.
    Kept,
    /// Exact, in the window or in a chunk that is not settled.
    Recent,
    /// In an open row.
    Open,
    /// In a sealed page.
    Sealed,
}

impl KvStore {
    /// Where vectors of `role` at `position` are, as a query at the newest position sees them.
    ///
    /// # Errors
    ///
    /// [`KvError::Index`] for a layer that does not exist; [`KvError::Positions`] for positions that are not held.
    pub fn held(&self, layer: usize, role: Role, position: usize) -> Result<Held, KvError> {
        self.check_layer(layer)?;
        let own = &self.layers[layer];
        let rows = own.rows(role);
        if (rows.kept.start()..rows.kept.end()).contains(&position) {
            return Ok(Held::Kept);
        }
        let exact = own.exact_from().max(self.exact_boundary(own, own.len.saturating_sub(1)));
        if (exact..own.len).contains(&position) && position >= self.policy.sinks {
            return Ok(Held::Recent);
        }
        if rows.coded.open_positions().contains(&position) {
            return Ok(Held::Open);
        }
        if rows.coded.page_at(position, self.policy.page).is_some_and(|page| page.positions().contains(&position)) {
            return Ok(Held::Sealed);
        }
        let reason = "position was never appended, or dropped";
        Err(KvError::Positions { asked: position as u64, held: own.len as u64, reason })
    }

    /// The exact vectors of `role` at `position`, all heads, `[kv_heads, head_dim]`, if they are held.
    ///
    /// # Errors
    ///
    /// [`KvError::Index`] for a layer that does not exist.
    pub fn exact_vectors(&self, layer: usize, role: Role, position: usize) -> Result<Option<Vec<f32>>, KvError> {
        self.check_layer(layer)?;
        let rows = self.layers[layer].rows(role);
        let holds = |ring: &&crate::ring::ExactRows| (ring.start()..ring.end()).contains(&position);
        Ok([&rows.kept, &rows.recent].into_iter().find(holds).map(|ring| {
            let mut out = vec![0.0; self.shape.width()];
            ring.read(position, 0, &mut out);
            out
        }))
    }

    /// Sealed pages of `role`, in order of positions.
    ///
    /// # Errors
    ///
    /// [`KvError::Index`] for a layer that does not exist.
    pub fn pages(&self, layer: usize, role: Role) -> Result<Vec<PageView>, KvError> {
        self.check_layer(layer)?;
        let pages = self.layers[layer].rows(role).coded.pages(self.policy.page);
        Ok(pages.map(|page| PageView { positions: page.positions(), packed: page.packed }).collect())
    }

    /// Bytes of a head in the page at `index` of [`pages`](Self::pages): what its codec packed.
    ///
    /// # Errors
    ///
    /// [`KvError::Index`] for a layer, head or page that does not exist.
    pub fn page_bytes(&self, layer: usize, role: Role, index: usize, head: usize) -> Result<Cow<'_, [u8]>, KvError> {
        self.check_layer(layer)?;
        self.check_head(head)?;
        let coded = &self.layers[layer].rows(role).coded;
        let mut pages = coded.pages(self.policy.page);
        let page = pages.nth(index).ok_or_else(|| {
            let held = coded.pages(self.policy.page).count();
            KvError::Index { what: "page", found: index, held }
        })?;
        page.body_owned(&self.coding(layer, role), head)
    }

    /// Open rows of a head and their positions, `[n, row_bytes]`.
    ///
    /// # Errors
    ///
    /// [`KvError::Index`] for a layer or head that does not exist.
    pub fn open_rows(&self, layer: usize, role: Role, head: usize) -> Result<(Range<usize>, Vec<u8>), KvError> {
        self.check_layer(layer)?;
        self.check_head(head)?;
        let coded = &self.layers[layer].rows(role).coded;
        let mut rows = Vec::new();
        coded.open_rows(&self.coding(layer, role), head, coded.open_positions(), &mut rows);
        Ok((coded.open_positions(), rows))
    }
}
