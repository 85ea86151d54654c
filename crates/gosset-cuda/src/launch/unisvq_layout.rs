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

/// What the activations of quad `i` of eight are divided by where codes are halves: log2, in bits `4 i` and up. A code stands at that bit of its byte.
pub(super) fn half_shifts(bits: usize) -> u32 {
    (0..QUADS).fold(0, |shifts, i| {
        let (_, bit, down, _) = parts(bits, i)[0];
        shifts | (bit - down) << (4 * i)
    })
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

    /// The value of a half whose bits are `bits`, below the normal ones.
    fn subnormal(bits: u32) -> f64 {
        assert!(bits < 1 << 10, "{bits:#x} is a normal number");
        f64::from(bits) / f64::from(1 << 24)
    }

    /// What `unisvq.cuh` makes of quad `i` of a word, before it is cut into halves.
    fn masked(bits: usize, word: impl Fn(usize) -> u32, i: usize) -> u32 {
        let mask = ((1u32 << bits) - 1) * 0x0101_0101;
        match (bits, i) {
            (3, 6..) => word(i - 6) & 0xc0c0_c0c0 | word(2) >> (8 - i) & 0x2020_2020,
            (3, _) => word(i % 3) & mask << (3 * (i / 3)),
            _ => word(i / (8 / bits)) & mask << (bits * (i % (8 / bits))),
        }
    }

    #[test]
    fn halves_of_words_are_codes_over_what_activations_are_divided_by() {
        for bits in 2..=3 {
            let codes: Vec<u8> =
                (0..TILE_ROWS * UNIT_COLS).map(|i| ((i * 40_503) >> 5) as u8 & ((1 << bits) - 1)).collect();
            let mut words = vec![0; tile_words(bits, 1)];
            pack_tile(bits, &codes, &mut words);
            for (lane, k, i) in (0..32).flat_map(|lane| (0..4).flat_map(move |k| (0..QUADS).map(move |i| (lane, k, i))))
            {
                let quad = masked(bits, |vector| words[(vector * 32 + lane) * 4 + k], i);
                let scale = f64::from(1 << 24) / f64::from(1 << (half_shifts(bits) >> (4 * i) & 15));
                let found = [quad & 0x00ff_00ff, quad >> 8 & 0x00ff_00ff]
                    .map(|pair| [pair & 0xffff, pair >> 16].map(|half| subnormal(half) * scale));
                let first = (lane / 4 + 8 * (k % 2)) * UNIT_COLS + k / 2 * 128 + lane % 4 * 32 + i * QUAD;
                let code = |j: usize| f64::from(codes[first + j]);
                assert_eq!(
                    found,
                    [[code(0), code(2)], [code(1), code(3)]],
                    "{bits} bits, lane {lane}, word {k}, quad {i}"
                );
            }
        }
    }

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
