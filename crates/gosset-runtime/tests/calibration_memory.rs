//! Calibration keeps to the memory that it states before it starts: every allocation of this process is counted.

use std::path::Path;

use gosset_runtime::calibration::{Calibration, CalibrationOptions, LayerInput};
use gosset_runtime::source::open_source;
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

#[test]
fn calibration_keeps_to_the_memory_that_it_states() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny");
    if !path.is_dir() {
        eprintln!("SKIPPED: assets/tiny is not beside the crates");
        return;
    }
    let source = open_source(&path).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (tokens, sequential) in [(10_000, false), (5_000, true), (500, false)] {
        let cache = (!sequential).then(|| dir.path().join(tokens.to_string()));
        let options = CalibrationOptions { tokens, sequential, hessian_cache: cache, ..CalibrationOptions::default() };
        let mut calibration = Calibration::new(&*source, options).unwrap();
        let expected = calibration.expected_peak_bytes() as usize;
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        for layer in 0..2 {
            for input in LayerInput::ALL {
                calibration.input_moments(layer, input).unwrap();
                if sequential {
                    for linear in input.linears() {
                        let name = format!("model.layers.{layer}.{linear}.weight");
                        let index = source.tensors().iter().position(|t| t.name == name).unwrap();
                        let (rows, cols) = source.tensors()[index].rows_cols();
                        let mut values = vec![0.0; rows * cols];
                        source.read_rows(index, 0..rows, &mut values).unwrap();
                        gosset_quantize::Activations::replaced(&mut calibration, &name, &values).unwrap();
                    }
                }
            }
        }
        let peak = HEAP.peak_usage() - before;
        eprintln!("{tokens} tokens, sequential {sequential}: stated {expected} bytes, taken {peak}");
        assert!(peak <= expected, "{tokens} tokens, sequential {sequential}: stated {expected} bytes, taken {peak}");
        // 16 MiB of the statement are for libraries; the rest is no guess.
        assert!(expected - (16 << 20) <= 2 * peak, "{expected} bytes were stated, only {peak} taken");
    }
}
