//! Dense products through cuBLAS and cublasLt, both loaded at run time.
//!
//! y = x · wᵀ for `w` of n x k, `x` of batch x k and `y` of batch x n, all row-major, sums in f32. [`Blas`] leaves the
//! choice of the kernel to the library; [`Lt`] lists every kernel that its heuristics offer for a shape, so that a
//! benchmark can take the fastest. Both keep one workspace that is allocated once, so that products can be captured into
//! a [`Graph`](crate::Graph).

use std::ffi::c_void;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::cublas::sys as cublas;
use cudarc::cublaslt::sys as lt;
use half::{bf16, f16};

use crate::library;
use crate::{Buffer, CudaError, DevSlice, DevSliceMut, DeviceType, Gpu, StreamRef};

/// Bytes of workspace of each library handle: what NVIDIA's documentation recommends for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Most kernels that are asked for per shape; the heuristics offer fewer.
const MAX_PLANS: usize = 64;

/// Largest dimension: the libraries count in 32-bit signed integers.
const MAX_DIM: usize = i32::MAX as usize;

/// Elements of a dense product.
pub trait BlasType: DeviceType + sealed::Sealed {}

impl BlasType for f32 {}
impl BlasType for f16 {}
impl BlasType for bf16 {}

mod sealed {
    use super::{bf16, cublas::cudaDataType_t, f16};

    pub trait Sealed {
        /// Name of the type to both libraries.
        const DTYPE: cudaDataType_t;
    }

    impl Sealed for f32 {
        const DTYPE: cudaDataType_t = cudaDataType_t::CUDA_R_32F;
    }

    impl Sealed for f16 {
        const DTYPE: cudaDataType_t = cudaDataType_t::CUDA_R_16F;
    }

    impl Sealed for bf16 {
        const DTYPE: cudaDataType_t = cudaDataType_t::CUDA_R_16BF;
    }
}

/// Shape of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GemmShape {
    /// Rows of the weights, the output dimension.
    pub n: usize,
    /// Columns of the weights, the input dimension.
    pub k: usize,
    /// Rows of the activations.
    pub batch: usize,
}

impl GemmShape {
    /// n, batch and k as the libraries count them.
    fn dims(self) -> Result<[i32; 3], CudaError> {
        let dim = |name, found: usize| {
            if found == 0 || found > MAX_DIM {
                return Err(CudaError::shape(name, format!("1 to {MAX_DIM}"), found));
            }
            Ok(found as i32)
        };
        Ok([dim("n of a product", self.n)?, dim("batch of a product", self.batch)?, dim("k of a product", self.k)?])
    }

    /// Fails unless the operands hold exactly what the shape says.
    fn check(self, w: usize, x: usize, y: usize) -> Result<(), CudaError> {
        self.dims()?;
        for (name, rows, cols, found) in [
            ("w of a product", self.n, self.k, w),
            ("x of a product", self.batch, self.k, x),
            ("y of a product", self.batch, self.n, y),
        ] {
            if rows.checked_mul(cols) != Some(found) {
                return Err(CudaError::shape(name, format!("{rows} x {cols} elements"), found));
            }
        }
        Ok(())
    }
}

/// A cuBLAS handle with its workspace.
pub struct Blas {
    gpu: Gpu,
    handle: Mutex<BlasHandle>,
    workspace: Buffer<u8>,
}

struct BlasHandle(cublas::cublasHandle_t);

// SAFETY: a handle may be used from any thread as long as no two use it at once, which the mutex around it prevents.
unsafe impl Send for BlasHandle {}

impl Blas {
    /// A handle on `gpu`.
    ///
    /// # Errors
    /// [`CudaError::NoLibrary`] where cuBLAS is not installed, [`CudaError::Driver`] where it refuses, and those of
    /// an allocation of 32 MiB.
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        if !library::is_present(&["cublas"]) {
            return Err(CudaError::NoLibrary { library: "cuBLAS (libcublas.so or cublas64.dll)" });
        }
        gpu.bind()?;
        let mut handle = MaybeUninit::uninit();
        // SAFETY: the library is there, and writes the handle if it succeeds.
        let handle = unsafe {
            blas_status("cublasCreate", cublas::cublasCreate_v2(handle.as_mut_ptr()))?;
            BlasHandle(handle.assume_init())
        };
        Ok(Blas { gpu: gpu.clone(), handle: Mutex::new(handle), workspace: gpu.alloc(WORKSPACE_BYTES)? })
    }

    /// Version of the library, such as 130100.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        let handle = lock(&self.handle);
        // SAFETY: the handle is alive and `version` outlives the call.
        blas_status("cublasGetVersion", unsafe { cublas::cublasGetVersion_v2(handle.0, &raw mut version) })?;
        Ok(version)
    }

    /// Enqueues y = x · wᵀ on `stream`, with the kernel of the library's choice.
    ///
    /// `w` is n x k, `x` batch x k and `y` batch x n, row-major; sums are in f32 and rounded once to `O`, which is `T` or
    /// f32. Products of f32 use no TF32.
    ///
    /// # Errors
    /// [`CudaError::Shape`] if the lengths do not fit the shape, [`CudaError::Driver`] if cuBLAS refuses.
    pub fn gemm<T: BlasType, O: BlasType>(
        &self,
        stream: StreamRef<'_>,
        shape: GemmShape,
        w: DevSlice<'_, T>,
        x: DevSlice<'_, T>,
        y: DevSliceMut<'_, O>,
    ) -> Result<(), CudaError> {
        shape.check(w.len(), x.len(), y.len())?;
        let [n, batch, k] = shape.dims()?;
        let (one, zero) = (1.0f32, 0.0f32);
        self.gpu.bind()?;
        let handle = lock(&self.handle);
        // SAFETY: the handle and the stream are alive, the workspace lives as long as the handle, and the lengths of the
        // operands were checked against the shape. Row-major n x k is column-major k x n, hence the transposition.
        unsafe {
            blas_status("cublasSetStream", cublas::cublasSetStream_v2(handle.0, stream.raw().cast()))?;
            // A new stream resets the workspace to one that is allocated on demand.
            let workspace = self.workspace.as_slice().ptr() as *mut c_void;
            blas_status("cublasSetWorkspace", cublas::cublasSetWorkspace_v2(handle.0, workspace, WORKSPACE_BYTES))?;
            let status = cublas::cublasGemmEx(
                handle.0,
                cublas::cublasOperation_t::CUBLAS_OP_T,
                cublas::cublasOperation_t::CUBLAS_OP_N,
                n,
                batch,
                k,
                (&raw const one).cast(),
                w.ptr() as *const c_void,
                T::DTYPE,
                k,
                x.ptr() as *const c_void,
                T::DTYPE,
                k,
                (&raw const zero).cast(),
                y.ptr() as *mut c_void,
                O::DTYPE,
                n,
                cublas::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublas::cublasGemmAlgo_t::CUBLAS_GEMM_DFALT,
            );
            blas_status("cublasGemmEx", status)
        }
    }
}

impl Drop for BlasHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is destroyed once. A failure leaves nothing to be done.
        let _ = unsafe { cublas::cublasDestroy_v2(self.0) };
    }
}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blas").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

/// A cublasLt handle with its workspace.
pub struct Lt {
    gpu: Gpu,
    handle: lt::cublasLtHandle_t,
    workspace: Buffer<u8>,
}

// SAFETY: cublasLt handles may be shared between threads; the workspace is only used by the device, in stream order.
unsafe impl Send for Lt {}
// SAFETY: as above.
unsafe impl Sync for Lt {}

/// One kernel for one shape, as cublasLt's heuristics offer it.
pub struct LtPlan {
    shape: GemmShape,
    desc: Desc,
    w: Layout,
    x: Layout,
    y: Layout,
    algo: lt::cublasLtMatmulAlgo_t,
    /// Types of operands and result.
    dtypes: [lt::cudaDataType; 2],
    /// Bytes of the workspace that the kernel uses.
    pub workspace_bytes: usize,
    /// Waves of blocks that the library expects.
    pub waves: f32,
}

impl Lt {
    /// A handle on `gpu`.
    ///
    /// # Errors
    /// [`CudaError::NoLibrary`] where cublasLt is not installed, [`CudaError::Driver`] where it refuses, and those
    /// of an allocation of 32 MiB.
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        if !library::is_present(&["cublasLt"]) {
            return Err(CudaError::NoLibrary { library: "cublasLt (libcublasLt.so or cublasLt64.dll)" });
        }
        gpu.bind()?;
        let workspace = gpu.alloc(WORKSPACE_BYTES)?;
        let mut handle = MaybeUninit::uninit();
        // SAFETY: the library is there, and writes the handle if it succeeds.
        let handle = unsafe {
            lt_status("cublasLtCreate", lt::cublasLtCreate(handle.as_mut_ptr()))?;
            handle.assume_init()
        };
        Ok(Lt { gpu: gpu.clone(), handle, workspace })
    }

    /// All kernels that the heuristics offer for y = x · wᵀ, the one that the library likes best first.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for a shape without elements, [`CudaError::Driver`] if cublasLt refuses or offers nothing.
    pub fn plans<T: BlasType, O: BlasType>(&self, shape: GemmShape) -> Result<Vec<LtPlan>, CudaError> {
        shape.dims()?;
        self.gpu.bind()?;
        let (n, batch, k) = (shape.n as u64, shape.batch as u64, shape.k as u64);
        let dtypes = [lt_dtype::<T>(), lt_dtype::<O>()];
        let operands = || -> Result<_, CudaError> {
            Ok((
                Desc::new()?,
                Layout::new(dtypes[0], k, n)?,
                Layout::new(dtypes[0], k, batch)?,
                Layout::new(dtypes[1], n, batch)?,
            ))
        };
        let (desc, w, x, y) = operands()?;
        let preference = Preference::new()?;
        let mut found: Vec<lt::cublasLtMatmulHeuristicResult_t> = Vec::with_capacity(MAX_PLANS);
        let mut n_found = 0;
        // SAFETY: all descriptors are alive, and there is room for as many results as are asked for, of which the first
        // `n_found` are written.
        unsafe {
            let status = lt::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                desc.0,
                w.0,
                x.0,
                y.0,
                y.0,
                preference.0,
                MAX_PLANS as i32,
                found.as_mut_ptr(),
                &raw mut n_found,
            );
            lt_status("cublasLtMatmulAlgoGetHeuristic", status)?;
            found.set_len((n_found.max(0) as usize).min(MAX_PLANS));
        }
        let usable = |r: &&lt::cublasLtMatmulHeuristicResult_t| {
            r.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS && r.workspaceSize <= WORKSPACE_BYTES
        };
        found
            .iter()
            .filter(usable)
            .map(|result| {
                let (desc, w, x, y) = operands()?;
                Ok(LtPlan {
                    shape,
                    desc,
                    w,
                    x,
                    y,
                    algo: result.algo,
                    dtypes,
                    workspace_bytes: result.workspaceSize,
                    waves: result.wavesCount,
                })
            })
            .collect()
    }

    /// Enqueues y = x · wᵀ on `stream` with the kernel of `plan`; operands as for [`Blas::gemm`].
    ///
    /// # Errors
    /// [`CudaError::Shape`] if the lengths or types do not fit the plan, [`CudaError::Driver`] if cublasLt refuses.
    pub fn gemm<T: BlasType, O: BlasType>(
        &self,
        stream: StreamRef<'_>,
        plan: &LtPlan,
        w: DevSlice<'_, T>,
        x: DevSlice<'_, T>,
        y: DevSliceMut<'_, O>,
    ) -> Result<(), CudaError> {
        plan.shape.check(w.len(), x.len(), y.len())?;
        if plan.dtypes != [lt_dtype::<T>(), lt_dtype::<O>()] {
            return Err(CudaError::shape("plan", "one made for the types of the operands", "other types"));
        }
        let (one, zero) = (1.0f32, 0.0f32);
        self.gpu.bind()?;
        // SAFETY: handle, descriptors and stream are alive, the operands have the lengths and types that the plan was
        // made for, and the workspace is as large as any plan may ask for.
        let status = unsafe {
            lt::cublasLtMatmul(
                self.handle,
                plan.desc.0,
                (&raw const one).cast(),
                w.ptr() as *const c_void,
                plan.w.0,
                x.ptr() as *const c_void,
                plan.x.0,
                (&raw const zero).cast(),
                y.ptr() as *const c_void,
                plan.y.0,
                y.ptr() as *mut c_void,
                plan.y.0,
                &raw const plan.algo,
                self.workspace.as_slice().ptr() as *mut c_void,
                WORKSPACE_BYTES,
                stream.raw().cast(),
            )
        };
        lt_status("cublasLtMatmul", status)
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        // SAFETY: the handle is destroyed once. A failure leaves nothing to be done.
        let _ = unsafe { lt::cublasLtDestroy(self.handle) };
    }
}

impl fmt::Debug for Lt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lt").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

impl LtPlan {
    /// The shape that it is for.
    pub fn shape(&self) -> GemmShape {
        self.shape
    }
}

impl fmt::Debug for LtPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LtPlan { shape, workspace_bytes, waves, .. } = self;
        f.debug_struct("LtPlan")
            .field("shape", shape)
            .field("workspace_bytes", workspace_bytes)
            .field("waves", waves)
            .finish_non_exhaustive()
    }
}

/// What is multiplied how: the first operand transposed, sums in f32.
struct Desc(lt::cublasLtMatmulDesc_t);

impl Desc {
    fn new() -> Result<Self, CudaError> {
        let mut desc = ptr::null_mut();
        // SAFETY: the library writes the descriptor, or null if it fails.
        let status = unsafe {
            lt::cublasLtMatmulDescCreate(
                &raw mut desc,
                lt::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                lt::cudaDataType_t::CUDA_R_32F,
            )
        };
        lt_status("cublasLtMatmulDescCreate", status)?;
        let desc = Desc(desc);
        let transposed = cublas::cublasOperation_t::CUBLAS_OP_T;
        // SAFETY: the descriptor is alive, and the value is of the type that the attribute has.
        let status = unsafe {
            lt::cublasLtMatmulDescSetAttribute(
                desc.0,
                lt::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transposed).cast(),
                size_of_val(&transposed),
            )
        };
        lt_status("cublasLtMatmulDescSetAttribute", status)?;
        Ok(desc)
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { lt::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// A column-major matrix without gaps.
struct Layout(lt::cublasLtMatrixLayout_t);

impl Layout {
    fn new(dtype: lt::cudaDataType, rows: u64, cols: u64) -> Result<Self, CudaError> {
        let mut layout = ptr::null_mut();
        // SAFETY: the library writes the layout, or null if it fails; the rows were checked to fit 31 bits.
        let status = unsafe { lt::cublasLtMatrixLayoutCreate(&raw mut layout, dtype, rows, cols, rows as i64) };
        lt_status("cublasLtMatrixLayoutCreate", status)?;
        Ok(Layout(layout))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { lt::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

// SAFETY: descriptors are plain memory of the library, only read after they were made.
unsafe impl Send for LtPlan {}
// SAFETY: as above.
unsafe impl Sync for LtPlan {}

/// What the heuristics may offer: anything within the workspace.
struct Preference(lt::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self, CudaError> {
        let mut preference = ptr::null_mut();
        // SAFETY: the library writes the preference, or null if it fails.
        lt_status("cublasLtMatmulPreferenceCreate", unsafe {
            lt::cublasLtMatmulPreferenceCreate(&raw mut preference)
        })?;
        let preference = Preference(preference);
        let bytes = WORKSPACE_BYTES as u64;
        // SAFETY: the preference is alive, and the value is of the type that the attribute has.
        let status = unsafe {
            lt::cublasLtMatmulPreferenceSetAttribute(
                preference.0,
                lt::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast(),
                size_of_val(&bytes),
            )
        };
        lt_status("cublasLtMatmulPreferenceSetAttribute", status)?;
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { lt::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

/// The type's name to cublasLt; its bindings repeat the enumeration of those of cuBLAS.
fn lt_dtype<T: BlasType>() -> lt::cudaDataType {
    match T::DTYPE {
        cublas::cudaDataType_t::CUDA_R_16F => lt::cudaDataType_t::CUDA_R_16F,
        cublas::cudaDataType_t::CUDA_R_16BF => lt::cudaDataType_t::CUDA_R_16BF,
        _ => lt::cudaDataType_t::CUDA_R_32F,
    }
}

/// A thread that panicked while it held the handle left it in order: every use sets what it needs.
fn lock(handle: &Mutex<BlasHandle>) -> MutexGuard<'_, BlasHandle> {
    handle.lock().unwrap_or_else(PoisonError::into_inner)
}

fn blas_status(call: &'static str, status: cublas::cublasStatus_t) -> Result<(), CudaError> {
    match status {
        cublas::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(CudaError::Driver { call, reason: format!("{other:?}") }),
    }
}

fn lt_status(call: &'static str, status: lt::cublasStatus_t) -> Result<(), CudaError> {
    match status {
        lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(CudaError::Driver { call, reason: format!("{other:?}") }),
    }
}
