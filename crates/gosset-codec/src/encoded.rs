//! Encoded matrices.

use gosset_entropy::Rate;

use crate::codec::{EXACT_ROWS, EXACT_VALUES, SCALES};
use crate::columns::{COLUMNS, ROW_EXPONENTS};
use crate::plane::PlaneSet;
use crate::{CodecError, Decoder, MatrixHeader, Plane, scheme};

/// A matrix as bits: the decode recipe and the planes it refers to.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedMatrix {
    /// The decode recipe.
    pub header: MatrixHeader,
    /// The planes, in the order of the scheme.
    pub planes: Vec<Plane<'static>>,
}

impl EncodedMatrix {
    /// Bits by cause over `rows * cols` weights; their sum is the size of all planes.
    pub fn rate(&self) -> Rate {
        plane_rate(&self.header, &self.planes)
    }

    /// A decoder that borrows the planes.
    ///
    /// # Errors
    /// Those of [`Decoder::new`], if header or planes were changed after encoding.
    pub fn decoder(&self) -> Result<Decoder<'_>, CodecError> {
        let planes: Vec<_> = self.planes.iter().map(Plane::borrowed).collect();
        Decoder::new(&self.header, &planes)
    }
}

/// Bits by cause of the planes of a matrix.
///
/// Payload: codewords and exactly stored rows; lengths: stream lengths and page bases; header: padding of pages to
/// whole words.
pub(crate) fn plane_rate(header: &MatrixHeader, planes: &[Plane<'_>]) -> Rate {
    let planes = PlaneSet::new(planes);
    let mut rate = scheme::rate(&header.scheme, header.rows, header.cols, &planes);
    rate.payload_bits += planes.n_bits(EXACT_ROWS) + planes.n_bits(EXACT_VALUES);
    rate.scale_bits += planes.n_bits(SCALES) + planes.n_bits(COLUMNS) + planes.n_bits(ROW_EXPONENTS);
    rate.n = header.rows.saturating_mul(header.cols);
    rate
}
