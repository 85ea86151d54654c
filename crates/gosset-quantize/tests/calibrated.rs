//! Methods with calibration: what a run asks of activations, what it keeps, how it is taken up again.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gosset_container::{Container, Storage};
use gosset_quantize::{
    Activations, Allocation, CalibrationRecord, Event, FloatDtype, InputMoments, ModelSource, Observer, Part,
    QuantizeError, QuantizeOptions, QuantizeTarget, Report, RunOptions, SafetensorsSource, Silent, TensorInfo,
    TuneReport, TunedBlock, dequantize, merge, plan, run,
};
use gosset_tests::t0::T0;
use gosset_unisvq::{Hessian, UniSvqMatrix};
use half::f16;
use tempfile::TempDir;

struct Case {
    dir: TempDir,
    source: SafetensorsSource,
}

/// Activations that are not those of a model: inputs of a tensor are correlated in a way that its width and, if sequential, all
/// values told so far decide.
struct Fake {
    is_sequential: bool,
    widths: HashMap<String, usize>,
    /// Digests of the values told last.
    values: BTreeMap<String, u64>,
    asked: Vec<String>,
    told: Vec<String>,
    dead: usize,
    tunes: bool,
    unseen: &'static str,
}

impl Fake {
    fn of(case: &Case) -> Self {
        let width = |t: &TensorInfo| (t.name.clone(), t.rows_cols().1);
        Fake {
            is_sequential: false,
            widths: case.source.tensors().iter().map(width).collect(),
            values: BTreeMap::new(),
            asked: Vec::new(),
            told: Vec::new(),
            dead: 0,
            tunes: false,
            unseen: "nothing",
        }
    }

    fn sequential(case: &Case) -> Self {
        Fake { is_sequential: true, ..Self::of(case) }
    }
}

fn hash(state: u64, bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(state, |h, b| (h ^ b).wrapping_mul(0x0100_0000_01b3).rotate_left(17))
}

impl Activations for Fake {
    /// Backwards within a layer, so that the order is another than that of the source.
    fn order(&self, tensors: &[TensorInfo]) -> Vec<usize> {
        (0..tensors.len()).rev().collect()
    }

    fn moments(&mut self, tensor: &str) -> Result<Option<InputMoments>, QuantizeError> {
        self.asked.push(tensor.to_owned());
        if tensor.contains(self.unseen) || !tensor.contains("layers") {
            return Ok(None);
        }
        let n = self.widths[tensor];
        let shift = if self.is_sequential { (hash(0, self.values.values().copied()) % 97) as f64 / 97.0 } else { 0.5 };
        let value = |i: usize, j: usize| {
            if i < self.dead || j < self.dead {
                return 0.0;
            }
            let near = (-(i.abs_diff(j) as f64) / (4.0 + shift)).exp();
            let spread = |i: usize| 0.2 + (i % 7) as f64;
            near * spread(i) * spread(j)
        };
        let data = (0..n * n).map(|k| value(k / n, k % n)).collect();
        let hessian = Hessian::new(n, data, 1000).map_err(QuantizeError::activations)?;
        Ok(Some(InputMoments {
            hessian: Arc::new(hessian),
            drift: None,
            dead_inputs: self.dead.min(n) as u64,
            output_energy: None,
        }))
    }

    fn replaced(&mut self, tensor: &str, values: &[f32]) -> Result<(), QuantizeError> {
        self.told.push(tensor.to_owned());
        let digest = hash(0, values.iter().map(|v| u64::from(v.to_bits())));
        self.values.insert(tensor.to_owned(), digest);
        Ok(())
    }

    fn tune(&mut self, block: &mut [(&str, &mut UniSvqMatrix)]) -> Result<Option<TunedBlock>, QuantizeError> {
        if !self.tunes {
            return Ok(None);
        }
        for (_, matrix) in block.iter_mut() {
            let decoder = matrix.decoder().map_err(QuantizeError::activations)?;
            let halves = |s: &[f32]| s.iter().map(|v| f16::from_f32(v * 1.125)).collect::<Vec<_>>();
            let (input, output) = (halves(decoder.input_scales()), halves(decoder.output_scales()));
            matrix.header.affine = Some(matrix.header.affine_map());
            (matrix.input_scales, matrix.output_scales) = (Some(input), Some(output));
        }
        let name = block[0].0.split(".self_attn").next().unwrap().split(".mlp").next().unwrap();
        let norm = format!("{name}.input_layernorm.weight");
        let values = vec![1.25; self.widths[&norm]];
        let report = TuneReport { loss_before: 2.0, loss_after: 1.0, epochs: 3 };
        Ok(Some(TunedBlock { norms: vec![(norm, values)], report }))
    }

    fn is_sequential(&self) -> bool {
        self.is_sequential
    }

    fn record(&self) -> CalibrationRecord {
        CalibrationRecord {
            text: "fake".to_owned(),
            text_sha256: "00".repeat(32),
            tokens_sha256: "11".repeat(32),
            tokens: 1000,
            window: 100,
            seed: 7,
            sequential: self.is_sequential,
            token_weights: gosset_quantize::TokenWeights::Equal,
        }
    }
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        T0::llama().write(&dir.path().join("in")).unwrap();
        let source = SafetensorsSource::open(&dir.path().join("in")).unwrap();
        Case { dir, source }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out.gosset")
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("out.gosset.work")
    }

    fn run(
        &self,
        options: &QuantizeOptions,
        fake: &mut Fake,
        run_options: &RunOptions,
        observer: &dyn Observer,
    ) -> Result<Report, QuantizeError> {
        run(&plan(&self.source, options)?, &self.source, Some(fake), &self.out(), run_options, observer)
    }

    /// Relative error of the first columns of a tensor in the output.
    fn error_of_columns(&self, name: &str, n: usize) -> f64 {
        let folder = tempfile::tempdir().unwrap();
        let container = Container::open(&self.out()).unwrap();
        dequantize(&container, &folder.path().join("d"), FloatDtype::F32, None, &Silent).unwrap();
        let decoded = SafetensorsSource::open(&folder.path().join("d")).unwrap();
        let read = |source: &SafetensorsSource| {
            let index = source.tensors().iter().position(|t| t.name == name).unwrap();
            let (rows, cols) = source.tensors()[index].rows_cols();
            let mut values = vec![0f32; rows * cols];
            source.read_rows(index, 0..rows, &mut values).unwrap();
            (values, cols)
        };
        let ((w, cols), (v, _)) = (read(&self.source), read(&decoded));
        let (mut signal, mut noise) = (0.0, 0.0);
        for (_, (&w, &v)) in w.iter().zip(&v).enumerate().filter(|(i, _)| i % cols < n) {
            signal += f64::from(w).powi(2);
            noise += f64::from(w - v).powi(2);
        }
        noise / signal
    }

    fn bytes(&self, options: &QuantizeOptions, fake: &mut Fake) -> Vec<u8> {
        self.run(options, fake, &RunOptions::replacing(), &Silent).unwrap();
        assert!(!self.work().exists(), "a complete run leaves no work folder");
        fs::read(self.out()).unwrap()
    }
}

/// Stops after that many tensors.
struct Stop {
    after: usize,
    seen: AtomicUsize,
    /// Tensors that were taken up; 0 if none were.
    resumed: AtomicUsize,
}

impl Stop {
    fn after(after: usize) -> Self {
        Stop { after, seen: AtomicUsize::new(0), resumed: AtomicUsize::new(0) }
    }
}

impl Observer for Stop {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Finished { .. } => {
                self.seen.fetch_add(1, Ordering::Relaxed);
            }
            Event::Resumed { done, .. } => self.resumed.store(*done, Ordering::Relaxed),
            _ => {}
        }
    }

    fn cancelled(&self) -> bool {
        self.seen.load(Ordering::Relaxed) >= self.after
    }
}

const METHODS: [(&str, f64); 3] = [("unisvq", 2.0), ("e8+feedback", 3.0), ("shift-12+feedback", 3.0)];

#[test]
fn methods_with_calibration_write_what_their_decoders_read() {
    let case = Case::new();
    for (name, rate) in METHODS {
        let mut fake = Fake::of(&case);
        let report = case.run(&QuantizeOptions::new(name, rate), &mut fake, &RunOptions::replacing(), &Silent).unwrap();
        let container = Container::open(&case.out()).unwrap();
        container.verify().unwrap();
        assert_eq!(report.codec, name);
        let summary = report.calibration.unwrap();
        assert_eq!((summary.n_tensors, summary.record.tokens), (14, 1000));
        for t in report.tensors.iter().filter(|t| t.action == "quantized") {
            let figures = t.feedback.as_ref().unwrap();
            assert!(figures.proxy > 0.0 && figures.proxy <= figures.proxy_before, "{name} {t:?}");
            // 1,000 tokens: the damping as published, and more of it for other texts and for so few.
            let is_damped_more = name.ends_with("+feedback") && !name.starts_with("shift");
            let expected = if is_damped_more { 0.3..=0.5 } else { 0.01..=0.01 };
            assert!(expected.contains(&figures.sigma), "{name} {t:?}");
            assert_eq!((figures.raises, figures.tokens), (0, 1000));
            assert_eq!(t.method.as_deref(), Some(name));
            assert!(t.snr_db.unwrap() > 4.5, "{name} {t:?}");
        }
        let gained = report.tensors.iter().filter_map(|t| t.feedback.as_ref()).filter(|f| f.simpler.is_none());
        assert!(gained.count() > 10, "{name}: feedback does good on correlated inputs");
        let recipe = &container.manifest().recipe;
        assert_eq!(recipe["options"]["calibration"]["seed"], 7);
        assert_eq!(recipe["settings"]["damping"]["sigma"], 0.01);
    }
}

#[test]
fn g05_the_recipe_of_a_container_makes_the_same_bytes_and_refuses_other_texts() {
    let case = Case::new();
    for (name, rate) in METHODS {
        let first = case.bytes(&QuantizeOptions::new(name, rate), &mut Fake::of(&case));
        let recipe = Container::open(&case.out()).unwrap().manifest().recipe.clone();
        let options = QuantizeOptions::from_recipe(&recipe).unwrap();
        assert!(case.bytes(&options, &mut Fake::of(&case)) == first, "{name}");
        let error = case.run(&options, &mut Fake::sequential(&case), &RunOptions::replacing(), &Silent).unwrap_err();
        assert!(matches!(error, QuantizeError::CalibrationDiffers { .. }), "{error}");
        let mut other = recipe.clone();
        other["settings"]["damping"]["sigma"] = 0.5.into();
        assert!(QuantizeOptions::from_recipe(&other).unwrap_err().to_string().contains("sigma"));
    }
}

#[test]
fn g05_bytes_do_not_depend_on_threads() {
    let case = Case::new();
    for (name, rate) in METHODS {
        let options = QuantizeOptions::new(name, rate);
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| case.bytes(&options, &mut Fake::sequential(&case)))
        };
        let one = on(1);
        assert!(on(2) == one && on(7) == one, "{name}");
    }
}

#[test]
fn a_method_that_needs_calibration_says_what_to_do_without() {
    let case = Case::new();
    let plan = plan(&case.source, &QuantizeOptions::new("e8+feedback", 3.0)).unwrap();
    let error = run(&plan, &case.source, None, &case.out(), &RunOptions::default(), &Silent).unwrap_err().to_string();
    assert!(error.contains("e8+feedback needs") && error.contains("such as e8"), "{error}");
    assert!(!case.out().exists() && !case.work().exists());
}

#[test]
fn tensors_whose_inputs_are_not_seen_do_without_feedback() {
    let case = Case::new();
    for (name, rate, instead) in [("e8+feedback", 3.0, "e8"), ("unisvq", 3.0, "unisvq")] {
        let options = QuantizeOptions { embeddings: Some(rate), ..QuantizeOptions::new(name, rate) };
        let mut fake = Fake { unseen: "down_proj", ..Fake::of(&case) };
        let report = case.run(&options, &mut fake, &RunOptions::replacing(), &Silent).unwrap();
        let unseen = report.calibration.unwrap().unseen;
        assert_eq!(unseen.len(), 3, "{unseen:?}");
        assert!(report.warnings.iter().any(|w| w.contains("were not seen")), "{:?}", report.warnings);
        for t in report.tensors.iter().filter(|t| unseen.contains(&t.name)) {
            assert_eq!((t.method.as_deref(), &t.feedback), (Some(instead), &None));
        }
    }
}

#[test]
fn g03_inputs_that_were_never_active_keep_ordinary_accuracy_and_are_counted() {
    let case = Case::new();
    for (name, rate) in METHODS {
        for dead in [10, usize::MAX] {
            let mut fake = Fake { dead, ..Fake::of(&case) };
            let options = QuantizeOptions::new(name, rate);
            let report = case.run(&options, &mut fake, &RunOptions::replacing(), &Silent).unwrap();
            let summary = report.calibration.as_ref().unwrap();
            assert_eq!(summary.n_tensors_with_dead_inputs, 14);
            for t in report.tensors.iter().filter(|t| t.action == "quantized") {
                let figures = t.feedback.as_ref().unwrap();
                assert_eq!(figures.dead_inputs, dead.min(t.shape[1]) as u64);
                assert_eq!(dead == usize::MAX, figures.simpler.is_some(), "{name} {t:?}");
                let error = case.error_of_columns(&t.name, dead);
                assert!(error < 0.16, "{name} {}: {error} in inputs that were never active", t.name);
            }
        }
    }
}

#[test]
fn c12_a_run_that_is_stopped_anywhere_goes_on_to_the_same_bytes() {
    let case = Case::new();
    let cases = [("unisvq", 2.0), ("unisvq+ft", 2.0), ("e8+feedback", 3.0)];
    for (name, rate) in cases {
        let options = QuantizeOptions::new(name, rate);
        let fake = || Fake { tunes: true, ..Fake::sequential(&case) };
        let whole = case.bytes(&options, &mut fake());
        fs::remove_file(case.out()).unwrap();
        for after in [0, 1, 6, 7, 13] {
            let stop = Stop::after(after);
            let error = case.run(&options, &mut fake(), &RunOptions::default(), &stop).unwrap_err();
            let kept = if name == "unisvq+ft" { after / 7 * 7 } else { after };
            match error {
                QuantizeError::Cancelled { done: 0, .. } => assert_eq!(kept, 0),
                QuantizeError::Paused { done, total: 14, .. } => assert_eq!(done, kept),
                error => panic!("{error}"),
            }
            assert!(!case.out().exists());
            assert_eq!(case.work().exists(), kept > 0);
            let (rest, mut second) = (Stop::after(usize::MAX), fake());
            case.run(&options, &mut second, &RunOptions::default(), &rest).unwrap();
            assert_eq!(rest.resumed.load(Ordering::Relaxed), kept);
            assert_eq!(second.asked.len(), 14 - kept, "finished tensors are not calibrated again");
            assert!(fs::read(case.out()).unwrap() == whole, "{name} after {after}");
            assert!(!case.work().exists());
            fs::remove_file(case.out()).unwrap();
        }
    }
}

#[test]
fn c12_a_budget_is_kept_over_interruptions() {
    let case = Case::new();
    let target = QuantizeTarget::AllInBpw(4.5);
    let options =
        QuantizeOptions { allocation: Allocation::EqualSlope, ..QuantizeOptions::with_target("e8+feedback", target) };
    let whole = case.bytes(&options, &mut Fake::of(&case));
    let ledger = Container::open(&case.out()).unwrap().ledger().unwrap();
    assert!(ledger.coded_rate().all_in_bps() <= 4.5);
    fs::remove_file(case.out()).unwrap();
    case.run(&options, &mut Fake::of(&case), &RunOptions::default(), &Stop::after(5)).unwrap_err();
    case.run(&options, &mut Fake::of(&case), &RunOptions::default(), &Silent).unwrap();
    assert!(fs::read(case.out()).unwrap() == whole);
}

#[test]
fn c12_other_options_and_other_inputs_are_refused_with_what_differs() {
    let case = Case::new();
    let options = QuantizeOptions::new("unisvq", 2.0);
    case.run(&options, &mut Fake::of(&case), &RunOptions::default(), &Stop::after(3)).unwrap_err();
    let other = QuantizeOptions::new("unisvq", 3.0);
    let error = case.run(&other, &mut Fake::of(&case), &RunOptions::default(), &Silent).unwrap_err().to_string();
    assert!(error.contains("recipe.options.rate: 2.0 there, 3.0 asked for"), "{error}");
    let error = case.run(&options, &mut Fake::sequential(&case), &RunOptions::default(), &Silent).unwrap_err();
    assert!(error.to_string().contains("calibration.sequential"), "{error}");

    // One bit of one weight, at the same place of a file of the same layout.
    let weights = case.dir.path().join("in/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    let error = case.run(&options, &mut Fake::of(&case), &RunOptions::default(), &Silent).unwrap_err().to_string();
    assert!(error.contains("source.content"), "{error}");
    let restart = RunOptions { restart: true, ..RunOptions::default() };
    case.run(&options, &mut Fake::of(&case), &restart, &Silent).unwrap();
    assert!(!case.work().exists());
}

#[test]
fn c12_a_run_that_was_complete_but_for_its_work_folder_is_recognised() {
    let case = Case::new();
    let options = QuantizeOptions::new("unisvq", 2.0);
    let whole = case.bytes(&options, &mut Fake::of(&case));
    fs::rename(case.out(), case.dir.path().join("kept")).unwrap();
    // All tensors are finished, the output is not there yet.
    case.run(&options, &mut Fake::of(&case), &RunOptions::default(), &Stop::after(14)).unwrap_err();
    fs::rename(case.dir.path().join("kept"), case.out()).unwrap();
    let report = case.run(&options, &mut Fake::of(&case), &RunOptions::default(), &Silent).unwrap();
    assert_eq!(report.file_bytes, whole.len() as u64);
    assert!(!case.work().exists());
    // Somebody else's file is not taken for ours.
    case.run(&options, &mut Fake::of(&case), &RunOptions::replacing(), &Stop::after(3)).unwrap_err();
    fs::write(case.out(), "precious").unwrap();
    assert!(case.run(&options, &mut Fake::of(&case), &RunOptions::default(), &Silent).is_err());
    assert_eq!(fs::read(case.out()).unwrap(), b"precious");
}

#[test]
fn tuned_blocks_store_their_norms_and_scales() {
    let case = Case::new();
    let mut fake = Fake { tunes: true, ..Fake::of(&case) };
    let options = QuantizeOptions::new("unisvq+ft", 2.0);
    let report = case.run(&options, &mut fake, &RunOptions::replacing(), &Silent).unwrap();
    let tuned = report.calibration.unwrap().tuned;
    assert_eq!(tuned.len(), 2);
    assert!(tuned.iter().all(|t| t.report.is_some_and(|r| r.loss_after == 1.0)), "{tuned:?}");
    assert_eq!(fake.told.len(), 14 + 14 + 2, "before tuning and after it, norms included");
    let container = Container::open(&case.out()).unwrap();
    container.verify().unwrap();
    let norm = container.entry("model.layers.1.input_layernorm.weight").unwrap();
    assert!(matches!(&norm.storage, Storage::Raw { dtype, reason, .. } if dtype == "F32" && reason == "tuned"));
    let names: Vec<&str> = container.entries().iter().map(|e| e.name.as_str()).collect();
    let expected: Vec<&str> = case.source.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, expected, "tensors are in the order of the source");
}

#[test]
fn runs_without_calibration_are_taken_up_too_if_asked() {
    let case = Case::new();
    let options = QuantizeOptions::new("e8", 3.0);
    let plan = plan(&case.source, &options).unwrap();
    run(&plan, &case.source, None, &case.out(), &RunOptions::default(), &Silent).unwrap();
    let whole = fs::read(case.out()).unwrap();
    let resumable = RunOptions { resumable: true, overwrite: true, ..RunOptions::default() };
    run(&plan, &case.source, None, &case.out(), &resumable, &Stop::after(4)).unwrap_err();
    assert!(case.work().exists());
    // A run that keeps nothing does not throw away what one that does has kept.
    assert!(matches!(
        run(&plan, &case.source, None, &case.out(), &RunOptions::replacing(), &Silent),
        Err(QuantizeError::OtherJob { .. })
    ));
    run(&plan, &case.source, None, &case.out(), &resumable, &Silent).unwrap();
    assert!(fs::read(case.out()).unwrap() == whole);
}

#[test]
fn calibrated_parts_merge_to_the_whole_unless_tensors_wait_for_each_other() {
    let case = Case::new();
    for (name, rate) in METHODS {
        let options = QuantizeOptions::new(name, rate);
        let whole = case.bytes(&options, &mut Fake::of(&case));
        // With 20 parts most have no tensor that needs the calibration.
        for n in [2, 20] {
            let part_of = |i: u32| {
                let part = plan(&case.source, &options).unwrap().part(Part::new(i, n).unwrap(), &case.source).unwrap();
                let out = case.dir.path().join(format!("{i}.gosset"));
                run(&part, &case.source, Some(&mut Fake::of(&case)), &out, &RunOptions::replacing(), &Silent).unwrap();
                out
            };
            let parts: Vec<PathBuf> = (0..n).map(part_of).collect();
            merge(&parts, &case.out(), true, &Silent).unwrap();
            assert!(fs::read(case.out()).unwrap() == whole, "{name} in {n} parts");
        }
    }
    let part = plan(&case.source, &QuantizeOptions::new("unisvq", 2.0)).unwrap();
    let part = part.part(Part::new(0, 2).unwrap(), &case.source).unwrap();
    let mut sequential = Fake::sequential(&case);
    let result = run(&part, &case.source, Some(&mut sequential), &case.out(), &RunOptions::replacing(), &Silent);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("part 0/2") && error.contains("--sequential"), "{error}");
}
