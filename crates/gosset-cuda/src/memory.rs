//! Device memory: owned buffers and borrowed slices.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Weak;

use bytemuck::Zeroable;
use cudarc::driver::result;
use half::{bf16, f16};

use crate::error::CudaError;
use crate::gpu::{Gpu, Inner};
use crate::stream::StreamRef;

/// Element types of device memory: plain data with the same layout on both sides.
///
/// # Safety
/// Any bit pattern is a value, and there is no padding.
pub unsafe trait DeviceType: Copy + Zeroable + Send + Sync + 'static {}

macro_rules! device_types {
    ($($t:ty),*) => {
        $(
            // SAFETY: integers and IEEE numbers: any bit pattern is a value, no padding.
            unsafe impl DeviceType for $t {}
        )*
    };
}

device_types!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, f16, bf16);

/// Borrowed elements of device memory, read only.
#[derive(Debug, Clone, Copy)]
pub struct DevSlice<'a, T> {
    ptr: u64,
    len: usize,
    _borrow: PhantomData<&'a T>,
}

/// Borrowed elements of device memory that a kernel writes.
#[derive(Debug)]
pub struct DevSliceMut<'a, T> {
    ptr: u64,
    len: usize,
    _borrow: PhantomData<&'a mut T>,
}

impl<'a, T: DeviceType> DevSlice<'a, T> {
    /// Memory that someone else owns.
    ///
    /// # Safety
    /// `ptr` is device memory of `len` elements, aligned for `T`, in the primary context of the device that it is used
    /// with; it stays valid, and no one writes to it, until the work that reads it has finished.
    #[must_use]
    pub unsafe fn from_raw(ptr: u64, len: usize) -> Self {
        Self { ptr, len, _borrow: PhantomData }
    }

    /// The device's address of the first element.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements `range`.
    ///
    /// # Errors
    /// [`CudaError::Shape`] beyond the end.
    pub fn slice(self, range: Range<usize>) -> Result<DevSlice<'a, T>, CudaError> {
        let (ptr, len) = part::<T>(self.ptr, self.len, range)?;
        Ok(Self { ptr, len, _borrow: PhantomData })
    }
}

impl<'a, T: DeviceType> DevSliceMut<'a, T> {
    /// Memory that someone else owns.
    ///
    /// # Safety
    /// As for [`DevSlice::from_raw`], and no one else reads or writes the memory until the work has finished.
    #[must_use]
    pub unsafe fn from_raw(ptr: u64, len: usize) -> Self {
        Self { ptr, len, _borrow: PhantomData }
    }

    /// The device's address of the first element.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements `range`.
    ///
    /// # Errors
    /// [`CudaError::Shape`] beyond the end.
    pub fn slice(self, range: Range<usize>) -> Result<DevSliceMut<'a, T>, CudaError> {
        let (ptr, len) = part::<T>(self.ptr, self.len, range)?;
        Ok(Self { ptr, len, _borrow: PhantomData })
    }

    /// The elements before `at` and the others.
    ///
    /// # Errors
    /// [`CudaError::Shape`] beyond the end.
    pub fn split_at(self, at: usize) -> Result<(DevSliceMut<'a, T>, DevSliceMut<'a, T>), CudaError> {
        let (first, n_first) = part::<T>(self.ptr, self.len, 0..at)?;
        let (second, n_second) = part::<T>(self.ptr, self.len, at..self.len)?;
        let slice = |ptr, len| Self { ptr, len, _borrow: PhantomData };
        Ok((slice(first, n_first), slice(second, n_second)))
    }

    /// The same memory, borrowed for less long.
    #[must_use]
    pub fn reborrow(&mut self) -> DevSliceMut<'_, T> {
        DevSliceMut { ptr: self.ptr, len: self.len, _borrow: PhantomData }
    }

    /// The same memory, read only.
    #[must_use]
    pub fn as_slice(&self) -> DevSlice<'_, T> {
        DevSlice { ptr: self.ptr, len: self.len, _borrow: PhantomData }
    }
}

fn part<T>(ptr: u64, len: usize, range: Range<usize>) -> Result<(u64, usize), CudaError> {
    if range.start > range.end || range.end > len {
        return Err(CudaError::shape("range of device memory", format!("within {len}"), format!("{range:?}")));
    }
    Ok((ptr + (range.start * size_of::<T>()) as u64, range.end - range.start))
}

/// Owned elements of device memory, freed on drop.
#[derive(Debug)]
pub struct Buffer<T> {
    ptr: u64,
    len: usize,
    gpu: Owner,
    _element: PhantomData<T>,
}

/// Who keeps the context alive: a buffer, or the device whose cache holds it.
enum Owner {
    Strong(Gpu),
    Cache(Weak<Inner>),
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Strong(_) => "Strong",
            Self::Cache(_) => "Cache",
        })
    }
}

impl<T: DeviceType> Buffer<T> {
    /// Memory that holds anything.
    pub(crate) fn uninit(gpu: &Gpu, len: usize) -> Result<Self, CudaError> {
        Self::new(gpu, len, Owner::Strong(gpu.clone()))
    }

    fn new(gpu: &Gpu, len: usize, owner: Owner) -> Result<Self, CudaError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(|| {
            CudaError::shape("device memory", "a number of bytes that can be counted", format!("{len} elements"))
        })?;
        gpu.bind()?;
        if bytes == 0 {
            return Ok(Self { ptr: 0, len, gpu: owner, _element: PhantomData });
        }
        gpu.reserve("a buffer", bytes as u64)?;
        // SAFETY: a plain allocation; the context is current.
        match unsafe { result::malloc_sync(bytes) } {
            Ok(ptr) => Ok(Self { ptr, len, gpu: owner, _element: PhantomData }),
            Err(error) => {
                gpu.unreserve(bytes as u64);
                gpu.check_memory("a buffer", bytes as u64)?;
                Err(CudaError::driver("cuMemAlloc", error))
            }
        }
    }

    pub(crate) fn zeroed(gpu: &Gpu, len: usize) -> Result<Self, CudaError> {
        let buffer = Self::uninit(gpu, len)?;
        if len > 0 {
            // SAFETY: the buffer is that long; waits for nothing that could use it, as no one has it yet.
            unsafe { result::memset_d8_sync(buffer.ptr, 0, len * size_of::<T>()) }
                .map_err(|error| CudaError::driver("cuMemsetD8", error))?;
            // The fill is done by the null stream, which streams of ours do not wait for.
            gpu.synchronize()?;
        }
        Ok(buffer)
    }

    /// A buffer that the device's own cache holds, so that the two do not keep each other alive.
    pub(crate) fn for_cache(gpu: &Gpu, data: &[T]) -> Result<Self, CudaError> {
        let mut buffer = Self::new(gpu, data.len(), Owner::Cache(gpu.downgrade()))?;
        buffer.write(data)?;
        Ok(buffer)
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of device memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// All elements, to read.
    #[must_use]
    pub fn as_slice(&self) -> DevSlice<'_, T> {
        DevSlice { ptr: self.ptr, len: self.len, _borrow: PhantomData }
    }

    /// All elements, to write.
    #[must_use]
    pub fn as_mut(&mut self) -> DevSliceMut<'_, T> {
        DevSliceMut { ptr: self.ptr, len: self.len, _borrow: PhantomData }
    }

    /// Overwrites the buffer from its first element on, after everything on the device has finished.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for more elements than there are.
    pub fn write(&mut self, data: &[T]) -> Result<(), CudaError> {
        if data.len() > self.len {
            return Err(CudaError::shape("data for a buffer", format!("at most {} elements", self.len), data.len()));
        }
        if data.is_empty() {
            return Ok(());
        }
        if let Owner::Strong(gpu) = &self.gpu {
            gpu.synchronize()?;
        }
        // SAFETY: the buffer is at least as long as `data`, and no kernel runs.
        unsafe { result::memcpy_htod_sync(self.ptr, data) }
            .map_err(|error| CudaError::driver("cuMemcpyHtoD", error))?;
        // Pageable memory is copied by way of a staging buffer of the null stream.
        match &self.gpu {
            Owner::Strong(gpu) => gpu.synchronize(),
            Owner::Cache(weak) => Gpu::upgrade(weak).map_or(Ok(()), |gpu| gpu.synchronize()),
        }
    }

    /// Copies `data` of the host into the buffer in the order of the stream, which sees the values of this moment.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for more elements than there are.
    pub fn write_on(&mut self, stream: StreamRef, data: &[T]) -> Result<(), CudaError> {
        if data.len() > self.len {
            return Err(CudaError::shape("data for a buffer", format!("at most {} elements", self.len), data.len()));
        }
        if data.is_empty() {
            return Ok(());
        }
        if let Owner::Strong(gpu) = &self.gpu {
            gpu.bind()?;
        }
        // SAFETY: the buffer is at least as long as `data`; pageable memory is staged before the call returns.
        unsafe { result::memcpy_htod_async(self.ptr, data, stream.raw().cast()) }
            .map_err(|error| CudaError::driver("cuMemcpyHtoDAsync", error))
    }

    /// Copies device memory into the buffer, from its first element on, in the order of the stream.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for more elements than there are.
    pub fn copy_on(&mut self, stream: StreamRef, source: DevSlice<'_, T>) -> Result<(), CudaError> {
        if source.len() > self.len {
            let expected = format!("at most {} elements", self.len);
            return Err(CudaError::shape("source of a copy", expected, source.len()));
        }
        if source.is_empty() {
            return Ok(());
        }
        if let Owner::Strong(gpu) = &self.gpu {
            gpu.bind()?;
        }
        // SAFETY: both are at least as long as the source, and do not overlap, since the buffer is borrowed mutably.
        unsafe { result::memcpy_dtod_async(self.ptr, source.ptr(), source.len() * size_of::<T>(), stream.raw().cast()) }
            .map_err(|error| CudaError::driver("cuMemcpyDtoDAsync", error))
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.ptr == 0 {
            return;
        }
        let gpu = match &self.gpu {
            Owner::Strong(gpu) => Some(gpu.clone()),
            Owner::Cache(weak) => Gpu::upgrade(weak),
        };
        // Without the device the context is gone, and the memory with it.
        if let Some(gpu) = gpu {
            gpu.unreserve((self.len * size_of::<T>()) as u64);
            if gpu.bind().is_ok() {
                // SAFETY: allocated by `new`, freed once; the driver waits for the work that uses it.
                let _ = unsafe { result::free_sync(self.ptr) };
            }
        }
    }
}
