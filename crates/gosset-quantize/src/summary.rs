//! The report of a run, from its plan, the ledger of the finished file and what was measured on the way.

use gosset_container::Ledger;

use crate::budget::weight;
use crate::calibration::CalibrationRecord;
use crate::encode::Measured;
use crate::plan::{Action, Plan};
use crate::report::{CalibrationSummary, Report, TensorReport, TunedFigures, group_fallbacks};
use crate::stored::Energy;

/// What the calibration of a run took.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CalibrationCourse {
    pub(crate) record: CalibrationRecord,
    pub(crate) tuned: Vec<TunedFigures>,
    pub(crate) calibrating_s: f64,
    pub(crate) quantizing_s: f64,
}

/// The report; `measured` has one entry per item of the plan.
pub(crate) fn report(
    plan: &Plan,
    ledger: &Ledger,
    measured: &[Measured],
    mut warnings: Vec<String>,
    course: Option<CalibrationCourse>,
) -> Report {
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
            relative_error: m.energy.relative_error(),
            snr_db: m.energy.snr_db(),
            weight: target_bps.map(|_| weight(&plan.options, &item.tensor.name)),
            exact_rows: m.exact_rows,
            method: m.method.clone().filter(|_| target_bps.is_some()),
            feedback: m.feedback.clone(),
        });
    }
    warnings.extend(tensors.iter().filter_map(missed_target));
    let exact_rows: u64 = measured.iter().map(|m| m.exact_rows).sum();
    if exact_rows > 0 {
        let n = measured.iter().filter(|m| m.exact_rows > 0).count();
        warnings.push(format!("{exact_rows} row(s) of {n} tensor(s) have no usable scale and are stored exactly"));
    }
    let calibration = course.map(|course| summary(course, &tensors));
    warnings.extend(calibration.iter().flat_map(coverage_warnings));
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
        snr_db: total.snr_db(),
        exact_rows,
        policy: plan.policy.to_owned(),
        tie: plan.tie,
        fallbacks: group_fallbacks(fallbacks),
        tensors,
        warnings,
        calibration,
        recipe: plan.recipe(),
    }
}

fn summary(course: CalibrationCourse, tensors: &[TensorReport]) -> CalibrationSummary {
    let seen = || tensors.iter().filter_map(|t| t.feedback.as_ref());
    let count = |n: usize| n as u64;
    let is_unseen = |t: &&TensorReport| t.action == "quantized" && t.feedback.is_none();
    CalibrationSummary {
        record: course.record,
        n_tensors: count(seen().count()),
        unseen: tensors.iter().filter(is_unseen).map(|t| t.name.clone()).collect(),
        dead_inputs: seen().map(|f| f.dead_inputs).sum(),
        n_tensors_with_dead_inputs: count(seen().filter(|f| f.dead_inputs > 0).count()),
        n_raised: count(seen().filter(|f| f.raises > 0).count()),
        n_simpler: count(seen().filter(|f| f.simpler.is_some()).count()),
        tuned: course.tuned,
        calibrating_s: course.calibrating_s,
        quantizing_s: course.quantizing_s,
    }
}

/// What the coverage of a calibration asks the user to look at.
fn coverage_warnings(c: &CalibrationSummary) -> Vec<String> {
    let mut warnings = Vec::new();
    if c.n_raised > 0 {
        warnings.push(format!(
            "the second moments of {} tensor(s) needed more damping: the calibration text has few tokens or repeats itself",
            c.n_raised
        ));
    }
    if !c.tuned.is_empty() && c.tuned.iter().all(|t| t.report.is_none()) {
        warnings.push(format!("tuning changed none of the {} blocks: the result is that without it", c.tuned.len()));
    }
    if !c.unseen.is_empty() {
        warnings.push(format!(
            "the inputs of {} quantized tensor(s) were not seen by the calibration, the first is {:?}: no feedback there",
            c.unseen.len(),
            c.unseen[0]
        ));
    }
    warnings
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
