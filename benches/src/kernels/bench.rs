//! The device part: every operation, shape and batch that was asked for.

use std::collections::HashMap;

use anyhow::{Context, Result};
use gosset_codec::{CodecSpec, SchemeSpec, ShiftOrderKind, calibrate};
use gosset_cuda::{CudaError, Gpu, Stream};

use super::args::{Args, Op, Shape};
use super::block::{Block, Encoded};
use super::dense::{self, Arm, Dense, DenseWeights};
use super::report::{Report, Row};
use super::timing::Timing;
use super::{candidates, container, decode, fixed, kv, note, quantize, rht, unisvq};

/// The shape and batch by which a run is judged: research saw 30.4 to 33.0 us on an H200 through PyTorch.
const GAUGE: (Shape, usize) = (Shape { rows: 14336, cols: 4096 }, 1);
/// Microseconds of the dense product at which a run does not count on an H200: its floor is 27.3.
const MAX_GAUGE_US: f64 = 33.0;

/// What all operations share.
pub(super) struct Bench<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) stream: Stream,
    pub(super) args: &'a Args,
    pub(super) dense: Option<Dense>,
    /// Bytes read and written per second of a large copy.
    pub(super) copy_bandwidth: f64,
    pub(super) report: &'a mut Report,
    blocks: HashMap<Shape, Block>,
}

/// One row to be.
pub(super) struct Entry<'a> {
    pub(super) op: Op,
    pub(super) codec: &'a str,
    pub(super) variant: &'a str,
    pub(super) shape: Shape,
    pub(super) batch: usize,
    pub(super) payload_bps: Option<f64>,
    pub(super) mse: Option<f64>,
    /// Bytes of the matrix on the device.
    pub(super) matrix_bytes: usize,
    /// Bytes of activations and outputs.
    pub(super) other_bytes: usize,
    pub(super) copies: usize,
    pub(super) rel_err: Option<f64>,
    pub(super) valid: bool,
    /// Whether the dense product of the same shape is the peer.
    pub(super) is_product: bool,
    pub(super) note: &'a str,
}

/// Measures everything that was asked for.
pub(super) fn run(gpu: &Gpu, args: &Args, report: &mut Report) -> Result<()> {
    let stream = gpu.stream()?;
    let info = gpu.info();
    report.device = info.name.clone();
    report.driver = format!("{}.{}", info.driver.0, info.driver.1);
    let mut copy_bandwidth = f64::INFINITY;
    if !args.check {
        copy_bandwidth = dense::copy_bandwidth(gpu, &stream, args.replays())?;
        report.copy_gbps = Some(copy_bandwidth * 1e-9);
        note(&format!("copy: {:.0} GB/s", copy_bandwidth * 1e-9));
    }
    let dense = match Dense::new(gpu) {
        _ if args.check => None,
        Ok(dense) => {
            report.cublas = Some(dense.version()?);
            Some(dense)
        }
        Err(error) => {
            report.problems.push(format!("no dense product to compare with: {error:#}"));
            None
        }
    };
    let mut bench = Bench { gpu, stream, args, dense, copy_bandwidth, report, blocks: HashMap::new() };
    let shapes = args.shapes();
    let mut encoded = candidates::Cache::new();
    if args.wants(Op::Rht) {
        rht::run(&mut bench, &shapes)?;
    }
    if args.wants(Op::KvAttend) {
        kv::run(&mut bench)?;
    }
    for &shape in &shapes {
        if !args.check && Op::ALL.iter().any(|op| op.is_product() && args.wants(*op)) {
            bench.dense_arms(shape)?;
        }
        candidates::run(&mut bench, shape, &mut encoded)?;
        if args.wants(Op::FixedGemv) {
            fixed::run(&mut bench, shape)?;
        }
        if args.wants(Op::UnisvqGemv) || args.wants(Op::UnisvqGemm) {
            unisvq::run(&mut bench, shape)?;
        }
        if args.wants(Op::Decode) && (args.check || shape == GAUGE.0 || shapes.len() == 1) {
            decode::run(&mut bench, shape)?;
        }
        if args.wants(Op::Quantize) && (args.check || shape == GAUGE.0 || shapes.len() == 1) {
            quantize::run(&mut bench, shape)?;
        }
        // What is measured is kept even if a later shape is cut off.
        super::keep(args, bench.report)?;
    }
    for path in &args.container {
        container::run(&mut bench, path, args.container_matrices)?;
    }
    bench.judge_gauge();
    Ok(())
}

impl Bench<'_> {
    /// The rows that matrices of `shape` repeat.
    pub(super) fn block(&mut self, shape: Shape) -> &Block {
        let (unique, seed) = (self.args.unique_rows as usize, self.args.seed);
        self.blocks.entry(shape).or_insert_with(|| Block::new(shape, unique, seed))
    }

    /// The block under a codec: on the device where it can, whose planes are the CPU's (`quantize` checks that).
    pub(super) fn encode(&self, codec: &str, order: ShiftOrderKind, block: &Block) -> Result<Encoded> {
        let mut spec = CodecSpec::parse(codec)?;
        if let SchemeSpec::Shift { order: asked, .. } = &mut spec.scheme {
            *asked = order;
        }
        if self.args.check {
            return Encoded::new(codec, order, block);
        }
        let data = self.gpu.upload(&block.weights)?;
        match gosset_cuda::launch::quantize::encode(self.gpu, &spec, data.as_slice(), block.rows(), block.cols) {
            Ok(matrix) => Encoded::of(codec, spec, matrix, block),
            Err(CudaError::Unsupported { .. }) => Encoded::new(codec, order, block),
            Err(error) => Err(error.into()),
        }
    }

    /// `batch` activations for a matrix of that width.
    pub(super) fn activations(&self, cols: usize, batch: usize) -> Vec<f32> {
        calibrate::gaussian(cols * batch, self.args.seed.wrapping_add(0x5EED))
    }

    /// Times the dense products of a shape.
    fn dense_arms(&mut self, shape: Shape) -> Result<()> {
        let Some(mut dense) = self.dense.take() else { return Ok(()) };
        self.block(shape);
        let weights = DenseWeights::new(self.gpu, &self.stream, shape, &self.blocks[&shape])?;
        for batch in self.args.batches()? {
            let x = self.activations(shape.cols, batch);
            let arm = dense
                .measure(self.gpu, &self.stream, &weights, &x, self.args.replays())
                .with_context(|| format!("the dense product of {shape}, batch {batch}"))?
                .clone();
            note(&format!("bf16 {shape} batch {batch}: {:.2} us, {}", arm.single.us, arm.kernel));
            let row = self.dense_row(shape, batch, &arm, arm.single, "single");
            self.report.rows.push(row);
            if let Some(layers) = arm.layers {
                let row = self.dense_row(shape, batch, &arm, layers, "layers");
                self.report.rows.push(row);
            }
        }
        self.dense = Some(dense);
        Ok(())
    }

    fn dense_row(&self, shape: Shape, batch: usize, arm: &Arm, timing: Timing, mode: &str) -> Row {
        Row {
            op: "bf16".to_owned(),
            codec: "bf16".to_owned(),
            mode: mode.to_owned(),
            shape: shape.to_string(),
            batch,
            bps: Some(16.0),
            bps_all_in: Some(16.0),
            us: timing.us,
            us_min: timing.us_min,
            gbps: arm.bytes as f64 / timing.us * 1e-3,
            floor_fraction: self.floor_fraction(arm.bytes, timing.us),
            mws: shape.n_weights() as f64 / timing.us,
            us_bf16: Some(timing.us),
            bf16_kernel: Some(arm.kernel.clone()),
            us_torch: self.torch_us(shape, batch),
            speedup_vs_bf16: Some(1.0),
            rel_err: Some(arm.rel_err),
            copies: arm.copies,
            valid: true,
            ..Row::default()
        }
    }

    /// The row of an operation that took `timing`.
    pub(super) fn push(&mut self, entry: &Entry<'_>, timing: Option<Timing>, mode: &str) {
        let Entry { shape, batch, .. } = *entry;
        let bytes = entry.matrix_bytes + entry.other_bytes;
        let arm = self.dense.as_ref().filter(|_| entry.is_product).and_then(|dense| dense.arm(shape, batch));
        let us_bf16 = arm.and_then(|arm| match mode {
            "layers" => arm.layers.map(|layers| layers.us),
            _ => Some(arm.single.us),
        });
        let n_weights = shape.n_weights() as f64;
        let timing = timing.unwrap_or(Timing::NONE);
        let row = Row {
            op: entry.op.name().to_owned(),
            codec: entry.codec.to_owned(),
            variant: entry.variant.to_owned(),
            mode: mode.to_owned(),
            shape: shape.to_string(),
            batch,
            bps: entry.payload_bps,
            bps_all_in: entry.payload_bps.map(|_| 8.0 * entry.matrix_bytes as f64 / n_weights),
            mse: entry.mse,
            us: timing.us,
            us_min: timing.us_min,
            gbps: per_us(bytes as f64 * 1e-3, timing.us),
            floor_fraction: self.floor_fraction(bytes, timing.us),
            mws: per_us(n_weights, timing.us),
            us_bf16,
            bf16_kernel: arm.map(|arm| arm.kernel.clone()),
            us_torch: self.torch_us(shape, batch).filter(|_| entry.is_product),
            speedup_vs_bf16: us_bf16.map(|us| us / timing.us),
            rel_err: entry.rel_err,
            copies: entry.copies,
            valid: entry.valid,
            note: entry.note.to_owned(),
        };
        note(&format!(
            "{} {} {} {shape} batch {batch} {mode}: {:.2} us, error {:.1e}{}",
            row.op,
            row.codec,
            row.variant,
            row.us,
            row.rel_err.unwrap_or_default(),
            row.speedup_vs_bf16.map_or_else(String::new, |x| format!(", {x:.2} x bf16")),
        ));
        self.report.rows.push(row);
    }

    /// A row that is wrong makes the run invalid.
    pub(super) fn judge(&mut self, what: &str, rel_err: f64, most: f64) -> bool {
        let valid = rel_err <= most;
        if !valid {
            let line = format!("{what}: an output is off by {rel_err:.1e}, more than {most:.1e}");
            note(&line);
            self.report.problems.push(line);
        }
        valid
    }

    pub(super) fn floor_fraction(&self, bytes: usize, us: f64) -> f64 {
        per_us(bytes as f64 / self.copy_bandwidth * 1e6, us)
    }

    pub(super) fn torch_us(&self, shape: Shape, batch: usize) -> Option<f64> {
        let rows = &self.report.torch.as_ref()?.rows;
        rows.iter().find(|row| row.shape == shape.to_string() && row.batch == batch).map(|row| row.us)
    }

    /// A dense product that is slower than it should be would flatter everything beside it.
    fn judge_gauge(&mut self) {
        let Some(arm) = self.dense.as_ref().and_then(|dense| dense.arm(GAUGE.0, GAUGE.1)) else { return };
        if self.report.device.contains("H200") && arm.single.us > MAX_GAUGE_US {
            let (shape, us) = (GAUGE.0, arm.single.us);
            let line = format!("bf16 takes {us:.2} us on {shape} at batch 1, more than {MAX_GAUGE_US}");
            self.report.problems.push(line);
        }
    }
}

/// A number per microsecond; 0 for an operation that was checked only.
fn per_us(n: f64, us: f64) -> f64 {
    if us > 0.0 { n / us } else { 0.0 }
}
