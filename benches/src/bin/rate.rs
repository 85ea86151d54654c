//! Rates, distortions and speeds of the codecs; maker of their stored rate curves.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks to its terminal")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use gosset_codec::{
    CodeHeader, CodeKind, CodecSpec, DecodeScratch, Decoder, MatRef, RateTarget, SchemeHeader, SchemeSpec, calibrate,
    codecs,
};
use gosset_lattice::LatticeKind;
use serde::Serialize;

/// Seed of the data that the stored curves were made from.
const CURVE_SEED: u64 = 20_260_701;

/// Measures what codecs do to Gaussian data.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Print a stored table of the lattice codecs, made from Gaussian values.
    Calibrate {
        /// Which table.
        #[arg(long, value_enum, default_value_t = Table::RiceCurves)]
        table: Table,
        /// Simulate on 2^LOG2_N values; the stored tables used 22.
        #[arg(long, default_value_t = 22, value_parser = clap::value_parser!(u32).range(10..=30))]
        log2_n: u32,
    },
    /// Print payload, stream and all-in rate, distortion and ideal rate of every lattice codec over a ladder of payloads.
    Ladder {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Distance of the payloads in bits per weight.
        #[arg(long, default_value_t = 0.5)]
        step: f64,
    },
    /// Measure encode and decode on one thread, in millions of weights per second.
    Speed {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Rows of the matrix.
        #[arg(long, default_value_t = 1024)]
        rows: usize,
        /// Columns of the matrix.
        #[arg(long, default_value_t = 4096)]
        cols: usize,
        /// Codecs and payloads to measure.
        #[arg(long, value_delimiter = ',', default_values_t = default_specs())]
        codecs: Vec<String>,
        /// The best of so many runs counts.
        #[arg(long, default_value_t = 5)]
        runs: usize,
    },
}

/// A table that is kept in the repository.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Table {
    /// Rust source of the rate curves under Rice codes (crates/gosset-codec/src/scheme/lattice/curve_table.rs).
    RiceCurves,
    /// Rust source of the rate curves under ANS (crates/gosset-codec/src/scheme/lattice/ans_curve_table.rs).
    AnsCurves,
    /// The frequency tables of ANS (crates/gosset-codec/tables/lattice-ans.txt).
    AnsFamily,
}

fn default_specs() -> Vec<String> {
    let e8 = ["e8", "e8-rice"].iter().flat_map(|name| [2, 3, 4].map(|bps| format!("{name}@{bps}")));
    let others = ["d4", "a2", "z", "d4-rice", "a2-rice", "z-rice", "trellis-8"].map(|name| format!("{name}@3"));
    e8.chain(others).collect()
}

fn main() -> Result<()> {
    match Args::parse().verb {
        Verb::Calibrate { table, log2_n } => calibrate(table, log2_n),
        Verb::Ladder { json, step } => ladder(json, step),
        Verb::Speed { json, rows, cols, codecs, runs } => speed(json, rows, cols, &codecs, runs),
    }
}

fn calibrate(table: Table, log2_n: u32) -> Result<()> {
    let values = calibrate::gaussian(1 << log2_n, CURVE_SEED);
    let (code, suffix, title, command) = match table {
        Table::AnsFamily => {
            print!("{}", calibrate::family_source(&values));
            return Ok(());
        }
        Table::RiceCurves => (CodeKind::Rice, "RICE", "the Rice code", ""),
        Table::AnsCurves => (CodeKind::Ans, "ANS", "the ANS coder and the least-squares gain", " --table ans-curves"),
    };
    println!(
        "//! Rate curves of the lattices under {title}, on 2^{log2_n} Gaussian values: rows of alpha, payload in bits per value\n\
         //! and signal-to-noise ratio in decibels. Made by\n\
         //! `cargo run --release -p gosset-benches --bin rate -- calibrate{command}`.\n\
         #![allow(clippy::approx_constant, reason = \"powers of two in octaves are no misspelt constants\")]"
    );
    for lattice in LatticeKind::ALL {
        eprintln!("simulating {lattice}");
        let curve = calibrate::curve(lattice, code, &values);
        let name = format!("{}_{suffix}", lattice.name().to_uppercase());
        print!("\n{}", calibrate::table_source(&name, &curve));
    }
    Ok(())
}

#[derive(Serialize)]
struct LadderRow {
    codec: &'static str,
    target_bps: f64,
    payload_bps: f64,
    stream_bps: f64,
    all_in_bps: f64,
    snr_db: f64,
    /// Rate of an ideal coder at the same alpha, with one table per symbol position (Rice) or context (ANS).
    entropy_bps: f64,
    /// Rate-distortion bound of Gaussian values at that distortion.
    bound_bps: f64,
    /// What the streams take beyond it.
    gap_bps: f64,
    alpha: f64,
}

fn ladder(json: bool, step: f64) -> Result<()> {
    if step.is_nan() || step <= 0.0 {
        bail!("step is {step}, expected a positive number");
    }
    let (rows, cols) = (512, 4096);
    let weights = calibrate::gaussian(rows * cols, CURVE_SEED + 1);
    let mut table = Vec::new();
    for codec in codecs() {
        for i in 0.. {
            let target_bps = 1.25 + step * f64::from(i);
            if target_bps > 6.0 {
                break;
            }
            // Fixed rates leave the loop too.
            let Ok(spec) = CodecSpec::named(codec.name, target_bps) else { break };
            let SchemeSpec::Lattice { .. } = spec.scheme else { break };
            let encoded = spec.check()?.encode(MatRef::new(&weights, rows, cols)?)?;
            let mut decoded = vec![0.0; weights.len()];
            encoded.decoder()?.decode_rows(0..rows, &mut decoded, &mut DecodeScratch::new())?;
            let snr_db = snr_db(&weights, &decoded);
            let SchemeHeader::Lattice(header) = &encoded.header.scheme else { bail!("{} is no lattice", codec.name) };
            let alpha = f64::from(header.alpha);
            let code = if let CodeHeader::Ans { .. } = header.code { CodeKind::Ans } else { CodeKind::Rice };
            let simulated = calibrate::simulate(header.lattice.0, code, alpha, &weights);
            let rate = encoded.rate();
            let bound_bps = snr_db / (20.0 * 2f64.log10());
            table.push(LadderRow {
                codec: codec.name,
                target_bps,
                payload_bps: rate.payload_bps(),
                stream_bps: rate.stream_bps(),
                all_in_bps: rate.all_in_bps(),
                snr_db,
                entropy_bps: simulated.entropy_bps,
                bound_bps,
                gap_bps: rate.stream_bps() - bound_bps,
                alpha,
            });
        }
    }
    if json {
        println!(
            "{}",
            serde_json::to_string_pretty(&serde_json::json!({ "rows": rows, "cols": cols, "ladder": table }))?
        );
    } else {
        println!("codec     target  payload   stream   all-in   SNR dB  entropy   bound     gap    alpha");
        for row in table {
            println!(
                "{:9} {:6.2} {:8.4} {:8.4} {:8.4} {:8.2} {:8.4} {:7.4} {:7.4} {:8.3}",
                row.codec,
                row.target_bps,
                row.payload_bps,
                row.stream_bps,
                row.all_in_bps,
                row.snr_db,
                row.entropy_bps,
                row.bound_bps,
                row.gap_bps,
                row.alpha
            );
        }
    }
    Ok(())
}

fn snr_db(x: &[f32], decoded: &[f32]) -> f64 {
    let signal: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
    let noise: f64 = x.iter().zip(decoded).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    10.0 * (signal / noise).log10()
}

#[derive(Serialize)]
struct SpeedRow {
    codec: String,
    payload_bps: f64,
    /// Millions of weights per second: alpha given, where there is one.
    encode_mws: f64,
    /// Alpha searched for.
    encode_target_mws: f64,
    /// Rows in the rotated frame.
    decode_rotated_mws: f64,
    /// Rows in the original basis.
    decode_mws: f64,
}

fn speed(json: bool, rows: usize, cols: usize, texts: &[String], runs: usize) -> Result<()> {
    let n = rows.checked_mul(cols).context("the matrix is too large")?;
    let weights = calibrate::gaussian(n, CURVE_SEED + 2);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let table = pool
        .install(|| texts.iter().map(|text| speed_row(text, &weights, rows, cols, runs)).collect::<Result<Vec<_>>>())?;
    if json {
        let report = serde_json::json!({ "cpu": cpu(), "threads": 1, "rows": rows, "cols": cols, "speed": table });
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{}, one thread, {rows} x {cols}, millions of weights per second", cpu());
        println!("codec        payload   encode  +search  decode rotated  decode");
        for row in table {
            println!(
                "{:12} {:7.4} {:8.1} {:8.1} {:15.1} {:7.1}",
                row.codec,
                row.payload_bps,
                row.encode_mws,
                row.encode_target_mws,
                row.decode_rotated_mws,
                row.decode_mws
            );
        }
    }
    Ok(())
}

fn speed_row(text: &str, weights: &[f32], rows: usize, cols: usize, runs: usize) -> Result<SpeedRow> {
    let matrix = MatRef::new(weights, rows, cols)?;
    let spec = CodecSpec::parse(text)?;
    let codec = spec.check()?;
    let encoded = codec.encode(matrix)?;
    let encode_target = best_of(runs, || codec.encode(matrix).map(drop))?;
    let encode = match &encoded.header.scheme {
        SchemeHeader::Lattice(header) => {
            let fixed = CodecSpec { target: RateTarget::Alpha(f64::from(header.alpha)), ..spec }.check()?;
            best_of(runs, || fixed.encode(matrix).map(drop))?
        }
        _ => encode_target,
    };
    let decoder = encoded.decoder()?;
    let mut out = vec![0.0; weights.len()];
    let decode_rotated = best_of(runs, || in_blocks(&decoder, &mut out, Decoder::decode_rows_rotated))?;
    let decode = best_of(runs, || in_blocks(&decoder, &mut out, Decoder::decode_rows))?;
    let mws = |time: Duration| weights.len() as f64 / time.as_secs_f64() / 1e6;
    Ok(SpeedRow {
        codec: text.to_owned(),
        payload_bps: encoded.rate().payload_bps(),
        encode_mws: mws(encode),
        encode_target_mws: mws(encode_target),
        decode_rotated_mws: mws(decode_rotated),
        decode_mws: mws(decode),
    })
}

type DecodeRows<'a> =
    fn(&Decoder<'a>, std::ops::Range<usize>, &mut [f32], &mut DecodeScratch) -> Result<(), gosset_codec::CodecError>;

/// Decodes all rows in blocks of about 16, as the runtime does, into one block-sized part of the output after the
/// other.
fn in_blocks<'a>(
    decoder: &Decoder<'a>,
    out: &mut [f32],
    decode: DecodeRows<'a>,
) -> Result<(), gosset_codec::CodecError> {
    let block = decoder.row_block() * 16usize.div_ceil(decoder.row_block());
    let mut scratch = DecodeScratch::new();
    for (i, out) in out.chunks_mut(block * decoder.cols()).enumerate() {
        decode(decoder, i * block..i * block + out.len() / decoder.cols(), out, &mut scratch)?;
    }
    Ok(())
}

fn best_of<E>(runs: usize, mut f: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    let mut best = Duration::MAX;
    for _ in 0..runs.max(1) {
        let start = Instant::now();
        f()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

/// Name of the processor where the system tells it.
fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")).map(|rest| rest.trim_matches([' ', '\t', ':']));
    model.unwrap_or(std::env::consts::ARCH).to_owned()
}
