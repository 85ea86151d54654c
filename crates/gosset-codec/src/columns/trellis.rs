//! Paths of the entropy-coded trellis along the outputs of one column.
//!
//! Value i of a column belongs to path i mod 8 and lane i mod 4; the paths go on from the states in which the column before it in
//! the same stream ended, so that nothing is lost at the ends of columns but the choice of their first states. Tables are those of
//! the column's class: table `table` + 3 class of the family.

use std::borrow::Cow;

use gosset_entropy::ans::{self, DecodeTable, EncodeTable, StreamDecoder, StreamEncoder};
use gosset_trellis::entropy_coded::{self, LANES, MAX_VALUE, Quantizer, Scratch, TrellisCode};

use super::code::N_CLASSES;
use super::lattice::stream_starts;
use super::layout::StreamLayout;
use crate::CodecError;
use crate::decode::DecodeScratch;
use crate::scheme::trellis::{
    N_TABLES, NextStates, STREAM_LEN, Table, ValueTable, checked_code, curve_of, join, next_states,
};

/// Tables between classes: a quarter of an octave.
const TABLES_PER_CLASS: usize = 3;
/// Largest magnitude of a value in steps, with room for the rounding of the product.
pub(crate) const MAX_SCALED: f32 = 0.999 * MAX_VALUE;

/// What one class is coded with.
#[derive(Debug)]
struct Class {
    table: Table,
    quantizer: Quantizer,
    values: ValueTable,
    /// Index of the first of its two tables.
    first_table: u8,
}

/// Rounds and codes columns, one after the other.
#[derive(Debug)]
pub(crate) struct TrellisColumns {
    states: u32,
    code: TrellisCode,
    /// Table of class 0.
    table: usize,
    classes: [Option<Class>; N_CLASSES],
    tables: Vec<EncodeTable>,
    layout: StreamLayout,
    encoder: StreamEncoder,
    /// States of the paths behind the column coded last.
    paths: [u32; LANES],
    /// Columns in the stream that is not finished.
    pending: usize,
    words: Vec<u32>,
    lengths: Vec<u16>,
    scaled: Vec<f32>,
    points: Vec<i32>,
    scratch: Scratch,
}

impl TrellisColumns {
    /// For columns of `rows` values whose spread is at most about `reach` steps.
    pub(crate) fn new(states: u32, rows: usize, reach: f32) -> Result<Self, CodecError> {
        let top = curve_of(states).at_alpha(reach.into()).nearest;
        Ok(Self {
            states,
            code: checked_code(states)?,
            table: top.saturating_sub(TABLES_PER_CLASS * (N_CLASSES - 1)),
            classes: [const { None }; N_CLASSES],
            tables: Vec::new(),
            layout: StreamLayout::new(0, rows, STREAM_LEN),
            encoder: StreamEncoder::new(),
            paths: [0; LANES],
            pending: 0,
            words: Vec::new(),
            lengths: Vec::new(),
            scaled: Vec::new(),
            points: Vec::new(),
            scratch: Scratch::default(),
        })
    }

    /// Table of class 0.
    pub(crate) fn table(&self) -> u16 {
        self.table as u16
    }

    /// The class made for values that spread over `alpha` steps.
    pub(crate) fn class(&self, alpha: f32) -> u8 {
        let nearest = curve_of(self.states).at_alpha(alpha.into()).nearest.max(self.table);
        let class = (nearest - self.table + TABLES_PER_CLASS / 2) / TABLES_PER_CLASS;
        class.min(N_CLASSES - 1).min((N_TABLES - 1 - self.table) / TABLES_PER_CLASS) as u8
    }

    /// Searches the path of a column, codes it, and writes what it stands for, in steps, to `units`.
    pub(crate) fn push(&mut self, x: &[f32], step: f32, class: u8, units: &mut [f32]) -> Result<(), CodecError> {
        let alpha = 1.0 / step;
        self.scaled.clear();
        self.scaled.extend(x.iter().map(|v| v * alpha));
        self.points.resize(x.len(), 0);
        let index = usize::from(class);
        if self.classes[index].is_none() {
            let table = Table::get((self.table + TABLES_PER_CLASS * index) as u16).expect("classes are in the family");
            let first_table = self.tables.len() as u8;
            self.tables.extend(table.freqs().iter().map(EncodeTable::new));
            let (quantizer, values) = (table.quantizer(), table.values());
            self.classes[index] = Some(Class { table, quantizer, values, first_table });
        }
        for from in (0..x.len()).step_by(STREAM_LEN) {
            let part = from..x.len().min(from + STREAM_LEN);
            let Some(class) = &self.classes[index] else { continue };
            let (scaled, points) = (&self.scaled[part.clone()], &mut self.points[part.clone()]);
            let mut ends = self.paths;
            entropy_coded::encode_from(self.code, &class.quantizer, scaled, points, &mut ends, &mut self.scratch)
                .expect("values are below the largest, as the caller saw to");
            for (i, &y) in points.iter().enumerate() {
                let state = &mut self.paths[i % LANES];
                let (value, raw) = class.table.split(y);
                let table = u16::from(class.first_table) + self.code.union(*state) as u16;
                self.encoder.symbol(i % ans::LANES, table, value);
                if class.table.raw_bits() > 0 {
                    self.encoder.raw(raw, class.table.raw_bits());
                }
                *state = self.code.next(*state, y >> 1);
            }
            debug_assert_eq!(self.paths, ends);
            for (unit, &y) in units[part].iter_mut().zip(points.iter()) {
                *unit = class.values.get(y);
            }
            self.pending += 1;
            if self.pending >= self.layout.lines_per_stream() {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), CodecError> {
        if self.pending > 0 {
            let length = self.encoder.finish(&self.tables, &mut self.words).map_err(CodecError::Streams)?;
            self.lengths.push(length);
            self.pending = 0;
            self.paths = [0; LANES];
        }
        Ok(())
    }

    /// Words and lengths of all streams.
    pub(crate) fn finish(mut self) -> Result<(Vec<u32>, Vec<u16>), CodecError> {
        self.flush()?;
        Ok((self.words, self.lengths))
    }
}

/// What a class is decoded with.
#[derive(Debug)]
struct ClassDecoder {
    tables: Box<[DecodeTable; 2]>,
    raw_bits: u32,
    values: ValueTable,
}

/// Checked streams of columns.
#[derive(Debug)]
pub(crate) struct TrellisColumnsDecoder<'a> {
    layout: StreamLayout,
    words: Cow<'a, [u32]>,
    starts: Vec<usize>,
    next_states: Box<NextStates>,
    classes: Vec<Option<ClassDecoder>>,
}

impl<'a> TrellisColumnsDecoder<'a> {
    /// Checks the planes of `n_lines` columns of `rows` values; `classes` tells which classes there are.
    pub(crate) fn new(
        states: u32,
        table: u16,
        (n_lines, rows): (usize, usize),
        classes: u16,
        words: Cow<'a, [u32]>,
        lengths: &[u16],
    ) -> Result<Self, CodecError> {
        let code = checked_code(states)?;
        let decoder = |class: usize| {
            if classes >> class & 1 == 0 {
                return Ok(None);
            }
            let index = usize::from(table) + TABLES_PER_CLASS * class;
            let Some(table) = u16::try_from(index).ok().and_then(Table::get) else {
                let expected = format!("a table below {N_TABLES} for every class");
                return Err(CodecError::Header { field: "table", found: index.to_string(), expected });
            };
            let tables = Box::new(table.freqs().each_ref().map(DecodeTable::new));
            Ok(Some(ClassDecoder { tables, raw_bits: table.raw_bits(), values: table.values() }))
        };
        let classes = (0..16).map(decoder).collect::<Result<_, _>>()?;
        let layout = StreamLayout::new(n_lines, rows, STREAM_LEN);
        let starts = stream_starts(&layout, words.len(), lengths)?;
        Ok(Self { layout, words, starts, next_states: next_states(code), classes })
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
        mut sink: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), String> {
        let (lines, within) = self.layout.stream(stream);
        let words = &self.words[self.starts[stream]..self.starts[stream + 1]];
        let mut decoder = StreamDecoder::new(words).map_err(|e| e.to_string())?;
        let mut states = [0u8; LANES];
        let values = &mut scratch.values;
        for line in lines {
            let class = self.classes[usize::from(class(line) & 15)].as_ref().ok_or("a class without tables")?;
            for from in within.clone().step_by(values.len()) {
                let len = values.len().min(within.end - from);
                let (whole, _) = values.as_chunks_mut::<LANES>();
                for out in &mut whole[..len / LANES] {
                    *out = std::array::from_fn(|lane| {
                        // A refill gives 32 bits; a symbol with raw bits takes 15 at most.
                        if lane % 2 == 0 {
                            decoder.refill();
                        }
                        self.value(class, &mut decoder, &mut states, lane)
                    });
                }
                for (lane, out) in values[len / LANES * LANES..len].iter_mut().enumerate() {
                    decoder.refill();
                    *out = self.value(class, &mut decoder, &mut states, lane);
                }
                sink(line, from, &values[..len]);
            }
        }
        decoder.finish().map_err(|e| e.to_string())
    }

    #[inline(always)]
    fn value(&self, class: &ClassDecoder, decoder: &mut StreamDecoder<'_>, states: &mut [u8; 8], lane: usize) -> f32 {
        let state = states[lane];
        let coded = decoder.symbol(lane % ans::LANES, &class.tables[usize::from(state & 1)]);
        let y = match class.raw_bits {
            0 => coded,
            raw_bits => join(coded, decoder.raw(raw_bits), raw_bits),
        };
        states[lane] = self.next_states[2 * usize::from(state) + ((y >> 1) as usize & 1)];
        class.values.get(y)
    }
}
