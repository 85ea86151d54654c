//! From values to words: the table and the step for a rate, then every stream.

use std::borrow::Cow;

use gosset_entropy::ans::{EncodeTable, StreamEncoder};
use gosset_trellis::entropy_coded::{self, LANES, MAX_VALUE, Quantizer, Scratch, TrellisCode};

use super::curve::curve_of;
use super::family::{N_TABLES, Table};
use super::{LENGTHS, STREAM_LEN, WORDS};
use crate::plane::{Plane, PlaneData};
use crate::scheme::curve::Curve;
use crate::scheme::{EncodedUnits, Units};
use crate::{CodecError, RateTarget, SchemeHeader, TrellisHeader, parallel};

/// Streams that are looked at before the whole is encoded.
const SAMPLE_STREAMS: usize = 8;
/// Distance from the asked payload, in bits per value, at which a sample is good enough.
const SAMPLE_ERROR_BPS: f64 = 0.002;
/// Distance from the asked payload at which the whole is good enough.
const ERROR_BPS: f64 = 0.005;
/// Attempts at either.
const MAX_ATTEMPTS: usize = 5;
/// Tables on either side of the one for Gaussian data that are tried: an octave.
const TABLES_AROUND: usize = 12;
/// Least share of the payload that remains for the values where rows are stored exactly.
const MIN_SHARE: f64 = 0.5;
/// Bits of a stream besides its symbols: starting states, and half a word of padding.
const END_BITS: u64 = 40 + 16;
/// Least share of the payload that remains for the symbols of small matrices, where ends of streams exceed it.
const MIN_SYMBOL_SHARE: f64 = 15.0 / 16.0;
/// Values that it takes to look for the rate one bit farther from that of Gaussian data.
const VALUES_PER_BIT_OF_REACH: f64 = 256.0;
/// Values below which the payload is judged by its symbols, as whole words are too coarse.
const FEW_VALUES: usize = 1 << 16;

/// Header, planes and gains of `units` under a trellis with that many states.
pub(crate) fn encode(states: u32, target: RateTarget, units: &Units<'_>) -> Result<EncodedUnits, CodecError> {
    let code = checked_code(states)?;
    let curve = curve_of(states);
    let n = units.values.len() as f64;
    // With room for the rounding of alpha and of its products.
    let max_alpha = (0.999 * f64::from(MAX_VALUE) / f64::from(units.peak)).min(crate::MAX_ALPHA);
    let (setting, streams) = match target {
        RateTarget::Alpha(alpha) => {
            if alpha > max_alpha {
                let found = alpha as f32 * units.peak;
                return Err(CodecError::Magnitude { row: units.peak_row, found, max: MAX_VALUE });
            }
            let mut setting = Setting { alpha: alpha as f32, table: curve.at_alpha(alpha).nearest as u16 };
            for _ in 0..2 {
                (setting.table, _) = sample(code, setting, units);
            }
            (setting, encode_streams(code, setting, units)?)
        }
        RateTarget::PayloadBps(asked) => {
            let asked = (asked - units.spent_bits as f64 / n).max(MIN_SHARE * asked);
            let end_bps = (END_BITS * n_streams(units) as u64) as f64 / n;
            // What the ends of small matrices take beyond that is not charged.
            let excess = (end_bps - (1.0 - MIN_SYMBOL_SHARE) * asked).max(0.0);
            let mut search = RateSearch::new(curve, asked, max_alpha, n);
            let mut setting = search.next();
            for _ in 0..MAX_ATTEMPTS {
                let (table, bps) = sample(code, setting, units);
                // Encoding with another table changes the points, so that an attempt only counts with its own.
                let settled = search.add(bps - excess).abs() < SAMPLE_ERROR_BPS && table == setting.table;
                setting = Setting { table, ..if settled { setting } else { search.next() } };
                if settled {
                    break;
                }
            }
            let mut search = search.restarted(setting);
            let mut best: Option<(f64, Setting, Vec<CodedStream>)> = None;
            let max_attempts = if units.values.len() < FEW_VALUES { 1 } else { MAX_ATTEMPTS };
            for _ in 0..max_attempts {
                let streams = encode_streams(code, setting, units)?;
                let n_words: usize = streams.iter().map(|stream| stream.words.len()).sum();
                let error = search.add(32.0 * n_words as f64 / n - excess).abs();
                if best.as_ref().is_none_or(|(least, ..)| error < *least) {
                    best = Some((error, setting, streams));
                }
                let next = Setting { table: setting.table, ..search.next() };
                if error < ERROR_BPS || next == setting {
                    break;
                }
                setting = next;
            }
            let (_, setting, streams) = best.expect("there was one attempt at least");
            (setting, streams)
        }
    };
    Ok(collect(states, setting, streams, units))
}

/// The code of that many states.
pub(crate) fn checked_code(states: u32) -> Result<TrellisCode, CodecError> {
    TrellisCode::with_states(states).map_err(|_| CodecError::Header {
        field: "states",
        found: states.to_string(),
        expected: "8, 64 or 256".to_owned(),
    })
}

/// What a matrix is encoded with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Setting {
    /// Grid steps per unit.
    pub alpha: f32,
    /// Table of the family.
    pub table: u16,
}

/// Looks for the alpha of a payload: along the curve of Gaussian data first, then by the line through two attempts.
struct RateSearch {
    curve: Curve,
    asked: f64,
    max_alpha: f64,
    /// Payload of Gaussian data at the alpha that is tried.
    at: f64,
    /// How far that may be from what is asked.
    reach: f64,
    /// The same of the last attempt, and what it gave.
    last: Option<(f64, f64)>,
}

impl RateSearch {
    /// A search for `n` values, which starts with the alpha of Gaussian data.
    fn new(curve: Curve, asked: f64, max_alpha: f64, n: f64) -> Self {
        // What a few values happen to take says little: they are coded near the alpha of Gaussian data.
        Self { curve, asked, max_alpha, at: asked, reach: n / VALUES_PER_BIT_OF_REACH, last: None }
    }

    /// The same search with no attempts, from a setting on.
    fn restarted(self, setting: Setting) -> Self {
        let at = self.curve.at_alpha(f64::from(setting.alpha)).payload_bps;
        Self { at, last: None, ..self }
    }

    /// What to try.
    fn next(&self) -> Setting {
        let point = self.curve.at_bps(self.at);
        Setting { alpha: point.alpha.min(self.max_alpha) as f32, table: point.nearest as u16 }
    }

    /// Learns what the last setting gave; returns how far that is from what was asked.
    fn add(&mut self, found: f64) -> f64 {
        // Where parts of the matrix are zero the slope is less than 1; beyond these bounds it is noise.
        let slope = match self.last {
            Some((at, before)) if (self.at - at).abs() > 1e-9 => ((found - before) / (self.at - at)).clamp(0.25, 1.5),
            _ => 1.0,
        };
        self.last = Some((self.at, found));
        let at = self.at + (self.asked - found) / slope;
        self.at = at.clamp(self.asked - self.reach, self.asked + self.reach);
        found - self.asked
    }
}

/// The table that codes a sample best once `setting` has encoded it, and the payload that the sample takes with the one of
/// `setting`, in bits per value.
fn sample(code: TrellisCode, setting: Setting, units: &Units<'_>) -> (u16, f64) {
    let n_streams = n_streams(units);
    let n_sampled = n_streams.min(SAMPLE_STREAMS);
    let table = family_table(setting.table);
    let quantizer = table.quantizer();
    let points = parallel::map_indexed(n_sampled, |i| {
        // In the middle of each of as many parts of the matrix.
        let stream = (2 * i + 1) * n_streams / (2 * n_sampled);
        Stream::search(code, &quantizer, setting.alpha, stream_values(units, stream))
    });
    let counts = Counts::of(points.iter().flat_map(|stream| &stream.points));
    let nominal = usize::from(setting.table);
    let candidates = nominal.saturating_sub(TABLES_AROUND)..(nominal + TABLES_AROUND + 1).min(N_TABLES);
    let cost_of = |index: usize| (counts.cost(&family_table(index as u16)), index as u16);
    let (_, best) = candidates.map(cost_of).min().expect("there are candidates");
    let n: usize = points.iter().map(|stream| stream.points.len()).sum();
    let bits = counts.cost(&table) as f64 / 65_536.0 + (END_BITS * n_sampled as u64) as f64;
    (best, bits / n as f64)
}

fn family_table(index: u16) -> Table {
    Table::get(index).expect("the index is one of the family")
}

fn n_streams(units: &Units<'_>) -> usize {
    units.values.len().div_ceil(STREAM_LEN)
}

fn stream_values<'a>(units: &Units<'a>, stream: usize) -> &'a [f32] {
    let start = stream * STREAM_LEN;
    &units.values[start..(start + STREAM_LEN).min(units.values.len())]
}

/// How often each point occurs.
struct Counts {
    reach: i32,
    counts: Vec<u64>,
    /// Those that are farther out.
    others: Vec<i32>,
}

impl Counts {
    fn of<'a>(points: impl Iterator<Item = &'a i32> + Clone) -> Self {
        let reach = points.clone().map(|y| y.unsigned_abs()).max().unwrap_or(0).min(1 << 12) as i32;
        let mut counts = vec![0; 2 * reach as usize + 1];
        let mut others = Vec::new();
        for &y in points {
            match counts.get_mut((y + reach) as usize) {
                Some(count) => *count += 1,
                None => others.push(y),
            }
        }
        Self { reach, counts, others }
    }

    /// Bits that the points take, in units of 2^-16 bit.
    fn cost(&self, table: &Table) -> u64 {
        let near = (-self.reach..).zip(&self.counts).filter(|(_, count)| **count > 0);
        let near: u64 = near.map(|(y, &count)| count * table.cost(y)).sum();
        near + self.others.iter().map(|&y| table.cost(y)).sum::<u64>()
    }
}

/// The points of a stream.
pub(super) struct Stream {
    pub points: Vec<i32>,
}

impl Stream {
    pub(super) fn search(code: TrellisCode, quantizer: &Quantizer, alpha: f32, values: &[f32]) -> Self {
        let scaled: Vec<f32> = values.iter().map(|x| x * alpha).collect();
        let mut points = vec![0; values.len()];
        entropy_coded::encode(code, quantizer, &scaled, &mut points, &mut Scratch::default())
            .expect("alpha keeps values below the largest");
        Self { points }
    }
}

/// A coded stream.
struct CodedStream {
    words: Vec<u32>,
    /// Sums of value x reconstruction and of reconstruction^2 over the parts of rows in the stream, in order.
    sums: Vec<[f64; 2]>,
}

fn encode_streams(code: TrellisCode, setting: Setting, units: &Units<'_>) -> Result<Vec<CodedStream>, CodecError> {
    let table = family_table(setting.table);
    let quantizer = table.quantizer();
    let tables = table.freqs().each_ref().map(EncodeTable::new);
    let streams = parallel::map_indexed(n_streams(units), |index| {
        let values = stream_values(units, index);
        let Stream { points } = Stream::search(code, &quantizer, setting.alpha, values);
        let mut words = Vec::new();
        code_points(code, &table, &tables, &points, &mut words)?;
        Ok(CodedStream {
            words,
            sums: row_sums(&table, setting.alpha, values, &points, index * STREAM_LEN, units.cols),
        })
    });
    streams.into_iter().collect()
}

/// Appends the words of a stream.
pub(super) fn code_points(
    code: TrellisCode,
    table: &Table,
    tables: &[EncodeTable; 2],
    points: &[i32],
    words: &mut Vec<u32>,
) -> Result<(), CodecError> {
    let mut encoder = StreamEncoder::new();
    let mut states = [0; LANES];
    for (i, &y) in points.iter().enumerate() {
        let state = &mut states[i % LANES];
        let (value, raw) = table.split(y);
        encoder.symbol(i % gosset_entropy::ans::LANES, code.union(*state) as u16, value);
        if table.raw_bits() > 0 {
            encoder.raw(raw, table.raw_bits());
        }
        *state = code.next(*state, y >> 1);
    }
    encoder.finish(tables, words).map_err(CodecError::Streams)?;
    Ok(())
}

/// Sums for the gains over the parts of rows of `cols` values in a stream that starts at value `start`, added in order.
fn row_sums(table: &Table, alpha: f32, values: &[f32], points: &[i32], start: usize, cols: usize) -> Vec<[f64; 2]> {
    let reconstruction = table.values();
    let mut sums = Vec::with_capacity(values.len() / cols + 2);
    let (mut values, mut points) = (values, points);
    let mut left_in_row = cols - start % cols;
    while !values.is_empty() {
        let (row, rest) = values.split_at(left_in_row.min(values.len()));
        let (row_points, rest_points) = points.split_at(row.len());
        let mut sum = [0.0f64; 2];
        for (&x, &y) in row.iter().zip(row_points) {
            let v = f64::from(reconstruction.get(y));
            sum[0] += f64::from(x * alpha) * v;
            sum[1] += v * v;
        }
        sums.push(sum);
        (values, points, left_in_row) = (rest, rest_points, cols);
    }
    sums
}

fn collect(states: u32, setting: Setting, streams: Vec<CodedStream>, units: &Units<'_>) -> EncodedUnits {
    let mut sums = vec![[0.0f64; 2]; units.rows];
    let mut words = Vec::with_capacity(streams.iter().map(|stream| stream.words.len()).sum());
    let mut lengths = Vec::with_capacity(streams.len());
    for (index, stream) in streams.into_iter().enumerate() {
        let first_row = index * STREAM_LEN / units.cols;
        for (row, part) in sums[first_row..].iter_mut().zip(&stream.sums) {
            row[0] += part[0];
            row[1] += part[1];
        }
        lengths.push(stream.words.len() as u16);
        words.extend(stream.words);
    }
    let gain = |[product, square]: [f64; 2]| if square > 0.0 { (product / square) as f32 } else { 1.0 };
    let header = TrellisHeader { states, step: 1.0 / setting.alpha, table: setting.table };
    EncodedUnits {
        header: SchemeHeader::Trellis(header),
        planes: vec![
            Plane::owned(WORDS, PlaneData::U32(Cow::Owned(words))),
            Plane::owned(LENGTHS, PlaneData::U16(Cow::Owned(lengths))),
        ],
        gains: Some(sums.into_iter().map(gain).collect()),
    }
}
