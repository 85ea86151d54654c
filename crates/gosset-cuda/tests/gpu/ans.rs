//! ANS codes on a device: points equal those of the CPU, values to the bit.

use gosset_codec::{DecodeScratch, PlaneData};
use gosset_cuda::launch::ans::AnsMatrix;

use crate::gpu;
use crate::rice::{check_decoding, encoded, shapes};

/// Rows and columns: below, at and beyond the ends of blocks, groups of lanes and streams.
const SHAPES: &[(usize, usize)] =
    &[(1, 1), (7, 65), (33, 300), (150, 210), (1, 8), (70, 576), (65, 896), (9, 4096), (3, 16_384)];

const CODECS: &[&str] = &["z", "a2", "d4", "e8", "trellis-8", "trellis-64", "trellis-256"];

#[test]
fn ans_streams_decode_to_the_points_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for codec in CODECS {
        for (rows, cols) in shapes(SHAPES) {
            for (rate, outliers) in [(2.0, true), (6.0, false)] {
                let what = format!("{codec}@{rate} {rows} x {cols} outliers {outliers}");
                let encoded = encoded(codec, rate, rows, cols, outliers);
                let matrix = AnsMatrix::upload(&gpu, &encoded.header, &encoded.planes).unwrap();
                check_decoding(&gpu, &matrix, &encoded, &what);
            }
        }
    }
}

#[test]
fn damaged_ans_streams_are_found_and_stay_within_bounds() {
    let Some(gpu) = gpu() else { return };
    for codec in CODECS {
        let whole = encoded(codec, 3.0, 40, 900, false);
        let n_words = match &whole.planes[0].data {
            PlaneData::U32(words) => words.len(),
            _ => panic!("words are u32"),
        };
        for at in [0, 1, n_words / 2, n_words - 1] {
            for mask in [u32::MAX, 1 << 7, 0xFFFF_0000] {
                let mut damaged = whole.clone();
                if let PlaneData::U32(words) = &mut damaged.planes[0].data {
                    words.to_mut()[at] ^= mask;
                }
                let matrix = AnsMatrix::upload(&gpu, &damaged.header, &damaged.planes).unwrap();
                let stream = gpu.stream().unwrap();
                let mut out = gpu.alloc::<i32>(40 * 900).unwrap();
                matrix.decode_points(&gpu, stream.as_ref(), out.as_mut()).unwrap();
                stream.synchronize().unwrap();
                let decoder = damaged.decoder().unwrap();
                let mut points = vec![0; 40 * 900];
                let on_cpu = decoder.decode_points(0..40, &mut points, &mut DecodeScratch::new());
                assert_eq!(
                    matrix.damaged_stream(&gpu).unwrap().is_some(),
                    on_cpu.is_err(),
                    "{codec} word {at} {mask:x}"
                );
            }
        }
    }
}
