//! Matrices that are stored input column after input column: what error feedback writes.
//!
//! Error feedback corrects a column by the errors of the columns behind it, so it has to know the reconstruction of a whole column
//! before it goes on. Where a lattice vector or a trellis path runs along the outputs inside one column, feedback is exact:
//! no weight is rounded before the errors of all columns behind it are known. The walk is from the last column to the first, and so
//! is the order in which columns are stored.
//!
//! A rotation along the outputs makes the values of a column look Gaussian; it is undone once per product, on its result.
//! Each column has a step of its own: `step` of the scheme's header times 2^(e/4) with a four-bit exponent e. Under an
//! entropy code it also has a class c, of four bits too: the member of the family of tables that suits its spread, and a gain that
//! all columns of a class share. Both make one byte of the plane `columns`. A column without any symbol has the byte 255 and takes
//! no other bits.
//!
//! Outputs may count differently. Then each row was divided by a factor of its own, 2^(e/4) with a four-bit exponent e, before columns
//! were rotated, and is multiplied by it after they were rotated back; two exponents make one byte of the plane `row_exponents`.

mod code;
mod decode;
mod encode;
mod lattice;
mod layout;
mod shift;
mod trellis;

use serde::{Deserialize, Serialize};

use crate::RotationHeader;

pub use code::row_factor;
pub(crate) use decode::{ColumnsDecoder, plane_names};
pub use encode::{ColumnEncoder, ColumnOptions, ColumnSums, N_CLASSES, N_EXPONENTS, gaussian_payload_bps};

/// One byte per column, first column first: exponent and class, or the scale.
pub(crate) const COLUMNS: &str = "columns";
/// Exponents of the factors of rows, two to a byte, that of the even row in the lower half.
pub(crate) const ROW_EXPONENTS: &str = "row_exponents";

/// What a matrix stored by columns adds to its header.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ColumnsHeader {
    /// Rotation of the outputs that was applied to each column.
    pub outputs: RotationHeader,
    /// Gain of each class in units of 1/256; 1 for classes beyond.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gains: Vec<u16>,
    /// Whether rows have factors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub row_exponents: bool,
}
