//! Where affine-grid codes lie on the device: tiles of 16 rows, units of 256 columns, in the order of the operands of
//! mma.m16n8k32 (`kernels/include/unisvq.cuh`).

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 16;
/// Columns of a unit.
pub(super) const UNIT_COLS: usize = 256;
/// Codes at one place of a word.
const QUAD: usize = 4;
/// Quads of a lane and half of a unit.
const QUADS: usize = 8;

/// Vector, lowest bit of a byte, and how far the quad is shifted down before, of the parts of quad `i`.
fn parts(bits: usize, i: usize) -> [(usize, u32, u32, u32); 2] {
    let mask = ((1u32 << bits) - 1) * 0x0101_0101;
    match (bits, i) {
        // The upper two bits, then the lowest.
        (3, 6..) => [(i - 6, 6, 1, 0x0303_0303), (2, 13 - i as u32, 0, 0x0101_0101)],
        (3, _) => [(i % 3, 3 * (i / 3) as u32, 0, mask), (0, 0, 0, 0)],
        _ => {
            let each = 8 / bits;
            [(i / each, (bits * (i % each)) as u32, 0, mask), (0, 0, 0, 0)]
        }
    }
}

/// Words of one tile: `[units][bits][32 lanes][4]`.
pub(super) fn tile_words(bits: usize, units: usize) -> usize {
    units * bits * 128
}

/// Writes the words of a tile from the codes of its rows, `[16, units * 256]`.
pub(super) fn pack_tile(bits: usize, codes: &[u8], words: &mut [u32]) {
    let width = codes.len() / TILE_ROWS;
    words.fill(0);
    for (unit, words) in words.chunks_exact_mut(bits * 128).enumerate() {
        for lane in 0..32 {
            for k in 0..4 {
                let row = lane / 4 + 8 * (k % 2);
                let first = row * width + unit * UNIT_COLS + k / 2 * 128 + lane % 4 * 32;
                let run = &codes[first..first + 32];
                for (i, quad) in run.chunks_exact(QUAD).enumerate() {
                    let quad = u32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]]);
                    for (vector, bit, down, mask) in parts(bits, i) {
                        words[(vector * 32 + lane) * 4 + k] |= (quad >> down & mask) << bit;
                    }
                }
            }
        }
    }
}

/// The inverse of [`pack_tile`].
pub(super) fn unpack_tile(bits: usize, words: &[u32], codes: &mut [u8]) {
    let width = codes.len() / TILE_ROWS;
    for (unit, words) in words.chunks_exact(bits * 128).enumerate() {
        for (lane, k, i) in (0..32).flat_map(|lane| (0..4).flat_map(move |k| (0..QUADS).map(move |i| (lane, k, i)))) {
            let row = lane / 4 + 8 * (k % 2);
            let first = row * width + unit * UNIT_COLS + k / 2 * 128 + lane % 4 * 32 + i * QUAD;
            let quad = parts(bits, i).into_iter().fold(0, |quad, (vector, bit, down, mask)| {
                quad | (words[(vector * 32 + lane) * 4 + k] >> bit & mask) << down
            });
            codes[first..first + QUAD].copy_from_slice(&quad.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back_and_every_bit_is_used_once() {
        for bits in 2..=4 {
            let units = 3;
            let n = TILE_ROWS * units * UNIT_COLS;
            let codes: Vec<u8> = (0..n).map(|i| ((i * 2_654_435_761) >> 7) as u8 & ((1 << bits) - 1)).collect();
            let mut words = vec![0; tile_words(bits, units)];
            pack_tile(bits, &codes, &mut words);
            let mut back = vec![0xff; n];
            unpack_tile(bits, &words, &mut back);
            assert_eq!(codes, back, "{bits} bits");
            // No bit is spare: all codes at their largest fill all words.
            pack_tile(bits, &vec![(1 << bits) - 1; n], &mut words);
            assert!(words.iter().all(|&word| word == u32::MAX), "{bits} bits");
            assert_eq!(32 * words.len(), bits * n);
        }
    }
}
