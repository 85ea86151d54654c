//! The family of frequency tables: integers that are part of the format, in the file `tables/lattice-ans.txt`.
//!
//! The file was made by `cargo run --release -p gosset-benches --bin rate -- calibrate --table ans-family`, from 2^22 Gaussian values
//! and the nearest-point maps; encoders choose among its members by exact integer cost.
//!
//! Two kinds of members, by the number w of raw bits in the header:
//!
//! - **narrow**, w = 0: per lattice, members 0 to 104 made for alpha = 2^(m/16 − 2), one table per context of
//!   [`coding`](super::coding); a value is a coordinate.
//! - **wide**, w ≥ 2 for D4 and E8 and w ≥ 1 otherwise: one set for all lattices, members 0 to 56 made for the standard deviation
//!   σ = 2^(m/16 + 1) of the coordinates divided by 2^w. A value is the coordinate without its low w bits, ⌊y/2^w⌋; those of the low
//!   bits that the residue does not tell follow as raw bits. One table serves all coordinates but n_y of A2, which is smaller
//!   by √3 and uses member max(m − 13, 0).
//!
//! **Lines.** `family member table k escape f_0 f_1 …`: the order k of the escape code, the frequency of the escape, and the
//! frequencies of the values of the run. The run is symmetric, so each frequency stands for the values that mirror each other:
//!
//! | table | values of f_0, f_1, … |
//! |---|---|
//! | `any` | 0, ±1, ±2, … |
//! | `even` | 0, ±2, ±4, … |
//! | `odd` | ±1, ±3, … |
//! | `mod4-0` | 0, ±4, ±8, … |
//! | `mod4-2` | ±2, ±6, … |
//! | `mod4-1` | 1, −3, 5, −7, …, one value each |
//! | `floor` (wide) | 0 and −1, 1 and −2, 2 and −3, … |
//!
//! The table of E8 for residue 3 is that for residue 1 with all values negated.

use std::sync::OnceLock;

use gosset_entropy::ans::{DecodeTable, EncodeTable, FreqTable};
use gosset_lattice::LatticeKind;

use super::coding::MAX_CONTEXTS;

/// The file.
static SOURCE: &str = include_str!("../../../../tables/lattice-ans.txt");

/// Narrow members of each lattice.
pub(crate) const N_NARROW: usize = 105;
/// Wide members.
pub(crate) const N_WIDE: usize = 57;
/// Members per doubling of the scale.
const PER_OCTAVE: usize = 16;
/// Members between the wide tables of n_x and n_y of A2: 2^(13/16) is nearly √3.
const A2_OFFSET: usize = 13;

/// Alpha that a narrow member was made for.
pub(crate) fn narrow_alpha(member: usize) -> f64 {
    (member as f64 / PER_OCTAVE as f64 - 2.0).exp2()
}

/// Standard deviation that a wide member was made for.
pub(crate) fn wide_sigma(member: usize) -> f64 {
    (member as f64 / PER_OCTAVE as f64 + 1.0).exp2()
}

/// What the numbers of a line stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Run {
    /// Multiples of the step from the first value on, and their negatives.
    Negated,
    /// Numbers from 0 on, and −1 minus each.
    Complement,
    /// The first value, plus and minus multiples of the step in turn, minus first.
    Alternating,
}

/// A table of a member: which values it holds and where it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableKind {
    pub(crate) name: &'static str,
    /// The context that it serves.
    pub(crate) context: usize,
    first: i32,
    step: i32,
    run: Run,
}

const fn kind(name: &'static str, context: usize, first: i32, step: i32, run: Run) -> TableKind {
    TableKind { name, context, first, step, run }
}

/// The table of wide members.
pub(crate) static WIDE: TableKind = kind("floor", 0, 0, 1, Run::Complement);

static Z: [TableKind; 1] = [kind("any", 0, 0, 1, Run::Negated)];
static A2: [TableKind; 3] =
    [kind("any", 0, 0, 1, Run::Negated), kind("even", 1, 0, 2, Run::Negated), kind("odd", 2, 1, 2, Run::Negated)];
static D4: [TableKind; 3] =
    [kind("even", 0, 0, 2, Run::Negated), kind("mod4-0", 1, 0, 4, Run::Negated), kind("mod4-2", 2, 2, 4, Run::Negated)];
static E8: [TableKind; 6] = [
    kind("any", 0, 0, 1, Run::Negated),
    kind("even", 1, 0, 2, Run::Negated),
    kind("odd", 2, 1, 2, Run::Negated),
    kind("mod4-0", 3, 0, 4, Run::Negated),
    kind("mod4-1", 4, 1, 4, Run::Alternating),
    kind("mod4-2", 5, 2, 4, Run::Negated),
];

/// The tables of a narrow member, in the order of their contexts; E8 mirrors one for its last context.
pub(crate) fn table_kinds(lattice: LatticeKind) -> &'static [TableKind] {
    match lattice {
        LatticeKind::Z => &Z,
        LatticeKind::A2 => &A2,
        LatticeKind::D4 => &D4,
        LatticeKind::E8 => &E8,
    }
}

impl TableKind {
    /// Index in a line of the frequency of `value`.
    pub(crate) fn index_of(&self, value: i32) -> usize {
        let index = match self.run {
            Run::Negated => (value.abs() - self.first) / self.step,
            Run::Complement => value ^ value >> 31,
            Run::Alternating => {
                let t = (value - self.first) / self.step;
                2 * t.abs() - i32::from(t < 0)
            }
        };
        index as usize
    }

    /// Values that share the frequency at an index of a line.
    pub(crate) fn multiplicity(&self, index: usize) -> u16 {
        match self.run {
            Run::Alternating => 1,
            Run::Negated if self.first == 0 && index == 0 => 1,
            _ => 2,
        }
    }

    /// Steps from the nearest end of a run of `len` frequencies to the values at `index`, less one.
    pub(crate) fn excess(&self, index: usize, len: usize) -> u64 {
        let excess = match self.run {
            Run::Alternating if index.is_multiple_of(2) => index / 2 - len.div_ceil(2),
            Run::Alternating => index / 2 - len / 2,
            _ => index - len,
        };
        excess as u64
    }

    /// The table of a line.
    pub(crate) fn freq_table(&self, escape_k: u8, escape: u16, line: &[u16]) -> Option<FreqTable<'static>> {
        let len = i32::try_from(line.len()).ok()?;
        let (lowest, n) = match self.run {
            Run::Negated if self.first == 0 => (self.step * (1 - len), 2 * len - 1),
            Run::Negated => (-self.first - self.step * (len - 1), 2 * len),
            Run::Complement => (-len, 2 * len),
            Run::Alternating => (self.first - self.step * (len / 2), len),
        };
        let value = |i: i32| lowest + self.step * i;
        let freqs: Vec<u16> = (0..n).map(|i| line[self.index_of(value(i))]).chain([escape]).collect();
        FreqTable::new(lowest, self.step, escape_k, freqs).ok()
    }
}

/// All members.
struct Family {
    /// By lattice, member and context.
    narrow: [Vec<Vec<FreqTable<'static>>>; 4],
    wide: Vec<FreqTable<'static>>,
}

impl Family {
    /// The family in `text`; `None` if anything in it is not as the format says.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut next = |family: &str, member: usize, kind: &TableKind| {
            let mut fields = lines.next()?.split(' ');
            let matches =
                fields.next()? == family && fields.next()? == member.to_string() && fields.next()? == kind.name;
            let escape_k = fields.next()?.parse().ok()?;
            let escape = fields.next()?.parse().ok()?;
            let line = fields.map(|field| field.parse().ok()).collect::<Option<Vec<u16>>>()?;
            matches.then(|| kind.freq_table(escape_k, escape, &line))?
        };
        let mut narrow: [Vec<Vec<FreqTable<'static>>>; 4] = Default::default();
        for (members, lattice) in narrow.iter_mut().zip(LatticeKind::ALL) {
            for member in 0..N_NARROW {
                let kinds = table_kinds(lattice).iter();
                let mut tables = kinds.map(|kind| next(lattice.name(), member, kind)).collect::<Option<Vec<_>>>()?;
                if lattice == LatticeKind::E8 {
                    tables.push(tables[4].mirrored());
                }
                members.push(tables);
            }
        }
        let wide = (0..N_WIDE).map(|member| next("wide", member, &WIDE)).collect::<Option<Vec<_>>>()?;
        lines.next().is_none().then_some(Self { narrow, wide })
    }

    fn get() -> &'static Self {
        static FAMILY: OnceLock<Family> = OnceLock::new();
        FAMILY.get_or_init(|| Family::parse(SOURCE).expect("the committed file parses, as a test shows"))
    }
}

/// State tables of a member by context; contexts that the lattice lacks repeat the last.
pub(crate) type DecodeTables = [DecodeTable; MAX_CONTEXTS];

/// A place for what is made of each member when it is first asked for, and kept: matrices of a model share a few members, and a decoder
/// is often made for one product. State tables of all members together would be 17 MiB.
struct Kept<T> {
    narrow: [[OnceLock<T>; N_NARROW]; 4],
    wide: [[OnceLock<T>; N_WIDE]; 2],
}

impl<T> Kept<T> {
    const fn new() -> Self {
        Self {
            narrow: [const { [const { OnceLock::new() }; N_NARROW] }; 4],
            wide: [const { [const { OnceLock::new() }; N_WIDE] }; 2],
        }
    }

    /// What is kept of a member; `None` if there is no such member.
    fn get_or_make(
        &self,
        lattice: LatticeKind,
        raw_bits: u32,
        index: usize,
        make: impl FnOnce(&[&'static FreqTable<'static>]) -> T,
    ) -> Option<&T> {
        let kept = if raw_bits == 0 {
            self.narrow[LatticeKind::ALL.iter().position(|&kind| kind == lattice)?].get(index)?
        } else {
            self.wide[usize::from(lattice == LatticeKind::A2)].get(index)?
        };
        if let Some(made) = kept.get() {
            return Some(made);
        }
        let tables = member(lattice, raw_bits, index)?;
        Some(kept.get_or_init(|| make(&tables)))
    }
}

/// The state tables of a member; `None` if there is no such member.
pub(crate) fn decode_tables(lattice: LatticeKind, raw_bits: u32, index: usize) -> Option<&'static DecodeTables> {
    static KEPT: Kept<Box<DecodeTables>> = Kept::new();
    let made = KEPT.get_or_make(lattice, raw_bits, index, |tables| {
        Box::new(std::array::from_fn(|context| DecodeTable::new(tables[context.min(tables.len() - 1)])))
    });
    made.map(Box::as_ref)
}

/// The encoder's tables of a member by context; `None` if there is no such member.
pub(crate) fn encode_tables(lattice: LatticeKind, raw_bits: u32, index: usize) -> Option<&'static [EncodeTable]> {
    static KEPT: Kept<Vec<EncodeTable>> = Kept::new();
    let made = KEPT
        .get_or_make(lattice, raw_bits, index, |tables| tables.iter().map(|&table| EncodeTable::new(table)).collect());
    made.map(Vec::as_slice)
}

/// The member made for the alpha nearest to `alpha`, or for the smallest above it.
pub(crate) fn nearest_member(raw_bits: u32, alpha: f32) -> usize {
    // Sums of powers of two and of eighths of them are compared, which needs no logarithm.
    let (n, scale) = if raw_bits == 0 { (N_NARROW, 4.0) } else { (N_WIDE, 0.5 / (1u64 << raw_bits) as f32) };
    let scaled = alpha * scale;
    let mut lowest = 1.0;
    for octave in 0..n / PER_OCTAVE {
        if scaled < 2.0 * lowest {
            return octave * PER_OCTAVE + ((scaled / lowest - 1.0).max(0.0) * PER_OCTAVE as f32) as usize;
        }
        lowest *= 2.0;
    }
    n - 1
}

/// Number of members for a lattice and a number of raw bits.
pub(crate) fn n_members(raw_bits: u32) -> usize {
    if raw_bits == 0 { N_NARROW } else { N_WIDE }
}

/// The tables of a member by context; `None` if there is no such member.
pub(crate) fn member(lattice: LatticeKind, raw_bits: u32, member: usize) -> Option<Vec<&'static FreqTable<'static>>> {
    let family = Family::get();
    if raw_bits == 0 {
        let members = &family.narrow[LatticeKind::ALL.iter().position(|&kind| kind == lattice)?];
        return Some(members.get(member)?.iter().collect());
    }
    let table = family.wide.get(member)?;
    match lattice {
        LatticeKind::A2 => Some(vec![table, &family.wide[member.saturating_sub(A2_OFFSET)]]),
        _ => Some(vec![table]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::lattice::ans::coding;

    #[test]
    fn the_committed_family_parses() {
        let family = Family::parse(SOURCE).unwrap();
        for (members, lattice) in family.narrow.iter().zip(LatticeKind::ALL) {
            assert!(members.iter().all(|tables| tables.len() == coding::n_contexts(lattice.dim())));
        }
    }
}
