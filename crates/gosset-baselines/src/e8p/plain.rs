//! The codebook without calibration.

use gosset_entropy::Rate;

use super::codebook::{ALPHA, Codebook, P};
use crate::baseline::check_shape;
use crate::groups::CODES;
use crate::higgs::piecewise_rate;
use crate::pack::{pack, packed_len, unpack};
use crate::rows::{Rotation, SCALES, normalize, restore};
use crate::{Baseline, BaselineError, Encoded, Plane};

/// Rotated rows of unit RMS to the nearest of 65536 codewords of 8 values: 16 bits each.
///
/// Rotation and scale (one bf16 per row) are those of Gosset's codecs. Pieces of 8 run through the rows without regard to their ends.
#[derive(Debug, Clone)]
pub struct E8pRtn {
    codebook: Codebook,
    rotation: Rotation,
}

impl E8pRtn {
    /// The method after this rotation.
    pub fn new(rotation: Rotation) -> Self {
        E8pRtn { codebook: Codebook::new(), rotation }
    }
}

impl Baseline for E8pRtn {
    fn name(&self) -> &str {
        "e8p-rtn"
    }

    fn payload_bps(&self) -> f64 {
        2.0
    }

    fn encode(&self, rows: usize, cols: usize, weights: &[f32]) -> Result<Encoded, BaselineError> {
        let (values, scales) = normalize(self.rotation, rows, cols, weights)?;
        let codes: Vec<u16> = values
            .chunks(P)
            .map(|chunk| {
                let mut piece = [0.0; P];
                piece.iter_mut().zip(chunk).for_each(|(p, v)| *p = v * ALPHA);
                self.codebook.nearest(&piece).0
            })
            .collect();
        let rate: Rate = piecewise_rate(values.len(), rows, P, 16);
        Ok(Encoded { planes: vec![Plane { name: CODES, bytes: pack(&codes, 16) }, scales], rate, fallback: None })
    }

    fn decode(&self, rows: usize, cols: usize, encoded: &Encoded) -> Result<Vec<f32>, BaselineError> {
        let n = check_shape(rows, cols)?;
        let n_pieces = n.div_ceil(P);
        let codes = encoded.plane(CODES, packed_len(n_pieces, 16))?;
        let scales = encoded.plane(SCALES, rows * 2)?;
        let mut values: Vec<f32> = Vec::with_capacity(n_pieces * P);
        for code in unpack(codes, 16) {
            values.extend(self.codebook.point(code).map(|v| v / ALPHA));
        }
        values.truncate(n);
        restore(self.rotation, rows, cols, scales, &mut values)?;
        Ok(values)
    }
}
