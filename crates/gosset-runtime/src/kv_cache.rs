//! Keys and values of the positions seen so far, exact in f32 or compressed.

use gosset_kv::KvMemory;

use crate::attention::AttentionShape;
use crate::error::RuntimeError;
use crate::kv::CodedCache;
use crate::rope::RopeTable;

/// The state of one conversation: keys and values of every layer.
///
/// A clone is independent of its original; pages of a compressed cache are shared until one of both is cut. A cache belongs to the model
/// that made it: [`LanguageModel::new_cache`](crate::LanguageModel::new_cache) gives one in f32,
/// [`LanguageModel::new_kv_cache`](crate::LanguageModel::new_kv_cache) a compressed one.
#[derive(Debug, Clone)]
pub struct KvCache {
    pub(crate) form: CacheForm,
    /// Of a model on a device: the state there, `None` before the first pass.
    #[cfg(feature = "gpu")]
    pub(crate) device: DeviceState,
    tokens: Vec<u32>,
}

/// How keys and values are held.
#[derive(Debug, Clone)]
pub(crate) enum CacheForm {
    /// In f32, keys rotated by their positions; without layers for a model on a device.
    Exact(Vec<LayerCache>),
    /// Coded, but for what the policy of the store keeps.
    Coded(Box<CodedCache>),
    /// Coded on a device; what it is made of, which clones share.
    #[cfg(feature = "gpu")]
    Device(std::sync::Arc<crate::gpu::KvPlan>),
}

/// A state on a device, and how many positions of the cache it holds.
///
/// A clone holds none: the positions go through the model again when they are needed.
#[cfg(feature = "gpu")]
#[derive(Debug, Default)]
pub(crate) struct DeviceState {
    pub(crate) state: Option<Box<crate::gpu::State>>,
    pub(crate) held: usize,
}

/// Where a pass finds the state of a conversation or puts it, and what it is made of if it is compressed.
#[cfg(feature = "gpu")]
pub(crate) type DeviceSlot<'a> =
    (&'a mut Option<Box<crate::gpu::State>>, Option<&'a std::sync::Arc<crate::gpu::KvPlan>>);

#[cfg(feature = "gpu")]
impl DeviceState {
    /// Goes back to at most `len` positions.
    fn rewind(&mut self, len: usize) {
        let len = self.held.min(len);
        self.held = self.state.as_mut().map_or(0, |state| state.rewind(len));
    }
}

#[cfg(feature = "gpu")]
impl Clone for DeviceState {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl KvCache {
    /// In f32, without positions.
    pub(crate) fn new(layers: impl Iterator<Item = AttentionShape>) -> Self {
        Self::of_form(CacheForm::Exact(layers.map(LayerCache::new).collect()))
    }

    /// Compressed, over a store without positions.
    pub(crate) fn coded(cache: CodedCache) -> Self {
        Self::of_form(CacheForm::Coded(Box::new(cache)))
    }

    /// Compressed on a device, without positions.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_a_device(plan: std::sync::Arc<crate::gpu::KvPlan>) -> Self {
        Self::of_form(CacheForm::Device(plan))
    }

    fn of_form(form: CacheForm) -> Self {
        Self {
            form,
            #[cfg(feature = "gpu")]
            device: DeviceState::default(),
            tokens: Vec::new(),
        }
    }

    /// A cache without positions, of the same form and settings.
    #[must_use]
    pub fn emptied(&self) -> Self {
        Self::of_form(match &self.form {
            CacheForm::Exact(layers) => {
                CacheForm::Exact(layers.iter().map(|layer| LayerCache::new(layer.shape)).collect())
            }
            CacheForm::Coded(cache) => CacheForm::Coded(Box::new(cache.emptied())),
            #[cfg(feature = "gpu")]
            CacheForm::Device(plan) => CacheForm::Device(std::sync::Arc::clone(plan)),
        })
    }

    /// The tokens whose keys and values are held, by position.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of positions held.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Forgets every position from `len` on; does nothing if fewer are held.
    ///
    /// Layers with a sliding window drop what no later position sees. Where positions from `len` on would see some of that, everything
    /// is forgotten; [`rewind`](Self::rewind) refuses instead. What a compressed cache has coded stays coded, although a cache that never held more would have it in its exact window. On a
    /// device it is as if it had never held more: what that needs goes through the model again with the next tokens.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.cut(len);
        }
    }

    /// [`truncate`](Self::truncate), if what later positions see is still held.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Options`] with the cache as it was, if a layer with a sliding window dropped what positions from `len` on see.
    pub fn rewind(&mut self, len: usize) -> Result<(), RuntimeError> {
        let can = match &self.form {
            CacheForm::Exact(layers) => layers.iter().all(|layer| layer.can_cut(len)),
            CacheForm::Coded(cache) => cache.can_cut(len),
            #[cfg(feature = "gpu")]
            CacheForm::Device(_) => true,
        };
        if !can && len < self.len() {
            return Err(RuntimeError::Options {
                option: "rewind of a cache".to_owned(),
                expected: "a length whose sliding windows are still held".to_owned(),
                found: format!("{len} of {} positions", self.len()),
            });
        }
        self.truncate(len);
        Ok(())
    }

    /// Forgets every position from `len` on, those of layers that are ahead of the tokens too.
    pub(crate) fn cut(&mut self, len: usize) {
        let len = match &mut self.form {
            CacheForm::Exact(layers) => {
                let len = if layers.iter().all(|layer| layer.can_cut(len)) { len } else { 0 };
                layers.iter_mut().for_each(|layer| layer.truncate(len));
                len
            }
            CacheForm::Coded(cache) => cache.truncate(len),
            #[cfg(feature = "gpu")]
            CacheForm::Device(_) => len,
        };
        self.tokens.truncate(len);
        #[cfg(feature = "gpu")]
        self.device.rewind(len);
    }

    /// Forgets positions such that what is left is a common start of the tokens held and of `tokens`; returns how many are left.
    ///
    /// Those are all of the longest common start, so a text that continues `tokens` can go on from there. Only where a compressed cache
    /// with an exact window would be rewound are its sinks alone left: the window would hold coded what a cache that never held more has
    /// exact, and a text would depend on what was said before it.
    pub fn keep_common_start(&mut self, tokens: &[u32]) -> usize {
        let mut n = self.tokens.iter().zip(tokens).take_while(|(held, wanted)| held == wanted).count();
        if let CacheForm::Coded(cache) = &self.form {
            n = cache.reusable(n);
        }
        self.truncate(n);
        self.len()
    }

    /// Bytes of a compressed cache by cause; `None` for one in f32. On a device these are bytes of its memory, and positions that it has
    /// yet to compute again are not in them.
    pub fn memory(&self) -> Option<KvMemory> {
        match &self.form {
            CacheForm::Exact(_) => None,
            CacheForm::Coded(cache) => Some(cache.memory()),
            #[cfg(feature = "gpu")]
            CacheForm::Device(_) => {
                Some(self.device.state.as_ref().and_then(|state| state.memory(self.device.held)).unwrap_or_default())
            }
        }
    }

    /// Bytes allocated for keys and values, on the host and on a device; of a compressed cache, the tables that rotate its keys too.
    pub fn allocated_bytes(&self) -> usize {
        #[cfg(feature = "gpu")]
        let device = self.device.state.as_ref().map_or(0, |state| state.cache_bytes() as usize);
        #[cfg(not(feature = "gpu"))]
        let device = 0;
        device
            + match &self.form {
                CacheForm::Exact(layers) => {
                    layers.iter().map(|l| (l.keys.capacity() + l.values.capacity()) * size_of::<f32>()).sum::<usize>()
                }
                CacheForm::Coded(cache) => cache.allocated_bytes(),
                #[cfg(feature = "gpu")]
                CacheForm::Device(_) => 0,
            }
    }

    /// Runs `pass` for everything that the device lacks: it gets all such tokens, of which `tokens` are the last, the positions
    /// that the device holds, and its state. If it succeeds the cache takes the positions; otherwise it is as before.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_device<R>(
        &mut self,
        tokens: &[u32],
        pass: impl FnOnce(&[u32], usize, DeviceSlot<'_>) -> Result<R, RuntimeError>,
    ) -> Result<R, RuntimeError> {
        let held = self.device.held.min(self.tokens.len());
        let lacking = [&self.tokens[held..], tokens].concat();
        let plan = match &self.form {
            CacheForm::Exact(_) | CacheForm::Coded(_) => None,
            CacheForm::Device(plan) => Some(plan),
        };
        match pass(&lacking, held, (&mut self.device.state, plan)) {
            Ok(result) => {
                self.tokens.extend_from_slice(tokens);
                self.device.held = self.tokens.len();
                Ok(result)
            }
            Err(error) => {
                self.device.rewind(held);
                Err(error)
            }
        }
    }

    /// Makes the tokens those whose positions the layers hold, after all of them took those of `tokens`.
    pub(crate) fn advance(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }
}

/// Positions before the window of the next query that a layer keeps at least, so that a few can be taken back.
pub(crate) const REWIND: usize = 64;

/// Keys and values of one layer, position-major: rows of `kv_heads * head_dim`.
///
/// With a sliding window it drops what queries no longer see, some of it at a time: moving rows costs as much as reading them.
#[derive(Debug, Clone)]
pub(crate) struct LayerCache {
    shape: AttentionShape,
    /// Position of the first row.
    first: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl LayerCache {
    /// Without positions.
    pub(crate) fn new(shape: AttentionShape) -> Self {
        Self { shape, first: 0, keys: Vec::new(), values: Vec::new() }
    }

    /// Forgets everything, and becomes the cache of another layer of the same heads.
    pub(crate) fn reuse(&mut self, shape: AttentionShape) {
        self.shape = shape;
        self.truncate(0);
    }

    /// Elements of one position.
    pub(crate) fn row_len(&self) -> usize {
        self.shape.kv_heads * self.shape.head_dim
    }

    /// Positions seen, of which those from [`first`](Self::first) on are held.
    pub(crate) fn len(&self) -> usize {
        self.first + self.keys.len() / self.row_len()
    }

    /// Position of the first row.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// All keys held, rotated by their positions.
    pub(crate) fn keys(&self) -> &[f32] {
        &self.keys
    }

    /// All values held.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Whether the layer can be cut to `len` positions: what the next one sees is held, or there is nothing to cut.
    pub(crate) fn can_cut(&self, len: usize) -> bool {
        len == 0 || len >= self.len() || self.shape.first_seen(len) >= self.first
    }

    /// Forgets every position from `len` on, which the layer can.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len == 0 {
            self.first = 0;
        }
        let n = len.saturating_sub(self.first).saturating_mul(self.row_len());
        self.keys.truncate(n);
        self.values.truncate(n);
    }

    /// Appends rows of keys (not yet rotated) and values; `rope` covers the positions they get.
    pub(crate) fn append(&mut self, keys: &[f32], values: &[f32], rope: &RopeTable) {
        self.drop_unseen();
        let (start, row, head_dim) = (self.len(), self.row_len(), self.shape.head_dim);
        let old = self.keys.len();
        self.keys.resize(old + keys.len(), 0.0);
        for (i, (from, to)) in keys.chunks_exact(row).zip(self.keys[old..].chunks_exact_mut(row)).enumerate() {
            for (from, to) in from.chunks_exact(head_dim).zip(to.chunks_exact_mut(head_dim)) {
                rope.rotate(start + i, from, 1.0, to);
            }
        }
        self.values.extend_from_slice(values);
    }

    /// Drops rows that neither the next position nor those shortly before it see, if they are many.
    fn drop_unseen(&mut self) {
        let Some(window) = self.shape.window else { return };
        let needed = self.shape.first_seen(self.len()).saturating_sub(REWIND);
        if needed.saturating_sub(self.first) > window / 2 + REWIND {
            let gone = (needed - self.first) * self.row_len();
            for rows in [&mut self.keys, &mut self.values] {
                rows.drain(..gone);
                // A prompt can be far longer than the window.
                rows.shrink_to(2 * rows.len());
            }
            self.first = needed;
        }
    }
}
