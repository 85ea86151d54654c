//! Laws of calibration, on seeded tiny models and on the embedded one.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gosset_quantize::{Activations, ModelSource, QuantizeError, TensorInfo, TokenWeights};

use super::{MemorySource, gemma3_like, mistral_like, numbers, qwen3_like};
use crate::RuntimeError;
use crate::calibration::{Calibration, CalibrationOptions, CalibrationText, LayerInput};
use crate::source::fixture::{TinyFamily, TinyModel};
use crate::source::open_source;
use crate::text::Tokenizer;

fn tiny(family: TinyFamily) -> MemorySource {
    MemorySource::new(&TinyModel::t0(family, 11))
}

/// Of a text of some 3 KB, one token per byte: reading the built-in one takes longer than these tests.
fn options(tokens: usize, window: usize) -> CalibrationOptions {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/CALIBRATION.md");
    CalibrationOptions {
        text: CalibrationText::Path(text),
        tokens,
        window: Some(window),
        ..CalibrationOptions::default()
    }
}

fn name(layer: usize, linear: &str) -> String {
    format!("model.layers.{layer}.{linear}.weight")
}

/// All second moments of a source, asked for by the names of its tensors.
fn all_moments(source: &dyn ModelSource, options: &CalibrationOptions) -> Vec<(String, Arc<gosset_unisvq::Hessian>)> {
    let mut calibration = Calibration::new(source, options.clone()).unwrap();
    let order = calibration.order(source.tensors());
    let mut found = Vec::new();
    for tensor in order.into_iter().map(|i| source.tensors()[i].name.clone()) {
        if let Some(moments) = calibration.moments(&tensor).unwrap() {
            assert!(moments.drift.is_none());
            found.push((tensor, moments.hessian));
        }
    }
    found
}

/// Token ids in the sequences that a text which fits is cut into.
fn sequences(source: &dyn ModelSource, text: &str, window: usize) -> Vec<Vec<u32>> {
    let tokenizer = Tokenizer::from_bytes(source.blob("tokenizer.json").unwrap()).unwrap();
    let leading = tokenizer.leading_ids().first().copied();
    let ids = tokenizer.encode_with_bos(text, leading).unwrap();
    ids.chunks(window)
        .map(|chunk| {
            let mut chunk = chunk.to_vec();
            chunk[0] = leading.unwrap_or(chunk[0]);
            chunk
        })
        .collect()
}

/// f32 sums of up to 176 terms in another order: some 1e-6 of the inputs, twice that of their products, and a layer amplifies it.
const TOLERANCE: f64 = 3e-5;

#[test]
fn second_moments_are_those_of_a_naive_pass_in_f64() {
    for source in [tiny(TinyFamily::Llama), tiny(TinyFamily::Qwen2), qwen3_like(), mistral_like(), gemma3_like()] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text.txt");
        let text =
            "The naive pass multiplies every pair of inputs. It is slow, and it shares nothing with what it checks.";
        fs::write(&path, text).unwrap();
        let options = CalibrationOptions { text: CalibrationText::Path(path), ..options(1000, 40) };
        let reference = source.reference();
        let sequences = sequences(&source, text, 40);
        let n_tokens: usize = sequences.iter().map(Vec::len).sum();
        assert!(sequences.len() > 2, "several sequences, the last one short");
        let mut naive: std::collections::HashMap<String, Vec<f64>> = std::collections::HashMap::new();
        for tokens in &sequences {
            reference.logits(tokens);
            for (linear, rows) in reference.inputs.borrow().iter() {
                let n = rows[0].len();
                let sums = naive.entry(format!("{linear}.weight")).or_insert_with(|| vec![0.0; n * n]);
                for row in rows {
                    for i in 0..n {
                        for j in 0..n {
                            sums[i * n + j] += row[i] * row[j] / n_tokens as f64;
                        }
                    }
                }
            }
        }
        let found = all_moments(&source, &options);
        assert_eq!(found.len(), 14, "seven linears in each of two layers");
        for (tensor, hessian) in found {
            assert_eq!(hessian.n_tokens(), n_tokens as u64);
            let (h, naive) = (hessian.as_slice(), &naive[&tensor]);
            let scale = hessian.mean_diagonal();
            let worst = h.iter().zip(naive).map(|(a, b)| (a - b).abs() / scale).fold(0.0, f64::max);
            assert!(h.len() == naive.len() && worst < TOLERANCE, "{tensor}: {worst:e}");
        }
    }
}

/// A model to which the letter Z has an embedding of a thousand times the usual size, and options for a text with one Z in it.
fn with_a_massive_token(folder: &Path) -> (MemorySource, CalibrationOptions) {
    const HIDDEN: usize = 64;
    let mut source = tiny(TinyFamily::Qwen2);
    let path = folder.join("text.txt");
    let text = "One token of this text is a thousand times as large: Z. What comes after it sees it.";
    fs::write(&path, text).unwrap();
    let tokens = sequences(&source, text, 40).concat();
    let of_z = sequences(&source, "Z", 40).concat();
    let id = *of_z.last().unwrap();
    assert_eq!(tokens.iter().filter(|&&token| token == id).count(), 1);
    let row = &mut source.tensor_mut("model.embed_tokens.weight")[id as usize * HIDDEN..][..HIDDEN];
    row.iter_mut().for_each(|v| *v *= 1000.0);
    (source, CalibrationOptions { text: CalibrationText::Path(path), ..options(1000, 40) })
}

#[test]
fn capped_weights_take_a_massive_token_out_of_what_o_and_down_read() {
    let folder = tempfile::tempdir().unwrap();
    let (source, equal) = with_a_massive_token(folder.path());
    let capped = CalibrationOptions { token_weights: TokenWeights::Capped, ..equal.clone() };
    assert_eq!(Calibration::new(&source, capped.clone()).unwrap().record().token_weights, TokenWeights::Capped);
    let cached = CalibrationOptions { hessian_cache: Some(folder.path().join("h")), ..capped.clone() };
    let (plain, found) = (all_moments(&source, &equal), all_moments(&source, &capped));
    assert!(all_moments(&source, &cached) == found && all_moments(&source, &cached) == found, "through a cache");
    for ((tensor, plain), (_, found)) in plain.iter().zip(&found) {
        assert_eq!(plain.n_tokens(), found.n_tokens());
        if !tensor.contains("o_proj") && !tensor.contains("down_proj") {
            assert!(plain == found, "{tensor}");
            continue;
        }
        // What is gone is one token's x xᵀ: of rank one, and with a diagonal that is nowhere negative.
        let n = plain.n();
        let gone: Vec<f64> = plain.as_slice().iter().zip(found.as_slice()).map(|(a, b)| a - b).collect();
        let at = (0..n).max_by(|&a, &b| gone[a * n + a].total_cmp(&gone[b * n + b])).unwrap();
        let pivot = gone[at * n + at];
        assert!(pivot > 0.0, "{tensor}");
        for i in 0..n {
            for j in 0..n {
                let error = (gone[i * n + j] - gone[i * n + at] * gone[at * n + j] / pivot).abs();
                assert!(error < 1e-5 * plain.mean_diagonal(), "{tensor} {i} {j}: {error:e}");
            }
        }
    }
    let mixed = CalibrationOptions { token_weights: TokenWeights::Equal, ..cached };
    let error = Calibration::new(&source, mixed).unwrap_err().to_string();
    assert!(error.contains("token weights") && error.contains("capped") && error.contains("equal"), "{error}");
}

#[test]
fn capped_weights_are_the_same_with_a_quantized_prefix_that_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (source, equal) = with_a_massive_token(folder.path());
    let capped = CalibrationOptions { token_weights: TokenWeights::Capped, ..equal };
    let mut sequential = Calibration::new(&source, CalibrationOptions { sequential: true, ..capped.clone() }).unwrap();
    let mut plain = Calibration::new(&source, capped).unwrap();
    for layer in 0..2 {
        for input in LayerInput::ALL {
            let (found, expected) =
                (sequential.input_moments(layer, input).unwrap(), plain.input_moments(layer, input).unwrap());
            assert!(found.hessian == expected.hessian, "{layer} {input:?}");
            if let Some(drift) = found.drift {
                assert!(*drift == *found.hessian.as_slice(), "{layer} {input:?}");
            }
        }
        let (found, expected) = (sequential.gated_energy(layer).unwrap(), plain.gated_energy(layer).unwrap());
        let worst = found.iter().zip(&*expected).map(|(a, b)| (a - b).abs() / b.max(1e-12)).fold(0.0, f64::max);
        assert!(worst < 1e-4, "{layer}: {worst:e}");
    }
}

#[test]
fn g05_any_number_of_threads_gives_the_same_bits() {
    let source = tiny(TinyFamily::Qwen2);
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| all_moments(&source, &options(700, 128)))
    };
    let one = on(1);
    for threads in [2, 7] {
        assert!(on(threads) == one, "{threads} threads");
    }
}

#[test]
fn a_cache_gives_the_same_bits_without_a_pass() {
    let source = tiny(TinyFamily::Llama);
    let dir = tempfile::tempdir().unwrap();
    let fresh = all_moments(&source, &options(300, 64));
    let cached = CalibrationOptions { hessian_cache: Some(dir.path().join("h")), ..options(300, 64) };
    assert!(all_moments(&source, &cached) == fresh, "while it is filled");
    let mut again = Calibration::new(&source, cached.clone()).unwrap();
    again.set_observer(Box::new(|progress| panic!("a pass: {progress:?}")));
    for (tensor, hessian) in &fresh {
        assert!(again.moments(tensor).unwrap().unwrap().hessian == *hessian, "{tensor}");
    }
    assert_eq!(again.coverage().count(), 8);

    // One layer is missing: only its file is written again, and the result is the same.
    let lost = dir.path().join("h/layer-0001.feed-forward.hessian");
    fs::remove_file(&lost).unwrap();
    assert!(all_moments(&source, &cached) == fresh && lost.is_file());
    let names: Vec<_> = fs::read_dir(dir.path().join("h")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 8, "no temporary file is left: {names:?}");
}

#[test]
fn a_cache_of_another_model_or_text_is_refused_by_what_differs() {
    let source = tiny(TinyFamily::Llama);
    let dir = tempfile::tempdir().unwrap();
    let cached = CalibrationOptions { hessian_cache: Some(dir.path().to_owned()), ..options(300, 64) };
    all_moments(&source, &cached);
    let refused = |source: &dyn ModelSource, options: CalibrationOptions| match Calibration::new(source, options) {
        Err(RuntimeError::HessianCacheDiffers { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&MemorySource::new(&TinyModel::t0(TinyFamily::Llama, 12)), cached.clone()), "weights");
    assert_eq!(refused(&source, CalibrationOptions { tokens: 290, ..cached.clone() }), "tokens");
    assert_eq!(refused(&source, CalibrationOptions { window: Some(32), ..cached.clone() }), "tokens of a sequence");
    assert_eq!(refused(&source, CalibrationOptions { seed: 1, ..cached.clone() }), "token ids");
    let sequential = Calibration::new(&source, CalibrationOptions { sequential: true, ..cached.clone() });
    assert!(sequential.unwrap_err().to_string().contains("sequential"));
    Calibration::new(&source, cached).unwrap();
}

#[test]
fn damaged_cache_files_are_typed_errors() {
    let source = tiny(TinyFamily::Llama);
    let dir = tempfile::tempdir().unwrap();
    let cached = CalibrationOptions { hessian_cache: Some(dir.path().to_owned()), ..options(100, 64) };
    all_moments(&source, &cached);
    let path = dir.path().join("layer-0000.attention.hessian");
    let good = fs::read(&path).unwrap();
    let error = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let read = Calibration::new(&source, cached.clone())
            .and_then(|mut c| c.input_moments(0, LayerInput::Attention).map(|_| ()));
        match read {
            Err(RuntimeError::HessianCache { path: at, detail }) => {
                assert_eq!(at, path);
                detail
            }
            Err(RuntimeError::HessianCacheDiffers { what, .. }) => what.to_owned(),
            other => panic!("{other:?}"),
        }
    };
    // Any one byte, the ends of every part among them; cut; longer; lengths that claim too much.
    for at in (0..good.len()).step_by(good.len() / 211).chain([8, 11, 12, good.len() - 33, good.len() - 1]) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x11;
        error(&bytes);
    }
    for len in [0, 7, 11, 12, 100, good.len() / 2, good.len() - 1] {
        error(&good[..len]);
    }
    error(&[&good[..], &[0]].concat());
    let mut claims = good.clone();
    claims[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(error(&claims).contains("header of at most"), "{}", error(&claims));
    // A whole file of another place.
    error(&fs::read(dir.path().join("layer-0001.attention.hessian")).unwrap());
    error(&fs::read(dir.path().join("layer-0000.feed-forward.hessian")).unwrap());
    fs::write(&path, &good).unwrap();
    assert!(all_moments(&source, &cached).len() == 14);
}

#[test]
fn g03_inputs_that_were_never_active_are_counted() {
    let mut source = tiny(TinyFamily::Llama);
    // Rows of `up` that are zero make channels of the input of `down` zero.
    source.tensor_mut(&name(1, "mlp.up_proj"))[..10 * 64].fill(0.0);
    let mut calibration = Calibration::new(&source, options(200, 64)).unwrap();
    let moments = calibration.moments(&name(1, "mlp.down_proj")).unwrap().unwrap();
    assert_eq!((moments.dead_inputs, moments.hessian.dead_inputs()), (10, 10));
    assert_eq!(calibration.moments(&name(1, "mlp.up_proj")).unwrap().unwrap().dead_inputs, 0);
    let seen = calibration.coverage().find(|c| c.layer == 1 && c.input == LayerInput::FeedForwardOutput).unwrap();
    assert_eq!((seen.dead, seen.channels, seen.tokens), (10, 176, 200));
    assert!(calibration.warnings().is_empty(), "{:?}", calibration.warnings());
}

#[test]
fn b05_activations_beyond_f16_are_held_and_told() {
    let mut source = tiny(TinyFamily::Llama);
    for part in ["mlp.gate_proj", "mlp.up_proj"] {
        source.tensor_mut(&name(1, part)).iter_mut().for_each(|w| *w *= 2000.0);
    }
    // 18 absurd but finite weights in another tensor.
    let o = source.tensor_mut(&name(0, "self_attn.o_proj"));
    (0..18).for_each(|i| o[i * 97] = 1e3 * (1.0 + i as f32 * 2.8));
    let mut calibration = Calibration::new(&source, options(200, 64)).unwrap();
    for layer in 0..2 {
        for input in LayerInput::ALL {
            let moments = calibration.input_moments(layer, input).unwrap();
            assert!(moments.hessian.as_slice().iter().all(|v| v.is_finite()));
        }
    }
    let seen = *calibration.coverage().find(|c| c.layer == 1 && c.input == LayerInput::FeedForwardOutput).unwrap();
    let hessian = calibration.input_moments(1, LayerInput::FeedForwardOutput).unwrap().hessian;
    let channel = seen.max_channel as usize;
    let square = hessian.as_slice()[channel * 177] * 200.0;
    assert!(seen.max_abs > 65504.0 && f64::from(seen.max_abs).powi(2) <= square * 1.000_001, "{seen:?}");
    let warnings = calibration.warnings();
    let place = format!("token {}, channel {channel}", seen.max_token);
    assert!(warnings.iter().any(|w| w.contains("layers.1.mlp.down_proj") && w.contains(&place)), "{warnings:?}");
}

#[test]
fn b05_activations_that_overflow_end_with_the_first_place() {
    let mut source = tiny(TinyFamily::Llama);
    for part in ["mlp.gate_proj", "mlp.up_proj"] {
        source.tensor_mut(&name(1, part)).iter_mut().for_each(|w| *w *= 1e25);
    }
    for sequential in [false, true] {
        let options = CalibrationOptions { sequential, ..options(200, 64) };
        let mut calibration = Calibration::new(&source, options).unwrap();
        calibration.moments(&name(0, "mlp.down_proj")).unwrap();
        match calibration.input_moments(1, LayerInput::FeedForwardOutput) {
            Err(RuntimeError::NonFiniteActivation { place, token, channel, value }) => {
                assert!(place.contains("the input of model.layers.1.mlp.down_proj") && !value.is_finite(), "{place}");
                assert!(token < 64 && channel < 176, "within the first sequence");
            }
            other => panic!("{other:?}"),
        }
        let error = calibration.moments(&name(1, "mlp.down_proj")).unwrap_err().to_string();
        assert!(sequential || error.contains("model.layers.1.mlp.down_proj"), "{error}");
    }
}

#[test]
fn order_is_by_layer_and_data_flow_and_leaves_the_rest_in_place() {
    let source = tiny(TinyFamily::Llama);
    let calibration = Calibration::new(&source, options(20, 20)).unwrap();
    let named = |name: &str| TensorInfo { name: name.into(), shape: vec![1], dtype: "F32".into(), n_bytes: 4 };
    let tensors = [
        "lm_head.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.q_proj.weight",
    ];
    let order = calibration.order(&tensors.map(named));
    assert_eq!(order, [0, 7, 4, 3, 2, 5, 6, 1]);
}

/// Changes every linear of both layers a little, as a quantizer would.
fn changed(source: &MemorySource, linear: &str, layer: usize) -> Vec<f32> {
    let tensor = name(layer, linear);
    let index = source.index(&tensor);
    let noise = numbers(source.data[index].len(), 77 + layer as u32, 0.0, 0.02);
    source.data[index].iter().zip(noise).map(|(w, e)| w + e).collect()
}

#[test]
fn sequential_inputs_are_those_of_the_model_quantized_so_far() {
    let source = tiny(TinyFamily::Qwen2);
    let mut so_far = tiny(TinyFamily::Qwen2);
    let sequential = CalibrationOptions { sequential: true, ..options(150, 64) };
    let mut calibration = Calibration::new(&source, sequential.clone()).unwrap();
    assert!(calibration.is_sequential() && calibration.record().sequential);
    for layer in 0..2 {
        for input in LayerInput::ALL {
            let plain = Calibration::new(&so_far, options(150, 64)).unwrap().input_moments(layer, input).unwrap();
            for linear in input.linears() {
                let found = calibration.moments(&name(layer, linear)).unwrap().unwrap();
                assert!(found.hessian == plain.hessian, "layer {layer}, {linear}");
                assert_eq!(found.drift.is_some(), (layer, input) != (0, LayerInput::Attention));
            }
            for linear in input.linears() {
                let values = changed(&source, linear, layer);
                calibration.replaced(&name(layer, linear), &values).unwrap();
                *so_far.tensor_mut(&name(layer, linear)) = values;
            }
        }
    }
    // A run that is taken up again tells what is finished, and asks for what comes after.
    let mut resumed = Calibration::new(&source, sequential).unwrap();
    for input in LayerInput::ALL {
        for linear in input.linears() {
            resumed.replaced(&name(0, linear), &changed(&source, linear, 0)).unwrap();
        }
    }
    for linear in LayerInput::Attention.linears() {
        resumed.replaced(&name(1, linear), &changed(&source, linear, 1)).unwrap();
    }
    let asked = resumed.input_moments(1, LayerInput::AttentionOutput).unwrap();
    let mut before = tiny(TinyFamily::Qwen2);
    for linear in LayerInput::ALL.iter().flat_map(|i| i.linears()) {
        *before.tensor_mut(&name(0, linear)) = changed(&source, linear, 0);
    }
    for linear in LayerInput::Attention.linears() {
        *before.tensor_mut(&name(1, linear)) = changed(&source, linear, 1);
    }
    let input = LayerInput::AttentionOutput;
    let plain = Calibration::new(&before, options(150, 64)).unwrap().input_moments(1, input).unwrap();
    assert!(asked.hessian == plain.hessian);
    let gone = resumed.moments(&name(0, "mlp.up_proj")).unwrap_err().to_string();
    assert!(gone.contains("from layer 1"), "{gone}");
    assert!(resumed.replaced(&name(1, "mlp.up_proj"), &[0.0; 3]).unwrap_err().to_string().contains("expected shape"));
}

#[test]
fn outputs_of_gate_and_up_bring_what_down_makes_of_them() {
    let source = tiny(TinyFamily::Qwen2);
    let mut plain = Calibration::new(&source, options(150, 64)).unwrap();
    let expected: Vec<Vec<f64>> = (0..2)
        .map(|layer| {
            let hessian = plain.input_moments(layer, LayerInput::FeedForwardOutput).unwrap().hessian;
            let down = &source.data[source.index(&name(layer, "mlp.down_proj"))];
            let n = hessian.n();
            let power = |i: usize| down.iter().skip(i).step_by(n).map(|w| f64::from(*w).powi(2)).sum::<f64>();
            (0..n).map(|i| hessian.as_slice()[i * (n + 1)] * power(i)).collect()
        })
        .collect();
    let mut again = Calibration::new(&source, options(150, 64)).unwrap();
    let mut sequential =
        Calibration::new(&source, CalibrationOptions { sequential: true, ..options(150, 64) }).unwrap();
    for (layer, expected) in expected.iter().enumerate() {
        for linear in ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"] {
            assert!(again.output_energy(&name(layer, linear)).unwrap().is_none(), "{linear}");
        }
        for linear in ["mlp.gate_proj", "mlp.up_proj"] {
            assert_eq!(*again.output_energy(&name(layer, linear)).unwrap().unwrap(), *expected, "{layer}, {linear}");
            // A quantized prefix is the start of another stream; what counts is that of the unquantized model.
            let found = sequential.output_energy(&name(layer, linear)).unwrap().unwrap();
            let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b;
            assert!(found.iter().zip(expected).all(is_near), "{layer}, {linear}");
            sequential.replaced(&name(layer, linear), &changed(&source, linear, layer)).unwrap();
        }
        sequential.replaced(&name(layer, "mlp.down_proj"), &changed(&source, "mlp.down_proj", layer)).unwrap();
    }
    assert!(again.output_energy("lm_head.weight").unwrap().is_none());
}

#[test]
fn drift_is_the_cross_moment_of_both_streams() {
    let source = tiny(TinyFamily::Llama);
    let window = 64;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.txt");
    let text: String = (0..40).map(|i| format!("sentence {i}. ")).collect();
    fs::write(&path, &text).unwrap();
    let text_options = CalibrationOptions { text: CalibrationText::Path(path), ..options(100, window) };
    let mut calibration = Calibration::new(&source, CalibrationOptions { sequential: true, ..text_options }).unwrap();
    let mut quantized = tiny(TinyFamily::Llama);
    for input in LayerInput::ALL {
        for linear in input.linears() {
            let values = changed(&source, linear, 0);
            calibration.replaced(&name(0, linear), &values).unwrap();
            *quantized.tensor_mut(&name(0, linear)) = values;
        }
    }
    let drift = calibration.input_moments(1, LayerInput::FeedForward).unwrap().drift.unwrap();

    let chosen = sequences(&source, &text, window);
    // The same choice of sequences, found by the hash of their ids.
    let hash = |ids: &[u32]| {
        use sha2::Digest;
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    let wanted = calibration.record().tokens_sha256;
    let inputs = |model: &MemorySource, tokens: &[u32]| {
        let reference = model.reference();
        reference.logits(tokens);
        reference.inputs.borrow()["model.layers.1.mlp.up_proj"].clone()
    };
    let mut pairs = chosen.iter().enumerate().flat_map(|(i, a)| chosen[i + 1..].iter().map(move |b| (a, b)));
    let (first, second) = pairs
        .find(|(a, b)| a.len() == window && b.len() == window && hash(&[&a[..], &b[..36]].concat()) == wanted)
        .expect("two sequences of the text");
    let mut naive = vec![0.0; 64 * 64];
    for tokens in [&first[..], &second[..36]] {
        for (x, x_hat) in inputs(&source, tokens).iter().zip(inputs(&quantized, tokens)) {
            for i in 0..64 {
                for j in 0..64 {
                    naive[i * 64 + j] += x[i] * x_hat[j] / 100.0;
                }
            }
        }
    }
    let worst = drift.iter().zip(&naive).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < TOLERANCE, "{worst:e}");
    let asymmetry = (0..64 * 64).map(|i| (drift[i] - drift[i % 64 * 64 + i / 64]).abs()).fold(0.0, f64::max);
    assert!(asymmetry > 1e-3, "x along rows, its image along columns: {asymmetry:e}");
}

#[test]
fn a_quantized_embedding_feeds_the_first_layer() {
    let source = tiny(TinyFamily::Llama);
    let mut calibration =
        Calibration::new(&source, CalibrationOptions { sequential: true, ..options(100, 50) }).unwrap();
    let mut quantized = tiny(TinyFamily::Llama);
    let table: Vec<f32> = quantized.tensor_mut("model.embed_tokens.weight").iter().map(|v| v.abs() + 0.1).collect();
    *quantized.tensor_mut("model.embed_tokens.weight") = table.clone();
    calibration.replaced("model.embed_tokens.weight", &table).unwrap();
    calibration.replaced("model.norm.weight", &[]).unwrap();
    let found = calibration.input_moments(0, LayerInput::Attention).unwrap();
    let plain =
        Calibration::new(&quantized, options(100, 50)).unwrap().input_moments(0, LayerInput::Attention).unwrap();
    assert!(found.hessian == plain.hessian && found.drift.is_some());
}

#[test]
fn blocks_are_given_with_their_unquantized_outputs() {
    let source = tiny(TinyFamily::Llama);
    let mut calibration = Calibration::new(&source, options(100, 50)).unwrap();
    assert!(calibration.block_inputs().is_none());
    let same = calibration.block_targets(0).unwrap();
    for linear in LayerInput::ALL.iter().flat_map(|i| i.linears()) {
        calibration.replaced(&name(0, linear), &changed(&source, linear, 0)).unwrap();
    }
    calibration.moments(&name(1, "mlp.up_proj")).unwrap();
    let targets = calibration.block_targets(1).unwrap();
    let inputs = calibration.block_inputs().unwrap();
    assert_eq!((inputs.len(), targets.len()), (100 * 64, 100 * 64));
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    let drift = norm(&mut inputs.iter().zip(&same).map(|(a, b)| a - b)) / norm(&mut same.iter().copied());
    assert!(drift > 0.01 && drift < 0.5, "the quantized prefix drifts: {drift}");
}

#[test]
fn a_stop_is_a_stop_and_plain_calibration_goes_on_after_it() {
    let source = tiny(TinyFamily::Llama);
    let calls = Arc::new(AtomicUsize::new(0));
    for sequential in [false, true] {
        let options = CalibrationOptions { sequential, ..options(200, 50) };
        let mut calibration = Calibration::new(&source, options).unwrap();
        // Of two streams the first layer is left half done, of one the second.
        let (stop_at, calls) = (if sequential { 2 } else { 6 }, Arc::clone(&calls));
        calls.store(0, Ordering::Relaxed);
        calibration.set_observer(Box::new(move |progress| {
            assert_eq!((progress.n_layers, progress.n_sequences), (2, 4));
            assert!(progress.layer < 2 && progress.sequence < 4);
            if calls.fetch_add(1, Ordering::Relaxed) == stop_at {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        }));
        let stopped = calibration.moments(&name(1, "mlp.down_proj"));
        assert!(matches!(stopped, Err(QuantizeError::Cancelled { .. })), "{stopped:?}");
        let again = calibration.moments(&name(1, "mlp.down_proj"));
        assert_eq!(again.is_ok(), !sequential, "{again:?}");
    }
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let source = tiny(TinyFamily::Llama);
    let refused = |options| Calibration::new(&source, options).map(|_| ()).unwrap_err().to_string();
    assert!(refused(options(0, 10)).contains("calibration tokens"));
    assert!(refused(options(10, 0)).contains("calibration window"));
    assert!(refused(options(10, 1 << 30)).contains("the context of the model"));
    let mut bare = tiny(TinyFamily::Llama);
    bare.set_blob("tokenizer.json", None);
    let error = Calibration::new(&bare, options(10, 10)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("empty.txt");
    fs::write(&text, "").unwrap();
    let empty = CalibrationOptions { text: CalibrationText::Path(text.clone()), ..options(10, 10) };
    // A family that puts a token in front of texts has that one, any other none.
    if let Ok(calibration) = Calibration::new(&source, empty) {
        assert_eq!(calibration.n_tokens(), 1);
    }
    fs::write(&text, "a few words").unwrap();
    let short = CalibrationOptions { text: CalibrationText::Path(text), ..options(1000, 10) };
    let calibration = Calibration::new(&source, short).unwrap();
    assert!(calibration.n_tokens() < 20 && calibration.warnings()[0].contains("1000 tokens were asked for"));
    assert_eq!(calibration.record().text, "empty.txt");
}

#[test]
fn the_embedded_model_calibrates_on_the_built_in_text() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny");
    if !path.is_dir() {
        eprintln!("SKIPPED: assets/tiny is not beside the crates");
        return;
    }
    let source = open_source(&path).unwrap();
    let options = CalibrationOptions { tokens: 2048, ..CalibrationOptions::default() };
    let mut calibration = Calibration::new(&*source, options).unwrap();
    assert_eq!((calibration.n_tokens(), calibration.record().text.as_str()), (2048, "built-in"));
    let moments = calibration.moments("model.layers.1.mlp.down_proj.weight").unwrap().unwrap();
    assert_eq!((moments.hessian.n_tokens(), moments.dead_inputs), (2048, 0));
    assert!(calibration.warnings().is_empty(), "{:?}", calibration.warnings());
}
