//! A matrix of grid codes, as it is stored.

use half::f16;
use serde::{Deserialize, Serialize};

use crate::decoder::UniSvqDecoder;
use crate::incoherence::FrameHeader;
use crate::{UniSvqError, pack};

/// An affine map of d codes to d weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AffineMap {
    /// A, `[d, d]`, row-major: row i makes weight i of a group.
    pub a: Vec<f32>,
    /// B, `[d]`.
    pub b: Vec<f32>,
}

impl AffineMap {
    /// A = I and B = -(2^bits - 1)/2 · 1: what a header without a map means.
    #[must_use]
    pub fn centred(dim: u8, bits: u8) -> Self {
        let d = usize::from(dim);
        let a = (0..d * d).map(|i| if i % (d + 1) == 0 { 1.0 } else { 0.0 }).collect();
        Self { a, b: vec![-centre(bits); d] }
    }
}

/// The mean of the codes, (2^bits - 1)/2.
pub(crate) fn centre(bits: u8) -> f32 {
    ((1u32 << bits) - 1) as f32 / 2.0
}

/// Everything but codes and tuned scales that a decoder needs. Nothing here is trusted before [`UniSvqDecoder::new`] has checked it.
///
/// In its frame the matrix is W~ = `scale` · (A q + B) for every group of `dim` consecutive columns, q being their codes. Where the
/// columns end inside a group, its weights are those of the leading rows and columns of A and the leading entries of B.
/// The matrix is S_V U_m W~ U_nᵀ S_U with the [frames](crate::Frame) of both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UniSvqHeader {
    /// Number of rows, the outputs.
    pub rows: u64,
    /// Number of columns, the inputs.
    pub cols: u64,
    /// Bits of a code: 2, 3 or 4.
    pub bits: u8,
    /// Columns of a group: 1, 2, 4 or 8.
    pub dim: u8,
    /// Factor of all values in the frame.
    pub scale: f32,
    /// The affine map; `None` is [`AffineMap::centred`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affine: Option<AffineMap>,
    /// Frame of the input side, of width `cols`.
    pub input: FrameHeader,
    /// Frame of the output side, of width `rows`.
    pub output: FrameHeader,
}

impl UniSvqHeader {
    /// The affine map, spelled out.
    #[must_use]
    pub fn affine_map(&self) -> AffineMap {
        self.affine.clone().unwrap_or_else(|| AffineMap::centred(self.dim, self.bits))
    }

    /// Bytes of the codes, `None` for a header that no decoder accepts.
    #[must_use]
    pub fn code_bytes(&self) -> Option<usize> {
        pack::check_bits(self.bits).ok()?;
        pack::packed_len(self.rows, self.cols, self.bits)
    }

    /// Name as [`UniSvqSpec::named`](crate::UniSvqSpec::named) takes it, as far as a header tells: what A was made from is not stored.
    #[must_use]
    pub fn name(&self) -> String {
        let dim = if self.dim == 4 { String::new() } else { format!("-d{}", self.dim) };
        let map = if self.affine.is_some() { "-affine" } else { "" };
        let frame = match self.input {
            FrameHeader::None => "-norht",
            FrameHeader::Rht { .. } => "",
            FrameHeader::Hadamard { .. } => "-full",
        };
        format!("unisvq{dim}{map}{frame}")
    }

    /// Checks numbers and lengths that need no codes.
    pub(crate) fn check(&self) -> Result<(), UniSvqError> {
        let parameter = |name, expected: &str, found: String| {
            Err(UniSvqError::Parameter { name, expected: expected.to_owned(), found })
        };
        pack::check_bits(self.bits)?;
        if !matches!(self.dim, 1 | 2 | 4 | 8) {
            return parameter("dim", "1, 2, 4 or 8", self.dim.to_string());
        }
        if !(1..=u64::from(u32::MAX)).contains(&self.rows) {
            return parameter("rows", "1 to 2^32 - 1", self.rows.to_string());
        }
        if !(1..=gosset_transform::MAX_WIDTH as u64).contains(&self.cols) {
            return parameter("cols", "1 to 2^28", self.cols.to_string());
        }
        if !self.scale.is_finite() {
            return parameter("scale", "a finite number", self.scale.to_string());
        }
        let Some(AffineMap { a, b }) = &self.affine else { return Ok(()) };
        let d = usize::from(self.dim);
        if (a.len(), b.len()) != (d * d, d) {
            return Err(UniSvqError::Shape {
                what: "affine map",
                expected: format!("{} and {d} values", d * d),
                found: format!("{} and {}", a.len(), b.len()),
            });
        }
        match a.iter().chain(b).position(|v| !v.is_finite()) {
            Some(i) => {
                Err(UniSvqError::NonFinite { what: "affine map", row: i / d, col: i % d, value: "no number".into() })
            }
            None => Ok(()),
        }
    }
}

/// A quantized matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct UniSvqMatrix {
    /// Everything but codes and scales.
    pub header: UniSvqHeader,
    /// Packed codes, `[rows, row_bytes(cols, bits)]`, see [`pack_row`](crate::pack_row).
    pub codes: Vec<u8>,
    /// S_U, `[cols]`, where it was tuned; otherwise the signs of the input frame.
    pub input_scales: Option<Vec<f16>>,
    /// S_V, `[rows]`, where it was tuned; otherwise the signs of the output frame.
    pub output_scales: Option<Vec<f16>>,
}

impl UniSvqMatrix {
    /// A decoder that borrows the codes.
    ///
    /// # Errors
    /// Those of [`UniSvqDecoder::new`].
    pub fn decoder(&self) -> Result<UniSvqDecoder<'_>, UniSvqError> {
        UniSvqDecoder::new(&self.header, &self.codes, self.input_scales.as_deref(), self.output_scales.as_deref())
    }

    /// Bits of codes alone: rows times columns times bits.
    #[must_use]
    pub fn payload_bits(&self) -> u64 {
        self.header.rows * self.header.cols * u64::from(self.header.bits)
    }

    /// Bits of tuned scales.
    #[must_use]
    pub fn scale_bits(&self) -> u64 {
        let count = |scales: &Option<Vec<f16>>| scales.as_ref().map_or(0, Vec::len) as u64;
        16 * (count(&self.input_scales) + count(&self.output_scales))
    }
}
