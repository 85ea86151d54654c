//! From words to points and values.

use std::borrow::Cow;
use std::ops::Range;

use gosset_entropy::EntropyError;
use gosset_entropy::ans::{self, DecodeTable, StreamDecoder};
use gosset_trellis::entropy_coded::{LANES, TrellisCode};

use super::encode::checked_code;
use super::family::{N_TABLES, Table, ValueTable, join};
use super::{LENGTHS, STREAM_LEN, WORDS};
use crate::decode::DecodeScratch;
use crate::plane::{PlaneSet, check_len, required};
use crate::scheme::StreamError;
use crate::{CodecError, TrellisHeader};

/// Most values that one bit can hold, by the largest frequency that a table may have.
const MAX_VALUES_PER_BIT: u64 = 64;
/// Values that are decoded at a time.
const CHUNK: usize = 512;

/// Checked planes of the trellis scheme.
#[derive(Debug)]
pub(crate) struct TrellisDecoder<'a> {
    n: usize,
    step: f32,
    raw_bits: u32,
    tables: Box<[DecodeTable; 2]>,
    next_states: Box<NextStates>,
    values: ValueTable,
    words: Cow<'a, [u32]>,
    /// Index of the first word of each stream, and of the end of the last.
    starts: Vec<usize>,
}

/// The state after `state` and z1, at 2 state + z1.
pub(crate) type NextStates = [u8; 512];

impl<'a> TrellisDecoder<'a> {
    /// Checks the header and the planes of `n` values, `8 * n` being no overflow.
    pub(crate) fn new(header: &TrellisHeader, n: u64, planes: &PlaneSet<'_, 'a>) -> Result<Self, CodecError> {
        let code = checked_code(header.states)?;
        let bad = |field, found: String, expected: String| Err(CodecError::Header { field, found, expected });
        if !(header.step.is_normal() && header.step > 0.0) {
            return bad("step", header.step.to_string(), "a positive normal number".to_owned());
        }
        let Some(table) = Table::get(header.table) else {
            return bad("table", header.table.to_string(), format!("a table of the family, below {N_TABLES}"));
        };
        let words = required(WORDS, planes.u32s(WORDS)?)?;
        let lengths = required(LENGTHS, planes.u16s(LENGTHS)?)?;
        check_len(LENGTHS, lengths.len(), n.div_ceil(STREAM_LEN as u64))?;
        let ends = lengths.iter().scan(0, |end, &length| {
            *end += usize::from(length);
            Some(*end)
        });
        let starts: Vec<usize> = std::iter::once(0).chain(ends).collect();
        check_len(WORDS, words.len(), starts[lengths.len()] as u64)?;
        // A lane takes a bit in 47 values at least, so that planes vouch for the size.
        for (stream, &length) in lengths.iter().enumerate() {
            let n_values = (n - (stream * STREAM_LEN) as u64).min(STREAM_LEN as u64);
            let (least, len_bits) = (n_values / MAX_VALUES_PER_BIT, 32 * u64::from(length));
            if len_bits < least {
                return Err(CodecError::Streams(EntropyError::StreamEnd { consumed: least, len_bits }));
            }
        }
        Ok(Self {
            n: n as usize,
            step: header.step,
            raw_bits: table.raw_bits(),
            tables: Box::new(table.freqs().each_ref().map(DecodeTable::new)),
            next_states: next_states(code),
            values: table.values(),
            words,
            starts,
        })
    }

    /// Values of a stream, the unit of random access.
    pub(crate) fn stream_len(&self) -> usize {
        STREAM_LEN
    }

    /// Factor from values in grid steps to values of unit RMS per row.
    pub(crate) fn step(&self) -> f32 {
        self.step
    }

    /// Hands the values of `range`, in grid steps, to `sink`.
    pub(crate) fn decode_units(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, &[f32]),
    ) -> Result<(), StreamError> {
        self.decode_streams(range, &mut scratch.values, |y| self.values.get(y), sink)
    }

    /// Hands the points of `range` to `sink`.
    pub(crate) fn decode_points(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, &[i32]),
    ) -> Result<(), StreamError> {
        self.decode_streams(range, &mut scratch.points, |y| y, sink)
    }

    fn decode_streams<T: Copy + Default>(
        &self,
        range: Range<usize>,
        buffer: &mut [T; CHUNK],
        value: impl Fn(i32) -> T + Copy,
        mut sink: impl FnMut(usize, &[T]),
    ) -> Result<(), StreamError> {
        for stream in range.start / STREAM_LEN..range.end.div_ceil(STREAM_LEN) {
            let first = stream * STREAM_LEN;
            let result = match self.raw_bits {
                0 => self.decode_stream::<false, T>(stream, &range, buffer, value, &mut sink),
                _ => self.decode_stream::<true, T>(stream, &range, buffer, value, &mut sink),
            };
            result.map_err(|error| StreamError { first, stream, bit: 0, what: error.to_string() })?;
        }
        Ok(())
    }

    /// Decodes the whole of one stream, so that its end can be checked, and hands out what lies in `range`.
    fn decode_stream<const RAW: bool, T: Copy + Default>(
        &self,
        stream: usize,
        range: &Range<usize>,
        buffer: &mut [T; CHUNK],
        value: impl Fn(i32) -> T + Copy,
        sink: &mut impl FnMut(usize, &[T]),
    ) -> Result<(), EntropyError> {
        let mut decoder = StreamDecoder::new(&self.words[self.starts[stream]..self.starts[stream + 1]])?;
        let mut states = [0u8; LANES];
        let end = ((stream + 1) * STREAM_LEN).min(self.n);
        for start in (stream * STREAM_LEN..end).step_by(CHUNK) {
            let len = CHUNK.min(end - start);
            let (whole, _) = buffer.as_chunks_mut::<LANES>();
            // The last step of a matrix is padded: what it decodes beyond the end is not looked at.
            for out in &mut whole[..len / LANES] {
                *out = self.decode_step::<RAW, LANES>(&mut decoder, &mut states).map(value);
            }
            for (lane, out) in buffer[len / LANES * LANES..len].iter_mut().enumerate() {
                decoder.refill();
                *out = value(self.decode_value::<RAW>(&mut decoder, &mut states, lane));
            }
            let (from, to) = (range.start.clamp(start, start + len), range.end.clamp(start, start + len));
            if from < to {
                sink(from, &buffer[from - start..to - start]);
            }
        }
        decoder.finish()
    }

    /// The next point of each lane.
    #[inline(always)]
    fn decode_step<const RAW: bool, const N: usize>(
        &self,
        decoder: &mut StreamDecoder<'_>,
        states: &mut [u8; LANES],
    ) -> [i32; N] {
        // A refill gives 32 bits; a symbol takes 10 of them at most, with raw bits 15.
        const { assert!(3 * ans::MAX_SYMBOL_BITS <= ans::REFILL_BITS) }
        let per_refill = if RAW { 2 } else { 3 };
        std::array::from_fn(|lane| {
            if lane % per_refill == 0 {
                decoder.refill();
            }
            self.decode_value::<RAW>(decoder, states, lane)
        })
    }

    #[inline(always)]
    fn decode_value<const RAW: bool>(
        &self,
        decoder: &mut StreamDecoder<'_>,
        states: &mut [u8; LANES],
        lane: usize,
    ) -> i32 {
        let state = states[lane];
        let coded = decoder.symbol(lane % ans::LANES, &self.tables[usize::from(state & 1)]);
        let y = if RAW { join(coded, decoder.raw(self.raw_bits), self.raw_bits) } else { coded };
        let z1 = (y >> 1) as usize & 1;
        states[lane] = self.next_states[2 * usize::from(state) + z1];
        y
    }
}

/// The states that follow each other under a code.
pub(crate) fn next_states(code: TrellisCode) -> Box<NextStates> {
    let mut next_states = Box::new([0; 512]);
    for state in 0..code.n_states() {
        for z1 in 0..2 {
            next_states[(2 * state + z1) as usize] = code.next(state, z1 as i32) as u8;
        }
    }
    next_states
}
