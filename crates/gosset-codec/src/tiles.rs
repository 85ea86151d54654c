//! Encoder of tiles, one block of columns at a time: what error feedback needs where 16 x 16 weights share a string.

use std::borrow::Cow;

use gosset_transform::{Rht, TilePlan};
use gosset_trellis::shift::{
    STRINGS_AT_ONCE, ShiftDecoder, ShiftEncoder, ShiftLayout, ShiftScratch, ShiftTrellis, TILE_SIDE,
};

use crate::codec::{EXACT_ROWS, EXACT_VALUES, SCALES};
use crate::parallel::map_chunks_mut_with;
use crate::plane::{Plane, PlaneData};
use crate::scale::{RowScales, fold_gains, normalize_rows};
use crate::scheme::lattice::WORDS;
use crate::scheme::shift::{refused, trellis};
use crate::{
    CodecError, CodecSpec, EncodedMatrix, MatrixHeader, RateTarget, RotationHeader, RotationSpec, SchemeHeader,
    SchemeSpec, ShiftHeader, ShiftOrderKind,
};

/// Encoder of a matrix in tiles of the bit-shift trellis, 16 columns at a time in any order.
///
/// Rows are rotated and brought to unit RMS at the start; what is rounded and reconstructed is in that frame.
#[derive(Debug)]
pub struct TileEncoder {
    rows: usize,
    cols: usize,
    header: ShiftHeader,
    rht: Option<Rht>,
    scales: RowScales,
    trellis: ShiftTrellis,
    encoder: ShiftEncoder,
    decoder: ShiftDecoder,
    layout: ShiftLayout,
    words: Vec<u32>,
}

impl TileEncoder {
    /// Columns of a block; the last one may have fewer.
    pub const BLOCK: usize = TILE_SIDE;

    /// An encoder of the row-major matrix in `data`, which it leaves rotated and with rows of unit RMS: the target of rounding.
    ///
    /// # Errors
    /// [`CodecError::Shape`], [`CodecError::NonFinite`], [`CodecError::Rotation`]; [`CodecError::NoColumns`] for codecs without tiles.
    pub fn new(spec: &CodecSpec, data: &mut [f32], rows: usize, cols: usize) -> Result<Self, CodecError> {
        spec.check()?;
        let (SchemeSpec::Shift { state_bits, code, order: ShiftOrderKind::Tiles }, RateTarget::PayloadBps(bits)) =
            (&spec.scheme, spec.target)
        else {
            return Err(CodecError::NoColumns { codec: spec.name() });
        };
        crate::matrix::check_shape(data.len(), rows, cols)?;
        crate::matrix::check_finite(data, cols)?;
        let rht = match spec.rotation {
            RotationSpec::None => None,
            RotationSpec::Rht { tile, seed } => Some(Rht::new(TilePlan::new(cols, tile)?, seed)),
        };
        let (bits, state_bits, code, order) = (bits as u8, *state_bits, *code, ShiftOrderKind::Tiles);
        let trellis = trellis(bits, state_bits, code, order).map_err(refused)?;
        let layout = trellis.layout(rows, cols).map_err(refused)?;
        let header = ShiftHeader { bits, state_bits, code, order, step: trellis.step() };
        let scales = normalize_rows(data, cols, rht.as_ref());
        Ok(Self {
            rows,
            cols,
            header,
            rht,
            scales,
            encoder: ShiftEncoder::new(&trellis),
            decoder: ShiftDecoder::new(&trellis),
            words: vec![0; layout.n_words()],
            trellis,
            layout,
        })
    }

    /// The rotation of the rows.
    pub fn rotation(&self) -> Option<&Rht> {
        self.rht.as_ref()
    }

    /// Rounds the block of columns `block`: `x` and `out` are `[rows, d]`, row-major, d being 16 or what is left of the columns. A
    /// block that was rounded before is replaced.
    ///
    /// # Errors
    /// [`CodecError::NonFinite`].
    ///
    /// # Panics
    /// If there is no such block, or `x` or `out` have other lengths.
    pub fn round_block(&mut self, block: usize, x: &[f32], out: &mut [f32]) -> Result<(), CodecError> {
        let d = TILE_SIDE.min(self.cols - block * TILE_SIDE);
        assert!(x.len() == self.rows * d && out.len() == x.len(), "block {block}: {} values", x.len());
        crate::matrix::check_finite(x, d)?;
        let layout = self.trellis.layout(self.rows, d).map_err(refused)?;
        let (encoder, per_string) = (&self.encoder, layout.words_per_string());
        let mut words = vec![0; layout.n_words()];
        map_chunks_mut_with(&mut words, STRINGS_AT_ONCE * per_string, ShiftScratch::new, |scratch, i, words| {
            let first = i * STRINGS_AT_ONCE;
            encoder.encode(&layout, x, first..first + words.len() / per_string, words, scratch)
        })
        .into_iter()
        .collect::<Result<(), _>>()
        .map_err(refused)?;
        self.decoder.decode(&layout, &words, 0..layout.n_blocks(), out).map_err(refused)?;
        out.iter_mut().for_each(|v| *v *= self.header.step);
        let across = self.layout.strings_per_block();
        for (row_of_tiles, string) in words.chunks_exact(per_string).enumerate() {
            let at = (row_of_tiles * across + block) * per_string;
            self.words[at..at + per_string].copy_from_slice(string);
        }
        Ok(())
    }

    /// The matrix, with a gain for each row that is made part of its scale.
    ///
    /// # Panics
    /// Unless there is a gain per row.
    #[must_use]
    pub fn finish(self, gains: &[f32]) -> EncodedMatrix {
        assert_eq!(gains.len(), self.rows, "one gain per row");
        let RowScales { scales, exact_rows, exact_values, .. } = self.scales;
        let mut planes = vec![
            Plane::owned(WORDS, PlaneData::U32(Cow::Owned(self.words))),
            Plane::owned(SCALES, PlaneData::Bf16(Cow::Owned(fold_gains(scales, gains)))),
        ];
        if !exact_rows.is_empty() {
            planes.push(Plane::owned(EXACT_ROWS, PlaneData::U32(Cow::Owned(exact_rows))));
            planes.push(Plane::owned(EXACT_VALUES, PlaneData::F32(Cow::Owned(exact_values))));
        }
        let header = MatrixHeader {
            rows: self.rows as u64,
            cols: self.cols as u64,
            rotation: RotationHeader::of(self.rht.as_ref()),
            columns: None,
            scheme: SchemeHeader::Shift(self.header),
        };
        EncodedMatrix { header, planes }
    }
}
