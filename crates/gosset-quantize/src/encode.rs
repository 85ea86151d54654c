//! One tensor by one method: from values to what is stored, with the figures of the way.

use std::time::Instant;

use gosset_codec::EncodedMatrix;
use gosset_unisvq::{DampingMethod, DampingReport, DampingSpec, UniSvqError, UniSvqReport, drift_target};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::budget::Pace;
use crate::calibration::InputMoments;
use crate::error::{QuantizeError, SourceError};
use crate::feedback;
use crate::method::Method;
use crate::plan::PlanItem;
use crate::report::FeedbackFigures;
use crate::scan::BLOCK_VALUES;
use crate::source::ModelSource;
use crate::stored::{Energy, Stored};

/// What was measured on one tensor besides its bytes. Part of what a resumable run keeps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) energy: Energy,
    pub(crate) exact_rows: u64,
    /// Payload that was asked of the method.
    pub(crate) asked_bps: Option<f64>,
    /// What was done to the tensor.
    pub(crate) method: Option<String>,
    /// Figures of error feedback.
    pub(crate) feedback: Option<FeedbackFigures>,
}

/// Quantizes a tensor, with the payload that was planned or that the budget has for it.
///
/// Without `moments` a method that wants them does without.
pub(crate) fn encode(
    item: &PlanItem,
    index: usize,
    (method, planned_bps): (&Method, f64),
    source: &dyn ModelSource,
    moments: Option<&InputMoments>,
    mut pace: Option<&mut Pace>,
) -> Result<(Stored, Measured), QuantizeError> {
    /// Tries after which what is there is taken; the whole is checked at the end.
    const MAX_TRIES: usize = 8;
    let t = &item.tensor;
    let (rows, cols) = t.rows_cols();
    let mut asked = pace.as_ref().map_or(planned_bps, |pace| pace.rate(index, planned_bps));
    for tries in 1.. {
        let data = read_all(source, item.index, rows, cols)?;
        let method = if asked == planned_bps { method.clone() } else { method.at_payload(asked) };
        let method = if moments.is_none() { method.without_calibration() } else { method };
        let (stored, figures) = by(&method, data, (rows, cols), moments, &t.name)?;
        let taken = pace.as_mut().and_then(|pace| {
            let forecast = stored.forecast(t, pace.max_bytes());
            pace.take(index, forecast, asked, tries == MAX_TRIES)
        });
        match taken {
            Some(lower) => asked = lower,
            None => {
                let (method, feedback) = (Some(method.name()), figures);
                let measured = Measured { asked_bps: Some(asked), method, feedback, ..Measured::default() };
                return Ok((stored, measured));
            }
        }
    }
    unreachable!("the last try is taken")
}

fn by(
    method: &Method,
    data: Vec<f32>,
    (rows, cols): (usize, usize),
    moments: Option<&InputMoments>,
    tensor: &str,
) -> Result<(Stored, Option<FeedbackFigures>), QuantizeError> {
    let of_codec = |source| QuantizeError::Codec { tensor: tensor.to_owned(), source };
    let of_grid = |source| QuantizeError::UniSvq { tensor: tensor.to_owned(), source };
    match (method, moments) {
        (Method::UniSvq { spec, .. }, moments) => {
            let encoder = spec.clone().check().map_err(of_grid)?;
            let target = match moments {
                Some(moments) => corrected(data, rows, moments).map_err(of_grid)?,
                None => data,
            };
            let (matrix, report) =
                encoder.encode(&target, rows, cols, moments.map(|m| m.hessian.as_ref())).map_err(of_grid)?;
            Ok((Stored::UniSvq(matrix), moments.map(|m| of_report(&report, m))))
        }
        (Method::Feedback(spec), Some(moments)) => {
            let options = feedback::FeedbackOptions::default();
            let (matrix, report) =
                feedback::encode(spec, &data, rows, cols, moments, &options).map_err(|e| e.of_tensor(tensor))?;
            let figures = FeedbackFigures {
                proxy_before: report.plain,
                proxy: report.proxy,
                simpler: report.simpler.map(|why| format!("{}: {why}", spec.name())),
                ..figures_of(&report.damping, moments)
            };
            Ok((Stored::Coded(matrix), Some(figures)))
        }
        (Method::Codec(spec) | Method::Feedback(spec), _) => {
            let codec = spec.check().map_err(of_codec)?;
            let matrix: EncodedMatrix = codec.encode_owned(data, rows, cols).map_err(of_codec)?;
            Ok((Stored::Coded(matrix), None))
        }
    }
}

/// What is rounded: the weights, or, where inputs come from a quantized prefix, what makes the unquantized outputs of them.
fn corrected(weights: Vec<f32>, rows: usize, moments: &InputMoments) -> Result<Vec<f32>, UniSvqError> {
    let Some(cross) = &moments.drift else { return Ok(weights) };
    let (damped, ldl) = DampingSpec::default().factor(&moments.hessian, 1)?;
    drift_target(&weights, rows, cross, &damped, &ldl)
}

fn of_report(report: &UniSvqReport, moments: &InputMoments) -> FeedbackFigures {
    let simpler = match report.damping.map(|d| d.method) {
        Some(DampingMethod::Damped) if !report.is_plain => None,
        Some(DampingMethod::Damped) => Some("plain rounding: feedback was no better"),
        _ => Some("plain rounding: the second moments hold nothing or cannot be factored"),
    };
    let figures = report.damping.map(|damping| figures_of(&damping, moments)).unwrap_or_default();
    FeedbackFigures {
        proxy_before: report.plain,
        proxy: report.proxy,
        simpler: simpler.map(str::to_owned),
        scale: Some(report.c),
        ..figures
    }
}

/// What damping and coverage were.
fn figures_of(damping: &DampingReport, moments: &InputMoments) -> FeedbackFigures {
    FeedbackFigures {
        sigma: damping.sigma,
        raises: damping.raises,
        dead_inputs: moments.dead_inputs,
        tokens: moments.hessian.n_tokens(),
        ..FeedbackFigures::default()
    }
}

/// Seconds that a weight takes, by a trial on normal values.
pub(crate) fn trial_seconds(method: &Method) -> Result<f64, QuantizeError> {
    const ROWS: usize = 256;
    const COLS: usize = 1024;
    let data = gosset_codec::calibrate::gaussian(ROWS * COLS, 0);
    let started = Instant::now();
    let (stored, _) = by(method, data, (ROWS, COLS), None, "trial")?;
    // Every tensor is decoded again, to measure its error.
    stored.decoder("trial")?.values("trial")?;
    Ok(started.elapsed().as_secs_f64() / (ROWS * COLS) as f64)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gosset_codec::calibrate::gaussian;
    use gosset_unisvq::Hessian;

    use super::*;

    #[test]
    fn the_affine_grid_corrects_drift_as_codecs_with_feedback_do() {
        let (rows, n, tokens) = (64, 64, 512);
        let w = gaussian(rows * n, 1);
        let x = gaussian(tokens * n, 2);
        // A quantized prefix that makes inputs smaller, and adds to each some of its neighbour.
        let seen: Vec<f32> = (0..tokens * n).map(|i| 0.8 * x[i] + 0.3 * x[i / n * n + (i + 1) % n]).collect();
        let mean = |a: &[f32], b: &[f32]| -> Vec<f64> {
            let at =
                |i: usize| (0..tokens).map(|t| f64::from(a[t * n + i / n]) * f64::from(b[t * n + i % n])).sum::<f64>();
            (0..n * n).map(|i| at(i) / tokens as f64).collect()
        };
        let hessian = Arc::new(Hessian::new(n, mean(&seen, &seen), tokens as u64).unwrap());
        let drift = Some(Arc::new(mean(&x, &seen)));
        let outputs = |w: &[f32], x: &[f32]| -> Vec<f64> {
            let at = |t: usize, r: usize| (0..n).map(|i| f64::from(w[r * n + i]) * f64::from(x[t * n + i])).sum();
            (0..tokens * rows).map(|i| at(i / rows, i % rows)).collect()
        };
        let wanted = outputs(&w, &x);
        let energy: f64 = wanted.iter().map(|v| v * v).sum();
        for name in ["unisvq", "e8+feedback"] {
            let error = |drift: Option<Arc<Vec<f64>>>| {
                let moments =
                    InputMoments { hessian: Arc::clone(&hessian), drift, dead_inputs: 0, output_energy: None };
                let method = Method::parse(name, 4.0).unwrap();
                let (stored, _) = by(&method, w.clone(), (rows, n), Some(&moments), "w").unwrap();
                let mut decoded = vec![0.0; rows * n];
                match &stored {
                    Stored::UniSvq(m) => m.decoder().unwrap().decode_rows(0..rows, &mut decoded),
                    Stored::Coded(m) => {
                        m.decoder().unwrap().decode_rows(0..rows, &mut decoded, &mut Default::default()).unwrap();
                    }
                }
                let found = outputs(&decoded, &seen);
                wanted.iter().zip(found).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / energy
            };
            let (with, without) = (error(drift.clone()), error(None));
            // Without a correction what the prefix did stays: |1 - 0.8|² + 0.3².
            assert!(without > 0.1 && with < 0.03, "{name}: {with} {without}");
        }
    }
}
