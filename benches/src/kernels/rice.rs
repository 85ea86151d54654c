//! Products with matrices under Rice codes.

use gosset_codec::{Decoder, MatrixHeader, Plane, Rht};
use gosset_cuda::launch::rht::{DeviceRht, RhtOutput};
use gosset_cuda::launch::rice::{MAX_BATCH, RiceMatrix};
use gosset_cuda::launch::rice_lanes::RiceLanes;
use gosset_cuda::launch::rice_planes::{RicePlanes, RiceScratch};
use gosset_cuda::{Buffer, CudaError, DevSlice, DevSliceMut, Gpu, StreamRef};

use super::product::Product;

/// Matrices whose products take rotated activations in f32.
struct Rotated<M: RiceLayout> {
    gpu: Gpu,
    copies: Vec<M>,
    scratch: M::Scratch,
    rht: Option<DeviceRht>,
    rotated: Buffer<f32>,
}

/// A matrix in one of the layouts of Rice codes.
trait RiceLayout: Sized + 'static {
    /// Most activations of one product.
    const MAX_BATCH: usize;
    /// What products write beside their results.
    type Scratch;
    fn scratch(gpu: &Gpu, copies: &[Self]) -> Result<Self::Scratch, CudaError>;
    fn upload(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Self, CudaError>;
    fn bytes(&self) -> u64;
    fn gemm(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        scratch: &mut Self::Scratch,
    ) -> Result<(), CudaError>;
}

impl RiceLayout for RiceMatrix {
    const MAX_BATCH: usize = MAX_BATCH;
    type Scratch = ();

    fn scratch(_: &Gpu, _: &[Self]) -> Result<(), CudaError> {
        Ok(())
    }

    fn upload(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Self, CudaError> {
        RiceMatrix::upload(gpu, header, planes)
    }

    fn bytes(&self) -> u64 {
        self.device_bytes()
    }

    fn gemm(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        (): &mut (),
    ) -> Result<(), CudaError> {
        RiceMatrix::gemm(self, gpu, stream, x, y)
    }
}

impl RiceLayout for RiceLanes {
    const MAX_BATCH: usize = 1;
    type Scratch = RiceScratch;

    fn scratch(gpu: &Gpu, copies: &[Self]) -> Result<RiceScratch, CudaError> {
        copies[0].scratch(gpu)
    }

    fn upload(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Self, CudaError> {
        RiceLanes::upload(gpu, header, planes)
    }

    fn bytes(&self) -> u64 {
        self.device_bytes()
    }

    fn gemm(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        scratch: &mut RiceScratch,
    ) -> Result<(), CudaError> {
        self.gemv(gpu, stream, x, y, scratch)
    }
}

impl RiceLayout for RicePlanes {
    const MAX_BATCH: usize = MAX_BATCH;
    type Scratch = RiceScratch;

    fn scratch(gpu: &Gpu, copies: &[Self]) -> Result<RiceScratch, CudaError> {
        RiceScratch::new(gpu, copies, MAX_BATCH)
    }

    fn upload(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Self, CudaError> {
        RicePlanes::upload(gpu, header, planes)
    }

    fn bytes(&self) -> u64 {
        self.device_bytes()
    }

    fn gemm(
        &self,
        gpu: &Gpu,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        scratch: &mut RiceScratch,
    ) -> Result<(), CudaError> {
        RicePlanes::gemm(self, gpu, stream, x, y, scratch)
    }
}

/// Copies that the kernels read as the file has them.
pub(super) fn streams(
    gpu: &Gpu,
    header: &MatrixHeader,
    planes: &[Plane<'_>],
    n_copies: usize,
) -> Result<Box<dyn Product>, CudaError> {
    build::<RiceMatrix>(gpu, header, planes, n_copies)
}

/// Copies of the streams of the file, bit for bit, the words of 32 of them interleaved.
pub(super) fn lanes(
    gpu: &Gpu,
    header: &MatrixHeader,
    planes: &[Plane<'_>],
    n_copies: usize,
) -> Result<Box<dyn Product>, CudaError> {
    build::<RiceLanes>(gpu, header, planes, n_copies)
}

/// Copies in the plane layout of the same code.
pub(super) fn planes(
    gpu: &Gpu,
    header: &MatrixHeader,
    planes: &[Plane<'_>],
    n_copies: usize,
) -> Result<Box<dyn Product>, CudaError> {
    build::<RicePlanes>(gpu, header, planes, n_copies)
}

fn build<M: RiceLayout>(
    gpu: &Gpu,
    header: &MatrixHeader,
    planes: &[Plane<'_>],
    n_copies: usize,
) -> Result<Box<dyn Product>, CudaError> {
    let copies = (0..n_copies).map(|_| M::upload(gpu, header, planes)).collect::<Result<Vec<_>, _>>()?;
    let rht = rotation(gpu, header, planes)?;
    let rotated = gpu.alloc(MAX_BATCH * header.cols as usize)?;
    let scratch = M::scratch(gpu, &copies)?;
    Ok(Box::new(Rotated { gpu: gpu.clone(), copies, scratch, rht, rotated }))
}

/// The transform that an activation goes through.
pub(super) fn rotation(gpu: &Gpu, header: &MatrixHeader, planes: &[Plane<'_>]) -> Result<Option<DeviceRht>, CudaError> {
    let decoder = Decoder::new(header, planes)?;
    let on_device = |rht: &Rht| DeviceRht::new(gpu, rht);
    decoder.rotation().map(on_device).transpose()
}

impl<M: RiceLayout> Product for Rotated<M> {
    fn n_copies(&self) -> usize {
        self.copies.len()
    }

    fn bytes(&self) -> usize {
        self.copies[0].bytes() as usize
    }

    fn max_batch(&self) -> usize {
        M::MAX_BATCH
    }

    fn enqueue(
        &mut self,
        stream: StreamRef<'_>,
        copy: usize,
        x: DevSlice<'_, f32>,
        y: DevSliceMut<'_, f32>,
        batch: usize,
    ) -> Result<(), CudaError> {
        let (matrix, scratch) = (&self.copies[copy], &mut self.scratch);
        let Some(rht) = &self.rht else { return matrix.gemm(&self.gpu, stream, x, y, scratch) };
        let n = x.len();
        rht.forward(stream, x, batch, RhtOutput::F32(self.rotated.as_mut().slice(0..n)?))?;
        matrix.gemm(&self.gpu, stream, self.rotated.as_slice().slice(0..n)?, y, scratch)
    }
}
