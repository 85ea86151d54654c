//! From a matrix to header and planes.

use std::borrow::Cow;

use gosset_entropy::Rate;
use gosset_transform::{Rht, TilePlan};

use crate::matrix::{check_finite, check_shape};
use crate::plane::{Plane, PlaneData};
use crate::scale::{fold_gains, normalize_rows};
use crate::scheme::{self, EncodedUnits, Units};
use crate::{CodecError, CodecSpec, EncodedMatrix, MatRef, MatrixHeader, RotationHeader, RotationSpec};

/// Scale of each row, bf16.
pub(crate) const SCALES: &str = "scales";
/// Indices of the rows that are stored exactly, ascending.
pub(crate) const EXACT_ROWS: &str = "exact_rows";
/// Values of those rows in the original basis, one row after the other.
pub(crate) const EXACT_VALUES: &str = "exact_values";

/// Encoder of matrices, made by [`CodecSpec::check`].
#[derive(Debug, Clone, PartialEq)]
pub struct Codec {
    spec: CodecSpec,
}

/// What a matrix is expected to take before its values are known; exact for all causes but payload and padding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateEstimate {
    /// Expected bits by cause.
    pub rate: Rate,
    /// Expected signal-to-noise ratio in decibels, for values that are Gaussian after rotation.
    pub snr_db: f64,
}

impl Codec {
    /// A codec of a checked specification.
    pub(crate) fn new(spec: CodecSpec) -> Self {
        Self { spec }
    }

    /// The specification.
    pub fn spec(&self) -> &CodecSpec {
        &self.spec
    }

    /// Encodes a matrix; its values are copied once.
    ///
    /// # Errors
    /// Those of [`Codec::encode_owned`].
    pub fn encode(&self, m: MatRef<'_>) -> Result<EncodedMatrix, CodecError> {
        self.encode_owned(m.data().to_vec(), m.rows(), m.cols())
    }

    /// Encodes a row-major matrix of `rows` x `cols` values in place: memory is the data, the output and small scratch.
    ///
    /// The result depends on the values and the specification only, not on the machine or the number of threads.
    ///
    /// # Errors
    /// [`CodecError::Shape`]; [`CodecError::NonFinite`] with the place of the first NaN or infinity;
    /// [`CodecError::Rotation`] for a width that has no tile plan; [`CodecError::Magnitude`] for a fixed alpha at which
    /// a value leaves the range of the lattice.
    pub fn encode_owned(&self, mut data: Vec<f32>, rows: usize, cols: usize) -> Result<EncodedMatrix, CodecError> {
        check_shape(data.len(), rows, cols)?;
        check_finite(&data, cols)?;
        let rht = self.rht(cols)?;
        let frame = normalize_rows(&mut data, cols, rht.as_ref());
        let exact_bits = 32 * (frame.exact_rows.len() + frame.exact_values.len()) as u64;
        let (peak, peak_row) = (frame.peak, frame.peak_row);
        let units = Units { values: &data, rows, cols, peak, peak_row, spent_bits: exact_bits };
        let encoded = scheme::encode(&self.spec.scheme, self.spec.target, &units)?;
        let EncodedUnits { header: scheme, mut planes, gains } = encoded;
        let scales = match gains {
            Some(gains) => fold_gains(frame.scales, &gains),
            None => frame.scales,
        };
        planes.push(Plane::owned(SCALES, PlaneData::Bf16(Cow::Owned(scales))));
        if !frame.exact_rows.is_empty() {
            planes.push(Plane::owned(EXACT_ROWS, PlaneData::U32(Cow::Owned(frame.exact_rows))));
            planes.push(Plane::owned(EXACT_VALUES, PlaneData::F32(Cow::Owned(frame.exact_values))));
        }
        let rotation = RotationHeader::of(rht.as_ref());
        Ok(EncodedMatrix {
            header: MatrixHeader { rows: rows as u64, cols: cols as u64, rotation, columns: None, scheme },
            planes,
        })
    }

    /// What a matrix of that shape is expected to take.
    pub fn estimate(&self, rows: usize, cols: usize) -> RateEstimate {
        let n = (rows as u64).saturating_mul(cols as u64);
        let mut estimate = scheme::estimate(&self.spec.scheme, self.spec.target, rows as u64, cols as u64);
        estimate.rate.scale_bits += 16 * rows as u64;
        estimate.rate.n = n;
        estimate
    }

    fn rht(&self, cols: usize) -> Result<Option<Rht>, CodecError> {
        match self.spec.rotation {
            RotationSpec::None => Ok(None),
            RotationSpec::Rht { tile, seed } => Ok(Some(Rht::new(TilePlan::new(cols, tile)?, seed))),
        }
    }
}
