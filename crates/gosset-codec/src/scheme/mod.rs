//! Schemes: how rows of unit RMS become planes, and back.
//!
//! A scheme sees one flat sequence of numbers of unit RMS per row and knows neither rows nor rotation; what surrounds
//! it (rotation, row scales, exactly stored rows) is the same for all. A new scheme is one more variant of
//! [`SchemeSpec`], [`SchemeHeader`] and [`SchemeDecoder`] and one more module here; a new entropy code is one more
//! variant of [`CodeKind`](crate::CodeKind) and [`CodeHeader`](crate::CodeHeader) inside [`lattice`].

use std::ops::Range;

use gosset_entropy::Rate;

use crate::decode::DecodeScratch;
use crate::plane::PlaneSet;
use crate::{CodecError, Plane, RateEstimate, RateTarget, SchemeHeader, SchemeSpec};

pub(crate) mod lattice;

/// A sequence to encode.
pub(crate) struct Units<'a> {
    /// The values, rows of unit RMS one after the other.
    pub values: &'a [f32],
    /// Largest magnitude.
    pub peak: f32,
    /// A row that holds it.
    pub peak_row: usize,
    /// Bits already spent that count as payload: those of exactly stored rows.
    pub spent_bits: u64,
}

/// Header and planes of `units` under a scheme.
pub(crate) fn encode(
    scheme: &SchemeSpec,
    target: RateTarget,
    units: &Units<'_>,
) -> Result<(SchemeHeader, Vec<Plane<'static>>), CodecError> {
    match scheme {
        SchemeSpec::Lattice { lattice, code } => {
            let (header, planes) = lattice::encode(lattice.0, *code, target, units)?;
            Ok((SchemeHeader::Lattice(header), planes))
        }
    }
}

/// What a matrix of `rows` x `cols` Gaussian values is expected to take; scales are counted by the caller.
pub(crate) fn estimate(scheme: &SchemeSpec, target: RateTarget, n: u64) -> RateEstimate {
    match scheme {
        SchemeSpec::Lattice { lattice, code } => lattice::estimate(lattice.0, *code, target, n),
    }
}

/// Names of the planes of a scheme, without those that all schemes share.
pub(crate) fn plane_names(header: &SchemeHeader) -> &'static [&'static str] {
    match header {
        SchemeHeader::Lattice(_) => &lattice::PLANES,
    }
}

/// Bits by cause of the planes of a scheme; n is left 0.
pub(crate) fn rate(header: &SchemeHeader, planes: &PlaneSet<'_, '_>) -> Rate {
    match header {
        SchemeHeader::Lattice(_) => lattice::rate(planes),
    }
}

/// The working decoder of a scheme.
#[derive(Debug)]
pub(crate) enum SchemeDecoder<'a> {
    Lattice(lattice::LatticeDecoder<'a>),
}

impl<'a> SchemeDecoder<'a> {
    /// Checks header and planes of a sequence of `n` values.
    pub(crate) fn new(header: &SchemeHeader, n: u64, planes: &PlaneSet<'_, 'a>) -> Result<Self, CodecError> {
        match header {
            SchemeHeader::Lattice(header) => lattice::LatticeDecoder::new(header, n, planes).map(Self::Lattice),
        }
    }

    /// Values from which one can start to decode without decoding what lies before.
    pub(crate) fn block_len(&self) -> usize {
        match self {
            Self::Lattice(_) => gosset_entropy::STREAM_LEN,
        }
    }

    /// What the values that [`SchemeDecoder::decode_units`] hands out are to be multiplied by to have unit RMS per row.
    pub(crate) fn step(&self) -> f32 {
        match self {
            Self::Lattice(decoder) => decoder.step(),
        }
    }

    /// Hands the values of `range`, in steps, to `sink`, in order and in runs, each with the position of its first
    /// value.
    pub(crate) fn decode_units(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, &[f32]),
    ) -> Result<(), StreamError> {
        match self {
            Self::Lattice(decoder) => decoder.decode_units(range, scratch, sink),
        }
    }

    /// Hands the integer points of `range` to `sink`, in order and in runs, each with the position of its first value.
    pub(crate) fn decode_points(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, &[i32]),
    ) -> Result<(), StreamError> {
        match self {
            Self::Lattice(decoder) => decoder.decode_points(range, scratch, sink),
        }
    }
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
