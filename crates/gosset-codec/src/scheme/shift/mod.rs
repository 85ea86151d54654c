//! The bit-shift trellis scheme.
//!
//! Rows of unit RMS, or tiles of 16 rows and 16 columns, become bit strings of fixed length
//! ([`gosset_trellis::shift`]), all in one plane, `words`. Each row is given its least-squares gain.

use gosset_entropy::Rate;
use gosset_trellis::TrellisError;
use gosset_trellis::shift::{ShiftSpec, ShiftTrellis};

use crate::plane::PlaneSet;
use crate::{CodecError, RateEstimate, RateTarget, ShiftCodeKind, ShiftHeader, ShiftOrderKind};

mod decode;
mod encode;

pub(crate) use decode::{ShiftBuffers, ShiftDecoder};
pub(crate) use encode::encode;

/// Words of all strings, one after the other.
const WORDS: &str = "words";
/// The planes of this scheme.
pub(crate) const PLANES: [&str; 1] = [WORDS];

/// What a matrix of `rows` x `cols` Gaussian values is expected to take.
pub(crate) fn estimate(
    state_bits: u8,
    code: ShiftCodeKind,
    order: ShiftOrderKind,
    target: RateTarget,
    rows: u64,
    cols: u64,
) -> RateEstimate {
    let bits = bits_of(target);
    let Ok(trellis) = trellis(bits, state_bits, code, order) else {
        return RateEstimate { rate: Rate::default(), snr_db: 0.0 };
    };
    let n_words = usize::try_from(rows).ok().zip(usize::try_from(cols).ok());
    let layout = n_words.and_then(|(rows, cols)| trellis.layout(rows, cols).ok());
    let n_bits = layout.map_or(0, |layout| 32 * layout.n_words() as u64);
    RateEstimate { rate: split(bits, rows, cols, n_bits), snr_db: -10.0 * trellis.gaussian_mse().log10() }
}

/// Bits by cause of the planes; n is left 0.
pub(crate) fn rate(header: &ShiftHeader, rows: u64, cols: u64, planes: &PlaneSet<'_, '_>) -> Rate {
    split(header.bits, rows, cols, planes.n_bits(WORDS))
}

/// What is beyond `bits` per weight is padding.
fn split(bits: u8, rows: u64, cols: u64, n_bits: u64) -> Rate {
    let payload_bits = rows.saturating_mul(cols).saturating_mul(bits.into()).min(n_bits);
    Rate { payload_bits, header_bits: n_bits - payload_bits, ..Rate::default() }
}

/// Bits per weight that a target asks for. `CodecSpec::check` lets nothing pass but what there is; 0 otherwise.
fn bits_of(target: RateTarget) -> u8 {
    match target {
        RateTarget::PayloadBps(bps) => bps as u8,
        RateTarget::Alpha(_) => 0,
    }
}

/// The trellis of a header or specification.
pub(crate) fn trellis(
    bits: u8,
    state_bits: u8,
    code: ShiftCodeKind,
    order: ShiftOrderKind,
) -> Result<ShiftTrellis, TrellisError> {
    ShiftSpec { bits, state_bits, code: code.into(), order: order.into() }.check()
}

/// The error of a header or specification that the trellis refuses.
pub(crate) fn refused(error: TrellisError) -> CodecError {
    match error {
        TrellisError::Parameter { name, expected, found } => {
            CodecError::Header { field: name, found: found.to_string(), expected: expected.to_owned() }
        }
        other => {
            CodecError::Header { field: "scheme", found: other.to_string(), expected: "a shift trellis".to_owned() }
        }
    }
}
