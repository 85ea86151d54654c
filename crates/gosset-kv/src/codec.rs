//! What a codec of keys or values is.

use std::fmt::Debug;

use crate::KvError;

/// Which of a token's two vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// What queries are multiplied with.
    Key,
    /// What attention sums up.
    Value,
}

impl Role {
    /// `key` or `value`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Value => "value",
        }
    }
}

/// Whose vectors: what random signs, dither and statistics are keyed by, together with positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Layer of the model.
    pub layer: u32,
    /// Key or value.
    pub role: Role,
    /// KV head of the layer.
    pub head: u32,
}

/// Bits of a sealed page by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageBits {
    /// Codes of coordinates.
    pub codes: u64,
    /// Norms, scales, zero points.
    pub scales: u64,
    /// Lengths, tables, final states, padding.
    pub overhead: u64,
}

impl PageBits {
    /// All of them; eight times the bytes of the page.
    pub const fn total(self) -> u64 {
        self.codes + self.scales + self.overhead
    }
}

/// Vectors of one head to codes and back.
///
/// In two steps: [`quantize`](KvCodec::quantize) rounds each vector by itself into a *row*, which takes whole bytes and is what attention
/// reads until enough rows are there to [`pack`](KvCodec::pack) them into a sealed page. Packing loses nothing: the rows that
/// [`unpack`](KvCodec::unpack) gives are those that were packed, byte for byte, so what attention sees does not depend on when a page is
/// sealed. One codec serves all layers and heads of one role of a model.
///
/// A *stored frame* belongs to each place: [`dequantize`](KvCodec::dequantize) gives vectors in it, queries are brought into it once by
/// [`query_to_frame`](KvCodec::query_to_frame), and a sum of values leaves it by [`value_from_frame`](KvCodec::value_from_frame).
/// For vectors x, frame vectors z of them and queries q: ⟨q, x⟩ = ⟨query_to_frame(q), z⟩, and value_from_frame(Σ w z) = Σ w x.
pub trait KvCodec: Debug + Send + Sync {
    /// How specifications and tables name it, rate included: `e8@2.25`.
    fn name(&self) -> String;

    /// Elements of a vector.
    fn head_dim(&self) -> usize;

    /// Bytes of a row.
    fn row_bytes(&self) -> usize;

    /// Vectors that are coded together; 1 by default.
    ///
    /// With m > 1 (statistics shared by neighbouring tokens) every call takes whole blocks of m vectors, a row means nothing without the
    /// rest of its block, and positions become coded by whole blocks. Bytes stay true: m rows hold m vectors.
    fn block(&self) -> usize {
        1
    }

    /// Rounds vectors at positions `first`, `first + 1`, …: `x` is `[n, head_dim]`, `rows` `[n, row_bytes]`.
    ///
    /// Each row depends on its own vector, place and position only, or on those of its [`block`](KvCodec::block).
    ///
    /// # Errors
    ///
    /// [`KvError::NonFinite`] for NaN or infinity; [`KvError::Length`] for slices that do not fit each other.
    fn quantize(&self, place: Place, first: u64, x: &[f32], rows: &mut [u8]) -> Result<(), KvError>;

    /// Vectors of rows, `[n, head_dim]`, in the stored frame of `place`.
    ///
    /// # Errors
    ///
    /// [`KvError::Length`] for slices that do not fit each other.
    fn dequantize(&self, place: Place, first: u64, rows: &[u8], out: &mut [f32]) -> Result<(), KvError>;

    /// Appends to `page` the bytes that hold `rows` and nothing else: pages share no stream.
    ///
    /// # Errors
    ///
    /// [`KvError::Length`] for rows that are not whole.
    fn pack(&self, place: Place, rows: &[u8], page: &mut Vec<u8>) -> Result<PageBits, KvError>;

    /// The rows, `[n, row_bytes]`, that were packed into `page`.
    ///
    /// # Errors
    ///
    /// [`KvError::Page`] for bytes that are not those of a page of as many vectors; it never panics and allocates no more than the rows.
    fn unpack(&self, place: Place, page: &[u8], rows: &mut [u8]) -> Result<(), KvError>;

    /// Vectors of a page, `[n, head_dim]`, in the stored frame: [`unpack`](KvCodec::unpack) and [`dequantize`](KvCodec::dequantize) in one,
    /// which codecs may do faster. `rows` is scratch.
    ///
    /// # Errors
    ///
    /// Those of both.
    fn decode(
        &self,
        place: Place,
        first: u64,
        page: &[u8],
        rows: &mut Vec<u8>,
        out: &mut [f32],
    ) -> Result<(), KvError> {
        let n = out.len() / self.head_dim();
        rows.clear();
        rows.resize(n * self.row_bytes(), 0);
        self.unpack(place, page, rows)?;
        self.dequantize(place, first, rows, out)
    }

    /// Brings a query, `head_dim` elements, into the stored frame of keys; does nothing by default.
    fn query_to_frame(&self, _place: Place, _query: &mut [f32]) {}

    /// Brings keys, `[n, head_dim]`, out of the stored frame: needed where keys are stored before their rotation and rotated on reading.
    ///
    /// By default by what [`query_to_frame`](KvCodec::query_to_frame) makes of unit vectors, at the cost of one product by a matrix of
    /// `head_dim` rows per call. A frame with a fast inverse does better, and one that is no frame at all does nothing.
    fn keys_from_frame(&self, place: Place, keys: &mut [f32]) {
        let d = self.head_dim();
        let mut frame = vec![0f32; d * d];
        for (i, unit) in frame.chunks_exact_mut(d).enumerate() {
            unit[i] = 1.0;
            self.query_to_frame(place, unit);
        }
        let mut stored = vec![0f32; d];
        for key in keys.chunks_exact_mut(d) {
            stored.copy_from_slice(key);
            for (out, unit) in key.iter_mut().zip(frame.chunks_exact(d)) {
                *out = unit.iter().zip(&stored).map(|(u, z)| u * z).sum();
            }
        }
    }

    /// Brings a weighted sum of values out of the stored frame; does nothing by default.
    fn value_from_frame(&self, _place: Place, _sum: &mut [f32]) {}

    /// Bits of a page as it is expected over vectors that the codec is made for, per scalar: what the rate in its name promises.
    fn expected_bps(&self) -> f64;
}
