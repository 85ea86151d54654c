//! What can go wrong between a matrix and its planes.

use gosset_entropy::EntropyError;
use gosset_transform::TransformError;

use crate::plane::PlaneDtype;

/// Why a specification, a matrix or a set of planes was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// No codec of that name.
    #[error("unknown codec `{name}`, expected one of {}", crate::spec::codec_names())]
    UnknownCodec {
        /// The name found.
        name: String,
    },
    /// A text of the form `codec@rate` was malformed.
    #[error("`{text}` is no codec specification, expected `codec@rate` such as `e8-rice@3.5`")]
    SpecSyntax {
        /// The text found.
        text: String,
    },
    /// The codec cannot reach the asked rate.
    #[error("{codec} cannot reach {asked} bits per weight, expected a payload from {min} to {max}")]
    RateRange {
        /// Name of the codec.
        codec: &'static str,
        /// Payload asked for, in bits per weight.
        asked: f64,
        /// Floor of the codec, in bits per weight.
        min: f64,
        /// Ceiling of the codec, in bits per weight.
        max: f64,
    },
    /// The codec has a fixed set of rates, and this is none of them.
    #[error("{codec} cannot take {asked} bits per weight, expected a payload of {}", list(rates))]
    RateSet {
        /// Name of the codec.
        codec: &'static str,
        /// Payload asked for, in bits per weight.
        asked: f64,
        /// The payloads that it can take, ascending.
        rates: &'static [f64],
    },
    /// The codec has no scale alpha to be fixed.
    #[error("{codec} has no alpha, expected a payload in bits per weight")]
    NoAlpha {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The codec has no integer points to be read.
    #[error("{codec} has no integer points, expected a codec whose values are points of a grid")]
    NoPoints {
        /// Name of the scheme.
        codec: &'static str,
    },
    /// The codec cannot be stored by columns.
    #[error(
        "{codec} has no form by columns, expected a lattice under ANS, a trellis or a bit-shift trellis in rows order"
    )]
    NoColumns {
        /// Name of the codec.
        codec: &'static str,
    },
    /// A matrix stored by columns claims more weights than its planes vouch for.
    #[error("{n_weights} weights in {n_bits} bits, expected at most 64 per bit")]
    TooFewBits {
        /// Weights of the matrix.
        n_weights: u64,
        /// Bits of the planes that hold them.
        n_bits: u64,
    },
    /// The matrix is stored by the other of rows and columns.
    #[error("the matrix is stored by {found}, expected one stored by {expected}")]
    Orientation {
        /// How it is stored.
        found: &'static str,
        /// What is needed.
        expected: &'static str,
    },
    /// Alpha is not a usable scale.
    #[error("alpha is {found}, expected a number from {min} to {max}")]
    Alpha {
        /// The value found.
        found: f64,
        /// Smallest alpha.
        min: f64,
        /// Largest alpha.
        max: f64,
    },
    /// The data do not fill the shape.
    #[error("{rows} x {cols} matrix: {len} values, expected rows x columns, both at least 1 and rows below 2^32")]
    Shape {
        /// Rows claimed.
        rows: usize,
        /// Columns claimed.
        cols: usize,
        /// Values given.
        len: usize,
    },
    /// A value of the matrix is NaN or infinite.
    #[error(
        "row {row}, column {col}: found {value}, expected finite values ({n_nan} NaN and {n_infinite} infinite in all)"
    )]
    NonFinite {
        /// Row of the first non-finite value in row-major order.
        row: usize,
        /// Column of that value.
        col: usize,
        /// That value, NaN or infinite, as text: `NaN`, `inf` or `-inf`.
        value: String,
        /// NaN values in the matrix.
        n_nan: u64,
        /// Infinite values in the matrix.
        n_infinite: u64,
    },
    /// A value is too large for the codec at this alpha.
    #[error("row {row}: alpha-scaled value {found} is too large, expected a magnitude of at most {max}")]
    Magnitude {
        /// Row of the value.
        row: usize,
        /// The magnitude found, in alpha-scaled units.
        found: f32,
        /// The largest magnitude that is coded.
        max: f32,
    },
    /// A tile plan was refused.
    #[error("rotation: {0}")]
    Rotation(#[from] TransformError),
    /// A field of a header is out of range.
    #[error("header field {field}: found {found}, expected {expected}")]
    Header {
        /// Name of the field.
        field: &'static str,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A plane that the header calls for is absent.
    #[error("plane `{plane}` is missing, expected for this header")]
    MissingPlane {
        /// Name of the plane.
        plane: &'static str,
    },
    /// A plane that the header does not call for is present, or present twice.
    #[error("plane `{plane}` is unexpected, expected each of {expected} once at most")]
    UnexpectedPlane {
        /// Name of the plane.
        plane: String,
        /// The planes that belong to the header.
        expected: String,
    },
    /// A plane has elements of another type.
    #[error("plane `{plane}`: elements are {found}, expected {expected}")]
    PlaneDtype {
        /// Name of the plane.
        plane: &'static str,
        /// The type found.
        found: PlaneDtype,
        /// The type expected.
        expected: PlaneDtype,
    },
    /// A plane has another length.
    #[error("plane `{plane}`: {found} elements, expected {expected}")]
    PlaneLength {
        /// Name of the plane.
        plane: &'static str,
        /// Elements found.
        found: u64,
        /// Elements expected.
        expected: u64,
    },
    /// The row indices of the exactly stored rows are not ascending or leave the matrix.
    #[error("plane `exact_rows`, element {index}: row {found}, expected ascending rows below {rows}")]
    ExactRows {
        /// Index of the element.
        index: usize,
        /// Row found there.
        found: u32,
        /// Rows of the matrix.
        rows: u64,
    },
    /// The stream table or a plane of it is inconsistent.
    #[error("stream table: {0}")]
    Streams(EntropyError),
    /// A stream could not be decoded.
    #[error("row {row}, stream {stream}, bit {bit}: {what}")]
    Stream {
        /// Row in which the stream starts.
        row: usize,
        /// Index of the stream in the matrix.
        stream: usize,
        /// Bit within the stream at which decoding stopped.
        bit: u64,
        /// What was found there and what was expected.
        what: String,
    },
    /// Rows asked for lie outside the matrix.
    #[error("rows {start}..{end} asked for, expected a range within 0..{rows}")]
    RowRange {
        /// First row asked for.
        start: usize,
        /// End of the rows asked for, exclusive.
        end: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// Columns asked for lie outside the matrix.
    #[error("columns {start}..{end} asked for, expected a range within 0..{cols}")]
    ColumnRange {
        /// First column asked for.
        start: usize,
        /// End of the columns asked for, exclusive.
        end: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// An output slice has another length than the rows need.
    #[error("output has {found} elements, expected {expected}")]
    OutputLength {
        /// Elements found.
        found: usize,
        /// Elements expected: rows x columns.
        expected: usize,
    },
}

/// Numbers as a list for people: `2, 3 or 4`.
fn list(numbers: &[f64]) -> String {
    let words: Vec<_> = numbers.iter().map(f64::to_string).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => "nothing".to_owned(),
    }
}
