//! From values to words and gains.

use std::borrow::Cow;

use gosset_trellis::shift::{STRINGS_AT_ONCE, ShiftDecoder, ShiftEncoder, ShiftScratch};

use super::{WORDS, bits_of, refused, trellis};
use crate::plane::{Plane, PlaneData};
use crate::scheme::{EncodedUnits, Units};
use crate::{CodecError, RateTarget, SchemeHeader, ShiftCodeKind, ShiftHeader, ShiftOrderKind, parallel};

/// Header, planes and gains of `units` under a trellis.
pub(crate) fn encode(
    state_bits: u8,
    code: ShiftCodeKind,
    order: ShiftOrderKind,
    target: RateTarget,
    units: &Units<'_>,
) -> Result<EncodedUnits, CodecError> {
    let bits = bits_of(target);
    let trellis = trellis(bits, state_bits, code, order).map_err(refused)?;
    let layout = trellis.layout(units.rows, units.cols).map_err(refused)?;

    let encoder = ShiftEncoder::new(&trellis);
    let mut words = vec![0; layout.n_words()];
    let chunk_len = STRINGS_AT_ONCE * layout.words_per_string();
    let results = parallel::map_chunks_mut_with(&mut words, chunk_len, ShiftScratch::new, |scratch, i, words| {
        let first = i * STRINGS_AT_ONCE;
        let strings = first..first + words.len() / layout.words_per_string();
        encoder.encode(&layout, units.values, strings, words, scratch)
    });
    results.into_iter().collect::<Result<(), _>>().map_err(refused)?;

    let decoder = ShiftDecoder::new(&trellis);
    let block_words = layout.words_per_string() * layout.strings_per_block();
    let gains = parallel::map_indexed(layout.n_blocks(), |block| {
        let first = block * layout.rows_per_block();
        let rows = first..units.rows.min(first + layout.rows_per_block());
        let mut decoded = vec![0.0; rows.len() * units.cols];
        let words = &words[block * block_words..][..block_words];
        decoder.decode(&layout, words, block..block + 1, &mut decoded).map_err(refused)?;
        let values = units.values[rows.start * units.cols..rows.end * units.cols].chunks_exact(units.cols);
        Ok(values.zip(decoded.chunks_exact(units.cols)).map(|(x, y)| gain(x, y, trellis.step())).collect::<Vec<_>>())
    });
    let gains = gains.into_iter().collect::<Result<Vec<_>, CodecError>>()?.concat();

    let header = ShiftHeader { bits, state_bits, code, order, step: trellis.step() };
    Ok(EncodedUnits {
        header: SchemeHeader::Shift(header),
        planes: vec![Plane::owned(WORDS, PlaneData::U32(Cow::Owned(words)))],
        gains: Some(gains),
    })
}

/// The factor g that makes `x - g step y` shortest.
fn gain(x: &[f32], y: &[f32], step: f32) -> f32 {
    let (mut xy, mut yy) = (0.0f64, 0.0f64);
    for (&x, &y) in x.iter().zip(y) {
        xy += f64::from(x) * f64::from(y);
        yy += f64::from(y) * f64::from(y);
    }
    (xy / (yy * f64::from(step))) as f32
}
