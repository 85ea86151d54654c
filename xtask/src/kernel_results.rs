//! Tables and points of a plot from the JSON of `cargo xtask bench-kernels`.

use std::fmt::Write as _;

use serde::Deserialize;

/// Shape that the plot is of.
const GAUGE_SHAPE: &str = "14336x4096";

/// Shapes that have a table over the batch.
const BATCH_SHAPES: [&str; 3] = ["28672x4096", GAUGE_SHAPE, "4096x14336"];

/// A run.
#[derive(Debug, Deserialize)]
pub(crate) struct KernelResults {
    pub(crate) device: String,
    driver: String,
    #[serde(default)]
    cublas: Option<i64>,
    pub(crate) command: String,
    #[serde(default)]
    copy_gbps: Option<f64>,
    #[serde(default)]
    torch: Option<TorchVersion>,
    unique_rows: u64,
    rows: Vec<KernelRow>,
    #[serde(default)]
    container: Vec<CheckedRow>,
}

#[derive(Debug, Deserialize)]
struct TorchVersion {
    version: String,
}

/// One measurement.
#[derive(Debug, Deserialize)]
struct KernelRow {
    op: String,
    codec: String,
    #[serde(default)]
    variant: String,
    mode: String,
    shape: String,
    batch: u64,
    bps_all_in: Option<f64>,
    mse: Option<f64>,
    us: f64,
    floor_fraction: f64,
    mws: f64,
    us_torch: Option<f64>,
    speedup_vs_bf16: Option<f64>,
    rel_err: Option<f64>,
    valid: bool,
}

/// A product with a matrix of a compressed model.
#[derive(Debug, Deserialize)]
struct CheckedRow {
    op: String,
    codec: String,
    rel_err: f64,
    valid: bool,
}

impl KernelRow {
    /// Codec and variant.
    fn name(&self) -> String {
        if self.variant.is_empty() { self.codec.clone() } else { format!("{} {}", self.codec, self.variant) }
    }

    fn is_dense(&self) -> bool {
        self.op == "bf16"
    }

    fn is_attention(&self) -> bool {
        self.op == "kv_attend"
    }

    fn is_product(&self) -> bool {
        self.op.ends_with("_gemv") || self.op.ends_with("_gemm")
    }
}

/// Values in the order in which they first appear.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut out = Vec::new();
    values.for_each(|value| {
        if !out.contains(&value) {
            out.push(value);
        }
    });
    out
}

/// The tables of a run.
pub(crate) fn tables(results: &KernelResults, file: &str) -> String {
    let KernelResults { device, driver, command, unique_rows, .. } = results;
    let mut out = format!("{device}, driver for CUDA {driver}");
    if let Some(cublas) = results.cublas {
        let _ = write!(out, ", cuBLAS {}.{}", cublas / 10_000, cublas / 100 % 100);
    }
    if let Some(torch) = &results.torch {
        let _ = write!(out, ", PyTorch {}", torch.version);
    }
    if let Some(gbps) = results.copy_gbps {
        let _ = write!(out, ", copy {gbps:.0} GB/s");
    }
    let _ = write!(out, " (`{command}`, [{file}](/{file})).");
    let attention: Vec<&KernelRow> = results.rows.iter().filter(|row| row.is_attention()).collect();
    if attention.len() < results.rows.len() {
        let _ = write!(out, " Matrices repeat {unique_rows} Gaussian rows, encoded for real.");
    }
    out.push('\n');
    let single = |row: &&KernelRow| row.mode == "single";
    let layers = |row: &&KernelRow| row.mode == "layers";
    let dense: Vec<&KernelRow> = results.rows.iter().filter(|row| row.is_dense()).collect();
    let products: Vec<&KernelRow> = results.rows.iter().filter(|row| row.is_product()).collect();
    let gemv: Vec<&KernelRow> = products.iter().copied().filter(|row| row.batch == 1).collect();
    if !dense.is_empty() || !gemv.is_empty() {
        out += "\nBatch 1: microseconds, and times the speed of bf16; rotation and scaling of the activation are in the time.\n\n";
        out += &by_shape(
            dense.iter().copied().filter(|row| row.batch == 1 && row.mode == "single").collect(),
            gemv.iter().copied().filter(single).collect(),
        );
    }
    let in_layers: Vec<&KernelRow> = gemv.iter().copied().filter(layers).collect();
    if !in_layers.is_empty() {
        out += "\nOne of 8 successive layers in one graph, batch 1:\n\n";
        out +=
            &by_shape(dense.iter().copied().filter(|row| row.batch == 1 && row.mode == "layers").collect(), in_layers);
    }
    for shape in BATCH_SHAPES {
        let of_shape = |row: &&&KernelRow| row.shape == shape && row.mode == "single";
        let gemm: Vec<&KernelRow> = products.iter().filter(of_shape).filter(|row| row.batch > 1).copied().collect();
        if !gemm.is_empty() {
            let _ = write!(out, "\nTimes the speed of bf16 on {shape} over the batch:\n\n");
            out += &by_batch(&dense.iter().filter(of_shape).copied().collect::<Vec<_>>(), &gemm);
        }
    }
    if !attention.is_empty() {
        out += "\nAttention of one row, 32 query heads, 8 key heads of 128: microseconds over positions, and times the speed of bf16, which is attention alone. A \
                step also rotates, appends, and adds means of keys.\n\n";
        out += &by_context(&attention);
    }
    let is_other = |row: &&KernelRow| !row.is_product() && !row.is_dense() && !row.is_attention();
    let others: Vec<&KernelRow> = results.rows.iter().filter(is_other).collect();
    if !others.is_empty() {
        out += "\n| operation | codec | shape | batch | us | million weights/s | of the copy's speed |\n|---|---|---|---|---|---|---|\n";
    }
    for row in others {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {:.1} | {:.0} | {:.0} % |",
            row.op,
            row.name(),
            row.shape,
            row.batch,
            row.us,
            row.mws,
            100.0 * row.floor_fraction
        );
    }
    let worst = products.iter().filter_map(|row| row.rel_err).fold(0.0, f64::max);
    let wrong = results.rows.iter().filter(|row| !row.valid).count();
    if !products.is_empty() {
        let _ = writeln!(
            out,
            "\nEvery output of every row was compared with the f64 product over the dequantized weights: the largest error is {worst:.1e} of the \
             norms of activation and row, {wrong} rows are wrong."
        );
    }
    if !results.container.is_empty() {
        let worst = results.container.iter().map(|row| row.rel_err).fold(0.0, f64::max);
        let wrong = results.container.iter().filter(|row| !row.valid).count();
        let ops = distinct(results.container.iter().map(|row| format!("{} {}", row.op, row.codec))).join(", ");
        let _ = writeln!(
            out,
            "{} products with the matrices of a compressed model ({ops}): the largest error is {worst:.1e}, {wrong} are wrong.",
            results.container.len()
        );
    }
    out
}

/// A line per operation and codec, a column per shape.
fn by_shape(dense: Vec<&KernelRow>, rows: Vec<&KernelRow>) -> String {
    let shapes = distinct(dense.iter().chain(&rows).map(|row| row.shape.as_str()));
    let mut out = format!("| operation | codec | bits, all in | MSE | {} |\n", shapes.join(" | "));
    let _ = writeln!(out, "|---|---|---|---|{}", "---|".repeat(shapes.len()));
    let find = |rows: &[&KernelRow], shape: &str, cell: &dyn Fn(&KernelRow) -> Option<String>| {
        rows.iter().find(|row| row.shape == shape).and_then(|row| cell(row)).unwrap_or_default()
    };
    for (name, cell) in [
        ("cuBLAS", &(|row: &KernelRow| Some(format!("{:.1}", row.us))) as &dyn Fn(&KernelRow) -> Option<String>),
        ("PyTorch", &|row: &KernelRow| row.us_torch.map(|us| format!("{us:.1}"))),
    ] {
        let cells: Vec<String> = shapes.iter().map(|shape| find(&dense, shape, cell)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            let _ = writeln!(out, "| {name} | bf16 | 16 | 0 | {} |", cells.join(" | "));
        }
    }
    for (op, codec) in distinct(rows.iter().map(|row| (row.op.clone(), row.name()))) {
        let of_codec: Vec<&KernelRow> =
            rows.iter().copied().filter(|row| row.op == op && row.name() == codec).collect();
        let cells: Vec<String> =
            shapes.iter().map(|shape| find(&of_codec, shape, &|row| Some(with_speed(row)))).collect();
        let [bps, mse] = rate_and_error(&of_codec);
        let _ = writeln!(out, "| {op} | {codec} | {bps} | {mse} | {} |", cells.join(" | "));
    }
    out
}

/// A line per cache, a column per number of positions.
fn by_context(rows: &[&KernelRow]) -> String {
    let shapes = distinct(rows.iter().map(|row| row.shape.as_str()));
    let head: Vec<&str> = shapes.iter().map(|shape| shape.split('x').next().unwrap_or(shape)).collect();
    let mut out = format!(
        "| cache | bits, all in | error | {} |\n|---|---|---|{}\n",
        head.join(" | "),
        "---|".repeat(head.len())
    );
    let line = |name: &str, bits: &str, error: &str, of: &dyn Fn(&str) -> Option<String>| {
        let cells: Vec<String> = shapes.iter().map(|shape| of(shape).unwrap_or_default()).collect();
        format!("| {name} | {bits} | {error} | {} |\n", cells.join(" | "))
    };
    let torch = |shape: &str| rows.iter().find(|row| row.shape == shape)?.us_torch.map(|us| format!("{us:.1}"));
    if shapes.iter().any(|shape| torch(shape).is_some()) {
        out += &line("PyTorch, flash, attention alone", "16", "", &torch);
    }
    for name in distinct(rows.iter().map(|row| row.name())) {
        let of_name: Vec<&KernelRow> = rows.iter().copied().filter(|row| row.name() == name).collect();
        let [bits, _] = rate_and_error(&of_name);
        let worst = of_name.iter().filter_map(|row| row.rel_err).reduce(f64::max);
        let error = worst.map_or_else(String::new, |e| format!("{e:.1e}"));
        let cell = |shape: &str| of_name.iter().find(|row| row.shape == shape).map(|row| with_speed(row));
        out += &line(&name, &bits, &error, &cell);
    }
    out
}

/// A line per operation and codec, a column per batch.
fn by_batch(dense: &[&KernelRow], rows: &[&KernelRow]) -> String {
    let mut batches = distinct(rows.iter().map(|row| row.batch));
    batches.sort_unstable();
    let head: Vec<String> = batches.iter().map(u64::to_string).collect();
    let mut out = format!("| operation | codec | bits, all in | MSE | {} |\n", head.join(" | "));
    let _ = writeln!(out, "|---|---|---|---|{}", "---|".repeat(batches.len()));
    let cell = |rows: &[&KernelRow], batch: u64, text: &dyn Fn(&KernelRow) -> String| {
        rows.iter().find(|row| row.batch == batch).map_or_else(String::new, |row| text(row))
    };
    let cells: Vec<String> = batches.iter().map(|&b| cell(dense, b, &|row| format!("{:.1} us", row.us))).collect();
    let _ = writeln!(out, "| cuBLAS | bf16 | 16 | 0 | {} |", cells.join(" | "));
    for (op, codec) in distinct(rows.iter().map(|row| (row.op.clone(), row.name()))) {
        let of_codec: Vec<&KernelRow> =
            rows.iter().copied().filter(|row| row.op == op && row.name() == codec).collect();
        let cells: Vec<String> = batches.iter().map(|&b| cell(&of_codec, b, &with_speed)).collect();
        let [bps, mse] = rate_and_error(&of_codec);
        let _ = writeln!(out, "| {op} | {codec} | {bps} | {mse} | {} |", cells.join(" | "));
    }
    out
}

/// Time and speed of a row; a row that is wrong says so.
fn with_speed(row: &KernelRow) -> String {
    let speed = row.speedup_vs_bf16.map_or_else(String::new, |x| format!(" ({x:.2}x)"));
    let wrong = if row.valid { "" } else { " WRONG" };
    format!("{:.1}{speed}{wrong}", row.us)
}

/// Bits and distortion of a codec: of its first row that has them.
fn rate_and_error(rows: &[&KernelRow]) -> [String; 2] {
    let bps = rows.iter().find_map(|row| row.bps_all_in).map_or_else(String::new, |bps| format!("{bps:.3}"));
    let mse = rows.iter().find_map(|row| row.mse).map_or_else(String::new, |mse| format!("{mse:.5}"));
    [bps, mse]
}

/// Of the binary `decode`.
#[derive(Debug, Deserialize)]
pub(crate) struct DecodeResults {
    device: String,
    model: String,
    position: u64,
    steps: u64,
    repetitions: u64,
    rows: Vec<DecodeRow>,
}

/// One model that generated.
#[derive(Debug, Deserialize)]
struct DecodeRow {
    weights: String,
    embeddings: String,
    resident_gib: f64,
    workspace_bytes: u64,
    cache_bytes: u64,
    other_bytes: u64,
    us_per_token: f64,
    tokens_per_second: f64,
    speedup_vs_bf16: Option<f64>,
}

/// The table of models that generate.
pub(crate) fn decode_table(results: &DecodeResults, file: &str, command: &str) -> String {
    let DecodeResults { device, model, position, steps, repetitions, rows } = results;
    let mut out = format!(
        "Shapes of {model} with random weights on an {device}, batch 1, from position {position} on, {steps} tokens, the median of {repetitions} \
         repetitions (`{command}`, [{file}](/{file})). Resident: weights, tables and workspace as allocated.\n\n\
         | layers | embeddings | resident GiB | of it workspace MiB | KV cache MiB | context and modules MiB | us per token | tokens/s | speed |\n\
         |---|---|---|---|---|---|---|---|---|\n"
    );
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    for row in rows {
        let _ = writeln!(
            out,
            "| {} | {} | {:.2} | {} | {} | {} | {:.0} | {:.1} | {} |",
            row.weights,
            row.embeddings,
            row.resident_gib,
            mib(row.workspace_bytes),
            mib(row.cache_bytes),
            mib(row.other_bytes),
            row.us_per_token,
            row.tokens_per_second,
            row.speedup_vs_bf16.map_or_else(String::new, |x| format!("{x:.2}x")),
        );
    }
    out
}

/// Codec, distortion and speed of each product at batch 1 on the gauge's shape.
pub(crate) fn speeds(results: &KernelResults) -> Vec<(String, f64, f64)> {
    let rows = results.rows.iter().filter(|row| {
        row.is_product() && row.valid && row.batch == 1 && row.shape == GAUGE_SHAPE && row.mode == "single"
    });
    rows.filter_map(|row| {
        let name = row.codec.split('@').next().unwrap_or(&row.codec);
        let name = if row.variant.is_empty() { name.to_owned() } else { format!("{name} {}", row.variant) };
        Some((name, row.mse?, row.speedup_vs_bf16?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of a made-up device.
    pub(crate) const JSON: &str = r#"{"device": "NVIDIA X1", "driver": "13.0", "cublas": 130100, "command": "cargo xtask bench-kernels",
        "copy_gbps": 4250.4, "unique_rows": 512, "torch": {"version": "2.11"}, "rows": [
        {"op": "bf16", "codec": "bf16", "mode": "single", "shape": "14336x4096", "batch": 1, "bps_all_in": 16, "mse": null, "us": 31.0,
         "floor_fraction": 0.88, "mws": 1, "us_bf16": 31.0, "us_torch": 31.5, "speedup_vs_bf16": 1, "rel_err": 1e-4, "valid": true},
        {"op": "bf16", "codec": "bf16", "mode": "single", "shape": "14336x4096", "batch": 4, "bps_all_in": 16, "mse": null, "us": 32.0,
         "floor_fraction": 0.88, "mws": 1, "us_bf16": 32.0, "us_torch": null, "speedup_vs_bf16": 1, "rel_err": 1e-4, "valid": true},
        {"op": "shift_gemv", "codec": "shift-16@2", "mode": "single", "shape": "14336x4096", "batch": 1, "bps_all_in": 2.004, "mse": 0.0681,
         "us": 12.4, "floor_fraction": 0.3, "mws": 1, "us_bf16": 31.0, "us_torch": null, "speedup_vs_bf16": 2.5, "rel_err": 2e-4, "valid": true},
        {"op": "shift_gemm", "codec": "shift-16@2", "variant": "tiles", "mode": "single", "shape": "14336x4096", "batch": 4, "bps_all_in": 2.004,
         "mse": 0.0683, "us": 16.0, "floor_fraction": 0.3, "mws": 1, "us_bf16": 32.0, "us_torch": null, "speedup_vs_bf16": 2.0, "rel_err": 2e-1,
         "valid": false},
        {"op": "kv_attend", "codec": "shift-12@4", "variant": "step", "mode": "single", "shape": "8192x2048", "batch": 1, "bps_all_in": 3.97,
         "mse": null, "us": 16.0, "floor_fraction": 0.1, "mws": 1, "us_bf16": 18.0, "us_torch": 23.0, "speedup_vs_bf16": 1.13, "rel_err": 1e-3,
         "valid": true},
        {"op": "rht", "codec": "-", "mode": "single", "shape": "1x4096", "batch": 1, "bps_all_in": null, "mse": null, "us": 1.7,
         "floor_fraction": 0.01, "mws": 0, "us_bf16": null, "us_torch": null, "speedup_vs_bf16": null, "rel_err": null, "valid": true}]}"#;

    #[test]
    fn a_run_becomes_tables() {
        let results: KernelResults = serde_json::from_str(JSON).unwrap();
        let text = tables(&results, "docs/results/x1-kernels.json");
        for line in [
            "cuBLAS 13.1, PyTorch 2.11, copy 4250 GB/s",
            "| cuBLAS | bf16 | 16 | 0 | 31.0 |",
            "| PyTorch | bf16 | 16 | 0 | 31.5 |",
            "| shift_gemv | shift-16@2 | 2.004 | 0.06810 | 12.4 (2.50x) |",
            "| shift_gemm | shift-16@2 tiles | 2.004 | 0.06830 | 16.0 (2.00x) WRONG |",
            "| rht | - | 1x4096 | 1 | 1.7 | 0 | 1 % |",
            "| PyTorch, flash, attention alone | 16 |  | 23.0 |",
            "| shift-12@4 step | 3.970 | 1.0e-3 | 16.0 (1.13x) |",
            "1 rows are wrong",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert_eq!(speeds(&results), [("shift-16".to_owned(), 0.0681, 2.5)]);
    }

    #[test]
    fn a_model_that_generates_has_a_line() {
        let json = r#"{"device": "NVIDIA X1", "model": "llama", "position": 128, "steps": 64, "repetitions": 5, "graph": true, "rows": [
            {"weights": "bf16", "embeddings": "bf16", "resident_gib": 14.96, "workspace_bytes": 1048576, "cache_bytes": 2097152,
             "other_bytes": 524288, "us_per_token": 4000.0, "tokens_per_second": 250.0, "speedup_vs_bf16": 1.0},
            {"weights": "shift-16@4", "embeddings": "bf16", "resident_gib": 5.27, "workspace_bytes": 1048576, "cache_bytes": 2097152,
             "other_bytes": 524288, "us_per_token": 2000.0, "tokens_per_second": 500.0, "speedup_vs_bf16": 2.0}]}"#;
        let text = decode_table(&serde_json::from_str(json).unwrap(), "d.json", "decode");
        assert!(text.contains("| shift-16@4 | bf16 | 5.27 | 1.0 | 2.0 | 0.5 | 2000 | 500.0 | 2.00x |"), "{text}");
    }
}
