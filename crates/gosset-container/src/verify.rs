//! Checks everything there is to check in a container.

use gosset_codec::{CodecError, DecodeScratch, Decoder};

use crate::error::{ContainerError, Problem};
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

impl Container {
    /// Computes the checksum of every plane and decodes every stream of every coded tensor.
    ///
    /// The header was checked when the container was opened, so together no byte of the file is left out.
    ///
    /// # Errors
    ///
    /// [`ContainerError::Damaged`] with every part that is damaged.
    pub fn verify(&self) -> Result<VerifyReport, ContainerError> {
        self.verify_with(&mut |_| {})
    }

    /// [`verify`](Container::verify), telling before each tensor how far it is.
    ///
    /// # Errors
    ///
    /// Those of [`verify`](Container::verify).
    pub fn verify_with(&self, progress: &mut dyn FnMut(VerifyProgress<'_>)) -> Result<VerifyReport, ContainerError> {
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
        let mut scratch = DecodeScratch::new();
        for (index, entry) in self.entries().iter().enumerate() {
            let (total, weights_done) = (self.entries().len(), report.n_weights);
            progress(VerifyProgress { tensor: &entry.name, index, total, weights_done });
            let decoded = match self.unchecked_decoder(index) {
                // Any codes are codes of some matrix: planes that fit the header are all that can be wrong.
                None => match self.unchecked_unisvq(index) {
                    None => continue,
                    Some(decoder) => decoder.map(drop).map_err(|e| e.to_string()),
                },
                Some(Ok(decoder)) => decode_all(&decoder, &mut scratch).map_err(|e| e.to_string()),
                Some(Err(e)) => Err(e.to_string()),
            };
            match decoded {
                Ok(()) => {
                    report.n_decoded += 1;
                    report.n_weights += entry.n_weights();
                }
                Err(what) => problems.push(Problem { part: format!("tensor {:?}", entry.name), what }),
            }
        }
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

fn decode_all(decoder: &Decoder<'_>, scratch: &mut DecodeScratch) -> Result<(), CodecError> {
    let (rows, cols, unit) = (decoder.rows(), decoder.cols(), decoder.row_block());
    let blocks = (BLOCK_VALUES / cols.saturating_mul(unit).max(1)).max(1);
    let step = unit.saturating_mul(blocks).clamp(1, rows.max(1));
    // Values rather than integer points, which not every coding has.
    let mut out = vec![0f32; step * cols];
    for first in (0..rows).step_by(step) {
        let end = (first + step).min(rows);
        decoder.decode_rows_rotated(first..end, &mut out[..(end - first) * cols], scratch)?;
    }
    Ok(())
}
