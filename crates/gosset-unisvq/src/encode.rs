//! From weights to codes.

use serde::{Deserialize, Serialize};

use crate::grid::{Grid, initial_map};
use crate::incoherence::Frame;
use crate::ldlq::check_matrix;
use crate::matrix::{UniSvqHeader, UniSvqMatrix};
use crate::parallel::{map_chunks_mut, map_indexed};
use crate::{
    DampingMethod, DampingReport, DampingSpec, Feedback, GridInit, Hessian, Incoherence, LdlqOptions, RefineOptions,
    UniSvq, UniSvqError, ldlq, pack, refine, relative_proxy,
};

/// Rows on which candidates of c are compared: enough that their order is the order on all rows, few enough to cost little.
const SAMPLE_ROWS: usize = 64;

/// Re-tuning passes of the comparison.
const SAMPLE_PASSES: u32 = 1;

/// Rows that one task rotates.
const ROWS: usize = 16;

/// What an encoder did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UniSvqReport {
    /// The candidate of c that was taken.
    pub c: f64,
    /// Damping of the second moments; `None` where there were none.
    pub damping: Option<DampingReport>,
    /// Relative proxy tr(E H Eᵀ) / tr(W H Wᵀ) of plain rounding at the same scale, under the damped second moments.
    pub plain: f64,
    /// Relative proxy of the result.
    pub proxy: f64,
    /// Re-tuning passes that ran.
    pub passes: u32,
    /// Whether the result is plain rounding, because there were no second moments or feedback did not help.
    pub is_plain: bool,
}

impl UniSvq {
    /// Quantizes `w`, `[rows, cols]` row-major, for inputs with the second moments `hessian`; for uncorrelated inputs of the same power
    /// without.
    ///
    /// Both sides enter their frames, whose signs depend on seed and width alone, so that matrices that read the same input share its
    /// rotation. Each candidate of c is tried on up to 64 rows, spread evenly; then all rows go through error feedback and re-tuning,
    /// and one least-squares factor in the metric of the second moments is put into the scale if it helps. The result is never worse
    /// than plain rounding at the same c, and the same bits for any number of threads.
    ///
    /// # Errors
    /// [`UniSvqError::Shape`] for lengths that do not belong together, [`UniSvqError::NonFinite`] for NaN, infinities and weights
    /// whose rotation overflows, [`UniSvqError::Frame`] and [`UniSvqError::Parameter`] for sizes out of range.
    ///
    /// ```
    /// use gosset_unisvq::UniSvqSpec;
    ///
    /// let w: Vec<f32> = (0..64 * 128u32).map(|i| ((i * i % 10007) as f32 * 0.7).sin()).collect();
    /// let (matrix, report) = UniSvqSpec::named("unisvq", 2.0)?.check()?.encode(&w, 64, 128, None)?;
    /// assert_eq!(matrix.codes.len(), 64 * 32);
    /// assert!(report.proxy < 0.13, "{report:?}");
    /// let mut back = vec![0.0; w.len()];
    /// matrix.decoder()?.decode_rows(0..64, &mut back);
    /// let error: f32 = w.iter().zip(&back).map(|(a, b)| (a - b).powi(2)).sum();
    /// assert!(error < 0.13 * w.iter().map(|v| v * v).sum::<f32>());
    /// # Ok::<(), gosset_unisvq::UniSvqError>(())
    /// ```
    pub fn encode(
        &self,
        w: &[f32],
        rows: usize,
        cols: usize,
        hessian: Option<&Hessian>,
    ) -> Result<(UniSvqMatrix, UniSvqReport), UniSvqError> {
        let spec = &self.spec;
        check_matrix("weights", w.len(), rows, cols)?;
        if let Some(found) = hessian.map(Hessian::n).filter(|&n| n != cols) {
            let (expected, found) = (format!("{cols} inputs"), found.to_string());
            return Err(UniSvqError::Shape { what: "second moments", expected, found });
        }
        check_finite("weights", w, cols)?;
        let (input, output) = (self.frame(cols, spec.seed)?, self.frame(rows, spec.seed.wrapping_add(1))?);
        let mut header = UniSvqHeader {
            rows: rows as u64,
            cols: cols as u64,
            bits: spec.bits,
            dim: spec.dim,
            scale: 0.0,
            affine: (spec.init != GridInit::Identity).then(|| initial_map(spec.init, spec.bits, spec.dim, spec.seed)),
            input: input.header(),
            output: output.header(),
        };
        header.check()?;
        let mut rotated = w.to_vec();
        map_chunks_mut(&mut rotated, ROWS * cols, |_, part| {
            part.chunks_exact_mut(cols).for_each(|row| input.enter(row));
        });
        output.enter_columns(&mut rotated, cols);
        check_finite("rotated weights", &rotated, cols)?;

        let rms = (rotated.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / rotated.len() as f64).sqrt();
        let feedback = hessian.map(|h| self.feedback(h, &input)).transpose()?;
        let damping = feedback.as_ref().map(|f| f.damped().report());
        let h = Metric { feedback: feedback.as_ref(), dim: usize::from(spec.dim), passes: spec.passes };
        let scale_of = |c: f64| (rms / c * self.unit()) as f32;
        let mut best: Option<(f64, f64)> = None;
        let sample: Vec<f32> = {
            let n = SAMPLE_ROWS.min(rows);
            (0..n).flat_map(|i| &rotated[i * rows / n * cols..][..cols]).copied().collect()
        };
        let proxies = map_indexed(spec.scales.len(), |i| {
            let scale = scale_of(spec.scales[i]);
            let mut grid = Grid::of(&UniSvqHeader { scale, ..header.clone() });
            if scale > 0.0 { h.sample(&sample, cols, &mut grid) } else { Ok(0.0) }
        });
        for (&c, proxy) in spec.scales.iter().zip(proxies) {
            let proxy = proxy?;
            if best.is_none_or(|(least, _)| proxy < least) {
                best = Some((proxy, c));
            }
        }
        let c = best.map_or(1.0, |(_, c)| c);
        header.scale = scale_of(c);
        if header.scale == 0.0 {
            // Nothing but zeros, or numbers too small for a scale: codes of zeros at a scale of zero.
            let codes = vec![0; pack::row_bytes(cols, spec.bits) * rows];
            let report = UniSvqReport { c, damping, plain: 0.0, proxy: 0.0, passes: 0, is_plain: true };
            return Ok((UniSvqMatrix { header, codes, input_scales: None, output_scales: None }, report));
        }
        let mut grid = Grid::of(&header);
        let mut points = vec![0f32; rotated.len()];
        let mut report = h.all(&rotated, rows, &mut grid, &mut points)?;
        (report.c, report.damping) = (c, damping);
        let codes = grid.codes_of(&points, cols);
        h.refit(&rotated, rows, &points, &mut header.scale, &mut report);
        let row_bytes = pack::row_bytes(cols, spec.bits);
        let mut packed = vec![0u8; row_bytes * rows];
        for (codes, out) in codes.chunks_exact(cols).zip(packed.chunks_exact_mut(row_bytes)) {
            pack::pack_row(codes, spec.bits, out);
        }
        Ok((UniSvqMatrix { header, codes: packed, input_scales: None, output_scales: None }, report))
    }

    fn frame(&self, width: usize, seed: u64) -> Result<Frame, UniSvqError> {
        match self.spec.incoherence {
            Incoherence::None => Ok(Frame::identity(width)),
            Incoherence::Tiles { tile } => Frame::tiles(width, tile, seed),
            Incoherence::Full => Frame::full(width, seed),
        }
    }

    /// What the scale of a header is for weights of RMS 1 and c = 1.
    fn unit(&self) -> f64 {
        let levels = f64::from(1u32 << self.spec.bits);
        // A map of its own has unit variance; the centred codes have a variance of (levels² - 1)/12.
        if self.spec.init == GridInit::Identity { (12.0 / (levels * levels - 1.0)).sqrt() } else { 1.0 }
    }

    /// Second moments in the frame of the input, damped and factored.
    fn feedback(&self, hessian: &Hessian, input: &Frame) -> Result<Feedback, UniSvqError> {
        let dim = usize::from(self.spec.dim);
        if input.is_identity() {
            return Feedback::new(hessian, DampingSpec::default(), dim);
        }
        let rotated = hessian.transformed(|row| input.enter_f64(row))?;
        Feedback::new(&rotated, DampingSpec::default(), dim)
    }
}

/// Rounding under second moments, or without any.
struct Metric<'a> {
    feedback: Option<&'a Feedback>,
    dim: usize,
    passes: u32,
}

impl Metric<'_> {
    /// The relative proxy of a few rows.
    fn sample(&self, w: &[f32], cols: usize, grid: &mut Grid) -> Result<f64, UniSvqError> {
        let rows = w.len() / cols;
        let mut out = vec![0f32; w.len()];
        match self.feedback.filter(|f| f.damped().report().method == DampingMethod::Damped) {
            None => {
                crate::round_plain(w, rows, cols, self.dim, cols, grid, &mut out)?;
                Ok(relative_error(w, &out, cols))
            }
            Some(f) => {
                ldlq(w, rows, f.ldl(), LdlqOptions::default(), grid, &mut out)?;
                refine(w, rows, f.damped(), self.dim, RefineOptions::new(SAMPLE_PASSES), grid, &mut out)?;
                Ok(relative_proxy(w, &out, rows, f.damped().as_slice()))
            }
        }
    }

    /// Rounds all rows to `out`.
    fn all(&self, w: &[f32], rows: usize, grid: &mut Grid, out: &mut [f32]) -> Result<UniSvqReport, UniSvqError> {
        let cols = w.len() / rows;
        match self.feedback {
            None => {
                crate::round_plain(w, rows, cols, self.dim, cols, grid, out)?;
                let plain = relative_error(w, out, cols);
                Ok(UniSvqReport { c: 0.0, damping: None, plain, proxy: plain, passes: 0, is_plain: true })
            }
            Some(f) => {
                let r = f.round(w, rows, LdlqOptions::default(), RefineOptions::new(self.passes), grid, out)?;
                let (plain, proxy, passes, is_plain) = (r.plain, r.kept, r.passes, r.is_plain);
                Ok(UniSvqReport { c: 0.0, damping: None, plain, proxy, passes, is_plain })
            }
        }
    }

    /// Multiplies the scale by tr(W H Ŵᵀ) / tr(Ŵ H Ŵᵀ), the factor that makes the proxy least.
    ///
    /// The first trace follows from the known proxy P = tr(W H Wᵀ) - 2 tr(W H Ŵᵀ) + tr(Ŵ H Ŵᵀ).
    fn refit(&self, w: &[f32], rows: usize, points: &[f32], scale: &mut f32, report: &mut UniSvqReport) {
        let energy = |a: &[f32]| match self.feedback {
            Some(f) => crate::proxy(&a.iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), rows, f.damped().as_slice()),
            None => a.iter().map(|&v| f64::from(v).powi(2)).sum(),
        };
        let (whole, fitted) = (energy(w), energy(points));
        let cross = (whole + fitted - report.proxy * whole) / 2.0;
        let factor = cross / fitted;
        let refitted = (f64::from(*scale) * factor) as f32;
        let exact = f64::from(refitted) / f64::from(*scale);
        let proxy = (whole - 2.0 * exact * cross + exact * exact * fitted) / whole;
        if refitted.is_normal() && proxy.is_finite() && proxy < report.proxy {
            (*scale, report.proxy) = (refitted, proxy.max(0.0));
        }
    }
}

/// Fails on the first value that is no number.
fn check_finite(what: &'static str, w: &[f32], cols: usize) -> Result<(), UniSvqError> {
    match w.iter().position(|v| !v.is_finite()) {
        Some(i) => Err(UniSvqError::NonFinite { what, row: i / cols, col: i % cols, value: w[i].to_string() }),
        None => Ok(()),
    }
}

/// |W - Ŵ|² / |W|², row by row in order.
fn relative_error(w: &[f32], out: &[f32], cols: usize) -> f64 {
    let sums = map_indexed(w.len() / cols, |i| {
        let part = i * cols..(i + 1) * cols;
        w[part.clone()].iter().zip(&out[part]).fold((0.0, 0.0), |(e, s), (&a, &b)| {
            let (a, b) = (f64::from(a), f64::from(b));
            (e + (a - b) * (a - b), s + a * a)
        })
    });
    let (error, energy) = sums.into_iter().fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d));
    if error == 0.0 { 0.0 } else { error / energy }
}
