//! Decides what happens to each tensor, before anything is written.

use std::collections::BTreeMap;

use gosset_container::{ContainerKind, ManifestInfo};
use serde_json::{Value, json};

use crate::budget::{self, Budget, Choice, Pace, Planned};
use crate::calibration::{Activations, CalibrationRecord};
use crate::error::{QuantizeError, SourceError};
use crate::method::{Method, MethodInfo};
use crate::options::{OverrideAction, QuantizeOptions};
use crate::part::{PART_KEY, PartRecord};
use crate::policy::{OUTPUT_HEAD, Role, TOKEN_EMBEDDINGS, role};
use crate::source::{ModelSource, SourceInfo, TensorInfo};
use crate::tie::{TIE_KEY, TieDecision, resolve_tie};
use crate::work::processor;

/// What happens to every tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The options it follows.
    pub options: QuantizeOptions,
    /// The source it was made for.
    pub source: SourceInfo,
    /// What the container will be.
    pub kind: ContainerKind,
    /// Name of the policy: which tensors are quantized by default.
    pub policy: &'static str,
    /// One item per tensor, in the order of the source.
    pub items: Vec<PlanItem>,
    /// Output head and embeddings; `None` for tensors that are no model.
    pub tie: Option<TieDecision>,
    /// What the user should know before starting.
    pub warnings: Vec<String>,
    /// `config.json` with the tie flag as decided, where the file says otherwise.
    pub(crate) patched_config: Option<Vec<u8>>,
    /// What the parts of the container take, and what the run keeps to.
    pub(crate) budget: Option<Budget>,
    /// Which part of a run it is; `None` for the whole.
    pub(crate) part: Option<PartRecord>,
    /// Memory that tensors which are quantized at the same time may take together.
    pub(crate) batch_bytes: u64,
}

/// What happens to one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanItem {
    /// Index in the source.
    pub index: usize,
    /// The tensor.
    pub tensor: TensorInfo,
    /// What happens to it.
    pub action: Action,
    /// Expected bytes of its planes.
    pub estimated_bytes: u64,
    /// Expected signal-to-noise ratio of a quantized tensor, in dB.
    pub estimated_snr_db: Option<f64>,
}

/// What happens to a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// It is coded.
    Quantize {
        /// How, and with which rate.
        method: Method,
        /// Payload target in bits per weight.
        target_bps: f64,
    },
    /// It is stored bit-exact.
    Keep {
        /// Why.
        reason: String,
        /// Whether it would have been quantized if it could be.
        fallback: bool,
    },
    /// It is not stored.
    Skip {
        /// Why.
        reason: String,
    },
}

/// Memory that tensors which are quantized at the same time may take together by default; a larger one is quantized alone.
const BATCH_BYTES: u64 = 512 << 20;

/// Scratch of a thread: blocks of weights while they are scanned, tables of codes, panels of products. 3 MB were measured.
const THREAD_BYTES: u64 = 4 << 20;

/// How many of the next tensors are quantized at the same time, by what each takes: two for every thread, as far as memory goes, and at
/// least one.
pub(crate) fn batch_len(peaks: impl Iterator<Item = u64>, max_bytes: u64) -> usize {
    let sums = peaks.scan(0u64, |sum, peak| {
        *sum = sum.saturating_add(peak);
        Some(*sum)
    });
    sums.take(2 * rayon::current_num_threads()).take_while(|sum| *sum <= max_bytes).count().max(1)
}

/// Buffers of a container that is being written.
const WRITER_BYTES: u64 = 1 << 20;

impl PlanItem {
    /// Bytes that the tensor takes at most without feedback: its f32 values, its streams one by one and joined to planes, sums by row. A
    /// tensor that is kept is copied in pieces.
    fn plain_peak_bytes(&self) -> u64 {
        match &self.action {
            Action::Quantize { .. } => {
                let rows = self.tensor.rows_cols().0 as u64;
                let values = self.tensor.n_weights().saturating_mul(4);
                values.saturating_add(2 * self.estimated_bytes).saturating_add(64 * rows)
            }
            _ => 0,
        }
    }

    /// Bytes that quantizing the tensor takes at most with feedback; 0 without.
    pub(crate) fn peak_bytes(&self) -> u64 {
        match &self.action {
            Action::Quantize { method, .. } => method.peak_bytes(self.tensor.rows_cols()),
            _ => 0,
        }
    }
}

/// Sizes that a plan expects.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanEstimate {
    /// Bytes of the file, roughly.
    pub file_bytes: u64,
    /// Weights of all tensors that are stored.
    pub n_params: u64,
    /// Weights of quantized tensors.
    pub n_quantized: u64,
    /// Payload bits per quantized weight.
    pub payload_bps: f64,
    /// All bits of quantized tensors per quantized weight.
    pub all_in_bps: f64,
    /// Bits of the file per stored weight: the true rate of the whole.
    pub file_bps: f64,
    /// Bytes of the largest tensor while it is worked on: its f32 values.
    pub largest_tensor_bytes: u64,
}

/// Decides for each tensor whether it is quantized, kept or skipped, and why.
///
/// Everything that can be refused without looking at weights is refused here: unknown codecs and unreachable rates, overrides that
/// match nothing or ask for the impossible, tensors that stay wider in strict mode, contradictory tie settings.
pub fn plan(source: &dyn ModelSource, options: &QuantizeOptions) -> Result<Plan, QuantizeError> {
    let method_at = |rate: f64| Method::parse(&options.codec, rate)?.in_frame(options.tile, options.seed);
    let codec = Method::info(&options.codec)?;
    // Where the target is no payload, the rate of a tensor is chosen below; this one holds its place.
    let default_bps = options.payload_bps().unwrap_or(codec.min_bps);
    let default = method_at(default_bps)?;
    check_weights(source.tensors(), options)?;
    let embeddings = options.embeddings.map(|rate| method_at(rate).map(|method| (method, rate))).transpose()?;

    let info = source.info().clone();
    let is_model = info.architecture.is_some();
    let tensors = source.tensors();
    let mut warnings = Vec::new();
    let config = read_config(source)?;
    let tie = if is_model { decide_tie(source, config.as_ref(), options.tie)? } else { None };
    warnings.extend(tie.and_then(TieDecision::warning).map(str::to_owned));
    warnings.extend(requantized(tensors, is_model));
    if is_model && source.blob("tokenizer.json").is_none() {
        let text = "there is no tokenizer.json: the container cannot generate or be evaluated on text by itself";
        warnings.push(text.to_owned());
    }

    let mut matched = vec![false; options.overrides.len()];
    let mut items = Vec::with_capacity(tensors.len());
    let mut free = Vec::with_capacity(tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        let role = role(tensor, is_model);
        let keep = |reason: &str, fallback| Action::Keep { reason: reason.to_owned(), fallback };
        let mut action = match role {
            Role::Linear | Role::Matrix => Action::Quantize { method: default.clone(), target_bps: default_bps },
            Role::Embedding | Role::Head => match &embeddings {
                Some((method, rate)) => Action::Quantize { method: method.clone(), target_bps: *rate },
                None if role == Role::Head => keep("output head", false),
                None if tie.is_some_and(TieDecision::is_tied) && tensor.name == TOKEN_EMBEDDINGS => {
                    keep("embeddings shared with the output head", false)
                }
                None => keep("embeddings", false),
            },
            Role::Exact(reason) => keep(reason, false),
            Role::Unable(reason) => keep(reason, true),
        };
        let mut is_free = matches!(role, Role::Linear | Role::Matrix);
        for (o, seen) in options.overrides.iter().zip(&mut matched) {
            if !o.matches(&tensor.name) {
                continue;
            }
            *seen = true;
            is_free = false;
            let impossible = |reason: String| QuantizeError::OverrideImpossible {
                pattern: o.pattern.clone(),
                tensor: tensor.name.clone(),
                reason,
            };
            action = match o.action {
                OverrideAction::Keep => keep("override", false),
                OverrideAction::Rate(rate) => {
                    check_codable(tensor).map_err(impossible)?;
                    let method = method_at(rate).map_err(|e| impossible(e.to_string()))?;
                    Action::Quantize { method, target_bps: rate }
                }
            };
        }
        if tensor.name == OUTPUT_HEAD && tie.is_some_and(TieDecision::is_tied) {
            action = Action::Skip { reason: "tied to the embeddings".to_owned() };
        }
        items.push(item(index, tensor, action)?);
        free.push(is_free);
    }
    if let Some(i) = matched.iter().position(|m| !m) {
        let pattern = options.overrides[i].pattern.clone();
        return Err(QuantizeError::OverrideUnmatched { pattern, n_tensors: tensors.len() });
    }
    let fallbacks: Vec<_> = items.iter().filter_map(fallback).collect();
    if options.strict && !fallbacks.is_empty() {
        return Err(QuantizeError::Strict { fallbacks });
    }
    if !items.iter().any(|i| matches!(i.action, Action::Quantize { .. })) {
        return Err(QuantizeError::NothingToQuantize { name: info.name, reason: what_is_there(&items) });
    }
    let patched_config = tie.and_then(|tie| patch_config(config, tie));
    let kind = if is_model { ContainerKind::Model } else { ContainerKind::Tensors };
    let policy = if is_model {
        "model: linears of the layers are quantized; embeddings, output head, norms and biases are kept"
    } else {
        "tensors: every 2-D float tensor is quantized"
    };
    let mut plan = Plan {
        options: options.clone(),
        source: info,
        kind,
        policy,
        items,
        tie,
        warnings,
        patched_config,
        budget: None,
        part: None,
        batch_bytes: BATCH_BYTES,
    };
    choose_rates(&mut plan, source, &codec, &free)?;
    Ok(plan)
}

/// Forecasts all parts of the container and, unless the target is a payload, gives the tensors that are `free` the rates that meet it.
fn choose_rates(
    plan: &mut Plan,
    source: &dyn ModelSource,
    codec: &MethodInfo,
    free: &[bool],
) -> Result<(), QuantizeError> {
    // Norms that may be tuned are f32 afterwards.
    let widened: Vec<Option<TensorInfo>> = plan.items.iter().map(|item| plan.widened(item)).collect();
    let planned: Vec<Planned<'_>> = plan
        .items
        .iter()
        .zip(free)
        .zip(&widened)
        .map(|((item, &is_free), widened)| match &item.action {
            Action::Quantize { method, .. } => Planned::Coded { tensor: &item.tensor, method, is_free },
            Action::Keep { reason, .. } => Planned::Kept { tensor: widened.as_ref().unwrap_or(&item.tensor), reason },
            Action::Skip { .. } => Planned::Skipped,
        })
        .collect();
    let blobs = source.blobs();
    let blobs: Vec<(&str, u64)> =
        blobs.iter().map(|(name, bytes)| (*name, plan.blob(name, bytes).len() as u64)).collect();
    let Choice { budget, rates } = budget::choose(&plan.options, codec, &planned, &blobs, &plan.manifest_info())?;
    for (index, rate) in rates {
        let old = &plan.items[index];
        if let Action::Quantize { method, .. } = &old.action {
            let action = Action::Quantize { method: method.at_payload(rate), target_bps: rate };
            plan.items[index] = item(old.index, &old.tensor, action)?;
        }
    }
    plan.budget = Some(budget);
    Ok(())
}

/// Refuses weights that are none or that no tensor has.
fn check_weights(tensors: &[TensorInfo], options: &QuantizeOptions) -> Result<(), QuantizeError> {
    for w in &options.weights {
        let refuse = |reason: String| QuantizeError::Weight { pattern: w.pattern.clone(), weight: w.weight, reason };
        if !(w.weight.is_normal() && w.weight > 0.0) {
            return Err(refuse("expected a positive number".to_owned()));
        }
        if !tensors.iter().any(|t| w.matches(&t.name)) {
            return Err(refuse(format!("it matches none of the {} tensors", tensors.len())));
        }
    }
    Ok(())
}

impl Plan {
    /// Whether any tensor is to be quantized by a method that wants to know its inputs, in this part of a run or another.
    pub fn needs_calibration(&self) -> bool {
        let does = |i: &PlanItem| matches!(&i.action, Action::Quantize { method, .. } if method.needs_calibration());
        self.part.as_ref().is_some_and(|part| part.calibrated) || self.items.iter().any(does)
    }

    /// What keeps a run to the target; `None` where every tensor has its payload.
    pub(crate) fn pace(&self) -> Option<Pace> {
        self.budget.as_ref().filter(|_| self.options.payload_bps().is_none()).map(Pace::new)
    }

    /// Whether blocks are tuned.
    pub fn is_tuned(&self) -> bool {
        self.items.iter().any(|i| matches!(&i.action, Action::Quantize { method, .. } if method.is_tuned()))
    }

    /// Whether tensors are quantized one after the other: inputs wait for the tensors before, or a budget for what these took.
    pub(crate) fn is_one_by_one(&self, is_sequential: bool) -> bool {
        is_sequential || self.is_tuned() || self.pace().is_some()
    }

    /// Bytes that a run without activations takes at most beside the program: the largest tensor with its planes, and what threads and
    /// writer need. Depends on the number of threads, not on that of tensors.
    pub fn peak_bytes(&self) -> u64 {
        let scratch = THREAD_BYTES * rayon::current_num_threads() as u64 + WRITER_BYTES;
        scratch.saturating_add(self.items.iter().map(PlanItem::plain_peak_bytes).max().unwrap_or_default())
    }

    /// The tensor that takes most while it is quantized; `None` if none is.
    pub fn largest(&self) -> Option<&PlanItem> {
        self.items
            .iter()
            .filter(|item| matches!(item.action, Action::Quantize { .. }))
            .max_by_key(|item| item.tensor.n_weights())
    }

    /// Lets tensors that are quantized at the same time take at most `bytes` together; one alone may take more. The output is the same.
    pub fn limit_batches(&mut self, bytes: u64) {
        self.batch_bytes = bytes;
    }

    /// Seconds that quantizing takes on this machine, by a trial of the method that most weights are under; `None` for methods with
    /// calibration, whose time depends on the text.
    ///
    /// # Errors
    /// [`QuantizeError::Codec`] if the method cannot code what is usual.
    pub fn expected_seconds(&self) -> Result<Option<f64>, QuantizeError> {
        if self.needs_calibration() {
            return Ok(None);
        }
        let coded = |item: &PlanItem| matches!(item.action, Action::Quantize { .. });
        let weights: u64 = self.items.iter().filter(|item| coded(item)).map(|item| item.tensor.n_weights()).sum();
        let Some(Action::Quantize { method, .. }) = self.largest().map(|item| &item.action) else { return Ok(None) };
        Ok(Some(crate::encode::trial_seconds(method)? * weights as f64))
    }

    /// Bytes that a run with `activations` takes at most to quantize, beside what the activations take: the tensors that are worked on at
    /// the same time, with their second moments in the frame, damped and factored. Depends on the number of threads.
    pub fn encode_peak_bytes(&self, activations: &dyn Activations) -> u64 {
        let tensors: Vec<TensorInfo> = self.items.iter().map(|item| item.tensor.clone()).collect();
        let order = activations.order(&tensors).into_iter().filter_map(|index| self.items.get(index));
        let peaks: Vec<u64> = order.map(PlanItem::peak_bytes).filter(|peak| *peak > 0).collect();
        let scratch = THREAD_BYTES * rayon::current_num_threads() as u64;
        if self.is_one_by_one(activations.is_sequential()) {
            return scratch.saturating_add(peaks.into_iter().max().unwrap_or_default());
        }
        // A run that is taken up again may start anywhere.
        let of_batch = |start: usize| {
            let left = &peaks[start..];
            left[..batch_len(left.iter().copied(), self.batch_bytes)]
                .iter()
                .fold(0u64, |sum, peak| sum.saturating_add(*peak))
        };
        scratch.saturating_add((0..peaks.len()).map(of_batch).max().unwrap_or_default())
    }

    /// A norm of a block that is tuned, as it is stored then.
    fn widened(&self, item: &PlanItem) -> Option<TensorInfo> {
        let t = &item.tensor;
        let is_norm = t.shape.len() == 1 && block_of(&t.name).is_some() && t.name.ends_with("norm.weight");
        (is_norm && self.is_tuned()).then(|| TensorInfo {
            dtype: "F32".to_owned(),
            n_bytes: t.n_weights().saturating_mul(4),
            ..t.clone()
        })
    }

    /// The plan with the record of the calibration at hand.
    ///
    /// # Errors
    /// [`QuantizeError::CalibrationDiffers`] if its options ask for another.
    pub(crate) fn calibrated(&self, record: CalibrationRecord) -> Result<Plan, QuantizeError> {
        if let Some(asked) = self.options.calibration.as_ref().filter(|asked| **asked != record) {
            let [expected, found] = [asked, &record].map(|r| serde_json::to_string(r).unwrap_or_default());
            return Err(QuantizeError::CalibrationDiffers { expected, found });
        }
        let mut plan = self.clone();
        plan.options.calibration = Some(record);
        if let Some(part) = &mut plan.part {
            part.processor = Some(processor());
        }
        let info = plan.manifest_info();
        if let Some(budget) = &mut plan.budget {
            budget.set_frame(&info)?;
        }
        Ok(plan)
    }

    /// The side file `name` as it is written.
    pub(crate) fn blob<'a>(&'a self, name: &str, bytes: &'a [u8]) -> &'a [u8] {
        match &self.patched_config {
            Some(patched) if name == "config.json" => patched,
            _ => bytes,
        }
    }

    /// What the container says about its origin.
    pub(crate) fn manifest_info(&self) -> ManifestInfo {
        // Tensors by dtype, sorted: what the weights were stored in before.
        let mut dtypes = BTreeMap::<&str, u64>::new();
        self.items.iter().for_each(|i| *dtypes.entry(i.tensor.dtype.as_str()).or_default() += 1);
        let info = &self.source;
        // Neither name nor path: the same weights give the same bytes wherever they lie.
        let source = json!({
            "kind": info.kind,
            "architecture": info.architecture,
            "total_bytes": info.total_bytes,
            "fingerprint": info.fingerprint,
            "dtypes": dtypes,
        });
        ManifestInfo { kind: self.kind, source, recipe: self.recipe() }
    }

    /// The recipe of what is written.
    pub(crate) fn recipe(&self) -> Value {
        let mut recipe = self.options.to_recipe();
        if let Some(part) = &self.part {
            recipe[PART_KEY] = json!(part);
        }
        recipe
    }

    /// Sizes to expect. Good to a fraction of a percent; exact figures are in the report of a run.
    pub fn estimate(&self) -> PlanEstimate {
        let (mut n_params, mut n_quantized, mut largest, mut payload) = (0u64, 0u64, 0u64, 0.0);
        for item in self.items.iter().filter(|item| !matches!(item.action, Action::Skip { .. })) {
            let n = item.tensor.n_weights();
            n_params += n;
            if let Action::Quantize { target_bps, .. } = &item.action {
                n_quantized += n;
                payload += target_bps * n as f64;
                largest = largest.max(n * 4);
            }
        }
        let planes = |coded: bool| {
            let items = self.items.iter().filter(|item| !coded || matches!(item.action, Action::Quantize { .. }));
            items.map(|item| item.estimated_bytes).sum()
        };
        let of_budget = |budget: &Budget| (budget.file_bytes(), budget.coded_bytes());
        let (file, coded) = self.budget.as_ref().map_or_else(|| (planes(false), planes(true)), of_budget);
        let per = |bits: f64, n: u64| if n == 0 { 0.0 } else { bits / n as f64 };
        PlanEstimate {
            file_bytes: file,
            n_params,
            n_quantized,
            payload_bps: per(payload, n_quantized),
            all_in_bps: per(coded as f64 * 8.0, n_quantized),
            file_bps: per(file as f64 * 8.0, n_params),
            largest_tensor_bytes: largest,
        }
    }
}

/// The block that a tensor belongs to: its name up to the first number, `model.layers.3` for `model.layers.3.mlp.up_proj.weight`.
pub(crate) fn block_of(name: &str) -> Option<&str> {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return Some(&name[..end]);
        }
        end += 1;
    }
    None
}

fn item(index: usize, tensor: &TensorInfo, action: Action) -> Result<PlanItem, QuantizeError> {
    let (estimated_bytes, estimated_snr_db) = match &action {
        Action::Quantize { method, .. } => {
            let (rows, cols) = tensor.rows_cols();
            let of_codec = |source| QuantizeError::Codec { tensor: tensor.name.clone(), source };
            let estimate = method.estimate(rows, cols).map_err(of_codec)?;
            (estimate.bytes, Some(estimate.snr_db))
        }
        Action::Keep { .. } => (tensor.n_bytes, None),
        Action::Skip { .. } => (0, None),
    };
    Ok(PlanItem { index, tensor: tensor.clone(), action, estimated_bytes, estimated_snr_db })
}

fn fallback(item: &PlanItem) -> Option<(String, String)> {
    match &item.action {
        Action::Keep { reason, fallback: true } => Some((item.tensor.name.clone(), reason.clone())),
        _ => None,
    }
}

/// The error text for a tensor that no override can quantize.
fn check_codable(t: &TensorInfo) -> Result<(), String> {
    if !crate::policy::is_float(&t.dtype) {
        return Err(format!("expected a float dtype, found {}", t.dtype));
    }
    if t.shape.len() != 2 {
        return Err(format!("expected two dimensions, found shape {:?}", t.shape));
    }
    if t.n_weights() == 0 {
        return Err(format!("it has no elements, its shape is {:?}", t.shape));
    }
    Ok(())
}

fn what_is_there(items: &[PlanItem]) -> String {
    let Some(first) = items.first() else { return "it has no tensors".to_owned() };
    let reason = match &first.action {
        Action::Keep { reason, .. } | Action::Skip { reason } => reason.as_str(),
        Action::Quantize { .. } => "",
    };
    format!(
        "{} tensors, the first is {:?} of {} {:?} ({reason})",
        items.len(),
        first.tensor.name,
        first.tensor.dtype,
        first.tensor.shape
    )
}

/// A warning for sources that are block-quantized already, as most GGUF files are.
fn requantized(tensors: &[TensorInfo], is_model: bool) -> Option<String> {
    let is_block = |t: &&TensorInfo| {
        crate::policy::is_float(&t.dtype) && !matches!(t.dtype.as_str(), "F64" | "F32" | "F16" | "BF16")
    };
    let linears = tensors.iter().filter(|t| matches!(role(t, is_model), Role::Linear | Role::Matrix));
    let blocks: Vec<_> = linears.filter(is_block).collect();
    let first = blocks.first()?;
    Some(format!(
        "the input is block-quantized already ({} tensors, the first is {:?} of {}); quantizing it again adds to its error",
        blocks.len(),
        first.name,
        first.dtype
    ))
}

fn read_config(source: &dyn ModelSource) -> Result<Option<Value>, QuantizeError> {
    let Some(bytes) = source.blob("config.json") else { return Ok(None) };
    let config = serde_json::from_slice(bytes)
        .map_err(|e| SourceError::BadConfig { path: "config.json".into(), reason: format!("expected JSON: {e}") })?;
    Ok(Some(config))
}

fn decide_tie(
    source: &dyn ModelSource,
    config: Option<&Value>,
    force: Option<bool>,
) -> Result<Option<TieDecision>, QuantizeError> {
    let find = |name: &str| source.tensors().iter().position(|t| t.name == name);
    let (Some(table), head) = (find(TOKEN_EMBEDDINGS), find(OUTPUT_HEAD)) else { return Ok(None) };
    let equal = || head.map_or(Ok(false), |head| tables_equal(source, table, head));
    resolve_tie(config, head.is_some(), equal, force).map(Some)
}

/// Whether two tensors have the same shape and values.
fn tables_equal(source: &dyn ModelSource, a: usize, b: usize) -> Result<bool, SourceError> {
    const VALUES: usize = 1 << 16;
    let (ta, tb) = (&source.tensors()[a], &source.tensors()[b]);
    if ta.shape != tb.shape {
        return Ok(false);
    }
    let (rows, cols) = ta.rows_cols();
    let step = (VALUES / cols.max(1)).max(1);
    let (mut x, mut y) = (vec![0f32; step * cols], vec![0f32; step * cols]);
    for first in (0..rows).step_by(step) {
        let n = step.min(rows - first);
        let (x, y) = (&mut x[..n * cols], &mut y[..n * cols]);
        source.read_rows(a, first..first + n, x)?;
        source.read_rows(b, first..first + n, y)?;
        if x.iter().zip(y.iter()).any(|(x, y)| x.to_bits() != y.to_bits()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The configuration with the tie flag as decided; `None` if it says so already. A container then runs without the option that
/// was needed to make it.
fn patch_config(config: Option<Value>, tie: TieDecision) -> Option<Vec<u8>> {
    let Some(Value::Object(mut config)) = config else { return None };
    let decided = Value::Bool(tie.is_tied());
    if config.get(TIE_KEY) == Some(&decided) {
        return None;
    }
    config.insert(TIE_KEY.to_owned(), decided);
    serde_json::to_vec_pretty(&config).ok()
}
