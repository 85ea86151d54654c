//! From points to the words of streams, and the gains of rows.

use gosset_entropy::ans::{EncodeTable, LANES, StreamEncoder};
use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};

use super::coding::{context, coordinate, known_bits, residue, wide_context};
use super::stats::AnsChoice;
use super::{ANS_STREAM_LEN, family};
use crate::parallel;
use crate::scheme::Units;

/// Words and lengths of all streams.
pub(crate) struct AnsStreams {
    pub(crate) words: Vec<u32>,
    pub(crate) lengths: Vec<u16>,
    /// Least-squares gain of each row.
    pub(crate) gains: Vec<f32>,
}

/// Codes `units` at scale `alpha` with the chosen tables.
pub(crate) fn encode(lattice: LatticeKind, units: &Units<'_>, alpha: f32, choice: AnsChoice) -> AnsStreams {
    let tables = family::member(lattice, choice.raw_bits, choice.member).expect("a member was chosen");
    let tables: Vec<_> = tables.into_iter().map(EncodeTable::new).collect();
    let streams = lattice.dispatch(Streams { units, alpha, raw_bits: choice.raw_bits, tables: &tables });
    let n_words = streams.iter().map(|stream| stream.words.len()).sum();
    let mut words = Vec::with_capacity(n_words);
    let mut lengths = Vec::with_capacity(streams.len());
    let mut sums = vec![RowSums::default(); units.rows];
    for stream in streams {
        words.extend_from_slice(&stream.words);
        lengths.push(stream.words.len() as u16);
        for (row, part) in (stream.first_row..).zip(&stream.row_sums) {
            sums[row].add(part);
        }
    }
    let gains = sums.iter().map(|sums| sums.gain(alpha)).collect();
    AnsStreams { words, lengths, gains }
}

/// What the gain of a row is made of; embedded points in units of the lattice.
#[derive(Debug, Clone, Copy, Default)]
struct RowSums {
    value_times_point: f64,
    point_squared: f64,
}

impl RowSums {
    fn add(&mut self, other: &RowSums) {
        self.value_times_point += other.value_times_point;
        self.point_squared += other.point_squared;
    }

    /// Adds a run of a row: eight running sums over the positions modulo 8, then a fixed tree, so that the result is the same
    /// whatever vector instructions are used.
    fn add_run(&mut self, values: &[f32], points: &[f32]) {
        let (mut products, mut squares) = ([0.0f64; 8], [0.0f64; 8]);
        for (values, points) in values.chunks(8).zip(points.chunks(8)) {
            for (i, (&value, &point)) in values.iter().zip(points).enumerate() {
                products[i] += f64::from(value) * f64::from(point);
                squares[i] += f64::from(point) * f64::from(point);
            }
        }
        let sum = |s: [f64; 8]| ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        self.add(&RowSums { value_times_point: sum(products), point_squared: sum(squares) });
    }

    /// Factor of the points divided by alpha that brings them nearest to the values: ⟨u, y/α⟩ / ⟨y/α, y/α⟩.
    fn gain(&self, alpha: f32) -> f32 {
        if self.point_squared == 0.0 {
            return 1.0;
        }
        (f64::from(alpha) * self.value_times_point / self.point_squared) as f32
    }
}

struct Stream {
    words: Vec<u32>,
    first_row: usize,
    row_sums: Vec<RowSums>,
}

struct Streams<'a> {
    units: &'a Units<'a>,
    alpha: f32,
    raw_bits: u32,
    tables: &'a [EncodeTable],
}

impl LatticeVisitor for Streams<'_> {
    type Out = Vec<Stream>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Vec<Stream> {
        let n_streams = self.units.values.len().div_ceil(ANS_STREAM_LEN);
        parallel::map_indexed(n_streams, |stream_idx| self.stream::<N, L>(stream_idx * ANS_STREAM_LEN))
    }
}

impl Streams<'_> {
    /// The stream of the values from `start` on.
    fn stream<const N: usize, L: BitStrip<N>>(&self, start: usize) -> Stream {
        let cols = self.units.cols;
        let values = &self.units.values[start..(start + ANS_STREAM_LEN).min(self.units.values.len())];
        let mut points = Vec::with_capacity(values.len().div_ceil(N));
        for x in values.chunks(N) {
            points.push(L::nearest_point(&std::array::from_fn(|i| x.get(i).map_or(0.0, |v| v * self.alpha))));
        }
        let mut encoder = StreamEncoder::new();
        encode_blocks(&mut encoder, 0, self.raw_bits, &points);
        let mut words = Vec::new();
        encoder.finish(self.tables, &mut words).expect("32768 values of at most 62 bits fit 65535 words");
        let embedded: Vec<_> = points.iter().map(L::embed).collect();
        let mut embedded = &embedded.as_flattened()[..values.len()];
        let mut values = values;
        let mut row_sums = Vec::new();
        let mut left_in_row = cols - start % cols;
        while !values.is_empty() {
            let len = left_in_row.min(values.len());
            let mut sums = RowSums::default();
            sums.add_run(&values[..len], &embedded[..len]);
            row_sums.push(sums);
            (values, embedded, left_in_row) = (&values[len..], &embedded[len..], cols);
        }
        Stream { words, first_row: start / cols, row_sums }
    }
}

/// Hands blocks to the encoder, block i to lane i mod 4, under tables that start at index `first_table` of the encoder's.
#[inline(always)]
pub(crate) fn encode_blocks<const N: usize>(
    encoder: &mut StreamEncoder,
    first_table: usize,
    raw_bits: u32,
    blocks: &[[i32; N]],
) {
    for group in blocks.chunks(LANES) {
        for i in 0..N {
            for (lane, y) in group.iter().enumerate() {
                coordinate_of(encoder, first_table, raw_bits, lane, i, y);
            }
        }
    }
}

/// Hands the coordinate of `y` that is coded `i`-th to the encoder.
#[inline(always)]
fn coordinate_of<const N: usize>(
    encoder: &mut StreamEncoder,
    first_table: usize,
    raw_bits: u32,
    lane: usize,
    i: usize,
    y: &[i32; N],
) {
    let value = y[coordinate::<N>(i)];
    if raw_bits == 0 {
        encoder.symbol(lane, (first_table + context::<N>(i, residue::<N>(i, y))) as u16, value);
    } else {
        encoder.symbol(lane, (first_table + wide_context::<N>(i)) as u16, value >> raw_bits);
        let known = known_bits::<N>(i);
        let low = value & ((1 << raw_bits) - 1);
        encoder.raw((low >> known) as u32, raw_bits - known);
    }
}
