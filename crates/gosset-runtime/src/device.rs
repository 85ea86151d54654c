//! Where a model computes: the choice a person makes, and what the machine says to it.

use std::fmt;
use std::str::FromStr;

use crate::language_model::Device;

/// A wish: `auto`, `cpu`, `cuda` (the first GPU) or `cuda:N`.
///
/// ```
/// use gosset_runtime::DeviceChoice;
/// assert_eq!("cuda:1".parse(), Ok(DeviceChoice::Cuda(1)));
/// assert_eq!(DeviceChoice::Cuda(0).to_string(), "cuda:0");
/// assert_eq!(
///     "gpu".parse::<DeviceChoice>().unwrap_err().to_string(),
///     "device gpu: expected auto, cpu, cuda or cuda:N"
/// );
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU if it is usable, else the CPU.
    #[default]
    Auto,
    /// The CPU; no driver is looked for.
    Cpu,
    /// The GPU of this number, or an error.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let numbered = |n: &str| {
            let plain = !n.is_empty() && n.len() <= 4 && n.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| n.parse().ok()).flatten()
        };
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(numbered)
                .map(DeviceChoice::Cuda)
                .ok_or_else(|| DeviceError::Syntax { found: text.to_owned() }),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// Why a device cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The text names no device.
    #[error("device {found}: expected auto, cpu, cuda or cuda:N")]
    Syntax {
        /// As given.
        found: String,
    },
    /// The program was built without the code for GPUs.
    #[error(
        "device {asked}: this build runs on the CPU only; build it with the feature `gpu`, or choose the device cpu"
    )]
    NotBuilt {
        /// As asked for.
        asked: DeviceChoice,
    },
    /// The machine does not offer it.
    #[error("device {asked}: {reason}")]
    Unusable {
        /// As asked for.
        asked: DeviceChoice,
        /// What the driver said, or that there is none; and the remedy where one is known.
        reason: String,
    },
}

/// A device that was found usable.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ComputeDevice {
    /// The CPU.
    Cpu {
        /// Why no GPU was taken, on one line; `None` if none was asked for.
        instead: Option<String>,
    },
    /// An open GPU.
    #[cfg(feature = "gpu")]
    Cuda(gosset_cuda::Gpu),
}

impl DeviceChoice {
    /// The device to compute on.
    ///
    /// [`Cpu`](DeviceChoice::Cpu) touches no driver and does not fail; neither does [`Auto`](DeviceChoice::Auto), which gives
    /// the CPU and the reason where no GPU is usable.
    ///
    /// # Errors
    /// [`DeviceError::NotBuilt`] and [`DeviceError::Unusable`], for [`Cuda`](DeviceChoice::Cuda) alone.
    pub fn open(self) -> Result<ComputeDevice, DeviceError> {
        let ordinal = match self {
            DeviceChoice::Cpu => return Ok(ComputeDevice::Cpu { instead: None }),
            DeviceChoice::Auto => 0,
            DeviceChoice::Cuda(ordinal) => ordinal,
        };
        match (open_gpu(self, ordinal), self) {
            (Ok(device), _) => Ok(device),
            (Err(DeviceError::Unusable { reason, .. }), DeviceChoice::Auto) => {
                Ok(ComputeDevice::Cpu { instead: Some(reason) })
            }
            (Err(DeviceError::NotBuilt { .. }), DeviceChoice::Auto) => {
                Ok(ComputeDevice::Cpu { instead: Some("this build has no feature `gpu`".to_owned()) })
            }
            (Err(error), _) => Err(error),
        }
    }
}

#[cfg(feature = "gpu")]
fn open_gpu(asked: DeviceChoice, ordinal: usize) -> Result<ComputeDevice, DeviceError> {
    gosset_cuda::Gpu::open(ordinal, &gosset_cuda::OpenOptions::default())
        .map(ComputeDevice::Cuda)
        .map_err(|e| DeviceError::Unusable { asked, reason: e.to_string() })
}

#[cfg(not(feature = "gpu"))]
fn open_gpu(asked: DeviceChoice, _ordinal: usize) -> Result<ComputeDevice, DeviceError> {
    Err(DeviceError::NotBuilt { asked })
}

impl ComputeDevice {
    /// Name for records: `cpu`, or `cuda:0`.
    pub fn name(&self) -> String {
        match self {
            ComputeDevice::Cpu { .. } => DeviceChoice::Cpu.to_string(),
            #[cfg(feature = "gpu")]
            ComputeDevice::Cuda(gpu) => DeviceChoice::Cuda(gpu.info().ordinal).to_string(),
        }
    }

    /// The device for [`LoadOptions`](crate::LoadOptions), with the usual settings.
    pub fn for_loading(&self) -> Device {
        match self {
            ComputeDevice::Cpu { .. } => Device::Cpu,
            #[cfg(feature = "gpu")]
            ComputeDevice::Cuda(gpu) => crate::gpu::device(gpu.clone(), crate::gpu::GpuOptions::default()),
        }
    }
}

impl fmt::Display for ComputeDevice {
    /// For people: the name, and either the product or why it is not a GPU.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match self {
            ComputeDevice::Cpu { instead: None } => Ok(()),
            ComputeDevice::Cpu { instead: Some(reason) } => write!(f, " (no GPU: {reason})"),
            #[cfg(feature = "gpu")]
            ComputeDevice::Cuda(gpu) => {
                let info = gpu.info();
                write!(f, " ({}, capability {}.{})", info.name, info.capability.0, info.capability.1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        for name in ["auto", "cpu", "cuda:0", "cuda:17"] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap().to_string(), name);
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        for bad in ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:+1", "cuda:1.0", "cuda: 1", "cuda:99999", "cpu:0"] {
            assert!(matches!(bad.parse::<DeviceChoice>(), Err(DeviceError::Syntax { .. })), "{bad:?}");
        }
    }

    #[test]
    fn h03_auto_never_fails_and_says_why_it_is_the_cpu() {
        let device = DeviceChoice::Auto.open().unwrap();
        match &device {
            ComputeDevice::Cpu { instead } => {
                let reason = instead.as_deref().unwrap();
                assert!(!reason.is_empty() && !reason.contains('\n'), "{reason:?}");
                assert!(device.to_string().starts_with("cpu (no GPU: "), "{device}");
            }
            #[cfg(feature = "gpu")]
            ComputeDevice::Cuda(_) => assert!(device.to_string().starts_with("cuda:0 ("), "{device}"),
        }
    }

    #[test]
    fn h03_the_cpu_has_no_reason() {
        assert_eq!(DeviceChoice::Cpu.open().unwrap().to_string(), "cpu");
    }

    #[cfg(not(feature = "gpu"))]
    #[test]
    fn h03_a_build_without_the_feature_names_it() {
        let error = DeviceChoice::Cuda(0).open().unwrap_err();
        assert_eq!(error, DeviceError::NotBuilt { asked: DeviceChoice::Cuda(0) });
        assert!(error.to_string().contains("cuda:0") && error.to_string().contains("feature `gpu`"), "{error}");
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn h03_a_gpu_that_is_not_there_is_an_error_with_a_remedy() {
        // No machine has so many.
        let error = DeviceChoice::Cuda(9999).open().unwrap_err();
        assert!(matches!(error, DeviceError::Unusable { .. }));
        let text = error.to_string();
        assert!(text.contains("cuda:9999") && !text.contains('\n'), "{text}");
    }
}
