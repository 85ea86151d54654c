//! From the words of streams to points.

use std::borrow::Cow;
use std::ops::Range;

use gosset_entropy::STREAM_LEN;
use gosset_entropy::ans::{self, LANES, StreamDecoder};
use gosset_lattice::LatticeKind;

use super::coding::{MAX_CONTEXTS, context, coordinate, known_bits, residue, wide_context};
use super::family::{self, DecodeTables};
use super::{ANS_STREAM_LEN, MAX_RAW_BITS};
use crate::CodecError;
use crate::scheme::StreamError;

/// Values decoded before they are handed on: whole groups of blocks of every lattice.
const RUN_LEN: usize = STREAM_LEN;

/// Checked streams.
#[derive(Debug)]
pub(crate) struct AnsDecoder<'a> {
    words: Cow<'a, [u32]>,
    /// First word of each stream, and the end of the last.
    starts: Vec<u64>,
    tables: &'static DecodeTables,
    raw_bits: u32,
    /// Values of all streams, rounded up to whole blocks.
    n_values: usize,
}

impl<'a> AnsDecoder<'a> {
    /// Checks the planes of `n_values` values in whole blocks of `lattice`.
    pub(crate) fn new(
        lattice: LatticeKind,
        (member, raw_bits): (u16, u8),
        n_values: u64,
        words: Cow<'a, [u32]>,
        lengths: &[u16],
    ) -> Result<Self, CodecError> {
        let least = if lattice.dim() >= 4 { 2 } else { 1 };
        if raw_bits != 0 && !(least..=MAX_RAW_BITS).contains(&u32::from(raw_bits)) {
            let expected = format!("0 or {least} to {MAX_RAW_BITS}");
            return Err(CodecError::Header { field: "raw_bits", found: raw_bits.to_string(), expected });
        }
        let raw_bits = u32::from(raw_bits);
        let Some(tables) = family::decode_tables(lattice, raw_bits, usize::from(member)) else {
            let expected = format!("less than {}", family::n_members(raw_bits));
            return Err(CodecError::Header { field: "table", found: member.to_string(), expected });
        };
        let n_streams = n_values.div_ceil(ANS_STREAM_LEN as u64);
        crate::plane::check_len("lengths", lengths.len(), n_streams)?;
        let mut starts = Vec::with_capacity(lengths.len() + 1);
        let (mut end, mut left) = (0, n_values);
        starts.push(0);
        for &length in lengths {
            let len = left.min(ANS_STREAM_LEN as u64);
            ans::check_len(len, u64::from(length)).map_err(CodecError::Streams)?;
            end += u64::from(length);
            left -= len;
            starts.push(end);
        }
        crate::plane::check_len("words", words.len(), end)?;
        Ok(Self { words, starts, tables, raw_bits, n_values: n_values as usize })
    }

    /// Decodes the values in `range` and calls `visit` with runs of points, the place of the first value of each and the part
    /// of the run that lies in the range.
    pub(crate) fn for_each_run<const N: usize>(
        &self,
        range: Range<usize>,
        points: &mut [i32; RUN_LEN],
        mut visit: impl FnMut(&[[i32; N]], usize, Range<usize>),
    ) -> Result<(), StreamError> {
        if range.is_empty() {
            return Ok(());
        }
        for stream in range.start / ANS_STREAM_LEN..range.end.div_ceil(ANS_STREAM_LEN) {
            let first = stream * ANS_STREAM_LEN;
            let end = (first + ANS_STREAM_LEN).min(self.n_values);
            let error = |what: String| StreamError { first, stream, bit: 0, what };
            let words = &self.words[self.starts[stream] as usize..self.starts[stream + 1] as usize];
            let mut decoder = StreamDecoder::new(words).map_err(|e| error(e.to_string()))?;
            for at in (first..end).step_by(RUN_LEN) {
                let (blocks, _) = points[..(end - at).min(RUN_LEN)].as_chunks_mut::<N>();
                decode_blocks(self.tables, self.raw_bits, &mut decoder, blocks);
                let part = range.start.saturating_sub(at)..range.end.saturating_sub(at).min(blocks.len() * N);
                if part.start < part.end {
                    visit(blocks, at, part);
                }
            }
            decoder.finish().map_err(|e| error(e.to_string()))?;
        }
        Ok(())
    }
}

/// Decodes blocks under the given tables and number of raw bits: block i in lane i mod 4.
pub(crate) fn decode_blocks<const N: usize>(
    tables: &DecodeTables,
    raw_bits: u32,
    decoder: &mut StreamDecoder<'_>,
    blocks: &mut [[i32; N]],
) {
    if raw_bits == 0 {
        narrow_run(tables, decoder, blocks);
    } else {
        wide_run(tables, raw_bits, decoder, blocks);
    }
}

/// Decodes blocks whose coordinates have no raw bits.
fn narrow_run<const N: usize>(tables: &DecodeTables, decoder: &mut StreamDecoder<'_>, blocks: &mut [[i32; N]]) {
    // Two symbols take at most 20 of the 32 bits that a refill makes sure of.
    run(
        decoder,
        blocks,
        |lane| lane % 2 == 0,
        |decoder, lane, i, y| {
            let context = context::<N>(i, residue::<N>(i, y));
            decoder.symbol(lane, &tables[context % MAX_CONTEXTS])
        },
    );
}

/// Decodes blocks whose coordinates have raw bits.
fn wide_run<const N: usize>(
    tables: &DecodeTables,
    raw_bits: u32,
    decoder: &mut StreamDecoder<'_>,
    blocks: &mut [[i32; N]],
) {
    run(
        decoder,
        blocks,
        |_| true,
        |decoder, lane, i, y| {
            let high = decoder.symbol(lane, &tables[wide_context::<N>(i)]);
            let known = known_bits::<N>(i);
            let low = decoder.raw(raw_bits - known) << known;
            high.wrapping_shl(raw_bits) | low as i32 | residue::<N>(i, y)
        },
    );
}

/// Decodes blocks, four at a time, by `value`, which is given the lane, the position and the block so far; `refills` tells
/// before which lanes to refill.
#[inline(always)]
fn run<'w, const N: usize>(
    decoder: &mut StreamDecoder<'w>,
    blocks: &mut [[i32; N]],
    refills: impl Fn(usize) -> bool,
    value: impl Fn(&mut StreamDecoder<'w>, usize, usize, &[i32; N]) -> i32,
) {
    let (groups, rest) = blocks.as_chunks_mut::<LANES>();
    // Local copies stay in registers.
    let mut local = *decoder;
    for group in groups {
        let mut points = [[0; N]; LANES];
        for i in 0..N {
            for (lane, y) in points.iter_mut().enumerate() {
                if refills(lane) {
                    local.refill();
                }
                y[coordinate::<N>(i)] = value(&mut local, lane, i, y);
            }
        }
        *group = points;
    }
    for i in 0..N {
        for (lane, y) in rest.iter_mut().enumerate() {
            local.refill();
            y[coordinate::<N>(i)] = value(&mut local, lane, i, y);
        }
    }
    *decoder = local;
}
