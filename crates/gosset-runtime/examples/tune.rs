//! Tunes the first blocks of a model in several ways, each from the same start, and prints what each gained; the first way is what later
//! blocks see. A way is `EPOCHS,STEP_TOKENS,SCALE_RATE,MAP_RATE`, as in 3,512,1e-2,2e-3.
//!
//!     cargo run --release -p gosset-runtime --example tune -- MODEL HESSIAN_CACHE BLOCKS TOKENS WAY...

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use gosset_quantize::Activations;
use gosset_runtime::calibration::{Calibration, CalibrationOptions, LayerInput};
use gosset_runtime::source::open_source;
use gosset_runtime::tune::TuneOptions;
use gosset_unisvq::{UniSvqMatrix, UniSvqSpec};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, cache, blocks, tokens, ways @ ..] = args.as_slice() else {
        return Err("expected MODEL CACHE BLOCKS TOKENS WAY...".into());
    };
    let ways = ways.iter().map(|way| parse(way)).collect::<Result<Vec<_>, _>>()?;
    let source = open_source(model.as_ref())?;
    let options = CalibrationOptions {
        tokens: tokens.parse()?,
        hessian_cache: Some(PathBuf::from(cache)),
        ..CalibrationOptions::default()
    };
    let mut calibration = Calibration::new(&*source, options)?;
    let grid = UniSvqSpec::named("unisvq", 2.0)?.check()?;
    for layer in 0..blocks.parse()? {
        let start = Instant::now();
        let mut matrices: Vec<(String, UniSvqMatrix)> = Vec::new();
        for linear in LayerInput::ALL.iter().flat_map(|input| input.linears()) {
            let name = format!("model.layers.{layer}.{linear}.weight");
            let index = source.tensors().iter().position(|t| t.name == name).ok_or("a linear is missing")?;
            let (rows, cols) = source.tensors()[index].rows_cols();
            let mut w = vec![0f32; rows * cols];
            source.read_rows(index, 0..rows, &mut w)?;
            let moments = calibration.moments(&name)?.ok_or("no second moments")?;
            let (matrix, _) = grid.encode(&w, rows, cols, Some(&moments.hessian))?;
            calibration.replaced(&name, &values(&matrix)?)?;
            matrices.push((name, matrix));
        }
        println!("encoded {layer} in {:.1}", start.elapsed().as_secs_f64());
        let mut kept = None;
        for way in &ways {
            let mut trial = matrices.clone();
            let mut block: Vec<(&str, &mut UniSvqMatrix)> = trial.iter_mut().map(|(n, m)| (n.as_str(), m)).collect();
            calibration.set_tune_options(*way);
            let start = Instant::now();
            let tuned = calibration.tune(&mut block)?;
            let seconds = start.elapsed().as_secs_f64();
            let w = format!("{},{},{},{}", way.epochs, way.step_tokens, way.scale_rate, way.map_rate);
            match &tuned {
                Some(t) => println!(
                    "block {layer:2} {w:20}: {:.4e} -> {:.4e} ({:.4}) in {} epochs, {seconds:.1} s",
                    t.report.loss_before,
                    t.report.loss_after,
                    t.report.loss_after / t.report.loss_before,
                    t.report.epochs
                ),
                None => println!("block {layer:2} {w:20}: nothing gained, {seconds:.1} s"),
            }
            if kept.is_none() {
                kept = Some((trial, tuned));
            }
        }
        if let Some((trial, Some(tuned))) = kept {
            for (name, matrix) in &trial {
                calibration.replaced(name, &values(matrix)?)?;
            }
            for (name, norm) in &tuned.norms {
                calibration.replaced(name, norm)?;
            }
        }
    }
    Ok(())
}

fn values(matrix: &UniSvqMatrix) -> Result<Vec<f32>, Box<dyn Error>> {
    let decoder = matrix.decoder()?;
    let mut out = vec![0f32; decoder.rows() * decoder.cols()];
    decoder.decode_rows(0..decoder.rows(), &mut out);
    Ok(out)
}

fn parse(way: &str) -> Result<TuneOptions, Box<dyn Error>> {
    let parts: Vec<&str> = way.split(',').collect();
    let [epochs, step_tokens, scale_rate, map_rate] = parts.as_slice() else {
        return Err("expected EPOCHS,STEP_TOKENS,SCALE_RATE,MAP_RATE".into());
    };
    Ok(TuneOptions {
        epochs: epochs.parse()?,
        step_tokens: step_tokens.parse()?,
        scale_rate: scale_rate.parse()?,
        map_rate: map_rate.parse()?,
        ..TuneOptions::default()
    })
}
