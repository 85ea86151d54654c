//! Pages: the quantized vectors of one head under an entropy code.
//!
//! All numbers are little-endian; bit strings fill 32-bit words from the most significant bit and words are written with their most
//! significant byte first; only the bytes that hold bits are written. How many vectors a page holds and where it ends is known to whoever
//! keeps it; a page of no vectors has no bytes. The parts come in this order:
//!
//! | part | ANS, with norms | ANS, frame `probe` | Rice |
//! |---|---|---|---|
//! | head | 3 bytes: table shift + 16 in bits 0–4, norm table in bits 5–9, norm centre + 1024 in bits 10–20 | 1 byte: table shift + 32 in bits 0–5, bit 7: vectors have shifts | 4 bytes: parameters of both classes in bits 0–3 and 4–7, unused last bits of the string in bits 8–10, width of norms in bits 11–14, least norm + 1024 in bits 15–25 |
//! | strips | | four bits per eight coordinates, low half of a byte first: 0 where they are zero in all vectors, otherwise their own shift, in eighths of an octave, + 8 | |
//! | fields | norms in one byte (`log8`) or two (`f16`) for each vector | shifts, one byte for each vector, if there are any | as with ANS |
//! | bit string | norms (`coded`), then points | points of the strips that are not zero, strip after strip | norms (`coded`) in fixed width, then symbols of points |
//!
//! With norms the points of all vectors, one vector after the other, are one sequence under one set of tables: the member of the
//! family of [`gosset_codec::points`] made for the spread of Gaussian coordinates at the codec's scale, shifted by the head's number of
//! sixteenths of an octave. In the frame `probe` each block of coordinates has a spread of its own; a strip is that block of all vectors,
//! under tables for its spread, shifted by the number of the head and that of its eight coordinates. Norms are the differences from the centre, coded as points of Z with
//! tables for a spread of 2^(t/4 − 2). Lanes of the code take turns: norm i and point i of a sequence are in lane i mod 4.

mod ans;
mod norms;
mod paths;
mod rice;

pub(crate) use ans::prepare;
pub(crate) use paths::{PathPages, prepare_paths};

use gosset_codec::points::PointCode;
use gosset_lattice::BitStrip;

use crate::KvError;
use crate::PageBits;
use crate::spec::{Coder, NormKind};

/// What the pages of one head look like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageFormat<'a> {
    pub(crate) coder: Coder,
    /// How norms are stored; `None` in the frame `probe`, whose vectors have shifts.
    pub(crate) norm: Option<NormKind>,
    /// Tables of all points, or of each strip.
    pub(crate) codes: &'a [PointCode],
    /// Blocks of a vector.
    pub(crate) blocks: usize,
}

/// Points that are decoded at a time: whole rounds of the lanes.
const RUN: usize = 64;

/// Most bits that one coordinate takes under any code, with room for heads.
const MAX_BITS: usize = 64;

impl PageFormat<'_> {
    /// Appends the page of vectors with these fields and points, `[n, blocks]`, to `page`.
    pub(crate) fn pack<const N: usize, L: BitStrip<N>>(
        &self,
        fields: &[u16],
        points: &[[i32; N]],
        page: &mut Vec<u8>,
    ) -> PageBits {
        if fields.is_empty() {
            return PageBits::default();
        }
        match self.coder {
            Coder::Ans => self.pack_ans::<N>(fields, points, page),
            Coder::Rice => self.pack_rice::<N, L>(fields, points, page),
        }
    }

    /// Reads a page of `fields.len()` vectors and hands runs of points to `sink`: the place of the first of them among `[n, blocks]`, how far
    /// apart their places are, and the points.
    ///
    /// With an error, what was handed out means nothing.
    pub(crate) fn unpack<const N: usize, L: BitStrip<N>>(
        &self,
        page: &[u8],
        fields: &mut [u16],
        sink: impl FnMut(usize, usize, &[[i32; N]]),
    ) -> Result<(), KvError> {
        let Some(reader) = Reader::new(page, fields.len(), self.blocks * N)? else { return Ok(()) };
        match self.coder {
            Coder::Ans => self.unpack_ans::<N>(reader, fields, sink),
            Coder::Rice => self.unpack_rice::<N, L>(reader, fields, sink),
        }
    }

    /// Appends fields that are stored as they are.
    fn write_fields(&self, fields: &[u16], page: &mut Vec<u8>) {
        match self.norm {
            Some(NormKind::Coded) => {}
            Some(NormKind::Log8) | None => page.extend(fields.iter().map(|&field| field as u8)),
            Some(NormKind::F16) => page.extend(fields.iter().flat_map(|field| field.to_le_bytes())),
        }
    }

    fn read_fields(&self, reader: &mut Reader<'_>, fields: &mut [u16]) -> Result<(), KvError> {
        match self.norm {
            Some(NormKind::Coded) => {}
            Some(NormKind::Log8) | None => {
                let bytes = reader.take(fields.len(), "fields")?;
                fields.iter_mut().zip(bytes).for_each(|(field, &byte)| *field = u16::from(byte));
            }
            Some(NormKind::F16) => {
                let (bytes, _) = reader.take(2 * fields.len(), "fields")?.as_chunks();
                fields.iter_mut().zip(bytes).for_each(|(field, bytes)| *field = u16::from_le_bytes(*bytes));
            }
        }
        Ok(())
    }
}

/// The rest of a page.
#[derive(Debug, Clone, Copy)]
struct Reader<'a> {
    page: &'a [u8],
    /// Vectors of the page, for errors.
    n: usize,
}

impl<'a> Reader<'a> {
    /// A page of `n` vectors of `width` elements, `None` if there is nothing to read.
    fn new(page: &'a [u8], n: usize, width: usize) -> Result<Option<Self>, KvError> {
        let reader = Self { page, n };
        let most = (n * (width + 1)).saturating_mul(MAX_BITS / 8) + 64;
        match (n, page.len()) {
            (0, 0) => Ok(None),
            (0, len) => Err(reader.damaged(format!("{len} bytes, expected none"))),
            (_, len) if len > most => Err(reader.damaged(format!("{len} bytes, expected {most} at most"))),
            _ => Ok(Some(reader)),
        }
    }

    fn take(&mut self, n_bytes: usize, what: &str) -> Result<&'a [u8], KvError> {
        let Some((taken, rest)) = self.page.split_at_checked(n_bytes) else {
            return Err(self.damaged(format!("{} bytes left for {what}, expected {n_bytes}", self.page.len())));
        };
        self.page = rest;
        Ok(taken)
    }

    fn damaged(&self, reason: impl Into<String>) -> KvError {
        KvError::Page { n: self.n, reason: reason.into() }
    }

    /// Bits that are left.
    fn len_bits(&self) -> u64 {
        8 * self.page.len() as u64
    }

    /// All bytes that are left, as words.
    fn words(&self) -> Vec<u32> {
        let (whole, rest) = self.page.as_chunks::<4>();
        let mut words = Vec::with_capacity(whole.len() + 1);
        words.extend(whole.iter().map(|bytes| u32::from_be_bytes(*bytes)));
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            words.push(u32::from_be_bytes(last));
        }
        words
    }
}

/// Appends the bytes that hold the first `len_bits` bits of `words`; returns their bits.
fn write_words(words: &[u32], len_bits: u64, page: &mut Vec<u8>) -> u64 {
    let n_bytes = len_bits.div_ceil(8) as usize;
    page.extend(words.iter().flat_map(|word| word.to_be_bytes()).take(n_bytes));
    8 * n_bytes as u64
}
