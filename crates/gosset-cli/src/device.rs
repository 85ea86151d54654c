//! `--device`, for the commands that run a model.

use anyhow::Result;
use clap::Args;
use gosset_kv::KvSpec;
use gosset_runtime::{ComputeDevice, DeviceChoice, LanguageModel, RuntimeError, kv_device_gap};

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
    /// Opens the device before any model is read, and says on stderr which one it is. With a compressed cache that only the CPU can
    /// keep, `auto` is the CPU and a GPU is refused.
    pub(crate) fn open(self, kv: &KvArgs, quiet: bool) -> Result<ComputeDevice> {
        let gap = kv.spec().and_then(|spec| kv_device_gap(spec, None));
        let device = match (gap, self.device) {
            (Some(reason), DeviceChoice::Cuda(_)) => {
                return Err(RuntimeError::KvDevice { device: self.device.to_string(), reason }.into());
            }
            (Some(reason), DeviceChoice::Auto) => ComputeDevice::Cpu { instead: Some(of_cache(&reason)) },
            (_, choice) => choice.open()?,
        };
        if !quiet {
            output::note(&format!("device: {device}"));
        }
        Ok(device)
    }

    /// Loads the model onto `device`. Where `auto` chose a GPU that has no room for it, cannot run it, or cannot keep its cache compressed
    /// as asked for, the CPU takes its place.
    pub(crate) fn load(
        self,
        input: &Input,
        kv: Option<&KvSpec>,
        device: &mut ComputeDevice,
        quiet: bool,
    ) -> Result<LanguageModel> {
        let auto = self.device == DeviceChoice::Auto;
        let loaded = input.load(device);
        let instead = match &loaded {
            Err(error) if auto && is_of_device(error) => one_line(error),
            Ok(model) if auto => match kv.and_then(|spec| model.kv_gap(spec)) {
                Some(reason) => of_cache(&reason),
                None => return loaded,
            },
            _ => return loaded,
        };
        // What was loaded is gone before the model is loaded again.
        drop(loaded);
        *device = ComputeDevice::Cpu { instead: Some(instead) };
        if !quiet {
            output::note(&format!("device: {device}"));
        }
        input.load(device)
    }
}

/// Why a cache is kept by the CPU.
fn of_cache(reason: &str) -> String {
    format!("--kv on a GPU: {reason}")
}

/// Whether the model may load elsewhere.
fn is_of_device(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(RuntimeError::DeviceMemory { .. } | RuntimeError::DeviceModel { .. }) => true,
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
        let window = RuntimeError::DeviceModel { class: "MistralForCausalLM", reason: "a window".to_owned() };
        assert!(is_of_device(&window.into()));
        assert!(!is_of_device(&RuntimeError::Cancelled.into()));
        assert!(!is_of_device(&anyhow::anyhow!("anything")));
    }
}
