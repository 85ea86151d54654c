//! Pages of trellis paths under ANS.

use gosset_codec::paths::{LANES, PathCode};
use gosset_entropy::ans::StreamEncoder;

use super::ans::{Tables, best_shift, finish, start};
use super::norms::Norms;
use super::{PageFormat, Reader, write_words};
use crate::spec::{Coder, NormKind};
use crate::{KvError, PageBits};

/// Shifts of tables that a head can tell.
const SHIFTS: (i32, i32) = (-16, 15);

/// What the pages of a trellis codec look like: the head of pages with norms, fields, then norms and points as one bit string.
///
/// Eight vectors at a time are eight paths of [`gosset_codec::paths`]; shifts count twelfths of an octave. The last group of a page may
/// be smaller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathPages {
    pub(crate) norm: NormKind,
    pub(crate) code: PathCode,
    /// Elements of a vector.
    pub(crate) width: usize,
}

/// Makes the tables that coding pages will ask for, so that no memory is taken later.
pub(crate) fn prepare_paths(code: PathCode) {
    (SHIFTS.0..=SHIFTS.1).for_each(|shift| _ = code.shifted(shift));
    super::ans::prepare(&[], true);
}

impl PathPages {
    fn fields(self) -> PageFormat<'static> {
        PageFormat { coder: Coder::Ans, norm: Some(self.norm), codes: &[], blocks: self.width }
    }

    /// Appends the page of vectors with these fields and points, groups of `[width][8]`.
    pub(crate) fn pack(&self, fields: &[u16], points: &[[i32; LANES]], page: &mut Vec<u8>) -> PageBits {
        if fields.is_empty() {
            return PageBits::default();
        }
        let first = page.len();
        let groups = || points.chunks_exact(self.width).zip(fields.chunks(LANES).map(<[u16]>::len));
        let cost = |shift| groups().map(|(group, n)| self.code.shifted(shift).cost(group, n)).sum();
        let (shift, _) = best_shift(SHIFTS, 0, cost);
        let mut encoder = StreamEncoder::new();
        let mut tables = Tables::default();
        let mut head = (shift - SHIFTS.0) as u32;
        let mut norm_bits = 0;
        if self.norm == NormKind::Coded {
            let norms = Norms::choose(fields);
            head |= norms.head();
            norm_bits = norms.encode(&mut encoder, &mut tables, fields);
        }
        page.extend_from_slice(&head.to_le_bytes()[..3]);
        self.fields().write_fields(fields, page);
        let fields_bits = 8 * (page.len() - first - 3) as u64;
        let code = self.code.shifted(shift);
        let table = tables.add(code.encode_tables());
        groups().for_each(|(group, n)| code.encode(&mut encoder, table, group, n));
        let mut words = Vec::new();
        let len_bits = encoder.finish_by(|table| tables.get(table), &mut words);
        let stream_bits = write_words(&words, len_bits, page);
        super::ans::by_cause(24, fields_bits, norm_bits, len_bits, stream_bits)
    }

    /// Reads a page of `fields.len()` vectors; `sink` gets the number of the first vector of each group of eight and the group's points.
    pub(crate) fn unpack(
        &self,
        page: &[u8],
        fields: &mut [u16],
        mut sink: impl FnMut(usize, &[[i32; LANES]]),
    ) -> Result<(), KvError> {
        let n = fields.len();
        let Some(mut reader) = Reader::new(page, n, self.width)? else { return Ok(()) };
        let head = reader.take(3, "the head")?;
        let head = u32::from_le_bytes([head[0], head[1], head[2], 0]);
        self.fields().read_fields(&mut reader, fields)?;
        let words = reader.words();
        let mut decoder = start(&words, reader)?;
        if self.norm == NormKind::Coded {
            Norms::read(head, reader)?.decode(&mut decoder, fields);
        } else if head >> 5 != 0 {
            return Err(reader.damaged(format!("head {head:#x}: unused bits are set")));
        }
        let code = self.code.shifted((head & 31) as i32 + SHIFTS.0);
        let mut points = vec![[0; LANES]; self.width];
        for first in (0..n).step_by(LANES) {
            code.decode(&mut decoder, &mut points, LANES.min(n - first));
            sink(first, &points);
        }
        finish(decoder, reader)
    }
}
