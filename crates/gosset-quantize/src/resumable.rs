//! The run that keeps what is finished: in the order of the activations, part by part, composed at the end in the order of the source.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gosset_container::{Container, Writer};
use gosset_unisvq::UniSvqMatrix;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::budget::Pace;
use crate::calibration::{Activations, InputMoments, TunedBlock};
use crate::encode::{Measured, encode};
use crate::error::{QuantizeError, SourceError};
use crate::method::Method;
use crate::observer::{Event, Observer};
use crate::plan::{Action, Plan, PlanItem, batch_len, block_of};
use crate::report::{Report, TunedFigures};
use crate::run::{RunOptions, finish, is_stored, is_there, keep};
use crate::scan::scan_all;
use crate::source::ModelSource;
use crate::stored::{Stored, forecast_in, values_in};
use crate::summary::{CalibrationCourse, report};
use crate::work::{self, WorkFolder};

/// Why a norm is f32 in the output.
const TUNED: &str = "tuned";

/// What is finished together: a tensor, or the tensors of a block that is tuned. Indices of the plan in the order of the work.
#[derive(Debug)]
struct Unit {
    items: Vec<usize>,
    /// The block, if it is tuned.
    block: Option<String>,
}

/// Figures of a part, kept with it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Figures {
    /// By tensor name.
    measured: Vec<(String, Measured)>,
    tuned: Option<TunedFigures>,
}

/// A run under way.
pub(crate) struct Resumable<'a> {
    plan: &'a Plan,
    source: &'a dyn ModelSource,
    activations: Option<&'a mut dyn Activations>,
    observer: &'a dyn Observer,
    pace: Option<Pace>,
    /// By index of the plan.
    measured: Vec<Measured>,
    tuned: Vec<TunedFigures>,
    /// The part that holds a tensor, by name.
    parts: HashMap<String, Arc<Container>>,
    calibrating: Duration,
    /// Tensors that are finished, and how many there are to be.
    done: usize,
    total: usize,
    weights_done: u64,
    started: Instant,
    release_input: bool,
}

impl<'a> Resumable<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        source: &'a dyn ModelSource,
        activations: Option<&'a mut dyn Activations>,
        observer: &'a dyn Observer,
    ) -> Self {
        Resumable {
            plan,
            source,
            activations,
            observer,
            pace: plan.pace(),
            measured: vec![Measured::default(); plan.items.len()],
            tuned: Vec::new(),
            parts: HashMap::new(),
            calibrating: Duration::ZERO,
            done: 0,
            total: plan.items.iter().filter(|item| is_quantized(item)).count(),
            weights_done: 0,
            started: Instant::now(),
            release_input: false,
        }
    }

    pub(crate) fn run(mut self, out: &Path, options: &RunOptions) -> Result<Report, QuantizeError> {
        self.release_input = options.release_input;
        let folder = work::folder_of(out);
        let writer = match Writer::create(out, options.overwrite) {
            Ok(writer) => Some(writer),
            // Perhaps a run that was killed after its last step.
            Err(e) if is_there(&e) && folder.is_dir() && !options.restart => None,
            Err(e) => return Err(e.into()),
        };
        let units = self.units()?;
        let recipe = self.plan.recipe();
        let is_calibrated = self.activations.is_some();
        let job = work::job(identity(self.plan, self.source, is_calibrated)?, &recipe, is_calibrated);
        let work = WorkFolder::open(out, &job, options.restart)?;
        let Some(mut writer) = writer else { return self.finished_before(out, work, &units) };

        let mut warnings = self.plan.warnings.clone();
        warnings.iter().for_each(|message| self.observer.event(&Event::Warning { message }));
        scan_all(self.plan, self.source, self.observer, &mut warnings)?;
        self.take_up(&work, &units)?;
        self.started = Instant::now();
        let mut left: Vec<&Unit> =
            units.iter().filter(|unit| !self.parts.contains_key(self.name(unit.items[0]))).collect();
        while !left.is_empty() {
            let batch: Vec<&Unit> = left.drain(..self.batch_len(&left)).collect();
            let result = match batch[..] {
                [unit] => self.work_on(&work, unit),
                _ => self.work_on_batch(&work, &batch),
            };
            // Activations that were asked to stop do not know what is finished.
            result.map_err(|e| match e {
                QuantizeError::Cancelled { .. } => self.stopped(&work),
                e => e,
            })?;
        }
        self.check_cancelled(&work)?;

        self.compose(&mut writer)?;
        finish(self.plan, self.source, writer, self.pace.as_ref(), self.observer)?;
        let report = self.report(out, warnings)?;
        self.parts.clear();
        work.remove()?;
        Ok(report)
    }

    /// The report of a run that was complete but for its work folder.
    fn finished_before(mut self, out: &Path, work: WorkFolder, units: &[Unit]) -> Result<Report, QuantizeError> {
        let exists = || gosset_container::ContainerError::Exists { path: out.to_owned() };
        self.take_up(&work, units)?;
        let is_ours = self.done == self.total && {
            let found = Container::open(out)?;
            let info = self.plan.manifest_info();
            found.verify()?;
            (&found.manifest().source, &found.manifest().recipe) == (&info.source, &info.recipe)
        };
        if !is_ours {
            return Err(exists().into());
        }
        let report = self.report(out, self.plan.warnings.clone())?;
        self.parts.clear();
        work.remove()?;
        Ok(report)
    }

    fn report(&self, out: &Path, warnings: Vec<String>) -> Result<Report, QuantizeError> {
        let ledger = Container::open(out)?.ledger()?;
        let course = self.plan.options.calibration.clone().filter(|_| self.activations.is_some()).map(|record| {
            let quantizing = self.started.elapsed().saturating_sub(self.calibrating);
            CalibrationCourse {
                record,
                tuned: self.tuned.clone(),
                calibrating_s: self.calibrating.as_secs_f64(),
                quantizing_s: quantizing.as_secs_f64(),
            }
        });
        Ok(report(self.plan, &ledger, &self.measured, warnings, course))
    }

    fn name(&self, index: usize) -> &'a str {
        self.plan.items[index].tensor.name.as_str()
    }

    /// The tensors to be quantized, in the order of the activations, those of a block that is tuned together.
    fn units(&self) -> Result<Vec<Unit>, QuantizeError> {
        let tensors = self.source.tensors();
        let order = match &self.activations {
            Some(activations) => activations.order(tensors),
            None => (0..tensors.len()).collect(),
        };
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..tensors.len()) {
            let message =
                format!("order of tensors: expected every index below {} once, found {order:?}", tensors.len());
            return Err(QuantizeError::Activations { message, source: None });
        }
        let mut units: Vec<Unit> = Vec::new();
        for index in order {
            let item = &self.plan.items[index];
            let Action::Quantize { method, .. } = &item.action else { continue };
            let block = block_of(&item.tensor.name).filter(|_| method.is_tuned());
            match units.last_mut() {
                Some(unit) if block.is_some() && unit.block.as_deref() == block => unit.items.push(index),
                _ => units.push(Unit { items: vec![index], block: block.map(str::to_owned) }),
            }
        }
        Ok(units)
    }

    /// Reads what an earlier run kept, and tells the activations and the budget.
    fn take_up(&mut self, work: &WorkFolder, units: &[Unit]) -> Result<(), QuantizeError> {
        for unit in units {
            let Some(part) = work.kept(unit.items[0])? else { continue };
            let bad = |reason: String| QuantizeError::WorkFolder { path: part.path().to_owned(), reason };
            let figures: Figures =
                serde_json::from_value(part.manifest().recipe.clone()).map_err(|e| bad(e.to_string()))?;
            for &index in &unit.items {
                let item = &self.plan.items[index];
                let name = &item.tensor.name;
                let found = figures.measured.iter().find(|(n, _)| n == name);
                let (Some((_, measured)), Some(_)) = (found, part.entry(name)) else {
                    return Err(bad(format!("expected tensor {name:?}, found none")));
                };
                self.settle(item, index, &part, measured.asked_bps)?;
                self.measured[index] = measured.clone();
                self.done += 1;
                self.weights_done += item.tensor.n_weights();
            }
            self.tuned.extend(figures.tuned);
            self.replay(&part)?;
        }
        if self.done > 0 {
            self.observer.event(&Event::Resumed { done: self.done, total: self.total });
        }
        Ok(())
    }

    /// Charges a kept tensor to the budget.
    fn settle(
        &mut self,
        item: &PlanItem,
        index: usize,
        part: &Arc<Container>,
        asked_bps: Option<f64>,
    ) -> Result<(), QuantizeError> {
        let Some(pace) = &mut self.pace else { return Ok(()) };
        if let Some(forecast) = forecast_in(part, &item.tensor, pace.max_bytes())? {
            pace.take(index, forecast, asked_bps.unwrap_or_default(), true);
        }
        Ok(())
    }

    /// Tells the activations what became of the tensors of a part, if they want to know, and remembers where these are.
    fn replay(&mut self, part: &Arc<Container>) -> Result<(), QuantizeError> {
        for entry in part.entries() {
            if let Some(activations) = self.activations.as_deref_mut()
                && (activations.is_sequential() || self.plan.is_tuned())
            {
                activations.replaced(&entry.name, &values_in(part, &entry.name)?)?;
            }
            self.parts.insert(entry.name.clone(), Arc::clone(part));
        }
        Ok(())
    }

    fn check_cancelled(&self, work: &WorkFolder) -> Result<(), QuantizeError> {
        if self.observer.cancelled() { Err(self.stopped(work)) } else { Ok(()) }
    }

    /// The error of a run that was asked to stop.
    fn stopped(&self, work: &WorkFolder) -> QuantizeError {
        let (done, total) = (self.done, self.total);
        if self.parts.is_empty() {
            QuantizeError::Cancelled { done: 0, total }
        } else {
            QuantizeError::Paused { done, total, work: work.path().to_owned() }
        }
    }

    /// Quantizes the tensors of a unit, tunes them if they are a block, and keeps them.
    fn work_on(&mut self, work: &WorkFolder, unit: &Unit) -> Result<(), QuantizeError> {
        let mut held: Vec<(usize, Stored, Measured)> = Vec::with_capacity(unit.items.len());
        for &index in &unit.items {
            self.check_cancelled(work)?;
            let (stored, measured) = self.quantize(index)?;
            // What follows in the block may read it before the block is kept.
            if let (Some(activations), Some(_)) = (self.activations.as_deref_mut(), &unit.block) {
                let name = &self.plan.items[index].tensor.name;
                activations.replaced(name, &stored.decoder(name)?.values(name)?)?;
            }
            held.push((index, stored, measured));
        }
        let tuned = match &unit.block {
            Some(block) => self.tune(block, &mut held)?,
            None => None,
        };
        self.keep(work, unit, held, tuned.as_ref())
    }

    /// How many of the units that are left are worked on at the same time: those whose tensors do not wait for each other, in bounded
    /// memory. Some methods walk through a tensor column by column and have work for one thread only.
    fn batch_len(&self, left: &[&Unit]) -> usize {
        let one_by_one = |activations: &&mut dyn Activations| self.plan.is_one_by_one(activations.is_sequential());
        if self.activations.as_ref().is_none_or(one_by_one) {
            return 1;
        }
        let peaks = left.iter().map(|unit| unit.items.iter().map(|&index| self.plan.items[index].peak_bytes()).sum());
        batch_len(peaks, self.plan.batch_bytes)
    }

    /// Quantizes tensors that do not wait for each other at the same time, and keeps them one by one.
    fn work_on_batch(&mut self, work: &WorkFolder, batch: &[&Unit]) -> Result<(), QuantizeError> {
        let mut tasks = Vec::with_capacity(batch.len());
        for unit in batch {
            self.check_cancelled(work)?;
            let (index, tensor) = (unit.items[0], &self.plan.items[unit.items[0]].tensor);
            let moments = self.moments(index)?;
            let n_weights = tensor.n_weights();
            self.observer.event(&Event::Started {
                tensor: &tensor.name,
                index: self.done,
                total: self.total,
                n_weights,
            });
            tasks.push((index, moments));
        }
        let (plan, source, observer) = (self.plan, self.source, self.observer);
        let (done, total) = (self.done, self.total);
        let results: Vec<Result<(Stored, Measured), QuantizeError>> = tasks
            .into_par_iter()
            .with_max_len(1)
            .map(|(index, moments)| {
                let item = &plan.items[index];
                if observer.cancelled() {
                    return Err(QuantizeError::Cancelled { done, total });
                }
                encode(item, index, planned(item), source, moments.as_ref(), None)
            })
            .collect();
        for (unit, result) in batch.iter().zip(results) {
            let (stored, measured) = result?;
            self.finished(unit.items[0]);
            self.keep(work, unit, vec![(unit.items[0], stored, measured)], None)?;
        }
        Ok(())
    }

    /// Measures what was made of a unit, and keeps it.
    fn keep(
        &mut self,
        work: &WorkFolder,
        unit: &Unit,
        mut held: Vec<(usize, Stored, Measured)>,
        tuned: Option<&TunedBlock>,
    ) -> Result<(), QuantizeError> {
        let mut figures = Figures { measured: Vec::new(), tuned: None };
        for (index, stored, measured) in &mut held {
            let item = &self.plan.items[*index];
            let name = &item.tensor.name;
            let decoder = stored.decoder(name)?;
            measured.energy = decoder.energy(self.source, item.index, name)?;
            measured.exact_rows = decoder.n_exact_rows();
            figures.measured.push((name.clone(), measured.clone()));
        }
        figures.tuned =
            unit.block.as_ref().map(|block| TunedFigures { block: block.clone(), report: tuned.map(|t| t.report) });
        let of_figures = |e: serde_json::Error| QuantizeError::WorkFolder {
            path: work.path().to_owned(),
            reason: format!("figures that cannot be written: {e}"),
        };
        let value = serde_json::to_value(&figures).map_err(of_figures)?;
        let part = work.keep(unit.items[0], value, |writer| {
            for (index, stored, _) in &held {
                stored.write(&self.plan.items[*index].tensor, writer)?;
            }
            for (name, values) in tuned.iter().flat_map(|t| &t.norms) {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                writer.add_raw(name, "F32", &[values.len()], &bytes, TUNED)?;
            }
            Ok(())
        })?;
        for (index, stored, measured) in held {
            let tensor = &self.plan.items[index].tensor;
            if let (Some(pace), true) = (&mut self.pace, tuned.is_some()) {
                let forecast = stored.forecast(tensor, pace.max_bytes());
                pace.change(index, forecast);
            }
            if self.release_input {
                self.source.release(index);
            }
            self.measured[index] = measured;
            self.done += 1;
        }
        self.tuned.extend(figures.tuned);
        self.replay(&part)
    }

    /// What feeds a tensor, if its method wants to know.
    fn moments(&mut self, index: usize) -> Result<Option<InputMoments>, QuantizeError> {
        let item = &self.plan.items[index];
        let (method, _) = planned(item);
        let Some(activations) = self.activations.as_deref_mut().filter(|_| method.needs_calibration()) else {
            return Ok(None);
        };
        let tensor = item.tensor.name.as_str();
        self.observer.event(&Event::Calibrating { tensor, index: self.done, total: self.total });
        let started = Instant::now();
        let mut moments = activations.moments(tensor)?;
        if let (Some(moments), Method::Feedback(_)) = (&mut moments, method) {
            moments.output_energy = activations.output_energy(tensor)?;
        }
        self.calibrating += started.elapsed();
        Ok(moments)
    }

    /// Asks for the tensor behind `index` of a run in the order of the source to be read ahead.
    fn read_ahead(&self, index: usize) {
        if let Some(next) = self.plan.items[index + 1..].iter().find(|item| is_quantized(item)) {
            self.source.read_ahead(next.index);
        }
    }

    /// Quantizes one tensor.
    fn quantize(&mut self, index: usize) -> Result<(Stored, Measured), QuantizeError> {
        let moments = self.moments(index)?;
        let item = &self.plan.items[index];
        let (tensor, n_weights) = (item.tensor.name.as_str(), item.tensor.n_weights());
        self.observer.event(&Event::Started { tensor, index: self.done, total: self.total, n_weights });
        self.read_ahead(index);
        let encoded = encode(item, index, planned(item), self.source, moments.as_ref(), self.pace.as_mut())?;
        self.finished(index);
        Ok(encoded)
    }

    /// Says that a tensor is quantized.
    fn finished(&mut self, index: usize) {
        let tensor = &self.plan.items[index].tensor;
        self.weights_done += tensor.n_weights();
        let weights_total = self.plan.items.iter().filter(|i| is_quantized(i)).map(|i| i.tensor.n_weights()).sum();
        let elapsed = self.started.elapsed();
        let (index, total, weights_done) = (self.done, self.total, self.weights_done);
        self.observer.event(&Event::Finished {
            tensor: &tensor.name,
            index,
            total,
            weights_done,
            weights_total,
            elapsed,
        });
    }

    /// Tunes the matrices of a block that were quantized with feedback.
    fn tune(
        &mut self,
        block: &str,
        held: &mut [(usize, Stored, Measured)],
    ) -> Result<Option<TunedBlock>, QuantizeError> {
        let Some(activations) = self.activations.as_deref_mut() else { return Ok(None) };
        self.observer.event(&Event::Tuning { block });
        let started = Instant::now();
        let mut matrices: Vec<(&str, &mut UniSvqMatrix)> = Vec::new();
        for (index, stored, measured) in held.iter_mut() {
            if let (Stored::UniSvq(matrix), Some(_)) = (stored, &measured.feedback) {
                matrices.push((self.plan.items[*index].tensor.name.as_str(), matrix));
            }
        }
        let tuned = activations.tune(&mut matrices)?;
        self.calibrating += started.elapsed();
        Ok(tuned)
    }

    /// Adds all tensors in the order of the source, and lets go of each part when its last tensor was added.
    fn compose(&mut self, writer: &mut Writer) -> Result<(), QuantizeError> {
        for item in &self.plan.items {
            let name = &item.tensor.name;
            match (&item.action, self.parts.remove(name)) {
                (Action::Skip { .. }, _) => {}
                (_, Some(part)) => writer.copy_tensor(&part, name)?,
                (Action::Keep { reason, .. }, None) => keep(item, reason, self.source, writer)?,
                (Action::Quantize { .. }, None) => unreachable!("every tensor that is quantized is in a part by now"),
            }
        }
        Ok(())
    }
}

/// Method and payload of a tensor that is quantized.
fn planned(item: &PlanItem) -> (&Method, f64) {
    match &item.action {
        Action::Quantize { method, target_bps } => (method, *target_bps),
        _ => unreachable!("units are made of tensors that are quantized"),
    }
}

fn is_quantized(item: &PlanItem) -> bool {
    matches!(item.action, Action::Quantize { .. })
}

/// What the source is, down to the last byte that the output depends on, without its path.
fn identity(plan: &Plan, source: &dyn ModelSource, is_calibrated: bool) -> Result<Value, QuantizeError> {
    // A part of a run without activations depends on its own tensors only.
    let items = plan.items.iter().filter(|item| plan.asked_part().is_none() || is_calibrated || is_stored(item));
    let indices: Vec<usize> = items.map(|item| item.index).collect();
    let hashes: Vec<[u8; 32]> = indices
        .into_par_iter()
        .map(|index| {
            let mut sink = Hashing(Sha256::new());
            source.copy_raw(index, &mut sink)?;
            Ok(sink.0.finalize().into())
        })
        .collect::<Result<_, SourceError>>()?;
    let mut all = Sha256::new();
    hashes.iter().for_each(|hash| all.update(hash));
    for (name, bytes) in source.blobs() {
        all.update(Sha256::digest(name));
        all.update(Sha256::digest(bytes));
    }
    let content: String = all.finalize().iter().map(|b| format!("{b:02x}")).collect();
    let info = &plan.source;
    Ok(json!({ "layout": info.fingerprint, "content": content, "kind": info.kind }))
}

/// Hashes what is written to it.
struct Hashing(Sha256);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
