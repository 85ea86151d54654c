//! Norms of a page under ANS: differences from a centre, as points of Z.

use gosset_codec::points::PointCode;
use gosset_entropy::ans::{COST_BITS, StreamDecoder, StreamEncoder};
use gosset_lattice::LatticeKind;

use super::ans::{Tables, best_shift};
use super::{RUN, Reader};
use crate::KvError;

/// Tables of norms: spreads of 2^(t/4 − 2).
const N_TABLES: i32 = 27;
/// Members of the family between two of them.
const MEMBERS_PER_TABLE: i32 = 4;
/// Largest magnitude of the centre.
const MAX_CENTRE: i32 = 1023;

/// Table and centre of the norms of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Norms {
    table: i32,
    centre: i32,
}

impl Norms {
    /// Makes all tables.
    pub(super) fn prepare() {
        (0..N_TABLES).for_each(|table| _ = Self { table, centre: 0 }.code());
    }

    fn code(self) -> PointCode {
        PointCode::for_alpha(LatticeKind::Z, 0.25).shifted(MEMBERS_PER_TABLE * self.table)
    }

    fn differences(self, fields: &[u16]) -> Vec<[i32; 1]> {
        fields.iter().map(|&field| [i32::from(field as i16) - self.centre]).collect()
    }

    /// The centre in the middle of the norms, and the table that codes them in the fewest bits.
    pub(super) fn choose(fields: &[u16]) -> Self {
        let mut sorted: Vec<i32> = fields.iter().map(|&field| i32::from(field as i16)).collect();
        let at = sorted.len() / 2;
        let centre = (*sorted.select_nth_unstable(at).1).clamp(-MAX_CENTRE, MAX_CENTRE);
        let differences = Self { table: 0, centre }.differences(fields);
        let cost = |table: i32| Self { table, centre }.code().cost(&differences);
        let (table, _) = best_shift((0, N_TABLES - 1), 4, cost);
        Self { table, centre }
    }

    /// Table in bits 5 to 9 of a head, centre + 1024 in bits 10 to 20.
    pub(super) fn head(self) -> u32 {
        (self.table as u32) << 5 | ((self.centre + 1024) as u32) << 10
    }

    /// Those of a head.
    pub(super) fn read(head: u32, page: Reader<'_>) -> Result<Self, KvError> {
        let (table, centre) = ((head >> 5 & 31) as i32, (head >> 10 & 2047) as i32 - 1024);
        if table >= N_TABLES || head >> 21 != 0 {
            return Err(page.damaged(format!("head {head:#x}: no such table of norms")));
        }
        Ok(Self { table, centre })
    }

    /// Hands the norms to the encoder, norm i to lane i mod 4; returns about how many bits they take.
    pub(super) fn encode(self, encoder: &mut StreamEncoder, tables: &mut Tables, fields: &[u16]) -> u64 {
        let (code, differences) = (self.code(), self.differences(fields));
        code.encode(encoder, tables.add(code.encode_tables()), &differences);
        code.cost(&differences) >> COST_BITS
    }

    pub(super) fn decode(self, decoder: &mut StreamDecoder<'_>, fields: &mut [u16]) {
        let mut differences = [[0; 1]; RUN];
        for fields in fields.chunks_mut(RUN) {
            let differences = &mut differences[..fields.len()];
            self.code().decode(decoder, differences);
            for (field, [difference]) in fields.iter_mut().zip(differences) {
                *field = difference.wrapping_add(self.centre) as i16 as u16;
            }
        }
    }
}
