//! Carries a plan out: scan, encode, measure, write, rename.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gosset_codec::{DecodeScratch, Decoder, EncodedMatrix};
use gosset_container::{Container, Ledger, Writer};
use rayon::prelude::*;

use crate::budget::{Pace, forecast_of, weight};
use crate::calibration::Activations;
use crate::error::{QuantizeError, SourceError};
use crate::method::Method;
use crate::observer::{Event, Observer};
use crate::plan::{Action, Plan, PlanItem};
use crate::policy::is_float;
use crate::report::{Report, TensorReport, group_fallbacks};
use crate::scan::{self, BLOCK_VALUES};
use crate::source::ModelSource;

/// Signal and noise energy of a tensor.
#[derive(Debug, Clone, Copy, Default)]
struct Energy {
    signal: f64,
    noise: f64,
}

/// How a run treats files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunOptions {
    /// Whether an existing output is replaced.
    pub overwrite: bool,
    /// Whether an unfinished run of the same output is thrown away instead of taken up.
    pub restart: bool,
    /// Whether a run without calibration keeps what is finished, to be taken up after an interruption; calibrated runs always do.
    pub resumable: bool,
}

impl RunOptions {
    /// An existing output is replaced; otherwise the defaults.
    pub fn replacing() -> Self {
        RunOptions { overwrite: true, ..Self::default() }
    }
}

/// Quantizes `source` as `plan` says into one container at `out`.
///
/// Memory holds the f32 values of one tensor and its planes at a time. The file appears under its name when it is complete;
/// a run that fails or is cancelled leaves nothing behind. The bytes depend on the source and the options only.
///
/// # Errors
///
/// [`QuantizeError::NonFinite`] and [`QuantizeError::BeyondF32`] before anything is written if a tensor to be quantized holds NaN,
/// infinity, or what is infinite as f32;
/// [`QuantizeError::OutputIsInput`], [`QuantizeError::Cancelled`], and the errors of source, codec and container.
pub fn run(
    plan: &Plan,
    source: &dyn ModelSource,
    activations: Option<&mut dyn Activations>,
    out: &Path,
    options: &RunOptions,
    observer: &dyn Observer,
) -> Result<Report, QuantizeError> {
    let _ = activations;
    refuse_input_as_output(source, out)?;
    let mut writer = Writer::create(out, options.overwrite)?;
    let mut warnings = plan.warnings.clone();
    warnings.iter().for_each(|message| observer.event(&Event::Warning { message }));
    scan_all(plan, source, observer, &mut warnings)?;

    let total = plan.items.len();
    let weights_total = plan.items.iter().filter(|i| is_stored(i)).map(|i| i.tensor.n_weights()).sum();
    let started = Instant::now();
    let mut weights_done = 0;
    let mut measured = Vec::with_capacity(total);
    let mut pace = plan.budget.as_ref().filter(|_| plan.options.payload_bps().is_none()).map(Pace::new);
    for (index, item) in plan.items.iter().enumerate() {
        if observer.cancelled() {
            return Err(QuantizeError::Cancelled { done: index, total });
        }
        let (tensor, n_weights) = (item.tensor.name.as_str(), item.tensor.n_weights());
        observer.event(&Event::Started { tensor, index, total, n_weights });
        measured.push(store(item, index, source, &mut writer, pace.as_mut())?);
        if is_stored(item) {
            weights_done += n_weights;
        }
        let elapsed = started.elapsed();
        observer.event(&Event::Finished { tensor, index, total, weights_done, weights_total, elapsed });
    }
    for (name, bytes) in source.blobs() {
        writer.add_blob(name, plan.blob(name, bytes))?;
    }
    if observer.cancelled() {
        return Err(QuantizeError::Cancelled { done: total, total });
    }
    observer.event(&Event::Writing);
    let info = plan.manifest_info();
    if let Some(pace) = &pace {
        pace.check(writer.header_bytes(&info)?)?;
    }
    writer.finish(info)?;
    let ledger = Container::open(out)?.ledger()?;
    Ok(report(plan, &ledger, &measured, warnings))
}

/// What was measured on one tensor besides its bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    energy: Energy,
    exact_rows: u64,
    /// Payload that was asked of the codec.
    asked_bps: Option<f64>,
}

fn is_stored(item: &PlanItem) -> bool {
    !matches!(item.action, Action::Skip { .. })
}

fn scan_all(
    plan: &Plan,
    source: &dyn ModelSource,
    observer: &dyn Observer,
    warnings: &mut Vec<String>,
) -> Result<(), QuantizeError> {
    let total = plan.items.len();
    let mut bad = Vec::new();
    for (index, item) in plan.items.iter().enumerate() {
        if observer.cancelled() {
            return Err(QuantizeError::Cancelled { done: 0, total });
        }
        if !is_float(&item.tensor.dtype) || !is_stored(item) {
            continue;
        }
        let tensor = item.tensor.name.as_str();
        observer.event(&Event::Scanning { tensor, index, total });
        let findings = scan::scan(source, item.index)?;
        let quantized = matches!(item.action, Action::Quantize { .. });
        let mut warn = |message: String| {
            observer.event(&Event::Warning { message: &message });
            warnings.push(message);
        };
        if let (Some((row, column, value)), false) = (findings.first_beyond, quantized) {
            warn(format!(
                "tensor {tensor:?} is kept as it is, with {} value(s) that do not fit f32, the first ({value:e}) at row {row}, column {column}",
                findings.n_beyond
            ));
        }
        match (&findings.first_bad, quantized) {
            _ if quantized && findings.is_bad() => bad.push((tensor, findings)),
            (Some((row, column, value)), false) => warn(format!(
                "tensor {tensor:?} is kept as it is, with {} NaN and {} infinite values, the first ({value}) at row {row}, column {column}",
                findings.n_nan, findings.n_inf
            )),
            (None, true) => {
                if let Some((n, row, column, value)) = findings.outliers {
                    warn(format!(
                        "tensor {tensor:?}: {n} outlier(s) beyond 1000 times the median row RMS, the largest ({value}) at row {row}, column {column}"
                    ));
                }
            }
            _ => {}
        }
    }
    match bad.first().and_then(|(tensor, findings)| scan::non_finite(tensor, findings, bad.len())) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn store(
    item: &PlanItem,
    index: usize,
    source: &dyn ModelSource,
    writer: &mut Writer,
    pace: Option<&mut Pace>,
) -> Result<Measured, QuantizeError> {
    let t = &item.tensor;
    match &item.action {
        Action::Quantize { method, target_bps } => {
            let of_codec = |source| QuantizeError::Codec { tensor: t.name.clone(), source };
            let (matrix, asked_bps) = encode(item, index, method, *target_bps, source, pace)?;
            let decoder = matrix.decoder().map_err(of_codec)?;
            let energy = measure(source, item, &decoder)?;
            let exact_rows = decoder.n_exact_rows() as u64;
            drop(decoder);
            writer.add_matrix(&t.name, &matrix, &t.dtype)?;
            Ok(Measured { energy, exact_rows, asked_bps: Some(asked_bps) })
        }
        Action::Keep { reason, .. } => {
            writer.add_raw_with(&t.name, &t.dtype, &t.shape, t.n_bytes, reason, |out| {
                source.copy_raw(item.index, out).map_err(QuantizeError::from)
            })?;
            Ok(Measured::default())
        }
        Action::Skip { .. } => Ok(Measured::default()),
    }
}

/// The coded tensor and the payload it was asked for: the planned one, or what the budget has for it.
fn encode(
    item: &PlanItem,
    index: usize,
    method: &Method,
    planned_bps: f64,
    source: &dyn ModelSource,
    mut pace: Option<&mut Pace>,
) -> Result<(EncodedMatrix, f64), QuantizeError> {
    /// Tries after which what is there is taken; the whole is checked at the end.
    const MAX_TRIES: usize = 8;
    let t = &item.tensor;
    let (rows, cols) = t.rows_cols();
    let mut asked = pace.as_ref().map_or(planned_bps, |pace| pace.rate(index, planned_bps));
    for tries in 1.. {
        let data = read_all(source, item.index, rows, cols)?;
        let Method::Codec(spec) = (if asked == planned_bps { method.clone() } else { method.at_payload(asked) }) else {
            return Err(QuantizeError::NeedsCalibration { method: method.name(), instead: "e8".to_owned() });
        };
        let codec = spec.check();
        let encoded = codec
            .and_then(|codec| codec.encode_owned(data, rows, cols))
            .map_err(|source| QuantizeError::Codec { tensor: t.name.clone(), source })?;
        match pace
            .as_mut()
            .and_then(|pace| pace.take(index, forecast_of(t, &encoded, pace.max_bytes()), asked, tries == MAX_TRIES))
        {
            Some(lower) => asked = lower,
            None => return Ok((encoded, asked)),
        }
    }
    unreachable!("the last try is taken")
}

/// All values of a tensor as f32, read in blocks by several threads.
fn read_all(source: &dyn ModelSource, index: usize, rows: usize, cols: usize) -> Result<Vec<f32>, SourceError> {
    let step = (BLOCK_VALUES / cols.max(1)).max(1);
    let mut data = vec![0f32; rows * cols];
    data.par_chunks_mut(step * cols).enumerate().try_for_each(|(b, out)| {
        let first = b * step;
        source.read_rows(index, first..first + out.len() / cols, out)
    })?;
    Ok(data)
}

/// Signal and noise of the decoded planes against the source, read once more; blocks are summed in order.
fn measure(source: &dyn ModelSource, item: &PlanItem, decoder: &Decoder<'_>) -> Result<Energy, QuantizeError> {
    let (rows, cols) = (decoder.rows(), decoder.cols());
    let unit = decoder.row_block();
    let step = unit * (BLOCK_VALUES / (unit * cols)).max(1);
    let blocks: Vec<Energy> = (0..rows.div_ceil(step))
        .into_par_iter()
        .map_init(
            || (DecodeScratch::new(), Vec::new(), Vec::new()),
            |(scratch, original, decoded), b| {
                let block = b * step..((b + 1) * step).min(rows);
                original.resize(block.len() * cols, 0f32);
                decoded.resize(block.len() * cols, 0f32);
                source.read_rows(item.index, block.clone(), original)?;
                decoder
                    .decode_rows(block, decoded, scratch)
                    .map_err(|source| QuantizeError::Codec { tensor: item.tensor.name.clone(), source })?;
                Ok(energy(original, decoded))
            },
        )
        .collect::<Result<_, QuantizeError>>()?;
    let sum = |f: fn(&Energy) -> f64| blocks.iter().map(f).sum();
    Ok(Energy { signal: sum(|e| e.signal), noise: sum(|e| e.noise) })
}

fn energy(original: &[f32], decoded: &[f32]) -> Energy {
    const LANES: usize = 8;
    let (mut signal, mut noise) = ([0f64; LANES], [0f64; LANES]);
    let mut add = |lane: usize, x: f32, y: f32| {
        let (x, y) = (f64::from(x), f64::from(y));
        signal[lane] += x * x;
        noise[lane] += (x - y) * (x - y);
    };
    let ((xs, x_rest), (ys, y_rest)) = (original.as_chunks::<LANES>(), decoded.as_chunks::<LANES>());
    for (x, y) in xs.iter().zip(ys) {
        (0..LANES).for_each(|i| add(i, x[i], y[i]));
    }
    x_rest.iter().zip(y_rest).enumerate().for_each(|(i, (&x, &y))| add(i, x, y));
    Energy { signal: signal.iter().sum(), noise: noise.iter().sum() }
}

fn relative_error(e: Energy) -> Option<f64> {
    (e.signal > 0.0).then(|| e.noise / e.signal)
}

fn snr_db(e: Energy) -> Option<f64> {
    (e.signal > 0.0 && e.noise > 0.0).then(|| 10.0 * (e.signal / e.noise).log10())
}

fn report(plan: &Plan, ledger: &Ledger, measured: &[Measured], mut warnings: Vec<String>) -> Report {
    let mut total = Energy::default();
    let mut tensors = Vec::with_capacity(plan.items.len());
    for (item, m) in plan.items.iter().zip(measured) {
        total.signal += m.energy.signal;
        total.noise += m.energy.noise;
        let entry = ledger.tensor(&item.tensor.name);
        let bytes = entry.map_or(0, |e| e.causes.total_bits() / 8);
        let (action, reason, target_bps) = match &item.action {
            Action::Quantize { target_bps, .. } => ("quantized", None, m.asked_bps.or(Some(*target_bps))),
            Action::Keep { reason, .. } => ("kept", Some(reason.clone()), None),
            Action::Skip { reason } => ("skipped", Some(reason.clone()), None),
        };
        let rate = entry.map(gosset_container::LedgerEntry::rate).filter(|_| target_bps.is_some());
        let n_weights = item.tensor.n_weights();
        tensors.push(TensorReport {
            name: item.tensor.name.clone(),
            action,
            reason,
            shape: item.tensor.shape.clone(),
            dtype: item.tensor.dtype.clone(),
            n_weights,
            bytes,
            target_bps,
            payload_bps: rate.map(|r| r.payload_bps()),
            stream_bps: rate.map(|r| r.stream_bps()),
            all_in_bps: (n_weights > 0 && bytes > 0).then(|| bytes as f64 * 8.0 / n_weights as f64),
            relative_error: relative_error(m.energy),
            snr_db: snr_db(m.energy),
            weight: target_bps.map(|_| weight(&plan.options, &item.tensor.name)),
            exact_rows: m.exact_rows,
        });
    }
    warnings.extend(tensors.iter().filter_map(missed_target));
    let exact_rows: u64 = measured.iter().map(|m| m.exact_rows).sum();
    if exact_rows > 0 {
        let n = measured.iter().filter(|m| m.exact_rows > 0).count();
        warnings.push(format!("{exact_rows} row(s) of {n} tensor(s) have no usable scale and are stored exactly"));
    }
    let fallbacks = plan.items.iter().filter_map(|i| match &i.action {
        Action::Keep { reason, fallback: true } => {
            Some((reason.as_str(), i.tensor.name.as_str(), i.tensor.n_weights()))
        }
        _ => None,
    });
    let rate = ledger.coded_rate();
    Report {
        codec: plan.options.codec.clone(),
        target: plan.options.target,
        allocation: plan.options.allocation,
        payload_bps: rate.payload_bps(),
        stream_bps: rate.stream_bps(),
        all_in_bps: rate.all_in_bps(),
        file_bps: ledger.file_bps(),
        file_bytes: ledger.file_bytes,
        source_bytes: plan.source.total_bytes,
        n_params: ledger.n_params,
        n_quantized: ledger.n_quantized,
        causes: ledger.causes,
        snr_db: snr_db(total),
        exact_rows,
        policy: plan.policy.to_owned(),
        tie: plan.tie,
        fallbacks: group_fallbacks(fallbacks),
        tensors,
        warnings,
        recipe: plan.options.to_recipe(),
    }
}

/// What to warn about if the payload of a tensor is not the one asked for, which small tensors never meet exactly.
fn missed_target(t: &TensorReport) -> Option<String> {
    const MIN_WEIGHTS: u64 = 1 << 16;
    const TOLERANCE: f64 = 0.01;
    let (asked, reached) = (t.target_bps?, t.payload_bps?);
    let missed = t.n_weights >= MIN_WEIGHTS && (reached - asked).abs() > TOLERANCE;
    missed.then(|| {
        format!(
            "tensor {:?}: asked for {asked} bits per weight, reached {reached:.3}: its values are not spread as usual",
            t.name
        )
    })
}

/// Refuses an output that is one of the input files or lies in the input folder.
fn refuse_input_as_output(source: &dyn ModelSource, out: &Path) -> Result<(), QuantizeError> {
    let Some(target) = real_path(out) else { return Ok(()) };
    for file in &source.info().files {
        let Ok(input) = fs::canonicalize(file) else { continue };
        if input == target {
            return Err(QuantizeError::OutputIsInput { out: out.to_owned(), input: file.clone() });
        }
    }
    if let Some(folder) = source.folder()
        && fs::canonicalize(folder).is_ok_and(|input| target.starts_with(input))
    {
        return Err(QuantizeError::OutputIsInput { out: out.to_owned(), input: folder.to_owned() });
    }
    Ok(())
}

/// The path of a file that need not exist, without links in its folder or itself.
fn real_path(path: &Path) -> Option<PathBuf> {
    if let Ok(real) = fs::canonicalize(path) {
        return Some(real);
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(fs::canonicalize(folder).ok()?.join(path.file_name()?))
}
