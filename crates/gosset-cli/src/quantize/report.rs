//! The report of `gosset quantize` for people.

use std::io::Write;

use anyhow::Result;
use gosset_quantize::{CalibrationRecord, CalibrationSummary, FeedbackFigures, QuantizeTarget, Report};

use crate::exit::printable;
use crate::output::{self, Table};

pub(super) fn print_report(out: &mut impl Write, path: &str, report: &Report) -> Result<()> {
    let worst =
        report.tensors.iter().filter_map(|t| Some((t.snr_db?, t.name.as_str()))).min_by(|a, b| a.0.total_cmp(&b.0));
    let mut table = Table::new(2, &["written", path]);
    let share = 100.0 * report.file_bytes as f64 / (report.source_bytes as f64).max(1.0);
    table.row([
        "size",
        &format!(
            "{} bytes ({}), {share:.1} % of the source's {}",
            report.file_bytes,
            output::bytes(report.file_bytes),
            output::bytes(report.source_bytes)
        ),
    ]);
    table.row(["asked", &asked(report)]);
    table.row([
        "quantized",
        &format!(
            "payload {:.4}, stream {:.4}, all-in {:.4} bits per quantized weight ({} of {} weights)",
            report.payload_bps,
            report.stream_bps,
            report.all_in_bps,
            output::count(report.n_quantized),
            output::count(report.n_params)
        ),
    ]);
    table.row(["true rate", &format!("{:.4} bits per parameter, all bytes over all parameters", report.file_bps)]);
    if let Some(snr) = report.snr_db {
        table.row(["SNR", &format!("{snr:.2} dB over all quantized weights")]);
    }
    if let Some((snr, name)) = worst {
        table.row(["worst SNR", &format!("{snr:.2} dB in {name}")]);
    }
    if let Some(calibration) = &report.calibration {
        calibration_rows(&mut table, report, calibration);
    }
    let (kept, skipped) = (count(report, "kept"), count(report, "skipped"));
    table.row(["kept", &format!("{kept} tensors bit-exact, {skipped} left out")]);
    if let Some(tie) = report.tie {
        table.row(["output head", tie.describe()]);
    }
    table.write(out)?;
    if !matches!(report.target, QuantizeTarget::PayloadBps(_)) {
        writeln!(out)?;
        rates_table(report).write(out)?;
    }
    for group in &report.fallbacks {
        let (n, weights) = (group.n_tensors, output::count(group.n_weights));
        let names = printable(&some_names(&group.names));
        writeln!(out, "fallback: {n} tensors ({weights} weights) stay exact: {}: {names}", printable(&group.reason))?;
    }
    for warning in &report.warnings {
        writeln!(out, "warning: {}", printable(warning))?;
    }
    Ok(())
}

/// What was asked for, beside what came out where the two are of one kind.
fn asked(report: &Report) -> String {
    let codec = &report.codec;
    let how = report.allocation.name();
    match report.target {
        QuantizeTarget::AllInBpw(bpw) => {
            format!("{codec} at {bpw} bits per weight, all in ({how}); reached {:.4}", report.all_in_bps)
        }
        QuantizeTarget::FileBytes(bytes) => {
            format!(
                "{codec} in {bytes} bytes ({how}); reached {}, {} left",
                report.file_bytes,
                bytes - report.file_bytes
            )
        }
        target => format!("{codec} at {target} bits per weight (payload)"),
    }
}

/// What each quantized tensor was asked for and got.
fn rates_table(report: &Report) -> Table {
    let mut table = Table::new(1, &["tensor", "weights", "counts", "asked", "payload", "all-in", "error", "SNR dB"]);
    for t in report.tensors.iter().filter(|t| t.target_bps.is_some()) {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        table.row([
            t.name.clone(),
            t.n_weights.to_string(),
            t.weight.unwrap_or(1.0).to_string(),
            number(t.target_bps, 3),
            number(t.payload_bps, 3),
            number(t.all_in_bps, 3),
            number(t.relative_error, 5),
            number(t.snr_db, 2),
        ]);
    }
    table
}

fn count(report: &Report, action: &str) -> usize {
    report.tensors.iter().filter(|t| t.action == action).count()
}

/// The first names of a list and how many more there are.
fn some_names(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
    format!("{}{more}", names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", "))
}

/// What the calibration saw and what feedback gained.
fn calibration_rows(table: &mut Table, report: &Report, c: &CalibrationSummary) {
    table.row(["calibration", &record_line(&c.record)]);
    let seen = format!("the inputs of {} tensors were seen, those of {} were not", c.n_tensors, c.unseen.len());
    let dead = match c.n_tensors_with_dead_inputs {
        0 => "no input was zero throughout".to_owned(),
        n => format!("{} inputs of {n} tensors were zero throughout", c.dead_inputs),
    };
    table.row(["coverage", &format!("{seen}; {dead}")]);
    let figures: Vec<&FeedbackFigures> = report.tensors.iter().filter_map(|t| t.feedback.as_ref()).collect();
    let logs: Vec<f64> = figures
        .iter()
        .filter(|f| f.proxy > 0.0 && f.proxy_before > 0.0)
        .map(|f| (f.proxy / f.proxy_before).ln())
        .collect();
    if !logs.is_empty() {
        let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        let worst = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max).exp();
        let text = format!("{mean:.3} of the output error of plain rounding (geometric mean), {worst:.3} at worst");
        table.row(["feedback", &text]);
    }
    let damping = figures.iter().map(|f| f.sigma).fold(0.0, f64::max);
    let raised =
        format!("damping up to {damping:.3}, raised for {} tensors; {} without feedback", c.n_raised, c.n_simpler);
    table.row(["damping", &raised]);
    let gains: Vec<f64> = c
        .tuned
        .iter()
        .filter_map(|t| t.report)
        .map(|r| 1.0 - r.loss_after / r.loss_before.max(f64::MIN_POSITIVE))
        .collect();
    if !c.tuned.is_empty() {
        let mean = 100.0 * gains.iter().sum::<f64>() / gains.len().max(1) as f64;
        table
            .row(["tuned", &format!("{} of {} blocks, loss {mean:.1} % lower on average", gains.len(), c.tuned.len())]);
    }
    table.row(["time", &format!("calibrating {:.1} s, quantizing {:.1} s", c.calibrating_s, c.quantizing_s)]);
}

/// A record on one line.
pub(crate) fn record_line(r: &CalibrationRecord) -> String {
    let inputs = if r.sequential { ", inputs from the quantized layers before" } else { "" };
    let weights = if r.token_weights.is_equal() { "" } else { ", tokens of great energy capped" };
    format!(
        "{} ({} tokens in sequences of {}, seed {}{inputs}{weights}; SHA-256 of the text {})",
        r.text,
        r.tokens,
        r.window,
        r.seed,
        r.text_sha256.get(..16).unwrap_or(&r.text_sha256)
    )
}
