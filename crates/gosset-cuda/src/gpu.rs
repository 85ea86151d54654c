//! One device: found, checked against what was built, and its memory.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};

use cudarc::driver::{result, sys};

use crate::error::{CudaError, reason};
use crate::generated::modules::Module;
use crate::kernel::{Kernel, LoadedModule, load_ptx, version_of_text};
use crate::library;
use crate::memory::{Buffer, DevSlice, DeviceType};
use crate::stream::Stream;

/// The least compute capability that the embedded modules run on.
pub const MIN_CAPABILITY: (u32, u32) = (8, 0);
/// Targets of the embedded modules, in words.
const BUILT_FOR: &str = "sm_80 and sm_90a";

/// How a device is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Most bytes that this program may hold on the device; `None`: what is free.
    pub memory_limit: Option<u64>,
    /// A capability to go by instead of the device's own, for tests of the choice of modules.
    pub pretend_capability: Option<(u32, u32)>,
    /// A number of multiprocessors to go by instead of the device's own, for tests of launch shapes.
    pub pretend_multiprocessors: Option<u32>,
    /// For tests of what devices with less shared memory do: the most that a block can have, in bytes.
    pub pretend_shared_bytes: Option<u32>,
}

impl OpenOptions {
    /// With a limit of the memory that is held.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// With a pretended compute capability.
    #[must_use]
    pub fn pretend_capability(mut self, major: u32, minor: u32) -> Self {
        self.pretend_capability = Some((major, minor));
        self
    }

    /// With a pretended number of multiprocessors.
    #[must_use]
    pub fn pretend_multiprocessors(mut self, n: u32) -> Self {
        self.pretend_multiprocessors = Some(n);
        self
    }

    /// With a pretended limit of shared memory per block.
    #[must_use]
    pub fn pretend_shared_bytes(mut self, n: u32) -> Self {
        self.pretend_shared_bytes = Some(n);
        self
    }
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuInfo {
    /// Number of the device, as the driver counts.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub n_sms: u32,
    /// Bytes of the second-level cache.
    pub l2_bytes: u32,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Most bytes of shared memory that one block can have.
    pub max_shared_bytes: u32,
    /// CUDA version that the driver supports, major and minor.
    pub driver: (u32, u32),
}

impl fmt::Display for GpuInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ordinal, name, capability: (major, minor), n_sms, memory_bytes, driver, .. } = self;
        let gib = *memory_bytes as f64 / f64::from(1 << 30);
        write!(f, "cuda:{ordinal} {name}, capability {major}.{minor}, {n_sms} multiprocessors, {gib:.1} GiB, ")?;
        write!(f, "driver for CUDA {}.{}", driver.0, driver.1)
    }
}

/// A device that the embedded kernels run on. Clones share everything; any thread may use it.
#[derive(Clone)]
pub struct Gpu {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    info: GpuInfo,
    context: Context,
    memory_limit: Option<u64>,
    allocated: AtomicU64,
    modules: Mutex<HashMap<Module, Arc<LoadedModule>>>,
    tables: Mutex<HashMap<Vec<u32>, Arc<Buffer<u32>>>>,
}

/// Held to write while a stream is captured, to read while the whole device is waited for: the driver refuses the one during
/// the other, and ends the capture. One for all handles, since they share the primary context.
static CAPTURING: RwLock<()> = RwLock::new(());

thread_local! {
    /// Whether a stream is being captured on this thread, which then must not wait for the lock that it holds.
    static CAPTURES: Cell<bool> = const { Cell::new(false) };
}

/// Ends the time of a capture when it is dropped.
pub(crate) struct Capturing {
    _guard: RwLockWriteGuard<'static, ()>,
}

impl Drop for Capturing {
    fn drop(&mut self) {
        CAPTURES.set(false);
    }
}

/// The primary context of a device, retained.
struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: a context handle may be used from any thread; each call below makes it current on its own thread first.
unsafe impl Send for Context {}
// SAFETY: as above; the driver's calls are thread-safe.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `device` was retained once by `Gpu::open`, and is released once here.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.inner.info).finish()
    }
}

/// CUDA version that the driver supports, after the driver was found and started.
fn start_driver() -> Result<(u32, u32), CudaError> {
    if !library::is_present(&["cuda", "nvcuda"]) {
        return Err(CudaError::NoDriver);
    }
    result::init().map_err(|error| CudaError::NoDevice { reason: reason(error) })?;
    let mut version = 0;
    // SAFETY: `version` outlives the call.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(|error| CudaError::driver("cuDriverGetVersion", error))?;
    Ok((version as u32 / 1000, version as u32 % 1000 / 10))
}

/// CUDA version that the driver supports, major and minor.
///
/// # Errors
/// [`CudaError::NoDriver`], and [`CudaError::NoDevice`] where the driver does not start.
pub fn driver_version() -> Result<(u32, u32), CudaError> {
    start_driver()
}

/// `number: name` of each device that the driver shows.
///
/// # Errors
/// [`CudaError::NoDriver`] and [`CudaError::NoDevice`].
pub fn device_names() -> Result<Vec<String>, CudaError> {
    start_driver()?;
    let n = result::device::get_count().map_err(|error| CudaError::NoDevice { reason: reason(error) })?;
    (0..n)
        .map(|ordinal| {
            result::device::get(ordinal)
                .and_then(result::device::get_name)
                .map(|name| format!("{ordinal}: {name}"))
                .map_err(|error| CudaError::driver("cuDeviceGetName", error))
        })
        .collect()
}

impl Gpu {
    /// The first device.
    ///
    /// # Errors
    /// Those of [`Gpu::open`].
    pub fn detect() -> Result<Self, CudaError> {
        Self::open(0, &OpenOptions::default())
    }

    /// Device `ordinal`, checked before anything is allocated on it.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::NoDevice`], [`CudaError::NoSuchDevice`], [`CudaError::CapabilityTooLow`],
    /// [`CudaError::DriverTooOld`]; each says what to do.
    pub fn open(ordinal: usize, options: &OpenOptions) -> Result<Self, CudaError> {
        let driver = start_driver()?;
        let found = device_names()?;
        if found.is_empty() {
            return Err(CudaError::NoDevice { reason: "the count of devices is zero".to_owned() });
        }
        if ordinal >= found.len() {
            return Err(CudaError::NoSuchDevice { ordinal, found });
        }
        let call = |call: &'static str| move |error| CudaError::driver(call, error);
        let device = result::device::get(ordinal as i32).map_err(call("cuDeviceGet"))?;
        let name = result::device::get_name(device).map_err(call("cuDeviceGetName"))?;
        let attribute = |attribute| {
            // SAFETY: `device` is a device that the driver gave out.
            let value = unsafe { result::device::get_attribute(device, attribute) };
            value.map(|value| value as u32).map_err(call("cuDeviceGetAttribute"))
        };
        use sys::CUdevice_attribute as A;
        let own = (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let capability = options.pretend_capability.unwrap_or(own);
        if capability < MIN_CAPABILITY {
            let (found, needed) = (capability, MIN_CAPABILITY);
            return Err(CudaError::CapabilityTooLow { ordinal, name, found, needed, built_for: BUILT_FOR });
        }
        let needed = crate::kernel::min_driver(capability);
        if driver < needed {
            return Err(CudaError::DriverTooOld { found: driver, needed });
        }
        let n_sms = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // SAFETY: `device` is a device that the driver gave out.
        let memory_bytes = unsafe { result::device::total_mem(device) }.map_err(call("cuDeviceTotalMem"))? as u64;
        let info = GpuInfo {
            ordinal,
            name,
            capability,
            n_sms: options.pretend_multiprocessors.unwrap_or(n_sms).max(1),
            l2_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            memory_bytes,
            max_shared_bytes: options
                .pretend_shared_bytes
                .unwrap_or(u32::MAX)
                .min(attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?),
            driver,
        };
        // SAFETY: `device` is a device that the driver gave out; released by the drop of `Context`.
        let raw = unsafe { result::primary_ctx::retain(device) }.map_err(call("cuDevicePrimaryCtxRetain"))?;
        let gpu = Self {
            inner: Arc::new(Inner {
                info,
                context: Context { device, raw },
                memory_limit: options.memory_limit,
                allocated: AtomicU64::new(0),
                modules: Mutex::new(HashMap::new()),
                tables: Mutex::new(HashMap::new()),
            }),
        };
        gpu.bind()?;
        Ok(gpu)
    }

    /// What the device is.
    #[must_use]
    pub fn info(&self) -> &GpuInfo {
        &self.inner.info
    }

    /// Makes the device's context current on the calling thread.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { result::ctx::set_current(self.inner.context.raw) }
            .map_err(|error| CudaError::driver("cuCtxSetCurrent", error))
    }

    /// Bytes that can still be allocated, within the limit that was set.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        self.bind()?;
        let (free, _) = result::mem_get_info().map_err(|error| CudaError::driver("cuMemGetInfo", error))?;
        let free = free as u64;
        Ok(self.inner.memory_limit.map_or(free, |limit| free.min(limit.saturating_sub(self.allocated_bytes()))))
    }

    /// Bytes that buffers of this handle and its clones hold.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.allocated.load(Ordering::Relaxed)
    }

    /// Refuses what will not fit, before anything is allocated.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] with what is needed and what is free.
    pub fn check_memory(&self, what: &str, needed: u64) -> Result<(), CudaError> {
        let free = self.free_bytes()?;
        if needed <= free {
            return Ok(());
        }
        let total = self.inner.memory_limit.unwrap_or(self.inner.info.memory_bytes);
        Err(CudaError::OutOfMemory { what: what.to_owned(), needed, free, total })
    }

    /// A new stream, which does not wait for others.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn stream(&self) -> Result<Stream, CudaError> {
        Stream::new(self)
    }

    /// Waits for everything on the device, and reports what kernels did wrong.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn synchronize(&self) -> Result<(), CudaError> {
        if CAPTURES.get() {
            let reason = "a stream is being captured on this thread".to_owned();
            return Err(CudaError::Driver { call: "cuCtxSynchronize", reason });
        }
        self.bind()?;
        let _no_capture = CAPTURING.read().unwrap_or_else(PoisonError::into_inner);
        result::ctx::synchronize().map_err(|error| CudaError::driver("cuCtxSynchronize", error))
    }

    /// Keeps other threads from waiting for the whole device until the result is dropped.
    pub(crate) fn capturing() -> Capturing {
        let guard = CAPTURING.write().unwrap_or_else(PoisonError::into_inner);
        CAPTURES.set(true);
        Capturing { _guard: guard }
    }

    /// `len` elements of device memory, zeroed.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn alloc<T: DeviceType>(&self, len: usize) -> Result<Buffer<T>, CudaError> {
        Buffer::zeroed(self, len)
    }

    /// A copy of `data` in device memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn upload<T: DeviceType>(&self, data: &[T]) -> Result<Buffer<T>, CudaError> {
        let mut buffer = Buffer::uninit(self, data.len())?;
        buffer.write(data)?;
        Ok(buffer)
    }

    /// A copy of device memory, after everything on the device has finished.
    ///
    /// # Errors
    /// [`CudaError::Driver`], also for what earlier kernels did wrong.
    pub fn download<T: DeviceType>(&self, data: DevSlice<'_, T>) -> Result<Vec<T>, CudaError> {
        self.synchronize()?;
        let mut out = vec![T::zeroed(); data.len()];
        if !out.is_empty() {
            // SAFETY: `data` is valid for its length, by the contract of `DevSlice`; `T` is plain data.
            unsafe { result::memcpy_dtoh_sync(&mut out, data.ptr()) }
                .map_err(|error| CudaError::driver("cuMemcpyDtoH", error))?;
        }
        Ok(out)
    }

    /// A table that kernels look up, uploaded once per device.
    pub(crate) fn table(&self, words: Vec<u32>) -> Result<Arc<Buffer<u32>>, CudaError> {
        let mut tables = self.inner.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get(&words) {
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(Buffer::for_cache(self, &words)?);
        tables.insert(words, Arc::clone(&table));
        Ok(table)
    }

    /// A kernel of an embedded module, which is loaded when it is first asked for.
    pub(crate) fn kernel(&self, module: Module, entry: &'static str) -> Result<Kernel, CudaError> {
        self.bind()?;
        let loaded = {
            let mut modules = self.inner.modules.lock().unwrap_or_else(PoisonError::into_inner);
            match modules.get(&module) {
                Some(loaded) => Arc::clone(loaded),
                None => {
                    let loaded = Arc::new(LoadedModule::load(&self.inner.info, module)?);
                    modules.insert(module, Arc::clone(&loaded));
                    loaded
                }
            }
        };
        loaded.kernel(self, entry)
    }

    /// Compiles every embedded module now, instead of at its first launch; the number of kernels.
    ///
    /// The driver keeps what it compiled in a cache on disk, so that a second program starts faster.
    ///
    /// # Errors
    /// [`CudaError::DriverTooOld`] or [`CudaError::Driver`] for the first module or kernel that the driver refuses.
    pub fn preload(&self) -> Result<usize, CudaError> {
        let mut n = 0;
        for &module in Module::ALL {
            for entry in module.entries() {
                self.kernel(module, entry.name)?;
                n += 1;
            }
        }
        Ok(n)
    }

    /// Compiles a PTX text by the way of the embedded ones, and drops it; for tests and diagnosis.
    ///
    /// # Errors
    /// [`CudaError::DriverTooOld`] where the version of the text is newer than the driver's; [`CudaError::Driver`] with the
    /// compiler's log where it is no valid text.
    pub fn check_ptx(&self, text: &str) -> Result<(), CudaError> {
        let version = version_of_text(text).ok_or_else(|| CudaError::shape("PTX", "a line .version", "none"))?;
        self.bind()?;
        let raw = load_ptx(text, version, self.info().driver)?;
        // SAFETY: loaded just now; no kernel of it was asked for.
        unsafe { result::module::unload(raw) }.map_err(|error| CudaError::driver("cuModuleUnload", error))
    }

    /// Counts bytes that a buffer takes, or refuses them.
    pub(crate) fn reserve(&self, what: &str, bytes: u64) -> Result<(), CudaError> {
        if self.inner.memory_limit.is_some() {
            self.check_memory(what, bytes)?;
        }
        self.inner.allocated.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Takes back what [`Gpu::reserve`] counted.
    pub(crate) fn unreserve(&self, bytes: u64) {
        self.inner.allocated.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counter and context without a strong reference, for what the device's own caches hold.
    pub(crate) fn downgrade(&self) -> std::sync::Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    /// The handle again, as long as someone holds it.
    pub(crate) fn upgrade(weak: &std::sync::Weak<Inner>) -> Option<Self> {
        weak.upgrade().map(|inner| Self { inner })
    }
}
