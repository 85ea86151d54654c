//! All-in rates and file sizes as targets: met from below, reproducible, told where the bits went.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::fs;

use gosset_container::Container;
use gosset_quantize::{
    Action, Allocation, FloatDtype, ModelSource, Override, QuantizeError, QuantizeOptions, QuantizeTarget, Report,
    RunOptions, SafetensorsSource, Silent, TensorWeight, dequantize, plan, run,
};
use gosset_tests::t0::{T0, safetensors};
use tempfile::TempDir;

/// What a continuous codec leaves of a budget at most.
const MAX_LEFT: f64 = 0.005;

/// The same for a model of 50 kB, of whose header a few bytes for each plane are known only at the end.
const MAX_LEFT_OF_TINY: f64 = 0.01;

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

    /// Bare matrices of these shapes with Gaussian-like values.
    fn matrices(shapes: &[(usize, usize)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let tensors: Vec<_> = shapes
            .iter()
            .enumerate()
            .map(|(i, &(rows, cols))| {
                let values = gosset_codec::calibrate::gaussian(rows * cols, i as u64);
                let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                (format!("w{i}"), "F32", vec![rows, cols], bytes)
            })
            .collect();
        fs::write(&path, safetensors(&tensors)).unwrap();
        let source = SafetensorsSource::open(&path).unwrap();
        Case { dir, source }
    }

    fn quantize(&self, options: &QuantizeOptions) -> Result<(Report, Vec<u8>), QuantizeError> {
        let out = self.dir.path().join("out.gosset");
        let report = run(&plan(&self.source, options)?, &self.source, None, &out, &RunOptions::replacing(), &Silent)?;
        Ok((report, fs::read(out).unwrap()))
    }

    fn all_in_bpw(&self) -> f64 {
        let container = Container::open(&self.dir.path().join("out.gosset")).unwrap();
        container.ledger().unwrap().coded_rate().all_in_bps()
    }
}

fn all_in(codec: &str, bpw: f64) -> QuantizeOptions {
    QuantizeOptions::with_target(codec, QuantizeTarget::AllInBpw(bpw))
}

fn bytes(codec: &str, n: u64) -> QuantizeOptions {
    QuantizeOptions::with_target(codec, QuantizeTarget::FileBytes(n))
}

#[test]
fn all_in_targets_are_met_from_below() {
    let case = Case::of(&T0 { ffn: 172, ..T0::llama() });
    for codec in ["e8-rice", "z-rice"] {
        for bpw in [3.5, 4.0, 5.25] {
            for allocation in Allocation::ALL {
                let (report, _) = case.quantize(&QuantizeOptions { allocation, ..all_in(codec, bpw) }).unwrap();
                let found = case.all_in_bpw();
                assert_eq!(found, report.all_in_bps);
                assert!(
                    found <= bpw && found > bpw * (1.0 - MAX_LEFT_OF_TINY),
                    "{codec} {bpw} {allocation:?}: {found}"
                );
                assert_eq!(report.target, QuantizeTarget::AllInBpw(bpw));
            }
        }
    }
}

#[test]
fn file_sizes_are_met_from_below() {
    let t0 = Case::of(&T0::llama());
    let matrices = Case::matrices(&[(200, 300), (64, 64), (512, 512), (3, 1000)]);
    for (case, sizes) in [(&t0, [150_000, 160_001]), (&matrices, [100_000, 177_777])] {
        for size in sizes {
            for allocation in Allocation::ALL {
                let (report, file) = case.quantize(&QuantizeOptions { allocation, ..bytes("e8-rice", size) }).unwrap();
                assert_eq!(report.file_bytes, file.len() as u64);
                let left = size as f64 - file.len() as f64;
                assert!(left >= 0.0 && left < MAX_LEFT * size as f64, "{size}, {allocation:?}: {}", file.len());
            }
        }
    }
}

#[test]
fn targets_out_of_reach_name_what_is_in_reach() {
    let case = Case::matrices(&[(128, 256), (64, 512)]);
    for asked in [0.9, 1.0, 12.0, 0.0, -1.0, f64::NAN, f64::INFINITY] {
        match case.quantize(&all_in("e8-rice", asked)) {
            Err(QuantizeError::TargetRange { floor, ceiling, unit, .. }) => {
                assert!(floor > 1.05 && floor < 1.6 && ceiling > 10.0 && ceiling < 10.5, "{floor} {ceiling}");
                assert_eq!(unit, "bits per quantized weight");
                // What is named can be asked for.
                for end in [floor, ceiling] {
                    case.quantize(&all_in("e8-rice", end)).unwrap();
                    assert!(case.all_in_bpw() <= end);
                }
            }
            other => panic!("{asked}: {other:?}"),
        }
    }
    for asked in [0, 100, 8_000, 1 << 30, 1 << 40] {
        let error = case.quantize(&bytes("d4-rice", asked)).unwrap_err();
        assert!(matches!(error, QuantizeError::TargetRange { unit: "bytes", .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("d4-rice cannot make {asked} bytes")) && text.contains(" to "), "{text}");
    }
}

#[test]
fn equal_slope_gives_small_tensors_more() {
    let case = Case::matrices(&[(256, 512), (64, 128), (128, 256)]);
    let rates = |allocation| {
        let (report, _) = case.quantize(&QuantizeOptions { allocation, ..all_in("e8-rice", 4.0) }).unwrap();
        let asked: Vec<f64> = report.tensors.iter().map(|t| t.target_bps.unwrap()).collect();
        let errors: Vec<f64> = report.tensors.iter().map(|t| t.relative_error.unwrap()).collect();
        (asked, errors)
    };
    let (uniform, _) = rates(Allocation::Uniform);
    // What is left after each tensor moves the rates of the next ones a little.
    assert!(uniform.iter().all(|r| (r - uniform[0]).abs() < 0.05), "{uniform:?}");
    // About one bit for every four times the weights; the curve of a Rice code has bumps.
    let (unequal, errors) = rates(Allocation::EqualSlope);
    assert!((unequal[1] - unequal[0] - 2.0).abs() < 0.3 && (unequal[2] - unequal[0] - 1.0).abs() < 0.3, "{unequal:?}");
    assert!(errors[1] < errors[2] && errors[2] < errors[0]);
}

#[test]
fn weights_move_bits_and_are_reported() {
    let case = Case::matrices(&[(128, 256), (128, 256), (128, 256)]);
    let weights = [("w*", 1.0), ("w1", 16.0)].map(|(pattern, weight)| TensorWeight { pattern: pattern.into(), weight });
    let options = QuantizeOptions { weights: weights.to_vec(), ..all_in("e8-rice", 4.0) };
    let (report, first) = case.quantize(&options).unwrap();
    let asked: Vec<f64> = report.tensors.iter().map(|t| t.target_bps.unwrap()).collect();
    assert!((asked[1] - asked[0] - 2.0).abs() < 0.3 && (asked[2] - asked[0]).abs() < 0.05, "{asked:?}");
    assert_eq!(report.tensors.iter().map(|t| t.weight.unwrap()).collect::<Vec<_>>(), [1.0, 16.0, 1.0]);
    // The recipe of the container makes it again.
    let container = Container::open(&case.dir.path().join("out.gosset")).unwrap();
    let again = QuantizeOptions::from_recipe(&container.manifest().recipe).unwrap();
    assert_eq!(again, options);
    drop(container);
    assert!(case.quantize(&again).unwrap().1 == first);
    for (pattern, weight) in [("v*", 1.0), ("w1", 0.0), ("w1", -1.0), ("w1", f64::NAN), ("w1", f64::INFINITY)] {
        let weights = vec![TensorWeight { pattern: pattern.to_owned(), weight }];
        let error = case.quantize(&QuantizeOptions { weights, ..all_in("e8-rice", 4.0) }).unwrap_err();
        assert!(matches!(error, QuantizeError::Weight { .. }), "{error}");
    }
}

#[test]
fn overrides_and_embeddings_count() {
    let case = Case::of(&T0 { tie: Some(false), head: true, ..T0::llama() });
    let overrides = ["*.down_proj.weight=6", "*.q_proj.weight=keep"].map(|o| Override::parse(o).unwrap()).to_vec();
    let options = QuantizeOptions { overrides, embeddings: Some(5.0), ..all_in("e8-rice", 4.5) };
    let (report, _) = case.quantize(&options).unwrap();
    let found = case.all_in_bpw();
    assert!(found <= 4.5 && found > 4.5 * (1.0 - MAX_LEFT_OF_TINY), "{found}");
    for t in &report.tensors {
        match t.name.as_str() {
            name if name.ends_with("down_proj.weight") => assert_eq!(t.target_bps, Some(6.0)),
            name if name.ends_with("q_proj.weight") => assert_eq!(t.action, "kept"),
            "lm_head.weight" | "model.embed_tokens.weight" => assert_eq!(t.target_bps, Some(5.0)),
            _ => {}
        }
    }
}

#[test]
fn g05_budgets_do_not_depend_on_threads() {
    let case = Case::matrices(&[(256, 512), (64, 128), (700, 300)]);
    let options = QuantizeOptions { allocation: Allocation::EqualSlope, ..bytes("a2-rice", 200_000) };
    let with = |n| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
        pool.install(|| case.quantize(&options).unwrap().1)
    };
    let one = with(1);
    assert!([2, 7].into_iter().all(|n| with(n) == one));
}

#[test]
fn rows_that_are_stored_exactly_are_paid_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let (rows, cols) = (256, 256);
    let tensors: Vec<_> = (0..4u64)
        .map(|i| {
            let mut values = gosset_codec::calibrate::gaussian(rows * cols, i);
            if i == 1 {
                values[..4 * cols].fill(1e-42);
            }
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            (format!("w{i}"), "F32", vec![rows, cols], bytes)
        })
        .collect();
    fs::write(&path, safetensors(&tensors)).unwrap();
    let source = SafetensorsSource::open(&path).unwrap();
    let case = Case { dir, source };
    let (report, file) = case.quantize(&bytes("e8-rice", 120_000)).unwrap();
    assert_eq!(report.exact_rows, 4);
    assert!(file.len() <= 120_000 && file.len() > 119_400, "{}", file.len());
}

#[test]
fn a_dry_run_knows_the_size() {
    let case = Case::of(&T0::llama());
    let options = QuantizeOptions { allocation: Allocation::Uniform, ..bytes("e8-rice", 150_000) };
    let p = plan(&case.source, &options).unwrap();
    assert!(p.estimate().file_bytes <= 150_000 && p.estimate().file_bytes > 149_500);
    let asked: Vec<f64> = p
        .items
        .iter()
        .filter_map(|i| match i.action {
            Action::Quantize { target_bps, .. } => Some(target_bps),
            _ => None,
        })
        .collect();
    assert!(asked.iter().all(|&r| r == asked[0]) && asked.len() == 14, "{asked:?}");
}

/// A rate that the codec takes, near 3.
fn middle_rate(codec: &gosset_codec::CodecInfo) -> f64 {
    codec.rates.map_or(3.0, |rates| rates[rates.len() / 2])
}

#[test]
fn every_codec_takes_bare_matrices_there_and_back() {
    let case = Case::matrices(&[(16, 96), (5, 130)]);
    for codec in gosset_codec::codecs() {
        let (report, _) = case.quantize(&QuantizeOptions::new(codec.name, middle_rate(codec))).unwrap();
        let container = Container::open(&case.dir.path().join("out.gosset")).unwrap();
        container.verify().unwrap();
        assert_eq!(container.ledger().unwrap().causes.total_bits(), container.file_bytes() * 8);
        let minor = if codec.name.ends_with("-rice") { 0 } else { 1 };
        assert_eq!(container.manifest().format.minor, minor, "{}", codec.name);
        let folder = case.dir.path().join(codec.name);
        dequantize(&container, &folder, FloatDtype::F32, None, &Silent).unwrap();
        let back = SafetensorsSource::open(&folder.join("model.safetensors")).unwrap();
        for (index, t) in back.tensors().iter().enumerate() {
            let (rows, cols) = t.rows_cols();
            let (mut x, mut y) = (vec![0f32; rows * cols], vec![0f32; rows * cols]);
            case.source.read_rows(index, 0..rows, &mut x).unwrap();
            back.read_rows(index, 0..rows, &mut y).unwrap();
            let signal: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
            let noise: f64 = x.iter().zip(&y).map(|(&a, &b)| f64::from(a - b).powi(2)).sum();
            let line = report.tensors.iter().find(|line| line.name == t.name).unwrap();
            // What the report says is what anyone measures from the files; and no codec is worse than 1 bit from the bound.
            assert!((line.relative_error.unwrap() - noise / signal).abs() < 1e-6, "{}", codec.name);
            assert!(line.snr_db.unwrap() > 6.02 * (middle_rate(codec) - 1.0), "{}: {:?}", codec.name, line.snr_db);
        }
    }
}

#[test]
fn a02_fixed_rates_are_refused_by_name() {
    let case = Case::of(&T0::llama());
    let error = case.quantize(&QuantizeOptions::new("shift-12", 3.5)).unwrap_err().to_string();
    assert!(error.contains("shift-12") && error.contains("3.5") && error.contains("2, 3, 4"), "{error}");
    let overrides = vec![Override::parse("*.1.mlp.down_proj.weight=3.5").unwrap()];
    match case.quantize(&QuantizeOptions { overrides, ..QuantizeOptions::new("shift-12", 3.0) }) {
        Err(QuantizeError::OverrideImpossible { tensor, reason, .. }) => {
            assert_eq!(tensor, "model.layers.1.mlp.down_proj.weight");
            assert!(reason.contains("2, 3, 4"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let embeddings = QuantizeOptions { embeddings: Some(2.5), ..QuantizeOptions::new("shift-12", 3.0) };
    assert!(matches!(case.quantize(&embeddings), Err(QuantizeError::Options(_))));
}

#[test]
fn fixed_rates_are_mixed_over_tensors() {
    let case = Case::matrices(&[(64, 128), (32, 128), (64, 128), (16, 128), (32, 64), (64, 96)]);
    let set = gosset_codec::codecs().iter().find(|c| c.name == "shift-12").unwrap().rates.unwrap();
    for bpw in [3.6, 4.0, 5.5] {
        for allocation in Allocation::ALL {
            let (report, _) = case.quantize(&QuantizeOptions { allocation, ..all_in("shift-12", bpw) }).unwrap();
            let found = case.all_in_bpw();
            // The smallest step left is one bit for the smallest tensor.
            let step = 16.0 * 128.0 / report.n_quantized as f64;
            assert!(found <= bpw && found > bpw - 2.0 * step, "{bpw}, {allocation:?}: {found}");
            assert!(report.tensors.iter().all(|t| set.contains(&t.target_bps.unwrap())));
            assert!(report.warnings.is_empty(), "{:?}", report.warnings);
        }
    }
    for asked in [1.5, 12.0] {
        assert!(matches!(case.quantize(&all_in("shift-12", asked)), Err(QuantizeError::TargetRange { .. })));
    }
}

#[test]
fn entropy_coded_trellises_meet_targets_too() {
    let case = Case::matrices(&[(128, 512), (64, 256), (256, 256)]);
    for bpw in [1.5, 2.3] {
        let options = QuantizeOptions { allocation: Allocation::EqualSlope, ..all_in("trellis-8", bpw) };
        case.quantize(&options).unwrap();
        let found = case.all_in_bpw();
        assert!(found <= bpw && found > bpw * (1.0 - MAX_LEFT_OF_TINY), "{bpw}: {found}");
    }
}

#[test]
fn zeros_and_constants_survive_every_entropy_code() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("z.safetensors");
    let n = 70_000;
    let zeros = ("zeros".to_owned(), "F32", vec![1, n], vec![0; 4 * n]);
    let ones = ("ones".to_owned(), "F32", vec![2, n / 2], 1f32.to_le_bytes().repeat(n));
    fs::write(&path, safetensors(&[zeros, ones])).unwrap();
    let source = SafetensorsSource::open(&path).unwrap();
    let case = Case { dir, source };
    // The bit-shift trellis has a fixed rate: nothing of it becomes small.
    for codec in gosset_codec::codecs().iter().filter(|c| c.rates.is_none()) {
        case.quantize(&QuantizeOptions::new(codec.name, codec.min_bps)).unwrap();
        let container = Container::open(&case.dir.path().join("out.gosset")).unwrap();
        container.verify().unwrap();
        let coded = container.coded("zeros").unwrap();
        let decoder = coded.decoder().unwrap();
        let mut values = vec![1f32; n];
        decoder.decode_rows(0..1, &mut values, &mut gosset_codec::DecodeScratch::new()).unwrap();
        assert!(values.iter().all(|&v| v == 0.0), "{}", codec.name);
    }
}
