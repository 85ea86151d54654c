//! Rows: a quantized vector in whole bytes.
//!
//! Two bytes, little-endian, with the norm or the shift of the vector; then the coordinates of its lattice point in order, one or two
//! bytes each, as signed integers.

/// Sizes of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowFormat {
    /// Coordinates.
    pub(crate) width: usize,
    /// Whether coordinates take two bytes.
    pub(crate) wide: bool,
}

/// Bytes before the coordinates.
const FIELD: usize = 2;

impl RowFormat {
    /// For coordinates up to `reach`.
    pub(crate) fn new(width: usize, reach: f64) -> Self {
        Self { width, wide: reach > 127.0 }
    }

    /// Largest magnitude of a coordinate.
    pub(crate) fn max(self) -> i32 {
        if self.wide { i32::from(i16::MAX) } else { i32::from(i8::MAX) }
    }

    pub(crate) fn bytes(self) -> usize {
        FIELD + self.width * if self.wide { 2 } else { 1 }
    }

    pub(crate) fn field(self, row: &[u8]) -> u16 {
        u16::from_le_bytes([row[0], row[1]])
    }

    pub(crate) fn set_field(self, row: &mut [u8], field: u16) {
        row[..FIELD].copy_from_slice(&field.to_le_bytes());
    }

    /// Coordinates of block `block`.
    #[inline]
    pub(crate) fn block<const N: usize>(self, row: &[u8], block: usize) -> [i32; N] {
        let coordinates = &row[FIELD..];
        if self.wide {
            let part = &coordinates[2 * N * block..2 * N * (block + 1)];
            std::array::from_fn(|i| i32::from(i16::from_le_bytes([part[2 * i], part[2 * i + 1]])))
        } else {
            let part = &coordinates[N * block..N * (block + 1)];
            std::array::from_fn(|i| i32::from(part[i] as i8))
        }
    }

    /// Whether coordinates fit into a row, which those of a damaged page need not.
    #[inline]
    pub(crate) fn fits<const N: usize>(self, y: &[i32; N]) -> bool {
        if self.wide { y.iter().all(|&v| i32::from(v as i16) == v) } else { y.iter().all(|&v| i32::from(v as i8) == v) }
    }

    /// Writes the coordinates of block `block`; whether all of them fit.
    #[inline]
    pub(crate) fn set_block<const N: usize>(self, row: &mut [u8], block: usize, y: &[i32; N]) -> bool {
        let coordinates = &mut row[FIELD..];
        if self.wide {
            let part = &mut coordinates[2 * N * block..2 * N * (block + 1)];
            let (part, _) = part.as_chunks_mut::<2>();
            part.iter_mut().zip(y).for_each(|(bytes, &v)| *bytes = (v as i16).to_le_bytes());
        } else {
            let part = &mut coordinates[N * block..N * (block + 1)];
            part.iter_mut().zip(y).for_each(|(byte, &v)| *byte = v as u8);
        }
        self.fits(y)
    }
}
