//! The product through its facade: checkpoint to file to running model.

use gosset::container::Container;
use gosset::quantize::{QuantizeOptions, RunOptions, SafetensorsSource, Silent, plan, run};
use gosset::runtime::{LanguageModel, LoadOptions};
use gosset_tests::t0::T0;

#[test]
fn a_checkpoint_becomes_a_file_that_runs_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("t0"), dir.path().join("t0.gosset"));
    T0::llama().write(&folder).unwrap();

    let source = SafetensorsSource::open(&folder).unwrap();
    let plan = plan(&source, &QuantizeOptions::new("e8-rice", 4.0)).unwrap();
    let report = run(&plan, &source, None, &file, &RunOptions::default(), &Silent).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();

    let container = Container::open(&file).unwrap();
    assert_eq!(container.file_bytes(), report.file_bytes);
    container.verify().unwrap();
    let model = LanguageModel::from_container(container, &LoadOptions::default()).unwrap();
    let hidden = model.forward(&[1, 2, 3], &mut model.new_cache()).unwrap();
    assert_eq!(model.logits(&hidden).unwrap().dims(), [3, model.vocab_size()]);
}
