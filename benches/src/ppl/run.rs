//! One evaluation: the rows in order, each from its own file.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use gosset_baselines::Rotation;
use gosset_container::Container;
use gosset_eval::{
    CalibrationNote, CausalLm, EncodeRules, EvalReport, PplProtocol, PplRecord, Provenance, Rates, ReportRow,
    TokenStream, evaluate, join_rows, sha256_hex, sha256_ids, window_spans,
};
use gosset_quantize::{
    Activations, ModelSource, Plan, QuantizeError, QuantizeOptions, QuantizeTarget, RunOptions, plan, run as quantize,
};
use gosset_runtime::{
    ComputeDevice, KvCache, LanguageModel, LoadOptions, ModelConfig,
    source::{open_source, resolve_model},
    text::{ChatTemplate, Tokenizer},
};
use peak_alloc::PeakAlloc;
use tempfile::TempDir;

use super::{
    Args, Interrupt,
    baseline::{CodedLinears, CodedSource},
    cache_dir,
    calibration::Calibrations,
    kv::{KvBits, KvLm, KvTarget, probe_for},
    lm::RuntimeLm,
    memory::activations,
    passkey::Passkeys,
    progress::Progress,
    source_row::{describe_embeddings, source_embeddings, source_rates},
    table,
    target::{BEST_CODEC, Target, WHY_BEST, baseline},
    tasks::Tasks,
};

/// Why there is no report.
#[derive(Debug)]
pub(super) enum Ended {
    /// Ctrl-C.
    Interrupted,
    /// Anything else.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Ended {
    fn from(error: E) -> Self {
        Ended::Failed(error.into())
    }
}

type Outcome<T> = Result<T, Ended>;

/// The text as the models of this run see it; all of them must agree.
#[derive(Debug)]
struct Tokens {
    ids: Vec<u32>,
    ids_sha256: String,
    tokenizer_sha256: String,
    /// What the tokenizer puts in front of a text by itself.
    auto_bos: Option<u32>,
    bos: Option<u32>,
    protocol: PplProtocol,
}

/// What a row is about.
#[derive(Clone)]
struct RowHead {
    /// Heap of the process before the model was loaded, in bytes.
    heap_before: u64,
    label: String,
    codec: String,
    target_bps: Option<f64>,
    target_bpw: Option<f64>,
    rates: Rates,
    file_bytes: u64,
    embeddings: String,
    quantize_seconds: Option<f64>,
    /// Whether the weights are read from the file's map; else they are on the heap.
    mapped: bool,
}

pub(super) struct Run<'a> {
    args: &'a Args,
    heap: &'static PeakAlloc,
    device: ComputeDevice,
    interrupt: Interrupt,
    progress: Progress,
    targets: Vec<Target>,
    /// Compressed caches that every model is scored with.
    kv: Vec<KvTarget>,
    text: String,
    text_sha256: String,
    tokens: Option<Tokens>,
    model_name: String,
    baseline_nll: Option<f64>,
    /// What models had to say, each once.
    warnings: Vec<String>,
    tasks: Tasks,
    passkeys: Passkeys,
    /// `None` if no row needs one.
    calibrations: Option<Calibrations>,
    rows: Vec<ReportRow>,
}

/// How a row's weights came about.
struct Made {
    seconds: f64,
    calibration: Option<CalibrationNote>,
}

impl<'a> Run<'a> {
    /// Checks the arguments and reads the text.
    pub(super) fn new(args: &'a Args, heap: &'static PeakAlloc, interrupt: Interrupt) -> Result<Self> {
        let (targets, left_out) = if args.container.is_some() { Default::default() } else { args.targets()? };
        let kv = args.kv_targets()?;
        if args.container.is_none() && targets.is_empty() && kv.is_empty() && args.no_baseline {
            bail!("nothing to measure: no codec, and --no-baseline");
        }
        let progress = Progress::new();
        let device = args.device.open()?;
        progress.note(&format!("device: {device}"));
        left_out.iter().for_each(|note| progress.note(note));
        if args.default_codec() {
            progress.note(&format!("codec {BEST_CODEC}: {WHY_BEST}"));
        }
        let bytes = fs::read(&args.text).with_context(|| format!("{}", args.text.display()))?;
        let text_sha256 = sha256_hex(&bytes);
        let text = String::from_utf8(bytes).with_context(|| format!("{}: expected UTF-8", args.text.display()))?;
        let calibrations = match targets.iter().any(|target| target.calibrated) {
            true => Some(Calibrations::new(&args.calibration, &text)?),
            false => None,
        };
        if let Some(warning) = calibrations.as_ref().and_then(Calibrations::warning) {
            progress.note(&format!("warning: {warning}"));
        }
        Ok(Run {
            args,
            heap,
            device,
            interrupt,
            progress,
            targets,
            kv,
            text,
            text_sha256,
            tokens: None,
            model_name: String::new(),
            baseline_nll: None,
            warnings: Vec::new(),
            tasks: Tasks::read(&args.tasks)?,
            passkeys: Passkeys::new(&args.passkey)?,
            calibrations,
            rows: Vec::new(),
        })
    }

    /// Measures every row.
    pub(super) fn report(mut self) -> Outcome<EvalReport> {
        let outcome = match &self.args.container {
            Some(path) => self.given_container(path),
            None => self.model(),
        };
        self.progress.finish();
        outcome?;
        Ok(self.so_far().context("no row was measured")?)
    }

    /// The report of the rows that are measured; `None` before the first.
    fn so_far(&self) -> Option<EvalReport> {
        let (tokens, first) = (self.tokens.as_ref()?, self.rows.first()?);
        Some(EvalReport {
            model: self.model_name.clone(),
            text_sha256: self.text_sha256.clone(),
            protocol: tokens.protocol.name.clone(),
            windows: first.record.result.windows,
            tokens_scored: first.record.result.tokens_scored,
            settings: tokens.protocol.clone(),
            tokenizer_sha256: tokens.tokenizer_sha256.clone(),
            token_ids_sha256: tokens.ids_sha256.clone(),
            tokens: tokens.ids.len(),
            threads: rayon::current_num_threads(),
            ablations: self.args.ablations,
            rows: self.rows.clone(),
        })
    }

    /// One more row; the file of `--json-out` has it before the next begins.
    fn finished(&mut self, row: ReportRow) -> Result<()> {
        self.rows.push(row);
        match (&self.args.json_out, self.so_far()) {
            (Some(path), Some(report)) => table::write_json(&report, path),
            _ => Ok(()),
        }
    }

    /// A container that somebody made earlier.
    fn given_container(&mut self, path: &Path) -> Outcome<()> {
        self.progress.say(&format!("opening {}", path.display()));
        let container = Container::open(path)?;
        // A container's bytes do not depend on the name of its source, so its own file is all there is to name it by.
        self.model_name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        self.container_row(container, None)
    }

    /// The source model and each of its compressed forms.
    fn model(&mut self) -> Outcome<()> {
        let name = self.args.model.as_deref().context("--model is required without --container")?;
        self.progress.say(&format!("opening {name}"));
        let path = resolve_model(name, &cache_dir())?;
        let source = open_source(&path)?;
        self.model_name = source.info().name.clone();
        // Whatever the text, the protocol or the tokenizer may refuse is refused before minutes are spent on quantizing.
        if let (Some(config), Some(tokenizer)) = (source.blob("config.json"), source.blob("tokenizer.json")) {
            let config = ModelConfig::from_json(config)?;
            self.tokenize(&Tokenizer::from_bytes(tokenizer)?, &config)?;
            self.tasks.keep_tokenizer(|| Ok(Tokenizer::from_bytes(tokenizer)?))?;
            if self.passkeys.are_missing() {
                let template = [source.blob("chat_template.jinja"), source.blob("tokenizer_config.json")];
                self.make_passkeys(Tokenizer::from_bytes(tokenizer)?, template, &config)?;
            }
        }
        if !self.args.no_baseline || (self.targets.is_empty() && !self.kv.is_empty()) {
            self.source_rows(&*source)?;
        }
        drop(source);
        let (scratch, folder) = self.folder()?;
        if let Some(calibrations) = &mut self.calibrations {
            calibrations.share_in(scratch.path());
        }
        for target in self.targets.clone() {
            if target.baseline {
                self.baseline_row(&*open_source(&path)?, &target)?;
                continue;
            }
            let label = target.label();
            let file = folder.join(format!("{}-{label}.gosset", file_stem(&self.model_name)));
            // The source is open while the file is written and no longer: the row knows nothing but the file.
            let made = self.quantize(&*open_source(&path)?, &target, &file)?;
            self.container_row(Container::open(&file)?, Some(made))?;
            if self.args.keep.is_none() {
                fs::remove_file(&file).with_context(|| format!("{}", file.display()))?;
            }
        }
        Ok(())
    }

    /// How models of this run are loaded for scoring.
    fn load_options(&self) -> LoadOptions {
        LoadOptions { device: self.device.for_loading(), ..LoadOptions::default() }
    }

    /// A folder that is removed at the end, and where the containers go: there, or to `--keep`.
    fn folder(&self) -> Result<(TempDir, PathBuf)> {
        let scratch = tempfile::Builder::new().prefix("gosset-ppl-").tempdir().context("scratch folder")?;
        let folder = scratch.path().to_owned();
        self.interrupt.set_scratch(folder.clone());
        match &self.args.keep {
            Some(keep) => {
                fs::create_dir_all(keep).with_context(|| format!("{}", keep.display()))?;
                Ok((scratch, keep.clone()))
            }
            None => Ok((scratch, folder)),
        }
    }

    fn options(&self, codec: &str, rate: QuantizeTarget) -> QuantizeOptions {
        QuantizeOptions {
            tile: self.args.tile,
            seed: self.args.seed,
            embeddings: self.args.embeddings,
            ..QuantizeOptions::with_target(codec, rate)
        }
    }

    /// Which tensors any codec of this run replaces; the codec and rate in it mean nothing.
    fn any_plan(&self, source: &dyn ModelSource) -> Result<Plan> {
        Ok(plan(source, &self.options("e8-rice", QuantizeTarget::PayloadBps(4.0)))?)
    }

    /// Writes the container of one row.
    fn quantize(&mut self, source: &dyn ModelSource, target: &Target, path: &Path) -> Outcome<Made> {
        let label = target.label();
        self.progress.say(&format!("{label}: quantizing"));
        let begin = Instant::now();
        let heap_before = self.heap.current_usage();
        self.heap.reset_peak_usage();
        let calibrations = self.calibrations.as_ref().filter(|_| target.calibrated);
        let mut activations = calibrations.map(|c| c.of_row(source, &self.progress, &self.interrupt)).transpose()?;
        let options = QuantizeOptions {
            calibration: activations.as_ref().map(Activations::record),
            ..self.options(&target.codec, target.rate)
        };
        let plan = plan(source, &options)?;
        let observer = self.progress.observer(&label, &self.interrupt);
        let outcome = self.interrupt.while_writing(|| {
            let activations = activations.as_mut().map(|a| a as &mut dyn Activations);
            quantize(&plan, source, activations, path, &RunOptions::replacing(), &observer)
        });
        match outcome {
            _ if self.interrupt.raised() => Err(Ended::Interrupted),
            Err(QuantizeError::Cancelled { .. }) => Err(Ended::Interrupted),
            Err(error) => Err(Ended::Failed(anyhow::Error::new(error).context(label))),
            Ok(report) => {
                let peak = self.heap.peak_usage().saturating_sub(heap_before) as u64;
                let calibrating_s = report.calibration.as_ref().map_or(0.0, |c| c.calibrating_s);
                let note = |c: &Calibrations| activations.as_ref().map(|a| c.note(a, calibrating_s, peak));
                let calibration = calibrations.and_then(note);
                let warnings = activations.map_or_else(Vec::new, |a| a.warnings());
                self.say_once(warnings);
                Ok(Made { seconds: begin.elapsed().as_secs_f64(), calibration })
            }
        }
    }

    /// Shows what was not shown before.
    fn say_once(&mut self, lines: Vec<String>) {
        for line in lines {
            if !self.warnings.contains(&line) {
                self.progress.note(&line);
                self.warnings.push(line);
            }
        }
    }

    /// The rows `none`.
    fn source_rows(&mut self, source: &dyn ModelSource) -> Outcome<()> {
        // The rates of the row are over the tensors that a codec replaces.
        let (file_bytes, rates) = source_rates(source, &self.any_plan(source)?)?;
        let heap_before = self.heap.current_usage() as u64;
        let model = LanguageModel::from_source(source, &self.load_options())?;
        let head = RowHead {
            heap_before,
            label: "none".to_owned(),
            codec: "none".to_owned(),
            target_bps: None,
            target_bpw: None,
            rates,
            file_bytes,
            embeddings: source_embeddings(source),
            quantize_seconds: None,
            mapped: false,
        };
        self.rows_of(model, head, &|row| row)
    }

    /// The row of a baseline: linears from its packed bytes, everything else from the source.
    fn baseline_row(&mut self, source: &dyn ModelSource, target: &Target) -> Outcome<()> {
        let QuantizeTarget::PayloadBps(rate) = target.rate else {
            return Err(anyhow::anyhow!("{}: baselines have payload rates only", target.label()).into());
        };
        let label = target.label();
        self.progress.say(&format!("{label}: quantizing"));
        let heap_before = self.heap.current_usage() as u64;
        let begin = Instant::now();
        let method = baseline(&target.codec, rate, Rotation { tile: self.args.tile, seed: self.args.seed })?;
        let plan = self.any_plan(source)?;
        self.heap.reset_peak_usage();
        let calibrations = self.calibrations.as_ref().filter(|_| target.calibrated);
        let mut activations = calibrations.map(|c| c.of_row(source, &self.progress, &self.interrupt)).transpose()?;
        let coded = self.interrupt.while_writing(|| {
            let activations = activations.as_mut().map(|a| a as &mut dyn Activations);
            CodedLinears::encode(source, &plan, &*method, activations, &|| self.interrupt.raised())
        });
        if self.interrupt.raised() {
            return Err(Ended::Interrupted);
        }
        let Some(coded) = coded.with_context(|| label.clone())? else { return Err(Ended::Interrupted) };
        let peak = (self.heap.peak_usage() as u64).saturating_sub(heap_before);
        let note = |c: &Calibrations| activations.as_ref().map(|a| c.note(a, coded.calibrating_s, peak));
        let calibration = calibrations.and_then(note);
        let warnings = activations.map_or_else(Vec::new, |a| a.warnings());
        self.say_once(warnings);
        let quantize_seconds = Some(begin.elapsed().as_secs_f64());
        let file_bytes = coded.file_bytes(source, &plan);
        let n_params = plan.estimate().n_params;
        if let Some(share) = coded.fallback_share {
            let types = coded.fallback_types.join(", ");
            self.progress
                .note(&format!("{label}: {:.1} % of the tensors as {types}, their width fits no block", 100.0 * share));
        }
        if coded.on_source_grid() {
            let share = 100.0 * coded.grid_share;
            self.progress
                .note(&format!("{label}: {share:.1} % of the weights on the source's own grid, left out of orders"));
        }
        let model = LanguageModel::from_source(&CodedSource::new(source, &coded, &*method), &self.load_options())?;
        let (fallback_share, source_grid) = (coded.fallback_share, coded.on_source_grid());
        let source_grid_share = Some(coded.grid_share);
        let head = RowHead {
            heap_before,
            label,
            codec: target.codec.clone(),
            target_bps: Some(rate),
            target_bpw: None,
            rates: Rates::new(&coded.rate, file_bytes, n_params),
            file_bytes,
            embeddings: source_embeddings(source),
            quantize_seconds,
            mapped: false,
        };
        drop(coded);
        self.rows_of(model, head, &|row| ReportRow {
            baseline: true,
            source_grid,
            source_grid_share,
            fallback_share,
            calibration: calibration.clone(),
            ..row
        })
    }

    /// One compressed row, from its file alone.
    fn container_row(&mut self, container: Arc<Container>, made: Option<Made>) -> Outcome<()> {
        let ledger = container.ledger()?;
        let rates = Rates::new(&ledger.coded_rate(), ledger.file_bytes, ledger.n_params);
        let file_bytes = container.file_bytes();
        let recipe = QuantizeOptions::from_recipe(&container.manifest().recipe).ok();
        let codec = recipe.as_ref().map_or("unknown", |r| r.codec.as_str()).to_owned();
        let target_bps = recipe.as_ref().and_then(QuantizeOptions::payload_bps);
        let target_bpw = recipe.as_ref().and_then(|r| match r.target {
            QuantizeTarget::AllInBpw(bpw) => Some(bpw),
            _ => None,
        });
        let states = container.entries().iter().map(|entry| {
            let state = match ledger.tensor(&entry.name) {
                Some(line) if entry.is_quantized() => {
                    let rate = line.rate();
                    format!("{codec}, payload {:.3}, all-in {:.3}", rate.payload_bps(), rate.all_in_bps())
                }
                _ => format!("{} kept", entry.dtype()),
            };
            (entry.name.as_str(), state)
        });
        let embeddings = describe_embeddings(states);
        let label = recipe.as_ref().map_or_else(|| codec.clone(), |r| format!("{codec}@{}", r.target));
        if self.tokens.is_none() {
            // What tokenizing leaves behind (compiled regular expressions) is not the model's: do it before the measurement.
            let mut model = LanguageModel::from_container(Arc::clone(&container), &LoadOptions::default())?;
            self.tokenize(model.require_tokenizer()?, model.config())?;
            if self.passkeys.are_missing() {
                let bytes = container.blob("tokenizer.json")?.context("the container has no tokenizer")?;
                let template = [container.blob("chat_template.jinja")?, container.blob("tokenizer_config.json")?];
                self.make_passkeys(Tokenizer::from_bytes(bytes)?, template, model.config())?;
            }
            self.tasks.keep_tokenizer(|| model.take_tokenizer().context("the container has no tokenizer"))?;
        }
        let path = container.path().to_owned();
        drop(container);
        let heap_before = self.heap.current_usage() as u64;
        let model = LanguageModel::from_container(Container::open(&path)?, &self.load_options())?;
        let head = RowHead {
            heap_before,
            label,
            codec,
            target_bps,
            target_bpw,
            rates,
            file_bytes,
            embeddings,
            quantize_seconds: made.as_ref().map(|made| made.seconds),
            mapped: true,
        };
        let calibration = made.and_then(|made| made.calibration);
        self.rows_of(model, head, &|row| ReportRow { calibration: calibration.clone(), ..row })
    }

    /// The rows of one model: with its cache in f32, then with each of the compressed ones. `finish` says what else is known of them.
    ///
    /// Differences are to the unquantized model with its cache in f32, or, if that is not scored, to this model with its cache in f32.
    fn rows_of(
        &mut self,
        mut model: LanguageModel,
        head: RowHead,
        finish: &dyn Fn(ReportRow) -> ReportRow,
    ) -> Outcome<()> {
        self.tokenize(model.require_tokenizer()?, model.config())?;
        self.say_once(model.warnings().to_vec());
        let kv = self.kv.clone();
        let mut notices = Vec::new();
        for target in &kv {
            notices.extend(target.notice(&model)?.map(|notice| format!("warning: {notice}")));
        }
        self.say_once(notices);
        let probe = probe_for(&kv, &model)?;
        // The ids are known: from here on the model alone is measured.
        drop(model.take_tokenizer());
        let mut nll = self.baseline_nll;
        if head.codec != "none" || !self.args.no_baseline {
            let row = self.score(&model, &head, &mut RuntimeLm(&model))?;
            if head.codec == "none" {
                self.baseline_nll = Some(row.record.result.mean_nll);
            }
            let delta_ln = self.baseline_nll.map(|nll| row.record.result.mean_nll - nll);
            nll = self.baseline_nll.or(Some(row.record.result.mean_nll));
            self.finished(finish(ReportRow { delta_ln, ..row }))?;
        }
        for target in &kv {
            let label = format!("{} with kv {}", head.label, target.label());
            let cache = target.cache(&model, probe.as_ref(), self.args.seed).with_context(|| label.clone())?;
            let chunk = self.args.kv_chunk(model.resident().device_bytes > 0);
            let mut lm = KvLm::new(&model, cache, chunk);
            let row = self.score(&model, &RowHead { label, ..head.clone() }, &mut lm)?;
            let delta_ln = nll.map(|nll| row.record.result.mean_nll - nll);
            self.finished(finish(ReportRow {
                delta_ln,
                kv: Some(target.label().to_owned()),
                // A file and two row blocks bound what weights take, not what a cache does.
                resident_bound_bytes: None,
                ..row
            }))?;
        }
        Ok(())
    }

    /// The ids of the text: computed with the first tokenizer, which all others have to equal.
    fn tokenize(&mut self, tokenizer: &Tokenizer, config: &ModelConfig) -> Result<()> {
        if let Some(tokens) = &self.tokens {
            if tokens.tokenizer_sha256 != tokenizer.sha256() {
                let (first, now) = (&tokens.tokenizer_sha256, tokenizer.sha256());
                bail!("the container's tokenizer differs from the source's: expected sha256 {first}, found {now}");
            }
            return Ok(());
        }
        let auto = tokenizer.leading_ids().first().copied();
        let protocol = self.args.protocol(config.max_positions, auto.is_some())?;
        let ids = tokenizer.encode(&join_rows(&self.text, protocol.join))?;
        // The text has done its work; what is measured from here on is the model's memory.
        self.text = String::new();
        let bos = auto.or(config.bos_token_id);
        let n = window_spans(TokenStream::new(&ids, bos, protocol.bos).len(), &protocol).count();
        if n == 0 {
            bail!("{}: no window of protocol {protocol} fits into {} tokens", self.args.text.display(), ids.len());
        }
        let n = self.args.window_limit().unwrap_or(usize::MAX).min(n);
        let of_source = usize::from(!self.args.no_baseline || self.args.container.is_some());
        let kv_alone = usize::from(of_source == 0 && self.targets.is_empty());
        let n_rows = (self.targets.len() + of_source + kv_alone) * (1 + self.kv.len()) - kv_alone;
        self.progress.set_windows(n * n_rows);
        self.tokens = Some(Tokens {
            ids_sha256: sha256_ids(&ids),
            ids,
            tokenizer_sha256: tokenizer.sha256().to_owned(),
            auto_bos: auto,
            bos,
            protocol,
        });
        Ok(())
    }

    /// Makes the prompts that ask for pass keys; `template` is `chat_template.jinja` and `tokenizer_config.json`.
    fn make_passkeys(
        &mut self,
        tokenizer: Tokenizer,
        [file, config]: [Option<&[u8]>; 2],
        model: &ModelConfig,
    ) -> Result<()> {
        let template = ChatTemplate::from_blobs(file, config)?;
        let left_out = self.passkeys.make(tokenizer, template.as_ref(), model.max_positions)?;
        self.say_once(left_out);
        Ok(())
    }

    /// Scores a loaded model and measures its memory meanwhile.
    fn score(&mut self, model: &LanguageModel, head: &RowHead, lm: &mut dyn Scorable) -> Outcome<ReportRow> {
        let Some(tokens) = &self.tokens else { return Err(anyhow::anyhow!("no tokens").into()) };
        self.heap.reset_peak_usage();
        let loaded_heap_bytes = (self.heap.current_usage() as u64).saturating_sub(head.heap_before);
        let begin = Instant::now();
        let (progress, interrupt) = (&mut self.progress, &self.interrupt);
        let result =
            evaluate(lm.causal(), &tokens.ids, tokens.bos, &tokens.protocol, self.args.window_limit(), &mut |window| {
                progress.window(&head.label, window);
                if interrupt.raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .with_context(|| head.label.clone())?;
        let seconds = begin.elapsed().as_secs_f64();
        let peak_heap_bytes = (self.heap.peak_usage() as u64).saturating_sub(head.heap_before);
        if interrupt.raised() || !result.complete {
            return Err(Ended::Interrupted);
        }
        let kv_bits = lm.kv_bits();
        // On a device the file was read once, while loading; what stays is the weights in its memory.
        let device_bytes = model.resident().device_bytes;
        let on_device = device_bytes > 0;
        let mapped_bytes = if head.mapped && !on_device { head.file_bytes } else { 0 };
        let resident_bytes = peak_heap_bytes + mapped_bytes + device_bytes;
        let rules = EncodeRules {
            context: model.config().max_positions,
            // What the tokenizer puts in front by itself; otherwise the end of a text stands for an empty one.
            bos: tokens.auto_bos,
            empty: tokens.bos.or(model.stop_ids().first().copied()),
        };
        let tasks = self.tasks.score(lm.causal(), &head.label, rules, &mut |task, done, of| {
            progress.questions(&head.label, task, done, of);
            if interrupt.raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let Some(tasks) = tasks.with_context(|| head.label.clone())? else { return Err(Ended::Interrupted) };
        let passkey = self.passkeys.score(model, &mut || lm.empty_cache(), &mut |passkey| {
            progress.passkey(&head.label, passkey);
            if interrupt.raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let Some(passkey) = passkey.with_context(|| head.label.clone())? else { return Err(Ended::Interrupted) };
        let window = tokens.protocol.window.min(result.stream_tokens);
        let needs = activations(model.config(), window, rayon::current_num_threads());
        let bound = (head.mapped && !on_device).then_some(head.file_bytes + 2 * needs.row_block + needs.activations);
        Ok(ReportRow {
            codec: head.codec.clone(),
            target_bps: head.target_bps,
            target_bpw: head.target_bpw,
            baseline: false,
            source_grid: false,
            source_grid_share: None,
            fallback_share: None,
            kv: None,
            kv_page_bps: kv_bits.and_then(|bits| bits.page_bps()),
            kv_all_in_bps: kv_bits.and_then(|bits| bits.all_in_bps()),
            rates: head.rates,
            file_bytes: head.file_bytes,
            ppl: result.ppl,
            ppl_sigma: result.ppl_sigma,
            delta_ln: None,
            resident_bytes,
            seconds,
            quantize_seconds: head.quantize_seconds,
            embeddings: head.embeddings.clone(),
            peak_heap_bytes,
            loaded_heap_bytes,
            resident_bound_bytes: bound,
            tasks,
            passkey,
            calibration: None,
            record: PplRecord {
                provenance: Provenance {
                    model: self.model_name.clone(),
                    text_sha256: self.text_sha256.clone(),
                    tokenizer_sha256: tokens.tokenizer_sha256.clone(),
                    token_ids_sha256: tokens.ids_sha256.clone(),
                    dtype: "f32".to_owned(),
                    device: self.device.name(),
                },
                protocol: tokens.protocol.clone(),
                result,
            },
        })
    }
}

/// A model as rows score it.
trait Scorable {
    fn causal(&mut self) -> &mut dyn CausalLm;

    /// What compressed caches took so far; `None` for a cache in f32.
    fn kv_bits(&self) -> Option<KvBits>;

    /// A cache without positions, as scoring has it.
    fn empty_cache(&self) -> KvCache;
}

impl Scorable for RuntimeLm<'_> {
    fn causal(&mut self) -> &mut dyn CausalLm {
        self
    }

    fn kv_bits(&self) -> Option<KvBits> {
        None
    }

    fn empty_cache(&self) -> KvCache {
        self.0.new_cache()
    }
}

impl Scorable for KvLm<'_> {
    fn causal(&mut self) -> &mut dyn CausalLm {
        self
    }

    fn kv_bits(&self) -> Option<KvBits> {
        Some(self.bits())
    }

    fn empty_cache(&self) -> KvCache {
        KvLm::empty_cache(self)
    }
}

/// The model's name without its ending, safe as a part of a file name.
fn file_stem(name: &str) -> String {
    let stem = name.strip_suffix(".gguf").or_else(|| name.strip_suffix(".safetensors")).unwrap_or(name);
    stem.chars().map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}
