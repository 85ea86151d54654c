//! The `feedback` binary: what the shape of the unit of rounding costs under error feedback.
//!
//! Matrices of a model are rounded with second moments of calibration tokens, and errors are weighed by those of held-out tokens of
//! another text: tr((W - Ŵ) H (W - Ŵ)ᵀ) / tr(W H Wᵀ), the relative squared error of the outputs of the layer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gosset_quantize::{Activations, ModelSource, TensorInfo};
use gosset_runtime::calibration::{Calibration, CalibrationOptions, CalibrationText};
use gosset_runtime::source::open_source;
use gosset_unisvq::relative_proxy;
use serde::{Deserialize, Serialize};

mod args;
mod e8_inputs;
mod e8_metric;
mod shape;
mod table;

pub use args::Args;

use crate::rd::output;

/// The table with what is needed to repeat it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The command that made it.
    pub command: String,
    /// The model.
    pub model: String,
    /// What steps and feedback were computed from.
    pub calibration: Tokens,
    /// What errors were weighed by.
    pub held_out: Tokens,
    /// Damping of second moments, as a share of the mean diagonal.
    pub damping: f64,
    /// One matrix by one shape at one rate.
    pub rows: Vec<Row>,
}

/// Tokens of a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    /// Name of the text.
    pub text: String,
    /// Number of tokens.
    pub tokens: u64,
    /// SHA-256 of their ids.
    pub sha256: String,
}

/// One matrix by one shape at one rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the tensor.
    pub matrix: String,
    /// Its rows.
    pub outputs: usize,
    /// Its columns.
    pub inputs: usize,
    /// What was rounded together.
    pub codec: String,
    /// Payload that was asked for, in bits per weight.
    pub target_bps: f64,
    /// Payload.
    pub payload_bps: f64,
    /// Everything that is stored.
    pub all_in_bps: f64,
    /// Whether rates are of coded bytes; else the payload is the length of an ideal code.
    pub coded: bool,
    /// Relative squared error of the outputs on the calibration tokens.
    pub calibration_error: f64,
    /// The same on held-out tokens.
    pub held_out_error: f64,
    /// Time of rounding.
    pub seconds: f64,
}

/// Measures the table, prints it (or its JSON) on stdout and its progress on stderr.
///
/// # Errors
///
/// Anything that keeps a row from being measured.
pub fn run(args: &Args) -> Result<()> {
    if let Some(out) = &args.out {
        output::check(out)?;
    }
    let report = measure(args)?;
    let json = serde_json::to_string_pretty(&report)?;
    if let Some(out) = &args.out {
        output::write(out, &format!("{json}\n"))?;
    }
    output::to_stdout(&if args.json { json } else { table::render(&report) })
}

fn measure(args: &Args) -> Result<Report> {
    let (shapes, damping) = (args.shapes()?, args.damping()?);
    let (name, path) = args.model();
    let source = open_source(Path::new(path)).with_context(|| format!("--model {path}"))?;
    let chosen = chosen(&*source, &args.tensors)?;
    let text = match args.calibration.as_str() {
        "built-in" => CalibrationText::BuiltIn,
        path => CalibrationText::Path(PathBuf::from(path)),
    };
    let mut seen = moments(&*source, text, args.calibration_tokens, args.hessian_cache.clone())?;
    let held_out = args.hessian_cache.as_ref().map(|folder| folder.join("held-out"));
    let text = CalibrationText::Path(args.held_out.clone());
    let mut unseen = moments(&*source, text, args.held_out_tokens, held_out)?;
    let mut report = Report {
        command: args.command.clone().unwrap_or_else(|| std::env::args().collect::<Vec<_>>().join(" ")),
        model: name.unwrap_or(&source.info().name).to_owned(),
        calibration: tokens(&seen),
        held_out: tokens(&unseen),
        damping: damping.sigma,
        rows: Vec::with_capacity(chosen.len() * shapes.len()),
    };
    let mut progress = crate::rd::progress::Progress::new(chosen.len() * shapes.len());
    let all = source.tensors();
    for index in seen.order(all).into_iter().filter(|index| chosen.contains(index)) {
        let tensor = &all[index];
        progress.note(&tensor.name);
        let (rows, cols) = tensor.rows_cols();
        let mut w = vec![0.0; rows * cols];
        source.read_rows(index, 0..rows, &mut w)?;
        let no_linear = || format!("{}: no linear of a layer", tensor.name);
        let calibration = seen.moments(&tensor.name)?.with_context(no_linear)?;
        let held_out = unseen.moments(&tensor.name)?.with_context(no_linear)?;
        for shape in &shapes {
            let label = format!("{}@{}", shape.name, shape.rate);
            progress.begin(&label);
            let rounded = shape
                .round(&w, (rows, cols), &calibration, damping)
                .with_context(|| format!("{}: {label}", tensor.name))?;
            let error = |moments: &gosset_quantize::InputMoments| {
                relative_proxy(&w, &rounded.values, rows, moments.hessian.as_slice())
            };
            let row = Row {
                matrix: tensor.name.clone(),
                outputs: rows,
                inputs: cols,
                codec: shape.name.clone(),
                target_bps: shape.rate,
                payload_bps: rounded.payload_bps,
                all_in_bps: rounded.all_in_bps,
                coded: rounded.is_coded,
                calibration_error: error(&calibration),
                held_out_error: error(&held_out),
                seconds: rounded.seconds,
            };
            let (error, bps) = (row.held_out_error, row.all_in_bps);
            progress.end(&label, &format!("error {error:.5}, all-in {bps:.4}, {:.1} s", row.seconds));
            report.rows.push(row);
        }
    }
    progress.finish();
    Ok(report)
}

fn moments<'s>(
    source: &'s dyn ModelSource,
    text: CalibrationText,
    tokens: usize,
    hessian_cache: Option<PathBuf>,
) -> Result<Calibration<'s>> {
    let options = CalibrationOptions { text, tokens, hessian_cache, ..CalibrationOptions::default() };
    Ok(Calibration::new(source, options)?)
}

fn tokens(calibration: &Calibration<'_>) -> Tokens {
    let record = calibration.record();
    Tokens { text: record.text, tokens: record.tokens, sha256: record.tokens_sha256 }
}

/// Indices of the matrices to measure.
fn chosen(source: &dyn ModelSource, parts: &[String]) -> Result<BTreeSet<usize>> {
    const DEFAULT: [&str; 5] =
        ["self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"];
    let all = source.tensors();
    let layer = |t: &TensorInfo| t.name.strip_prefix("model.layers.")?.split('.').next()?.parse::<usize>().ok();
    let n_layers = all.iter().filter_map(layer).max().map_or(0, |last| last + 1);
    let is_default = |t: &TensorInfo| {
        let at = [n_layers / 4, 3 * n_layers / 4];
        layer(t).is_some_and(|l| at.contains(&l)) && DEFAULT.iter().any(|part| t.name.contains(part))
    };
    let is_chosen = |t: &TensorInfo| match parts {
        [] => is_default(t),
        parts => layer(t).is_some() && parts.iter().any(|part| t.name.contains(part.as_str())),
    };
    let found: BTreeSet<usize> = (0..all.len()).filter(|&i| all[i].shape.len() == 2 && is_chosen(&all[i])).collect();
    if found.is_empty() {
        let wanted = if parts.is_empty() { DEFAULT.join(", ") } else { parts.join(", ") };
        bail!(
            "expected matrices of layers whose names contain one of {wanted}, found none among {} tensors",
            all.len()
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn feedback_beats_rounding_alone_on_held_out_tokens_of_the_embedded_model() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets");
        let model = format!("embedded={root}/tiny");
        let text = format!("{root}/text/eval.txt");
        let words = [
            "feedback",
            "--model",
            &model,
            "--held-out",
            &text,
            "--held-out-tokens",
            "1024",
            "--calibration-tokens",
            "4096",
            "--tensors",
            "layers.1.mlp.up_proj",
            "--codecs",
            "e8,e8+feedback,e8-inputs-metric",
            "--rates",
            "3",
        ];
        let report = measure(&Args::parse_from(words)).unwrap();
        assert_eq!((report.model.as_str(), report.rows.len(), report.held_out.tokens), ("embedded", 3, 1024));
        let [alone, columns, inputs] = &report.rows[..] else { panic!("three rows") };
        assert!(columns.held_out_error < 0.9 * alone.held_out_error, "{report:?}");
        assert!(inputs.held_out_error < 0.95 * alone.held_out_error, "{report:?}");
        assert!(report.rows.iter().all(|row| (row.payload_bps - 3.0).abs() < 0.02 && row.all_in_bps > row.payload_bps));
        assert_eq!(report.rows.iter().map(|row| row.coded).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn five_matrices_of_two_layers_are_the_default() {
        let source = open_source(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tiny"))).unwrap();
        assert_eq!(chosen(&*source, &[]).unwrap().len(), 10);
        assert_eq!(chosen(&*source, &["layers.0.mlp".to_owned()]).unwrap().len(), 3);
        assert!(chosen(&*source, &["norm".to_owned()]).is_err());
    }
}
