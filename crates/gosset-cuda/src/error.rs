//! What can go wrong between the host and a device.

use cudarc::driver::DriverError;

/// Why a device could not be used, a kernel not be launched, or memory not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not on this machine.
    #[error("no CUDA driver was found (libcuda.so.1 or nvcuda.dll); install the NVIDIA driver or use the CPU")]
    NoDriver,
    /// The driver's library is there, but shows no device.
    #[error("the CUDA driver shows no device ({reason}); check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the CPU")]
    NoDevice {
        /// The driver's own words.
        reason: String,
    },
    /// The driver is older than what the kernels need.
    #[error(
        "the CUDA driver supports CUDA {}.{}, the kernels were built for {}.{}; update the driver, rebuild the PTX with an older toolkit, or use the CPU", found.0, found.1, needed.0, needed.1
    )]
    DriverTooOld {
        /// CUDA version that the driver supports.
        found: (u32, u32),
        /// CUDA version that the module needs.
        needed: (u32, u32),
    },
    /// The device is older than what the kernels were built for.
    #[error(
        "device {ordinal} ({name}) has compute capability {}.{}; the kernels were built for {}, so {}.{} is the least; choose another device or use the CPU", found.0, found.1, built_for, needed.0, needed.1
    )]
    CapabilityTooLow {
        /// Number of the device.
        ordinal: usize,
        /// Its name.
        name: String,
        /// Its capability.
        found: (u32, u32),
        /// The least capability.
        needed: (u32, u32),
        /// Targets of the embedded modules.
        built_for: &'static str,
    },
    /// There is no device of this number.
    #[error("there is no CUDA device {ordinal}; found: {}", if found.is_empty() { "none".to_owned() } else { found.join(", ") })]
    NoSuchDevice {
        /// The number that was asked for.
        ordinal: usize,
        /// `number: name` of each device.
        found: Vec<String>,
    },
    /// More memory was asked for than there is.
    #[error(
        "{needed} bytes of device memory are needed for {what}, {free} of {total} are free; lower the context, choose fewer bits, or use the CPU"
    )]
    OutOfMemory {
        /// What the memory is for.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes free, within the limit that the caller set.
        free: u64,
        /// Bytes of the device, or the limit.
        total: u64,
    },
    /// An argument has not the shape that the others ask for.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// Operation and argument.
        what: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The operation is not built for this combination.
    #[error("{op} is not built for {what}")]
    Unsupported {
        /// Name of the operation.
        op: &'static str,
        /// The combination.
        what: String,
    },
    /// Bytes that should be an encoded matrix are none.
    #[error("not a valid encoded matrix: {0}")]
    Codec(String),
    /// A library beside the driver is not on this machine.
    #[error("{library} was not found; install the CUDA runtime libraries, or do without it")]
    NoLibrary {
        /// Name of the library.
        library: &'static str,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {reason}")]
    Driver {
        /// What was called.
        call: &'static str,
        /// The driver's own words, with the compiler's log where there is one.
        reason: String,
    },
}

impl CudaError {
    /// The error of a call of the driver.
    pub(crate) fn driver(call: &'static str, error: DriverError) -> Self {
        Self::Driver { call, reason: reason(error) }
    }

    /// An argument of a wrong shape.
    pub(crate) fn shape(what: &'static str, expected: impl ToString, found: impl ToString) -> Self {
        Self::Shape { what, expected: expected.to_string(), found: found.to_string() }
    }
}

impl From<gosset_codec::CodecError> for CudaError {
    fn from(error: gosset_codec::CodecError) -> Self {
        Self::Codec(error.to_string())
    }
}

impl From<gosset_trellis::TrellisError> for CudaError {
    fn from(error: gosset_trellis::TrellisError) -> Self {
        Self::Codec(error.to_string())
    }
}

/// The driver's words for an error.
pub(crate) fn reason(error: DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{name}: {text}"),
        _ => format!("{:?}", error.0),
    }
}
