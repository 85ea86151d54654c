//! The lattice scheme: nearest points of alpha times the values, stripped to symbols, under an entropy code.
//!
//! The sequence is cut into blocks of the lattice's dimension N and streams of 512 symbols, which every N divides; the
//! last block is padded with zeros. One match on the lattice per call leads to code that is generic over it.

pub(crate) mod ans;
mod ans_curve_table;
mod curve;
mod curve_table;
mod decode;
mod encode;
mod rice;
mod target;

use gosset_entropy::{Rate, STREAM_LEN, STREAMS_PER_PAGE};
use gosset_lattice::LatticeKind;

pub(crate) use decode::LatticeDecoder;
pub(crate) use encode::{MAX_SCALED, SymbolStats, count_symbols, encode};

use crate::plane::{PlaneData, PlaneSet};
use crate::{CodeHeader, CodeKind, Gain, LatticeHeader, RateEstimate, RateTarget};

/// Codewords, most significant bit first.
pub(crate) const WORDS: &str = "words";
/// Length of each stream in bits.
pub(crate) const LENGTHS: &str = "lengths";
/// First bit of each page.
const BASES: &str = "bases";

/// The planes of this scheme.
pub(crate) fn plane_names(header: &LatticeHeader) -> &'static [&'static str] {
    match header.code {
        CodeHeader::Rice { .. } => &[WORDS, LENGTHS, BASES],
        CodeHeader::Ans { .. } => &[WORDS, LENGTHS],
    }
}

/// Bits by cause of the planes of this scheme.
pub(crate) fn rate(header: &LatticeHeader, planes: &PlaneSet<'_, '_>) -> Rate {
    if let CodeHeader::Ans { .. } = header.code {
        return Rate { payload_bits: planes.n_bits(WORDS), length_bits: planes.n_bits(LENGTHS), ..Rate::default() };
    }
    let payload_bits = match planes.find(LENGTHS).map(|plane| &plane.data) {
        Some(PlaneData::U16(lengths)) => lengths.iter().map(|&length| u64::from(length)).sum(),
        _ => 0,
    };
    Rate {
        payload_bits,
        length_bits: planes.n_bits(LENGTHS) + planes.n_bits(BASES),
        header_bits: planes.n_bits(WORDS).saturating_sub(payload_bits),
        ..Rate::default()
    }
}

/// Payload of Gaussian values at `alpha`, in bits per value; below the stored curve, where nearly all points are zero, it falls with
/// the square of alpha.
pub(crate) fn gaussian_bps(lattice: LatticeKind, code: CodeKind, alpha: f64) -> f64 {
    let point = curve::curve_of(lattice, code).at_alpha(alpha);
    point.payload_bps * (alpha / point.alpha).min(1.0).powi(2)
}

/// What `n` Gaussian values are expected to take.
pub(crate) fn estimate(lattice: LatticeKind, code: CodeKind, gain: Gain, target: RateTarget, n: u64) -> RateEstimate {
    let curve = curve::curve_of(lattice, code);
    let point = match target {
        RateTarget::PayloadBps(bps) => curve.at_bps(bps),
        RateTarget::Alpha(alpha) => curve.at_alpha(alpha),
    };
    let payload_bits = (point.payload_bps * n as f64).round() as u64;
    let rate = match code {
        CodeKind::Rice => {
            let n_streams = n.div_ceil(STREAM_LEN as u64);
            let n_pages = n_streams.div_ceil(STREAMS_PER_PAGE as u64);
            // A page ends anywhere within a word.
            let (length_bits, header_bits) = (16 * n_streams + 64 * n_pages, 16 * n_pages);
            Rate { payload_bits, length_bits, header_bits, ..Rate::default() }
        }
        CodeKind::Ans => {
            Rate { payload_bits, length_bits: 16 * n.div_ceil(ans::ANS_STREAM_LEN as u64), ..Rate::default() }
        }
    };
    let snr_db = match (code, gain) {
        // The curve is of points times the gain of least squares, 1 less the error's share; bare points are larger by it, and the
        // error too.
        (CodeKind::Ans, Gain::None) if point.snr_db > 0.0 => {
            point.snr_db + 10.0 * (1.0 - 10f64.powf(-0.1 * point.snr_db)).log10()
        }
        _ => point.snr_db,
    };
    RateEstimate { rate, snr_db }
}
