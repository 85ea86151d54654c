//! Decoding and encoding where there is no standard library.
#![no_std]

extern crate alloc;

use alloc::{vec, vec::Vec};

use gosset_entropy::{BitWriter, EntropyError, rice};
use gosset_lattice::{BitStrip, E8, Lattice};
use gosset_transform::{Rht, TilePlan, TransformError};
use gosset_trellis::{
    TrellisError,
    shift::{ShiftCode, ShiftDecoder, ShiftEncoder, ShiftOrder, ShiftScratch, ShiftSpec},
};

/// A row in the rotated frame.
pub fn rotated(row: &[f32], seed: u64) -> Result<Vec<f32>, TransformError> {
    let mut row = row.to_vec();
    Rht::new(TilePlan::new(row.len(), gosset_transform::DEFAULT_TILE)?, seed).forward(&mut row);
    Ok(row)
}

/// Words of the nearest E8 points of whole blocks, and the number of their bits.
pub fn encode(row: &[f32], k: u32) -> (Vec<u32>, u64) {
    let mut writer = BitWriter::new();
    for block in row.as_chunks::<8>().0 {
        rice::encode(&mut writer, &E8::strip(E8::nearest_point(block)), &[k]);
    }
    let n_bits = writer.len_bits();
    (writer.into_words(), n_bits)
}

/// The points behind the words.
pub fn decode(words: &[u32], n_bits: u64, k: u32, n_blocks: usize) -> Result<Vec<[i32; 8]>, EntropyError> {
    let mut symbols = vec![0; 8 * n_blocks];
    rice::decode(words, 0, n_bits, &[k], &mut symbols)?;
    Ok(symbols.as_chunks().0.iter().map(|&symbols| E8::unstrip(symbols)).collect())
}

/// A row through the bit-shift trellis and back.
pub fn through_the_trellis(row: &[f32]) -> Result<Vec<f32>, TrellisError> {
    let spec = ShiftSpec { bits: 2, state_bits: 12, code: ShiftCode::Quantiles, order: ShiftOrder::Rows };
    let trellis = spec.check()?;
    let layout = trellis.layout(1, row.len())?;
    let mut words = vec![0; layout.n_words()];
    ShiftEncoder::new(&trellis).encode(&layout, row, 0..1, &mut words, &mut ShiftScratch::new())?;
    let mut decoded = vec![0.0; row.len()];
    ShiftDecoder::new(&trellis).decode(&layout, &words, 0..1, &mut decoded)?;
    Ok(decoded)
}
