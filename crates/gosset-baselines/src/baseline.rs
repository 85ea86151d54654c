//! What a baseline is: a matrix to bytes and back.

use std::fmt::Debug;

use gosset_entropy::Rate;
use gosset_unisvq::Hessian;

use crate::BaselineError;

/// A method that turns a matrix into bytes and bytes into a matrix.
///
/// Rows run along the output dimension and are contiguous. Callers split work by tensor; what implementations find and store does not
/// depend on threads.
pub trait Baseline: Debug + Send + Sync {
    /// Name of the family, such as `rtn-g128`.
    fn name(&self) -> &str;

    /// Bits of codes per weight: the R of `name@R`. What is stored beside codes is in the rate of an encoded matrix.
    fn payload_bps(&self) -> f64;

    /// The planes of a matrix of `rows` x `cols` weights.
    ///
    /// # Errors
    /// [`BaselineError::Shape`] if there are not `rows * cols` weights or none, [`BaselineError::NotFinite`] for values that no
    /// method can keep, and whatever else the method cannot do.
    fn encode(&self, rows: usize, cols: usize, weights: &[f32]) -> Result<Encoded, BaselineError>;

    /// Whether the method is what its name says only with second moments of the inputs of the matrix.
    fn needs_calibration(&self) -> bool {
        false
    }

    /// As [`encode`](Baseline::encode), with the second moments of the inputs if they are known. Methods that use none ignore them;
    /// those that do take the identity for missing ones.
    ///
    /// # Errors
    /// As for [`encode`](Baseline::encode), and [`BaselineError::Shape`] for second moments of another number of inputs.
    fn encode_calibrated(
        &self,
        rows: usize,
        cols: usize,
        weights: &[f32],
        hessian: Option<&Hessian>,
    ) -> Result<Encoded, BaselineError> {
        check_hessian(rows, cols, hessian)?;
        self.encode(rows, cols, weights)
    }

    /// The weights that the planes of `encoded` stand for, from those bytes alone.
    ///
    /// # Errors
    /// [`BaselineError::PlaneLength`] for planes that are not those of such a matrix.
    fn decode(&self, rows: usize, cols: usize, encoded: &Encoded) -> Result<Vec<f32>, BaselineError>;

    /// `name@R`.
    fn label(&self) -> String {
        format!("{}@{}", self.name(), self.payload_bps())
    }
}

/// A matrix in its packed form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Everything that is stored.
    pub planes: Vec<Plane>,
    /// The bits of the planes by cause; they add up to their bytes.
    pub rate: Rate,
    /// The type that stands in for the method on a matrix that it cannot encode; `None` where it could.
    pub fallback: Option<&'static str>,
}

/// Packed bytes of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plane {
    /// What they hold, such as `codes`.
    pub name: &'static str,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Encoded {
    /// Bytes of all planes together.
    pub fn n_bytes(&self) -> u64 {
        self.planes.iter().map(|plane| plane.bytes.len() as u64).sum()
    }

    /// The bytes of a plane of exactly `expected` bytes.
    ///
    /// # Errors
    /// [`BaselineError::PlaneLength`]; a missing plane has length 0.
    pub fn plane(&self, name: &'static str, expected: usize) -> Result<&[u8], BaselineError> {
        let bytes = self.planes.iter().find(|plane| plane.name == name).map_or(&[][..], |plane| &plane.bytes);
        if bytes.len() != expected {
            return Err(BaselineError::PlaneLength { plane: name, expected, found: bytes.len() });
        }
        Ok(bytes)
    }
}

/// Largest number of weights: what it takes to hold them as f32 stays far from the end of any address space.
const MAX_WEIGHTS: usize = 1 << 34;

/// The number of weights of a matrix that is neither empty nor absurd.
pub(crate) fn check_shape(rows: usize, cols: usize) -> Result<usize, BaselineError> {
    let shape = |what: String| BaselineError::Shape { rows, cols, what };
    match rows.checked_mul(cols) {
        Some(0) => Err(shape("expected at least one weight".into())),
        Some(n) if n <= MAX_WEIGHTS => Ok(n),
        _ => Err(shape(format!("expected at most {MAX_WEIGHTS} weights"))),
    }
}

/// Refuses second moments of another number of inputs.
pub(crate) fn check_hessian(rows: usize, cols: usize, hessian: Option<&Hessian>) -> Result<(), BaselineError> {
    match hessian {
        Some(h) if h.n() != cols => {
            let what = format!("expected second moments of {cols} inputs, found those of {}", h.n());
            Err(BaselineError::Shape { rows, cols, what })
        }
        _ => Ok(()),
    }
}

/// The number of weights, after a look at each of them.
pub(crate) fn check_weights(rows: usize, cols: usize, weights: &[f32]) -> Result<usize, BaselineError> {
    let n = check_shape(rows, cols)?;
    if weights.len() != n {
        return Err(BaselineError::Shape {
            rows,
            cols,
            what: format!("expected {n} weights, found {}", weights.len()),
        });
    }
    match weights.iter().position(|w| !w.is_finite()) {
        Some(i) => Err(BaselineError::NotFinite { row: i / cols, col: i % cols, value: weights[i] }),
        None => Ok(n),
    }
}
