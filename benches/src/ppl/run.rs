//! One evaluation: the rows in order, each from its own file.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use gosset_container::Container;
use gosset_eval::{
    EvalReport, PplProtocol, PplRecord, Provenance, Rates, ReportRow, TokenStream, evaluate, join_rows, sha256_hex,
    sha256_ids, window_spans,
};
use gosset_quantize::{ModelSource, QuantizeError, QuantizeOptions, plan, run as quantize};
use gosset_runtime::{
    LanguageModel, LoadOptions,
    source::{open_source, resolve_model},
};
use peak_alloc::PeakAlloc;
use tempfile::TempDir;

use super::{
    Args, Interrupt,
    args::Target,
    cache_dir,
    lm::RuntimeLm,
    memory::activations,
    progress::Progress,
    source_row::{describe_embeddings, source_embeddings, source_rates},
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
    bos: Option<u32>,
    protocol: PplProtocol,
}

/// What a row is about.
struct RowHead {
    /// Heap of the process before the model was loaded, in bytes.
    heap_before: u64,
    label: String,
    codec: String,
    target_bps: Option<f64>,
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
    interrupt: Interrupt,
    progress: Progress,
    targets: Vec<Target>,
    text: String,
    text_sha256: String,
    tokens: Option<Tokens>,
    model_name: String,
    baseline_nll: Option<f64>,
    rows: Vec<ReportRow>,
}

impl<'a> Run<'a> {
    /// Checks the arguments and reads the text.
    pub(super) fn new(args: &'a Args, heap: &'static PeakAlloc, interrupt: Interrupt) -> Result<Self> {
        let targets = if args.container.is_some() { Vec::new() } else { args.targets()? };
        if args.container.is_none() && targets.is_empty() && args.no_baseline {
            bail!("nothing to measure: no codec, and --no-baseline");
        }
        let bytes = fs::read(&args.text).with_context(|| format!("{}", args.text.display()))?;
        let text_sha256 = sha256_hex(&bytes);
        let text = String::from_utf8(bytes).with_context(|| format!("{}: expected UTF-8", args.text.display()))?;
        Ok(Run {
            args,
            heap,
            interrupt,
            progress: Progress::new(),
            targets,
            text,
            text_sha256,
            tokens: None,
            model_name: String::new(),
            baseline_nll: None,
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
        let (Some(tokens), Some(first)) = (self.tokens, self.rows.first()) else {
            return Err(anyhow::anyhow!("no row was measured").into());
        };
        Ok(EvalReport {
            model: self.model_name,
            text_sha256: self.text_sha256,
            protocol: tokens.protocol.name.clone(),
            windows: first.record.result.windows,
            tokens_scored: first.record.result.tokens_scored,
            settings: tokens.protocol,
            tokenizer_sha256: tokens.tokenizer_sha256,
            token_ids_sha256: tokens.ids_sha256,
            tokens: tokens.ids.len(),
            threads: rayon::current_num_threads(),
            rows: self.rows,
        })
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
        if !self.args.no_baseline {
            self.source_row(&*source)?;
        }
        drop(source);
        let (_scratch, folder) = self.folder()?;
        for target in self.targets.clone() {
            let label = target.label();
            let file = folder.join(format!("{}-{label}.gosset", file_stem(&self.model_name)));
            // The source is open while the file is written and no longer: the row knows nothing but the file.
            let seconds = self.quantize(&*open_source(&path)?, &target, &file)?;
            self.container_row(Container::open(&file)?, Some(seconds))?;
            if self.args.keep.is_none() {
                fs::remove_file(&file).with_context(|| format!("{}", file.display()))?;
            }
        }
        Ok(())
    }

    /// Where the containers go: `--keep`, or a folder that is removed at the end.
    fn folder(&self) -> Result<(Option<TempDir>, PathBuf)> {
        match &self.args.keep {
            Some(keep) => {
                fs::create_dir_all(keep).with_context(|| format!("{}", keep.display()))?;
                Ok((None, keep.clone()))
            }
            None => {
                let scratch = tempfile::Builder::new().prefix("gosset-ppl-").tempdir().context("scratch folder")?;
                let folder = scratch.path().to_owned();
                self.interrupt.set_scratch(folder.clone());
                Ok((Some(scratch), folder))
            }
        }
    }

    fn options(&self, codec: &str, rate: f64) -> QuantizeOptions {
        QuantizeOptions {
            tile: self.args.tile,
            seed: self.args.seed,
            embeddings: self.args.embeddings,
            ..QuantizeOptions::new(codec, rate)
        }
    }

    /// Writes the container of one row; the seconds it took.
    fn quantize(&self, source: &dyn ModelSource, target: &Target, path: &Path) -> Outcome<f64> {
        let label = target.label();
        self.progress.say(&format!("{label}: quantizing"));
        let begin = Instant::now();
        let plan = plan(source, &self.options(&target.codec, target.rate))?;
        let observer = self.progress.observer(&label, &self.interrupt);
        match self.interrupt.while_writing(|| quantize(&plan, source, path, true, &observer)) {
            Ok(_) if self.interrupt.raised() => Err(Ended::Interrupted),
            Ok(_) => Ok(begin.elapsed().as_secs_f64()),
            Err(QuantizeError::Cancelled { .. }) => Err(Ended::Interrupted),
            Err(error) => Err(Ended::Failed(anyhow::Error::new(error).context(label))),
        }
    }

    /// The row `none`.
    fn source_row(&mut self, source: &dyn ModelSource) -> Outcome<()> {
        // The rates of the row are over the tensors that the first codec of the run replaces.
        let target = self.targets.first().cloned();
        let (codec, rate) = target.as_ref().map_or(("e8-rice", 4.0), |t| (t.codec.as_str(), t.rate));
        let plan = plan(source, &self.options(codec, rate))?;
        let (file_bytes, rates) = source_rates(source, &plan)?;
        let heap_before = self.heap.current_usage() as u64;
        let model = LanguageModel::from_source(source, &LoadOptions::default())?;
        let row = self.score(
            model,
            RowHead {
                heap_before,
                label: "none".to_owned(),
                codec: "none".to_owned(),
                target_bps: None,
                rates,
                file_bytes,
                embeddings: source_embeddings(source),
                quantize_seconds: None,
                mapped: false,
            },
        )?;
        self.baseline_nll = Some(row.record.result.mean_nll);
        self.rows.push(ReportRow { delta_ln: Some(0.0), ..row });
        Ok(())
    }

    /// One compressed row, from its file alone.
    fn container_row(&mut self, container: Arc<Container>, quantize_seconds: Option<f64>) -> Outcome<()> {
        let ledger = container.ledger()?;
        let rates = Rates::new(&ledger.coded_rate(), ledger.file_bytes, ledger.n_params);
        let file_bytes = container.file_bytes();
        let recipe = QuantizeOptions::from_recipe(&container.manifest().recipe).ok();
        let codec = recipe.as_ref().map_or("unknown", |r| r.codec.as_str()).to_owned();
        let target_bps = recipe.as_ref().and_then(QuantizeOptions::payload_bps);
        let states = container.entries().iter().map(|entry| {
            let state = match ledger.tensor(&entry.name) {
                Some(line) if entry.is_coded() => {
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
            self.tokenize(&LanguageModel::from_container(Arc::clone(&container), &LoadOptions::default())?)?;
        }
        let path = container.path().to_owned();
        drop(container);
        let heap_before = self.heap.current_usage() as u64;
        let model = LanguageModel::from_container(Container::open(&path)?, &LoadOptions::default())?;
        let head = RowHead {
            heap_before,
            label,
            codec,
            target_bps,
            rates,
            file_bytes,
            embeddings,
            quantize_seconds,
            mapped: true,
        };
        let row = self.score(model, head)?;
        let delta_ln = self.baseline_nll.map(|nll| row.record.result.mean_nll - nll);
        self.rows.push(ReportRow { delta_ln, ..row });
        Ok(())
    }

    /// The ids of the text: computed by the first model, compared by all others.
    fn tokenize(&mut self, model: &LanguageModel) -> Result<()> {
        let tokenizer = model.require_tokenizer()?;
        if let Some(tokens) = &self.tokens {
            if tokens.tokenizer_sha256 != tokenizer.sha256() {
                let (first, now) = (&tokens.tokenizer_sha256, tokenizer.sha256());
                bail!("the container's tokenizer differs from the source's: expected sha256 {first}, found {now}");
            }
            return Ok(());
        }
        for warning in model.warnings() {
            self.progress.note(warning);
        }
        let auto = tokenizer.leading_ids().first().copied();
        let protocol = self.args.protocol(model.config().max_positions, auto.is_some())?;
        let ids = tokenizer.encode(&join_rows(&self.text, protocol.join))?;
        // The text has done its work; what is measured from here on is the model's memory.
        self.text = String::new();
        let bos = auto.or(model.config().bos_token_id);
        let n = window_spans(TokenStream::new(&ids, bos, protocol.bos).len(), &protocol).count();
        let n = self.args.window_limit().unwrap_or(usize::MAX).min(n);
        let n_rows = self.targets.len() + usize::from(!self.args.no_baseline || self.args.container.is_some());
        self.progress.set_windows(n * n_rows);
        self.tokens = Some(Tokens {
            ids_sha256: sha256_ids(&ids),
            ids,
            tokenizer_sha256: tokenizer.sha256().to_owned(),
            bos,
            protocol,
        });
        Ok(())
    }

    /// Scores a loaded model and measures its memory meanwhile.
    fn score(&mut self, mut model: LanguageModel, head: RowHead) -> Outcome<ReportRow> {
        self.tokenize(&model)?;
        // The ids are known: from here on the model alone is measured.
        drop(model.take_tokenizer());
        let Some(tokens) = &self.tokens else { return Err(anyhow::anyhow!("no tokens").into()) };
        self.heap.reset_peak_usage();
        let loaded_heap_bytes = (self.heap.current_usage() as u64).saturating_sub(head.heap_before);
        let begin = Instant::now();
        let (progress, interrupt) = (&mut self.progress, &self.interrupt);
        let result = evaluate(
            &mut RuntimeLm(&model),
            &tokens.ids,
            tokens.bos,
            &tokens.protocol,
            self.args.window_limit(),
            &mut |window| {
                progress.window(&head.label, window);
                if interrupt.raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        )
        .with_context(|| head.label.clone())?;
        let seconds = begin.elapsed().as_secs_f64();
        let peak_heap_bytes = (self.heap.peak_usage() as u64).saturating_sub(head.heap_before);
        if interrupt.raised() || !result.complete {
            return Err(Ended::Interrupted);
        }
        let resident_bytes = peak_heap_bytes + if head.mapped { head.file_bytes } else { 0 };
        let window = tokens.protocol.window.min(result.stream_tokens);
        let needs = activations(model.config(), window, rayon::current_num_threads());
        let bound = head.mapped.then_some(head.file_bytes + 2 * needs.row_block + needs.activations);
        Ok(ReportRow {
            codec: head.codec,
            target_bps: head.target_bps,
            rates: head.rates,
            file_bytes: head.file_bytes,
            ppl: result.ppl,
            ppl_sigma: result.ppl_sigma,
            delta_ln: None,
            resident_bytes,
            seconds,
            quantize_seconds: head.quantize_seconds,
            embeddings: head.embeddings,
            peak_heap_bytes,
            loaded_heap_bytes,
            resident_bound_bytes: bound,
            record: PplRecord {
                provenance: Provenance {
                    model: self.model_name.clone(),
                    text_sha256: self.text_sha256.clone(),
                    tokenizer_sha256: tokens.tokenizer_sha256.clone(),
                    token_ids_sha256: tokens.ids_sha256.clone(),
                    dtype: "f32".to_owned(),
                    device: "cpu".to_owned(),
                },
                protocol: tokens.protocol.clone(),
                result,
            },
        })
    }
}

/// The model's name without its ending, safe as a part of a file name.
fn file_stem(name: &str) -> String {
    let stem = name.strip_suffix(".gguf").or_else(|| name.strip_suffix(".safetensors")).unwrap_or(name);
    stem.chars().map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}
