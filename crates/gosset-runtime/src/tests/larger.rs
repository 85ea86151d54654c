//! The language model of a larger model, whose tensors have names of their own.

use std::collections::HashMap;
use std::path::Path;

use gosset_container::Container;
use gosset_quantize::{ModelSource, QuantizeOptions, RunOptions, Silent, plan, run};
use serde_json::json;

use super::forward::logits;
use super::{MemorySource, gemma3_like, ids};
use crate::calibration::{Calibration, CalibrationOptions, CalibrationText};
use crate::{LanguageModel, LoadOptions};

/// `alone` as a part of a model that sees.
fn within(alone: &MemorySource) -> MemorySource {
    let mut source = gemma3_like();
    for tensor in &mut source.tensors {
        tensor.name = format!("language_model.{}", tensor.name);
    }
    source.add("vision_tower.encoder.layers.0.mlp.fc1.weight", &[32, 32], super::numbers(32 * 32, 9, 0.0, 0.1));
    let config = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": alone.config(),
    });
    source.set_blob("config.json", Some(config.to_string().into_bytes()));
    source
}

/// A tuned container of a source.
fn tuned(source: &MemorySource, path: &Path) -> LanguageModel {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/CALIBRATION.md");
    let options = CalibrationOptions {
        text: CalibrationText::Path(text),
        tokens: 600,
        window: Some(60),
        ..CalibrationOptions::default()
    };
    let mut calibration = Calibration::new(source, options).unwrap();
    let plan = plan(source, &QuantizeOptions::new("unisvq+ft", 2.0)).unwrap();
    let report = run(&plan, source, Some(&mut calibration), path, &RunOptions::default(), &Silent).unwrap();
    let lower = report.calibration.unwrap().tuned.iter().filter(|block| block.report.is_some()).count();
    assert_eq!(lower, 2, "both blocks were tuned");
    LanguageModel::from_container(Container::open(path).unwrap(), &LoadOptions::default()).unwrap()
}

#[test]
fn a_language_model_within_a_larger_one_is_calibrated_tuned_and_run_like_one_alone() {
    let alone = gemma3_like();
    let within = within(&alone);
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("alone.gosset"), folder.path().join("within.gosset"));
    let tokens = ids(70, 260, 3);
    let (of_alone, of_within) = (tuned(&alone, &first), tuned(&within, &second));
    assert!(logits(&of_alone, &tokens) == logits(&of_within, &tokens));
    // Norms are stored as they were, less by one, and were trained.
    let norms = |path: &Path| -> HashMap<String, Vec<f32>> {
        let container = Container::open(path).unwrap();
        let names =
            container.entries().iter().map(|e| e.name.clone()).filter(|name| name.ends_with("layernorm.weight"));
        let value = |name: &String| {
            let raw = container.raw(name).unwrap();
            assert_eq!(raw.dtype, "F32");
            raw.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        names.map(|name| (name.replace("language_model.", ""), value(&name))).collect()
    };
    let (first, second) = (norms(&first), norms(&second));
    assert_eq!(first, second);
    assert_eq!(first.len(), 8);
    for (name, values) in &first {
        let start = &alone.data[alone.index(name)];
        let moved = values.iter().zip(start).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(moved > 0.0 && moved < 0.5, "{name}: {moved}");
    }
    assert_eq!(within.tensors().len(), alone.tensors().len() + 1);
}
