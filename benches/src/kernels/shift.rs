//! Products with matrices under the bit-shift trellis.

use gosset_codec::{MatrixHeader, Plane};
use gosset_cuda::launch::rht::RhtOutput;
use gosset_cuda::launch::shift::ShiftMatrix;
use gosset_cuda::{Buffer, CudaError, DevSlice, DevSliceMut, Gpu, StreamRef};

use super::product::Product;

/// Matrices in the order of the device.
struct Shift {
    copies: Vec<ShiftMatrix>,
    /// Rotated activation, where the product does not rotate by itself.
    rotated: Buffer<f32>,
}

/// Copies of the matrix, in the order of the device.
pub(super) fn build(
    gpu: &Gpu,
    header: &MatrixHeader,
    planes: &[Plane<'_>],
    n_copies: usize,
) -> Result<Box<dyn Product>, CudaError> {
    let copies = (0..n_copies).map(|_| ShiftMatrix::new(gpu, header, planes)).collect::<Result<Vec<_>, _>>()?;
    Ok(Box::new(Shift { copies, rotated: gpu.alloc(header.cols as usize)? }))
}

impl Product for Shift {
    fn n_copies(&self) -> usize {
        self.copies.len()
    }

    fn bytes(&self) -> usize {
        self.copies[0].device_bytes()
    }

    fn max_batch(&self) -> usize {
        1
    }

    fn enqueue(
        &mut self,
        stream: StreamRef<'_>,
        copy: usize,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        batch: usize,
    ) -> Result<(), CudaError> {
        let matrix = &self.copies[copy];
        match matrix.rotation() {
            Some(rht) if !matrix.fuses_rotation() => {
                rht.forward(stream, x, batch, RhtOutput::F32(self.rotated.as_mut()))?;
                matrix.gemv_rotated(stream, self.rotated.as_slice(), y)
            }
            _ => matrix.gemv(stream, x, y),
        }
    }
}
