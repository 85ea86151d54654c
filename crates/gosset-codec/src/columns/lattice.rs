//! Lattice vectors along the outputs of one column, under ANS.
//!
//! A column is padded with zeros to whole blocks. Its blocks are coded as those of a stream in rows order are, block i of a column
//! (or of a part of one) in lane i mod 4, with the tables of the column's class: member `table` + 4 class of the family.

use std::borrow::Cow;

use gosset_entropy::ans::{self, EncodeTable, StreamDecoder, StreamEncoder};
use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};

use super::code::N_CLASSES;
use super::layout::StreamLayout;
use crate::CodecError;
use crate::decode::DecodeScratch;
use crate::plane::check_len;
use crate::scheme::lattice::ans::decode::decode_blocks;
use crate::scheme::lattice::ans::encode::encode_blocks;
use crate::scheme::lattice::ans::family::{self, DecodeTables};
use crate::scheme::lattice::ans::{ANS_STREAM_LEN, MAX_RAW_BITS, raw_bits};
use crate::scheme::lattice::{LENGTHS, WORDS};

/// Members between classes: a quarter of an octave.
pub(crate) const MEMBERS_PER_CLASS: usize = 4;
/// Largest magnitude of alpha times a value.
pub(crate) const MAX_SCALED: f32 = crate::scheme::lattice::MAX_SCALED;

/// Rounds and codes columns, one after the other.
#[derive(Debug)]
pub(crate) struct LatticeColumns {
    lattice: LatticeKind,
    raw_bits: u32,
    /// Member of class 0.
    table: usize,
    /// Tables that were used so far, those of a class one after the other.
    tables: Vec<EncodeTable>,
    first_table: [Option<u8>; N_CLASSES],
    layout: StreamLayout,
    encoder: StreamEncoder,
    /// Columns in the stream that is not finished.
    pending: usize,
    words: Vec<u32>,
    lengths: Vec<u16>,
    /// Points of the column that was rounded last, without padding embedded into reals.
    points: Vec<i32>,
}

impl LatticeColumns {
    /// For columns of `rows` values whose spread is at most about `reach` steps.
    pub(crate) fn new(lattice: LatticeKind, rows: usize, reach: f32) -> Self {
        // An octave of columns may be wider than tables without raw bits are made for: escapes serve them better than raw bits would
        // serve all the others.
        let raw_bits = raw_bits(lattice.dim(), 0.5 * reach);
        let top = family::nearest_member(raw_bits, reach).min(family::n_members(raw_bits) - 1);
        let table = top.saturating_sub(MEMBERS_PER_CLASS * (N_CLASSES - 1));
        let line_len = rows.next_multiple_of(lattice.dim());
        Self {
            lattice,
            raw_bits,
            table,
            tables: Vec::new(),
            first_table: [None; N_CLASSES],
            layout: StreamLayout::new(0, line_len, ANS_STREAM_LEN),
            encoder: StreamEncoder::new(),
            pending: 0,
            words: Vec::new(),
            lengths: Vec::new(),
            points: Vec::new(),
        }
    }

    /// Member of class 0, and raw bits.
    pub(crate) fn code(&self) -> (u16, u8) {
        (self.table as u16, self.raw_bits as u8)
    }

    /// The class made for values that spread over `alpha` steps.
    pub(crate) fn class(&self, alpha: f32) -> u8 {
        let n = family::n_members(self.raw_bits);
        let member = family::nearest_member(self.raw_bits, alpha).clamp(self.table, n - 1);
        let class = (member - self.table + MEMBERS_PER_CLASS / 2) / MEMBERS_PER_CLASS;
        class.min(N_CLASSES - 1).min((n - 1 - self.table) / MEMBERS_PER_CLASS) as u8
    }

    /// Writes the embedded nearest points of `x` / `step` to `units`; whether any is not zero.
    pub(crate) fn round(&mut self, x: &[f32], step: f32, units: &mut [f32]) -> bool {
        self.points.clear();
        self.lattice.dispatch(Nearest { x, alpha: 1.0 / step, points: &mut self.points, units });
        self.points.iter().any(|&y| y != 0)
    }

    /// Codes the points that were rounded last.
    pub(crate) fn push(&mut self, class: u8) -> Result<(), CodecError> {
        let first_table = match self.first_table[usize::from(class)] {
            Some(first) => first,
            None => {
                let member = self.table + MEMBERS_PER_CLASS * usize::from(class);
                let tables =
                    family::member(self.lattice, self.raw_bits, member).expect("classes are within the family");
                let first = self.tables.len() as u8;
                self.tables.extend(tables.into_iter().map(EncodeTable::new));
                *self.first_table[usize::from(class)].insert(first)
            }
        };
        let points = std::mem::take(&mut self.points);
        for part in points.chunks(ANS_STREAM_LEN) {
            let (encoder, raw_bits) = (&mut self.encoder, self.raw_bits);
            self.lattice.dispatch(Code { encoder, first_table: first_table.into(), raw_bits, points: part });
            self.pending += 1;
            if self.pending >= self.layout.lines_per_stream() {
                self.flush()?;
            }
        }
        self.points = points;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), CodecError> {
        if self.pending > 0 {
            let length = self.encoder.finish(&self.tables, &mut self.words).map_err(CodecError::Streams)?;
            self.lengths.push(length);
            self.pending = 0;
        }
        Ok(())
    }

    /// Words and lengths of all streams.
    pub(crate) fn finish(mut self) -> Result<(Vec<u32>, Vec<u16>), CodecError> {
        self.flush()?;
        Ok((self.words, self.lengths))
    }
}

struct Nearest<'a> {
    x: &'a [f32],
    alpha: f32,
    points: &'a mut Vec<i32>,
    units: &'a mut [f32],
}

impl LatticeVisitor for Nearest<'_> {
    type Out = ();

    fn visit<const N: usize, L: BitStrip<N>>(self) {
        let Self { x, alpha, points, units } = self;
        for (x, units) in x.chunks(N).zip(units.chunks_mut(N)) {
            let y = L::nearest_point(&std::array::from_fn(|i| x.get(i).map_or(0.0, |v| v * alpha)));
            points.extend_from_slice(&y);
            units.copy_from_slice(&L::embed(&y)[..units.len()]);
        }
    }
}

struct Code<'a> {
    encoder: &'a mut StreamEncoder,
    first_table: usize,
    raw_bits: u32,
    points: &'a [i32],
}

impl LatticeVisitor for Code<'_> {
    type Out = ();

    fn visit<const N: usize, L: BitStrip<N>>(self) {
        encode_blocks(self.encoder, self.first_table, self.raw_bits, self.points.as_chunks::<N>().0);
    }
}

/// Checked streams of columns.
#[derive(Debug)]
pub(crate) struct LatticeColumnsDecoder<'a> {
    lattice: LatticeKind,
    raw_bits: u32,
    layout: StreamLayout,
    words: Cow<'a, [u32]>,
    starts: Vec<usize>,
    tables: [Option<&'static DecodeTables>; 16],
}

impl<'a> LatticeColumnsDecoder<'a> {
    /// Checks the planes of `n_lines` columns of `rows` values; `classes` tells which classes there are.
    pub(crate) fn new(
        lattice: LatticeKind,
        (table, raw_bits): (u16, u8),
        (n_lines, rows): (usize, usize),
        classes: u16,
        words: Cow<'a, [u32]>,
        lengths: &[u16],
    ) -> Result<Self, CodecError> {
        let least = if lattice.dim() >= 4 { 2 } else { 1 };
        if raw_bits != 0 && !(least..=MAX_RAW_BITS).contains(&u32::from(raw_bits)) {
            let expected = format!("0 or {least} to {MAX_RAW_BITS}");
            return Err(CodecError::Header { field: "raw_bits", found: raw_bits.to_string(), expected });
        }
        let raw_bits = u32::from(raw_bits);
        let mut tables = [None; 16];
        for class in (0..16).filter(|class| classes >> class & 1 == 1) {
            let member = usize::from(table) + MEMBERS_PER_CLASS * class;
            let Some(found) = family::decode_tables(lattice, raw_bits, member) else {
                let expected = format!("a member below {} for every class", family::n_members(raw_bits));
                return Err(CodecError::Header { field: "table", found: table.to_string(), expected });
            };
            tables[class] = Some(found);
        }
        let layout = StreamLayout::new(n_lines, rows.next_multiple_of(lattice.dim()), ANS_STREAM_LEN);
        let starts = stream_starts(&layout, words.len(), lengths)?;
        Ok(Self { lattice, raw_bits, layout, words, starts, tables })
    }

    pub(crate) fn layout(&self) -> &StreamLayout {
        &self.layout
    }

    /// Hands the units of a stream to `sink`, line after line: line, place of the first value in it, values.
    pub(crate) fn decode_stream(
        &self,
        stream: usize,
        class: impl Fn(usize) -> u8,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), String> {
        self.lattice.dispatch(DecodeStream { decoder: self, stream, class, scratch, sink })
    }
}

/// Index of the first word of each stream and of the end of the last, once the planes of ANS streams are what the layout asks for.
pub(crate) fn stream_starts(layout: &StreamLayout, n_words: usize, lengths: &[u16]) -> Result<Vec<usize>, CodecError> {
    check_len(LENGTHS, lengths.len(), layout.n_streams() as u64)?;
    let mut starts = Vec::with_capacity(lengths.len() + 1);
    starts.push(0);
    let mut end = 0;
    for (stream, &length) in lengths.iter().enumerate() {
        let (lines, within) = layout.stream(stream);
        let n_values = lines.len() as u64 * within.len() as u64;
        ans::check_len(n_values, u64::from(length)).map_err(CodecError::Streams)?;
        end += usize::from(length);
        starts.push(end);
    }
    check_len(WORDS, n_words, end as u64)?;
    Ok(starts)
}

struct DecodeStream<'s, 'a, C, F> {
    decoder: &'s LatticeColumnsDecoder<'a>,
    stream: usize,
    class: C,
    scratch: &'s mut DecodeScratch,
    sink: F,
}

impl<C: Fn(usize) -> u8, F: FnMut(usize, usize, &[f32])> LatticeVisitor for DecodeStream<'_, '_, C, F> {
    type Out = Result<(), String>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out {
        let Self { decoder: streams, stream, class, scratch, mut sink } = self;
        let (lines, within) = streams.layout.stream(stream);
        let words = &streams.words[streams.starts[stream]..streams.starts[stream + 1]];
        let mut decoder = StreamDecoder::new(words).map_err(|e| e.to_string())?;
        let DecodeScratch { points, values, .. } = scratch;
        for line in lines {
            let tables = streams.tables[usize::from(class(line) & 15)].ok_or("a class without tables")?;
            // Runs are whole groups of four blocks of any lattice.
            for from in within.clone().step_by(points.len()) {
                let len = points.len().min(within.end - from);
                let (blocks, _) = points[..len].as_chunks_mut::<N>();
                decode_blocks(tables, streams.raw_bits, &mut decoder, blocks);
                for (y, value) in blocks.iter().zip(values.as_chunks_mut::<N>().0) {
                    *value = L::embed(y);
                }
                sink(line, from, &values[..len]);
            }
        }
        decoder.finish().map_err(|e| e.to_string())
    }
}
