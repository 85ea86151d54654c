//! From columns to header and planes, one column at a time.

use std::borrow::Cow;

use gosset_transform::Rht;

use super::code::{self, GAIN_UNITS, ZERO};
use super::decode::check_vouched;
use super::lattice::{self, LatticeColumns};
use super::shift::ShiftColumns;
use super::trellis::{self, TrellisColumns};
use super::{COLUMNS, ColumnsHeader, ROW_EXPONENTS};
use crate::plane::{Plane, PlaneData};
use crate::scheme::lattice::{LENGTHS, WORDS, gaussian_bps};
use crate::scheme::trellis::curve_of;
use crate::{
    CodeHeader, CodeKind, CodecError, CodecSpec, EncodedMatrix, LatticeHeader, MatrixHeader, RateTarget,
    RotationHeader, SchemeHeader, SchemeSpec, ShiftHeader, ShiftOrderKind, TrellisHeader,
};

pub use super::code::{N_CLASSES, N_EXPONENTS};

/// Spread of a trellis column, in steps, below which it is stored as zeros: less than 0.2 bits would be spent on it.
const LEAST_TRELLIS_SPREAD: f32 = 0.5;

/// What decides how columns are rounded, besides the codec.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnOptions {
    /// Rotation of the inputs that the caller applies to rows before columns are taken.
    pub inputs: RotationHeader,
    /// Rotation of the outputs that the caller applies to columns.
    pub outputs: RotationHeader,
    /// The step of exponent 0; for the bit-shift trellis the smallest scale.
    pub step: f32,
    /// Of each column, below [`N_EXPONENTS`]: its step is `step` · 2^(e/4). None for the bit-shift trellis, which fits the scale of a
    /// column to its values.
    pub exponents: Vec<u8>,
    /// Largest spread of a column in its steps that is expected, from which the classes go down; larger ones are coded less well.
    pub reach: f32,
    /// Gain of each class: what reconstructions are multiplied by.
    pub gains: [f32; N_CLASSES],
    /// Of each row, below [`N_EXPONENTS`]: the exponent of the factor ([`row_factor`](crate::row_factor)) that the caller divides it by
    /// before columns are rotated. None where rows are not scaled.
    pub row_exponents: Vec<u8>,
}

/// Sums over the columns of each class, for the least-squares gain of the class: Σ x u / Σ u², u being reconstructions without gain.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ColumnSums {
    /// Σ x u, each column weighed by 1/step².
    pub product: f64,
    /// Σ u², in the same way.
    pub power: f64,
}

impl ColumnSums {
    /// The gain with the least squared error, 1 where nothing was summed; limited to 1/2 to 3/2.
    #[must_use]
    pub fn gain(&self) -> f32 {
        if self.power > 0.0 { (self.product / self.power).clamp(0.5, 1.5) as f32 } else { 1.0 }
    }
}

/// Encoder of one matrix, column after column: from the last to the first, or under the bit-shift trellis, where each column stands by
/// itself, in any order.
///
/// It knows neither rotations nor error feedback: who calls it rotates, corrects each column by the errors of those behind it, and is
/// told the reconstruction, which is bit for bit what a decoder finds.
///
/// ```
/// use gosset_codec::{CodecSpec, ColumnEncoder, ColumnOptions, DecodeScratch, RotationHeader, N_CLASSES, calibrate};
///
/// let (rows, cols) = (256, 8);
/// let spec = CodecSpec::parse("e8@3")?;
/// let options = ColumnOptions {
///     inputs: RotationHeader::None,
///     outputs: RotationHeader::None,
///     step: 0.5,
///     exponents: vec![0; cols],
///     reach: 2.0,
///     gains: [1.0; N_CLASSES],
///     row_exponents: Vec::new(),
/// };
/// let mut encoder = ColumnEncoder::new(&spec, rows, cols, &options)?;
/// let mut written = vec![0.0; rows * cols];
/// for col in (0..cols).rev() {
///     encoder.round_column(col, &calibrate::gaussian(rows, col as u64), &mut written[col * rows..][..rows])?;
/// }
/// let encoded = encoder.finish()?;
/// let mut decoded = vec![0.0; rows * cols];
/// encoded.decoder()?.decode_columns_rotated(0..cols, &mut decoded, &mut DecodeScratch::new())?;
/// assert_eq!(decoded, written);
/// # Ok::<(), gosset_codec::CodecError>(())
/// ```
#[derive(Debug)]
pub struct ColumnEncoder {
    rows: usize,
    cols: usize,
    scheme: Scheme,
    options: ColumnOptions,
    /// Gains as they are stored.
    gains: Vec<u16>,
    rotations: [Option<Rht>; 2],
    /// The byte of each column.
    bytes: Vec<u8>,
    /// Columns that are to come.
    left: usize,
    /// Which columns came, for the bit-shift trellis.
    is_done: Vec<bool>,
    /// Columns that have strings, in the order in which they came, for the bit-shift trellis.
    coded: Vec<usize>,
    units: Vec<f32>,
    sums: [ColumnSums; N_CLASSES],
}

#[derive(Debug)]
enum Scheme {
    Lattice(SchemeSpec, Box<LatticeColumns>),
    Trellis(u32, Box<TrellisColumns>),
    Shift(ShiftHeader, Box<ShiftColumns>),
}

impl ColumnEncoder {
    /// An encoder of a matrix of `rows` x `cols` values.
    ///
    /// # Errors
    /// [`CodecError::Shape`]; [`CodecError::Rotation`]; [`CodecError::Header`] for a step or exponents out of range;
    /// [`CodecError::NoColumns`] for Rice codes and tiles.
    pub fn new(spec: &CodecSpec, rows: usize, cols: usize, options: &ColumnOptions) -> Result<Self, CodecError> {
        spec.check()?;
        crate::matrix::check_shape(rows.saturating_mul(cols), rows, cols)?;
        let bad = |field, found: String, expected: &str| {
            Err(CodecError::Header { field, found, expected: expected.to_owned() })
        };
        if !STEPS.contains(&options.step) {
            return bad("step", options.step.to_string(), STEPS_TEXT);
        }
        let expected = if matches!(spec.scheme, SchemeSpec::Shift { .. }) { 0 } else { cols };
        let exponents = &options.exponents;
        if exponents.len() != expected || exponents.iter().any(|&e| usize::from(e) >= N_EXPONENTS) {
            let found = format!("{} exponents up to {:?}", options.exponents.len(), options.exponents.iter().max());
            return bad("exponents", found, "one below 16 per column, none for the bit-shift trellis");
        }
        let row_exponents = &options.row_exponents;
        if !(row_exponents.is_empty() || row_exponents.len() == rows)
            || row_exponents.iter().any(|&e| usize::from(e) >= N_EXPONENTS)
        {
            let found = format!("{} exponents up to {:?}", row_exponents.len(), row_exponents.iter().max());
            return bad("row_exponents", found, "none, or one below 16 per row");
        }
        let scheme = match &spec.scheme {
            SchemeSpec::Lattice { lattice, code: CodeKind::Ans, .. } => {
                Scheme::Lattice(spec.scheme.clone(), Box::new(LatticeColumns::new(lattice.0, rows, options.reach)))
            }
            SchemeSpec::Trellis { states } => {
                Scheme::Trellis(*states, Box::new(TrellisColumns::new(*states, rows, options.reach)?))
            }
            SchemeSpec::Shift { state_bits, code, order: ShiftOrderKind::Rows } => {
                let RateTarget::PayloadBps(bits) = spec.target else {
                    return Err(CodecError::NoAlpha { codec: spec.name() });
                };
                let columns = ShiftColumns::new(bits as u8, *state_bits, *code, rows)?;
                let step = options.step * columns.step();
                let order = ShiftOrderKind::Rows;
                let header = ShiftHeader { bits: bits as u8, state_bits: *state_bits, code: *code, order, step };
                Scheme::Shift(header, Box::new(columns))
            }
            _ => return Err(CodecError::NoColumns { codec: spec.name() }),
        };
        let stored = |gain: &f32| (gain * GAIN_UNITS).round().clamp(1.0, 2.0 * GAIN_UNITS) as u16;
        Ok(Self {
            rows,
            cols,
            scheme,
            gains: options.gains.iter().map(stored).collect(),
            rotations: [options.inputs.to_rht(cols)?, options.outputs.to_rht(rows)?],
            options: options.clone(),
            bytes: vec![ZERO; cols],
            left: cols,
            is_done: vec![false; cols],
            coded: Vec::new(),
            units: vec![0.0; rows],
            sums: [ColumnSums::default(); N_CLASSES],
        })
    }

    /// The rotation of the inputs, for rows of the matrix.
    pub fn inputs(&self) -> Option<&Rht> {
        self.rotations[0].as_ref()
    }

    /// The rotation of the outputs, for columns of the matrix.
    pub fn outputs(&self) -> Option<&Rht> {
        self.rotations[1].as_ref()
    }

    /// Sums of each class over the columns so far.
    pub fn sums(&self) -> &[ColumnSums; N_CLASSES] {
        &self.sums
    }

    /// Rounds and codes column `col`, and writes its reconstruction to `out`: both of `rows` values, in the rotated frame.
    ///
    /// # Errors
    /// [`CodecError::NonFinite`], and [`CodecError::Magnitude`] for a value beyond what the codec holds at the column's step.
    ///
    /// # Panics
    /// Unless columns come from the last to the first (under the bit-shift trellis: each once) and `x` and `out` hold one value per
    /// row.
    pub fn round_column(&mut self, col: usize, x: &[f32], out: &mut [f32]) -> Result<(), CodecError> {
        let is_next = match self.scheme {
            Scheme::Shift(..) => !self.is_done[col],
            _ => col + 1 == self.left,
        };
        assert!(is_next && x.len() == self.rows && out.len() == self.rows, "column {col}, {} to come", self.left);
        crate::matrix::check_finite(x, 1)?;
        self.left -= 1;
        self.is_done[col] = true;
        let spread = (x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len() as f64).sqrt();
        let exponent = self.options.exponents.get(col).copied().unwrap_or(0);
        let step = code::step(self.options.step, exponent);
        let alpha = (spread / f64::from(step)) as f32;
        let (byte, factor) = match &mut self.scheme {
            Scheme::Lattice(_, columns) => {
                check_magnitude(x, step, lattice::MAX_SCALED)?;
                if !columns.round(x, step, &mut self.units) {
                    (ZERO, 0.0)
                } else {
                    let class = columns.class(alpha);
                    columns.push(class)?;
                    self.sums[usize::from(class)].add(x, &self.units, step);
                    (code::pack(exponent, class), step * code::gain(&self.gains, class))
                }
            }
            Scheme::Trellis(_, columns) => {
                check_magnitude(x, step, trellis::MAX_SCALED)?;
                if alpha < LEAST_TRELLIS_SPREAD {
                    (ZERO, 0.0)
                } else {
                    let class = columns.class(alpha);
                    columns.push(x, step, class, &mut self.units)?;
                    self.sums[usize::from(class)].add(x, &self.units, step);
                    (code::pack(exponent, class), step * code::gain(&self.gains, class))
                }
            }
            Scheme::Shift(header, columns) => {
                let byte = code::scale_byte(self.options.step, spread as f32);
                match byte {
                    ZERO => (ZERO, 0.0),
                    _ => {
                        let factor = code::scale(header.step, byte);
                        columns.push(x, factor / columns.step(), &mut self.units)?;
                        self.coded.push(col);
                        (byte, factor)
                    }
                }
            }
        };
        self.bytes[col] = byte;
        if byte == ZERO {
            out.fill(0.0);
        } else {
            out.iter_mut().zip(&self.units).for_each(|(out, unit)| *out = factor * unit);
        }
        Ok(())
    }

    /// The matrix, once all columns were given.
    ///
    /// # Errors
    /// [`CodecError::Streams`] for values that no stream holds, [`CodecError::TooFewBits`] for a matrix that is nearly all zeros.
    ///
    /// # Panics
    /// If columns are missing.
    pub fn finish(self) -> Result<EncodedMatrix, CodecError> {
        assert_eq!(self.left, 0, "columns are missing");
        let words_plane = |words| Plane::owned(WORDS, PlaneData::U32(Cow::Owned(words)));
        let lengths_plane = |lengths| Plane::owned(LENGTHS, PlaneData::U16(Cow::Owned(lengths)));
        let step = self.options.step;
        let mut gains = self.gains;
        let (scheme, mut planes) = match self.scheme {
            Scheme::Lattice(SchemeSpec::Lattice { lattice, .. }, columns) => {
                let (table, raw_bits) = columns.code();
                let code = CodeHeader::Ans { table, raw_bits };
                let (words, lengths) = columns.finish()?;
                let header = SchemeHeader::Lattice(LatticeHeader { lattice, alpha: 1.0 / step, step, code });
                (header, vec![words_plane(words), lengths_plane(lengths)])
            }
            Scheme::Trellis(states, columns) => {
                let header = SchemeHeader::Trellis(TrellisHeader { states, step, table: columns.table() });
                let (words, lengths) = columns.finish()?;
                (header, vec![words_plane(words), lengths_plane(lengths)])
            }
            Scheme::Shift(header, columns) => {
                gains.clear();
                (SchemeHeader::Shift(header), vec![words_plane(columns.finish(&self.coded))])
            }
            Scheme::Lattice(..) => unreachable!("lattice columns are made from lattice specifications"),
        };
        let one = GAIN_UNITS as u16;
        gains.truncate(gains.iter().rposition(|&gain| gain != one).map_or(0, |last| last + 1));
        planes.push(Plane::owned(COLUMNS, PlaneData::U8(Cow::Owned(self.bytes))));
        let row_exponents = !self.options.row_exponents.is_empty();
        if row_exponents {
            let bytes = code::pack_rows(&self.options.row_exponents);
            planes.push(Plane::owned(ROW_EXPONENTS, PlaneData::U8(Cow::Owned(bytes))));
        }
        let n_bits = 8 * planes
            .iter()
            .filter(|plane| plane.name != LENGTHS && plane.name != ROW_EXPONENTS)
            .map(|plane| plane.data.n_bytes() as u64)
            .sum::<u64>();
        check_vouched(self.rows as u64 * self.cols as u64, n_bits)?;
        let [inputs, outputs] = self.rotations.each_ref().map(|rht| RotationHeader::of(rht.as_ref()));
        let header = MatrixHeader {
            rows: self.rows as u64,
            cols: self.cols as u64,
            rotation: inputs,
            columns: Some(ColumnsHeader { outputs, gains, row_exponents }),
            scheme,
        };
        Ok(EncodedMatrix { header, planes })
    }
}

impl ColumnSums {
    fn add(&mut self, x: &[f32], units: &[f32], step: f32) {
        let (mut product, mut power) = (0.0f64, 0.0f64);
        for (&x, &unit) in x.iter().zip(units) {
            product += f64::from(x) * f64::from(unit);
            power += f64::from(unit) * f64::from(unit);
        }
        self.product += product / f64::from(step);
        self.power += power;
    }
}

/// Steps that a matrix may have, far from the ends of single precision.
pub(crate) const STEPS: std::ops::RangeInclusive<f32> =
    f32::from_bits((127 - 100) << 23)..=f32::from_bits((127 + 100) << 23);
/// The same for people.
pub(crate) const STEPS_TEXT: &str = "2^-100 to 2^100";

fn check_magnitude(x: &[f32], step: f32, max: f32) -> Result<(), CodecError> {
    let alpha = 1.0 / step;
    match x.iter().position(|v| v.abs() * alpha > max) {
        Some(row) => Err(CodecError::Magnitude { row, found: x[row].abs() * alpha, max }),
        None => Ok(()),
    }
}

/// Payload, in bits per value, of a column of Gaussian values that spread over `alpha` of its steps, by the stored curves; 0 for a
/// column that is stored as zeros. `None` for codecs without a step: the bit-shift trellis.
#[must_use]
pub fn gaussian_payload_bps(scheme: &SchemeSpec, alpha: f64) -> Option<f64> {
    match scheme {
        SchemeSpec::Lattice { lattice, code, .. } => Some(gaussian_bps(lattice.0, *code, alpha)),
        SchemeSpec::Trellis { .. } if alpha < f64::from(LEAST_TRELLIS_SPREAD) => Some(0.0),
        SchemeSpec::Trellis { states } => Some(curve_of(*states).at_alpha(alpha).payload_bps),
        SchemeSpec::Shift { .. } => None,
    }
}
