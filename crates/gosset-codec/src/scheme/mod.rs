//! Schemes: how rows of unit RMS become planes, and back.
//!
//! A scheme sees rows of numbers of unit RMS, one after the other, and no rotation; what surrounds it (rotation, row
//! scales, exactly stored rows) is the same for all. A new scheme is one more variant of
//! [`SchemeSpec`], [`SchemeHeader`] and [`SchemeDecoder`] and one more module here; a new entropy code is one more
//! variant of [`CodeKind`](crate::CodeKind) and [`CodeHeader`](crate::CodeHeader) inside [`lattice`].

use std::ops::Range;

use gosset_entropy::Rate;

use crate::decode::DecodeScratch;
use crate::plane::PlaneSet;
use crate::{CodecError, Plane, RateEstimate, RateTarget, SchemeHeader, SchemeSpec};

pub(crate) mod curve;
pub(crate) mod lattice;
pub(crate) mod shift;
pub(crate) mod trellis;

/// A matrix to encode.
pub(crate) struct Units<'a> {
    /// The values, rows of unit RMS one after the other. Rows stored elsewhere are zero.
    pub values: &'a [f32],
    /// Number of rows.
    pub rows: usize,
    /// Values per row.
    pub cols: usize,
    /// Largest magnitude.
    pub peak: f32,
    /// A row that holds it.
    pub peak_row: usize,
    /// Bits already spent that count as payload: those of exactly stored rows.
    pub spent_bits: u64,
}

/// What a scheme makes of a matrix.
pub(crate) struct EncodedUnits {
    /// How to decode.
    pub header: SchemeHeader,
    /// The bits.
    pub planes: Vec<Plane<'static>>,
    /// Factor of each row that brings its reconstruction nearest to it, to be made part of the row scale; without
    /// meaning for rows of zeros. `None` where no gain was asked for.
    pub gains: Option<Vec<f32>>,
}

/// Header, planes and gains of `units` under a scheme.
pub(crate) fn encode(scheme: &SchemeSpec, target: RateTarget, units: &Units<'_>) -> Result<EncodedUnits, CodecError> {
    match scheme {
        SchemeSpec::Lattice { lattice, code, gain } => lattice::encode(lattice.0, *code, *gain, target, units),
        SchemeSpec::Trellis { states } => trellis::encode(*states, target, units),
        SchemeSpec::Shift { state_bits, code, order } => shift::encode(*state_bits, *code, *order, target, units),
    }
}

/// What a matrix of `rows` x `cols` Gaussian values is expected to take; scales are counted by the caller.
pub(crate) fn estimate(scheme: &SchemeSpec, target: RateTarget, rows: u64, cols: u64) -> RateEstimate {
    let n = rows.saturating_mul(cols);
    match scheme {
        SchemeSpec::Lattice { lattice, code, gain } => lattice::estimate(lattice.0, *code, *gain, target, n),
        SchemeSpec::Trellis { states } => trellis::estimate(*states, target, n),
        SchemeSpec::Shift { state_bits, code, order } => {
            shift::estimate(*state_bits, *code, *order, target, rows, cols)
        }
    }
}

/// Names of the planes of a scheme, without those that all schemes share.
pub(crate) fn plane_names(header: &SchemeHeader) -> &'static [&'static str] {
    match header {
        SchemeHeader::Lattice(header) => lattice::plane_names(header),
        SchemeHeader::Trellis(_) => &trellis::PLANES,
        SchemeHeader::Shift(_) => &shift::PLANES,
    }
}

/// Bits by cause of the planes of a scheme; n is left 0.
pub(crate) fn rate(header: &SchemeHeader, rows: u64, cols: u64, planes: &PlaneSet<'_, '_>) -> Rate {
    match header {
        SchemeHeader::Lattice(header) => lattice::rate(header, planes),
        SchemeHeader::Trellis(header) => trellis::rate(header, planes),
        SchemeHeader::Shift(header) => shift::rate(header, rows, cols, planes),
    }
}

/// The working decoder of a scheme.
#[derive(Debug)]
pub(crate) enum SchemeDecoder<'a> {
    Lattice(lattice::LatticeDecoder<'a>),
    Trellis(trellis::TrellisDecoder<'a>),
    Shift(shift::ShiftDecoder<'a>),
}

impl<'a> SchemeDecoder<'a> {
    /// Checks header and planes of a matrix of `rows` x `cols` values, `8 * rows * cols` being no overflow.
    pub(crate) fn new(
        header: &SchemeHeader,
        rows: usize,
        cols: usize,
        planes: &PlaneSet<'_, 'a>,
    ) -> Result<Self, CodecError> {
        let n = rows as u64 * cols as u64;
        match header {
            SchemeHeader::Lattice(header) => lattice::LatticeDecoder::new(header, n, planes).map(Self::Lattice),
            SchemeHeader::Trellis(header) => trellis::TrellisDecoder::new(header, n, planes).map(Self::Trellis),
            SchemeHeader::Shift(header) => shift::ShiftDecoder::new(header, rows, cols, planes).map(Self::Shift),
        }
    }

    /// Smallest number of rows of `cols` columns of which every multiple can be decoded from without decoding anything
    /// twice.
    pub(crate) fn row_block(&self, cols: usize) -> usize {
        let whole_streams = |stream_len: usize| stream_len / gcd(stream_len, cols);
        match self {
            Self::Lattice(decoder) => whole_streams(decoder.stream_len()),
            Self::Trellis(decoder) => whole_streams(decoder.stream_len()),
            Self::Shift(decoder) => decoder.row_block(),
        }
    }

    /// What the values that [`SchemeDecoder::decode_units`] hands out are to be multiplied by to have unit RMS per row.
    pub(crate) fn step(&self) -> f32 {
        match self {
            Self::Lattice(decoder) => decoder.step(),
            Self::Trellis(decoder) => decoder.step(),
            Self::Shift(decoder) => decoder.step(),
        }
    }

    /// Hands the values of `range`, whole rows, in steps, to `sink`, in order and in runs, each with the position of
    /// its first value.
    pub(crate) fn decode_units(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, &[f32]),
    ) -> Result<(), StreamError> {
        match self {
            Self::Lattice(decoder) => decoder.decode_units(range, scratch, sink),
            Self::Trellis(decoder) => decoder.decode_units(range, scratch, sink),
            Self::Shift(decoder) => decoder.decode_units(range, scratch, sink),
        }
    }

    /// Hands the integer points of `range`, whole rows, to `sink`, in order and in runs, each with the position of its
    /// first value.
    pub(crate) fn decode_points(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, &[i32]),
    ) -> Result<(), StreamError> {
        match self {
            Self::Lattice(decoder) => decoder.decode_points(range, scratch, sink),
            Self::Trellis(decoder) => decoder.decode_points(range, scratch, sink),
            Self::Shift(decoder) => decoder.decode_points(range, scratch, sink),
        }
    }
}

/// Greatest common divisor of two positive numbers.
fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Why a stream could not be decoded; the caller adds the row.
#[derive(Debug)]
pub(crate) struct StreamError {
    /// Position of the first value of the stream.
    pub first: usize,
    /// Index of the stream.
    pub stream: usize,
    /// Bit within the stream.
    pub bit: u64,
    /// What was found and what was expected.
    pub what: String,
}
