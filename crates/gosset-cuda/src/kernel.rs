//! Modules and kernels: which text is loaded on which device, and how a kernel is launched.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::{result, sys};

use crate::error::{CudaError, reason};
use crate::generated::modules::{Image, Module};
use crate::gpu::{Gpu, GpuInfo};
use crate::stream::StreamRef;

/// Parameter structs of kernels, generated from `kernels/kernels.toml`.
///
/// # Safety
/// The layout is that of the struct of the same name in `kernels/include/params.cuh`.
pub(crate) unsafe trait Params: Copy {}

/// Shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Launch {
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) shared_bytes: u32,
    /// Whether the kernel may start before its predecessor in the stream has ended; it then waits for it by
    /// `griddepcontrol.wait`. Ignored below capability 9.0.
    pub(crate) programmatic: bool,
}

/// CUDA version whose drivers read this version of PTX.
pub(crate) fn cuda_of_ptx(version: (u32, u32)) -> (u32, u32) {
    match version {
        // From 8.6 on the minor numbers differ by one: CUDA 12.6 brought no version of its own.
        (8, minor) if minor >= 6 => (12, minor + 1),
        (major, minor) => (major + 4, minor),
    }
}

/// What the line `.version` of a text says.
pub(crate) fn version_of_text(text: &str) -> Option<(u32, u32)> {
    let line = text.lines().find_map(|line| line.strip_prefix(".version "))?;
    let (major, minor) = line.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The oldest driver, as a CUDA version, that reads the modules meant for a capability.
pub(crate) fn min_driver(capability: (u32, u32)) -> (u32, u32) {
    let versions = Module::ALL.iter().filter_map(|&module| image(module, capability)).map(|image| image.ptx_version);
    versions.map(cuda_of_ptx).max().unwrap_or((12, 0))
}

/// Capability of a target such as `sm_80` or `sm_90a`, and whether it runs on no other.
fn capability_of(target: &str) -> Option<((u32, u32), bool)> {
    let digits = target.strip_prefix("sm_")?;
    let (number, exact) = match digits.strip_suffix('a') {
        Some(number) => (number, true),
        None => (digits, false),
    };
    let number: u32 = number.parse().ok()?;
    Some(((number / 10, number % 10), exact))
}

/// The image of a module that suits a capability best: one made for it alone before the newest that runs on it.
pub(crate) fn image(module: Module, capability: (u32, u32)) -> Option<&'static Image> {
    let suits = |image: &&Image| match capability_of(image.target) {
        Some((target, true)) => target == capability,
        Some((target, false)) => target <= capability,
        None => false,
    };
    module.images().iter().filter(suits).max_by_key(|image| capability_of(image.target))
}

/// A module on a device, with its kernels.
#[derive(Debug)]
pub(crate) struct LoadedModule {
    module: Module,
    ptx: &'static str,
    raw: sys::CUmodule,
    kernels: Mutex<HashMap<&'static str, Kernel>>,
}

// SAFETY: handles of modules may be used from any thread; the map is behind a mutex.
unsafe impl Send for LoadedModule {}
// SAFETY: as above.
unsafe impl Sync for LoadedModule {}

impl LoadedModule {
    /// The text for the device's capability, compiled by the driver. The device's context is current.
    pub(crate) fn load(info: &GpuInfo, module: Module) -> Result<Self, CudaError> {
        let Some(image) = image(module, info.capability) else {
            let what = format!("compute capability {}.{}", info.capability.0, info.capability.1);
            return Err(CudaError::Unsupported { op: module.name(), what });
        };
        let raw = load_ptx(image.ptx, image.ptx_version, info.driver)?;
        Ok(Self { module, ptx: image.ptx, raw, kernels: Mutex::new(HashMap::new()) })
    }

    pub(crate) fn kernel(&self, gpu: &Gpu, entry: &'static str) -> Result<Kernel, CudaError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(entry) {
            return Ok(*kernel);
        }
        let missing = |reason| CudaError::Driver { call: "cuModuleGetFunction", reason };
        let name = CString::new(entry).map_err(|_| missing(format!("{entry:?} holds a zero byte")))?;
        // SAFETY: the module is loaded and never unloaded while its device lives.
        let raw = unsafe { result::module::get_function(self.raw, name) }
            .map_err(|error| missing(format!("{} of module {}: {}", entry, self.module.name(), reason(error))))?;
        let declared = self.module.entries().iter().find(|declared| declared.name == entry);
        let param_bytes = declared.map_or(0, |declared| declared.param_bytes);
        let max_shared = gpu.info().max_shared_bytes;
        // SAFETY: `raw` is a function of a loaded module.
        let fixed = unsafe {
            result::function::get_function_attribute(
                raw,
                sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            )
        }
        .map_err(|error| CudaError::driver("cuFuncGetAttribute", error))?;
        let dynamic = max_shared.saturating_sub(fixed as u32);
        // SAFETY: as above; the value is within the device's limit.
        unsafe {
            result::function::set_function_attribute(
                raw,
                sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                dynamic as i32,
            )
        }
        .map_err(|error| CudaError::driver("cuFuncSetAttribute", error))?;
        // Drivers before CUDA 12.3 do not put programmatic launches into graphs. A text without the wait, such as that of
        // capability 8.0 on a newer device, would run into its predecessor.
        let programmatic = gpu.info().driver >= (12, 3) && waits(self.ptx, entry);
        let kernel = Kernel { raw, entry, param_bytes, max_dynamic_bytes: dynamic, programmatic };
        kernels.insert(entry, kernel);
        Ok(kernel)
    }
}

/// Loads a text, and says which side is out of date when the driver refuses it.
pub(crate) fn load_ptx(text: &str, version: (u32, u32), driver: (u32, u32)) -> Result<sys::CUmodule, CudaError> {
    let needed = cuda_of_ptx(version);
    if driver < needed {
        return Err(CudaError::DriverTooOld { found: driver, needed });
    }
    let text = CString::new(text).map_err(|_| CudaError::Driver {
        call: "cuModuleLoadDataEx",
        reason: "the PTX holds a zero byte".to_owned(),
    })?;
    let mut log = vec![0u8; 4096];
    use sys::CUjit_option_enum as J;
    let mut options = [J::CU_JIT_ERROR_LOG_BUFFER, J::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: the text ends with a zero byte, the arrays have two elements each, and the log is as long as it says.
    let loaded = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    match loaded {
        sys::CUresult::CUDA_SUCCESS => Ok(module),
        sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => Err(CudaError::DriverTooOld { found: driver, needed }),
        other => {
            let log = String::from_utf8_lossy(&log);
            let log = log.trim_end_matches('\0').trim();
            let words = reason(cudarc::driver::DriverError(other));
            let reason = if log.is_empty() { words } else { format!("{words}: {log}") };
            Err(CudaError::Driver { call: "cuModuleLoadDataEx", reason })
        }
    }
}

/// Whether a kernel of a text waits for its predecessor in the stream.
fn waits(ptx: &str, entry: &str) -> bool {
    let head = format!(".entry {entry}(");
    let body = ptx.split_once(&head).map_or("", |(_, rest)| rest);
    body.split(".entry ").next().is_some_and(|body| body.contains("griddepcontrol.wait"))
}

/// A kernel, ready to launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    raw: sys::CUfunction,
    entry: &'static str,
    /// Size of the parameter struct that the module was built for.
    param_bytes: usize,
    max_dynamic_bytes: u32,
    programmatic: bool,
}

// SAFETY: a function handle may be used from any thread.
unsafe impl Send for Kernel {}

impl Kernel {
    /// Bytes of dynamic shared memory that a block can have.
    pub(crate) fn max_dynamic_bytes(&self) -> u32 {
        self.max_dynamic_bytes
    }

    /// Puts the kernel into the stream.
    ///
    /// # Safety
    /// `P` is the parameter struct of this entry, its pointers are valid for what the kernel reads and writes, and stay
    /// so until the stream has done the work. The context of the stream is current.
    pub(crate) unsafe fn launch<P: Params>(
        &self,
        stream: StreamRef<'_>,
        launch: Launch,
        params: &P,
    ) -> Result<(), CudaError> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        if size_of::<P>() != self.param_bytes {
            let expected = format!("{} bytes of parameters", self.param_bytes);
            return Err(CudaError::shape(self.entry, expected, size_of::<P>()));
        }
        if launch.shared_bytes > self.max_dynamic_bytes {
            let expected = format!("at most {} bytes of shared memory", self.max_dynamic_bytes);
            return Err(CudaError::shape(self.entry, expected, launch.shared_bytes));
        }
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let programmatic = launch.programmatic && self.programmatic;
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.shared_bytes,
            hStream: stream.cu(),
            attrs: &mut attribute,
            numAttrs: programmatic.into(),
        };
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        // SAFETY: by the contract of this function; the driver copies the parameters before it returns.
        unsafe { sys::cuLaunchKernelEx(&config, self.raw, arguments.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(|error| CudaError::Driver {
                call: "cuLaunchKernelEx",
                reason: format!("{}: {}", self.entry, reason(error)),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_ptx_name_the_driver() {
        for (ptx, cuda) in [
            ((7, 0), (11, 0)),
            ((7, 8), (11, 8)),
            ((8, 0), (12, 0)),
            ((8, 5), (12, 5)),
            ((8, 8), (12, 9)),
            ((9, 0), (13, 0)),
        ] {
            assert_eq!(cuda_of_ptx(ptx), cuda);
        }
    }

    #[test]
    fn a_target_with_a_letter_runs_on_its_capability_only() {
        let target = |capability| image(Module::Probe, capability).map(|image| image.target);
        assert_eq!(target((7, 5)), None);
        assert_eq!(target((8, 0)), Some("sm_80"));
        assert_eq!(target((8, 9)), Some("sm_80"));
        assert_eq!(target((9, 0)), Some("sm_90a"));
        assert_eq!(target((10, 0)), Some("sm_80"));
        assert_eq!(target((12, 0)), Some("sm_80"));
    }

    #[test]
    fn every_capability_from_the_least_on_has_every_module() {
        for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)] {
            for &module in Module::ALL {
                // `KvShiftStep12812` stands in for the one that is built for a single capability.
                let is_due = !matches!(module, Module::KvShiftStep128) || capability == (9, 0);
                let image = image(module, capability).map(|image| image.target);
                assert_eq!(image.is_some(), is_due, "{module:?} for {capability:?}");
            }
        }
        for capability in [(6, 1), (7, 5)] {
            assert!(capability < crate::MIN_CAPABILITY);
            assert!(Module::ALL.iter().all(|&module| image(module, capability).is_none()));
        }
    }

    #[test]
    fn texts_are_what_the_table_says() {
        for image in Module::ALL.iter().flat_map(|module| module.images()) {
            assert_eq!(version_of_text(image.ptx), Some(image.ptx_version));
            assert!(image.ptx.contains(&format!("\n.target {}\n", image.target)), "{}", image.target);
        }
        assert_eq!(version_of_text("// .version 1.0\n.version 99.1\n"), Some((99, 1)));
        assert_eq!(version_of_text(".version 9\n"), None);
    }

    #[test]
    fn drivers_of_cuda_12_load_every_module() {
        for capability in [(8, 0), (9, 0)] {
            assert_eq!(min_driver(capability), (12, 0), "capability {capability:?}");
        }
    }

    #[test]
    fn only_texts_that_wait_may_start_early() {
        let text = |capability| image(Module::ShiftFewK2, capability).map_or("", |image| image.ptx);
        assert!(waits(text((9, 0)), "shift_few_once_pairs") && waits(text((9, 0)), "shift_few_long_pairs"));
        for capability in [(8, 0), (10, 0)] {
            assert!(!waits(text(capability), "shift_few_once_pairs"), "{capability:?}");
        }
        let two = ".entry a(\n) {\n ret;\n}\n.visible .entry b(\n) {\n griddepcontrol.wait;\n}\n";
        assert!(!waits(two, "a") && waits(two, "b") && !waits(two, "c"));
    }
}
