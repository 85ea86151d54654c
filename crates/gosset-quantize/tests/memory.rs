//! Quantizing keeps to the memory that the plan states before it starts: every allocation of this process is counted.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "fixtures of tests")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use gosset_quantize::{
    Activations, CalibrationRecord, Event, InputMoments, ModelSource, Observer, QuantizeError, QuantizeOptions,
    RunOptions, SafetensorsSource, Silent, TensorInfo, plan, run,
};
use gosset_tests::t0::T0;
use gosset_unisvq::Hessian;
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Second moments by width, all there before the run.
struct Known {
    by_width: HashMap<usize, InputMoments>,
    widths: HashMap<String, usize>,
    drifts: bool,
}

impl Known {
    fn new(source: &SafetensorsSource, drifts: bool) -> Self {
        let moments = |n: usize| {
            let data: Vec<f64> = (0..n * n).map(|k| (-((k / n).abs_diff(k % n) as f64) / 5.0).exp()).collect();
            let drift = drifts.then(|| Arc::new(data.iter().map(|v| 0.9 * v).collect()));
            InputMoments {
                hessian: Arc::new(Hessian::new(n, data, 1000).unwrap()),
                drift,
                dead_inputs: 0,
                output_energy: None,
            }
        };
        let linears = source.tensors().iter().filter(|t| t.name.contains("proj"));
        let widths: HashMap<String, usize> = linears.map(|t| (t.name.clone(), t.rows_cols().1)).collect();
        Self { by_width: widths.values().map(|n| (*n, moments(*n))).collect(), widths, drifts }
    }
}

impl Activations for Known {
    fn order(&self, tensors: &[TensorInfo]) -> Vec<usize> {
        (0..tensors.len()).collect()
    }

    fn moments(&mut self, tensor: &str) -> Result<Option<InputMoments>, QuantizeError> {
        Ok(self.widths.get(tensor).map(|n| self.by_width[n].clone()))
    }

    fn is_sequential(&self) -> bool {
        self.drifts
    }

    fn record(&self) -> CalibrationRecord {
        CalibrationRecord {
            text: "known".to_owned(),
            text_sha256: String::new(),
            tokens_sha256: String::new(),
            tokens: 1000,
            window: 1000,
            seed: 0,
            sequential: self.drifts,
            token_weights: gosset_quantize::TokenWeights::Equal,
        }
    }
}

/// What a run takes beside: pages of the container, the plan. Runs count it as part of the program.
const REST: u64 = 2 << 20;

/// One test, for the heap is that of the process.
#[test]
fn d01_runs_keep_to_the_memory_that_their_plans_state() {
    twelve_layers_take_what_one_takes();
    runs_with_activations_keep_to_what_is_stated();
}

fn runs_with_activations_keep_to_what_is_stated() {
    // Wide matrices, of which second moments are most, and square ones.
    for (hidden, ffn) in [(128, 768), (384, 256)] {
        let dir = tempfile::tempdir().unwrap();
        T0 { layers: 1, hidden, ffn, heads: hidden / 64, kv_heads: hidden / 64, head_dim: 64, ..T0::llama() }
            .write(&dir.path().join("in"))
            .unwrap();
        let source = SafetensorsSource::open(&dir.path().join("in")).unwrap();
        for (method, rate, drifts) in [
            ("e8+feedback", 3.0, false),
            ("e8+feedback", 3.0, true),
            ("shift-12+feedback", 2.0, false),
            ("unisvq", 2.0, false),
            ("unisvq", 2.0, true),
        ] {
            let mut known = Known::new(&source, drifts);
            let plan = plan(&source, &QuantizeOptions::new(method, rate)).unwrap();
            for threads in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let stated = pool.install(|| plan.encode_peak_bytes(&known));
                let out = dir.path().join("out.gosset");
                let before = HEAP.current_usage();
                HEAP.reset_peak_usage();
                pool.install(|| run(&plan, &source, Some(&mut known), &out, &RunOptions::replacing(), &Silent))
                    .unwrap();
                let taken = (HEAP.peak_usage() - before) as u64;
                eprintln!(
                    "{method}, {hidden} and {ffn}, {threads} threads, drift {drifts}: {stated} stated, {taken} taken"
                );
                assert!(
                    taken <= stated + REST,
                    "{method}, {threads} threads: {stated} bytes were stated, {taken} taken"
                );
                assert!(
                    stated <= 3 * taken,
                    "{method}, {threads} threads: {stated} bytes were stated, only {taken} taken"
                );
            }
        }
    }
}

/// Notes the largest heap while each tensor was worked on.
#[derive(Default)]
struct Peaks(Mutex<Vec<(String, usize)>>);

impl Observer for Peaks {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Started { .. } => HEAP.reset_peak_usage(),
            Event::Finished { tensor, .. } => self.0.lock().unwrap().push(((*tensor).to_owned(), HEAP.peak_usage())),
            _ => {}
        }
    }
}

impl Peaks {
    /// The largest heap in a layer.
    fn of_layer(&self, layer: usize) -> usize {
        let name = format!(".layers.{layer}.");
        self.0.lock().unwrap().iter().filter(|(tensor, _)| tensor.contains(&name)).map(|(_, peak)| *peak).max().unwrap()
    }
}

/// D01 in small: a model of twelve layers, of which one tensor at a time is in memory.
fn twelve_layers_take_what_one_takes() {
    let dir = tempfile::tempdir().unwrap();
    T0 { layers: 12, hidden: 256, ffn: 704, heads: 4, kv_heads: 2, head_dim: 64, shards: 3, ..T0::llama() }
        .write(&dir.path().join("in"))
        .unwrap();
    let source = SafetensorsSource::open(&dir.path().join("in")).unwrap();
    let out = dir.path().join("out.gosset");
    for (method, rate, threads, resumable) in
        [("e8", 3.0, 1, false), ("e8", 8.0, 3, false), ("trellis-8", 3.0, 2, true), ("shift-12", 2.0, 1, false)]
    {
        let plan = plan(&source, &QuantizeOptions::new(method, rate)).unwrap();
        let how = RunOptions { resumable, release_input: true, ..RunOptions::replacing() };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let stated = pool.install(|| plan.peak_bytes()) as usize;
        let (peaks, before) = (Peaks::default(), HEAP.current_usage());
        pool.install(|| run(&plan, &source, None, &out, &how, &peaks)).unwrap();
        let (second, last) = (peaks.of_layer(1) - before, peaks.of_layer(11) - before);
        eprintln!("{method}@{rate}, {threads} threads: {stated} stated, layer 2 took {second}, layer 12 {last}");
        assert!(second.max(last) <= stated, "{method}: {stated} bytes were stated, {second} and {last} taken");
        // Names and headers of what was written; threads may or may not have had their scratch yet.
        let slack = if threads == 1 { 1 << 18 } else { threads << 20 };
        assert!(last as f64 <= 1.05 * second as f64 + slack as f64, "{method}: layer 2 took {second}, layer 12 {last}");
    }
}
