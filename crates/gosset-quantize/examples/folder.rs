//! Quantizes a safetensors folder or file without any runtime: `cargo run --release -p gosset-quantize --example folder -- IN OUT CODEC RATE`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its terminal")]

use std::path::Path;

use gosset_quantize::{Event, Observer, QuantizeOptions, RunOptions, SafetensorsSource, plan, run};

/// Says on stderr what is being worked on.
struct Told;

impl Observer for Told {
    fn event(&self, event: &Event<'_>) {
        if let Event::Started { tensor, index, total, .. } = event {
            eprintln!("quantizing {}/{total}: {tensor}", index + 1);
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, out, codec, rate] = args.as_slice() else { return Err("expected IN OUT CODEC RATE".into()) };
    let source = SafetensorsSource::open(Path::new(input))?;
    let plan = plan(&source, &QuantizeOptions::new(codec, rate.parse()?))?;
    eprintln!("at most {} bytes of memory beside the program", plan.peak_bytes());
    let how = RunOptions { release_input: true, ..RunOptions::replacing() };
    let report = run(&plan, &source, None, Path::new(out), &how, &Told)?;
    println!("{} bytes, {:.3} bits per weight", report.file_bytes, report.all_in_bps);
    Ok(())
}
