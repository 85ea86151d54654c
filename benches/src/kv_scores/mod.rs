//! The `kv-scores` binary: what coding keys does to attention scores, apart from any perplexity.
//!
//! Keys and queries of some layers over one window of text are those of the model in f32. Keys are coded as a cache codes them, page bits
//! counted, and read back; scores of later queries over them stand beside the true ones. What is random (signs, rotations, sketches,
//! dither) is drawn several times.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use gosset_eval::sha256_hex;
use gosset_runtime::source::open_source;
use gosset_runtime::{LanguageModel, LoadOptions, PROBE_TOKENS};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

mod args;
mod measure;
mod table;
mod variant;

pub use args::Args;
use measure::{Head, Summary};
use variant::{Drawn, VARIANTS, Variant};

use crate::rd::output;

/// The table with what is needed to repeat it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The command that made it.
    pub command: String,
    /// The model.
    pub model: String,
    /// SHA-256 of the text.
    pub text_sha256: String,
    /// Tokens of it that were used.
    pub tokens: usize,
    /// Positions of queries.
    pub queries: usize,
    /// Layers.
    pub layers: Vec<usize>,
    /// Draws of what is random.
    pub seeds: u64,
    /// One way to code keys at one rate.
    pub rows: Vec<Row>,
}

/// One way to code keys at one rate; ratios are means over layers and heads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The way.
    pub variant: String,
    /// How `ppl --kv` names it.
    pub spec: String,
    /// What is random: `nothing`, drawn once for a `model`, or for every `position`.
    pub drawn: String,
    /// Rate that was asked for.
    pub bits: f64,
    /// Bits of sealed pages of keys over their scalars.
    pub page_bps: f64,
    /// Slope of the estimated scores of a query on the true ones, less 1.
    pub score_slope: f64,
    /// Mean error of scores over the root mean square error.
    pub mean_error: f64,
    /// The same in standard errors, keys counting as independent.
    pub mean_error_z: f64,
    /// Share of the squared error that is left of each score's mean error over all draws; 1 where nothing is random.
    pub bias_share: f64,
    /// Variance of errors over variance of scores, both about the means of their queries.
    pub noise: f64,
}

/// Measures the table, prints it (or its JSON) on stdout and its progress on stderr.
///
/// # Errors
///
/// Anything that keeps a row from being measured.
pub fn run(args: &Args) -> Result<()> {
    args.check()?;
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
    let (name, path) = args.model();
    let source = open_source(Path::new(path)).with_context(|| format!("--model {path}"))?;
    let model = LanguageModel::from_source(&*source, &LoadOptions::default())?;
    let bytes = fs::read(&args.text).with_context(|| format!("{}", args.text.display()))?;
    let text_sha256 = sha256_hex(&bytes);
    let text = String::from_utf8(bytes).with_context(|| format!("{}: expected UTF-8", args.text.display()))?;
    let tokenizer = model.require_tokenizer()?;
    let mut tokens = tokenizer.encode_with_bos(&text, tokenizer.leading_ids().first().copied())?;
    ensure!(
        tokens.len() >= args.tokens,
        "{}: expected {} tokens, found {}",
        args.text.display(),
        args.tokens,
        tokens.len()
    );
    tokens.truncate(args.tokens);
    let layers = args.layers_of(model.kv_shape().layers)?;
    let probe = model.kv_probe(PROBE_TOKENS)?;
    let heads = measure::heads(&model, &tokens, &layers, args.queries)?;
    let mut report = Report {
        command: args.command.clone().unwrap_or_else(|| std::env::args().collect::<Vec<_>>().join(" ")),
        model: name.unwrap_or(&source.info().name).to_owned(),
        text_sha256,
        tokens: args.tokens,
        queries: args.queries.min(args.tokens - args.tokens / 2),
        layers,
        seeds: args.seeds,
        rows: Vec::with_capacity(VARIANTS.len() * args.bits.len()),
    };
    let mut progress = crate::rd::progress::Progress::new(VARIANTS.len() * args.bits.len());
    for variant in VARIANTS {
        for &bits in &args.bits {
            let label = variant.spec(bits);
            progress.begin(&label);
            let row = row(variant, bits, args.seeds, &model, &probe, &heads)?;
            progress.end(&label, &format!("slope {:+.4}, noise {:.5}", row.score_slope, row.noise));
            report.rows.push(row);
        }
    }
    progress.finish();
    Ok(report)
}

fn row(
    variant: &Variant,
    bits: f64,
    seeds: u64,
    model: &LanguageModel,
    probe: &gosset_kv::Probe,
    heads: &[Head],
) -> Result<Row> {
    let seeds = if variant.drawn == Drawn::Nothing { 1 } else { seeds };
    let codecs =
        (0..seeds).map(|seed| variant.keys(bits, seed, model.kv_shape(), probe)).collect::<Result<Vec<_>>>()?;
    let measured = heads.par_iter().map(|head| {
        let stored = codecs.iter().map(|codec| head.stored(model, codec)).collect::<Result<Vec<_>>>()?;
        let page_bits: u64 = stored.iter().map(|(_, bits)| bits).sum();
        let keys: Vec<Vec<f32>> = stored.into_iter().map(|(keys, _)| keys).collect();
        Ok((head.compare(&keys), page_bits))
    });
    let measured = measured.collect::<Result<Vec<_>>>().with_context(|| variant.spec(bits))?;
    let scalars = seeds * heads.iter().map(Head::n_scalars).sum::<u64>();
    let page_bits: u64 = measured.iter().map(|(_, bits)| bits).sum();
    let errors: Vec<_> = measured.into_iter().map(|(errors, _)| errors).collect();
    let Summary { slope, mean_error, mean_error_z, bias_share, noise } = Summary::of(&errors);
    Ok(Row {
        variant: variant.name.to_owned(),
        spec: variant.spec(bits),
        drawn: variant.drawn.name().to_owned(),
        bits,
        page_bps: page_bits as f64 / scalars as f64,
        score_slope: slope,
        mean_error,
        mean_error_z,
        bias_share,
        noise,
    })
}
