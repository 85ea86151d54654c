//! From checkpoint to container and back: policy, refusals, figures, determinism.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use gosset_codec::DecodeScratch;
use gosset_container::{Container, ContainerKind, Storage};
use gosset_quantize::{
    Action, Event, FloatDtype, ModelSource, Observer, Override, Plan, QuantizeError, QuantizeOptions, QuantizeTarget,
    Report, RunOptions, SafetensorsSource, Silent, SourceError, TieDecision, check_dequantize_targets, dequantize,
    plan, run,
};
use gosset_tests::t0::{Dtype, T0, safetensors};
use tempfile::TempDir;

struct Case {
    dir: TempDir,
    source: SafetensorsSource,
}

impl Case {
    fn of(t0: &T0) -> Self {
        let dir = tempfile::tempdir().unwrap();
        t0.write(&dir.path().join("in")).unwrap();
        let source = SafetensorsSource::open(&dir.path().join("in")).unwrap();
        Case { dir, source }
    }

    /// A bare file of one F32 matrix named `w`.
    fn matrix(rows: usize, cols: usize, values: &[f32]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.safetensors");
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        fs::write(&path, safetensors(&[("w".to_owned(), "F32", vec![rows, cols], bytes)])).unwrap();
        let source = SafetensorsSource::open(&path).unwrap();
        Case { dir, source }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out.gosset")
    }

    fn quantize(&self, options: &QuantizeOptions) -> Result<Report, QuantizeError> {
        run(&plan(&self.source, options)?, &self.source, None, &self.out(), &RunOptions::replacing(), &Silent)
    }

    fn plan(&self, options: &QuantizeOptions) -> Result<Plan, QuantizeError> {
        plan(&self.source, options)
    }

    /// Files in the case's folder besides the input.
    fn leftovers(&self) -> usize {
        fs::read_dir(self.dir.path()).unwrap().count() - 1
    }
}

fn e8(rate: f64) -> QuantizeOptions {
    QuantizeOptions::new("e8-rice", rate)
}

fn with(overrides: &[&str]) -> QuantizeOptions {
    let overrides = overrides.iter().map(|o| Override::parse(o).unwrap()).collect();
    QuantizeOptions { overrides, ..e8(4.0) }
}

fn decoded(path: &Path, name: &str) -> Vec<f32> {
    let container = Container::open(path).unwrap();
    let coded = container.coded(name).unwrap();
    let decoder = coded.decoder().unwrap();
    let mut out = vec![0.0; decoder.rows() * decoder.cols()];
    decoder.decode_rows(0..decoder.rows(), &mut out, &mut DecodeScratch::new()).unwrap();
    out
}

#[test]
fn linears_are_coded_and_the_rest_is_bit_exact() {
    for t0 in [T0::llama(), T0 { dtype: Dtype::F32, ..T0::qwen2() }] {
        let case = Case::of(&t0);
        let report = case.quantize(&e8(4.0)).unwrap();
        let c = Container::open(&case.out()).unwrap();
        c.verify().unwrap();
        assert_eq!(c.manifest().kind, ContainerKind::Model);
        for (i, t) in t0.tensors().iter().enumerate() {
            let line = report.tensors.iter().find(|l| l.name == t.name).unwrap();
            if t.name.contains("_proj.weight") {
                assert_eq!(line.action, "quantized");
                assert!((line.snr_db.unwrap() - 22.7).abs() < 1.0, "{line:?}");
                let error: f64 =
                    decoded(&case.out(), &t.name).iter().zip(&t.values).map(|(a, b)| f64::from(a - b).powi(2)).sum();
                let signal: f64 = t.values.iter().map(|b| f64::from(*b).powi(2)).sum();
                assert!((10.0 * (signal / error).log10() - line.snr_db.unwrap()).abs() < 1e-6);
            } else {
                assert_eq!(line.action, "kept");
                let raw = c.raw(&t.name).unwrap();
                assert_eq!(raw.bytes, &*case.source.raw_bytes(i).unwrap());
                assert_eq!((raw.dtype, raw.shape), (t0.dtype.name(), t.shape.as_slice()));
            }
        }
        assert_eq!(report.tie, Some(TieDecision::Tied));
    }
}

#[test]
fn a02_the_report_gives_asked_and_true_rate() {
    let case = Case::of(&T0 { ffn: 172, ..T0::llama() });
    let report = case.quantize(&e8(4.0)).unwrap();
    let bytes = fs::metadata(case.out()).unwrap().len();
    assert_eq!(report.target, QuantizeTarget::PayloadBps(4.0));
    assert_eq!(report.file_bytes, bytes);
    assert_eq!(report.file_bps, bytes as f64 * 8.0 / report.n_params as f64);
    let n: usize = T0 { ffn: 172, ..T0::llama() }.tensors().iter().map(|t| t.values.len()).sum();
    assert_eq!(report.n_params, n as u64);
    assert_eq!(report.causes.total_bits(), bytes * 8);
    let lines: u64 = report.tensors.iter().map(|t| t.bytes).sum();
    assert!(lines <= bytes && lines > bytes / 2);
    // Width 172 has a tile plan of its own, so nothing falls back.
    assert!(report.fallbacks.is_empty());
    let down = report.tensors.iter().find(|t| t.name.ends_with("0.mlp.down_proj.weight")).unwrap();
    assert_eq!(down.action, "quantized");
}

#[test]
fn a02_fallbacks_are_grouped_and_refused_in_strict_mode() {
    let t0 = T0::llama();
    let case = Case::of(&t0);
    // A router too small to code, in both layers.
    let mut tensors: Vec<_> =
        t0.tensors().into_iter().map(|t| (t.name, t0.dtype.name(), t.shape, t0.dtype.encode(&t.values))).collect();
    for layer in 0..2 {
        tensors.push((format!("model.layers.{layer}.mlp.gate.weight"), "BF16", vec![4, 64], vec![0; 512]));
    }
    fs::write(case.dir.path().join("in/model.safetensors"), safetensors(&tensors)).unwrap();
    let source = SafetensorsSource::open(&case.dir.path().join("in")).unwrap();
    let case = Case { dir: case.dir, source };
    let strict = QuantizeOptions { strict: true, ..e8(4.0) };
    match case.quantize(&strict) {
        Err(QuantizeError::Strict { fallbacks }) => assert_eq!(fallbacks.len(), 2),
        other => panic!("{other:?}"),
    }
    assert_eq!(case.leftovers(), 0);
    let report = case.quantize(&e8(4.0)).unwrap();
    assert_eq!(report.fallbacks.len(), 1);
    assert_eq!((report.fallbacks[0].n_tensors, report.fallbacks[0].n_weights), (2, 512));
}

#[test]
fn a02_impossible_overrides_are_refused_by_name() {
    let case = Case::of(&T0::llama());
    match case.plan(&with(&["model.norm.weight=3"])) {
        Err(QuantizeError::OverrideImpossible { tensor, reason, .. }) => {
            assert_eq!(tensor, "model.norm.weight");
            assert!(reason.contains("two dimensions"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    match case.plan(&with(&["*.down_proj.weight=0.5"])) {
        Err(e @ QuantizeError::OverrideImpossible { .. }) => {
            assert!(
                e.to_string().contains("model.layers.0.mlp.down_proj.weight") && e.to_string().contains("1.05"),
                "{e}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(case.plan(&with(&["nothing.*=3"])), Err(QuantizeError::OverrideUnmatched { .. })));
    assert!(matches!(case.plan(&e8(0.5)), Err(QuantizeError::Options(_))));
    assert!(matches!(case.plan(&QuantizeOptions::new("e9-rice", 3.0)), Err(QuantizeError::UnknownMethod { .. })));
    let odd_tile = QuantizeOptions { tile: 96, ..e8(3.0) };
    assert!(matches!(case.plan(&odd_tile), Err(QuantizeError::Options(_))));
}

#[test]
fn overrides_apply_in_order_and_embeddings_have_their_own_rate() {
    let case = Case::of(&T0 { tie: Some(false), head: true, ..T0::llama() });
    let mut options = with(&["*.down_proj.weight=2", "*.layers.1.*down_proj.weight=keep", "*.q_proj.weight=5.5"]);
    options.embeddings = Some(6.0);
    let p = case.plan(&options).unwrap();
    let action = |name: &str| p.items.iter().find(|i| i.tensor.name == name).unwrap().action.clone();
    let rate = |name: &str| match action(name) {
        Action::Quantize { target_bps, .. } => Some(target_bps),
        _ => None,
    };
    assert_eq!(rate("model.layers.0.mlp.down_proj.weight"), Some(2.0));
    assert_eq!(rate("model.layers.1.mlp.down_proj.weight"), None);
    assert_eq!(rate("model.layers.1.self_attn.q_proj.weight"), Some(5.5));
    assert_eq!(rate("model.layers.1.self_attn.k_proj.weight"), Some(4.0));
    assert_eq!(rate("model.embed_tokens.weight"), Some(6.0));
    assert_eq!(rate("lm_head.weight"), Some(6.0));
    assert_eq!(rate("model.norm.weight"), None);
}

#[test]
fn a_plan_estimates_the_file_to_one_percent() {
    for t0 in [T0::llama(), T0 { hidden: 256, layers: 4, ..T0::llama() }] {
        let case = Case::of(&t0);
        for rate in [2.0, 4.0] {
            let estimate = case.plan(&e8(rate)).unwrap().estimate();
            let report = case.quantize(&e8(rate)).unwrap();
            let ratio = estimate.file_bytes as f64 / report.file_bytes as f64;
            assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
            // Of small tensors the payload is not met exactly.
            let ratio = estimate.all_in_bps / report.all_in_bps;
            assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
            assert_eq!(estimate.n_quantized, report.n_quantized);
            assert_eq!(estimate.n_params, report.n_params);
        }
    }
}

#[test]
fn b03_degenerate_rows_come_back() {
    let cols = 128;
    let sign = |c: usize| if c.is_multiple_of(2) { 1.0f32 } else { -1.0 };
    let rows: Vec<Vec<f32>> = vec![
        vec![0.0; cols],
        vec![9.0; cols],
        (0..cols).map(|c| 1e-6 * sign(c)).collect(),
        vec![1e-38; cols],
        vec![1e-42; cols],
        (0..cols).map(|c| if c == 77 { 1.0 } else { 0.0 }).collect(),
        vec![-0.0; cols],
    ];
    let case = Case::matrix(rows.len(), cols, &rows.concat());
    let report = case.quantize(&e8(4.0)).unwrap();
    let out = decoded(&case.out(), "w");
    assert!(out.iter().all(|v| v.is_finite()));
    for r in [0, 6] {
        assert!(out[r * cols..][..cols].iter().all(|&v| v == 0.0));
    }
    for r in [1, 2, 5] {
        let energy = |f: &dyn Fn(usize) -> f32| (0..cols).map(|c| f64::from(f(c)).powi(2)).sum::<f64>();
        let signal = energy(&|c| rows[r][c]);
        let noise = energy(&|c| out[r * cols + c] - rows[r][c]);
        // A rotated constant row is one coordinate of many sigmas, which the lattice rounds like any other.
        assert!(noise < signal / 40.0, "row {r}: {noise} of {signal}");
    }
    for r in [3, 4] {
        assert_eq!(out[r * cols..][..cols], rows[r][..], "row {r}");
    }
    assert_eq!(report.exact_rows, report.tensors[0].exact_rows);
    assert!(report.exact_rows >= 1);
    assert!(report.warnings.iter().any(|w| w.contains("stored exactly")));
}

#[test]
fn b05_non_finite_weights_stop_the_scan_with_their_place() {
    let t0 = T0 { dtype: Dtype::F32, ..T0::llama() };
    let case = Case::of(&t0);
    let mut tensors = t0.tensors();
    let down = tensors.iter_mut().find(|t| t.name == "model.layers.1.mlp.down_proj.weight").unwrap();
    down.values[5 * 176 + 17] = f32::NAN;
    down.values[40 * 176 + 2] = f32::INFINITY;
    fs::write(case.dir.path().join("in/model.safetensors"), t0.safetensors(&tensors)).unwrap();
    match case.quantize(&e8(4.0)) {
        Err(QuantizeError::NonFinite { tensor, row, column, n_nan, n_inf, n_tensors, value }) => {
            assert_eq!(tensor, "model.layers.1.mlp.down_proj.weight");
            assert_eq!((row, column, n_nan, n_inf, n_tensors), (5, 17, 1, 1, 1));
            assert!(value.is_nan());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(case.leftovers(), 0);
}

#[test]
fn b05_doubles_beyond_single_precision_are_not_called_infinite() {
    // A matrix with `changes`, and a bias that is kept.
    let open = |changes: &[(usize, f64)], bias: f64| {
        let dir = tempfile::tempdir().unwrap();
        let mut values: Vec<f64> = (0..64 * 640).map(|i| f64::from((i * 37 % 101) as u16) - 50.0).collect();
        changes.iter().for_each(|&(i, v)| values[i] = v);
        let bytes = |values: &[f64]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let path = dir.path().join("w.safetensors");
        let bias = ("bias".to_owned(), "F64", vec![2], bytes(&[1.0, bias]));
        fs::write(&path, safetensors(&[("w".to_owned(), "F64", vec![64, 640], bytes(&values)), bias])).unwrap();
        Case { source: SafetensorsSource::open(&path).unwrap(), dir }
    };
    let beyond = open(&[(3 * 640 + 7, -1e39), (4 * 640, 1e300)], 1.0);
    match beyond.quantize(&e8(4.0)).unwrap_err() {
        e @ QuantizeError::BeyondF32 { row: 3, column: 7, count: 2, n_tensors: 1, .. } => {
            assert!(e.to_string().contains("-1e39") && e.to_string().contains("does not fit f32"), "{e}");
        }
        other => panic!("{other}"),
    }
    // True infinities are still told as such, and counted apart.
    let both = open(&[(1, 1e39), (640, f64::NEG_INFINITY), (641, f64::NAN)], 1.0);
    match both.quantize(&e8(4.0)).unwrap_err() {
        QuantizeError::NonFinite { row: 1, column: 0, n_nan: 1, n_inf: 1, .. } => {}
        other => panic!("{other}"),
    }
    let report = open(&[], 1e39).quantize(&e8(4.0)).unwrap();
    let told = |w: &String| w.contains("\"bias\"") && w.contains("1 value(s) that do not fit f32");
    assert!(report.warnings.iter().any(told), "{:?}", report.warnings);
}

#[test]
fn a02_a_missed_rate_is_told() {
    // Values without libm; sums of uniform ones are close enough to normal.
    let mut state = 5u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    let usual: Vec<f32> = (0..256 * 256).map(|_| (0..8).map(|_| uniform()).sum()).collect();
    let report = Case::matrix(256, 256, &usual).quantize(&e8(4.0)).unwrap();
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    let report = Case::matrix(256, 256, &[0.0; 256 * 256]).quantize(&e8(4.0)).unwrap();
    let reached = format!("{:.3}", report.tensors[0].payload_bps.unwrap());
    let told = report.warnings.iter().find(|w| w.contains("\"w\"") && w.contains("asked for 4 "));
    assert!(told.is_some_and(|w| w.contains(&reached)), "{reached}: {:?}", report.warnings);
    // Small tensors miss by nature.
    let report = Case::matrix(128, 256, &[0.0; 128 * 256]).quantize(&e8(4.0)).unwrap();
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
}

#[test]
fn b05_absurd_weights_are_told_and_survive() {
    let t0 = T0 { dtype: Dtype::F32, ..T0::llama() };
    let case = Case::of(&t0);
    let mut tensors = t0.tensors();
    let up = tensors.iter_mut().find(|t| t.name == "model.layers.0.mlp.up_proj.weight").unwrap();
    for i in 0..18 {
        up.values[(i * 9 + 3) * 64 + i] = 1e3 + 49e3 * i as f32 / 17.0;
    }
    let clean = case.quantize(&e8(4.0)).unwrap();
    assert!(clean.warnings.is_empty(), "{:?}", clean.warnings);
    fs::write(case.dir.path().join("in/model.safetensors"), t0.safetensors(&tensors)).unwrap();
    let report = case.quantize(&e8(4.0)).unwrap();
    let warning = report.warnings.iter().find(|w| w.contains("outlier")).unwrap();
    for part in ["model.layers.0.mlp.up_proj.weight", "18 outlier", "(50000)", "row 156, column 17"] {
        assert!(warning.contains(part), "{part} in {warning}");
    }
    assert!(decoded(&case.out(), "model.layers.0.mlp.up_proj.weight").iter().all(|v| v.is_finite()));
}

#[test]
fn c01_the_shared_table_is_stored_once_and_the_report_says_so() {
    let variant = |tie, head, equal| T0 { tie, head, head_equals_embeddings: equal, ..T0::llama() };
    for (t0, decision, stored) in [
        (variant(Some(true), false, false), TieDecision::Tied, false),
        (variant(Some(true), true, true), TieDecision::TiedSameHead, false),
        (variant(Some(true), true, false), TieDecision::TiedDifferingHead, false),
        (variant(Some(false), true, false), TieDecision::Separate, true),
    ] {
        let case = Case::of(&t0);
        let report = case.quantize(&e8(3.0)).unwrap();
        assert_eq!(report.tie, Some(decision));
        assert_eq!(report.warnings.len(), usize::from(decision == TieDecision::TiedDifferingHead));
        let c = Container::open(&case.out()).unwrap();
        assert_eq!(c.entry("lm_head.weight").is_some(), stored);
        let Storage::Raw { reason, .. } = &c.entry("model.embed_tokens.weight").unwrap().storage else {
            panic!("embeddings are kept by default")
        };
        assert_eq!(reason.contains("shared"), !stored);
    }
    let case = Case::of(&variant(Some(false), false, false));
    assert!(matches!(case.quantize(&e8(3.0)), Err(QuantizeError::TieUndecided)));
    // With the choice made, the container carries it: no option is needed to run it.
    case.quantize(&QuantizeOptions { tie: Some(true), ..e8(3.0) }).unwrap();
    let c = Container::open(&case.out()).unwrap();
    let config: serde_json::Value = serde_json::from_slice(c.blob("config.json").unwrap().unwrap()).unwrap();
    assert_eq!(config["tie_word_embeddings"], true);
    assert_eq!(config["hidden_size"], 64);
}

#[test]
fn g05_the_bytes_depend_on_input_and_options_only() {
    let t0 = T0 { shards: 2, ..T0::llama() };
    let bytes_with = |threads: usize| {
        let case = Case::of(&t0);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let report = pool.install(|| case.quantize(&e8(3.25))).unwrap();
        (fs::read(case.out()).unwrap(), serde_json::to_string(&report).unwrap())
    };
    let first = bytes_with(1);
    for threads in [1, 2, 2, 7, 7] {
        assert_eq!(bytes_with(threads), first, "{threads} threads");
    }
}

/// The same everywhere: written down once, compared on every machine. It changes with the version of the program, with the format and
/// with the calibration of rates.
#[test]
fn g05_the_bytes_are_those_of_every_other_machine() {
    let case = Case::of(&T0::llama());
    case.quantize(&e8(3.25)).unwrap();
    let digest = gosset_container::Digest::of(&fs::read(case.out()).unwrap());
    assert_eq!(digest.to_string(), "0edf2f13422af7ce");
}

#[test]
fn g05_the_stored_recipe_gives_the_same_bytes() {
    let case = Case::of(&T0::qwen2());
    let mut options = with(&["*.v_proj.weight=5", "*.k_proj.weight=keep"]);
    options.seed = 77;
    options.tile = 64;
    options.embeddings = Some(5.0);
    case.quantize(&options).unwrap();
    let first = fs::read(case.out()).unwrap();
    let c = Container::open(&case.out()).unwrap();
    let recipe = &c.manifest().recipe;
    assert_eq!(recipe["options"]["seed"], 77);
    assert_eq!(recipe["options"]["strict"], false);
    assert!(recipe["program"].as_str().unwrap().starts_with("gosset "));
    let again = QuantizeOptions::from_recipe(recipe).unwrap();
    assert_eq!(again, options);
    case.quantize(&again).unwrap();
    assert_eq!(fs::read(case.out()).unwrap(), first);
    let text = String::from_utf8_lossy(&first[..c.header_bytes() as usize]).into_owned();
    assert!(!text.contains(case.dir.path().to_str().unwrap()));
    // Another seed is another file.
    case.quantize(&QuantizeOptions { seed: 78, ..again }).unwrap();
    assert_ne!(fs::read(case.out()).unwrap(), first);
}

#[test]
fn i05_the_container_carries_its_side_files() {
    let case = Case::of(&T0::llama());
    fs::write(case.dir.path().join("in/chat_template.jinja"), "{{ messages }}").unwrap();
    let source = SafetensorsSource::open(&case.dir.path().join("in")).unwrap();
    let case = Case { dir: case.dir, source };
    case.quantize(&e8(3.0)).unwrap();
    let c = Container::open(&case.out()).unwrap();
    for name in ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"] {
        assert_eq!(c.blob(name).unwrap(), case.source.blob(name), "{name}");
        assert!(c.blob(name).unwrap().is_some());
    }
    assert_eq!(c.blob("tokenizer_config.json").unwrap(), None);
}

#[test]
fn c08_a_missing_tokenizer_is_a_warning() {
    let case = Case::of(&T0::llama());
    fs::remove_file(case.dir.path().join("in/tokenizer.json")).unwrap();
    let source = SafetensorsSource::open(&case.dir.path().join("in")).unwrap();
    let case = Case { dir: case.dir, source };
    let report = case.quantize(&e8(3.0)).unwrap();
    assert!(report.warnings.iter().any(|w| w.contains("tokenizer.json")), "{:?}", report.warnings);
    assert_eq!(Container::open(&case.out()).unwrap().blob("tokenizer.json").unwrap(), None);
}

#[test]
fn plain_tensors_are_quantized_by_shape() {
    let values: Vec<f32> = T0 { dtype: Dtype::F32, ..T0::llama() }.tensors()[0].values.clone();
    for (rows, cols) in [(150, 210), (33, 300), (7, 65), (1, 1)] {
        let case = Case::matrix(rows, cols, &values.repeat(2)[..rows * cols]);
        let report = case.quantize(&e8(3.0)).unwrap();
        assert!(report.policy.starts_with("tensors:"));
        assert_eq!((report.tie, report.n_quantized), (None, (rows * cols) as u64));
        assert_eq!(decoded(&case.out(), "w").len(), rows * cols);
        assert_eq!(Container::open(&case.out()).unwrap().manifest().kind, ContainerKind::Tensors);
    }
}

#[test]
fn the_output_never_hits_the_input() {
    let case = Case::of(&T0::llama());
    let p = case.plan(&e8(3.0)).unwrap();
    let input = case.dir.path().join("in");
    let before = fs::read(input.join("model.safetensors")).unwrap();
    for out in [input.join("model.safetensors"), input.join("new.gosset"), input.join("../in/x")] {
        let error = run(&p, &case.source, None, &out, &RunOptions::replacing(), &Silent).unwrap_err();
        assert!(matches!(error, QuantizeError::OutputIsInput { .. }), "{error}");
    }
    assert_eq!(fs::read(input.join("model.safetensors")).unwrap(), before);
    let bare = Case::matrix(8, 64, &[0.5; 512]);
    let p = bare.plan(&e8(3.0)).unwrap();
    let same = bare.dir.path().join("w.safetensors");
    assert!(matches!(
        run(&p, &bare.source, None, &same, &RunOptions::replacing(), &Silent),
        Err(QuantizeError::OutputIsInput { .. })
    ));
    // Beside a bare file is fine.
    run(&p, &bare.source, None, &bare.out(), &RunOptions::default(), &Silent).unwrap();
}

struct StopAfter {
    left: AtomicUsize,
}

impl Observer for StopAfter {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::Finished { .. }) {
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn cancelled(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

#[test]
fn a_cancelled_run_leaves_nothing() {
    let case = Case::of(&T0::llama());
    let p = case.plan(&e8(3.0)).unwrap();
    for n in [0, 1, 7, 20] {
        let stop = StopAfter { left: AtomicUsize::new(n) };
        let error = run(&p, &case.source, None, &case.out(), &RunOptions::default(), &stop).unwrap_err();
        assert!(matches!(error, QuantizeError::Cancelled { done, total: 20 } if done == n), "{error}");
        assert_eq!(case.leftovers(), 0);
    }
}

#[test]
fn an_expanded_folder_is_a_checkpoint_again() {
    for dtype in FloatDtype::ALL {
        let t0 = T0 { shards: 2, ..T0::llama() };
        let case = Case::of(&t0);
        case.quantize(&e8(4.0)).unwrap();
        let container = Container::open(&case.out()).unwrap();
        let folder = case.dir.path().join("back");
        let summary = dequantize(&container, &folder, dtype, None, &Silent).unwrap();
        assert_eq!(summary.weight_bytes, fs::metadata(folder.join("model.safetensors")).unwrap().len());
        let back = SafetensorsSource::open(&folder).unwrap();
        assert_eq!(back.tensors().len(), t0.tensors().len());
        for (i, t) in back.tensors().iter().enumerate() {
            let original = case.source.tensors().iter().position(|o| o.name == t.name).unwrap();
            assert_eq!(t.shape, case.source.tensors()[original].shape);
            if t.name.contains("_proj.weight") {
                assert_eq!(t.dtype, dtype.name());
                let mut values = vec![0.0; t.n_weights() as usize];
                back.read_rows(i, 0..t.shape[0], &mut values).unwrap();
                for (a, b) in values.iter().zip(decoded(&case.out(), &t.name)) {
                    assert!((a - b).abs() <= if dtype == FloatDtype::F32 { 0.0 } else { b.abs() / 128.0 + 1e-7 });
                }
            } else {
                assert_eq!(back.raw_bytes(i).unwrap(), case.source.raw_bytes(original).unwrap());
            }
        }
        assert_eq!(back.blobs(), case.source.blobs());
        let again = dequantize(&container, &folder, dtype, None, &Silent);
        assert!(matches!(again, Err(QuantizeError::OutputExists { .. })));
    }
}

#[test]
fn expanding_refuses_values_that_the_dtype_cannot_hold() {
    let mut values: Vec<f32> = (0..64 * 128).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
    values[..128].iter_mut().for_each(|v| *v *= 1e4);
    let case = Case::matrix(64, 128, &values);
    case.quantize(&e8(4.0)).unwrap();
    let container = Container::open(&case.out()).unwrap();
    let expected = decoded(&case.out(), "w").iter().filter(|v| v.abs() >= 65520.0).count() as u64;
    assert!(expected > 0);
    let folder = case.dir.path().join("back");
    match dequantize(&container, &folder, FloatDtype::F16, None, &Silent).unwrap_err() {
        e @ QuantizeError::DtypeOverflow { count, .. } => {
            assert_eq!(count, expected);
            assert!(e.to_string().contains("\"w\"") && e.to_string().contains("f32 or bf16"), "{e}");
        }
        other => panic!("{other}"),
    }
    assert!(!folder.exists());
    dequantize(&container, &folder, FloatDtype::Bf16, None, &Silent).unwrap();
}

#[test]
fn expanding_never_replaces_its_own_container() {
    let case = Case::of(&T0::llama());
    case.quantize(&e8(4.0)).unwrap();
    let folder = case.dir.path().join("used");
    fs::create_dir(&folder).unwrap();
    let check = |path: &Path| check_dequantize_targets(&Container::open(path).unwrap(), &folder);
    fs::write(folder.join("config.json"), "{}").unwrap();
    check(&case.out()).unwrap();
    for name in ["model.safetensors", "tokenizer.json"] {
        let own = folder.join(name);
        fs::copy(case.out(), &own).unwrap();
        for path in [own.clone(), folder.join("../used").join(name)] {
            let error = check(&path).unwrap_err();
            assert!(matches!(error, QuantizeError::OutputIsInput { .. }), "{error}");
        }
        // Another container of that name may be replaced.
        check(&case.out()).unwrap();
        fs::remove_file(own).unwrap();
    }
    fs::create_dir(folder.join("model.safetensors")).unwrap();
    let error = check(&case.out()).unwrap_err();
    assert!(error.to_string().ends_with("not a regular file"), "{error}");
}

#[cfg(unix)]
#[test]
fn pipes_are_neither_read_nor_replaced() {
    let fifo = |path: &Path| assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    let refused = |path: &Path| match SafetensorsSource::open(path).map(|s| s.info().clone()).unwrap_err() {
        e @ SourceError::Io { .. } => assert!(e.to_string().ends_with("not a regular file"), "{e}"),
        other => panic!("{other}"),
    };
    let case = Case::of(&T0::llama());
    let pipe = case.dir.path().join("pipe.safetensors");
    fifo(&pipe);
    refused(&pipe);
    let p = case.plan(&e8(3.0)).unwrap();
    let error = run(&p, &case.source, None, &pipe, &RunOptions::replacing(), &Silent).unwrap_err();
    assert!(error.to_string().ends_with("not a regular file"), "{error}");
    for name in ["config.json", "model.safetensors"] {
        let file = case.dir.path().join("in").join(name);
        fs::remove_file(&file).unwrap();
        fifo(&file);
        refused(&case.dir.path().join("in"));
        fs::remove_file(&file).unwrap();
        T0::llama().write(&case.dir.path().join("in")).unwrap();
    }
    let index = case.dir.path().join("in/model.safetensors.index.json");
    fs::remove_file(case.dir.path().join("in/model.safetensors")).unwrap();
    fifo(&index);
    refused(&case.dir.path().join("in"));
}
