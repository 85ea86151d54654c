//! What a decoder on another device needs beside a header and its planes: the tables that the header names.
//!
//! A [`Decoder`](crate::Decoder) must have accepted header and planes first; these functions only make tables.

use gosset_entropy::ans::{DecodeTable, TABLE_LEN};
use gosset_trellis::entropy_coded::TrellisCode;

use crate::scheme::lattice::ans::family;
use crate::scheme::trellis;
use crate::{CodeHeader, CodecError, LatticeHeader, TrellisHeader};

/// State tables of an ANS code, by context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsTables {
    /// 1024 entries per context: the value in the upper 16 bits (−32768 for the escape), the base in bits 6 to 15, the number
    /// of bits to read in bits 0 to 5.
    pub entries: Vec<u32>,
    /// Per context: order of the escape code, step, first and last value of the run.
    pub escapes: Vec<[i32; 4]>,
    /// Bits that follow each symbol as they are.
    pub raw_bits: u32,
}

impl AnsTables {
    fn new<'a>(tables: impl Iterator<Item = &'a DecodeTable>, raw_bits: u32) -> Self {
        let (mut entries, mut escapes) = (Vec::new(), Vec::new());
        for table in tables {
            entries.extend_from_slice(table.entries());
            escapes.push(table.escape());
        }
        Self { entries, escapes, raw_bits }
    }

    /// Number of contexts.
    #[must_use]
    pub fn n_contexts(&self) -> usize {
        self.entries.len() / TABLE_LEN
    }
}

/// Tables of the entropy-coded trellis.
#[derive(Debug, Clone, PartialEq)]
pub struct TrellisTables {
    /// State tables of even and of odd points.
    pub ans: AnsTables,
    /// What the points −reach … reach stand for, in grid steps, `2 * reach + 1` of them; others stand for themselves.
    pub units: Vec<f32>,
    /// What an odd point, and an odd half of a point, add to half the state.
    pub taps: [u32; 2],
}

/// The tables of a lattice under ANS.
///
/// # Errors
/// [`CodecError::Header`] if the header names no member of the family.
pub fn lattice_ans_tables(header: &LatticeHeader) -> Result<AnsTables, CodecError> {
    let bad =
        |found: String| CodecError::Header { field: "code", found, expected: "a member of the ANS family".to_owned() };
    let CodeHeader::Ans { table, raw_bits } = header.code else { return Err(bad("Rice codes".to_owned())) };
    let raw_bits = u32::from(raw_bits);
    let tables = family::decode_tables(header.lattice.0, raw_bits, usize::from(table));
    Ok(AnsTables::new(tables.ok_or_else(|| bad(table.to_string()))?.iter(), raw_bits))
}

/// The tables of the entropy-coded trellis.
///
/// # Errors
/// [`CodecError::Header`] if the header names no member of the family, or another number of states.
pub fn trellis_tables(header: &TrellisHeader) -> Result<TrellisTables, CodecError> {
    let code: TrellisCode = trellis::checked_code(header.states)?;
    let (freqs, raw_bits, units) = trellis::parts(header.table).ok_or_else(|| CodecError::Header {
        field: "table",
        found: header.table.to_string(),
        expected: "a table of the family".to_owned(),
    })?;
    let tables = freqs.each_ref().map(DecodeTable::new);
    Ok(TrellisTables { ans: AnsTables::new(tables.iter(), raw_bits), units, taps: code.taps() })
}
