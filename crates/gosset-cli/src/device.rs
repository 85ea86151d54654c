//! `--device`, for the commands that run a model.

use anyhow::Result;
use clap::Args;
use gosset_runtime::{ComputeDevice, DeviceChoice};

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
    /// Opens the device before any model is read, and says on stderr which one it is.
    pub(crate) fn open(self, quiet: bool) -> Result<ComputeDevice> {
        let device = self.device.open()?;
        if !quiet {
            output::note(&format!("device: {device}"));
        }
        Ok(device)
    }
}
