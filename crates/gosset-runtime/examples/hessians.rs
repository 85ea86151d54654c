//! Writes the second moments of a model on the built-in calibration text to a folder.
//!
//!     cargo run --release -p gosset-runtime --example hessians -- MODEL FOLDER [TOKENS]

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use gosset_runtime::calibration::{Calibration, CalibrationOptions, LayerInput};
use gosset_runtime::source::open_source;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, folder, rest @ ..] = args.as_slice() else { return Err("expected MODEL FOLDER [TOKENS]".into()) };
    let tokens = rest.first().map_or(Ok(32_768), |n| n.parse())?;
    let source = open_source(model.as_ref())?;
    let options = CalibrationOptions { tokens, hessian_cache: Some(PathBuf::from(folder)), ..Default::default() };
    let start = Instant::now();
    let mut calibration = Calibration::new(&*source, options)?;
    println!(
        "{} tokens in sequences of {}, up to {} MiB",
        calibration.n_tokens(),
        calibration.window(),
        calibration.expected_peak_bytes() >> 20
    );
    calibration.set_observer(Box::new(move |progress| {
        if progress.sequence == 0 {
            println!("{:7.1} s: layer {} of {}", start.elapsed().as_secs_f64(), progress.layer, progress.n_layers);
        }
        ControlFlow::Continue(())
    }));
    for layer in 0..calibration.config().n_layers {
        for input in LayerInput::ALL {
            calibration.input_moments(layer, input)?;
        }
    }
    println!("{:7.1} s", start.elapsed().as_secs_f64());
    for seen in calibration.coverage() {
        println!(
            "layer {:3} {:20} {} of {} channels dead, largest {:.4e} at token {}, channel {}",
            seen.layer,
            seen.input.name(),
            seen.dead,
            seen.channels,
            seen.max_abs,
            seen.max_token,
            seen.max_channel
        );
    }
    calibration.warnings().iter().for_each(|warning| println!("warning: {warning}"));
    Ok(())
}
