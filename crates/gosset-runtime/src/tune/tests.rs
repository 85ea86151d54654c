//! Laws of tuning, on seeded tiny blocks and on the trained model of this repository.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{Device, Tensor};
use gosset_container::Container;
use gosset_quantize::{
    Activations, CalibrationRecord, Event, InputMoments, ModelSource, Observer, QuantizeError, QuantizeOptions,
    RunOptions, Silent, TensorInfo, TunedBlock, plan, run,
};
use gosset_unisvq::{UniSvqMatrix, UniSvqSpec};

use super::block::TuneBlock;
use super::linear::{GridLinear, TuneLinear};
use super::ops::weighted_error;
use super::parameter::Kind;
use super::{Sequence, TokenWeights, TuneData, TuneOptions, loss, steps, tune_block, typical_energy};
use crate::calibration::{Calibration, CalibrationOptions, LayerInput};
use crate::config::ModelConfig;
use crate::kv_cache::LayerCache;
use crate::models::Layer;
use crate::rope::Ropes;
use crate::source::fixture::{TinyFamily, TinyModel};
use crate::source::open_source;
use crate::tensor::f32_slice;
use crate::tests::{MemorySource, gemma3_like, mistral_like, numbers, qwen3_like};
use crate::weights::SourceWeights;

fn encode(spec: &str, w: &[f32], rows: usize, cols: usize) -> UniSvqMatrix {
    let spec = UniSvqSpec::named(spec, 2.0).unwrap();
    spec.check().unwrap().encode(w, rows, cols, None).unwrap().0
}

fn values(source: &dyn ModelSource, name: &str) -> (Vec<f32>, usize, usize) {
    let index = source.tensors().iter().position(|t| t.name == name).unwrap();
    let (rows, cols) = source.tensors()[index].rows_cols();
    let mut out = vec![0.0; rows * cols];
    source.read_rows(index, 0..rows, &mut out).unwrap();
    (out, rows, cols)
}

/// All linears of layer 1 on the grid but one, and the source with what they decode to.
fn quantized(source: &mut MemorySource, spec: &str) -> HashMap<String, UniSvqMatrix> {
    let mut matrices = HashMap::new();
    for linear in LayerInput::ALL.iter().flat_map(|i| i.linears()).filter(|l| **l != "self_attn.v_proj") {
        let name = format!("model.layers.1.{linear}.weight");
        let (w, rows, cols) = values(source, &name);
        let matrix = encode(spec, &w, rows, cols);
        matrix.decoder().unwrap().decode_rows(0..rows, source.tensor_mut(&name));
        matrices.insert(name, matrix);
    }
    matrices
}

fn config(source: &MemorySource) -> ModelConfig {
    ModelConfig::from_json(source.blob("config.json").unwrap()).unwrap()
}

fn block(source: &MemorySource, matrices: &HashMap<String, UniSvqMatrix>) -> TuneBlock {
    let by_name = matrices.iter().map(|(name, matrix)| (name.as_str(), matrix)).collect();
    TuneBlock::load(&config(source), &SourceWeights::new(source), 1, &by_name).unwrap()
}

fn hidden(config: &ModelConfig, n: usize, seed: u32) -> Tensor {
    let x = numbers(n * config.hidden_size, seed, 0.0, 1.0);
    Tensor::from_vec(x, (n, config.hidden_size), &Device::Cpu).unwrap()
}

fn sequence(x: &Tensor, y: &Tensor, weights: TokenWeights) -> Sequence {
    let (x, y) = (f32_slice(x).unwrap(), f32_slice(y).unwrap());
    let hidden = x.len() / 75;
    Sequence::new(&x, &y, hidden, weights, typical_energy(&y, hidden)).unwrap()
}

fn sources() -> [(MemorySource, &'static str); 5] {
    let tiny = |family| MemorySource::new(&TinyModel::t0(family, 11));
    [
        (tiny(TinyFamily::Llama), "unisvq"),
        (tiny(TinyFamily::Qwen2), "unisvq-d8-full"),
        (qwen3_like(), "unisvq-d2"),
        (mistral_like(), "unisvq"),
        (gemma3_like(), "unisvq-d2"),
    ]
}

/// f32 sums in another order, relative to the norm.
const FORWARD_TOLERANCE: f64 = 1e-4;

fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

#[test]
fn the_forward_pass_is_that_of_the_runtime() {
    for (mut source, spec) in sources() {
        let matrices = quantized(&mut source, spec);
        let config = config(&source);
        let x = hidden(&config, 37, 3);
        let found = block(&source, &matrices).forward(&x, 0).unwrap();
        let layer = Layer::load(&config, &SourceWeights::new(&source), 1).unwrap();
        let rope = Ropes::of(&config).table(0..37);
        let expected = layer.forward(&x, &mut LayerCache::new(layer.shape()), &rope).unwrap();
        let off = distance(&f32_slice(&found).unwrap(), &f32_slice(&expected).unwrap());
        assert!(off < FORWARD_TOLERANCE, "{spec}: {off:e}");
        // The last tokens alone attend to all before them.
        let last = block(&source, &matrices).forward(&x, 21).unwrap();
        let expected = expected.narrow(0, 21, 16).unwrap().contiguous().unwrap();
        let off = distance(&f32_slice(&last).unwrap(), &f32_slice(&expected).unwrap());
        assert!(off < FORWARD_TOLERANCE, "{spec}, the last 16: {off:e}");
    }
}

#[test]
fn a_local_layer_has_its_window_and_its_rotation() {
    let source = gemma3_like();
    let (config, weights) = (config(&source), SourceWeights::new(&source));
    let x = hidden(&config, 37, 3);
    let found = TuneBlock::load(&config, &weights, 0, &HashMap::new()).unwrap().forward(&x, 0).unwrap();
    let layer = Layer::load(&config, &weights, 0).unwrap();
    assert!(layer.is_local() && layer.shape().window == Some(16));
    let rope = Ropes::of(&config).table(0..37);
    let expected = layer.forward(&x, &mut LayerCache::new(layer.shape()), &rope).unwrap();
    let off = distance(&f32_slice(&found).unwrap(), &f32_slice(&expected).unwrap());
    assert!(off < FORWARD_TOLERANCE, "{off:e}");
}

#[test]
fn a_last_group_that_columns_do_not_fill_is_that_of_the_decoder() {
    let (rows, cols) = (6, 13);
    for spec in ["unisvq", "unisvq-norht", "unisvq-d8-random"] {
        let matrix = encode(spec, &numbers(rows * cols, 8, 0.0, 1.0), rows, cols);
        let mut dense = vec![0.0; rows * cols];
        matrix.decoder().unwrap().decode_rows(0..rows, &mut dense);
        let x = Tensor::from_vec(numbers(5 * cols, 9, 0.0, 1.0), (5, cols), &Device::Cpu).unwrap();
        let dense = Tensor::from_vec(dense, (rows, cols), &Device::Cpu).unwrap();
        let expected = x.matmul(&dense.t().unwrap()).unwrap();
        let linear = TuneLinear::Grid(Box::new(GridLinear::new(&matrix).unwrap()));
        let found = linear.forward(&x, None).unwrap();
        let off = distance(&f32_slice(&found).unwrap(), &f32_slice(&expected).unwrap());
        assert!(off < FORWARD_TOLERANCE, "{spec}: {off:e}");
    }
}

#[test]
fn gradients_are_finite_differences() {
    for (mut source, spec) in sources() {
        let matrices = quantized(&mut source, spec);
        let config = config(&source);
        let block = block(&source, &matrices);
        let weights = if spec == "unisvq" { TokenWeights::Equal } else { TokenWeights::Relative };
        let Sequence { x, target } = sequence(&hidden(&config, 75, 3), &hidden(&config, 75, 4), weights);
        // The last tokens of a sequence, in more than one block of queries.
        let factor = 1.0 / target.values.len() as f64;
        let loss = || weighted_error(&block.forward(&x, 5).unwrap(), &target, 5, factor).unwrap();
        let grads = loss().backward().unwrap();
        let mut kinds = Vec::new();
        for (i, parameter) in block.parameters().into_iter().enumerate() {
            let grad = grads.get(parameter.var.as_tensor()).expect("a gradient").flatten_all().unwrap();
            let grad = grad.to_vec1::<f32>().unwrap();
            let norm = |x: &[f32]| x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            assert!(norm(&grad) > 0.0, "{spec}, parameter {i}");
            // Half along the gradient, half at random, so that a wrong length and a wrong direction both show.
            let noise = numbers(grad.len(), i as u32, 0.0, 1.0);
            let (a, b) = (1.0 / norm(&grad), 0.5 / norm(&noise));
            let along: Vec<f32> =
                grad.iter().zip(&noise).map(|(g, e)| (f64::from(*g) * a + f64::from(*e) * b) as f32).collect();
            let expected: f64 = grad.iter().zip(&along).map(|(g, u)| f64::from(*g) * f64::from(*u)).sum();
            let start = parameter.values().unwrap();
            // The third derivative costs h², rounding of f32 1/h.
            let h = 1e-2f32;
            let at = |h: f32| {
                parameter.set(start.iter().zip(&along).map(|(v, u)| v + h * u).collect()).unwrap();
                let y = block.forward(&x, 5).unwrap();
                target.error(&f32_slice(&y).unwrap(), 5) * factor
            };
            let found = (at(h) - at(-h)) / (2.0 * f64::from(h));
            parameter.set(start.clone()).unwrap();
            let off = (found - expected).abs() / expected.abs();
            assert!(off < 0.02, "{spec}, parameter {i}, {:?}: {found} for {expected}", parameter.kind);
            kinds.push(parameter.kind);
        }
        for kind in [Kind::InputScales, Kind::OutputScales, Kind::Map, Kind::Offset, Kind::Norm] {
            assert!(kinds.contains(&kind), "{kind:?}");
        }
    }
}

#[test]
fn each_token_is_in_one_step_of_an_epoch() {
    let of = |n: usize| Sequence::new(&vec![1.0; 2 * n], &vec![1.0; 2 * n], 2, TokenWeights::Equal, 1.0).unwrap();
    let training = [of(50), of(7), of(20), of(51)];
    let found = steps(&training, 10);
    assert!(found.iter().all(|(_, tokens)| (5..=10).contains(&tokens.len())), "{found:?}");
    for (i, sequence) in training.iter().enumerate() {
        let mut end = 0;
        for (_, tokens) in found.iter().filter(|(of, _)| *of == i) {
            assert_eq!(tokens.start, end);
            end = tokens.end;
        }
        assert_eq!(end, sequence.n_tokens(), "sequence {i}");
    }
    assert_eq!(found[..4].iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(steps(&training, usize::MAX).len(), 4);
    assert_eq!(steps(&training, 0).len(), 128, "a token is the least");
}

#[test]
fn g05_gradients_are_the_same_bits_for_any_number_of_threads() {
    for (mut source, spec) in sources() {
        let matrices = quantized(&mut source, spec);
        let (x, y) = (hidden(&config(&source), 150, 3), hidden(&config(&source), 150, 4));
        let block = block(&source, &matrices);
        let gradients = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let loss = (block.forward(&x, 0).unwrap() - &y).unwrap().sqr().unwrap().mean_all().unwrap();
                let grads = loss.backward().unwrap();
                let of = |tensor: &Tensor| grads.get(tensor).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
                block.parameters().into_iter().map(|p| of(p.var.as_tensor())).collect::<Vec<_>>()
            })
        };
        let one = gradients(1);
        for threads in [2, 7] {
            assert!(gradients(threads) == one, "{spec}, {threads} threads");
        }
    }
}

#[test]
fn tuning_lowers_the_loss_and_gives_the_same_bits_for_any_number_of_threads() {
    let (mut source, spec) = sources().into_iter().next().unwrap();
    let config = config(&source);
    let exact = block(&source, &HashMap::new());
    let x = hidden(&config, 96, 5);
    let inputs = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    // Three sequences that do not see each other.
    let targets: Vec<f32> = (0..3)
        .flat_map(|i| {
            let y = exact.forward(&x.narrow(0, i * 32, 32).unwrap(), 0).unwrap();
            y.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        })
        .collect();
    let matrices = quantized(&mut source, spec);
    let data = TuneData { inputs: &inputs, targets: &targets, window: 32 };
    let tune = |options: TuneOptions| {
        let mut tuned = matrices.clone();
        let mut named: Vec<_> = tuned.iter_mut().map(|(n, m)| (n.as_str(), m)).collect();
        named.sort_by_key(|(name, _)| *name);
        let weights = SourceWeights::new(&source);
        let block = tune_block(&config, &weights, 1, &mut named, data, &options, &mut |_| Ok(())).unwrap();
        (block, tuned)
    };
    let (first, tuned) = tune(TuneOptions { epochs: 10, step_tokens: 20, ..TuneOptions::default() });
    let report = first.as_ref().expect("a gain").report;
    assert!(report.loss_after < report.loss_before, "{report:?}");
    let again = tune(TuneOptions { epochs: 10, step_tokens: 20, ..TuneOptions::default() });
    assert!((first.clone(), tuned.clone()) == again, "the same bits");
    for threads in [1, 2, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let on_pool = pool.install(|| tune(TuneOptions { epochs: 10, step_tokens: 20, ..TuneOptions::default() }));
        assert!((first.clone(), tuned.clone()) == on_pool, "{threads} threads");
    }
    assert!(tuned.iter().all(|(name, m)| m.codes == matrices[name].codes), "codes stay");

    // Steps that are far too large are not kept.
    let (none, same) = tune(TuneOptions { scale_rate: 3.0, map_rate: 3.0, ..TuneOptions::default() });
    assert!(none.is_none() && same == matrices);

    // What was stored has the loss that was reported.
    for (name, values) in &first.unwrap().norms {
        source.tensor_mut(name).clone_from(values);
    }
    let (n, typical) = (32 * config.hidden_size, typical_energy(&targets, config.hidden_size));
    let held_out = Sequence::new(&inputs[..n], &targets[..n], config.hidden_size, TokenWeights::Relative, typical);
    let held_out = [held_out.unwrap()];
    let stored = loss(&block(&source, &tuned), &held_out).unwrap();
    assert!((stored / report.loss_after - 1.0).abs() < 1e-6, "{stored} for {report:?}");
}

/// Writes down what a run makes of tensors.
struct Recorded<'a>(Calibration<'a>, BTreeMap<String, Vec<f32>>);

impl Activations for Recorded<'_> {
    fn order(&self, tensors: &[TensorInfo]) -> Vec<usize> {
        self.0.order(tensors)
    }
    fn moments(&mut self, tensor: &str) -> Result<Option<InputMoments>, QuantizeError> {
        self.0.moments(tensor)
    }
    fn replaced(&mut self, tensor: &str, values: &[f32]) -> Result<(), QuantizeError> {
        self.1.insert(tensor.to_owned(), values.to_vec());
        self.0.replaced(tensor, values)
    }
    fn tune(&mut self, block: &mut [(&str, &mut UniSvqMatrix)]) -> Result<Option<TunedBlock>, QuantizeError> {
        self.0.tune(block)
    }
    fn is_sequential(&self) -> bool {
        self.0.is_sequential()
    }
    fn record(&self) -> CalibrationRecord {
        self.0.record()
    }
}

#[test]
fn a_run_that_tunes_writes_what_was_tuned() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny");
    if !path.is_dir() {
        eprintln!("SKIPPED: assets/tiny is not beside the crates");
        return;
    }
    let source = open_source(&path).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("tuned.gosset");
    let calibration = CalibrationOptions { tokens: 1024, window: Some(128), ..CalibrationOptions::default() };
    let mut activations = Recorded(Calibration::new(&*source, calibration).unwrap(), BTreeMap::new());
    let plan = plan(&*source, &QuantizeOptions::new("unisvq+ft", 2.0)).unwrap();
    let report = run(&plan, &*source, Some(&mut activations), &out, &RunOptions::default(), &Silent).unwrap();
    let tuned_blocks = &report.calibration.as_ref().expect("a calibrated run").tuned;
    assert_eq!(tuned_blocks.len(), activations.0.config().n_layers);
    for block in tuned_blocks {
        let gain = block.report.expect("a gain at 2 bits");
        println!("{}: {:e} to {:e} in {}", block.block, gain.loss_before, gain.loss_after, gain.epochs);
        assert!(gain.loss_after < gain.loss_before, "{}", block.block);
    }
    let container = Container::open(&out).unwrap();
    let mut n_tuned = 0;
    for (name, values) in &activations.1 {
        let Ok(tensor) = container.unisvq(name) else { continue };
        let decoder = tensor.decoder().unwrap();
        let mut decoded = vec![0.0; values.len()];
        decoder.decode_rows(0..decoder.rows(), &mut decoded);
        assert!(decoded == *values, "{name}");
        n_tuned += usize::from(!decoder.input_is_shared());
    }
    assert_eq!(n_tuned, 7 * tuned_blocks.len());
    assert!(activations.1.keys().any(|name| name.ends_with("input_layernorm.weight")));
}

/// Stops a run once so many tensors are finished.
struct Stop {
    after: usize,
    finished: AtomicUsize,
}

impl Observer for Stop {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::Finished { .. }) {
            self.finished.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn cancelled(&self) -> bool {
        self.finished.load(Ordering::Relaxed) >= self.after
    }
}

#[test]
fn c12_a_run_that_tunes_goes_on_to_the_same_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny");
    if !path.is_dir() {
        eprintln!("SKIPPED: assets/tiny is not beside the crates");
        return;
    }
    let source = open_source(&path).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(&*source, &QuantizeOptions::new("unisvq+ft", 2.0)).unwrap();
    let quantize = |name: &str, after: usize| {
        let calibration = CalibrationOptions { tokens: 256, window: Some(64), ..CalibrationOptions::default() };
        let mut activations = Calibration::new(&*source, calibration).unwrap();
        activations.set_tune_options(TuneOptions { epochs: 1, ..TuneOptions::default() });
        let stop = Stop { after, finished: AtomicUsize::new(0) };
        run(&plan, &*source, Some(&mut activations), &dir.path().join(name), &RunOptions::default(), &stop)
    };
    quantize("whole.gosset", usize::MAX).unwrap();
    // Seven matrices are a block: the second stop is within the third one, which starts again.
    for after in [7, 9] {
        let error = quantize("stopped.gosset", after).unwrap_err();
        assert!(matches!(error, QuantizeError::Paused { done: 7 | 14, .. }), "after {after}: {error}");
    }
    quantize("stopped.gosset", usize::MAX).unwrap();
    let bytes = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    assert!(bytes("stopped.gosset") == bytes("whole.gosset"));
}
