//! Checks everything there is to check in a container.

use gosset_codec::{CodecError, DecodeScratch, Decoder};
use gosset_unisvq::UniSvqDecoder;

use crate::error::{ContainerError, Problem};
use crate::manifest::TensorEntry;
use crate::reader::{Container, Owner};

/// Most values decoded at a time, in whole rows.
const BLOCK_VALUES: usize = 1 << 16;

/// What [`Container::verify`] went through without finding a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// Planes whose checksum was computed.
    pub n_planes: usize,
    /// Bytes of those planes.
    pub n_bytes: u64,
    /// Compressed tensors of which every stream was decoded.
    pub n_decoded: usize,
    /// Weights decoded.
    pub n_weights: u64,
}

/// Where [`Container::verify_with`] is: checksums are behind it, a tensor is being decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyProgress<'a> {
    /// The tensor.
    pub tensor: &'a str,
    /// Its number, from 0.
    pub index: usize,
    /// How many there are.
    pub total: usize,
    /// Weights decoded before.
    pub weights_done: u64,
}

/// The values of a compressed tensor, in the frame in which it is coded, which keeps lengths.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ValueStatistics {
    /// Values.
    pub n_values: u64,
    /// Those that are NaN or infinite; the figures below leave them out.
    pub n_non_finite: u64,
    /// Those that are zero.
    pub n_zero: u64,
    /// Sum of squares.
    pub energy: f64,
    /// Largest magnitude.
    pub max_abs: f32,
}

impl ValueStatistics {
    /// Root of the mean square; 0 without values.
    pub fn rms(&self) -> f64 {
        (self.energy / self.n_values.max(1) as f64).sqrt()
    }

    fn add(&mut self, values: &[f32]) {
        self.n_values += values.len() as u64;
        for &v in values {
            if v.is_finite() {
                self.n_zero += u64::from(v == 0.0);
                self.energy += f64::from(v) * f64::from(v);
                self.max_abs = self.max_abs.max(v.abs());
            } else {
                self.n_non_finite += 1;
            }
        }
    }
}

impl Container {
    /// Computes the checksum of every plane and decodes every stream of every coded tensor, whose values must be finite.
    ///
    /// The header was checked when the container was opened, so together no byte of the file is left out.
    ///
    /// # Errors
    ///
    /// [`ContainerError::Damaged`] with every part that is damaged.
    pub fn verify(&self) -> Result<VerifyReport, ContainerError> {
        self.verify_with(&mut |_| {})
    }

    /// Computes the checksum of every plane and decodes nothing: as fast as the file can be read.
    ///
    /// # Errors
    ///
    /// Those of [`verify`](Container::verify).
    pub fn verify_checksums(&self) -> Result<VerifyReport, ContainerError> {
        let (report, problems) = self.check_planes();
        self.judge(report, problems)
    }

    /// [`verify`](Container::verify), telling before each tensor how far it is.
    ///
    /// # Errors
    ///
    /// Those of [`verify`](Container::verify).
    pub fn verify_with(&self, progress: &mut dyn FnMut(VerifyProgress<'_>)) -> Result<VerifyReport, ContainerError> {
        self.verify_values(progress, &mut |_, _| {})
    }

    /// [`verify_with`](Container::verify_with), handing out what is found of the values of each compressed tensor that decodes.
    ///
    /// # Errors
    ///
    /// Those of [`verify`](Container::verify).
    pub fn verify_values(
        &self,
        progress: &mut dyn FnMut(VerifyProgress<'_>),
        found: &mut dyn FnMut(&TensorEntry, ValueStatistics),
    ) -> Result<VerifyReport, ContainerError> {
        let (mut report, mut problems) = self.check_planes();
        let mut scratch = DecodeScratch::new();
        for (index, entry) in self.entries().iter().enumerate() {
            let (total, weights_done) = (self.entries().len(), report.n_weights);
            progress(VerifyProgress { tensor: &entry.name, index, total, weights_done });
            let decoded = match self.unchecked_decoder(index) {
                None => match self.unchecked_unisvq(index) {
                    None => continue,
                    Some(decoder) => decoder.map(|decoder| decode_grid(&decoder)).map_err(|e| e.to_string()),
                },
                Some(Ok(decoder)) => decode_all(&decoder, &mut scratch).map_err(|e| e.to_string()),
                Some(Err(e)) => Err(e.to_string()),
            };
            let part = || format!("tensor {:?}", entry.name);
            match decoded {
                Ok(values) => {
                    report.n_decoded += 1;
                    report.n_weights += entry.n_weights();
                    if values.n_non_finite > 0 {
                        let (bad, n) = (values.n_non_finite, values.n_values);
                        let what = format!("expected finite values, found {bad} of {n} that are NaN or infinite");
                        problems.push(Problem { part: part(), what });
                    }
                    found(entry, values);
                }
                Err(what) => problems.push(Problem { part: part(), what }),
            }
        }
        self.judge(report, problems)
    }

    fn check_planes(&self) -> (VerifyReport, Vec<Problem>) {
        let mut report = VerifyReport::default();
        let mut problems = Vec::new();
        for slot in &self.slots {
            report.n_planes += 1;
            report.n_bytes += slot.n_bytes();
            if let Err(ContainerError::PlaneChecksum { expected, found, .. }) = self.recheck(slot) {
                let part = format!("{} {:?}", self.owner(slot.owner), slot.stored_name);
                let what = format!("checksum: expected {expected:016x}, found {found:016x}");
                problems.push(Problem { part, what });
            }
        }
        (report, problems)
    }

    fn judge(&self, report: VerifyReport, problems: Vec<Problem>) -> Result<VerifyReport, ContainerError> {
        if problems.is_empty() {
            Ok(report)
        } else {
            Err(ContainerError::Damaged { path: self.path().to_owned(), problems })
        }
    }

    fn owner(&self, owner: Owner) -> &'static str {
        match owner {
            Owner::Tensor(_) => "tensor plane",
            Owner::Blob(_) => "side file",
            Owner::Section(_) => "section plane",
        }
    }
}

fn decode_all(decoder: &Decoder<'_>, scratch: &mut DecodeScratch) -> Result<ValueStatistics, CodecError> {
    let (rows, cols) = (decoder.rows(), decoder.cols());
    let step = block_rows(rows, cols, decoder.row_block());
    let mut values = ValueStatistics::default();
    // Values rather than integer points, which not every coding has.
    let mut out = vec![0f32; step * cols];
    for first in (0..rows).step_by(step) {
        let end = (first + step).min(rows);
        let out = &mut out[..(end - first) * cols];
        decoder.decode_rows_rotated(first..end, out, scratch)?;
        values.add(out);
    }
    Ok(values)
}

/// Any codes are codes of some matrix: what they decode to is all that can be wrong.
fn decode_grid(decoder: &UniSvqDecoder<'_>) -> ValueStatistics {
    let (rows, cols) = (decoder.rows(), decoder.cols());
    let step = block_rows(rows, cols, 1);
    let mut values = ValueStatistics::default();
    let mut out = vec![0f32; step * cols];
    for first in (0..rows).step_by(step) {
        let end = (first + step).min(rows);
        let out = &mut out[..(end - first) * cols];
        decoder.decode_rows_rotated(first..end, out);
        values.add(out);
    }
    values
}

/// Rows that are decoded at a time: whole units, about [`BLOCK_VALUES`] values.
fn block_rows(rows: usize, cols: usize, unit: usize) -> usize {
    let blocks = (BLOCK_VALUES / cols.saturating_mul(unit).max(1)).max(1);
    unit.saturating_mul(blocks).clamp(1, rows.max(1))
}
