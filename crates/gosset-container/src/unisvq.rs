//! Matrices of affine-grid codes in a container.

use std::sync::Arc;

use gosset_unisvq::{UniSvqDecoder, UniSvqError, UniSvqHeader, UniSvqMatrix};
use half::f16;

use crate::error::ContainerError;
use crate::manifest::{PlaneEntry, Storage, TensorEntry};
use crate::reader::{Container, Slot};
use crate::safetensors_header::HeaderTensor;

/// Packed codes, U8.
pub(crate) const CODES: &str = "codes";
/// Tuned scales of the inputs, F16.
pub(crate) const INPUT_SCALES: &str = "input_scales";
/// Tuned scales of the outputs, F16.
pub(crate) const OUTPUT_SCALES: &str = "output_scales";

/// A matrix of affine-grid codes that keeps its container open.
#[derive(Debug, Clone)]
pub struct UniSvqTensor {
    container: Arc<Container>,
    index: usize,
    input_scales: Option<Arc<[f16]>>,
    output_scales: Option<Arc<[f16]>>,
}

impl Container {
    /// The matrix of grid codes `name`. Its planes are checked against their checksums, the first time they are asked for.
    ///
    /// # Errors
    /// [`ContainerError::NoTensor`], [`ContainerError::WrongKind`] for a tensor that is stored in another way,
    /// [`ContainerError::PlaneChecksum`], and [`ContainerError::UniSvq`] for planes that do not fit the header.
    pub fn unisvq(self: &Arc<Self>, name: &str) -> Result<UniSvqTensor, ContainerError> {
        let index = self.index(name)?;
        if !self.entries()[index].is_unisvq() {
            return Err(self.wrong_kind(name, "stored in another way", "one of grid codes"));
        }
        self.slots_of_tensor(index).iter().try_for_each(|slot| self.check(slot))?;
        let scales = |plane| self.unisvq_slot(index, plane).map(|slot| halves(self.bytes(slot)).into());
        let tensor = UniSvqTensor {
            container: Arc::clone(self),
            index,
            input_scales: scales(INPUT_SCALES),
            output_scales: scales(OUTPUT_SCALES),
        };
        tensor.decoder()?;
        Ok(tensor)
    }

    /// A decoder of tensor `index` straight from the map, `None` for a tensor of another kind. No checksum is looked at.
    pub(crate) fn unchecked_unisvq(&self, index: usize) -> Option<Result<UniSvqDecoder<'_>, UniSvqError>> {
        let Storage::UniSvq { header, .. } = &self.entries()[index].storage else { return None };
        let bytes = |plane| self.unisvq_slot(index, plane).map(|slot| self.bytes(slot));
        let scales = |plane| bytes(plane).map(halves);
        let (input, output) = (scales(INPUT_SCALES), scales(OUTPUT_SCALES));
        Some(UniSvqDecoder::new(header, bytes(CODES).unwrap_or_default(), input.as_deref(), output.as_deref()))
    }

    fn unisvq_slot(&self, index: usize, plane: &str) -> Option<&Slot> {
        self.slots_of_tensor(index).iter().find(|slot| slot.plane == plane)
    }
}

impl UniSvqTensor {
    /// Name in the checkpoint.
    pub fn name(&self) -> &str {
        &self.entry().name
    }

    /// What the manifest says about the tensor.
    pub fn entry(&self) -> &TensorEntry {
        &self.container.entries()[self.index]
    }

    /// Everything but codes and scales.
    pub fn header(&self) -> &UniSvqHeader {
        match &self.entry().storage {
            Storage::UniSvq { header, .. } => header,
            _ => unreachable!("only matrices of grid codes are handed out as such"),
        }
    }

    /// Packed codes, in the map of the file.
    pub fn codes(&self) -> &[u8] {
        self.container.unisvq_slot(self.index, CODES).map_or(&[], |slot| self.container.bytes(slot))
    }

    /// Tuned scales of the inputs.
    pub fn input_scales(&self) -> Option<&[f16]> {
        self.input_scales.as_deref()
    }

    /// Tuned scales of the outputs.
    pub fn output_scales(&self) -> Option<&[f16]> {
        self.output_scales.as_deref()
    }

    /// Bytes of the planes.
    pub fn n_bytes(&self) -> u64 {
        self.container.slots_of_tensor(self.index).iter().map(Slot::n_bytes).sum()
    }

    /// The container that the planes lie in.
    pub fn container(&self) -> &Arc<Container> {
        &self.container
    }

    /// A decoder that borrows the codes. Its cost is linear in rows and columns, not in weights.
    ///
    /// # Errors
    /// [`ContainerError::UniSvq`] for planes that do not fit the header.
    pub fn decoder(&self) -> Result<UniSvqDecoder<'_>, ContainerError> {
        UniSvqDecoder::new(self.header(), self.codes(), self.input_scales(), self.output_scales()).map_err(|source| {
            ContainerError::UniSvq {
                path: self.container.path().to_owned(),
                tensor: self.name().to_owned(),
                source: Box::new(source),
            }
        })
    }

    /// A copy of the matrix in memory.
    pub fn to_matrix(&self) -> UniSvqMatrix {
        UniSvqMatrix {
            header: self.header().clone(),
            codes: self.codes().to_vec(),
            input_scales: self.input_scales().map(<[f16]>::to_vec),
            output_scales: self.output_scales().map(<[f16]>::to_vec),
        }
    }
}

/// Checks names, dtypes and lengths of the planes of a matrix of grid codes against its header, before anything is allocated.
pub(crate) fn check_planes<'a>(
    header: &UniSvqHeader,
    planes: &[PlaneEntry],
    stored: impl Fn(&str) -> Option<&'a HeaderTensor>,
) -> Result<(), String> {
    for (i, plane) in planes.iter().enumerate() {
        let (dtype, len) = match plane.name.as_str() {
            CODES => ("U8", header.code_bytes().map(|n| n as u64)),
            INPUT_SCALES => ("F16", Some(header.cols)),
            OUTPUT_SCALES => ("F16", Some(header.rows)),
            other => return Err(format!("plane {other:?} is unknown to matrices of grid codes")),
        };
        if planes[..i].iter().any(|p| p.name == plane.name) {
            return Err(format!("plane {:?} is listed twice", plane.name));
        }
        // A plane that is missing is told by whoever takes it.
        let Some(t) = stored(&plane.name) else { continue };
        if t.dtype != dtype || t.shape.len() != 1 || len != Some(t.shape[0]) {
            return Err(format!(
                "plane {:?}: expected {dtype} of {} elements, found {} of shape {:?}",
                plane.name,
                len.map_or_else(|| "an impossible number of".to_owned(), |n| n.to_string()),
                t.dtype,
                t.shape
            ));
        }
    }
    if planes.iter().any(|p| p.name == CODES) { Ok(()) } else { Err(format!("expected a plane {CODES:?}, found none")) }
}

/// Little-endian half-precision numbers.
pub(crate) fn halves(bytes: &[u8]) -> Vec<f16> {
    bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b)).collect()
}

/// Numbers as little-endian bytes.
pub(crate) fn half_bytes(values: &[f16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
