//! Codes of 2, 3 and 4 bits in bytes.

use crate::UniSvqError;

/// Bytes of a row of `cols` codes of `bits` bits: ceil(cols/4) for 2, 3 ceil(cols/8) for 3, ceil(cols/2) for 4.
///
/// # Panics
/// If `bits` is none of these.
///
/// ```
/// use gosset_unisvq::row_bytes;
/// assert_eq!((row_bytes(576, 2), row_bytes(576, 3), row_bytes(173, 2)), (144, 216, 44));
/// ```
#[must_use]
pub fn row_bytes(cols: usize, bits: u8) -> usize {
    match bits {
        2 => cols.div_ceil(4),
        3 => cols.div_ceil(8) * 3,
        4 => cols.div_ceil(2),
        _ => panic!("codes of {bits} bits, expected 2, 3 or 4"),
    }
}

/// Packs one row of codes, each below 2^`bits`; places beyond the row are zero bits.
///
/// 2 bits: `q0 << 6 | q1 << 4 | q2 << 2 | q3`; 3 bits: eight codes in three bytes, most significant first; 4 bits: the first code in
/// the upper half.
///
/// # Panics
/// If `out` is not [`row_bytes`] long.
///
/// ```
/// let mut out = [0; 3];
/// gosset_unisvq::pack_row(&[1, 2, 3, 4, 5, 6, 7, 0], 3, &mut out);
/// assert_eq!(out, [0b00101001, 0b11001011, 0b10111000]);
/// ```
pub fn pack_row(codes: &[u8], bits: u8, out: &mut [u8]) {
    assert_eq!(out.len(), row_bytes(codes.len(), bits), "bytes of a packed row");
    match bits {
        2 => {
            for (byte, q) in out.iter_mut().zip(codes.chunks(4)) {
                *byte = q.iter().enumerate().fold(0, |b, (i, &q)| b | (q & 3) << (6 - 2 * i));
            }
        }
        3 => {
            for (bytes, q) in out.chunks_exact_mut(3).zip(codes.chunks(8)) {
                let word = q.iter().enumerate().fold(0u32, |w, (i, &q)| w | u32::from(q & 7) << (21 - 3 * i));
                bytes.copy_from_slice(&word.to_be_bytes()[1..]);
            }
        }
        _ => {
            for (byte, q) in out.iter_mut().zip(codes.chunks(2)) {
                *byte = q.iter().enumerate().fold(0, |b, (i, &q)| b | (q & 15) << (4 - 4 * i));
            }
        }
    }
}

/// Codes `from ..` of a packed row, as many as `out` holds. `from` is a multiple of 8.
///
/// # Panics
/// If the row is too short.
pub fn unpack_row(row: &[u8], bits: u8, from: usize, out: &mut [u8]) {
    unpack_with(row, bits, from, out, |q| q);
}

/// [`unpack_row`] as floating-point numbers.
///
/// # Panics
/// If the row is too short.
pub fn unpack_row_f32(row: &[u8], bits: u8, from: usize, out: &mut [f32]) {
    let (whole, start) = (out.len() / 8 * 8, from / 8 * usize::from(bits));
    let (body, tail) = out.split_at_mut(whole);
    unpack_with(row, bits, from + whole, tail, f32::from);
    // Whole groups of eight codes, in one to four table entries each.
    let row = &row[start..][..whole / 8 * usize::from(bits)];
    match bits {
        2 => {
            for (q, &byte) in body.as_chunks_mut::<4>().0.iter_mut().zip(row) {
                *q = QUADS[usize::from(byte)];
            }
        }
        3 => {
            for (q, bytes) in body.as_chunks_mut::<8>().0.iter_mut().zip(row.as_chunks::<3>().0) {
                let word = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
                for (i, pair) in q.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    *pair = OCTAL_PAIRS[(word >> (18 - 6 * i) & 63) as usize];
                }
            }
        }
        _ => {
            for (q, &byte) in body.as_chunks_mut::<2>().0.iter_mut().zip(row) {
                *q = [f32::from(byte >> 4), f32::from(byte & 15)];
            }
        }
    }
}

/// The four codes of 2 bits in each byte.
static QUADS: [[f32; 4]; 256] = {
    let mut table = [[0.0; 4]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut i = 0;
        while i < 4 {
            table[byte][i] = (byte >> (6 - 2 * i) & 3) as f32;
            i += 1;
        }
        byte += 1;
    }
    table
};

/// The two codes of 3 bits in each six bits.
static OCTAL_PAIRS: [[f32; 2]; 64] = {
    let mut table = [[0.0; 2]; 64];
    let mut bits = 0;
    while bits < 64 {
        table[bits] = [(bits >> 3) as f32, (bits & 7) as f32];
        bits += 1;
    }
    table
};

fn unpack_with<T>(row: &[u8], bits: u8, from: usize, out: &mut [T], value: impl Fn(u8) -> T) {
    assert!(from.is_multiple_of(8), "codes from {from}, expected a multiple of 8");
    let row = &row[from / 8 * usize::from(bits)..];
    assert!(row.len() >= row_bytes(out.len(), bits), "{} codes of {bits} bits in {} bytes", out.len(), row.len());
    match bits {
        2 => {
            for (q, &byte) in out.chunks_mut(4).zip(row) {
                q.iter_mut().enumerate().for_each(|(i, q)| *q = value(byte >> (6 - 2 * i) & 3));
            }
        }
        3 => {
            for (q, bytes) in out.chunks_mut(8).zip(row.chunks_exact(3)) {
                let word = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
                q.iter_mut().enumerate().for_each(|(i, q)| *q = value((word >> (21 - 3 * i) & 7) as u8));
            }
        }
        _ => {
            for (q, &byte) in out.chunks_mut(2).zip(row) {
                q.iter_mut().enumerate().for_each(|(i, q)| *q = value(byte >> (4 - 4 * i) & 15));
            }
        }
    }
}

/// Bytes of `rows` packed rows, `None` if that is no number of this machine.
pub(crate) fn packed_len(rows: u64, cols: u64, bits: u8) -> Option<usize> {
    let cols = usize::try_from(cols).ok().filter(|&cols| cols <= gosset_transform::MAX_WIDTH)?;
    row_bytes(cols, bits).checked_mul(usize::try_from(rows).ok()?)
}

/// Fails unless `bits` is 2, 3 or 4.
pub(crate) fn check_bits(bits: u8) -> Result<(), UniSvqError> {
    match bits {
        2..=4 => Ok(()),
        _ => Err(UniSvqError::Parameter { name: "bits", expected: "2, 3 or 4".into(), found: bits.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_come_back(bits in 2u8..=4, codes in proptest::collection::vec(any::<u8>(), 0..70)) {
            let codes: Vec<u8> = codes.into_iter().map(|q| q & ((1 << bits) - 1)).collect();
            let mut packed = vec![0xff; row_bytes(codes.len(), bits)];
            pack_row(&codes, bits, &mut packed);
            let mut back = vec![0; codes.len()];
            unpack_row(&packed, bits, 0, &mut back);
            prop_assert_eq!(&back, &codes);
            for from in (0..codes.len()).step_by(8) {
                let mut tail = vec![0.0; (codes.len() - from).min(11)];
                unpack_row_f32(&packed, bits, from, &mut tail);
                prop_assert!(tail.iter().zip(&codes[from..]).all(|(&a, &b)| a == f32::from(b)));
            }
        }
    }

    #[test]
    fn a_byte_is_the_index_of_its_four_codes() {
        for index in 0..=255u8 {
            let q = [index >> 6, index >> 4 & 3, index >> 2 & 3, index & 3];
            let mut byte = [0];
            pack_row(&q, 2, &mut byte);
            assert_eq!(byte[0], ((q[0] * 4 + q[1]) * 4 + q[2]) * 4 + q[3]);
            assert_eq!(byte[0], index);
        }
    }
}
