//! The entropy-coded trellis scheme.

use std::ops::Range;

use gosset_entropy::Rate;

use super::{EncodedUnits, StreamError, Units};
use crate::decode::DecodeScratch;
use crate::plane::PlaneSet;
use crate::{CodecError, RateEstimate, RateTarget, TrellisHeader};

/// The planes of this scheme.
pub(crate) const PLANES: [&str; 2] = ["words", "lengths"];

pub(crate) fn encode(_states: u32, _target: RateTarget, _units: &Units<'_>) -> Result<EncodedUnits, CodecError> {
    unimplemented!("no name leads here yet")
}

pub(crate) fn estimate(_states: u32, _target: RateTarget, _n: u64) -> RateEstimate {
    unimplemented!("no name leads here yet")
}

pub(crate) fn rate(_header: &TrellisHeader, _planes: &PlaneSet<'_, '_>) -> Rate {
    Rate::default()
}

#[derive(Debug)]
pub(crate) struct TrellisDecoder<'a>(std::marker::PhantomData<&'a ()>);

impl<'a> TrellisDecoder<'a> {
    pub(crate) fn new(header: &TrellisHeader, _n: u64, _planes: &PlaneSet<'_, 'a>) -> Result<Self, CodecError> {
        let (found, expected) = (header.states.to_string(), "a number of states that this version knows".to_owned());
        Err(CodecError::Header { field: "states", found, expected })
    }

    pub(crate) fn stream_len(&self) -> usize {
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
