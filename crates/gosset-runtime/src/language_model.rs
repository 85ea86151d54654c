//! A model that is ready to run: weights, configuration, tokenizer.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use gosset_container::{Container, ContainerKind};
use gosset_kv::{Code, Frame, KvShape, KvSpec, KvStore, Probe};
use gosset_quantize::ModelSource;

use crate::config::{ModelConfig, generation_eos_ids, parse_config};
use crate::error::RuntimeError;
#[cfg(feature = "gpu")]
use crate::kv::kv_device_gap;
use crate::kv::{CodedCache, PROBE_TOKENS, Seen};
use crate::kv_cache::KvCache;
use crate::models::Decoder;
use crate::tensor::f32_slice;
#[cfg(feature = "gpu")]
use crate::tensor::tensor2;
use crate::text::Tokenizer;
use crate::trees::{ScoredToken, TokenTree, Trees};
use crate::weights::{ContainerWeights, SourceWeights, Weights, check, tie};

/// Positions whose logits exist at the same time while scoring: memory does not grow with window times vocabulary.
pub const LOGIT_SLICE: usize = 128;

/// Choices while loading.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Whether the output head is the embedding table; `None` follows the files.
    pub tie: Option<bool>,
    /// Where the model runs.
    pub device: Device,
}

/// Where a model runs.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum Device {
    /// The processor, in f32, weights as they are in the file.
    #[default]
    Cpu,
    /// A CUDA device, which holds the weights in their compressed form.
    #[cfg(feature = "gpu")]
    Gpu(crate::gpu::GpuDevice),
}

/// Memory that a loaded model holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// Bytes of the mapped container; 0 for a model loaded from a checkpoint.
    pub mapped_bytes: u64,
    /// Bytes of weights on the heap.
    pub heap_bytes: u64,
    /// Bytes of weights in the memory of a device.
    pub device_bytes: u64,
}

/// Side files by name.
type Blobs<'f, 'a> = dyn Fn(&str) -> Result<Option<&'a [u8]>, RuntimeError> + 'f;

/// A decoder-only transformer, loaded.
///
/// Immutable, so that threads share it; everything that changes is in a [`KvCache`].
#[derive(Debug)]
pub struct LanguageModel {
    config: ModelConfig,
    backend: Backend,
    tokenizer: Option<Tokenizer>,
    stop_ids: Vec<u32>,
    warnings: Vec<String>,
    mapped_bytes: u64,
}

/// Sees the residual stream after the embedding and after every layer, `[n, hidden_size]`; its error ends the pass.
pub(crate) type Watch<'a> = dyn FnMut(&str, &[f32]) -> Result<(), RuntimeError> + 'a;

/// Where the weights are, and who computes.
#[derive(Debug)]
enum Backend {
    Cpu(Decoder),
    #[cfg(feature = "gpu")]
    Gpu(Box<crate::gpu::GpuDecoder>),
}

impl Backend {
    fn load(config: &ModelConfig, weights: &dyn Weights, tied: bool, device: &Device) -> Result<Self, RuntimeError> {
        match device {
            Device::Cpu => Ok(Backend::Cpu(Decoder::load(config, weights, tied)?)),
            #[cfg(feature = "gpu")]
            Device::Gpu(device) => {
                Ok(Backend::Gpu(Box::new(crate::gpu::GpuDecoder::load(config, weights, tied, device)?)))
            }
        }
    }

    /// Hidden states from an empty cache that nobody keeps.
    fn forward_once(&self, tokens: &[u32], watch: &mut Watch<'_>) -> Result<(), RuntimeError> {
        match self {
            Backend::Cpu(decoder) => {
                decoder.forward_once(tokens, &mut |name, x| watch(name, &f32_slice(x)?)).map(|_| ())
            }
            #[cfg(feature = "gpu")]
            Backend::Gpu(decoder) => decoder.forward_once(tokens, watch).map(|_| ()),
        }
    }
}

impl LanguageModel {
    /// Loads a checkpoint into f32 memory, tensor by tensor.
    ///
    /// Configuration, names and shapes are checked before the first weight is read. A checkpoint without tokenizer loads;
    /// [`tokenizer`](Self::tokenizer) is `None` then.
    pub fn from_source(source: &dyn ModelSource, options: &LoadOptions) -> Result<Self, RuntimeError> {
        let blob = |name: &str| Ok(source.blob(name));
        let missing = || RuntimeError::MissingPart {
            part: "config.json".to_owned(),
            detail: format!("not found with {}; it is needed to run the model", source.info().name),
        };
        Self::load(&SourceWeights::new(source), &blob, missing, (options.tie, &options.device), 0)
    }

    /// Opens the model in a container; its weights stay in the file's map as they are stored.
    pub fn from_container(container: Arc<Container>, options: &LoadOptions) -> Result<Self, RuntimeError> {
        let missing = |detail: &str| RuntimeError::MissingPart {
            part: "model section".to_owned(),
            detail: format!("{}: {detail}", container.path().display()),
        };
        if container.manifest().kind != ContainerKind::Model {
            return Err(missing("this container holds tensors only; running needs a model"));
        }
        // What was forced while quantizing holds for the file.
        let tie = options.tie.or_else(|| container.manifest().recipe.get("options")?.get("tie")?.as_bool());
        let blob = |name: &str| container.blob(name).map_err(RuntimeError::from);
        let weights = ContainerWeights::new(Arc::clone(&container));
        Self::load(
            &weights,
            &blob,
            || missing("config.json was left out"),
            (tie, &options.device),
            container.file_bytes(),
        )
    }

    fn load<'a>(
        weights: &dyn Weights,
        blob: &Blobs<'_, 'a>,
        missing_config: impl FnOnce() -> RuntimeError,
        (force_tie, device): (Option<bool>, &Device),
        mapped_bytes: u64,
    ) -> Result<Self, RuntimeError> {
        let json = parse_config(blob("config.json")?.ok_or_else(missing_config)?)?;
        let config = ModelConfig::from_value(&json)?;
        let (tied, warning) = tie(&json, weights, force_tie)?;
        check(&config, weights, tied)?;
        let tokenizer = blob("tokenizer.json")?.map(Tokenizer::from_bytes).transpose()?;
        let mut stop_ids = config.eos_token_ids.clone();
        if let Some(bytes) = blob("generation_config.json")? {
            stop_ids.extend(generation_eos_ids(bytes)?);
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let backend = Backend::load(&config, weights, tied, device)?;
        let mut warnings: Vec<String> = warning.into_iter().collect();
        #[cfg(feature = "gpu")]
        if let Backend::Gpu(decoder) = &backend {
            warnings.extend_from_slice(decoder.notes());
        }
        warnings.shrink_to_fit();
        Ok(Self { backend, tokenizer, stop_ids, warnings, mapped_bytes, config })
    }

    /// The hyperparameters.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tokenizer, if the files had one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The tokenizer, or [`RuntimeError::MissingPart`] naming it.
    pub fn require_tokenizer(&self) -> Result<&Tokenizer, RuntimeError> {
        self.tokenizer.as_ref().ok_or_else(|| RuntimeError::MissingPart {
            part: "tokenizer.json".to_owned(),
            detail: "the model has no tokenizer; text needs one".to_owned(),
        })
    }

    /// The tokenizer, given away: a model that only scores ids need not hold its vocabulary.
    pub fn take_tokenizer(&mut self) -> Option<Tokenizer> {
        self.tokenizer.take()
    }

    /// Rows of the embedding table, which may be more than the tokenizer has ids.
    pub fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    /// Ids that end a generation: those of `config.json` and of `generation_config.json`.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// What is odd about the files but no error, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Memory held by the weights.
    pub fn resident(&self) -> Resident {
        let (heap_bytes, device_bytes) = match &self.backend {
            Backend::Cpu(decoder) => (decoder.heap_bytes() as u64, 0),
            #[cfg(feature = "gpu")]
            Backend::Gpu(decoder) => (0, decoder.device_bytes()),
        };
        Resident { mapped_bytes: self.mapped_bytes, heap_bytes, device_bytes }
    }

    /// A cache without positions.
    pub fn new_cache(&self) -> KvCache {
        match &self.backend {
            Backend::Cpu(decoder) => decoder.new_cache(),
            #[cfg(feature = "gpu")]
            Backend::Gpu(_) => KvCache::new(std::iter::empty()),
        }
    }

    /// Sizes of keys and values.
    pub fn kv_shape(&self) -> KvShape {
        let ModelConfig { n_layers, n_kv_heads, head_dim, .. } = self.config;
        KvShape { layers: n_layers, kv_heads: n_kv_heads, head_dim }
    }

    /// A compressed cache without positions, as `spec` says.
    ///
    /// `probe` is what [`kv_probe`](Self::kv_probe) gave, for specs that want one; others do not look at it.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::KvDevice`] for a model on a device that cannot keep such a cache, [`RuntimeError::Options`] for keys framed by pairs
    /// and a model whose layers rotate in two ways, [`RuntimeError::Kv`] for a spec that does not fit
    /// the model or lacks its probe.
    pub fn new_kv_cache(&self, spec: &KvSpec, probe: Option<&Probe>) -> Result<KvCache, RuntimeError> {
        self.check_kv(spec)?;
        #[cfg(feature = "gpu")]
        if let Backend::Gpu(decoder) = &self.backend {
            return Ok(KvCache::on_a_device(decoder.kv_plan(spec, self.kv_shape(), probe)?));
        }
        let (keys, values) = spec.codecs(self.kv_shape(), probe)?;
        let store = KvStore::new(self.kv_shape(), spec.policy, keys, values, &spec.protect)?;
        self.kv_cache_over(store, spec.keys_before_rope)
    }

    /// A compressed cache over a store without positions, which gets its keys before they are rotated or after.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::KvDevice`] for a model on a device, [`RuntimeError::Options`] for a store of another shape or with positions.
    pub fn kv_cache_over(&self, store: KvStore, keys_before_rope: bool) -> Result<KvCache, RuntimeError> {
        let decoder = self.cpu_decoder()?;
        let (expected, found) = (self.kv_shape(), store.shape());
        if found != expected || !store.is_empty() {
            return Err(RuntimeError::Options {
                option: "store of a cache".to_owned(),
                expected: format!("an empty one of {expected:?}"),
                found: format!("{} positions of {found:?}", store.len(0)),
            });
        }
        let windows = (0..expected.layers).filter_map(|layer| Some((layer, self.config.window_of(layer)?)));
        let store = windows.into_iter().try_fold(store, |store, (layer, window)| store.with_band(layer, window))?;
        Ok(KvCache::coded(CodedCache::new(store, keys_before_rope, decoder.ropes())))
    }

    /// Why this model can have no cache of `spec` anywhere: keys framed by pairs are stored less a mean that turns with the position, which
    /// takes one set of rotary frequencies for all layers.
    fn check_kv(&self, spec: &KvSpec) -> Result<(), RuntimeError> {
        if spec.key.frame != Frame::Pairs || self.config.local_rope.is_none() {
            return Ok(());
        }
        Err(RuntimeError::Options {
            option: "keys of a compressed cache".to_owned(),
            expected: format!(
                "a frame other than pairs for {}, whose local layers have rotary frequencies of their own (e8@3, for instance)",
                self.config.architecture.class
            ),
            found: format!("{spec}"),
        })
    }

    /// Why this model cannot have a cache of `spec` where it is; `None` if it can, and always on the processor.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "without devices there is nothing to refuse"))]
    pub fn kv_gap(&self, spec: &KvSpec) -> Option<String> {
        match &self.backend {
            Backend::Cpu(_) => None,
            #[cfg(feature = "gpu")]
            Backend::Gpu(_) => kv_device_gap(spec, Some(self.config.head_dim)),
        }
    }

    /// What [`new_kv_cache`](Self::new_kv_cache) takes for `spec`: a probe of [`PROBE_TOKENS`] tokens if it wants one.
    ///
    /// # Errors
    ///
    /// Those of [`kv_probe`](Self::kv_probe).
    pub fn kv_probe_for(&self, spec: &KvSpec) -> Result<Option<Probe>, RuntimeError> {
        self.check_kv(spec)?;
        spec.wants_probe().then(|| self.kv_probe(PROBE_TOKENS)).transpose()
    }

    /// What a user should know before keys of this model are compressed as `spec` says, on one line.
    ///
    /// Where a mean is taken off keys, or where they are not coded, there is nothing to say, and no pass is needed to know it.
    ///
    /// # Errors
    ///
    /// Those of [`key_means`](Self::key_means).
    pub fn kv_notice(&self, spec: &KvSpec) -> Result<Option<String>, RuntimeError> {
        self.check_kv(spec)?;
        if spec.removes_mean() || matches!(spec.key.code, Code::Exact(_)) {
            return Ok(None);
        }
        let notice = self.key_means()?.notice(&spec.protect);
        if let Some(notice) = &notice {
            tracing::warn!(spec = %spec, "{notice}");
        }
        Ok(notice)
    }

    /// Shows `see` the queries and keys of every layer, neither rotated, while `tokens` go through from an empty cache that nobody will
    /// ask for; on a device layers are seen in turn for every chunk of the tokens.
    pub(crate) fn see_keys_of(&self, tokens: &[u32], see: &mut Seen<'_>) -> Result<(), RuntimeError> {
        match &self.backend {
            Backend::Cpu(decoder) => decoder.probe(tokens, see),
            #[cfg(feature = "gpu")]
            Backend::Gpu(decoder) => decoder.probe(tokens, see),
        }
    }

    /// The decoder of a model whose memory is the processor's.
    pub(crate) fn cpu_decoder(&self) -> Result<&Decoder, RuntimeError> {
        match &self.backend {
            Backend::Cpu(decoder) => Ok(decoder),
            #[cfg(feature = "gpu")]
            Backend::Gpu(_) => Err(RuntimeError::KvDevice {
                device: "a CUDA device".to_owned(),
                reason: "found codecs of another crate".to_owned(),
            }),
        }
    }

    /// Hidden states of `tokens` after the final norm, `[tokens.len(), hidden_size]`, as a continuation of `cache`.
    ///
    /// Fails with [`RuntimeError::Token`] or [`RuntimeError::ContextOverflow`] before any work; after an error the cache holds what it
    /// held before, of which a compressed one may have coded more.
    pub fn forward(&self, tokens: &[u32], cache: &mut KvCache) -> Result<Tensor, RuntimeError> {
        self.check_tokens(tokens, cache.len())?;
        match &self.backend {
            Backend::Cpu(decoder) => decoder.forward(tokens, cache, &mut |_, _| Ok(())),
            #[cfg(feature = "gpu")]
            Backend::Gpu(decoder) => {
                let hidden = cache.on_device(tokens, |all, held, slot| {
                    decoder.forward(all, held, slot).map(|hidden| {
                        // What was held before and went through again is not asked for.
                        hidden[hidden.len() - tokens.len() * self.config.hidden_size..].to_vec()
                    })
                })?;
                tensor2(hidden, tokens.len(), self.config.hidden_size)
            }
        }
    }

    /// Logits after the last of `tokens`, all of which go through the model as a continuation of `cache`, in chunks of `chunk`
    /// where memory is the processor's.
    ///
    /// Asks within the work whether to go on, and fails with [`RuntimeError::Cancelled`] if not.
    pub(crate) fn next_logits(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        chunk: usize,
        cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>, RuntimeError> {
        self.check_tokens(tokens, cache.len())?;
        match &self.backend {
            Backend::Cpu(decoder) => {
                let mut watch = |_: &str, _: &Tensor| if cancelled() { Err(RuntimeError::Cancelled) } else { Ok(()) };
                let mut last = None;
                for chunk in tokens.chunks(chunk) {
                    let hidden = decoder.forward(chunk, cache, &mut watch)?;
                    last = Some(hidden.narrow(0, chunk.len() - 1, 1)?);
                }
                match last {
                    Some(last) => Ok(f32_slice(&decoder.logits(&last)?)?.to_vec()),
                    None => unreachable!("there is at least one token"),
                }
            }
            #[cfg(feature = "gpu")]
            Backend::Gpu(decoder) => {
                cache.on_device(tokens, |all, held, slot| decoder.next_logits(all, held, slot, cancelled))
            }
        }
    }

    /// Logits of hidden states: `[n, hidden_size]` to `[n, vocab_size]`.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, RuntimeError> {
        match &self.backend {
            Backend::Cpu(decoder) => decoder.logits(hidden),
            #[cfg(feature = "gpu")]
            Backend::Gpu(decoder) => {
                let n = hidden.dims2()?.0;
                tensor2(decoder.logits(&f32_slice(&hidden.contiguous()?)?)?, n, self.config.vocab_size)
            }
        }
    }

    /// Hands `sink` the logits of each position of `positions` in turn; those of position `p` predict token `p + 1`.
    ///
    /// Starts from an empty cache. At most [`LOGIT_SLICE`] positions' logits exist at a time. A logit that is not finite ends
    /// the pass with [`RuntimeError::NonFinite`], which names the first bad layer; its rows were not handed out.
    ///
    /// # Panics
    ///
    /// If `positions` reaches beyond `tokens`.
    pub fn score(
        &self,
        tokens: &[u32],
        positions: Range<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), RuntimeError> {
        assert!(positions.end <= tokens.len(), "positions {positions:?} of {} tokens", tokens.len());
        self.check_tokens(&tokens[..positions.end], 0)?;
        let tokens = &tokens[..positions.end];
        let mut hand_out = |start: usize, logits: &[f32]| self.hand_out(tokens, start, logits, sink);
        match &self.backend {
            Backend::Cpu(decoder) => {
                let hidden = decoder.forward_once(tokens, &mut |_, _| Ok(()))?;
                for start in positions.clone().step_by(LOGIT_SLICE) {
                    let n = LOGIT_SLICE.min(positions.end - start);
                    hand_out(start, &f32_slice(&decoder.logits(&hidden.narrow(0, start, n)?)?)?)?;
                }
                Ok(())
            }
            #[cfg(feature = "gpu")]
            Backend::Gpu(decoder) => decoder.score(tokens, positions, &mut hand_out),
        }
    }

    /// As [`score`](Self::score), through `cache`, which is emptied first: `chunk` tokens at a time go in and are read back, so that each
    /// logit has seen what a generation with this cache would see. Afterwards the cache holds all of `tokens`.
    ///
    /// # Errors
    ///
    /// Those of [`score`](Self::score).
    ///
    /// # Panics
    ///
    /// If `positions` reaches beyond `tokens`, or if `chunk` is 0.
    pub fn score_with_cache(
        &self,
        tokens: &[u32],
        positions: Range<usize>,
        cache: &mut KvCache,
        chunk: usize,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), RuntimeError> {
        assert!(positions.end <= tokens.len(), "positions {positions:?} of {} tokens", tokens.len());
        self.check_tokens(tokens, 0)?;
        cache.truncate(0);
        for of_chunk in tokens.chunks(chunk) {
            let start = cache.len();
            let hidden = self.forward(of_chunk, cache)?;
            let end = cache.len().min(positions.end);
            for first in (positions.start.max(start)..end).step_by(LOGIT_SLICE) {
                let n = LOGIT_SLICE.min(end - first);
                let logits = self.logits(&hidden.narrow(0, first - start, n)?)?;
                self.hand_out(tokens, first, &f32_slice(&logits)?, sink)?;
            }
        }
        Ok(())
    }

    /// Hands out the logits of the positions from `start` on, or says what is wrong with them.
    fn hand_out(
        &self,
        tokens: &[u32],
        start: usize,
        logits: &[f32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), RuntimeError> {
        if let Some(bad) = first_bad_row(logits, self.config.vocab_size) {
            return Err(self.diagnose(tokens, start + bad));
        }
        for (i, row) in logits.chunks_exact(self.config.vocab_size).enumerate() {
            sink(start + i, row);
        }
        Ok(())
    }

    /// Hands `sink` the logits that predict each scored token of `trees`, the tokens of a branch in order; branches and trees take
    /// turns.
    ///
    /// All rows of all trees go through each linear layer together, so that coded weights are decoded once for many short texts; the
    /// caller bounds the number of tokens. On a device each branch is a pass of its own.
    ///
    /// # Errors
    /// [`RuntimeError::Options`] if a token is asked for that nothing precedes, otherwise those of [`Self::score`].
    pub fn score_trees(
        &self,
        trees: &[TokenTree<'_>],
        sink: &mut dyn FnMut(ScoredToken, &[f32]),
    ) -> Result<(), RuntimeError> {
        let laid = Trees::new(trees).map_err(|tree| RuntimeError::Options {
            option: format!("tree {tree}"),
            expected: "something before every scored token".to_owned(),
            found: "more scored tokens than that".to_owned(),
        })?;
        let sequences = trees.iter().enumerate().flat_map(|(t, tree)| {
            tree.branches
                .iter()
                .enumerate()
                .map(move |(b, branch)| (t, b, branch.n_scored, [tree.prefix, branch.tokens].concat()))
        });
        match &self.backend {
            Backend::Cpu(decoder) => {
                for (.., n_scored, tokens) in sequences {
                    self.check_tokens(&tokens[..tokens.len() - usize::from(n_scored > 0)], 0)?;
                }
                if laid.asked().is_empty() {
                    return Ok(());
                }
                let hidden = decoder.forward_trees(&laid)?;
                for asked in laid.asked().chunks(LOGIT_SLICE) {
                    let rows: Vec<u32> = asked.iter().map(|(row, _)| *row as u32).collect();
                    let index = Tensor::from_vec(rows, asked.len(), &candle_core::Device::Cpu)?;
                    let logits = decoder.logits(&hidden.index_select(&index, 0)?)?;
                    let logits = f32_slice(&logits)?;
                    if let Some(bad) = first_bad_row(&logits, self.config.vocab_size) {
                        let token = asked[bad].1[0];
                        let tree = &trees[token.tree];
                        let branch = &tree.branches[token.branch];
                        let tokens = [tree.prefix, branch.tokens].concat();
                        let position = tokens.len() - branch.n_scored + token.index - 1;
                        return Err(self.diagnose(&tokens[..=position], position));
                    }
                    for ((_, tokens), row) in asked.iter().zip(logits.chunks_exact(self.config.vocab_size)) {
                        tokens.iter().for_each(|&token| sink(token, row));
                    }
                }
                Ok(())
            }
            #[cfg(feature = "gpu")]
            Backend::Gpu(_) => {
                for (tree, branch, n_scored, tokens) in sequences.filter(|(.., n, _)| *n > 0) {
                    let first = tokens.len() - 1 - n_scored;
                    self.score(&tokens, first..tokens.len() - 1, &mut |position, row| {
                        sink(ScoredToken { tree, branch, index: position - first }, row);
                    })?;
                }
                Ok(())
            }
        }
    }

    /// The error for a non-finite logit at `position`: runs the tokens again and names the first layer that shows one.
    pub(crate) fn diagnose(&self, tokens: &[u32], position: usize) -> RuntimeError {
        let width = self.config.hidden_size;
        let watch = &mut |layer: &str, x: &[f32]| match first_bad_row(x, width) {
            Some(position) => Err(RuntimeError::NonFinite { layer: layer.to_owned(), position }),
            None => Ok(()),
        };
        match self.backend.forward_once(tokens, watch) {
            Err(error) => error,
            Ok(()) => RuntimeError::NonFinite { layer: "lm_head".to_owned(), position },
        }
    }

    /// Whether `tokens` can follow `start` positions: at least one, known ids, room in the context.
    pub(crate) fn check_tokens(&self, tokens: &[u32], start: usize) -> Result<(), RuntimeError> {
        let vocab_size = self.config.vocab_size;
        if let Some((position, &id)) = tokens.iter().enumerate().find(|&(_, &id)| id as usize >= vocab_size) {
            return Err(RuntimeError::Token { id, position, vocab_size });
        }
        if tokens.is_empty() {
            return Err(RuntimeError::Options {
                option: "tokens".to_owned(),
                expected: "at least one".to_owned(),
                found: "none".to_owned(),
            });
        }
        let asked = start + tokens.len();
        if asked > self.config.max_positions {
            return Err(RuntimeError::ContextOverflow {
                asked,
                limit: self.config.max_positions,
                detail: format!("{start} in the cache, {} new", tokens.len()),
            });
        }
        Ok(())
    }
}

/// First row of `width` columns that holds a NaN or an infinity.
fn first_bad_row(x: &[f32], width: usize) -> Option<usize> {
    // The sum of x·0 is NaN exactly if one element is not finite, and is vector code.
    x.chunks_exact(width).position(|row| {
        let mut lanes = [0f32; 16];
        let mut chunks = row.chunks_exact(16);
        for chunk in &mut chunks {
            lanes.iter_mut().zip(chunk).for_each(|(lane, v)| *lane += v * 0.0);
        }
        !lanes.iter().all(|v| *v == 0.0) || chunks.remainder().iter().any(|v| !v.is_finite())
    })
}
