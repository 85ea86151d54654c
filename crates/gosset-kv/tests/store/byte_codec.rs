//! A codec of one byte per coordinate, simple enough to be a reference.

use gosset_kv::{KvCodec, KvError, PageBits, Place, Role};

/// Coordinates as multiples of a 100th of the largest one of their block, in a frame that is mirrored at a plane of its place.
///
/// A row is the step, then one byte per coordinate. A page has the steps, then codes of 4 bits with escapes, so that its bytes are others
/// than those of its rows and depend in number on the data.
#[derive(Debug)]
pub(crate) struct ByteCodec {
    pub(crate) head_dim: usize,
    pub(crate) block: usize,
    pub(crate) promised_bps: f64,
}

const STEP_BYTES: usize = 4;
/// Codes of magnitude up to 7 take 4 bits.
const ESCAPE: u8 = 15;

impl ByteCodec {
    pub(crate) fn new(head_dim: usize) -> Self {
        Self { head_dim, block: 1, promised_bps: 10.0 }
    }

    /// The reflection at the plane normal to a unit vector of this place: its own inverse.
    pub(crate) fn mirror(&self, place: Place, x: &mut [f32]) {
        let role = u32::from(place.role == Role::Value);
        let phase = 0.3 + place.layer as f32 + 2.7 * place.head as f32 + 0.9 * role as f32;
        let normal: Vec<f32> = (0..self.head_dim).map(|i| (phase * (i + 1) as f32).sin()).collect();
        let square: f32 = normal.iter().map(|u| u * u).sum();
        for x in x.chunks_exact_mut(self.head_dim) {
            let along: f32 = x.iter().zip(&normal).map(|(x, u)| x * u).sum();
            x.iter_mut().zip(&normal).for_each(|(x, u)| *x -= 2.0 * along / square * u);
        }
    }
}

impl KvCodec for ByteCodec {
    fn name(&self) -> String {
        format!("bytes@{}", self.promised_bps)
    }

    fn head_dim(&self) -> usize {
        self.head_dim
    }

    fn row_bytes(&self) -> usize {
        STEP_BYTES + self.head_dim
    }

    fn block(&self) -> usize {
        self.block
    }

    fn quantize(&self, place: Place, _first: u64, x: &[f32], rows: &mut [u8]) -> Result<(), KvError> {
        let (d, vectors) = (self.head_dim, x.len() / self.head_dim);
        assert!(vectors.is_multiple_of(self.block), "blocks come whole");
        assert_eq!(rows.len(), vectors * self.row_bytes());
        let mut x = x.to_vec();
        self.mirror(place, &mut x);
        for (x, rows) in x.chunks_exact(self.block * d).zip(rows.chunks_exact_mut(self.block * self.row_bytes())) {
            let step = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 100.0;
            for (x, row) in x.chunks_exact(d).zip(rows.chunks_exact_mut(self.row_bytes())) {
                let (head, codes) = row.split_at_mut(STEP_BYTES);
                head.copy_from_slice(&step.to_le_bytes());
                for (x, code) in x.iter().zip(codes) {
                    *code = if step > 0.0 { (x / step).round() as i8 as u8 } else { 0 };
                }
            }
        }
        Ok(())
    }

    fn dequantize(&self, _place: Place, _first: u64, rows: &[u8], out: &mut [f32]) -> Result<(), KvError> {
        assert_eq!(rows.len() / self.row_bytes() * self.head_dim, out.len());
        assert!((out.len() / self.head_dim).is_multiple_of(self.block), "blocks come whole");
        for (row, out) in rows.chunks_exact(self.row_bytes()).zip(out.chunks_exact_mut(self.head_dim)) {
            let (step, codes) = row.split_first_chunk().unwrap();
            let step = f32::from_le_bytes(*step);
            out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(*code as i8) * step);
        }
        Ok(())
    }

    fn pack(&self, _place: Place, rows: &[u8], page: &mut Vec<u8>) -> Result<PageBits, KvError> {
        let mut nibbles = Vec::new();
        let mut scales = 0;
        for row in rows.chunks_exact(self.row_bytes()) {
            page.extend_from_slice(&row[..STEP_BYTES]);
            scales += 8 * STEP_BYTES as u64;
            for code in &row[STEP_BYTES..] {
                match *code as i8 {
                    small @ -7..=7 => nibbles.push((small + 7) as u8),
                    _ => nibbles.extend([ESCAPE, code & 15, code >> 4]),
                }
            }
        }
        let codes = 4 * nibbles.len() as u64;
        let overhead = if nibbles.len().is_multiple_of(2) { 0 } else { 4 };
        page.extend(nibbles.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4));
        Ok(PageBits { codes, scales, overhead })
    }

    fn unpack(&self, _place: Place, page: &[u8], rows: &mut [u8]) -> Result<(), KvError> {
        let n = rows.len() / self.row_bytes();
        let damaged = |reason: &str| KvError::Page { n, reason: reason.to_owned() };
        let (steps, codes) = page.split_at_checked(n * STEP_BYTES).ok_or_else(|| damaged("no steps"))?;
        let mut nibbles = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        let mut next = || nibbles.next().ok_or_else(|| damaged("no codes"));
        for (row, step) in rows.chunks_exact_mut(self.row_bytes()).zip(steps.chunks_exact(STEP_BYTES)) {
            let (head, codes) = row.split_at_mut(STEP_BYTES);
            head.copy_from_slice(step);
            for code in codes {
                *code = match next()? {
                    ESCAPE => next()? | next()? << 4,
                    small => (small as i8 - 7) as u8,
                };
            }
        }
        if nibbles.count() > 1 {
            return Err(damaged("bytes behind the codes"));
        }
        Ok(())
    }

    fn query_to_frame(&self, place: Place, query: &mut [f32]) {
        self.mirror(place, query);
    }

    fn value_from_frame(&self, place: Place, sum: &mut [f32]) {
        self.mirror(place, sum);
    }

    fn expected_bps(&self) -> f64 {
        self.promised_bps
    }
}
