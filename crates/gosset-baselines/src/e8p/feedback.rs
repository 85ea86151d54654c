//! The codebook with error feedback.

use std::collections::HashMap;

use gosset_entropy::Rate;
use gosset_transform::Rht;
use gosset_unisvq::{
    DampingSpec, Feedback, Frame, Hessian, LdlqOptions, RefineOptions, Round, ldlq, proxy, refine, round_plain,
};

use super::codebook::{ALPHA, Codebook, P};
use crate::baseline::{check_hessian, check_shape, check_weights};
use crate::groups::CODES;
use crate::pack::{pack, packed_len, unpack};
use crate::rows::{Rotation, SCALES};
use crate::{Baseline, BaselineError, Encoded, Plane};

/// Candidates for the factor from values of unit RMS to the codebook: the best one for plain rounding, and smaller ones, which
/// leave room for what feedback adds to the values. The one with the least error of the outputs is kept.
const FACTORS: [f32; 3] = [0.9, 0.965, ALPHA];

/// Re-tuning passes at most, as in the publication.
const PASSES: u32 = 10;

/// The pass that gains less than this part of the error is the last one.
const MIN_GAIN: f64 = 2e-3;

/// Rows, spread evenly, on which the factor is chosen: their errors have the order of those of all rows.
const SAMPLE_ROWS: usize = 64;

/// QuIP#-style quantization: RHT on both sides, blocks of 8 inputs to the nearest of 65536 codewords with LDLQ error feedback, then
/// re-tuning passes; one f32 scale per matrix.
///
/// The rotation of inputs is that of Gosset's codecs, outputs are rotated likewise with the next seed. Damping, factors and sweep are
/// those of Gosset's own methods; codewords are nearest in the Euclidean sense, and passes take only what lowers the error. Without
/// second moments inputs count as uncorrelated, which is plain rounding. Fine-tuning is left out.
///
/// Source: Tseng et al., *QuIP#*, arXiv 2402.04396 (the description; no code).
#[derive(Debug, Clone)]
pub struct E8p {
    codebook: Codebook,
    rotation: Rotation,
}

impl E8p {
    /// The method after this rotation.
    pub fn new(rotation: Rotation) -> Self {
        E8p { codebook: Codebook::new(), rotation }
    }

    /// Rotations of inputs and outputs.
    fn rotations(&self, rows: usize, cols: usize) -> Result<(Rht, Rht), BaselineError> {
        let outputs = Rotation { seed: self.rotation.seed.wrapping_add(1), ..self.rotation };
        Ok((self.rotation.rht(rows, cols)?, outputs.rht(cols, rows)?))
    }

    /// Second moments in the frame of rotated inputs.
    fn rotate_moments(&self, hessian: &Hessian) -> Result<Hessian, BaselineError> {
        let frame = Frame::tiles(hessian.n(), self.rotation.tile, self.rotation.seed)?;
        Ok(hessian.transformed(|x| frame.enter_f64(x))?)
    }

    /// The codewords that stand for `values` of unit RMS, and the factor that they are scaled with.
    fn choose(&self, values: &[f32], rows: usize, hessian: Option<&Hessian>) -> Result<(Vec<u16>, f32), BaselineError> {
        let n = values.len() / rows;
        let moments = hessian.map(|hessian| self.rotate_moments(hessian)).transpose()?;
        let feedback = moments.map(|moments| Feedback::new(&moments, DampingSpec::default(), P)).transpose()?;
        let mut nearest = Nearest { codebook: &self.codebook, narrow: HashMap::new() };
        let mut sweep = |values: &[f32], factor: f32| -> Result<(Vec<f32>, Vec<f32>), BaselineError> {
            let scaled: Vec<f32> = values.iter().map(|v| v * factor).collect();
            let (mut out, rows) = (vec![0.0; values.len()], values.len() / n);
            let options = LdlqOptions { metric: false, ..LdlqOptions::default() };
            match &feedback {
                Some(feedback) => ldlq(&scaled, rows, feedback.ldl(), options, &mut nearest, &mut out)?,
                None => round_plain(&scaled, rows, n, P, options.panel, &mut nearest, &mut out)?,
            }
            Ok((scaled, out))
        };
        let n_sampled = rows.min(SAMPLE_ROWS);
        let sample: Vec<f32> = (0..n_sampled).flat_map(|i| &values[i * rows / n_sampled * n..][..n]).copied().collect();
        let (mut least, mut factor) = (f64::INFINITY, ALPHA);
        for candidate in FACTORS {
            let (scaled, out) = sweep(&sample, candidate)?;
            let errors: Vec<f64> = scaled.iter().zip(&out).map(|(a, b)| f64::from(a - b)).collect();
            let error = match &feedback {
                Some(feedback) => proxy(&errors, n_sampled, feedback.damped().as_slice()),
                None => errors.iter().map(|e| e * e).sum(),
            };
            let error = error / f64::from(candidate).powi(2);
            if error < least {
                (least, factor) = (error, candidate);
            }
        }
        let (scaled, mut out) = sweep(values, factor)?;
        if let Some(feedback) = &feedback {
            let tuning = RefineOptions { metric: false, min_gain: MIN_GAIN, ..RefineOptions::new(PASSES) };
            refine(&scaled, rows, feedback.damped(), P, tuning, &mut nearest, &mut out)?;
        }
        let blocks = out.chunks_exact(n).flat_map(|row| row.chunks(P));
        Ok((blocks.map(|block| nearest.code(block)).collect(), factor))
    }
}

/// Rounds blocks to the nearest codeword; values that a narrower last block lacks are zeros.
struct Nearest<'a> {
    codebook: &'a Codebook,
    /// Codes of what narrower blocks were rounded to, by the bits of the values.
    narrow: HashMap<Vec<u32>, u16>,
}

impl Nearest<'_> {
    /// The code of a block that is a codeword, or the beginning of one that was chosen.
    fn code(&self, block: &[f32]) -> u16 {
        match <&[f32; P]>::try_from(block) {
            Ok(point) => self.codebook.nearest(point).0,
            Err(_) => self.narrow.get(&bits(block)).copied().unwrap_or_default(),
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

impl Round for Nearest<'_> {
    fn round(&mut self, _block: usize, rows: usize, x: &[f32], _metric: Option<&[f64]>, out: &mut [f32]) {
        let d = x.len() / rows;
        for (x, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
            let mut piece = [0.0; P];
            piece[..d].copy_from_slice(x);
            let code = self.codebook.nearest(&piece).0;
            out.copy_from_slice(&self.codebook.point(code)[..d]);
            if d < P {
                self.narrow.insert(bits(out), code);
            }
        }
    }
}

/// `values`, `[rows, cols]`, as `[cols, rows]`.
fn transpose(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|j| (0..rows).map(move |i| values[i * cols + j])).collect()
}

impl Baseline for E8p {
    fn name(&self) -> &str {
        "e8p"
    }

    fn payload_bps(&self) -> f64 {
        2.0
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
        let (inputs, outputs) = self.rotations(rows, cols)?;
        let mut values = weights.to_vec();
        inputs.forward_rows(&mut values);
        let mut values = transpose(&values, rows, cols);
        outputs.forward_rows(&mut values);
        let mut values = transpose(&values, cols, rows);
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            return Err(BaselineError::NotFinite { row: i / cols, col: i % cols, value: values[i] });
        }
        let energy: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let rms = (energy / n as f64).sqrt() as f32;
        let pieces = cols.div_ceil(P);
        let (mut codes, mut scale) = (vec![0; rows * pieces], 0.0);
        // Matrices of zeros, or of numbers so small that they cannot be divided by, decode to zeros.
        if rms.is_normal() {
            values.iter_mut().for_each(|v| *v /= rms);
            let (chosen, factor) = self.choose(&values, rows, hessian)?;
            (codes, scale) = (chosen, rms / factor);
        }
        let payload_bits = n as u64 * 2;
        let planes = vec![
            Plane { name: CODES, bytes: pack(&codes, 16) },
            Plane { name: SCALES, bytes: scale.to_le_bytes().to_vec() },
        ];
        let rate = Rate {
            payload_bits,
            table_bits: 32,
            // The part of codes that stands for values beyond the ends of rows.
            header_bits: codes.len() as u64 * 16 - payload_bits,
            n: n as u64,
            ..Rate::default()
        };
        Ok(Encoded { planes, rate, fallback: None })
    }

    fn decode(&self, rows: usize, cols: usize, encoded: &Encoded) -> Result<Vec<f32>, BaselineError> {
        let n = check_shape(rows, cols)?;
        let pieces = cols.div_ceil(P);
        let codes = encoded.plane(CODES, packed_len(rows * pieces, 16))?;
        let scale = encoded.plane(SCALES, 4)?;
        let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
        let (inputs, outputs) = self.rotations(rows, cols)?;
        let mut values = Vec::with_capacity(n);
        for (i, code) in unpack(codes, 16).enumerate() {
            let width = P.min(cols - i % pieces * P);
            values.extend(self.codebook.point(code)[..width].iter().map(|v| v * scale));
        }
        let mut values = transpose(&values, rows, cols);
        outputs.inverse_rows(&mut values);
        let mut values = transpose(&values, cols, rows);
        inputs.inverse_rows(&mut values);
        Ok(values)
    }
}
