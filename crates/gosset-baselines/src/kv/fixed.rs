//! Codecs that write the same number of bits for every vector.

use std::fmt::Debug;

use gosset_kv::{KvCodec, KvError, PageBits, Place};
use half::f16;

use super::bits::{BitSink, BitSource, copy};

/// Bits of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Norms, scales and zero points, fp16 each.
    pub(crate) n_scales: usize,
    /// Bits of codes.
    pub(crate) code_bits: usize,
}

/// Rounds one vector at a time to fp16 scales and a fixed number of code bits.
pub(crate) trait FixedRate: Debug + Send + Sync {
    fn name(&self) -> String;

    fn head_dim(&self) -> usize;

    fn layout(&self) -> Layout;

    /// Codes of `x`, finite, which is scratch from then on. `scales` and the bytes of `codes` are zeros.
    fn encode(&self, x: &mut [f32], scales: &mut [f16], codes: &mut BitSink<'_>);

    /// The vector of the codes, in the stored frame. Any bits give numbers, scales that are finite give finite ones.
    fn decode(&self, scales: &[f16], codes: &mut BitSource<'_>, out: &mut [f32]);

    fn enter_frame(&self, _x: &mut [f32]) {}

    fn leave_frame(&self, _x: &mut [f32]) {}
}

/// The nearest fp16 number, the largest finite one for what lies beyond.
pub(crate) fn half(v: f64) -> f16 {
    f16::from_f64(v.clamp(f16::MIN.to_f64(), f16::MAX.to_f64()))
}

/// Checks that `x` is whole vectors of finite numbers and `rows` as many rows; the number of vectors.
pub(crate) fn check(codec: &dyn KvCodec, place: Place, first: u64, x: &[f32], rows: &[u8]) -> Result<usize, KvError> {
    let d = codec.head_dim();
    let n = whole("vectors", x.len(), d * codec.block())? * codec.block();
    if rows.len() != n * codec.row_bytes() {
        return Err(KvError::Length { what: "rows", found: rows.len(), expected: n * codec.row_bytes() });
    }
    if let Some(i) = x.iter().position(|v| !v.is_finite()) {
        let position = first.saturating_add((i / d) as u64);
        return Err(KvError::NonFinite { role: place.role.name(), layer: place.layer, head: place.head, position });
    }
    Ok(n)
}

/// How often `unit` fits into `found`, which must be without rest.
pub(crate) fn whole(what: &'static str, found: usize, unit: usize) -> Result<usize, KvError> {
    if found.is_multiple_of(unit) {
        return Ok(found / unit);
    }
    Err(KvError::Length { what, found, expected: (found / unit + 1) * unit })
}

/// Refuses a page that is not `expected` bytes long.
pub(crate) fn check_page(page: &[u8], n: usize, expected: usize) -> Result<(), KvError> {
    if page.len() == expected {
        return Ok(());
    }
    Err(KvError::Page { n, reason: format!("expected {expected} bytes, found {}", page.len()) })
}

/// Refuses bytes of fp16 numbers that are NaN or infinite.
pub(crate) fn check_scales(bytes: &[u8], n: usize) -> Result<(), KvError> {
    let damaged = bytes.as_chunks::<2>().0.iter().position(|b| !f16::from_le_bytes(*b).is_finite());
    damaged.map_or(Ok(()), |i| Err(KvError::Page { n, reason: format!("scale {i} is not finite") }))
}

/// A [`FixedRate`] as a codec of keys or values.
///
/// A row is the scales, then the codes, the last byte filled with zeros. A page is the scales of all vectors, then the codes of all
/// vectors without gaps, the last byte filled with zeros.
#[derive(Debug)]
pub(crate) struct Fixed<C>(pub(crate) C);

impl<C: FixedRate> Fixed<C> {
    fn scale_bytes(&self) -> usize {
        2 * self.0.layout().n_scales
    }
}

impl<C: FixedRate> KvCodec for Fixed<C> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn head_dim(&self) -> usize {
        self.0.head_dim()
    }

    fn row_bytes(&self) -> usize {
        self.scale_bytes() + self.0.layout().code_bits.div_ceil(8)
    }

    fn quantize(&self, place: Place, first: u64, x: &[f32], rows: &mut [u8]) -> Result<(), KvError> {
        check(self, place, first, x, rows)?;
        let mut scales = vec![f16::ZERO; self.0.layout().n_scales];
        let mut scratch = vec![0.0; self.head_dim()];
        rows.fill(0);
        for (x, row) in x.chunks_exact(self.head_dim()).zip(rows.chunks_exact_mut(self.row_bytes())) {
            scratch.copy_from_slice(x);
            scales.fill(f16::ZERO);
            let (scale_bytes, code_bytes) = row.split_at_mut(self.scale_bytes());
            self.0.encode(&mut scratch, &mut scales, &mut BitSink::new(code_bytes));
            for (bytes, scale) in scale_bytes.as_chunks_mut::<2>().0.iter_mut().zip(&scales) {
                *bytes = scale.to_le_bytes();
            }
        }
        Ok(())
    }

    fn dequantize(&self, _place: Place, _first: u64, rows: &[u8], out: &mut [f32]) -> Result<(), KvError> {
        let n = whole("rows", rows.len(), self.row_bytes())?;
        if out.len() != n * self.head_dim() {
            return Err(KvError::Length { what: "vectors", found: out.len(), expected: n * self.head_dim() });
        }
        let mut scales = vec![f16::ZERO; self.0.layout().n_scales];
        for (row, out) in rows.chunks_exact(self.row_bytes()).zip(out.chunks_exact_mut(self.head_dim())) {
            let (scale_bytes, code_bytes) = row.split_at(self.scale_bytes());
            for (scale, bytes) in scales.iter_mut().zip(scale_bytes.as_chunks::<2>().0) {
                *scale = f16::from_le_bytes(*bytes);
            }
            self.0.decode(&scales, &mut BitSource::new(code_bytes), out);
        }
        Ok(())
    }

    fn pack(&self, _place: Place, rows: &[u8], page: &mut Vec<u8>) -> Result<PageBits, KvError> {
        let n = whole("rows", rows.len(), self.row_bytes())?;
        let code_bits = self.0.layout().code_bits;
        for row in rows.chunks_exact(self.row_bytes()) {
            page.extend_from_slice(&row[..self.scale_bytes()]);
        }
        let from = page.len();
        page.resize(from + (n * code_bits).div_ceil(8), 0);
        let mut sink = BitSink::new(&mut page[from..]);
        for row in rows.chunks_exact(self.row_bytes()) {
            copy(&mut sink, &mut BitSource::new(&row[self.scale_bytes()..]), code_bits);
        }
        Ok(PageBits {
            codes: (n * code_bits) as u64,
            scales: 8 * (n * self.scale_bytes()) as u64,
            overhead: (8 * (n * code_bits).div_ceil(8) - n * code_bits) as u64,
        })
    }

    fn unpack(&self, _place: Place, page: &[u8], rows: &mut [u8]) -> Result<(), KvError> {
        let n = whole("rows", rows.len(), self.row_bytes())?;
        let code_bits = self.0.layout().code_bits;
        check_page(page, n, n * self.scale_bytes() + (n * code_bits).div_ceil(8))?;
        let (scales, codes) = page.split_at(n * self.scale_bytes());
        check_scales(scales, n)?;
        let mut source = BitSource::new(codes);
        rows.fill(0);
        for (i, row) in rows.chunks_exact_mut(self.row_bytes()).enumerate() {
            let (scale_bytes, code_bytes) = row.split_at_mut(self.scale_bytes());
            scale_bytes.copy_from_slice(&scales[i * self.scale_bytes()..][..self.scale_bytes()]);
            copy(&mut BitSink::new(code_bytes), &mut source, code_bits);
        }
        if source.take((8 * codes.len() - n * code_bits) as u32) != 0 {
            return Err(KvError::Page { n, reason: "bits behind the last code are not zero".to_owned() });
        }
        Ok(())
    }

    fn query_to_frame(&self, _place: Place, query: &mut [f32]) {
        self.0.enter_frame(query);
    }

    fn keys_from_frame(&self, _place: Place, keys: &mut [f32]) {
        keys.chunks_exact_mut(self.head_dim()).for_each(|key| self.0.leave_frame(key));
    }

    fn value_from_frame(&self, _place: Place, sum: &mut [f32]) {
        self.0.leave_frame(sum);
    }

    fn expected_bps(&self) -> f64 {
        let Layout { n_scales, code_bits } = self.0.layout();
        (16 * n_scales + code_bits) as f64 / self.head_dim() as f64
    }
}
