//! Weights that stay coded on the device, multiplied by a kernel of ours.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use candle_core::{CpuStorage, CudaDevice, CudaStorage, CustomOp1, DType, Layout, Shape, Tensor};
use gosset_container::CodedTensor;
use gosset_cuda::{CudaError, DevSlice, DevSliceMut, Gpu, OpenOptions, StreamRef};

use super::raw;
use crate::error::RuntimeError;
use crate::gpu::{DeviceLinear, Needs, Workspace};

/// A coded matrix in device memory.
#[derive(Debug)]
pub(super) struct CodedWeight {
    gpu: Gpu,
    matrix: DeviceLinear,
}

impl CodedWeight {
    /// The matrix on `device`, or `None` if its code has no kernel.
    pub(super) fn upload(weight: &CodedTensor, device: &CudaDevice) -> Result<Option<Self>, RuntimeError> {
        let gpu = open(raw::ordinal(device))?;
        let matrix = DeviceLinear::coded(&gpu, weight)?;
        Ok(matrix.map(|matrix| Self { gpu, matrix }))
    }

    /// Bytes of device memory.
    pub(super) fn bytes(&self) -> u64 {
        self.matrix.device_bytes()
    }

    /// `x` `[n, in_features]` of any type, contiguous: `[n, out_features]`, f32.
    pub(super) fn product(&self, x: &Tensor) -> Result<Tensor, RuntimeError> {
        Ok(x.to_dtype(DType::F32)?.apply_op1_no_bwd(self)?)
    }

    /// Puts the product of `n` rows into the stream.
    fn launch(
        &self,
        stream: StreamRef<'_>,
        x: DevSlice<'_, f32>,
        n: usize,
        y: DevSliceMut<'_, f32>,
    ) -> Result<(), CudaError> {
        let key = Key { ordinal: self.gpu.info().ordinal, stream: stream.raw().addr() };
        WORKSPACES.with_borrow_mut(|workspaces| {
            let held = match workspaces.remove(&key) {
                Some(held) if held.is_enough(self.matrix.needs(), n) => held,
                smaller => Held::grown(&self.gpu, smaller, self.matrix.needs(), n)?,
            };
            let held = workspaces.entry(key).insert_entry(held).into_mut();
            self.matrix.product(&self.gpu, stream, x, n, y, &mut held.workspace)
        })
    }
}

impl CustomOp1 for CodedWeight {
    fn name(&self) -> &'static str {
        "gosset-linear"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        candle_core::bail!("{}: the weights are on a CUDA device, the activation on the CPU", self.name())
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        let (n, cols) = layout.shape().dims2()?;
        if cols != self.matrix.cols() {
            candle_core::bail!("{}: expected {} columns, found {cols}", self.name(), self.matrix.cols());
        }
        let rows = self.matrix.rows();
        let y = raw::map(storage, layout, n * rows, |stream, x, y| self.launch(stream, x, n, y))?;
        Ok((y, Shape::from((n, rows))))
    }
}

/// A stream as one thread sees it.
///
/// Work in one stream is in order, so that products in it can share a workspace. Candle's default stream is another one for each
/// thread under the same handle, which is why workspaces belong to threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    ordinal: usize,
    stream: usize,
}

/// A workspace and what it is large enough for.
struct Held {
    needs: Needs,
    rows: usize,
    workspace: Workspace,
}

impl Held {
    fn is_enough(&self, needs: Needs, rows: usize) -> bool {
        self.rows >= rows && self.needs.max(needs) == self.needs
    }

    /// A workspace for `rows` rows that is also large enough for all that the smaller one was for.
    fn grown(gpu: &Gpu, smaller: Option<Held>, needs: Needs, rows: usize) -> Result<Self, CudaError> {
        let (needs, rows) = match &smaller {
            Some(held) => (held.needs.max(needs), held.rows.max(rows)),
            None => (needs, rows),
        };
        // Its memory is freed before the new one is asked for; the device waits for the work that uses it.
        drop(smaller);
        Ok(Held { needs, rows, workspace: Workspace::new(gpu, needs, rows)? })
    }
}

thread_local! {
    static WORKSPACES: RefCell<HashMap<Key, Held>> = RefCell::new(HashMap::new());
}

/// The device of that number, opened once by the process so that its kernels are loaded once.
fn open(ordinal: usize) -> Result<Gpu, CudaError> {
    static OPEN: Mutex<Option<HashMap<usize, Gpu>>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_with(HashMap::new);
    if let Some(gpu) = open.get(&ordinal) {
        return Ok(gpu.clone());
    }
    let gpu = Gpu::open(ordinal, &OpenOptions::default())?;
    open.insert(ordinal, gpu.clone());
    Ok(gpu)
}
