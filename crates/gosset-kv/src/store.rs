//! The store: what of which position is held where.

use std::ops::Range;
use std::sync::Arc;

use crate::coded::Coded;
use crate::memory::KvMemory;
use crate::pages::Coding;
use crate::ring::{self, ExactRows};
use crate::{ExactType, KvCodec, KvError, KvShape, Policy, Protected, Role};

/// Keys and values of a context, exact where the policy wants them so, coded elsewhere.
///
/// Position j of a layer is a sink (exact forever), in the window (exact while it is among the newest), or coded: first as an open row,
/// then, with as many others as make a page, sealed. A query at position i sees exact what is exact when i is the newest position, whatever
/// chunks positions arrive in: [`append`](Self::append) a chunk, [`attend`](Self::attend) its queries, [`settle`](Self::settle) it.
///
/// Clones share sealed pages and exact vectors until one of them writes. Nothing is global.
///
/// ```
/// use gosset_kv::{AttendScratch, KvShape, KvSpec, KvStore};
///
/// let spec: KvSpec = "e8@3,frame=none,window=4,sinks=2".parse()?;
/// let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 8 };
/// let (keys, values) = spec.codecs(shape, None)?;
/// let mut store = KvStore::new(shape, spec.policy, keys, values, &spec.protect)?;
///
/// // A prompt of ten positions whose values are all the same, then the attention of its last query.
/// store.append(0, &[0.25; 80], &[0.5; 80])?;
/// let mut out = [0.0; 8];
/// store.attend(0, 0, 9, &[1.0; 8], None, &mut AttendScratch::new(1), &mut out)?;
/// store.settle(0);
/// assert!(out.iter().all(|x| (x - 0.5f32).abs() < 0.1));
/// assert_eq!((store.len(0), store.exact_from(0)), (10, 6));
/// # Ok::<(), gosset_kv::KvError>(())
/// ```
#[derive(Debug, Clone)]
pub struct KvStore {
    pub(crate) shape: KvShape,
    pub(crate) policy: Policy,
    pub(crate) codecs: [Arc<dyn KvCodec>; 2],
    pub(crate) layers: Vec<Layer>,
    /// Vectors that become coded together.
    pub(crate) block: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Layer {
    /// Keys, then values.
    pub(crate) roles: [RoleRows; 2],
    /// Positions held.
    pub(crate) len: usize,
    /// First position of the chunk that is not settled; `len` if all are.
    chunk: usize,
    /// A query sees this many positions, its own included.
    pub(crate) band: Option<usize>,
    /// Positions before are gone, because no query to come sees them.
    pub(crate) kept_from: usize,
}

/// Keys or values of a layer.
#[derive(Debug, Clone)]
pub(crate) struct RoleRows {
    /// Sinks; all positions of a protected role.
    pub(crate) kept: ExactRows,
    /// The window and the chunk that is not settled.
    pub(crate) recent: ExactRows,
    pub(crate) coded: Coded,
    pub(crate) protected: bool,
}

impl RoleRows {
    fn new(ty: ExactType, width: usize, sinks: usize, protected: bool) -> Self {
        let empty = || ExactRows::new(ty, width);
        Self { kept: empty(), recent: empty(), coded: Coded::new(sinks), protected }
    }
}

/// In the order of [`Layer::roles`].
pub(crate) const ROLES: [Role; 2] = [Role::Key, Role::Value];

impl KvStore {
    /// An empty store. Codecs of both roles serve all layers, those aside that `protect` keeps exact.
    ///
    /// # Errors
    ///
    /// [`KvError::Spec`] for a shape without elements, a page that is not made of whole blocks of the codecs, protected layers that do not
    /// exist; [`KvError::HeadDim`] for codecs of another width.
    pub fn new(
        shape: KvShape,
        policy: Policy,
        key: Arc<dyn KvCodec>,
        value: Arc<dyn KvCodec>,
        protect: &[Protected],
    ) -> Result<Self, KvError> {
        policy.check()?;
        let spec = |spec: String, reason: String| Err(KvError::Spec { spec, reason });
        let KvShape { layers, kv_heads, head_dim } = shape;
        if layers == 0 || kv_heads == 0 || head_dim == 0 {
            return spec(format!("{shape:?}"), "expected at least one of each".to_owned());
        }
        let block = key.block().max(value.block()).max(1);
        for codec in [&key, &value] {
            if codec.head_dim() != head_dim || codec.row_bytes() == 0 {
                let allowed = "codecs are made for one width";
                return Err(KvError::HeadDim { head_dim, codec: codec.name(), allowed });
            }
            if !policy.page.is_multiple_of(codec.block().max(1)) || !block.is_multiple_of(codec.block().max(1)) {
                let reason = format!("{} codes {} vectors together: expected a multiple", codec.name(), codec.block());
                return spec(format!("page={}", policy.page), reason);
            }
        }
        if !policy.page.is_multiple_of(block) {
            return spec(format!("page={}", policy.page), format!("expected a multiple of {block}"));
        }
        if let Some(protected) = protect.iter().find(|protected| protected.layer >= layers) {
            return spec(format!("protect={}", protected.layer), format!("the model has {layers} layers"));
        }
        let role = |layer, role| {
            let protected = protect.iter().any(|protected| protected.covers(layer, role));
            RoleRows::new(policy.exact, shape.width(), policy.sinks, protected)
        };
        let layer =
            |layer| Layer { roles: ROLES.map(|name| role(layer, name)), len: 0, chunk: 0, band: None, kept_from: 0 };
        Ok(Self { shape, policy, codecs: [key, value], layers: (0..layers).map(layer).collect(), block })
    }

    /// The same with a layer whose queries see `band` positions only, their own included. Pages that no query to come can see are dropped,
    /// the newest of them aside: that far a rewind is possible.
    ///
    /// # Errors
    ///
    /// [`KvError::Index`] for a layer that does not exist; [`KvError::Spec`] for a band of no positions; [`KvError::Positions`] if the layer
    /// holds any.
    pub fn with_band(mut self, layer: usize, band: usize) -> Result<Self, KvError> {
        self.check_layer(layer)?;
        let own = &mut self.layers[layer];
        if band == 0 {
            return Err(KvError::Spec {
                spec: format!("band={band}"),
                reason: "a query sees itself at least".to_owned(),
            });
        }
        if own.len > 0 {
            let reason = "a band is set before positions are held";
            return Err(KvError::Positions { asked: 0, held: own.len as u64, reason });
        }
        own.band = Some(band);
        Ok(self)
    }

    /// Sizes of the keys of the model.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// What is exact and how pages lie.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The codec of a role.
    pub fn codec(&self, role: Role) -> &Arc<dyn KvCodec> {
        &self.codecs[usize::from(role == Role::Value)]
    }

    /// Positions that `layer` holds; 0 for a layer that does not exist.
    pub fn len(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, |layer| layer.len)
    }

    /// Whether no layer holds a position.
    pub fn is_empty(&self) -> bool {
        self.layers.iter().all(|layer| layer.len == 0)
    }

    /// Positions of `layer` from this one on are held exact, and so are sinks.
    pub fn exact_from(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, |own| own.exact_from())
    }

    /// Whether a store cut to `len` positions cannot be told by later queries from one that never held more.
    ///
    /// Not so where positions are coded that would be in the window again.
    pub fn is_exact_after(&self, len: usize) -> bool {
        self.layers.iter().all(|layer| {
            let seen_exact = self.exact_boundary(layer, len).max(self.policy.sinks);
            let all_protected = layer.roles.iter().all(|role| role.protected);
            let exact = all_protected || layer.exact_from().min(len) <= seen_exact || len <= self.policy.sinks;
            exact && self.band_start(layer, len) >= layer.kept_from
        })
    }

    /// Takes keys and values of the next positions of `layer`, `[n, kv_heads * head_dim]` each.
    ///
    /// Those that leave the window are coded at once, and stay exact for queries of this chunk until it is settled. On an error the store is
    /// as it was.
    ///
    /// # Errors
    ///
    /// [`KvError::Index`] for a layer that does not exist; [`KvError::Length`] for slices that are not whole or not equal;
    /// [`KvError::NonFinite`] and [`KvError::Range`] for elements that cannot be stored; errors of codecs.
    pub fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), KvError> {
        self.check_layer(layer)?;
        let width = self.shape.width();
        let n = keys.len() / width;
        if !keys.len().is_multiple_of(width) {
            return Err(KvError::Length { what: "keys", found: keys.len(), expected: (n + 1) * width });
        }
        if values.len() != keys.len() {
            return Err(KvError::Length { what: "values", found: values.len(), expected: keys.len() });
        }
        if n == 0 {
            return Ok(());
        }
        let own = &self.layers[layer];
        let (first, len) = (own.len, own.len + n);
        for (role, x) in ROLES.into_iter().zip([keys, values]) {
            self.check_elements(layer, role, first, x)?;
        }
        // Staged first: a codec that fails must not leave keys without their values.
        let end = self.coded_end(own, len);
        let mut staged = [None, None];
        for ((role, x), staged) in ROLES.into_iter().zip([keys, values]).zip(&mut staged) {
            let rows = own.rows(role);
            if !rows.protected {
                let read =
                    |head, positions, out: &mut [f32]| self.read_exact_rows(rows, first, x, head, positions, out);
                *staged = Some(rows.coded.stage(&self.coding(layer, role), end, read)?);
            }
        }
        let (sinks, held) = (self.policy.sinks, self.held_exact());
        let codecs = self.codecs.clone();
        for (((role, x), staged), codec) in ROLES.into_iter().zip([keys, values]).zip(staged).zip(&codecs) {
            let coding = self.coding_of(layer, role, codec.as_ref());
            let rows = self.layers[layer].rows_mut(role);
            let kept = if rows.protected { len } else { sinks.min(len) };
            let kept = kept.saturating_sub(first) * width;
            rows.kept.push(first, &x[..kept], if rows.protected { usize::MAX } else { sinks });
            if let Some(staged) = staged {
                rows.coded.commit(&coding, staged);
            }
        }
        self.layers[layer].len = len;
        // Rows that no query of the chunk sees exact make room before its own rows come.
        let own = &self.layers[layer];
        let needed = self.exact_boundary(own, own.chunk).max(sinks);
        for (rows, x) in self.layers[layer].roles.iter_mut().zip([keys, values]) {
            if !rows.protected && held > 0 {
                let from = needed.max(first).min(len);
                rows.recent.drop_before(needed.min(len));
                rows.recent.push(from, &x[(from - first) * width..], held);
            }
        }
        Ok(())
    }

    /// Ends a chunk: exact rows that only its queries needed are dropped, and so are pages that no query to come sees.
    pub fn settle(&mut self, layer: usize) {
        if self.check_layer(layer).is_err() {
            return;
        }
        let own = &self.layers[layer];
        let (sinks, held, len) = (self.policy.sinks, self.held_exact(), own.len);
        let needed = self.exact_boundary(own, len.saturating_sub(1)).max(sinks);
        // The newest page before the band stays for rewinds.
        let gone = self.band_start(own, len).saturating_sub(self.policy.page);
        let codecs = self.codecs.clone();
        for (role, codec) in ROLES.into_iter().zip(&codecs) {
            let coding = self.coding_of(layer, role, codec.as_ref());
            let own = &mut self.layers[layer];
            let rows = own.rows_mut(role);
            rows.recent.drop_before(needed.min(rows.recent.end()));
            rows.recent.shrink(held);
            if gone > 0 {
                rows.kept.drop_before(gone.min(rows.kept.end()));
                let held = rows.kept.rows();
                rows.kept.shrink(if held == 0 { 0 } else { held + (held / 8).max(8) });
                rows.coded.drop_before(&coding, gone);
            }
        }
        let own = &mut self.layers[layer];
        own.kept_from = own.kept_from.max(gone);
        own.chunk = len;
    }

    /// Forgets positions from `len` on in every layer. Layers that hold fewer stay as they are.
    ///
    /// What is coded stays coded, even where it is among the newest again: [`is_exact_after`](Self::is_exact_after) tells.
    ///
    /// # Errors
    ///
    /// [`KvError::Positions`] if no layer holds so many, or if a layer with a band has dropped what queries would see; the store is then as
    /// it was. Errors of codecs that code several vectors together.
    pub fn truncate(&mut self, len: usize) -> Result<(), KvError> {
        let longest = self.layers.iter().map(|layer| layer.len).max().unwrap_or(0);
        let refuse = |held: usize, reason| Err(KvError::Positions { asked: len as u64, held: held as u64, reason });
        if len > longest {
            return refuse(longest, "a rewind cannot add positions");
        }
        for own in self.layers.iter().filter(|own| len < own.len && len > 0) {
            if self.band_start(own, len) < own.kept_from {
                return refuse(own.len, "what queries from there on see was dropped behind the band");
            }
        }
        if len == 0 {
            self.reset();
            return Ok(());
        }
        // Cut beside, since codecs may fail: pages are shared, so this copies lists and open rows only.
        let mut cut = Vec::new();
        for (layer, own) in self.layers.iter().enumerate().filter(|(_, own)| len < own.len) {
            for role in ROLES.into_iter().filter(|role| !own.rows(*role).protected) {
                let mut coded = own.rows(role).coded.clone();
                coded.truncate(&self.coding(layer, role), len.max(self.policy.sinks))?;
                cut.push((layer, role, coded));
            }
        }
        for (layer, role, coded) in cut {
            self.layers[layer].rows_mut(role).coded = coded;
        }
        for own in self.layers.iter_mut().filter(|own| len < own.len) {
            for rows in &mut own.roles {
                rows.kept.truncate(len);
                rows.recent.truncate(len);
            }
            own.len = len;
            own.chunk = own.chunk.min(len);
        }
        Ok(())
    }

    /// Forgets all positions. Bands stay.
    pub fn reset(&mut self) {
        let (ty, width, sinks) = (self.policy.exact, self.shape.width(), self.policy.sinks);
        for own in &mut self.layers {
            for rows in &mut own.roles {
                *rows = RoleRows::new(ty, width, sinks, rows.protected);
            }
            (own.len, own.chunk, own.kept_from) = (0, 0, 0);
        }
    }

    /// Bytes by cause: what is allocated, spare capacity included.
    pub fn memory(&self) -> KvMemory {
        let mut memory = KvMemory::default();
        memory.overhead += (self.layers.len() * size_of::<Layer>()) as u64;
        memory.slack += ((self.layers.capacity() - self.layers.len()) * size_of::<Layer>()) as u64;
        for (layer, own) in self.layers.iter().enumerate() {
            memory.positions += own.len as u64;
            memory.scalars += (2 * own.len * self.shape.width()) as u64;
            for role in ROLES {
                let rows = own.rows(role);
                rows.coded.count(&self.coding(layer, role), &mut memory);
                for ring in [&rows.kept, &rows.recent] {
                    memory.slack += (ring.allocated() - ring.held_bytes()) as u64;
                    memory.shared += if ring.is_shared() { ring.allocated() as u64 } else { 0 };
                }
                memory.window += rows.recent.held_bytes() as u64;
                *(if rows.protected { &mut memory.protected } else { &mut memory.sinks }) +=
                    rows.kept.held_bytes() as u64;
            }
        }
        memory
    }

    pub(crate) fn check_layer(&self, layer: usize) -> Result<(), KvError> {
        let held = self.layers.len();
        if layer >= held { Err(KvError::Index { what: "layer", found: layer, held }) } else { Ok(()) }
    }

    pub(crate) fn check_head(&self, head: usize) -> Result<(), KvError> {
        let held = self.shape.kv_heads;
        if head >= held { Err(KvError::Index { what: "kv head", found: head, held }) } else { Ok(()) }
    }

    pub(crate) fn coding(&self, layer: usize, role: Role) -> Coding<'_> {
        self.coding_of(layer, role, self.codec(role).as_ref())
    }

    fn coding_of<'a>(&self, layer: usize, role: Role, codec: &'a dyn KvCodec) -> Coding<'a> {
        let (heads, page, budget) = (self.shape.kv_heads, self.policy.page, self.policy.budget);
        Coding { codec, layer, role, heads, page, budget }
    }

    /// First position that a query at `position` sees exact, sinks aside, if nothing was rewound: boundaries of blocks count from where
    /// the codes of the layer end.
    pub(crate) fn exact_boundary(&self, own: &Layer, position: usize) -> usize {
        let oldest = position.saturating_add(1).saturating_sub(self.policy.window);
        let end = own.coded_end(self.policy.sinks);
        if oldest >= end {
            // What is beyond the codes waits for its block.
            return if own.roles.iter().all(|role| role.protected) { oldest } else { end };
        }
        end.saturating_sub((end - oldest).next_multiple_of(self.block))
    }

    /// Where the first part ends: sinks, or all positions if both roles keep everything exact.
    pub(crate) fn kept_end(&self, own: &Layer) -> usize {
        if own.roles.iter().all(|rows| rows.protected) { own.len } else { self.policy.sinks }
    }

    /// First position that a query at `position` of a layer sees at all.
    pub(crate) fn band_start(&self, own: &Layer, position: usize) -> usize {
        own.band.map_or(0, |band| position.saturating_add(1).saturating_sub(band))
    }

    /// Where codes end once `len` positions are held: whole blocks that have left the window.
    fn coded_end(&self, own: &Layer, len: usize) -> usize {
        let end = own.coded_end(self.policy.sinks);
        let left = len.saturating_sub(self.policy.window).saturating_sub(end);
        end + left / self.block * self.block
    }

    /// Exact rows that are needed between chunks: the window, and a block that has not left it as a whole.
    fn held_exact(&self) -> usize {
        self.policy.window + self.block - 1
    }

    /// Vectors of a head at positions that leave the window: from the exact rows, or from `x`, the rows from position `first` on.
    fn read_exact_rows(
        &self,
        rows: &RoleRows,
        first: usize,
        x: &[f32],
        head: usize,
        positions: Range<usize>,
        out: &mut [f32],
    ) {
        let (width, d) = (self.shape.width(), self.shape.head_dim);
        for (position, out) in positions.zip(out.chunks_exact_mut(d)) {
            if position < first {
                rows.recent.read(position, head * d, out);
            } else {
                out.copy_from_slice(&x[(position - first) * width + head * d..][..d]);
                // As if it had been among the exact rows, which it is if it comes in smaller chunks.
                if self.held_exact() > 0 {
                    ring::round(self.policy.exact, out);
                }
            }
        }
    }

    /// Refuses elements that cannot be stored.
    fn check_elements(&self, layer: usize, role: Role, first: usize, x: &[f32]) -> Result<(), KvError> {
        let exact = self.policy.exact;
        let all_coded = self.policy.sinks + self.held_exact() == 0 && !self.layers[layer].rows(role).protected;
        let max = match if all_coded { ExactType::F32 } else { exact } {
            ExactType::F32 => f32::MAX,
            ExactType::Bf16 => half::bf16::MAX.to_f32(),
            ExactType::F16 => half::f16::MAX.to_f32(),
        };
        // Comparisons with NaN are false.
        if x.iter().all(|x| x.abs() <= max) {
            return Ok(());
        }
        for (i, &value) in x.iter().enumerate() {
            let (position, head) = (first + i / self.shape.width(), i % self.shape.width() / self.shape.head_dim);
            let (role, layer, head, position) = (role.name(), layer as u32, head as u32, position as u64);
            if !value.is_finite() {
                return Err(KvError::NonFinite { role, layer, head, position });
            }
            if value.abs() > max {
                return Err(KvError::Range { role, layer, head, position, value, exact: exact.name() });
            }
        }
        Ok(())
    }
}

impl Layer {
    pub(crate) fn rows(&self, role: Role) -> &RoleRows {
        &self.roles[usize::from(role == Role::Value)]
    }

    fn rows_mut(&mut self, role: Role) -> &mut RoleRows {
        &mut self.roles[usize::from(role == Role::Value)]
    }

    /// Where the codes end: the same for both roles, unless one of them is protected and has none.
    fn coded_end(&self, sinks: usize) -> usize {
        self.roles.iter().filter(|rows| !rows.protected).map(|rows| rows.coded.end()).next().unwrap_or(sinks)
    }

    /// Positions from this one on are held exact.
    pub(crate) fn exact_from(&self) -> usize {
        let of_role = |rows: &RoleRows| if rows.recent.rows() == 0 { self.len } else { rows.recent.start() };
        self.roles.iter().filter(|rows| !rows.protected).map(of_role).max().unwrap_or(0)
    }
}
