//! Float dtypes of safetensors as f32.

use half::{bf16, f16};

/// Bytes of one element of a float dtype; `None` for every other dtype.
pub(super) fn float_size(dtype: &str) -> Option<usize> {
    match dtype {
        "F16" | "BF16" => Some(2),
        "F32" => Some(4),
        "F64" => Some(8),
        _ => None,
    }
}

/// Converts little-endian elements of a float dtype; F64 is rounded to nearest. Other dtypes leave `out` as it is.
pub(super) fn to_f32(dtype: &str, bytes: &[u8], out: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], f: impl Fn([u8; N]) -> f32) {
        for (o, b) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
            *o = f(*b);
        }
    }
    match dtype {
        "F16" => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        "BF16" => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        "F32" => each(bytes, out, f32::from_le_bytes),
        "F64" => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_dtype_reads_one_and_a_half() {
        let cases: [(&str, &[u8]); 4] = [
            ("F16", &[0x00, 0x3e]),
            ("BF16", &[0xc0, 0x3f]),
            ("F32", &[0, 0, 0xc0, 0x3f]),
            ("F64", &[0, 0, 0, 0, 0, 0, 0xf8, 0x3f]),
        ];
        for (dtype, bytes) in cases {
            let mut out = [0.0];
            assert_eq!(float_size(dtype), Some(bytes.len()));
            to_f32(dtype, bytes, &mut out);
            assert_eq!(out, [1.5], "{dtype}");
        }
        assert_eq!(float_size("I32"), None);
    }
}
