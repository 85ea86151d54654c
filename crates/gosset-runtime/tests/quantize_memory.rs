//! A run keeps to the memory that it states before it starts, calibration included: every allocation of this process is counted.

use std::path::Path;

use gosset_quantize::{QuantizeOptions, RunOptions, Silent, plan, run};
use gosset_runtime::calibration::{Calibration, CalibrationOptions};
use gosset_runtime::source::open_source;
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

#[test]
fn runs_keep_to_the_memory_that_they_state() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny");
    if !path.is_dir() {
        eprintln!("SKIPPED: assets/tiny is not beside the crates");
        return;
    }
    let source = open_source(&path).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (method, rate, tokens, sequential) in [
        ("e8+feedback", 3.0, 20_000, false),
        ("e8+feedback", 3.0, 5_000, true),
        ("unisvq", 2.0, 5_000, false),
        ("unisvq+ft", 2.0, 5_000, false),
    ] {
        let options = CalibrationOptions { tokens, sequential, ..CalibrationOptions::default() };
        let mut calibration = Calibration::new(&*source, options).unwrap();
        let plan = plan(&*source, &QuantizeOptions::new(method, rate)).unwrap();
        let stated = calibration.expected_run_bytes(&plan) as usize;
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        let out = dir.path().join("out.gosset");
        run(&plan, &*source, Some(&mut calibration), &out, &RunOptions::replacing(), &Silent).unwrap();
        let taken = HEAP.peak_usage() - before;
        eprintln!("{method}, {tokens} tokens, sequential {sequential}: {stated} bytes stated, {taken} taken");
        assert!(taken <= stated, "{method}, {tokens} tokens: {stated} bytes were stated, {taken} taken");
        // 16 MiB of the statement are for libraries.
        assert!(
            stated - (16 << 20) <= 2 * taken,
            "{method}, {tokens} tokens: {stated} bytes were stated, only {taken} taken"
        );
    }
}
