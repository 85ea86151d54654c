//! Keys and values of the positions seen so far, exact in f32.

use crate::rope::RopeTable;

/// The state of one conversation: keys (rotated by their positions) and values of every layer.
///
/// A clone is independent of its original. A cache belongs to the model that made it
/// ([`LanguageModel::new_cache`](crate::LanguageModel::new_cache)).
#[derive(Debug, Clone)]
pub struct KvCache {
    pub(crate) layers: Vec<LayerCache>,
    /// Of a model on a device: the state there, `None` before the first pass.
    #[cfg(feature = "gpu")]
    pub(crate) device: DeviceState,
    tokens: Vec<u32>,
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

#[cfg(feature = "gpu")]
impl Clone for DeviceState {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl KvCache {
    pub(crate) fn new(n_layers: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            layers: vec![LayerCache::new(kv_heads, head_dim); n_layers],
            #[cfg(feature = "gpu")]
            device: DeviceState::default(),
            tokens: Vec::new(),
        }
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
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.layers.iter_mut().for_each(|layer| layer.truncate(len));
        #[cfg(feature = "gpu")]
        {
            self.device.held = self.device.held.min(len);
        }
    }

    /// Forgets every position from the first whose token differs from `tokens` on; returns how many are left.
    ///
    /// What is left is the longest common start of both, so a text that continues `tokens` can go on from there.
    pub fn keep_common_start(&mut self, tokens: &[u32]) -> usize {
        let n = self.tokens.iter().zip(tokens).take_while(|(held, wanted)| held == wanted).count();
        self.truncate(n);
        n
    }

    /// Bytes allocated for keys and values, on the host and on a device.
    pub fn allocated_bytes(&self) -> usize {
        #[cfg(feature = "gpu")]
        let device = self.device.state.as_ref().map_or(0, |state| state.cache_bytes() as usize);
        #[cfg(not(feature = "gpu"))]
        let device = 0;
        device + self.layers.iter().map(|l| (l.keys.capacity() + l.values.capacity()) * size_of::<f32>()).sum::<usize>()
    }

    /// Runs `pass` for everything that the device lacks: it gets all such tokens, of which `tokens` are the last, the positions
    /// that the device holds, and its state. If it succeeds the cache takes the positions; otherwise it is as before.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_device<R>(
        &mut self,
        tokens: &[u32],
        pass: impl FnOnce(&[u32], usize, &mut Option<Box<crate::gpu::State>>) -> Result<R, crate::RuntimeError>,
    ) -> Result<R, crate::RuntimeError> {
        let held = self.device.held.min(self.tokens.len());
        let lacking = [&self.tokens[held..], tokens].concat();
        let result = pass(&lacking, held, &mut self.device.state)?;
        self.tokens.extend_from_slice(tokens);
        self.device.held = self.tokens.len();
        Ok(result)
    }

    /// Makes the tokens those whose positions the layers hold, after all of them took those of `tokens`.
    pub(crate) fn advance(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }
}

/// Keys and values of one layer, position-major: rows of `kv_heads * head_dim`.
#[derive(Debug, Clone)]
pub(crate) struct LayerCache {
    kv_heads: usize,
    head_dim: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl LayerCache {
    /// Without positions.
    pub(crate) fn new(kv_heads: usize, head_dim: usize) -> Self {
        Self { kv_heads, head_dim, keys: Vec::new(), values: Vec::new() }
    }

    /// Elements of one position.
    pub(crate) fn row_len(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Positions held.
    pub(crate) fn len(&self) -> usize {
        self.keys.len() / self.row_len()
    }

    /// All keys, rotated by their positions.
    pub(crate) fn keys(&self) -> &[f32] {
        &self.keys
    }

    /// All values.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Forgets every position from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        let n = len.saturating_mul(self.row_len());
        self.keys.truncate(n);
        self.values.truncate(n);
    }

    /// Appends rows of keys (not yet rotated) and values; `rope` covers the positions they get.
    pub(crate) fn append(&mut self, keys: &[f32], values: &[f32], rope: &RopeTable) {
        let (start, row) = (self.len(), self.row_len());
        let old = self.keys.len();
        self.keys.resize(old + keys.len(), 0.0);
        for (i, (from, to)) in keys.chunks_exact(row).zip(self.keys[old..].chunks_exact_mut(row)).enumerate() {
            for (from, to) in from.chunks_exact(self.head_dim).zip(to.chunks_exact_mut(self.head_dim)) {
                rope.rotate(start + i, from, 1.0, to);
            }
        }
        self.values.extend_from_slice(values);
    }
}
