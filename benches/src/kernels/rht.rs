//! The rotation of activations alone.

use anyhow::Result;
use gosset_cuda::launch::rht::{DeviceRht, F16Scale, RhtOutput};
use gosset_transform::{DEFAULT_TILE, Rht, TilePlan};
use half::f16;

use super::args::{Op, Shape};
use super::bench::{Bench, Entry};
use super::timing;

/// Most that a rotated activation may be off over its own size: half a unit of f16's last place.
const MAX_REL_ERR: f64 = 1.0 / 2048.0;
/// Buffers that are rotated. They stay in the L2, as an activation that was just computed does.
const COPIES: usize = 4;

/// Times the transform of `batch` activations of each width of `shapes`, f32 to f16.
pub(super) fn run(bench: &mut Bench<'_>, shapes: &[Shape]) -> Result<()> {
    let mut widths: Vec<usize> = shapes.iter().map(|shape| shape.cols).collect();
    widths.sort_unstable();
    widths.dedup();
    for cols in widths {
        let rht = Rht::new(TilePlan::new(cols, DEFAULT_TILE)?, 0);
        let device = DeviceRht::new(bench.gpu, &rht)?;
        for batch in bench.args.batches()? {
            let x = bench.activations(cols, batch);
            let mut expected = x.clone();
            rht.forward_rows(&mut expected);
            let x = (0..COPIES).map(|_| bench.gpu.upload(&x)).collect::<Result<Vec<_>, _>>()?;
            let mut y = bench.gpu.upload(&vec![f16::NAN; cols * batch])?;
            let mut enqueue = |stream: gosset_cuda::StreamRef<'_>, copy: usize| {
                let y = RhtOutput::F16 { y: y.as_mut(), scale: F16Scale::Factor(1.0) };
                device.forward(stream, x[copy].as_slice(), batch, y)
            };
            enqueue(bench.stream.as_ref(), COPIES - 1)?;
            let timing = match bench.args.check {
                true => None,
                false => Some(timing::rotated(bench.gpu, &bench.stream, COPIES, bench.args.replays(), enqueue)?),
            };
            let found = bench.gpu.download(y.as_slice())?;
            let errors = found.iter().zip(&expected).map(|(found, &expected)| {
                let error = (f64::from(found.to_f32()) - f64::from(expected)).abs();
                // Subnormal numbers of f16 have an absolute place.
                error / f64::from(expected.abs()).max(6.2e-5)
            });
            let rel_err = errors.fold(0.0, |worst: f64, e| if e.is_nan() { f64::INFINITY } else { worst.max(e) });
            let shape = Shape { rows: batch, cols };
            let what = format!("rht {shape}");
            let entry = Entry {
                op: Op::Rht,
                codec: "-",
                variant: "",
                shape,
                batch,
                payload_bps: None,
                mse: None,
                matrix_bytes: 0,
                other_bytes: 6 * cols * batch,
                copies: COPIES,
                rel_err: Some(rel_err),
                valid: bench.judge(&what, rel_err, MAX_REL_ERR),
                is_product: false,
                note: "f32 to f16; data in the L2",
            };
            bench.push(&entry, timing, "single");
        }
    }
    Ok(())
}
