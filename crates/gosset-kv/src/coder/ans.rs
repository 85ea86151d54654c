//! Pages under ANS.

use std::ops::Range;

use gosset_codec::points::PointCode;
use gosset_entropy::ans::{EncodeTable, LANES, StreamDecoder, StreamEncoder, TABLE_LOG};

use super::norms::Norms;
use super::{PageFormat, RUN, Reader, write_words};
use crate::spec::NormKind;
use crate::{KvError, PageBits};

/// Shifts of tables that a head can tell: those of `format`.
fn shifts(norms: bool) -> (i32, i32) {
    if norms { (-16, 15) } else { (-32, 31) }
}

/// Members of the family by which the table of a group of strips moves for each step of its own.
const OWN_STEP: i32 = 2;
/// Steps in either direction.
const OWN_REACH: i32 = 7;

/// Makes the tables that coding pages will ask for, so that no memory is taken later.
pub(crate) fn prepare(codes: &[PointCode], norms: bool) {
    let (least, most) = shifts(norms);
    for code in codes {
        let own = if norms { 0 } else { OWN_STEP * OWN_REACH };
        (least - own..=most + own).for_each(|shift| _ = code.shifted(shift));
    }
    if norms {
        Norms::prepare();
    }
}

/// From 0 upwards and downwards, for as long as the cost falls.
pub(super) fn best_shift((least, most): (i32, i32), start: i32, cost: impl Fn(i32) -> u64) -> (i32, u64) {
    let mut best = (start, cost(start));
    for step in [2, -2, 1, -1] {
        while (least..=most).contains(&(best.0 + step)) {
            let found = cost(best.0 + step);
            if found >= best.1 {
                break;
            }
            best = (best.0 + step, found);
        }
    }
    best
}

impl PageFormat<'_> {
    pub(super) fn pack_ans<const N: usize>(&self, fields: &[u16], points: &[[i32; N]], page: &mut Vec<u8>) -> PageBits {
        let start = page.len();
        let mut encoder = StreamEncoder::new();
        let mut tables = Tables::default();
        let mut norm_bits = 0;
        let mut fields_bits = 0;
        if let Some(norm) = self.norm {
            let code = self.codes[0];
            let (shift, _) = best_shift(shifts(true), 0, |shift| code.shifted(shift).cost(points));
            let mut head = (shift + 16) as u32;
            if norm == NormKind::Coded {
                let norms = Norms::choose(fields);
                head |= norms.head();
                norm_bits = norms.encode(&mut encoder, &mut tables, fields);
            }
            page.extend_from_slice(&head.to_le_bytes()[..3]);
            self.write_fields(fields, page);
            fields_bits = 8 * (page.len() - start - 3) as u64;
            let code = code.shifted(shift);
            code.encode(&mut encoder, tables.add(code.encode_tables()), points);
        } else {
            let strips = self.strips(points);
            let cost_of = |b: usize, shift: i32| match &strips[b] {
                strip if strip.is_empty() => 0,
                strip => self.codes[b].shifted(shift).cost(strip),
            };
            let (shift, _) = best_shift(shifts(false), 0, |shift| (0..self.blocks).map(|b| cost_of(b, shift)).sum());
            let shifted = fields.iter().any(|&field| field != 0);
            page.push((shift + 32) as u8 | if shifted { 0x80 } else { 0 });
            let groups = self.groups::<N>();
            let own: Vec<u8> = groups
                .clone()
                .map(|blocks| {
                    if blocks.clone().all(|b| strips[b].is_empty()) {
                        return 0;
                    }
                    let cost = |step: i32| blocks.clone().map(|b| cost_of(b, shift + OWN_STEP * step)).sum();
                    (best_shift((-OWN_REACH, OWN_REACH), 0, cost).0 + OWN_REACH + 1) as u8
                })
                .collect();
            page.extend(own.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |high| high << 4)));
            if shifted {
                self.write_fields(fields, page);
                fields_bits = 8 * fields.len() as u64;
            }
            for (blocks, own) in groups.zip(own).filter(|&(_, own)| own != 0) {
                for b in blocks {
                    let code = self.codes[b].shifted(shift + OWN_STEP * (i32::from(own) - OWN_REACH - 1));
                    // Within a group strips that are zero are coded as the others are.
                    if strips[b].is_empty() {
                        code.encode(&mut encoder, tables.add(code.encode_tables()), &vec![[0; N]; fields.len()]);
                    } else {
                        code.encode(&mut encoder, tables.add(code.encode_tables()), &strips[b]);
                    }
                }
            }
        }
        let head_bits = 8 * (page.len() - start) as u64 - fields_bits;
        let mut words = Vec::new();
        let len_bits = encoder.finish_by(|table| tables.get(table), &mut words);
        let stream_bits = write_words(&words, len_bits, page);
        by_cause(head_bits, fields_bits, norm_bits, len_bits, stream_bits)
    }

    /// Blocks of coordinates that share a table: as many as have eight elements.
    fn groups<const N: usize>(&self) -> impl ExactSizeIterator<Item = Range<usize>> + Clone + use<N> {
        let (blocks, of_group) = (self.blocks, 8 / N);
        (0..blocks.div_ceil(of_group)).map(move |g| g * of_group..blocks.min((g + 1) * of_group))
    }

    /// The points of each block of coordinates, one vector after the other; empty where all are zero.
    fn strips<const N: usize>(&self, points: &[[i32; N]]) -> Vec<Vec<[i32; N]>> {
        let strip = |b: usize| -> Vec<[i32; N]> {
            let strip: Vec<_> = points.iter().skip(b).step_by(self.blocks).copied().collect();
            if strip.as_flattened().iter().all(|&v| v == 0) { Vec::new() } else { strip }
        };
        (0..self.blocks).map(strip).collect()
    }

    pub(super) fn unpack_ans<const N: usize>(
        &self,
        mut reader: Reader<'_>,
        fields: &mut [u16],
        mut sink: impl FnMut(usize, usize, &[[i32; N]]),
    ) -> Result<(), KvError> {
        let n = fields.len();
        let mut points = [[0; N]; RUN];
        if let Some(norm) = self.norm {
            let head = reader.take(3, "the head")?;
            let head = u32::from_le_bytes([head[0], head[1], head[2], 0]);
            self.read_fields(&mut reader, fields)?;
            let words = reader.words();
            let mut decoder = start(&words, reader)?;
            if norm == NormKind::Coded {
                Norms::read(head, reader)?.decode(&mut decoder, fields);
            } else if head >> 5 != 0 {
                return Err(reader.damaged(format!("head {head:#x}: unused bits are set")));
            }
            let code = self.codes[0].shifted((head & 31) as i32 - 16);
            let total = n * self.blocks;
            for at in (0..total).step_by(RUN) {
                let points = &mut points[..RUN.min(total - at)];
                code.decode(&mut decoder, points);
                sink(at, 1, points);
            }
            return finish(decoder, reader);
        }
        let head = reader.take(1, "the head")?[0];
        if head & 0x40 != 0 {
            return Err(reader.damaged(format!("head {head:#x}: an unused bit is set")));
        }
        let groups = self.groups::<N>();
        let own = reader.take(groups.len().div_ceil(2), "tables of strips")?;
        fields.fill(0);
        if head & 0x80 != 0 {
            self.read_fields(&mut reader, fields)?;
        }
        let words = reader.words();
        let mut decoder = start(&words, reader)?;
        let shift = i32::from(head & 63) - 32;
        for (g, blocks) in groups.enumerate() {
            let own = i32::from(own[g / 2] >> (4 * (g % 2)) & 15);
            for b in blocks {
                let code = self.codes[b].shifted(shift + OWN_STEP * (own - OWN_REACH - 1));
                for at in (0..n).step_by(RUN) {
                    let points = &mut points[..RUN.min(n - at)];
                    if own == 0 {
                        points.fill([0; N]);
                    } else {
                        code.decode(&mut decoder, points);
                    }
                    sink(at * self.blocks + b, self.blocks, points);
                }
            }
        }
        finish(decoder, reader)
    }
}

pub(super) fn start<'w>(words: &'w [u32], page: Reader<'_>) -> Result<StreamDecoder<'w>, KvError> {
    StreamDecoder::new(words).map_err(|e| page.damaged(e.to_string()))
}

/// Checks the end of the stream that takes the last bytes of a page.
pub(super) fn finish(decoder: StreamDecoder<'_>, page: Reader<'_>) -> Result<(), KvError> {
    let consumed = decoder.consumed_bits();
    decoder.finish().map_err(|e| page.damaged(e.to_string()))?;
    if consumed.div_ceil(8) != page.len_bits() / 8 {
        return Err(page.damaged(format!("its vectors take {consumed} bits of {}", page.len_bits())));
    }
    Ok(())
}

/// Bits by cause of a page with a head, fields and a stream of `len_bits` padded to `stream_bits`, of which `norm_bits` are norms.
pub(super) fn by_cause(head: u64, fields: u64, norm_bits: u64, len_bits: u64, stream_bits: u64) -> PageBits {
    let norms = norm_bits.min(stream_bits);
    let ends = u64::from(TABLE_LOG) * LANES as u64 + (stream_bits - len_bits);
    let ends = ends.min(stream_bits - norms);
    PageBits { codes: stream_bits - norms - ends, scales: fields + norms, overhead: head + ends }
}

/// The tables of a page, numbered as the encoder is told.
#[derive(Debug, Default)]
pub(super) struct Tables {
    sets: Vec<&'static [EncodeTable]>,
}

impl Tables {
    /// Number of the first table of a set; neighbouring strips often share one.
    pub(super) fn add(&mut self, set: &'static [EncodeTable]) -> u16 {
        if !self.sets.last().is_some_and(|last| std::ptr::eq(*last, set)) {
            self.sets.push(set);
        }
        ((self.sets.len() - 1) * PointCode::MAX_TABLES) as u16
    }

    pub(super) fn get(&self, table: u16) -> &'static EncodeTable {
        let table = usize::from(table);
        &self.sets[table / PointCode::MAX_TABLES][table % PointCode::MAX_TABLES]
    }
}
