//! Codes of a fixed number of bits, packed into bytes, lowest bits first.

/// Bytes that `n` codes of `bits` bits take.
pub(crate) fn packed_len(n: usize, bits: u32) -> usize {
    (n * bits as usize).div_ceil(8)
}

/// Packs codes of `bits` bits (1 to 16), each below `2^bits`; the last byte is filled with zeros.
pub(crate) fn pack(codes: &[u16], bits: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(packed_len(codes.len(), bits));
    let (mut held, mut n_held) = (0u32, 0);
    for &code in codes {
        debug_assert!(u32::from(code) >> bits == 0);
        held |= u32::from(code) << n_held;
        n_held += bits;
        while n_held >= 8 {
            out.push(held as u8);
            held >>= 8;
            n_held -= 8;
        }
    }
    if n_held > 0 {
        out.push(held as u8);
    }
    out
}

/// The codes of `bits` bits in `bytes`, in order, as many as are whole; at most 7 bits of padding are no code for `bits >= 8`, and
/// for fewer bits the caller takes as many as it packed.
pub(crate) fn unpack(bytes: &[u8], bits: u32) -> impl Iterator<Item = u16> + '_ {
    let (mut held, mut n_held) = (0u32, 0);
    let mut bytes = bytes.iter();
    let mask = (1u32 << bits) - 1;
    std::iter::from_fn(move || {
        while n_held < bits {
            held |= u32::from(*bytes.next()?) << n_held;
            n_held += 8;
        }
        let code = held & mask;
        held >>= bits;
        n_held -= bits;
        Some(code as u16)
    })
}

/// Bits of padding after `n` codes of `bits` bits.
pub(crate) fn padding_bits(n: usize, bits: u32) -> u64 {
    packed_len(n, bits) as u64 * 8 - n as u64 * u64::from(bits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn unpacking_undoes_packing(bits in 1u32..=16, codes in prop::collection::vec(any::<u16>(), 0..60)) {
            let codes: Vec<u16> = codes.iter().map(|c| (u32::from(*c) & ((1 << bits) - 1)) as u16).collect();
            let bytes = pack(&codes, bits);
            prop_assert_eq!(bytes.len(), packed_len(codes.len(), bits));
            prop_assert!(padding_bits(codes.len(), bits) < 8);
            let back: Vec<u16> = unpack(&bytes, bits).take(codes.len()).collect();
            prop_assert_eq!(back, codes);
        }
    }

    #[test]
    fn the_first_code_is_in_the_lowest_bits() {
        assert_eq!(pack(&[1, 2, 3], 3), [0b1101_0001, 0b0000_0000]);
        assert_eq!(pack(&[0x1234], 16), [0x34, 0x12]);
    }
}
