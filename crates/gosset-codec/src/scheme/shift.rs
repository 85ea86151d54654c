//! The bit-shift trellis scheme.

use std::ops::Range;

use gosset_entropy::Rate;

use super::{EncodedUnits, StreamError, Units};
use crate::decode::DecodeScratch;
use crate::plane::PlaneSet;
use crate::{CodecError, RateEstimate, RateTarget, ShiftCodeKind, ShiftHeader, ShiftOrderKind};

/// The planes of this scheme.
pub(crate) const PLANES: [&str; 1] = ["words"];

pub(crate) fn encode(
    _state_bits: u8,
    _code: ShiftCodeKind,
    _order: ShiftOrderKind,
    _target: RateTarget,
    _units: &Units<'_>,
) -> Result<EncodedUnits, CodecError> {
    unimplemented!("no name leads here yet")
}

pub(crate) fn estimate(
    _state_bits: u8,
    _code: ShiftCodeKind,
    _order: ShiftOrderKind,
    _target: RateTarget,
    _rows: u64,
    _cols: u64,
) -> RateEstimate {
    unimplemented!("no name leads here yet")
}

pub(crate) fn rate(_header: &ShiftHeader, _rows: u64, _cols: u64, _planes: &PlaneSet<'_, '_>) -> Rate {
    Rate::default()
}

#[derive(Debug)]
pub(crate) struct ShiftDecoder<'a>(std::marker::PhantomData<&'a ()>);

impl<'a> ShiftDecoder<'a> {
    pub(crate) fn new(
        header: &ShiftHeader,
        _rows: usize,
        _cols: usize,
        _planes: &PlaneSet<'_, 'a>,
    ) -> Result<Self, CodecError> {
        let (found, expected) = (header.bits.to_string(), "a number of bits that this version knows".to_owned());
        Err(CodecError::Header { field: "bits", found, expected })
    }

    pub(crate) fn row_block(&self) -> usize {
        1
    }

    pub(crate) fn step(&self) -> f32 {
        1.0
    }

    pub(crate) fn decode_units(
        &self,
        _range: Range<usize>,
        _scratch: &mut DecodeScratch,
        _sink: impl FnMut(usize, &[f32]),
    ) -> Result<(), StreamError> {
        Ok(())
    }

    pub(crate) fn decode_points(
        &self,
        _range: Range<usize>,
        _scratch: &mut DecodeScratch,
        _sink: impl FnMut(usize, &[i32]),
    ) -> Result<(), StreamError> {
        Ok(())
    }
}
