//! Points of lattices under ANS, for callers that lay out streams of their own.
//!
//! A [`PointCode`] is a member of the family of tables of the lattice scheme: integers of this crate, made for Gaussian values of one
//! spread. The caller gives blocks to a [`StreamEncoder`] in an order of its choice and asks a [`StreamDecoder`] for them in the same.
//!
//! ```
//! use gosset_codec::points::PointCode;
//! use gosset_entropy::ans::{StreamDecoder, StreamEncoder};
//! use gosset_lattice::{Lattice, LatticeKind, D4};
//!
//! let points: Vec<[i32; 4]> = (0..9).map(|i| D4::nearest_point(&[0.3 * i as f32, 2.0, -1.1, 0.4])).collect();
//! let code = PointCode::for_alpha(LatticeKind::D4, 1.7);
//!
//! let mut encoder = StreamEncoder::new();
//! code.encode(&mut encoder, 0, &points);
//! let mut words = Vec::new();
//! encoder.finish_by(|table| &code.encode_tables()[usize::from(table)], &mut words);
//!
//! let mut decoder = StreamDecoder::new(&words)?;
//! let mut decoded = [[0; 4]; 9];
//! code.decode(&mut decoder, &mut decoded);
//! decoder.finish()?;
//! assert_eq!(decoded, points[..]);
//! # Ok::<(), gosset_entropy::EntropyError>(())
//! ```

use gosset_entropy::ans::{EncodeTable, StreamDecoder, StreamEncoder};
use gosset_lattice::LatticeKind;

use crate::scheme::lattice::ans::coding::{context, coordinate, known_bits, residue, wide_context};
use crate::scheme::lattice::ans::decode::decode_blocks;
use crate::scheme::lattice::ans::encode::encode_blocks;
use crate::scheme::lattice::ans::family::{self, DecodeTables};
use crate::scheme::lattice::ans::raw_bits;

/// Tables for the points of a lattice at one spread of the values that were rounded.
#[derive(Debug, Clone, Copy)]
pub struct PointCode {
    lattice: LatticeKind,
    raw_bits: u32,
    member: usize,
    encode: &'static [EncodeTable],
    decode: &'static DecodeTables,
}

impl PointCode {
    /// Tables per doubling of the spread, for [`PointCode::shifted`].
    pub const PER_OCTAVE: usize = 16;

    /// The code made for values of standard deviation `alpha`, in units of the lattice's embedding, or the nearest there is.
    ///
    /// State tables are made when they are first asked for and kept.
    pub fn for_alpha(lattice: LatticeKind, alpha: f32) -> Self {
        let raw_bits = raw_bits(lattice.dim(), alpha);
        let member = family::nearest_member(raw_bits, alpha).min(family::n_members(raw_bits) - 1);
        Self::member(lattice, raw_bits, member)
    }

    fn member(lattice: LatticeKind, raw_bits: u32, member: usize) -> Self {
        let known = "the member is one of the family";
        let encode = family::encode_tables(lattice, raw_bits, member).expect(known);
        let decode = family::decode_tables(lattice, raw_bits, member).expect(known);
        Self { lattice, raw_bits, member, encode, decode }
    }

    /// The code for a spread 2^(steps/16) times as wide, or the last one in that direction with as many raw bits.
    pub fn shifted(self, steps: i32) -> Self {
        let last = family::n_members(self.raw_bits) - 1;
        let member = (self.member as i64 + i64::from(steps)).clamp(0, last as i64) as usize;
        Self::member(self.lattice, self.raw_bits, member)
    }

    /// The lattice.
    pub fn lattice(&self) -> LatticeKind {
        self.lattice
    }

    /// Index of the member among those with as many raw bits.
    pub fn index(&self) -> usize {
        self.member
    }

    /// The tables that [`PointCode::encode`] names, of which there are at most [`PointCode::MAX_TABLES`].
    pub fn encode_tables(&self) -> &'static [EncodeTable] {
        self.encode
    }

    /// Tables of a code at most.
    pub const MAX_TABLES: usize = crate::scheme::lattice::ans::coding::MAX_CONTEXTS;

    /// Hands points to the encoder, point i to lane i mod 4, under tables numbered from `first_table` on.
    ///
    /// # Panics
    /// If `N` is not the dimension of the lattice. Values that are no points of the lattice make the end of the stream panic.
    pub fn encode<const N: usize>(&self, encoder: &mut StreamEncoder, first_table: u16, points: &[[i32; N]]) {
        self.check::<N>();
        encode_blocks(encoder, first_table.into(), self.raw_bits, points);
    }

    /// Takes points from the decoder; with damaged words they are no points of the lattice.
    ///
    /// # Panics
    /// If `N` is not the dimension of the lattice.
    pub fn decode<const N: usize>(&self, decoder: &mut StreamDecoder<'_>, points: &mut [[i32; N]]) {
        self.check::<N>();
        decode_blocks(self.decode, self.raw_bits, decoder, points);
    }

    /// Bits that the points take on average, in units of 2^-16 bit.
    ///
    /// # Panics
    /// If `N` is not the dimension of the lattice, or for values that are no points of it.
    pub fn cost<const N: usize>(&self, points: &[[i32; N]]) -> u64 {
        self.check::<N>();
        let mut cost = 0;
        for y in points {
            for i in 0..N {
                let value = y[coordinate::<N>(i)];
                cost += if self.raw_bits == 0 {
                    self.encode[context::<N>(i, residue::<N>(i, y))].freqs().cost(value)
                } else {
                    let raw = u64::from(self.raw_bits - known_bits::<N>(i)) << gosset_entropy::ans::COST_BITS;
                    self.encode[wide_context::<N>(i)].freqs().cost(value >> self.raw_bits) + raw
                };
            }
        }
        cost
    }

    fn check<const N: usize>(&self) {
        assert_eq!(N, self.lattice.dim(), "dimension of points and of {}", self.lattice);
    }
}
