//! Tokens per second and bytes of a whole model at batch 1, on a CUDA device: dense and compressed in one process.
//!
//! Weights are random and made on the device, so no checkpoint is needed: time and memory do not depend on the values.

mod args;
mod shape;

use std::time::Instant;

use anyhow::{Context, Result};
use gosset_runtime::gpu::{DeviceMemory, Gpu, GpuOptions, OpenOptions, RandomModel};
use serde::Serialize;

pub use args::Args;
use args::Weights;
use shape::ModelShape;

/// Steps before the clock runs.
const WARM_STEPS: usize = 8;

/// One model that was run.
#[derive(Debug, Serialize)]
struct Row {
    /// What the layers' matrices are held as.
    weights: String,
    /// What embedding table and head are held as.
    embeddings: String,
    /// Bytes of the layers' matrices, with scales, signs and tables.
    layer_bytes: u64,
    embedding_bytes: u64,
    norm_bytes: u64,
    workspace_bytes: u64,
    /// Weights, tables and workspace: everything allocated but keys and values.
    resident_bytes: u64,
    resident_gib: f64,
    cache_bytes: u64,
    /// Device memory in use that no buffer holds: the context with its modules, and other programs.
    other_bytes: u64,
    /// Median over the repetitions.
    us_per_token: f64,
    tokens_per_second: f64,
    speedup_vs_bf16: Option<f64>,
    seconds_to_make: f64,
}

/// Everything of a run.
#[derive(Debug, Serialize)]
struct Report {
    device: String,
    model: &'static str,
    position: usize,
    steps: usize,
    repetitions: usize,
    graph: bool,
    rows: Vec<Row>,
}

/// Runs the models one after the other and prints a table; writes JSON where asked.
pub fn run(args: &Args) -> Result<()> {
    let gpu = gosset_runtime::gpu::open(args.device, &OpenOptions::default())?;
    let shape = ModelShape::find(&args.model)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut out = args.out();
    out.line(&format!("{} on {}", shape.name, gpu.info()))?;
    out.line(&format!(
        "{:<16} {:<16} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>8} {:>7}",
        "layers", "embeddings", "layers", "embed", "work", "GiB", "cache", "us/token", "tokens/s", "speed"
    ))?;
    for embeddings in &args.embeddings {
        for weights in &args.weights {
            let mut row = measure(&gpu, shape, weights, embeddings, args)
                .with_context(|| format!("layers {weights}, embeddings {embeddings}"))?;
            let dense = rows.iter().find(|r| r.weights == "bf16").map(|r| r.us_per_token);
            row.speedup_vs_bf16 = dense.map(|dense| dense / row.us_per_token);
            let mib = |bytes: u64| format!("{:.1}M", bytes as f64 / f64::from(1 << 20));
            out.line(&format!(
                "{:<16} {:<16} {:>9} {:>9} {:>9} {:>9.3} {:>9} {:>10.1} {:>8.1} {:>7}",
                row.weights,
                row.embeddings,
                mib(row.layer_bytes),
                mib(row.embedding_bytes),
                mib(row.workspace_bytes),
                row.resident_gib,
                mib(row.cache_bytes),
                row.us_per_token,
                row.tokens_per_second,
                row.speedup_vs_bf16.map_or("-".to_owned(), |s| format!("{s:.2}x")),
            ))?;
            rows.push(row);
        }
    }
    let report = Report {
        device: gpu.info().name.clone(),
        model: shape.name,
        position: args.position,
        steps: args.steps,
        repetitions: args.repetitions,
        graph: !args.plain,
        rows,
    };
    args.write_json(&report)
}

fn measure(gpu: &Gpu, shape: &ModelShape, weights: &Weights, embeddings: &Weights, args: &Args) -> Result<Row> {
    let options = GpuOptions::default().context(args.position + args.steps + WARM_STEPS).graph(!args.plain);
    let config = shape.config()?;
    let start = Instant::now();
    let mut model = RandomModel::new(gpu, &config, &weights.random()?, &embeddings.random()?, shape.tied, &options)?;
    let seconds_to_make = start.elapsed().as_secs_f64();
    let (_, mut token) = model.run(args.position, 1, WARM_STEPS)?;
    let mut times = Vec::new();
    for _ in 0..args.repetitions.max(1) {
        let (us, last) = model.run(args.position, token, args.steps)?;
        token = last;
        times.push(us / args.steps as f64);
    }
    times.sort_by(f64::total_cmp);
    let us_per_token = times[times.len() / 2];
    let DeviceMemory { layers, embeddings: embedding_bytes, norms, workspace, cache, allocated, .. } = model.memory();
    let resident_bytes = allocated - cache;
    Ok(Row {
        weights: weights.to_string(),
        embeddings: embeddings.to_string(),
        layer_bytes: layers,
        embedding_bytes,
        norm_bytes: norms,
        workspace_bytes: workspace,
        resident_bytes,
        resident_gib: resident_bytes as f64 / f64::from(1 << 30),
        cache_bytes: cache,
        other_bytes: (gpu.info().memory_bytes - gpu.free_bytes()?).saturating_sub(allocated),
        us_per_token,
        tokens_per_second: 1e6 / us_per_token,
        speedup_vs_bf16: None,
        seconds_to_make,
    })
}
