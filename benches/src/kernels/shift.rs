//! Products with matrices under the bit-shift trellis.

use gosset_codec::{MatrixHeader, Plane, SchemeHeader};
use gosset_cuda::launch::shift::{MAX_GEMM_BATCH, ShiftMatrix, ShiftWorkspace};

use gosset_cuda::{CudaError, DevSlice, DevSliceMut, Gpu, StreamRef};

use super::product::Product;

/// Most bits of a state that products with several activations are built for.
const MAX_GEMM_STATE_BITS: u8 = 17;

/// Matrices in the order of the device.
struct Shift {
    copies: Vec<ShiftMatrix>,
    workspace: ShiftWorkspace,
    max_batch: usize,
}

/// Copies of the matrix, in the order of the device.
pub(super) fn build(
    gpu: &Gpu,
    header: &MatrixHeader,
    planes: &[Plane<'_>],
    n_copies: usize,
) -> Result<Box<dyn Product>, CudaError> {
    let copies = (0..n_copies).map(|_| ShiftMatrix::new(gpu, header, planes)).collect::<Result<Vec<_>, _>>()?;
    // A graph that is being captured cannot allocate.
    let mut workspace = ShiftWorkspace::new();
    copies.iter().try_for_each(|matrix| {
        workspace.reserve(matrix, 1)?;
        workspace.reserve(matrix, MAX_GEMM_BATCH)
    })?;
    let max_batch = match &header.scheme {
        SchemeHeader::Shift(shift) if shift.state_bits <= MAX_GEMM_STATE_BITS => MAX_GEMM_BATCH,
        _ => 1,
    };
    Ok(Box::new(Shift { copies, workspace, max_batch }))
}

impl Product for Shift {
    fn n_copies(&self) -> usize {
        self.copies.len()
    }

    fn bytes(&self) -> usize {
        self.copies[0].device_bytes()
    }

    fn max_batch(&self) -> usize {
        self.max_batch
    }

    fn enqueue(
        &mut self,
        stream: StreamRef<'_>,
        copy: usize,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        batch: usize,
    ) -> Result<(), CudaError> {
        self.copies[copy].gemm(stream, x, batch, y, &mut self.workspace)
    }
}
