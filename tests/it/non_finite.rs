//! Numbers that are not finite, or nearly so: found with their place before the file, inside the file, and after it.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use gosset_container::Container;
use gosset_eval::{EvalError, Scored, Tail, evaluate};
use gosset_quantize::QuantizeError;
use gosset_runtime::RuntimeError;
use gosset_tests::t0::{Dtype, T0, T0Tensor};

use crate::checkpoint::{
    Folder, Lm, assert_logits, decoded, e8, greedy, ids, load, load_source, perplexity, quantize, reference,
    reference_of, tensor, try_quantize, windows,
};
use crate::patch;

#[test]
fn b05_a_non_finite_weight_stops_the_scan_and_leaves_no_file() {
    let folder = Folder::new();
    let path = folder.changed("bad", &T0 { dtype: Dtype::F32, ..T0::llama() }, |tensors| {
        let down = &mut tensor(tensors, "model.layers.1.mlp.down_proj.weight").values;
        (down[2 * 176 + 3], down[9 * 176]) = (f32::NAN, f32::NEG_INFINITY);
    });
    let error = try_quantize(&path, &e8(3.0), &folder.path("bad.gosset")).unwrap_err();
    assert!(matches!(error, QuantizeError::NonFinite { row: 2, column: 3, n_nan: 1, n_inf: 1, .. }), "{error}");
    assert_eq!(folder.names(), ["bad"]);
}

/// Every gate and up row so large that their product leaves the range of half precision; down rows bring it back.
fn beyond_half(tensors: &mut [T0Tensor]) {
    for t in tensors {
        let factor = match t.name.rsplit('.').nth(1) {
            Some("gate_proj" | "up_proj") => 4096.0,
            Some("down_proj") => 1.0 / 4096.0,
            _ => continue,
        };
        t.values.iter_mut().for_each(|v| *v = Dtype::F16.round(*v * factor));
    }
}

#[test]
fn b05_activations_beyond_half_precision_stay_finite() {
    let folder = Folder::new();
    let path = folder.changed("large", &T0 { dtype: Dtype::F16, ..T0::llama() }, |tensors| beyond_half(tensors));
    let tokens = ids(600, 260, 5);
    let pass = reference(&path).forward(&tokens[..64]);
    assert!(pass.gated_peak > 4.0 * 65504.0, "gate · up reaches {}", pass.gated_peak);
    let (container, report) = quantize(&path, &e8(4.0), &folder.path("large.gosset"));
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    let protocol = windows(64, 64, Scored::All, Tail::Keep);
    for (model, expected) in [(load_source(&path), reference(&path)), (load(&container), reference_of(&container))] {
        let ppl = perplexity(&model, &tokens, &protocol, None).unwrap();
        assert!(ppl.ppl.is_finite() && ppl.tokens_scored > 500);
        // Sums of terms around 1e5 in the middle of the model.
        assert_logits(&model, &expected, &tokens[..64], 2e-4);
        assert_eq!(greedy(&model, &tokens[..5], 10).unwrap().tokens.len(), 10);
    }
}

#[test]
fn b05_absurd_weights_are_told_with_their_place_and_harm_nothing_downstream() {
    let folder = Folder::new();
    let name = "model.layers.1.mlp.up_proj.weight";
    let path = folder.changed("absurd", &T0 { dtype: Dtype::F32, ..T0::llama() }, |tensors| {
        let up = &mut tensor(tensors, name).values;
        (0..18).for_each(|i| up[(i * 7 + 1) * 64 + 2 * i] = if i % 2 == 0 { 1e3 } else { -5e4 });
    });
    let tokens = ids(300, 260, 6);
    let protocol = windows(50, 50, Scored::All, Tail::Keep);
    for rate in [2.0, 4.0, 8.0] {
        let (container, report) = quantize(&path, &e8(rate), &folder.path(&format!("{rate}.gosset")));
        let warning = report.warnings.iter().find(|w| w.contains("outlier")).unwrap();
        for part in [name, "18 outlier", "-50000", "row 8, column 2"] {
            assert!(warning.contains(part), "{part} in {warning}");
        }
        container.verify().unwrap();
        for entry in container.entries().iter().filter(|e| e.is_coded()) {
            assert!(decoded(&container, &entry.name).iter().all(|v| v.is_finite()), "{}", entry.name);
        }
        let model = load(&container);
        assert!(perplexity(&model, &tokens, &protocol, None).unwrap().ppl.is_finite());
        assert_eq!(greedy(&model, &tokens[..4], 12).unwrap().tokens.len(), 12);
    }
}

/// T0 as a container.
fn t0(folder: &Folder) -> std::path::PathBuf {
    let path = folder.path("t0.gosset");
    quantize(&folder.t0("t0", &T0::llama()), &e8(4.0), &path);
    path
}

fn set_bf16(bytes: &mut [u8], index: usize, value: f32) {
    bytes[2 * index..][..2].copy_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
}

/// What evaluation and generation say about the model at `path`, and how many windows were reported before.
fn failures(path: &Path, tokens: &[u32]) -> (EvalError, usize, RuntimeError) {
    let container = Container::open(path).unwrap();
    // Nothing but the values is wrong with the file.
    container.verify_checksums().unwrap();
    let model = load(&container);
    let mut shown = 0;
    let protocol = windows(32, 32, Scored::All, Tail::Keep);
    let evaluated = evaluate(&mut Lm::new(&model), tokens, None, &protocol, None, &mut |_| {
        shown += 1;
        ControlFlow::Continue(())
    });
    (evaluated.unwrap_err(), shown, greedy(&model, tokens, 5).unwrap_err())
}

#[test]
fn e04_a_nan_scale_stops_evaluation_and_generation_at_its_layer() {
    let tokens = ids(160, 260, 7);
    for (part, row) in [("mlp.gate_proj", 3), ("mlp.down_proj", 63), ("self_attn.k_proj", 0), ("self_attn.o_proj", 9)] {
        for value in [f32::NAN, f32::INFINITY] {
            let folder = Folder::new();
            let path = t0(&folder);
            let intact = fs::read(&path).unwrap();
            patch::plane(&path, &format!("model.layers.1.{part}.weight#scales"), |b| set_bf16(b, row, value));
            assert_ne!(fs::read(&path).unwrap(), intact);
            let found = Container::open(&path).unwrap().verify().unwrap_err().to_string();
            assert!(found.contains("NaN or infinite"), "{found}");
            let (evaluated, shown, generated) = failures(&path, &tokens);
            // No partial mean is left: the error is all there is.
            let EvalError::Model { window: 1, source } = &evaluated else { panic!("{evaluated}") };
            let cause = source.downcast_ref::<RuntimeError>().unwrap();
            for error in [cause, &generated] {
                assert!(
                    matches!(error, RuntimeError::NonFinite { layer, position: 0 } if layer == "model.layers.1"),
                    "{part}: {error}"
                );
            }
            assert_eq!(shown, 0);
            assert_eq!(evaluated.to_string(), format!("window 1: {generated}"));
        }
    }
}

#[test]
fn e04_the_window_is_the_one_that_meets_the_nan() {
    let folder = Folder::new();
    let path = folder.path("m.gosset");
    // With a head of its own, a row of the table matters only where its id stands.
    quantize(&folder.t0("m", &T0 { tie: Some(false), head: true, ..T0::llama() }), &e8(4.0), &path);
    patch::plane(&path, "model.embed_tokens.weight", |b| set_bf16(b, 255 * 64 + 10, f32::NAN));
    let mut tokens = ids(160, 255, 8);
    tokens[2 * 32 + 5] = 255;
    let (evaluated, shown, generated) = failures(&path, &tokens);
    assert_eq!(evaluated.to_string(), "window 3: non-finite value at position 5: first seen in model.embed_tokens");
    assert_eq!(shown, 2);
    assert_eq!(generated.to_string(), "non-finite value at position 69: first seen in model.embed_tokens");
}
