//! `--device`, for the commands that run a model.

use anyhow::Result;
use clap::Args;
use gosset_runtime::{ComputeDevice, DeviceChoice, LanguageModel, RuntimeError};

use crate::exit::one_line;
use crate::kv::KvArgs;
use crate::model::Input;
use crate::output;

/// Where to compute.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DeviceArgs {
    /// Where to compute: auto, cpu, cuda, or cuda:N for one of several GPUs. auto takes the first GPU if it is usable;
    /// `gosset doctor` says whether it is.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
}

impl DeviceArgs {
    /// Opens the device before any model is read, and says on stderr which one it is; with a compressed cache, of which only the CPU
    /// can make use, `auto` is the CPU and a GPU is refused.
    pub(crate) fn open(self, kv: &KvArgs, quiet: bool) -> Result<ComputeDevice> {
        let device = match (kv.spec(), self.device) {
            (Some(_), DeviceChoice::Cuda(_)) => {
                return Err(RuntimeError::KvDevice { device: self.device.to_string() }.into());
            }
            (Some(_), DeviceChoice::Auto) => {
                ComputeDevice::Cpu { instead: Some("--kv is computed on the CPU".to_owned()) }
            }
            (_, choice) => choice.open()?,
        };
        if !quiet {
            output::note(&format!("device: {device}"));
        }
        Ok(device)
    }

    /// Loads the model onto `device`. Where `auto` chose a GPU that has no room for it or cannot run it, the CPU takes its place.
    pub(crate) fn load(self, input: &Input, device: &mut ComputeDevice, quiet: bool) -> Result<LanguageModel> {
        match input.load(device) {
            Err(error) if self.device == DeviceChoice::Auto && is_of_device(&error) => {
                *device = ComputeDevice::Cpu { instead: Some(one_line(&error)) };
                if !quiet {
                    output::note(&format!("device: {device}"));
                }
                input.load(device)
            }
            loaded => loaded,
        }
    }
}

/// Whether the model may load elsewhere.
fn is_of_device(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(RuntimeError::DeviceMemory { .. }) => true,
        #[cfg(feature = "gpu")]
        Some(RuntimeError::Cuda(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faults_of_the_device_send_a_model_to_the_cpu() {
        let full = RuntimeError::DeviceMemory { weights: 9, cache: 1, positions: 1, workspace: 1, free: 2 };
        assert!(is_of_device(&full.into()));
        #[cfg(feature = "gpu")]
        assert!(is_of_device(&RuntimeError::Cuda(gosset_cuda::CudaError::NoDriver).into()));
        assert!(!is_of_device(&RuntimeError::Cancelled.into()));
        assert!(!is_of_device(&anyhow::anyhow!("anything")));
    }
}
