//! Carries a plan out: scan, encode, measure, write, rename.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gosset_container::{Container, ContainerError, Writer};

use crate::budget::Pace;
use crate::calibration::Activations;
use crate::encode::{Measured, encode};
use crate::error::QuantizeError;
use crate::observer::{Event, Observer};
use crate::plan::{Action, Plan, PlanItem};
use crate::report::Report;
use crate::resumable::Resumable;
use crate::scan::scan_all;
use crate::source::ModelSource;
use crate::summary::report;
use crate::work::{self, WorkFolder};

/// How a run treats files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunOptions {
    /// Whether an existing output is replaced.
    pub overwrite: bool,
    /// Whether an unfinished run of the same output is thrown away instead of taken up.
    pub restart: bool,
    /// Whether a run without calibration keeps what is finished, to be taken up after an interruption; calibrated runs always do.
    pub resumable: bool,
    /// Whether the system may forget input pages as soon as their tensor is finished, where memory is short; another run would find them
    /// in its cache.
    pub release_input: bool,
}

impl RunOptions {
    /// An existing output is replaced; otherwise the defaults.
    pub fn replacing() -> Self {
        RunOptions { overwrite: true, ..Self::default() }
    }
}

/// Quantizes `source` as `plan` says into one container at `out`, with the `activations` that some methods need.
///
/// Memory holds one tensor at a time, its f32 values and its planes ([`Plan::peak_bytes`]), a block in runs that tune, several tensors in
/// bounded memory ([`Plan::encode_peak_bytes`]) in other runs with activations, and what these take; the next tensor is read ahead into
/// the cache of the system. The
/// file appears under its name when it is complete. The bytes depend on the source and the options only; with activations on the
/// kind of processor too, never on the number of threads.
///
/// A run with activations, and any run that is asked to be resumable, keeps every finished tensor in the folder `<out>.work` until it is
/// complete. When it was stopped or killed, at whatever moment, the same call goes on from there and ends with the same bytes; a call
/// for another job is refused unless it restarts. Other runs that fail or are cancelled leave nothing behind.
///
/// # Errors
///
/// [`QuantizeError::NonFinite`] and [`QuantizeError::BeyondF32`] before anything is written if a tensor to be quantized holds NaN,
/// infinity, or what is infinite as f32;
/// [`QuantizeError::NeedsCalibration`] without the activations that a method needs, [`QuantizeError::CalibrationDiffers`] if the plan asks
/// for others; [`QuantizeError::Locked`] and [`QuantizeError::OtherJob`] for a work folder in use or of another job;
/// [`QuantizeError::OutputIsInput`], [`QuantizeError::Cancelled`], [`QuantizeError::Paused`], and the errors of source, activations, codec and
/// container.
pub fn run(
    plan: &Plan,
    source: &dyn ModelSource,
    activations: Option<&mut dyn Activations>,
    out: &Path,
    options: &RunOptions,
    observer: &dyn Observer,
) -> Result<Report, QuantizeError> {
    refuse_input_as_output(source, out)?;
    if !plan.needs_calibration() {
        return if options.resumable {
            Resumable::new(plan, source, None, observer).run(out, options)
        } else {
            direct(plan, source, out, options, observer)
        };
    }
    let Some(activations) = activations else {
        let method = plan.options.codec.clone();
        let instead = method.split_once('+').map_or("e8", |(codec, _)| codec);
        let instead = if instead.starts_with("unisvq") { "e8" } else { instead }.to_owned();
        return Err(QuantizeError::NeedsCalibration { method, instead });
    };
    if activations.is_sequential()
        && let Some(part) = plan.asked_part()
    {
        let reason = "inputs from the quantized layers before need all of them; calibrate without --sequential";
        return Err(QuantizeError::PartImpossible { part, reason });
    }
    let plan = plan.calibrated(activations.record())?;
    Resumable::new(&plan, source, Some(activations), observer).run(out, options)
}

/// The run that writes every tensor as it comes and keeps nothing if it is interrupted.
fn direct(
    plan: &Plan,
    source: &dyn ModelSource,
    out: &Path,
    options: &RunOptions,
    observer: &dyn Observer,
) -> Result<Report, QuantizeError> {
    let mut writer = Writer::create(out, options.overwrite)?;
    // For the lock, and because what an unfinished run left is not to be forgotten there.
    let _work = WorkFolder::open(out, &work::job("not kept".into(), &plan.recipe(), false), options.restart)?;
    let mut warnings = plan.warnings.clone();
    warnings.iter().for_each(|message| observer.event(&Event::Warning { message }));
    scan_all(plan, source, observer, &mut warnings)?;

    let total = plan.items.len();
    let weights_total = plan.items.iter().filter(|i| is_stored(i)).map(|i| i.tensor.n_weights()).sum();
    let started = Instant::now();
    let mut weights_done = 0;
    let mut measured = Vec::with_capacity(total);
    let mut pace = plan.pace();
    for (index, item) in plan.items.iter().enumerate() {
        if observer.cancelled() {
            return Err(QuantizeError::Cancelled { done: index, total });
        }
        let (tensor, n_weights) = (item.tensor.name.as_str(), item.tensor.n_weights());
        observer.event(&Event::Started { tensor, index, total, n_weights });
        if let Some(next) = plan.items[index + 1..].iter().find(|i| is_stored(i)) {
            source.read_ahead(next.index);
        }
        measured.push(store(item, index, source, &mut writer, pace.as_mut())?);
        if options.release_input {
            source.release(item.index);
        }
        if is_stored(item) {
            weights_done += n_weights;
        }
        let elapsed = started.elapsed();
        observer.event(&Event::Finished { tensor, index, total, weights_done, weights_total, elapsed });
    }
    if observer.cancelled() {
        return Err(QuantizeError::Cancelled { done: total, total });
    }
    finish(plan, source, writer, pace.as_ref(), observer)?;
    let ledger = Container::open(out)?.ledger()?;
    Ok(report(plan, &ledger, &measured, warnings, None))
}

/// Side files, header, name.
pub(crate) fn finish(
    plan: &Plan,
    source: &dyn ModelSource,
    mut writer: Writer,
    pace: Option<&Pace>,
    observer: &dyn Observer,
) -> Result<(), QuantizeError> {
    for (name, bytes) in source.blobs().into_iter().filter(|_| plan.has_blobs()) {
        writer.add_blob(name, plan.blob(name, bytes))?;
    }
    observer.event(&Event::Writing);
    let info = plan.manifest_info();
    if let Some(pace) = pace {
        pace.check(writer.header_bytes(&info)?)?;
    }
    writer.finish(info)?;
    Ok(())
}

pub(crate) fn is_stored(item: &PlanItem) -> bool {
    !matches!(item.action, Action::Skip { .. })
}

fn store(
    item: &PlanItem,
    index: usize,
    source: &dyn ModelSource,
    writer: &mut Writer,
    pace: Option<&mut Pace>,
) -> Result<Measured, QuantizeError> {
    match &item.action {
        Action::Quantize { method, target_bps } => {
            let (stored, mut measured) = encode(item, index, (method, *target_bps), source, None, pace)?;
            let decoder = stored.decoder(&item.tensor.name)?;
            measured.energy = decoder.energy(source, item.index, &item.tensor.name)?;
            measured.exact_rows = decoder.n_exact_rows();
            drop(decoder);
            stored.write(&item.tensor, writer)?;
            Ok(measured)
        }
        Action::Keep { reason, .. } => {
            keep(item, reason, source, writer)?;
            Ok(Measured::default())
        }
        Action::Skip { .. } => Ok(Measured::default()),
    }
}

/// Copies a tensor bit-exact.
pub(crate) fn keep(
    item: &PlanItem,
    reason: &str,
    source: &dyn ModelSource,
    writer: &mut Writer,
) -> Result<(), QuantizeError> {
    let t = &item.tensor;
    writer.add_raw_with(&t.name, &t.dtype, &t.shape, t.n_bytes, reason, |out| {
        source.copy_raw(item.index, out).map_err(QuantizeError::from)
    })
}

/// Whether `error` says that the output is there already.
pub(crate) fn is_there(error: &ContainerError) -> bool {
    matches!(error, ContainerError::Exists { .. })
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
