//! The family of tables: what grid points cost and stand for, at every rate, made without data.

use gosset_entropy::ans::{FreqTable, TABLE_LEN};
use gosset_trellis::entropy_coded::{Quantizer, class_index, index_class, point};

use super::family_table::{ESCAPE_ORDERS, MEMBERS};

/// Members of the family per doubling of alpha.
pub(super) const PER_OCTAVE: usize = 12;
/// Alpha of member m is 2^((m - `UNIT_MEMBER`) / 12), up to the last of them.
pub(super) const UNIT_MEMBER: usize = 9;
/// Number of members.
pub(super) const N_MEMBERS: usize = 62;
/// Most low bits of an index that are stored as they are.
const MAX_RAW_BITS: usize = 5;
/// Number of tables: the members, then the last octave of them with one raw bit, with two, and so on.
pub(crate) const N_TABLES: usize = N_MEMBERS + MAX_RAW_BITS * PER_OCTAVE;

/// Offsets are stored in units of this part of a grid step.
pub(super) const OFFSET_UNIT: f32 = 1.0 / 256.0;

/// Squared grid steps that one unit of cost (2^-16 bit) is worth.
///
/// Lambda = 0.35 squared steps per bit is within 0.001 bits of the best at every rate from 0.6 to 4 bits.
pub(super) const LAMBDA: f32 = 0.35 / 65_536.0;

/// A member of the family, as stored. Everything is symmetric in the sign of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    /// Frequencies of the points 0, 2, 4, …, each of the two signs of a point having the one that is stored, and last
    /// that of the escape.
    pub even: &'static [u16],
    /// The same of the points 1, 3, 5, ….
    pub odd: &'static [u16],
    /// How far the points 1, 2, 3, … are moved towards zero, in units of 1/256 step.
    pub offsets: &'static [i8],
}

/// A table of the family: how classes of points are coded and what points stand for.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    raw_bits: u32,
    freqs: [FreqTable<'static>; 2],
    offsets: Vec<i8>,
}

/// Values of the points around zero, for decoders.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ValueTable {
    reach: i32,
    values: Vec<f32>,
}

impl Table {
    /// Table `index` of the family; `None` from [`N_TABLES`] on.
    pub(crate) fn get(index: u16) -> Option<Self> {
        let (member, raw_bits) = member_of(index)?;
        let orders = ESCAPE_ORDERS[member];
        let Member { even, odd, offsets } = MEMBERS[member];
        let offsets = if raw_bits == 0 { offsets } else { &[] };
        Some(Self::new(raw_bits, even, odd, orders, offsets).expect("tables of the family are valid"))
    }

    /// A table from half its frequencies, as in [`Member`]; `None` if those are not valid.
    pub(super) fn new(raw_bits: u32, even: &[u16], odd: &[u16], orders: [u8; 2], offsets: &[i8]) -> Option<Self> {
        let freqs = [mirrored(0, even, orders[0])?, mirrored(1, odd, orders[1])?];
        Some(Self { raw_bits, freqs, offsets: offsets.to_vec() })
    }

    /// Low bits of an index that are stored as they are.
    pub(crate) fn raw_bits(&self) -> u32 {
        self.raw_bits
    }

    /// Frequencies of the values 2 class + union of the even and of the odd union.
    pub(crate) fn freqs(&self) -> &[FreqTable<'static>; 2] {
        &self.freqs
    }

    /// The coded value of a point, and its raw bits.
    #[inline(always)]
    pub(crate) fn split(&self, y: i32) -> (i32, u32) {
        let union = y as u32 & 1;
        let (class, raw) = index_class(union, y >> 1, self.raw_bits);
        (point(union, class), raw)
    }

    /// Bits that a point takes, in units of 2^-16 bit.
    pub(crate) fn cost(&self, y: i32) -> u64 {
        let (value, _) = self.split(y);
        self.freqs[(y & 1) as usize].cost(value) + (u64::from(self.raw_bits) << 16)
    }

    /// What is added to a point where it stands for a value.
    fn offset(&self, y: i32) -> f32 {
        match self.offsets.get((y.unsigned_abs() as usize).wrapping_sub(1)) {
            Some(&offset) => -(y.signum() as f32) * f32::from(offset) * OFFSET_UNIT,
            None => 0.0,
        }
    }

    /// The quantizer of the search: lambda times the bits of each point, one escape beyond the ends of the runs.
    pub(crate) fn quantizer(&self) -> Quantizer {
        let reach = self.freqs.iter().map(|f| f.run_len() as i32 / 2 + 2).max().unwrap_or(2);
        let of = |union: u32, f: &dyn Fn(i32) -> f32| {
            (-reach..reach).map(|class| f(point(union, class))).collect::<Vec<_>>()
        };
        // Without raw bits classes are points; with them all offsets are 0.
        let offsets = [0, 1].map(|union| of(union, &|y| self.offset(y)));
        // Costs are below 2^24 units, so exact as f32; the product is rounded once, as IEEE 754 says.
        let costs = [0, 1].map(|union| of(union, &|y| self.freqs[union as usize].cost(y) as f32 * LAMBDA));
        let quantizer = Quantizer::new(self.raw_bits, [&offsets[0], &offsets[1]], [&costs[0], &costs[1]]);
        quantizer.expect("costs and offsets of a table are in range")
    }

    /// The values of the points around zero.
    pub(crate) fn values(&self) -> ValueTable {
        let reach = self.offsets.len() as i32;
        ValueTable { reach, values: (-reach..=reach).map(|y| y as f32 + self.offset(y)).collect() }
    }
}

impl ValueTable {
    /// The values of the points −reach … reach.
    pub(super) fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// The value of a point, in grid steps.
    #[inline(always)]
    pub(crate) fn get(&self, y: i32) -> f32 {
        match self.values.get(y.wrapping_add(self.reach) as usize) {
            Some(&value) => value,
            None => y as f32,
        }
    }
}

/// The point of a coded value and raw bits: the inverse of [`Table::split`].
#[inline(always)]
pub(crate) fn join(value: i32, raw: u32, raw_bits: u32) -> i32 {
    let union = value as u32 & 1;
    point_wrapping(union, class_index(union, value >> 1, raw, raw_bits))
}

/// As [`point`], for indices that damage has made.
#[inline(always)]
fn point_wrapping(union: u32, index: i32) -> i32 {
    index.wrapping_mul(2).wrapping_add(union as i32)
}

/// Member and raw bits of a table.
pub(super) fn member_of(index: u16) -> Option<(usize, u32)> {
    let index = usize::from(index);
    match index.checked_sub(N_MEMBERS) {
        None => Some((index, 0)),
        Some(_) if index >= N_TABLES => None,
        Some(beyond) => Some((N_MEMBERS - PER_OCTAVE + beyond % PER_OCTAVE, 1 + (beyond / PER_OCTAVE) as u32)),
    }
}

/// A whole table of frequencies from the half that is stored.
fn mirrored(union: i32, half: &[u16], order: u8) -> Option<FreqTable<'static>> {
    let (&escape, half) = half.split_last()?;
    let middle = if union == 0 { half.get(..1)? } else { &[] };
    let positive = &half[middle.len()..];
    let freqs: Vec<u16> = positive.iter().rev().chain(middle).chain(positive).chain([&escape]).copied().collect();
    debug_assert!(freqs.len() <= TABLE_LEN);
    let first = union - 2 * positive.len() as i32;
    FreqTable::new(first, 2, order, freqs).ok()
}
