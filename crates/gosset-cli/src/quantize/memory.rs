//! What a run takes of memory, stated before it starts, and how it is kept to a limit.

use anyhow::Result;
use gosset_quantize::{ModelSource, Plan};
use gosset_runtime::calibration::Calibration;

use crate::exit::{Exit, error};
use crate::output;

/// Program, allocator and thread stacks of a run without calibration: of 93 MB that a run took in all, 65 were stated as heap.
const PLAIN_PROGRAM: u64 = 32 << 20;

/// Program, tokenizer, allocator and thread stacks of a run with calibration: one on the embedded model took 135 MB of which 50 were on
/// the heap at once.
const PROGRAM: u64 = 96 << 20;

/// Halvings of what tensors may take at the same time, down to one tensor alone.
const TRIES: u32 = 12;

/// Most memory that a run takes: program, side files, activations, and the tensors that are worked on.
pub(super) fn peak_bytes(source: &dyn ModelSource, plan: &Plan, calibration: Option<&Calibration<'_>>) -> u64 {
    let (program, heap) = match calibration {
        None => {
            // Side files are held, and parsed once to be looked at.
            let blobs: u64 = source.blobs().iter().map(|(_, bytes)| bytes.len() as u64).sum();
            (PLAIN_PROGRAM, plan.peak_bytes() + 2 * blobs)
        }
        Some(calibration) => (PROGRAM, calibration.expected_run_bytes(plan)),
    };
    // What is freed between tensors of different sizes does not all go back to the system: with 428 MB stated a run took 512 MB in all.
    program + heap + heap / 16
}

/// Makes the run of `plan` take at most `max` bytes, or says why it cannot.
pub(super) fn limit(
    plan: &mut Plan,
    source: &dyn ModelSource,
    calibration: Option<&Calibration<'_>>,
    max: u64,
) -> Result<()> {
    for halvings in 0..=TRIES {
        if peak_bytes(source, plan, calibration) <= max {
            return Ok(());
        }
        plan.limit_batches(if halvings == TRIES { 0 } else { max >> halvings });
    }
    let needs = peak_bytes(source, plan, calibration);
    if needs <= max {
        return Ok(());
    }
    let largest = plan.largest().map_or_else(String::new, |item| {
        let (name, shape) = (&item.tensor.name, output::shape(&item.tensor.shape));
        format!("; the largest tensor to quantize is {name} ({shape}), --keep leaves it as it is")
    });
    let message = format!(
        "--max-memory {}: expected at least {}, which one tensor at a time takes{largest}",
        output::bytes(max),
        output::bytes(needs),
    );
    Err(error(Exit::Usage, message))
}
