//! Keys as KIVI stores them: scales per channel over blocks of tokens.

use gosset_kv::{KvCodec, KvError, PageBits, Place};
use half::f16;

use super::bits::{BitSink, BitSource};
use super::fixed::{check, check_page, check_scales, whole};
use super::groups::{min_max, min_max_code, min_max_value};

/// Tokens that share the scales of their channels.
pub(crate) const TOKENS: usize = 32;

/// fp16 scale and least value per channel over 32 tokens, codes of 2 or 4 bits: [`block`](KvCodec::block) is 32.
///
/// The 32 rows of a block are, as one run of bytes: scale and least value of every channel, then the codes token by token, zeros to
/// the end. A page is the blocks without those zeros.
///
/// Source: Liu, Yuan, Jin, Zhong, Xu, Braverman, Chen, Hu, *KIVI: a tuning-free asymmetric 2bit quantization for KV cache*,
/// arXiv 2402.02750.
#[derive(Debug)]
pub(crate) struct KiviKeys {
    head_dim: usize,
    bits: u32,
}

impl KiviKeys {
    pub(crate) fn new(head_dim: usize, bits: u32) -> Self {
        Self { head_dim, bits }
    }

    fn scale_bytes(&self) -> usize {
        4 * self.head_dim
    }

    /// Bytes of a block in a page; 32 tokens make whole bytes of any codes.
    fn block_bytes(&self) -> usize {
        self.scale_bytes() + TOKENS / 8 * self.head_dim * self.bits as usize
    }

    fn rows_of_block(&self) -> usize {
        TOKENS * self.row_bytes()
    }
}

impl KvCodec for KiviKeys {
    fn name(&self) -> String {
        format!("kivi@{}", self.bits)
    }

    fn head_dim(&self) -> usize {
        self.head_dim
    }

    fn row_bytes(&self) -> usize {
        self.block_bytes().div_ceil(TOKENS)
    }

    fn block(&self) -> usize {
        TOKENS
    }

    fn quantize(&self, place: Place, first: u64, x: &[f32], rows: &mut [u8]) -> Result<(), KvError> {
        check(self, place, first, x, rows)?;
        rows.fill(0);
        let d = self.head_dim;
        for (x, block) in x.chunks_exact(TOKENS * d).zip(rows.chunks_exact_mut(self.rows_of_block())) {
            let channel = |c: usize| x[c..].iter().step_by(d).copied();
            let scales: Vec<[f16; 2]> = (0..d).map(|c| min_max(channel(c), self.bits)).collect();
            let (scale_bytes, code_bytes) = block.split_at_mut(self.scale_bytes());
            for (bytes, half) in scale_bytes.as_chunks_mut::<2>().0.iter_mut().zip(scales.as_flattened()) {
                *bytes = half.to_le_bytes();
            }
            let mut codes = BitSink::new(code_bytes);
            for token in x.chunks_exact(d) {
                for (&v, &scale) in token.iter().zip(&scales) {
                    codes.put(min_max_code(v, scale, self.bits), self.bits);
                }
            }
        }
        Ok(())
    }

    fn dequantize(&self, _place: Place, _first: u64, rows: &[u8], out: &mut [f32]) -> Result<(), KvError> {
        let n = whole("rows", rows.len(), self.rows_of_block())? * TOKENS;
        let d = self.head_dim;
        if out.len() != n * d {
            return Err(KvError::Length { what: "vectors", found: out.len(), expected: n * d });
        }
        for (block, out) in rows.chunks_exact(self.rows_of_block()).zip(out.chunks_exact_mut(TOKENS * d)) {
            let (scale_bytes, code_bytes) = block.split_at(self.scale_bytes());
            let scales: Vec<[f16; 2]> = scale_bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|&[a, b, c, d]| [f16::from_le_bytes([a, b]), f16::from_le_bytes([c, d])])
                .collect();
            let mut codes = BitSource::new(code_bytes);
            for token in out.chunks_exact_mut(d) {
                for (v, &scale) in token.iter_mut().zip(&scales) {
                    *v = min_max_value(codes.take(self.bits), scale);
                }
            }
        }
        Ok(())
    }

    fn pack(&self, _place: Place, rows: &[u8], page: &mut Vec<u8>) -> Result<PageBits, KvError> {
        let blocks = whole("rows", rows.len(), self.rows_of_block())?;
        for block in rows.chunks_exact(self.rows_of_block()) {
            page.extend_from_slice(&block[..self.block_bytes()]);
        }
        let scales = 8 * (blocks * self.scale_bytes()) as u64;
        Ok(PageBits { codes: 8 * (blocks * self.block_bytes()) as u64 - scales, scales, overhead: 0 })
    }

    fn unpack(&self, _place: Place, page: &[u8], rows: &mut [u8]) -> Result<(), KvError> {
        let blocks = whole("rows", rows.len(), self.rows_of_block())?;
        let n = blocks * TOKENS;
        check_page(page, n, blocks * self.block_bytes())?;
        rows.fill(0);
        for (from, block) in page.chunks_exact(self.block_bytes()).zip(rows.chunks_exact_mut(self.rows_of_block())) {
            check_scales(&from[..self.scale_bytes()], n)?;
            block[..self.block_bytes()].copy_from_slice(from);
        }
        Ok(())
    }

    fn keys_from_frame(&self, _place: Place, _keys: &mut [f32]) {}

    fn expected_bps(&self) -> f64 {
        f64::from(self.bits) + 32.0 / TOKENS as f64
    }
}
