//! Stored bytes to f32, row by row.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::quantized::{QStorage, QTensor};
use candle_core::{CpuStorage, Device, Storage};
use half::{bf16, f16};

use super::block_type::BlockType;
use crate::RuntimeError;

/// Writes `rows` of a raw tensor to `out` as f32, row-major.
///
/// `dtype` is `F32`, `F16`, `BF16` or a GGUF block type (`Q8_0`, `Q4_1`, `Q6_K`, …); `bytes` is the whole tensor, little-endian,
/// with `cols` weights per row; `out` has `rows.len() * cols` elements. Only the bytes of the asked rows are touched, so a
/// memory-mapped table costs what is read of it. The result does not depend on threads or machine.
///
/// # Errors
/// [`RuntimeError::UnsupportedDtype`] for other types, [`RuntimeError::Raw`] if `cols` does not fill whole blocks, if the rows
/// lie outside `bytes` or if `out` has the wrong length.
///
/// ```
/// let bytes: Vec<u8> = [1.0f32, -2.0, 0.5, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
/// let mut out = [0.0; 2];
/// gosset_runtime::source::dequantize_rows("F32", &bytes, 2, 1..2, &mut out)?;
/// assert_eq!(out, [0.5, 4.0]);
/// # Ok::<(), gosset_runtime::RuntimeError>(())
/// ```
pub fn dequantize_rows(
    dtype: &str,
    bytes: &[u8],
    cols: usize,
    rows: Range<usize>,
    out: &mut [f32],
) -> Result<(), RuntimeError> {
    let ty = BlockType::from_name(dtype).ok_or_else(|| RuntimeError::UnsupportedDtype {
        name: "(raw)".into(),
        dtype: dtype.into(),
        supported: BlockType::supported(),
    })?;
    let row_bytes = ty.row_bytes(cols).ok_or_else(|| {
        RuntimeError::raw(dtype, format!("expected rows of whole blocks of {} weights, found {cols}", ty.block_len()))
    })?;
    let count = rows.end.saturating_sub(rows.start);
    let range = rows.start.checked_mul(row_bytes).zip(rows.end.max(rows.start).checked_mul(row_bytes));
    let stored = range.and_then(|(from, to)| bytes.get(from..to)).ok_or_else(|| {
        RuntimeError::raw(
            dtype,
            format!(
                "expected rows up to {} of {row_bytes} bytes each, found {} bytes in all",
                rows.end.max(rows.start),
                bytes.len()
            ),
        )
    })?;
    if count.checked_mul(cols) != Some(out.len()) {
        return Err(RuntimeError::raw(
            dtype,
            format!("expected room for {count} rows of {cols} weights, found {}", out.len()),
        ));
    }
    dequantize(ty, stored, out)
}

/// Writes the weights of `stored`, which holds exactly `out.len()` of them in whole blocks.
pub(crate) fn dequantize(ty: BlockType, stored: &[u8], out: &mut [f32]) -> Result<(), RuntimeError> {
    debug_assert_eq!(stored.len() / ty.block_bytes() * ty.block_len(), out.len());
    match ty {
        BlockType::F32 => each::<4, 1>(stored, out, |b, o| o[0] = f32::from_le_bytes(*b)),
        BlockType::F16 => each::<2, 1>(stored, out, |b, o| o[0] = f16::from_le_bytes(*b).to_f32()),
        BlockType::Bf16 => each::<2, 1>(stored, out, |b, o| o[0] = bf16::from_le_bytes(*b).to_f32()),
        BlockType::Q8_0 => each::<34, 32>(stored, out, |b, o| {
            let scale = half_at(b, 0);
            for (o, &code) in o.iter_mut().zip(&b[2..]) {
                *o = f32::from(code.cast_signed()) * scale;
            }
        }),
        BlockType::Q4_0 => each::<18, 32>(stored, out, |b, o| {
            let scale = half_at(b, 0);
            nibbles(&b[2..], o, |code| (f32::from(code) - 8.0) * scale);
        }),
        BlockType::Q4_1 => each::<20, 32>(stored, out, |b, o| {
            let (scale, min) = (half_at(b, 0), half_at(b, 2));
            nibbles(&b[4..], o, |code| f32::from(code) * scale + min);
        }),
        BlockType::Q5_0 => each::<22, 32>(stored, out, |b, o| {
            let scale = half_at(b, 0);
            five_bits(&b[2..], o, |code| (f32::from(code) - 16.0) * scale);
        }),
        BlockType::Q5_1 => each::<24, 32>(stored, out, |b, o| {
            let (scale, min) = (half_at(b, 0), half_at(b, 2));
            five_bits(&b[4..], o, |code| f32::from(code) * scale + min);
        }),
        BlockType::Q2K | BlockType::Q3K | BlockType::Q4K | BlockType::Q5K | BlockType::Q6K => {
            return through_candle(ty, stored, out);
        }
    }
    Ok(())
}

/// Calls `block` on every block of `B` bytes with its `W` weights.
fn each<const B: usize, const W: usize>(stored: &[u8], out: &mut [f32], block: impl Fn(&[u8; B], &mut [f32; W])) {
    let (blocks, _) = stored.as_chunks::<B>();
    let (weights, _) = out.as_chunks_mut::<W>();
    for (b, o) in blocks.iter().zip(weights) {
        block(b, o);
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 16 bytes hold 32 codes: the low halves are weights 0 to 15, the high halves 16 to 31.
fn nibbles(codes: &[u8], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((&byte, low), high) in codes.iter().zip(low).zip(high) {
        *low = value(byte & 15);
        *high = value(byte >> 4);
    }
}

/// As [`nibbles`], with the fifth bits of all 32 codes in the 4 bytes before, weight 0 lowest.
fn five_bits(codes: &[u8], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let fifth = u32::from_le_bytes([codes[0], codes[1], codes[2], codes[3]]);
    let bit = |i: usize| (((fifth >> i) & 1) as u8) << 4;
    let (low, high) = out.split_at_mut(16);
    for (i, ((&byte, low), high)) in codes[4..].iter().zip(low).zip(high).enumerate() {
        *low = value(byte & 15 | bit(i));
        *high = value(byte >> 4 | bit(i + 16));
    }
}

/// Blocks of 256 weights, through candle's reader.
///
/// Candle asserts that blocks are aligned; they are copied in pieces into a buffer of f32, whose alignment (4) is at least that
/// of every block type. Pieces keep the scratch small for any tensor.
fn through_candle(ty: BlockType, stored: &[u8], out: &mut [f32]) -> Result<(), RuntimeError> {
    const PIECE_BLOCKS: usize = 128;
    let mut aligned: Vec<f32> = Vec::new();
    let pieces = stored.chunks(PIECE_BLOCKS * ty.block_bytes()).zip(out.chunks_mut(PIECE_BLOCKS * ty.block_len()));
    for (piece, out) in pieces {
        aligned.resize(piece.len().div_ceil(4), 0.0);
        let view = &mut bytemuck::cast_slice_mut::<f32, u8>(&mut aligned)[..piece.len()];
        view.copy_from_slice(piece);
        let storage = QStorage::from_data(Cow::Borrowed(&*view), &Device::Cpu, ty.candle())?;
        let tensor = QTensor::new(storage, out.len())?.dequantize(&Device::Cpu)?;
        let (storage, layout) = tensor.storage_and_layout();
        match (&*storage, layout.contiguous_offsets()) {
            (Storage::Cpu(CpuStorage::F32(values)), Some((from, to))) if to - from == out.len() => {
                out.copy_from_slice(&values[from..to]);
            }
            _ => return Err(RuntimeError::raw(ty.name(), "expected contiguous f32 values on the CPU".into())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::Tensor;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
        (0..n).map(|_| rng.random_range(-1.0f32..1.0)).collect()
    }

    /// Every block type: our rows equal candle's dequantization of the whole tensor, bit for bit, from any byte alignment.
    #[test]
    fn rows_equal_candle_on_the_whole_tensor() {
        let (rows, cols) = (9, 512);
        let x = Tensor::from_vec(noise(rows * cols, 7), (rows, cols), &Device::Cpu).unwrap();
        for name in ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"] {
            let ty = BlockType::from_name(name).unwrap();
            let q = QTensor::quantize(&x, ty.candle()).unwrap();
            let whole: Vec<f32> = q.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            let data = q.data().unwrap();
            for shift in 0..4 {
                let mut moved = vec![0u8; shift];
                moved.extend_from_slice(&data);
                for range in [0..rows, 2..3, 4..9, 5..5] {
                    let mut out = vec![0.0; range.len() * cols];
                    dequantize_rows(name, &moved[shift..], cols, range.clone(), &mut out).unwrap();
                    let expected = &whole[range.start * cols..range.end * cols];
                    assert!(out.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{name} {range:?}");
                }
            }
        }
    }

    #[test]
    fn pieces_join_without_a_seam() {
        let (rows, cols) = (41, 256 * 13);
        let x = Tensor::from_vec(noise(rows * cols, 8), (rows, cols), &Device::Cpu).unwrap();
        let q = QTensor::quantize(&x, BlockType::Q6K.candle()).unwrap();
        let whole: Vec<f32> = q.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let mut out = vec![0.0; rows * cols];
        dequantize_rows("Q6_K", &q.data().unwrap(), cols, 0..rows, &mut out).unwrap();
        assert_eq!(out, whole);
    }

    #[test]
    fn bad_requests_are_errors() {
        let bytes = [0u8; 34 * 4];
        let mut out = [0.0; 64];
        assert!(dequantize_rows("Q8_0", &bytes, 64, 0..1, &mut out).is_ok());
        for (dtype, cols, rows) in [
            ("Q8_0", 64, 1..3),
            ("Q8_0", 63, 0..1),
            ("I8", 64, 0..1),
            ("Q8_0", 32, 0..1),
            ("Q8_0", usize::MAX & !31, 1..2),
        ] {
            assert!(dequantize_rows(dtype, &bytes, cols, rows, &mut out).is_err(), "{dtype} {cols}");
        }
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 3..1;
        assert!(dequantize_rows("Q8_0", &bytes, 64, reversed, &mut out).is_err());
    }
}
