//! The entropy-coded trellis scheme.
//!
//! The values, as one sequence, are cut into streams of 16384 and each is searched for the grid points that are best in
//! distortion and rate ([`gosset_trellis::entropy_coded`]). The points are coded by [`gosset_entropy::ans`] with two contexts,
//! the union of the grid that the state of the trellis says. Frequencies, costs and reconstruction values come from a
//! family of tables made from Gaussian data, of which a matrix names one.

use gosset_entropy::Rate;
use gosset_entropy::ans::FreqTable;

use crate::plane::PlaneSet;
use crate::{RateEstimate, RateTarget, TrellisHeader};

mod curve;
mod curve_table;
mod decode;
mod encode;
mod family;
mod family_table;
#[cfg(test)]
mod tests;
mod train;

pub(crate) use curve::curve_of;
pub(crate) use decode::{NextStates, TrellisDecoder, next_states};
pub(crate) use encode::{checked_code, encode};
pub(crate) use family::{N_TABLES, Table, ValueTable, join};
pub use train::{TrellisCurvePoint, TrellisFamily, trellis_code_cost, trellis_curve_source};

/// Words of all streams, one after the other.
const WORDS: &str = "words";
/// Number of words of each stream.
const LENGTHS: &str = "lengths";
/// The planes of this scheme.
pub(crate) const PLANES: [&str; 2] = [WORDS, LENGTHS];

/// Values of a stream; the last one may be shorter.
pub(crate) const STREAM_LEN: usize = 16_384;

/// Frequencies, raw bits and the values around zero of a table of the family; `None` if there is no such table.
pub(crate) fn parts(table: u16) -> Option<([FreqTable<'static>; 2], u32, Vec<f32>)> {
    let table = family::Table::get(table)?;
    Some((table.freqs().clone(), table.raw_bits(), table.values().into_values()))
}

/// What a sequence of `n` Gaussian values is expected to take.
pub(crate) fn estimate(states: u32, target: RateTarget, n: u64) -> RateEstimate {
    let curve = curve::curve_of(states);
    let point = match target {
        RateTarget::PayloadBps(bps) => curve.at_bps(bps),
        RateTarget::Alpha(alpha) => curve.at_alpha(alpha),
    };
    let bps = match target {
        RateTarget::PayloadBps(bps) => bps,
        RateTarget::Alpha(_) => point.payload_bps,
    };
    let n_streams = n.div_ceil(STREAM_LEN as u64);
    let payload_bits = (bps * n as f64) as u64;
    let rate = Rate { payload_bits, length_bits: 16 * n_streams, ..Rate::default() };
    RateEstimate { rate, snr_db: point.snr_db }
}

/// Bits by cause of the planes; n is left 0. The ends of streams, padded to whole words, are payload.
pub(crate) fn rate(_header: &TrellisHeader, planes: &PlaneSet<'_, '_>) -> Rate {
    Rate { payload_bits: planes.n_bits(WORDS), length_bits: planes.n_bits(LENGTHS), ..Rate::default() }
}
