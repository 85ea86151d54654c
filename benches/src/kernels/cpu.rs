//! Codecs on the CPU: what is measured where there is no device.

use std::fs;
use std::time::Instant;

use anyhow::Result;
use gosset_codec::{DecodeScratch, ShiftOrderKind, calibrate};

use super::args::{Args, Shape};
use super::block::{Block, Encoded};
use super::note;
use super::reference::{MAX_REL_ERR, Reference};
use super::report::{CpuRow, Report};

/// Rows and columns that are measured: few, since encoding them takes most of the time.
const SHAPE: Shape = Shape { rows: 16, cols: 4096 };
/// Codecs that are measured.
const CODECS: [&str; 8] =
    ["shift-12@2", "shift-14@2", "shift-14@3", "shift-14@4", "e8-rice@2", "e8-rice@3", "e8-rice@4", "e8@3"];
/// Runs of each; the time is that of the fastest.
const RUNS: usize = 20;

/// Decodes and multiplies with each codec, on one thread.
pub(super) fn run(args: &Args, report: &mut Report) -> Result<()> {
    let block = Block::new(SHAPE, SHAPE.rows, args.seed);
    let x = calibrate::gaussian(SHAPE.cols, args.seed.wrapping_add(1));
    for label in CODECS.into_iter().filter(|label| args.wants_codec(label)) {
        let encoded = Encoded::new(label, ShiftOrderKind::Rows, &block)?;
        let reference = Reference::new(&encoded.decoded, SHAPE.cols, &x);
        let decoder = encoded.matrix.decoder()?;
        let mut rotated = x.clone();
        if let Some(rht) = decoder.rotation() {
            rht.forward(&mut rotated);
        }
        let mut scratch = DecodeScratch::new();
        let (mut rows, mut y) = (vec![0.0; SHAPE.n_weights()], vec![f32::NAN; SHAPE.rows]);
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            let start = Instant::now();
            decoder.decode_rows_rotated(0..SHAPE.rows, &mut rows, &mut scratch)?;
            for (y, row) in y.iter_mut().zip(rows.chunks_exact(SHAPE.cols)) {
                *y = dot(row, &rotated);
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e6);
        }
        let rel_err = reference.max_rel_err(&y, SHAPE.rows);
        if rel_err > MAX_REL_ERR {
            report.problems.push(format!("cpu {label}: an output is off by {rel_err:.1e} of the norms"));
        }
        note(&format!("cpu {label}: {best:.0} us"));
        report.cpu_rows.push(CpuRow {
            codec: label.to_owned(),
            shape: SHAPE.to_string(),
            bps: encoded.payload_bps,
            mse: encoded.mse,
            us: best,
            mws: SHAPE.n_weights() as f64 / best,
            rel_err,
        });
    }
    Ok(())
}

/// A product in eight sums, which compilers turn into vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest = a.len() - a.len() % 8;
    sums.iter().sum::<f32>() + a[rest..].iter().zip(&b[rest..]).map(|(a, b)| a * b).sum::<f32>()
}

/// Name of the processor where the system tells it.
pub(super) fn name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")).map(|rest| rest.trim_matches([' ', '\t', ':']));
    model.unwrap_or(std::env::consts::ARCH).to_owned()
}
