//! The bytes depend on the values and the specification only.

use gosset_codec::DecodeScratch;

use crate::{decode, encode, gaussian, spec};

/// FNV-1a of the planes, in order: a change of any byte shows.
pub(crate) fn fingerprint(encoded: &gosset_codec::EncodedMatrix) -> u64 {
    use gosset_codec::PlaneData;
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut feed = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for plane in &encoded.planes {
        feed(plane.name.as_bytes());
        match &plane.data {
            PlaneData::U16(data) => data.iter().for_each(|v| feed(&v.to_le_bytes())),
            PlaneData::U32(data) => data.iter().for_each(|v| feed(&v.to_le_bytes())),
            PlaneData::U64(data) => data.iter().for_each(|v| feed(&v.to_le_bytes())),
            PlaneData::Bf16(data) => data.iter().for_each(|v| feed(&v.to_le_bytes())),
            PlaneData::F32(data) => data.iter().for_each(|v| feed(&v.to_le_bytes())),
            PlaneData::U8(data) => feed(data),
        }
    }
    hash
}

/// Values without any library function: sums of uniform integers, times a dyadic number.
pub(crate) fn exact_noise(n: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 48) as i32
    };
    (0..n).map(|_| (next() + next() + next() + next() - 131_072) as f32 / 65_536.0).collect()
}

#[cfg(feature = "rayon")]
#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let (rows, cols) = (600, 576);
    let mut x = gaussian(rows * cols, 41);
    x[100 * cols..101 * cols].fill(1e-43);
    let codec = spec("e8-rice", 2.75).check().unwrap();
    let results: Vec<_> = [1, 2, 7]
        .into_iter()
        .map(|n| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
            pool.install(|| [encode(&codec, &x, rows, cols), encode(&codec, &x, rows, cols)])
        })
        .collect();
    for encoded in results.iter().flatten() {
        assert_eq!(encoded, &results[0][0]);
    }
    // Decoding in row blocks by any threads gives what one thread gives.
    let decoder = results[0][0].decoder().unwrap();
    let whole = decode(&results[0][0]);
    for n in [1, 2, 7] {
        use rayon::prelude::*;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
        let block = decoder.row_block() * 3;
        let mut out = vec![f32::NAN; rows * cols];
        pool.install(|| {
            out.par_chunks_mut(block * cols).enumerate().for_each(|(i, out)| {
                let rows = i * block..i * block + out.len() / cols;
                decoder.decode_rows(rows, out, &mut DecodeScratch::new()).unwrap();
            });
        });
        assert_eq!(out, whole);
    }
}

/// Another machine, another build profile and any number of threads must give these bytes. Only a change of the encoder
/// itself (its search for alpha, the stored curves) may change them; decoders do not care.
#[test]
fn bytes_are_the_same_everywhere() {
    let (rows, cols) = (96, 172);
    let x = exact_noise(rows * cols);
    let mut found = Vec::new();
    for (name, bps) in [("e8-rice", 3.0), ("d4-rice", 2.0), ("a2-rice", 4.5), ("z-rice", 1.5)] {
        found.push(fingerprint(&encode(&spec(name, bps).check().unwrap(), &x, rows, cols)));
    }
    assert_eq!(
        found,
        [0x28e3_63b0_97ff_5d0b, 0x5473_98fe_9970_1140, 0x4207_baf8_8ebe_9b6d, 0xdd5d_816b_ecbc_d5f4],
        "{found:#x?}"
    );
}

/// The same for the ANS coder, whose tables, costs and gains are part of it.
#[test]
fn ans_bytes_are_the_same_everywhere() {
    let (rows, cols) = (96, 172);
    let x = exact_noise(rows * cols);
    let fingerprints = [("e8", 3.0), ("e8", 7.0), ("d4", 2.0), ("a2", 4.5), ("z", 1.0)]
        .map(|(name, bps)| fingerprint(&encode(&spec(name, bps).check().unwrap(), &x, rows, cols)));
    let expected = [
        0x01f6_eac2_fdda_362f,
        0x9b5c_2edd_4567_70cf,
        0x7245_bc10_6613_20de,
        0xae02_7148_a82e_7f6a,
        0xd385_eeb3_a4b2_06e1,
    ];
    assert_eq!(fingerprints, expected, "{fingerprints:#x?}");
}
