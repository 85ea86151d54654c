//! Pages under Rice codes.

use gosset_entropy::{BitReader, BitWriter, rice};
use gosset_lattice::BitStrip;

use super::{PageFormat, RUN, Reader, write_words};
use crate::spec::NormKind;
use crate::{KvError, PageBits};

/// Symbol classes of the lattice with the most.
const MAX_CLASSES: usize = 2;
/// Most bits of a norm.
const MAX_NORM_WIDTH: u32 = 12;
/// Largest norm that a head can tell as the least of a page: none is larger.
const MAX_NORM: i32 = 1023;

impl PageFormat<'_> {
    pub(super) fn pack_rice<const N: usize, L: BitStrip<N>>(
        &self,
        fields: &[u16],
        points: &[[i32; N]],
        page: &mut Vec<u8>,
    ) -> PageBits {
        let symbols: Vec<[u32; N]> = points.iter().map(|&y| L::strip(y)).collect();
        let mut lengths = [[0u64; rice::MAX_K as usize + 1]; MAX_CLASSES];
        for block in &symbols {
            for (&z, class) in block.iter().zip(L::SYMBOL_CLASS) {
                let lengths = lengths[class].iter_mut().zip(0..);
                lengths.for_each(|(sum, k)| *sum += u64::from(rice::len_bits(z, k)));
            }
        }
        let best = lengths.map(|lengths| (0..).zip(lengths).min_by_key(|&(_, bits)| bits).map_or(0, |(k, _)| k));
        let coded = self.norm == Some(NormKind::Coded);
        let norms = || fields.iter().map(|&field| i32::from(field as i16));
        let least = norms().min().unwrap_or(0);
        let range = (norms().max().unwrap_or(0) - least) as u32;
        let width = if coded { 32 - range.leading_zeros() } else { 0 };
        let mut writer = BitWriter::new();
        if coded {
            norms().for_each(|norm| writer.write((norm - least) as u32, width));
        }
        rice::encode(&mut writer, symbols.as_flattened(), &L::SYMBOL_CLASS.map(|class| best[class]));
        let len_bits = writer.len_bits();
        let words = writer.into_words();
        let start = page.len();
        page.extend_from_slice(&[0; 4]);
        self.write_fields(fields, page);
        let fields_bits = 8 * (page.len() - start - 4) as u64;
        let string_bits = write_words(&words, len_bits, page);
        let unused = (string_bits - len_bits) as u32;
        let least = if coded { least + 1024 } else { 0 };
        let head = best[0] | best[1] << 4 | unused << 8 | width << 11 | (least as u32) << 15;
        page[start..start + 4].copy_from_slice(&head.to_le_bytes());
        let norm_bits = u64::from(width) * fields.len() as u64;
        let (scales, overhead) = ((fields_bits + norm_bits).min(fields_bits + string_bits), 32);
        PageBits { codes: fields_bits + string_bits - scales, scales, overhead }
    }

    pub(super) fn unpack_rice<const N: usize, L: BitStrip<N>>(
        &self,
        mut reader: Reader<'_>,
        fields: &mut [u16],
        mut sink: impl FnMut(usize, usize, &[[i32; N]]),
    ) -> Result<(), KvError> {
        let n = fields.len();
        let (head, _) = reader.take(4, "the head")?.as_chunks();
        let head = u32::from_le_bytes(head[0]);
        let ks = [head & 15, head >> 4 & 15];
        let (unused, width, least) = (head >> 8 & 7, head >> 11 & 15, (head >> 15 & 2047) as i32 - 1024);
        let coded = self.norm == Some(NormKind::Coded);
        if head >> 26 != 0 || width > MAX_NORM_WIDTH || !coded && head >> 11 != 0 {
            return Err(reader.damaged(format!("head {head:#x}: unused bits are set")));
        }
        self.read_fields(&mut reader, fields)?;
        let words = reader.words();
        let bad = |e: gosset_entropy::EntropyError| reader.damaged(e.to_string());
        let norm_bits = u64::from(width) * n as u64;
        let len_bits = reader.len_bits().checked_sub(u64::from(unused) + norm_bits);
        let len_bits = len_bits.ok_or_else(|| reader.damaged("the string is shorter than its norms"))?;
        if coded {
            let mut bits = BitReader::new(&words, 0, norm_bits).map_err(bad)?;
            for field in fields.iter_mut() {
                let norm = bits.read(width).map_err(bad)? as i32 + least;
                if norm > MAX_NORM {
                    return Err(reader.damaged(format!("norm {norm}, expected {MAX_NORM} at most")));
                }
                *field = norm as i16 as u16;
            }
        }
        let total = n * self.blocks;
        // Every symbol has a bit at least, which bounds the memory by that of the page.
        if len_bits < (total * N) as u64 {
            return Err(reader.damaged(format!("{len_bits} bits for {} symbols", total * N)));
        }
        let mut symbols = vec![0; total * N];
        rice::decode(&words, norm_bits, len_bits, &L::SYMBOL_CLASS.map(|class| ks[class]), &mut symbols)
            .map_err(bad)?;
        let mut points = [[0; N]; RUN];
        for (run, symbols) in symbols.as_chunks::<N>().0.chunks(RUN).enumerate() {
            points.iter_mut().zip(symbols).for_each(|(y, &s)| *y = L::unstrip(s));
            sink(run * RUN, 1, &points[..symbols.len()]);
        }
        Ok(())
    }
}
