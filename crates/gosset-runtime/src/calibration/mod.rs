//! Calibration: what the linears of a model read while a text goes through it, layer by layer.
//!
//! [`Calibration`] is the [`Activations`] of a checkpoint that this crate can run. A text becomes sequences of token ids; their
//! hidden states, `[tokens, hidden]` in f32, are all that is held of the model's state, beside the f32 weights of one layer (of two
//! versions of it in sequential calibration), the intermediate results of one sequence, and the second moments of one layer in f64.
//! [`Calibration::expected_peak_bytes`] is the sum of these, known before the first pass.
//!
//! - Plain: second moments of the unquantized model. One pass over each layer; the four inputs of its seven linears are taken on the
//!   way. With a folder for them they are computed once per model and text, and every method and every rate shares them.
//! - Sequential: second moments of the inputs that the quantized model will see, in the order of the data flow within a layer too,
//!   and the drift of the unquantized inputs from them. They depend on the run, so there is no cache.
//!
//! All activations are f32; sums over tokens are f64, of f32 products of 128 tokens at a time
//! ([`HessianAccumulator`](gosset_unisvq::HessianAccumulator) states what that loses). So values beyond the range of F16 are held; they
//! are told as warnings. Activations that are not finite end the calibration with the first such place, token and channel. Results
//! depend on the model, the ids and their cut into sequences alone, not on the number of threads.
//!
//! ```no_run
//! use gosset_quantize::Activations;
//! use gosset_runtime::calibration::{Calibration, CalibrationOptions};
//! use gosset_runtime::source::open_source;
//!
//! let source = open_source("model.gguf".as_ref())?;
//! let mut calibration = Calibration::new(&*source, CalibrationOptions::default())?;
//! println!("{} tokens, up to {} MB", calibration.n_tokens(), calibration.expected_peak_bytes() >> 20);
//! let moments = calibration.moments("model.layers.0.mlp.down_proj.weight")?.expect("a linear of a layer");
//! assert_eq!(moments.hessian.n_tokens(), 32_768);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cache;
mod layer_input;
mod plain;
mod prefix;
mod progress;
mod runner;
mod text;
mod token_factors;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use gosset_quantize::{
    Activations, CalibrationRecord, InputMoments, ModelSource, Plan, QuantizeError, TensorInfo, TokenWeights,
    TunedBlock,
};
use gosset_unisvq::UniSvqMatrix;

use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::models::{EMBEDDING, layer_name, text_name};
use crate::text::Tokenizer;
use crate::tune::{TuneData, TuneOptions, tune_block};
use crate::weights::{SourceWeights, check};
use cache::{CacheKey, HessianCache};
pub use layer_input::{InputCoverage, LayerInput};
use layer_input::{LinearPlace, layer_part};
use plain::PlainStream;
use prefix::Prefix;
use progress::Reporter;
pub use progress::{CalibrationObserver, CalibrationProgress, Pass};
use runner::Runner;
pub use text::CalibrationText;
use text::Sequences;

/// Tokens of a sequence unless the model's context is shorter.
const DEFAULT_WINDOW: usize = 2048;

/// What a calibration is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalibrationOptions {
    /// The text.
    pub text: CalibrationText,
    /// Tokens to use at most; a shorter text gives fewer, and a warning.
    pub tokens: usize,
    /// Tokens of a sequence; `None` for 2048, or the model's context if that is shorter.
    pub window: Option<usize>,
    /// Chooses the sequences of a text that is longer than needed.
    pub seed: u64,
    /// Folder that second moments are kept in, or taken from. Not for sequential calibration.
    pub hessian_cache: Option<PathBuf>,
    /// Whether inputs come from the quantized prefix.
    pub sequential: bool,
    /// How much each token counts.
    pub token_weights: TokenWeights,
}

impl Default for CalibrationOptions {
    /// 32768 tokens of the built-in text, of the unquantized model.
    fn default() -> Self {
        Self {
            text: CalibrationText::BuiltIn,
            tokens: 32_768,
            window: None,
            seed: 0,
            hessian_cache: None,
            sequential: false,
            token_weights: TokenWeights::Equal,
        }
    }
}

/// Activations of a checkpoint on a text; see the [module](self).
pub struct Calibration<'a> {
    runner: Runner<'a>,
    reporter: Reporter,
    cache: Option<HessianCache>,
    record: CalibrationRecord,
    warnings: Vec<String>,
    /// What was seen so far.
    coverage: BTreeMap<(usize, LayerInput), InputCoverage>,
    /// Second moments that were asked for last: those of one layer.
    held: Vec<(usize, LayerInput, InputMoments)>,
    /// What the outputs of gate and up of a layer bring into the stream, computed last.
    gated_energy: Option<(usize, Arc<Vec<f64>>)>,
    plain: Option<PlainStream>,
    prefix: PrefixState,
    tune_options: TuneOptions,
}

/// The two streams, which cannot be started again once tensors were replaced.
enum PrefixState {
    NotStarted,
    Running(Box<Prefix>),
    /// A pass ended early: one stream is ahead of the other.
    Broken,
}

impl<'a> Calibration<'a> {
    /// Reads the text and chooses the tokens; no layer is read yet.
    ///
    /// # Errors
    /// Those of a model that cannot run here: [`RuntimeError::MissingPart`] without configuration or tokenizer, missing tensors,
    /// shapes; those of the text, [`RuntimeError::CalibrationText`] for one without a token; [`RuntimeError::Options`] for options
    /// out of range; those of a cache of another model or text.
    pub fn new(source: &'a dyn ModelSource, options: CalibrationOptions) -> Result<Self, RuntimeError> {
        let missing = |part: &str| RuntimeError::MissingPart {
            part: part.to_owned(),
            detail: format!("not found with {}; calibration runs the model on a text", source.info().name),
        };
        let config = ModelConfig::from_json(source.blob("config.json").ok_or_else(|| missing("config.json"))?)?;
        // Calibration ends at the last layer; whether there is a head of its own does not matter.
        check(&config, &SourceWeights::new(source), true)?;
        let tokenizer = Tokenizer::from_bytes(source.blob("tokenizer.json").ok_or_else(|| missing("tokenizer.json"))?)?;
        let window = check_options(&options, &config)?;

        let text = options.text.load()?;
        let sequences = Sequences::new(&tokenizer, &text.text, options.tokens, window, options.seed)?;
        drop(tokenizer);
        if sequences.ids.is_empty() {
            let path = PathBuf::from(&text.name);
            let detail = "expected a text of at least one token, found none".to_owned();
            return Err(RuntimeError::CalibrationText { path, detail });
        }
        if let Some(position) = sequences.ids.iter().position(|&id| id as usize >= config.vocab_size) {
            let (id, vocab_size) = (sequences.ids[position], config.vocab_size);
            return Err(RuntimeError::Token { id, position, vocab_size });
        }
        let mut warnings = Vec::new();
        if sequences.ids.len() < options.tokens {
            let (asked, found) = (options.tokens, sequences.available);
            warnings.push(format!("calibration text {}: {asked} tokens were asked for, it has {found}", text.name));
        }
        let record = CalibrationRecord {
            text: text.name,
            text_sha256: text.sha256,
            tokens_sha256: sequences.sha256(),
            tokens: sequences.ids.len() as u64,
            window: sequences.window as u64,
            seed: options.seed,
            sequential: options.sequential,
            token_weights: options.token_weights,
        };
        let reporter = Reporter { n_layers: config.n_layers, n_sequences: sequences.n_sequences(), observer: None };
        let runner = Runner::new(source, config, sequences, options.token_weights);
        let cache = match &options.hessian_cache {
            Some(folder) => {
                let key = CacheKey {
                    model: source.info().fingerprint.clone(),
                    weights: runner.weights_sha256()?,
                    tokens_sha256: record.tokens_sha256.clone(),
                    tokens: record.tokens,
                    window: record.window,
                    token_weights: record.token_weights,
                };
                Some(HessianCache::open(folder, key)?)
            }
            None => None,
        };
        Ok(Self {
            runner,
            reporter,
            cache,
            record,
            warnings,
            coverage: BTreeMap::new(),
            held: Vec::new(),
            gated_energy: None,
            plain: None,
            prefix: PrefixState::NotStarted,
            tune_options: TuneOptions::default(),
        })
    }

    /// Has `observer` told of progress; it may end the calibration.
    pub fn set_observer(&mut self, observer: Box<CalibrationObserver>) {
        self.reporter.observer = Some(observer);
    }

    /// Tokens that are used.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.runner.sequences.ids.len()
    }

    /// Tokens of a sequence; the last one may be shorter.
    #[must_use]
    pub fn window(&self) -> usize {
        self.runner.sequences.window
    }

    /// The model's hyperparameters.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.runner.config
    }

    /// What is odd, one line each: about the text at first, about activations once they were seen.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let seen = self.coverage.values().filter_map(InputCoverage::warning);
        self.warnings.iter().cloned().chain(seen).collect()
    }

    /// What was seen so far, by layer and as the data flow.
    pub fn coverage(&self) -> impl Iterator<Item = &InputCoverage> {
        self.coverage.values()
    }

    /// Bytes that calibration takes at most from here on, without what the run does with the results.
    ///
    /// Hidden states of all tokens (two streams if sequential), one layer in f32 (two versions if sequential), the intermediate
    /// results of one sequence, second moments of one layer with the tokens that wait to be added and their products, and 16 MiB for what
    /// libraries take.
    #[must_use]
    pub fn expected_peak_bytes(&self) -> u64 {
        let moments = |input: LayerInput| {
            let n = input.width(&self.runner.config) as u64;
            (8 * n * n, (512 + 256 * rayon::current_num_threads() as u64) * n)
        };
        let all = LayerInput::ALL.map(moments);
        let (layer, pass) = (self.runner.layer_bytes(), self.runner.pass_bytes());
        const LIBRARIES: u64 = 16 << 20;
        if self.record.sequential {
            // Those of one input at a time and the cross moments, beside what was asked for last.
            let largest = all.iter().map(|(sums, waiting)| 3 * sums + 3 * waiting).max().unwrap_or_default();
            // Tensors of the layer that were replaced, in two copies while they are put together.
            // One stream's input waits while the other's is made.
            let widths =
                LayerInput::ALL.map(|input| input.width(&self.runner.config) * self.runner.sequences.window * 4);
            let waiting = widths.iter().max().map_or(0, |bytes| *bytes as u64);
            // The stream after the layer says how much tokens count.
            let streams = if self.record.token_weights.is_equal() { 2 } else { 3 };
            return self.stream_bytes(streams) + 4 * layer + pass + waiting + largest + LIBRARIES;
        }
        let sums: u64 = all.iter().map(|(sums, waiting)| sums + waiting).sum();
        let stored = if self.cache.is_some() { all.iter().map(|(sums, _)| *sums).max().unwrap_or_default() } else { 0 };
        self.stream_bytes(1) + layer + pass + sums + stored + LIBRARIES
    }

    /// Bytes that a run of `plan` with this calibration takes at most from here on, on this number of threads. The program and
    /// its threads come on top.
    #[must_use]
    pub fn expected_run_bytes(&self, plan: &Plan) -> u64 {
        let quantizing = plan.encode_peak_bytes(self);
        // Nothing is quantized while a layer is passed, but tensors of the layers before may wait with their second moments, which
        // are a quarter at most of what quantizing them takes.
        let passing = self.runner.layer_bytes() + self.runner.pass_bytes();
        let more = quantizing.saturating_sub(passing).max(quantizing / 4);
        self.expected_peak_bytes() + more + if plan.is_tuned() { self.expected_tuning_bytes() } else { 0 }
    }

    /// Bytes that a run which tunes takes in addition: the two streams, the targets, the layer as it became, and
    /// the graph of one sequence.
    #[must_use]
    pub fn expected_tuning_bytes(&self) -> u64 {
        let streams = if self.record.sequential { 1 } else { 3 };
        // Codes in f32 are a layer; the graph of one sequence and its gradients were measured as less than twice the intermediate results.
        self.stream_bytes(streams + 1) + 4 * self.runner.layer_bytes() + 3 * self.runner.pass_bytes()
    }

    fn stream_bytes(&self, n: u64) -> u64 {
        n * (self.n_tokens() * self.runner.config.hidden_size) as u64 * 4
    }

    /// Second moments of one input of one layer.
    ///
    /// Inputs of a layer that was passed already are computed from the start again, or refused if tensors were replaced since.
    ///
    /// # Errors
    /// [`RuntimeError::NonFiniteActivation`], [`RuntimeError::Cancelled`], those of the source and of the cache.
    ///
    /// # Panics
    /// If the model has no such layer.
    pub fn input_moments(&mut self, layer: usize, input: LayerInput) -> Result<InputMoments, RuntimeError> {
        assert!(layer < self.runner.config.n_layers, "layer {layer} of {}", self.runner.config.n_layers);
        if let Some((.., moments)) = self.held.iter().find(|(l, i, _)| (*l, *i) == (layer, input)) {
            return Ok(moments.clone());
        }
        self.held.retain(|(l, ..)| *l == layer && !self.record.sequential);
        if self.record.sequential {
            let (moments, seen) = self.with_prefix(|prefix, runner, reporter| {
                prefix.move_to(runner, reporter, layer)?;
                prefix.moments(runner, reporter, input)
            })?;
            self.keep(layer, input, &moments, seen);
            return Ok(moments);
        }
        if let Some(cache) = &self.cache
            && let Some((hessian, seen)) = cache.read(layer, input, input.width(&self.runner.config))?
        {
            let hessian = hessian.into();
            let moments = InputMoments { dead_inputs: seen.dead, hessian, drift: None, output_energy: None };
            self.keep(layer, input, &moments, seen);
            return Ok(moments);
        }
        self.walk_to(layer)?;
        match self.held.iter().find(|(l, i, _)| (*l, *i) == (layer, input)) {
            Some((.., moments)) => Ok(moments.clone()),
            None => unreachable!("a pass over a layer gives the second moments of all its inputs"),
        }
    }

    /// What each gated channel of a layer brings into the residual stream of the unquantized model: its mean square times the sum of
    /// the squares of the column of down that reads it.
    ///
    /// # Errors
    /// As for [`Calibration::input_moments`].
    ///
    /// # Panics
    /// If the model has no such layer.
    pub fn gated_energy(&mut self, layer: usize) -> Result<Arc<Vec<f64>>, RuntimeError> {
        if let Some((at, energy)) = &self.gated_energy
            && *at == layer
        {
            return Ok(Arc::clone(energy));
        }
        let mut energy = if self.record.sequential {
            self.with_prefix(|prefix, runner, reporter| {
                prefix.move_to(runner, reporter, layer)?;
                prefix.gated_power(runner, reporter)
            })?
        } else {
            let moments = self.input_moments(layer, LayerInput::FeedForwardOutput)?;
            moments.hessian.as_slice().iter().step_by(moments.hessian.n() + 1).copied().collect()
        };
        let down = format!("{}.{}.weight", layer_name(layer), LayerInput::FeedForwardOutput.linears()[0]);
        let powers = self.runner.column_powers(&down)?;
        energy.iter_mut().zip(powers).for_each(|(energy, power)| *energy *= power);
        let energy = Arc::new(energy);
        self.gated_energy = Some((layer, Arc::clone(&energy)));
        Ok(energy)
    }

    /// Moves the plain stream over `layer` and keeps the moments of that layer.
    fn walk_to(&mut self, layer: usize) -> Result<(), RuntimeError> {
        // An error on the way leaves a layer half done: then the stream is gone, and the next call starts it again.
        let mut stream = match self.plain.take() {
            Some(stream) if stream.next() <= layer => stream,
            _ => PlainStream::new(&self.runner)?,
        };
        while stream.next() < layer {
            let next = stream.next();
            let known = |cache: &HessianCache| LayerInput::ALL.iter().all(|input| cache.has(next, *input));
            match &self.cache {
                // Asked for or not, a folder gets every layer that is passed.
                Some(cache) if !known(cache) => {
                    for (input, (_, seen)) in
                        LayerInput::ALL.into_iter().zip(stream.take(&self.runner, &mut self.reporter, Some(cache))?)
                    {
                        self.coverage.insert((next, input), seen);
                    }
                }
                _ => stream.skip(&self.runner, &mut self.reporter)?,
            }
        }
        let found = stream.take(&self.runner, &mut self.reporter, self.cache.as_ref())?;
        self.held.clear();
        for (input, (moments, seen)) in LayerInput::ALL.into_iter().zip(found) {
            self.keep(layer, input, &moments, seen);
        }
        self.plain = (stream.next() < self.runner.config.n_layers).then_some(stream);
        Ok(())
    }

    fn keep(&mut self, layer: usize, input: LayerInput, moments: &InputMoments, seen: InputCoverage) {
        self.coverage.insert((layer, input), seen);
        self.held.push((layer, input, moments.clone()));
    }

    fn with_prefix<R>(
        &mut self,
        work: impl FnOnce(&mut Prefix, &Runner<'a>, &mut Reporter) -> Result<R, RuntimeError>,
    ) -> Result<R, RuntimeError> {
        let mut prefix = match std::mem::replace(&mut self.prefix, PrefixState::Broken) {
            PrefixState::Running(prefix) => prefix,
            PrefixState::NotStarted => match Prefix::new(&self.runner) {
                Ok(prefix) => Box::new(prefix),
                Err(error) => {
                    self.prefix = PrefixState::NotStarted;
                    return Err(error);
                }
            },
            PrefixState::Broken => {
                return Err(RuntimeError::Options {
                    option: "calibration".to_owned(),
                    expected: "a calibration whose passes all ended".to_owned(),
                    found: "one that was stopped within a layer; start it again".to_owned(),
                });
            }
        };
        let result = work(&mut prefix, &self.runner, &mut self.reporter);
        if !prefix.is_half_done() {
            self.prefix = PrefixState::Running(prefix);
        }
        result
    }

    /// Inputs of the block at hand from the quantized prefix, `[tokens, hidden]`: sequences of [`window`](Self::window) tokens after
    /// each other. `None` before any tensor was replaced.
    #[must_use]
    pub fn block_inputs(&self) -> Option<&[f32]> {
        match &self.prefix {
            PrefixState::Running(prefix) => Some(prefix.inputs()),
            _ => None,
        }
    }

    /// Has blocks tuned in another way than [`TuneOptions::default`].
    pub fn set_tune_options(&mut self, options: TuneOptions) {
        self.tune_options = options;
    }

    /// Tunes the matrices of one layer to [`block_targets`](Self::block_targets) on [`block_inputs`](Self::block_inputs).
    fn tune_layer(
        &mut self,
        layer: usize,
        matrices: &mut [(&str, &mut UniSvqMatrix)],
    ) -> Result<Option<TunedBlock>, RuntimeError> {
        let targets = self.block_targets(layer)?;
        let options = self.tune_options;
        self.with_prefix(|prefix, runner, reporter| {
            let data = TuneData { inputs: prefix.inputs(), targets: &targets, window: runner.sequences.window };
            let weights = runner.weights_with(prefix.replaced());
            let mut at = |sequence| reporter.at(Pass::Tuning, layer, sequence);
            let mut tuned = tune_block(&runner.config, &weights, layer, matrices, data, &options, &mut at)?;
            for (name, _) in tuned.iter_mut().flat_map(|tuned| &mut tuned.norms) {
                *name = runner.stored_name(name)?.to_owned();
            }
            Ok(tuned)
        })
    }

    /// Moves to the block of `layer`, and gives the outputs of the unquantized block in the unquantized model, `[tokens, hidden]`.
    ///
    /// # Errors
    /// As for [`Calibration::input_moments`].
    pub fn block_targets(&mut self, layer: usize) -> Result<Vec<f32>, RuntimeError> {
        self.with_prefix(|prefix, runner, reporter| {
            prefix.move_to(runner, reporter, layer)?;
            prefix.targets(runner, reporter)
        })
    }
}

/// The length of a sequence, if the options make sense.
fn check_options(options: &CalibrationOptions, config: &ModelConfig) -> Result<usize, RuntimeError> {
    let wrong = |option: &str, expected: String, found: String| RuntimeError::Options {
        option: option.to_owned(),
        expected,
        found,
    };
    if options.tokens == 0 {
        return Err(wrong("calibration tokens", "at least 1".to_owned(), "0".to_owned()));
    }
    let window = options.window.unwrap_or(DEFAULT_WINDOW.min(config.max_positions));
    if window == 0 || window > config.max_positions {
        let expected = format!("1 to {}, the context of the model", config.max_positions);
        return Err(wrong("calibration window", expected, window.to_string()));
    }
    if options.sequential && options.hessian_cache.is_some() {
        let expected =
            "none with sequential calibration, whose inputs depend on what the run makes of each layer".to_owned();
        return Err(wrong("hessian cache", expected, "a folder".to_owned()));
    }
    Ok(window)
}

impl std::fmt::Debug for Calibration<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calibration").field("record", &self.record).finish_non_exhaustive()
    }
}

/// The error of a run. A calibration that was asked to stop counts no tensors; the run knows how many it finished.
fn quantize_error(error: RuntimeError) -> QuantizeError {
    match error {
        RuntimeError::Cancelled => QuantizeError::Cancelled { done: 0, total: 0 },
        other => QuantizeError::activations(other),
    }
}

impl Activations for Calibration<'_> {
    fn order(&self, tensors: &[TensorInfo]) -> Vec<usize> {
        // Linears of layers take each other's places, everything else stays where it is.
        let place = |i: usize| LinearPlace::of(&tensors[i].name, self.runner.config.n_layers);
        let mut linears: Vec<usize> = (0..tensors.len()).filter(|&i| place(i).is_some()).collect();
        linears.sort_by_key(|&i| (place(i), i));
        let mut linears = linears.into_iter();
        let mut next = |i: usize| if place(i).is_some() { linears.next().unwrap_or(i) } else { i };
        (0..tensors.len()).map(&mut next).collect()
    }

    fn moments(&mut self, tensor: &str) -> Result<Option<InputMoments>, QuantizeError> {
        match LinearPlace::of(tensor, self.runner.config.n_layers) {
            Some(place) => self.input_moments(place.layer, place.input).map(Some).map_err(quantize_error),
            None => Ok(None),
        }
    }

    fn output_energy(&mut self, tensor: &str) -> Result<Option<Arc<Vec<f64>>>, QuantizeError> {
        match LinearPlace::of(tensor, self.runner.config.n_layers) {
            Some(LinearPlace { layer, input: LayerInput::FeedForward, .. }) => {
                self.gated_energy(layer).map(Some).map_err(quantize_error)
            }
            _ => Ok(None),
        }
    }

    fn replaced(&mut self, tensor: &str, values: &[f32]) -> Result<(), QuantizeError> {
        let n_layers = self.runner.config.n_layers;
        let layer = layer_part(tensor).map(|(layer, _)| layer).filter(|layer| *layer < n_layers);
        let tensor = &*text_name(tensor);
        match layer {
            Some(layer) => self
                .with_prefix(|prefix, runner, reporter| prefix.replace(runner, reporter, (layer, tensor), values))
                .map_err(quantize_error),
            None if tensor == EMBEDDING => {
                self.with_prefix(|prefix, runner, _| prefix.replace_embedding(runner, values)).map_err(quantize_error)
            }
            // What comes after the layers feeds none of them.
            None => Ok(()),
        }
    }

    fn tune(&mut self, block: &mut [(&str, &mut UniSvqMatrix)]) -> Result<Option<TunedBlock>, QuantizeError> {
        let n_layers = self.runner.config.n_layers;
        let place = block.first().and_then(|(name, _)| LinearPlace::of(name, n_layers));
        let Some(LinearPlace { layer, .. }) = place else { return Ok(None) };
        let names: Vec<String> = block.iter().map(|(name, _)| text_name(name).into_owned()).collect();
        let mut block: Vec<(&str, &mut UniSvqMatrix)> =
            names.iter().map(String::as_str).zip(block.iter_mut().map(|(_, matrix)| &mut **matrix)).collect();
        self.tune_layer(layer, &mut block).map_err(quantize_error)
    }

    fn is_sequential(&self) -> bool {
        self.record.sequential
    }

    fn record(&self) -> CalibrationRecord {
        self.record.clone()
    }
}
