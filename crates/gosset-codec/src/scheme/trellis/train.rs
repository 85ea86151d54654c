//! The family of tables and its rate curves, made by simulation.
//!
//! Nothing here runs while a matrix is encoded: the results are committed, since logarithms may differ in the last bit
//! between machines.

use std::fmt::Write;

use gosset_entropy::ans::{EncodeTable, MAX_FREQ, TABLE_LEN};
use gosset_trellis::entropy_coded::TrellisCode;

use super::STREAM_LEN;
use super::encode::{Stream, code_points};
use super::family::{LAMBDA, N_MEMBERS, N_TABLES, OFFSET_UNIT, PER_OCTAVE, Table, UNIT_MEMBER, member_of};
use crate::parallel;

/// Rounds of encoding and adapting a table before it is settled.
const ROUNDS: usize = 10;
/// Number of states of the trellis that the family is made with; the others lose less than 0.001 bits by that.
const STATES: u32 = 64;
/// Weight of the offset 0, in values, so that chance does not move points that hardly occur.
const OFFSET_WEIGHT: f64 = 64.0;
/// Largest magnitude of a point that is counted.
const MAX_POINT: usize = 255;
/// Largest order of the escape code that is tried.
const MAX_ORDER: u8 = 6;

/// A family of tables for Gaussian values of unit variance.
#[derive(Debug, Clone, PartialEq)]
pub struct TrellisFamily {
    members: Vec<Trained>,
}

/// A member, as [`Member`](super::family::Member).
#[derive(Debug, Clone, PartialEq)]
struct Trained {
    halves: [Vec<u16>; 2],
    orders: [u8; 2],
    offsets: Vec<i8>,
}

/// A point of a rate curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrellisCurvePoint {
    /// Grid steps per unit of RMS.
    pub alpha: f64,
    /// Bits per value, ends of streams included.
    pub payload_bps: f64,
    /// Signal-to-noise ratio in decibels.
    pub snr_db: f64,
}

impl TrellisFamily {
    /// The family that is best for `values`: each member is adapted in turns with the points that the search finds with
    /// it.
    pub fn train(values: &[f32]) -> Self {
        let members = (0..N_MEMBERS).map(|member| train_member(nominal_alpha(member), values)).collect();
        Self { members }
    }

    /// What the trellis with that many states does to `values` with each of the tables, the members and those with raw bits.
    ///
    /// # Panics
    /// If there is no such trellis, or a value is too large.
    pub fn curve(&self, states: u32, values: &[f32]) -> Vec<TrellisCurvePoint> {
        let code = TrellisCode::with_states(states).expect("a number of states that has a code");
        let point = |index| {
            let (member, raw_bits) = member_of(index as u16).expect("the index of a table");
            let table = self.members[member].table(raw_bits).expect("training makes valid tables");
            measure(code, &table, nominal_alpha(index), values)
        };
        (0..N_TABLES).map(point).collect()
    }

    /// Rust source of the members: the statics of the module `family_table`.
    pub fn source(&self) -> String {
        let mut text = String::from("pub(super) static ESCAPE_ORDERS: [[u8; 2]; N_MEMBERS] = [\n");
        for member in &self.members {
            let _ = writeln!(text, "    {:?},", member.orders);
        }
        text.push_str("];\n\n#[rustfmt::skip]\npub(super) static MEMBERS: [Member; N_MEMBERS] = [\n");
        for Trained { halves: [even, odd], offsets, .. } in &self.members {
            let _ = writeln!(text, "    Member {{\n        even: &{even:?},\n        odd: &{odd:?},");
            let _ = writeln!(text, "        offsets: &{offsets:?},\n    }},");
        }
        text.push_str("];\n");
        text
    }

    /// The members as JSON, for decoders in other languages.
    pub fn json(&self) -> String {
        let mut text = format!(
            "{{\n\"members_per_octave\": {PER_OCTAVE},\n\"unit_member\": {UNIT_MEMBER},\n\"offset_unit\": {OFFSET_UNIT},\n\"members\": [\n"
        );
        for (i, Trained { halves: [even, odd], orders, offsets }) in self.members.iter().enumerate() {
            let comma = if i + 1 < self.members.len() { "," } else { "" };
            let _ = writeln!(
                text,
                "{{\"even\": {even:?}, \"odd\": {odd:?}, \"escape_orders\": {orders:?}, \"offsets\": {offsets:?}}}{comma}"
            );
        }
        text.push_str("]\n}\n");
        text
    }
}

/// Cost of `values` under a code, for those who look for better codes: mean squared error + lambda x bits per value, in squared
/// grid steps, at the alpha of a member of the stored family. 0.001 bits at the same distortion are about 0.00035.
///
/// # Panics
/// If there is no such member, or a value is too large.
pub fn trellis_code_cost(code: TrellisCode, member: u16, values: &[f32]) -> f64 {
    let table = Table::get(member).filter(|table| table.raw_bits() == 0).expect("the index of a member");
    let (quantizer, reconstruction, alpha) = (table.quantizer(), table.values(), nominal_alpha(usize::from(member)));
    let sums = parallel::map_indexed(values.len().div_ceil(STREAM_LEN), |i| {
        let values = &values[i * STREAM_LEN..((i + 1) * STREAM_LEN).min(values.len())];
        let points = Stream::search(code, &quantizer, alpha as f32, values).points;
        let costs = values.iter().zip(&points).map(|(&x, &y)| {
            let error = f64::from(x) * alpha - f64::from(reconstruction.get(y));
            error * error + f64::from(LAMBDA) * table.cost(y) as f64
        });
        costs.sum::<f64>()
    });
    sums.iter().sum::<f64>() / values.len() as f64
}

/// Rust source of the stored table of a curve: a static of the given name, with rows of alpha, payload and SNR.
pub fn trellis_curve_source(name: &str, points: &[TrellisCurvePoint]) -> String {
    let mut text = format!("pub(super) static {name}: [[f64; 3]; N_TABLES] = [\n");
    for point in points {
        let _ = writeln!(text, "    [{:.6}, {:.5}, {:.3}],", point.alpha, point.payload_bps, point.snr_db);
    }
    text.push_str("];\n");
    text
}

impl Trained {
    fn table(&self, raw_bits: u32) -> Option<Table> {
        let offsets = if raw_bits == 0 { self.offsets.as_slice() } else { &[] };
        Table::new(raw_bits, &self.halves[0], &self.halves[1], self.orders, offsets)
    }

    /// What fits the points of values best.
    fn fit(magnitudes: &Magnitudes) -> Self {
        let classes = |union: usize| -> Vec<f64> { magnitudes.counts.iter().skip(union).step_by(2).copied().collect() };
        let ((even, even_order), (odd, odd_order)) = (fit_half(0, &classes(0)), fit_half(1, &classes(1)));
        let reach = (2 * (even.len() - 2)).max(2 * (odd.len() - 1) - 1);
        let offset = |y: usize| {
            let mean = magnitudes.excess[y] / (magnitudes.counts[y] + OFFSET_WEIGHT);
            (-mean / f64::from(OFFSET_UNIT)).round().clamp(-127.0, 127.0) as i8
        };
        Self { halves: [even, odd], orders: [even_order, odd_order], offsets: (1..=reach).map(offset).collect() }
    }
}

/// Counts by magnitude of points.
struct Magnitudes {
    counts: Vec<f64>,
    /// Sum of how far values are beyond their point, away from zero.
    excess: Vec<f64>,
}

fn train_member(alpha: f64, values: &[f32]) -> Trained {
    let code = TrellisCode::with_states(STATES).expect("a number of states that has a code");
    // The first guess: rounding to the nearest point of either union.
    let density = |y: usize| (-0.5 * (y as f64 / alpha).powi(2)).exp();
    let counts = (0..=MAX_POINT).map(|y| if y == 0 { 1e6 } else { 2e6 * density(y) }).collect();
    let mut member = Trained::fit(&Magnitudes { counts, excess: vec![0.0; MAX_POINT + 1] });
    for _ in 0..ROUNDS {
        let table = member.table(0).expect("fitting makes valid tables");
        let quantizer = table.quantizer();
        let parts = parallel::map_indexed(values.len().div_ceil(STREAM_LEN), |i| {
            let values = &values[i * STREAM_LEN..((i + 1) * STREAM_LEN).min(values.len())];
            let points = Stream::search(code, &quantizer, alpha as f32, values).points;
            let mut part = Magnitudes { counts: vec![0.0; MAX_POINT + 1], excess: vec![0.0; MAX_POINT + 1] };
            for (&x, &y) in values.iter().zip(&points) {
                let magnitude = (y.unsigned_abs() as usize).min(MAX_POINT);
                part.counts[magnitude] += 1.0;
                part.excess[magnitude] += (f64::from(x) * alpha - f64::from(y)) * f64::from(y.signum());
            }
            part
        });
        let mut all = Magnitudes { counts: vec![0.0; MAX_POINT + 1], excess: vec![0.0; MAX_POINT + 1] };
        for part in &parts {
            all.counts.iter_mut().zip(&part.counts).for_each(|(sum, x)| *sum += x);
            all.excess.iter_mut().zip(&part.excess).for_each(|(sum, x)| *sum += x);
        }
        member = Trained::fit(&all);
    }
    member
}

fn measure(code: TrellisCode, table: &Table, alpha: f64, values: &[f32]) -> TrellisCurvePoint {
    let (quantizer, reconstruction) = (table.quantizer(), table.values());
    let tables = table.freqs().each_ref().map(EncodeTable::new);
    let parts = parallel::map_indexed(values.len().div_ceil(STREAM_LEN), |i| {
        let values = &values[i * STREAM_LEN..((i + 1) * STREAM_LEN).min(values.len())];
        let points = Stream::search(code, &quantizer, alpha as f32, values).points;
        let mut words = Vec::new();
        code_points(code, table, &tables, &points, &mut words).expect("streams of this length have few words");
        let errors = values.iter().zip(&points).map(|(&x, &y)| {
            let error = f64::from(x) - f64::from(reconstruction.get(y)) / alpha;
            [f64::from(x).powi(2), error * error]
        });
        let sums = errors.fold([0.0, 0.0], |sums, [signal, noise]| [sums[0] + signal, sums[1] + noise]);
        (words.len(), sums)
    });
    let n_words: usize = parts.iter().map(|part| part.0).sum();
    let [signal, noise] = parts.iter().fold([0.0, 0.0], |sums, (_, part)| [sums[0] + part[0], sums[1] + part[1]]);
    let payload_bps = 32.0 * n_words as f64 / values.len() as f64;
    TrellisCurvePoint { alpha, payload_bps, snr_db: 10.0 * (signal / noise).log10() }
}

/// The cheapest half of a frequency table, and the order of its escape code, for classes of magnitudes that occur so often.
fn fit_half(union: usize, classes: &[f64]) -> (Vec<u16>, u8) {
    let mut best = (f64::INFINITY, Vec::new(), 0);
    for len in 1..=classes.len().min(TABLE_LEN / 4) {
        let tail = &classes[len..];
        let escapes: f64 = tail.iter().sum();
        // The sign of a zero does not exist; that of an escape is in its code.
        let items: Vec<Item> = classes[..len]
            .iter()
            .enumerate()
            .map(|(i, &weight)| Item { weight, slots: if i == 0 && union == 0 { 1 } else { 2 } })
            .chain([Item { weight: escapes, slots: 1 + union }])
            .collect();
        let Some(freqs) = allocate(&items) else { continue };
        let symbols: f64 = freqs.iter().zip(&items).map(|(&f, item)| item.weight * bits_of(f)).sum();
        for order in 0..=MAX_ORDER {
            let escape_bits = |(excess, weight): (usize, &f64)| weight * f64::from(1 + golomb_bits(excess, order));
            let cost = symbols + tail.iter().enumerate().map(escape_bits).sum::<f64>();
            if cost < best.0 - 1e-9 {
                best = (cost, freqs.clone(), order);
            }
        }
    }
    let (_, mut half, order) = best;
    if union == 1 {
        // Its item stands for two slots of one symbol.
        *half.last_mut().expect("an escape was allocated") *= 2;
    }
    (half, order)
}

/// Symbols that occur `weight` times together, each of as many slots as the others.
struct Item {
    weight: f64,
    slots: usize,
}

/// Frequencies of the items that sum to the table length, each at least 1, by taking what gains most per slot.
fn allocate(items: &[Item]) -> Option<Vec<u16>> {
    let total: f64 = items.iter().map(|item| item.weight).sum();
    let share = |item: &Item| item.weight / total * TABLE_LEN as f64 / item.slots as f64;
    let mut freqs: Vec<u16> = items.iter().map(|item| share(item).clamp(1.0, f64::from(MAX_FREQ)) as u16).collect();
    loop {
        let used: usize = freqs.iter().zip(items).map(|(&f, item)| usize::from(f) * item.slots).sum();
        let per_slot =
            |i: usize, from: u16, to: u16| items[i].weight * (bits_of(from) - bits_of(to)) / items[i].slots as f64;
        let choice = if used < TABLE_LEN {
            let fits = |i: &usize| items[*i].slots <= TABLE_LEN - used && freqs[*i] < MAX_FREQ;
            let gain = |i: &usize| per_slot(*i, freqs[*i], freqs[*i] + 1);
            (0..items.len()).filter(fits).max_by(|a, b| gain(a).total_cmp(&gain(b))).map(|i| (i, 1))
        } else if used > TABLE_LEN {
            let loss = |i: &usize| per_slot(*i, freqs[*i] - 1, freqs[*i]);
            let large = (0..items.len()).filter(|&i| freqs[i] > 1);
            large.min_by(|a, b| loss(a).total_cmp(&loss(b))).map(|i| (i, -1))
        } else {
            return Some(freqs);
        };
        let (i, change) = choice?;
        freqs[i] = freqs[i].wrapping_add_signed(change);
    }
}

fn bits_of(freq: u16) -> f64 {
    (TABLE_LEN as f64 / f64::from(freq)).log2()
}

/// Length of the exponential Golomb code of an order.
fn golomb_bits(excess: usize, order: u8) -> u32 {
    let n_bits = (excess + (1 << order)).ilog2() + 1;
    2 * n_bits - 1 - u32::from(order)
}

/// Alpha that table `index` is made for.
fn nominal_alpha(index: usize) -> f64 {
    2f64.powf((index as f64 - UNIT_MEMBER as f64) / PER_OCTAVE as f64)
}
