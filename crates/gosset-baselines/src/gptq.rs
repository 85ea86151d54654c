//! GPTQ: rounding to nearest in groups, column by column, with error feedback.

use gosset_entropy::Rate;
use gosset_unisvq::{DampingSpec, Hessian, LdlqOptions, Round, ldlq, round_plain};

use crate::baseline::{check_hessian, check_shape, check_weights};
use crate::groups::{CODES, groups_per_row, read_scales};
use crate::pack::{pack, packed_len, padding_bits, unpack};
use crate::rows::SCALES;
use crate::rtn::{Rtn, ZEROS};
use crate::{Baseline, BaselineError, Encoded, Plane};

/// Name of the plane of the order of columns.
const ORDER: &str = "order";

/// Weights that share a scale.
const GROUP: usize = 128;

/// Asymmetric groups of 128 weights of a row, each with an fp16 scale and a zero point, rounded column by column; the error of a
/// column moves into the columns that are still to come.
///
/// With `act_order` (the name `gptq`) columns come in the order of falling activations, so that the errors of important inputs can
/// still be made up for. Groups are then consecutive in that order, and the order is stored, 16 bits per column. Without (`gptq-noact`)
/// columns come from first to last; where the width is no multiple of 128 the first group is the short one. Scales are set from what
/// the weights of a group have become when its turn comes. The damping is 0.01 of the mean square of the inputs; inputs that
/// calibration never saw keep their weights.
///
/// Feedback by the factors of the second moments is feedback by the Cholesky factor of their inverse: the two algorithms are one
/// (Chee et al., *QuIP*, arXiv 2307.13304, theorem 6).
///
/// Source: Frantar et al., *GPTQ*, arXiv 2210.17323.
#[derive(Debug, Clone)]
pub struct Gptq {
    rtn: Rtn,
    bits: u32,
    act_order: bool,
}

impl Gptq {
    /// Codes of `bits` bits.
    ///
    /// # Errors
    /// [`BaselineError::Rate`] unless `bits` is 2 to 8.
    pub fn new(bits: u32, act_order: bool) -> Result<Self, BaselineError> {
        Ok(Gptq { rtn: Rtn::new(bits, GROUP, false)?, bits, act_order })
    }

    /// Bits of the plane of the order.
    fn order_bits(&self, cols: usize) -> usize {
        if self.act_order { cols * 16 } else { 0 }
    }

    /// The columns in the order in which they are rounded.
    fn order(&self, cols: usize, hessian: Option<&Hessian>) -> Vec<usize> {
        let mut order: Vec<usize> = (0..cols).collect();
        if let (true, Some(hessian)) = (self.act_order, hessian) {
            let power = |j: usize| hessian.as_slice()[j * (cols + 1)];
            order.sort_by(|&a, &b| power(b).total_cmp(&power(a)));
        }
        order
    }
}

/// The columns of the groups of a row, in the order in which they are rounded: the first one is the short one.
fn group_of(cols: usize, place: usize) -> usize {
    let missing = groups_per_row(cols, GROUP) * GROUP - cols;
    (place + missing) / GROUP
}

/// Rounds columns and keeps their codes; the last column it is given is the first in order.
struct Columns<'a> {
    rtn: &'a Rtn,
    cols: usize,
    /// Codes by row and place in the order.
    codes: Vec<u16>,
    /// Scale and zero point by row and group.
    parameters: Vec<(half::f16, u16)>,
    error: Option<BaselineError>,
}

impl Round for Columns<'_> {
    fn round(&mut self, block: usize, _rows: usize, x: &[f32], _metric: Option<&[f64]>, out: &mut [f32]) {
        let place = self.cols - 1 - block;
        let (group, n_groups) = (group_of(self.cols, place), groups_per_row(self.cols, GROUP));
        for (row, (x, out)) in x.iter().zip(out).enumerate() {
            let (scale, zero) = self.parameters[row * n_groups + group];
            let (scale, zero) = (scale.to_f32(), f32::from(zero));
            let code = self.rtn.code(*x, scale, zero);
            self.codes[row * self.cols + place] = code as u16;
            *out = (code - zero) * scale;
        }
    }

    fn enter(&mut self, first_column: usize, rows: usize, x: &[f32]) {
        let width = x.len() / rows;
        let group = group_of(self.cols, self.cols - first_column - width);
        let n_groups = groups_per_row(self.cols, GROUP);
        for (row, values) in x.chunks_exact(width).enumerate() {
            match self.rtn.parameters(values) {
                Ok(parameters) => self.parameters[row * n_groups + group] = parameters,
                Err(scale) => self.error = Some(BaselineError::Scale { row, group, scale }),
            }
        }
    }

    fn wants_panels(&self) -> bool {
        true
    }
}

impl Baseline for Gptq {
    fn name(&self) -> &str {
        if self.act_order { "gptq" } else { "gptq-noact" }
    }

    fn payload_bps(&self) -> f64 {
        f64::from(self.bits)
    }

    fn needs_calibration(&self) -> bool {
        true
    }

    fn encode(&self, rows: usize, cols: usize, weights: &[f32]) -> Result<Encoded, BaselineError> {
        self.encode_calibrated(rows, cols, weights, None)
    }

    fn encode_calibrated(
        &self,
        rows: usize,
        cols: usize,
        weights: &[f32],
        hessian: Option<&Hessian>,
    ) -> Result<Encoded, BaselineError> {
        let n = check_weights(rows, cols, weights)?;
        check_hessian(rows, cols, hessian)?;
        if self.act_order && cols > 1 << 16 {
            let what = format!("expected at most {} columns, whose order takes 16 bits each", 1 << 16);
            return Err(BaselineError::Shape { rows, cols, what });
        }
        let order = self.order(cols, hessian);
        // The sweep goes from the last column to the first.
        let swept: Vec<usize> = order.iter().rev().copied().collect();
        let permuted: Vec<f32> =
            weights.chunks_exact(cols).flat_map(|row| swept.iter().map(move |&j| row[j])).collect();
        let n_groups = rows * groups_per_row(cols, GROUP);
        let mut columns = Columns {
            rtn: &self.rtn,
            cols,
            codes: vec![0; n],
            parameters: vec![(half::f16::ZERO, 0); n_groups],
            error: None,
        };
        let mut out = vec![0.0; n];
        match hessian {
            Some(hessian) => {
                let (_, ldl) = DampingSpec::default().factor(&hessian.permuted(&swept)?, 1)?;
                let options = LdlqOptions { metric: false, panel: GROUP };
                ldlq(&permuted, rows, &ldl, options, &mut columns, &mut out)?;
            }
            None => round_plain(&permuted, rows, cols, 1, GROUP, &mut columns, &mut out)?,
        }
        if let Some(error) = columns.error {
            return Err(error);
        }
        let scales = columns.parameters.iter().flat_map(|(scale, _)| scale.to_le_bytes()).collect();
        let zeros: Vec<u16> = columns.parameters.iter().map(|(_, zero)| *zero).collect();
        let mut planes = vec![
            Plane { name: CODES, bytes: pack(&columns.codes, self.bits) },
            Plane { name: SCALES, bytes: scales },
            Plane { name: ZEROS, bytes: pack(&zeros, self.bits) },
        ];
        if self.act_order {
            let order = order.iter().flat_map(|&j| (j as u16).to_le_bytes()).collect();
            planes.push(Plane { name: ORDER, bytes: order });
        }
        let rate = Rate {
            payload_bits: n as u64 * u64::from(self.bits),
            table_bits: n_groups as u64 * (16 + u64::from(self.bits)) + self.order_bits(cols) as u64,
            header_bits: padding_bits(n, self.bits) + padding_bits(n_groups, self.bits),
            n: n as u64,
            ..Rate::default()
        };
        Ok(Encoded { planes, rate, fallback: None })
    }

    fn decode(&self, rows: usize, cols: usize, encoded: &Encoded) -> Result<Vec<f32>, BaselineError> {
        let n = check_shape(rows, cols)?;
        let n_groups = groups_per_row(cols, GROUP);
        let codes: Vec<u16> = unpack(encoded.plane(CODES, packed_len(n, self.bits))?, self.bits).take(n).collect();
        let scales: Vec<f32> = read_scales(encoded.plane(SCALES, rows * n_groups * 2)?).collect();
        let zeros = encoded.plane(ZEROS, packed_len(rows * n_groups, self.bits))?;
        let zeros: Vec<u16> = unpack(zeros, self.bits).take(rows * n_groups).collect();
        let order: Vec<usize> = if self.act_order {
            let bytes = encoded.plane(ORDER, self.order_bits(cols) / 8)?;
            // A damaged order may name columns that there are not; those weights are dropped, and what nobody names stays zero.
            bytes.as_chunks::<2>().0.iter().map(|b| usize::from(u16::from_le_bytes(*b))).collect()
        } else {
            (0..cols).collect()
        };
        let mut out = vec![0.0; n];
        for (row, (codes, out)) in codes.chunks_exact(cols).zip(out.chunks_exact_mut(cols)).enumerate() {
            for (place, (code, column)) in codes.iter().zip(&order).enumerate() {
                let group = row * n_groups + group_of(cols, place);
                if let Some(value) = out.get_mut(*column) {
                    *value = (f32::from(*code) - f32::from(zeros[group])) * scales[group];
                }
            }
        }
        Ok(out)
    }
}
