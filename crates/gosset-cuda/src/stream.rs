//! Streams and events.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::error::CudaError;
use crate::gpu::Gpu;

/// A stream that someone owns: a raw handle.
#[derive(Debug, Clone, Copy)]
pub struct StreamRef<'a> {
    raw: *mut c_void,
    _borrow: PhantomData<&'a ()>,
}

// SAFETY: a stream handle may be used from any thread whose current context is the stream's; launches bind it first.
unsafe impl Send for StreamRef<'_> {}

impl StreamRef<'_> {
    /// A stream of another owner (candle, PyTorch, cudarc), as a `CUstream`; null is the default stream.
    ///
    /// # Safety
    /// `raw` is a live stream of the primary context of the device that it is used with.
    #[must_use]
    pub unsafe fn from_raw(raw: *mut c_void) -> Self {
        Self { raw, _borrow: PhantomData }
    }

    /// The handle, a `CUstream`.
    #[must_use]
    pub fn raw(self) -> *mut c_void {
        self.raw
    }

    pub(crate) fn cu(self) -> sys::CUstream {
        self.raw.cast()
    }

    /// Waits until the work in the stream is done, and reports what it did wrong.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn synchronize(self) -> Result<(), CudaError> {
        // SAFETY: the stream is live by the contract of `from_raw` or by the borrow.
        unsafe { result::stream::synchronize(self.cu()) }
            .map_err(|error| CudaError::driver("cuStreamSynchronize", error))
    }
}

/// A stream of our own, destroyed when its last clone is dropped.
#[derive(Debug, Clone)]
pub struct Stream {
    inner: Arc<Owned>,
}

#[derive(Debug)]
struct Owned {
    raw: sys::CUstream,
    gpu: Gpu,
}

// SAFETY: as for `StreamRef`.
unsafe impl Send for Owned {}
// SAFETY: the driver's calls on a stream are thread-safe.
unsafe impl Sync for Owned {}

impl Stream {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        gpu.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(|error| CudaError::driver("cuStreamCreate", error))?;
        Ok(Self { inner: Arc::new(Owned { raw, gpu: gpu.clone() }) })
    }

    /// The stream, to launch into.
    #[must_use]
    pub fn as_ref(&self) -> StreamRef<'_> {
        StreamRef { raw: self.inner.raw.cast(), _borrow: PhantomData }
    }

    /// The device of the stream.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.inner.gpu
    }

    /// Waits until the work in the stream is done.
    ///
    /// # Errors
    /// [`CudaError::Driver`], also for what kernels did wrong.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.inner.gpu.bind()?;
        self.as_ref().synchronize()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once; work still in it goes on.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// A point in time of a stream.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    gpu: Gpu,
}

impl Event {
    /// An event that keeps time.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        gpu.bind()?;
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
            .map_err(|error| CudaError::driver("cuEventCreate", error))?;
        Ok(Self { raw, gpu: gpu.clone() })
    }

    /// Puts the event after the work that the stream has now.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn record(&self, stream: StreamRef<'_>) -> Result<(), CudaError> {
        self.gpu.bind()?;
        // SAFETY: both handles are live.
        unsafe { result::event::record(self.raw, stream.cu()) }
            .map_err(|error| CudaError::driver("cuEventRecord", error))
    }

    /// Microseconds from `start` to this event, which is waited for.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn elapsed_us(&self, start: &Event) -> Result<f64, CudaError> {
        self.gpu.bind()?;
        // SAFETY: the handle is live.
        unsafe { result::event::synchronize(self.raw) }
            .map_err(|error| CudaError::driver("cuEventSynchronize", error))?;
        // SAFETY: both handles are live.
        let ms = unsafe { result::event::elapsed(start.raw, self.raw) }
            .map_err(|error| CudaError::driver("cuEventElapsedTime", error))?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}
